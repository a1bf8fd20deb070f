//! Predictions put to the test on measured tables: rows left out, larger fleets, speculation turned on, whole jobs.

mod forecast;

pub use forecast::{Forecast, forecast};

use std::collections::BTreeMap;

use rayon::prelude::*;
use serde::{Deserialize, Serialize};

use crate::error::{InputError, Result};
use crate::measured::{Job, Table};
use crate::random::fnv1a;
use crate::shard::{Identity, Row, Store, Work, run_missing};

use super::describe::{Described, describe};
use super::fit::{FitOptions, fit, table_model};
use super::mode::{Effort, Mode, find_mode};
use super::model::Model;
use super::points::{Measured, Point, Points};
use super::predict::Prediction;

/// What was predicted from what.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TestKind {
    /// An interior row of a table, from its other rows.
    LeaveOneOut,
    /// All rows but three, from the first, middle and last.
    ThreePoints,
    /// More GPUs, from the fewest.
    Scaling,
    /// Speculation on, from off.
    Speculation,
    /// Seconds of a whole job, from the table of its configuration.
    WholeJob,
}

impl TestKind {
    /// All kinds.
    pub const ALL: [TestKind; 5] =
        [TestKind::LeaveOneOut, TestKind::ThreePoints, TestKind::Scaling, TestKind::Speculation, TestKind::WholeJob];

    /// The key in JSON.
    pub fn key(self) -> &'static str {
        match self {
            TestKind::LeaveOneOut => "leave_one_out",
            TestKind::ThreePoints => "three_points",
            TestKind::Scaling => "scaling",
            TestKind::Speculation => "speculation",
            TestKind::WholeJob => "whole_job",
        }
    }

    /// A few words for people.
    pub fn words(self) -> &'static str {
        match self {
            TestKind::LeaveOneOut => "leave one out (interior rows)",
            TestKind::ThreePoints => "three rows predict the rest",
            TestKind::Scaling => "fewest GPUs predict more",
            TestKind::Speculation => "speculation off predicts on",
            TestKind::WholeJob => "table predicts whole jobs",
        }
    }
}

/// One prediction against its measurement.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Test {
    /// What was predicted from what.
    pub kind: TestKind,
    /// The table that was predicted.
    pub table: String,
    /// The row or job.
    pub what: String,
    /// Measured.
    pub measured: f64,
    /// Predicted.
    pub forecast: Forecast,
    /// Why the fit behind it must not be trusted, if so.
    pub flagged: bool,
}

impl Test {
    /// ln(predicted ÷ measured).
    pub fn error(&self) -> f64 {
        (self.forecast.value / self.measured).ln()
    }
}

/// One table in the validation.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TableNote {
    /// Its name.
    pub table: String,
    /// Rows used.
    pub rows: usize,
    /// Root mean square of ln(measured ÷ fitted); `None` when it was not fitted.
    pub rms_log_error: Option<f64>,
    /// Why it is not covered, or not explained.
    pub note: Option<String>,
    /// What was assumed of its configuration.
    pub assumed: Vec<String>,
}

/// The whole validation.
#[derive(Clone, Debug)]
pub struct Validation {
    /// Predictions, by kind and table.
    pub tests: Vec<Test>,
    /// Tables.
    pub tables: Vec<TableNote>,
}

/// Accuracy of one kind.
#[derive(Clone, Copy, Debug)]
pub struct Accuracy {
    /// Predictions.
    pub count: usize,
    /// Median of |predicted ÷ measured − 1|.
    pub median: f64,
    /// Its 90th percentile.
    pub p90: f64,
    /// Median signed error.
    pub bias: f64,
    /// Share of measurements inside the 50% interval.
    pub inside_half: f64,
    /// Share inside the 90% interval.
    pub inside_nine_tenths: f64,
}

/// A fitted table.
struct Fitted {
    name: String,
    table: Table,
    described: Described,
    points: Points,
    model: Model,
    modes: Vec<Mode>,
    unexplained: Option<String>,
    rms: f64,
}

/// Rows that a table needs for leave-one-out.
const ENOUGH_ROWS: usize = 5;

/// Draws of the posterior: only modes are used here.
const DRAWS: usize = 32;

/// What carries over between two configurations (other GPUs together, speculation turned on) is known less well than what
/// stays within one: standard deviation of the logarithm, as communication and draft passes scatter between hosts.
const BETWEEN_CONFIGURATIONS: f64 = 0.06;

/// Tables and jobs to put the simulator to the test on: each table is a unit.
pub struct Validator<'a> {
    tables: Vec<(String, Table)>,
    jobs: &'a [Job],
    seed: u64,
    fitted: BTreeMap<String, std::result::Result<Fitted, TableNote>>,
}

/// What one table came to.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Tested {
    /// Its number, by name.
    pub unit: u64,
    /// The table.
    pub note: TableNote,
    /// What was predicted of it.
    pub tests: Vec<Test>,
}

impl Row for Tested {
    const COLUMNS: &'static [&'static str] = &["unit", "note", "tests"];

    fn unit(&self) -> u64 {
        self.unit
    }

    fn numbered(self, unit: u64) -> Self {
        Tested { unit, ..self }
    }
}

impl<'a> Validator<'a> {
    /// These tables and jobs; units follow the names of the tables.
    pub fn new(mut tables: Vec<(String, Table)>, jobs: &'a [Job], seed: u64) -> Validator<'a> {
        tables.sort_by(|a, b| a.0.cmp(&b.0));
        Validator { tables, jobs, seed, fitted: BTreeMap::new() }
    }

    /// How many tables there are.
    pub fn units(&self) -> u64 {
        self.tables.len() as u64
    }

    /// Tables that must be fitted to run these units: their own, and those that they are predicted from.
    pub fn needed(&self, units: &[u64]) -> Vec<String> {
        let chosen = |place: usize| units.contains(&(place as u64));
        let mut groups = Vec::new();
        let mut names = Vec::new();
        for (_, (name, table)) in self.tables.iter().enumerate().filter(|(place, _)| chosen(*place)) {
            names.push(name.clone());
            groups.extend(table.about.as_ref().and_then(|about| about.scaling_group.clone()));
            names.extend(table.about.as_ref().and_then(|about| about.pair.clone()));
        }
        let in_group = |table: &Table| {
            table
                .about
                .as_ref()
                .and_then(|about| about.scaling_group.as_ref())
                .is_some_and(|name| groups.contains(name))
        };
        let wanted = |(name, table): &&(String, Table)| names.contains(name) || in_group(table);
        self.tables.iter().filter(wanted).map(|(name, _)| name.clone()).collect()
    }

    /// Fits what these units need; `done` hears of each.
    pub fn prepare(&mut self, units: &[u64], done: &(dyn Fn() + Sync)) {
        let mut names = self.needed(units);
        names.retain(|name| !self.fitted.contains_key(name));
        let tables: Vec<(String, Table)> =
            self.tables.iter().filter(|(name, _)| names.contains(name)).cloned().collect();
        let seed = self.seed;
        let fit_one = |(name, table): (String, Table)| {
            let found = fit_table(name.clone(), table, seed);
            done();
            (name, found)
        };
        self.fitted.extend(tables.into_par_iter().map(fit_one).collect::<Vec<_>>());
    }

    /// The validation that finished units add up to.
    pub fn validation(rows: &[&Tested]) -> Validation {
        let mut tests: Vec<Test> = rows.iter().flat_map(|row| row.tests.iter().cloned()).collect();
        tests.sort_by(|a, b| (a.kind, &a.table).cmp(&(b.kind, &b.table)));
        Validation { tests, tables: rows.iter().map(|row| row.note.clone()).collect() }
    }
}

impl Work for Validator<'_> {
    type Row = Tested;

    fn run(&self, unit: u64) -> Result<Tested> {
        let place = usize::try_from(unit).ok().and_then(|place| self.tables.get(place));
        let found = place.and_then(|(name, _)| self.fitted.get(name));
        let found = found.ok_or_else(|| {
            let remedy = "give units of tables that there are, and prepare them first";
            InputError::new(format!("there is no fitted table {unit}"), remedy).key("--range")
        })?;
        let one = match found {
            Ok(one) => one,
            Err(note) => return Ok(Tested { unit, note: note.clone(), tests: Vec::new() }),
        };
        let known: BTreeMap<&str, &Fitted> =
            self.fitted.iter().filter_map(|(name, fitted)| Some((name.as_str(), fitted.as_ref().ok()?))).collect();
        let note = TableNote {
            table: one.name.clone(),
            rows: one.points.used.len(),
            rms_log_error: Some(one.rms),
            note: one.unexplained.clone(),
            assumed: one.described.assumed.clone(),
        };
        let mut tests = within(one);
        tests.extend(scaling(one, &known));
        tests.extend(speculation(one, &known));
        let own = self.jobs.par_iter().filter(|job| job.table == one.name);
        tests.extend(own.filter_map(|job| whole_job(job, one)).collect::<Vec<_>>());
        Ok(Tested { unit, note, tests })
    }

    fn identity(&self) -> Result<Identity> {
        let what = format!("{:016x}", fnv1a(&format!("{:?} {:?}", self.tables, self.jobs)));
        Ok(Identity::new("validate").with("tables", what).with_seed(self.seed).with_units(self.units()))
    }

    fn describe(&self, unit: u64) -> String {
        let name = usize::try_from(unit).ok().and_then(|place| self.tables.get(place)).map(|(name, _)| name.as_str());
        format!("table {}", name.unwrap_or("?"))
    }
}

/// Runs what is missing of some units, the fits that they need before it; `done` hears of each fit and each unit.
///
/// # Errors
/// Results that cannot be written.
pub fn validate(
    validator: &mut Validator<'_>,
    units: std::ops::Range<u64>,
    store: &mut Store<Tested>,
    done: &(dyn Fn() + Sync),
) -> Result<()> {
    validator.prepare(&store.missing(units.clone()), done);
    run_missing(validator, units, store, done)?;
    store.finish()
}

fn fit_table(name: String, table: Table, seed: u64) -> std::result::Result<Fitted, TableNote> {
    let refused = |error: crate::error::Error| TableNote {
        table: name.clone(),
        rows: table.rows.len(),
        rms_log_error: None,
        note: Some(error.to_string()),
        assumed: Vec::new(),
    };
    let described = describe(&table).map_err(refused)?;
    let points = Points::new(&described.setup, &table).map_err(refused)?;
    let options = FitOptions { draws: DRAWS, moves: 0, known: described.known, ..FitOptions::new(seed) };
    let found = fit(&described.setup, &table, options).map_err(refused)?;
    let unexplained = found.unexplained();
    let rms = found.rms_log_error;
    Ok(Fitted { model: found.model, modes: found.modes, name, table, described, points, unexplained, rms })
}

fn rate(prediction: &Prediction) -> f64 {
    prediction.tok_per_s
}

/// Refits without some rows, from what all rows gave: only the start, and structures that are negligible with all rows.
fn refit(one: &Fitted, keep: &dyn Fn(usize) -> bool) -> Option<(Model, Vec<Mode>)> {
    let mut model = one.model.clone();
    let kept = one.points.used.iter().enumerate().filter(|(index, _)| keep(*index));
    model.points = kept.map(|(_, point)| point.clone()).collect();
    let mut modes: Vec<Mode> = one
        .modes
        .iter()
        .filter_map(|mode| find_mode(&model, mode.structure, mode.prior, &mode.scores, Effort::Full))
        .collect();
    modes.sort_by(|a, b| b.log_evidence.total_cmp(&a.log_evidence));
    (!modes.is_empty()).then_some((model, modes))
}

fn test(kind: TestKind, one: &Fitted, point: &Point, measured: f64, forecast: Forecast) -> Test {
    let output = point.output_tokens.map_or("window".to_owned(), |tokens| tokens.to_string());
    Test {
        kind,
        table: one.name.clone(),
        what: format!("{} in flight, {}/{output}", point.in_flight, point.prompt_tokens),
        measured: measured * f64::from(point.replicas),
        forecast: Forecast { value: forecast.value * f64::from(point.replicas), ..forecast },
        flagged: one.unexplained.is_some(),
    }
}

/// Rows of a table from its other rows.
fn within(one: &Fitted) -> Vec<Test> {
    let points = &one.points.used;
    let mut tests = Vec::new();
    if points.len() >= ENOUGH_ROWS {
        let left_out = (0..points.len()).into_par_iter().filter(|index| interior(points, *index)).filter_map(|index| {
            let (model, modes) = refit(one, &|other| other != index)?;
            let measured = points[index].measured.tok_per_s?;
            let found = forecast(&modes, &model, &model, &points[index], None, &rate)?;
            Some(test(TestKind::LeaveOneOut, one, &points[index], measured, found))
        });
        tests.extend(left_out.collect::<Vec<_>>());
    }
    if points.len() > 3 {
        let chosen = [0, points.len() / 2, points.len() - 1];
        if let Some((model, modes)) = refit(one, &|index| chosen.contains(&index)) {
            tests.extend((0..points.len()).filter(|index| !chosen.contains(index)).filter_map(|index| {
                let measured = points[index].measured.tok_per_s?;
                let found = forecast(&modes, &model, &model, &points[index], None, &rate)?;
                Some(test(TestKind::ThreePoints, one, &points[index], measured, found))
            }));
        }
    }
    tests
}

/// True when a point of the same lengths lies on either side.
fn interior(points: &[Point], index: usize) -> bool {
    let here = &points[index];
    let same = |other: &&Point| other.prompt_tokens == here.prompt_tokens && other.output_tokens == here.output_tokens;
    let mut others = points.iter().filter(same);
    let below = others.clone().any(|other| other.concurrency < here.concurrency);
    below && others.any(|other| other.concurrency > here.concurrency)
}

/// A table from the one of its scaling group with the fewest GPUs.
fn scaling(one: &Fitted, known: &BTreeMap<&str, &Fitted>) -> Vec<Test> {
    let group = |other: &Fitted| other.table.about.as_ref().and_then(|about| about.scaling_group.clone());
    let gpus = |other: &Fitted| other.table.about.as_ref().map_or(1, |about| about.gpus);
    let Some(name) = group(one) else { return Vec::new() };
    let members = known.values().filter(|other| group(other).as_ref() == Some(&name));
    let Some(smallest) = members.min_by_key(|other| gpus(other)) else { return Vec::new() };
    if gpus(smallest) == gpus(one) { Vec::new() } else { transfer(TestKind::Scaling, smallest, one) }
}

/// A table with speculation from its sibling without.
fn speculation(one: &Fitted, known: &BTreeMap<&str, &Fitted>) -> Vec<Test> {
    let pair = one.table.about.as_ref().and_then(|about| about.pair.as_ref()).and_then(|pair| known.get(pair.as_str()));
    let Some(plain) = pair else { return Vec::new() };
    let drafts = |fitted: &Fitted| fitted.described.setup.settings.speculation.is_some();
    let given = one.described.known.acceptance.is_some();
    if drafts(one) && !drafts(plain) && given { transfer(TestKind::Speculation, plain, one) } else { Vec::new() }
}

fn transfer(kind: TestKind, from: &Fitted, to: &Fitted) -> Vec<Test> {
    let points = &to.points.used;
    let own = to.model.structures.iter().max_by(|a, b| a.1.total_cmp(&b.1)).map(|(structure, _)| *structure);
    // Tensor parallelism changes what the memory admits: the cap is then the engine's own.
    let same_engine = from.described.setup.tensor_parallel == to.described.setup.tensor_parallel;
    let structure = if same_engine && kind == TestKind::Scaling { None } else { own };
    let one = |point: &Point| {
        let measured = point.measured.tok_per_s?;
        let found = forecast(&from.modes, &from.model, &to.model, point, structure, &rate)?;
        let found = Forecast { deviation: found.deviation.hypot(BETWEEN_CONFIGURATIONS), ..found };
        Some(test(kind, to, point, measured, found))
    };
    points.iter().filter_map(one).collect()
}

/// A whole job from the table of its configuration.
fn whole_job(job: &Job, one: &Fitted) -> Option<Test> {
    let replicas = one.table.about.as_ref().and_then(|about| about.dp).map_or(1, |dp| dp.max(1));
    let in_flight = u32::try_from(job.concurrency?).ok()?;
    let share = replicas.min(in_flight);
    let each = |total: u64| (total as f64 / job.requests as f64).round().max(1.0) as u32;
    let output_tokens = each(job.output_tokens_total);
    // The descriptions of bursts do not total their prompts: those of the table's rows.
    let prompt_tokens = match job.input_tokens_total {
        Some(total) => each(total),
        None => one.points.used.first()?.prompt_tokens,
    };
    let point = Point {
        line: job.line,
        in_flight,
        concurrency: in_flight.div_ceil(share),
        requests: Some(job.requests.div_ceil(u64::from(share))),
        prompt_tokens,
        output_tokens: Some(output_tokens),
        measured: Measured::default(),
        replicas: share,
    };
    // The job's own row stays out of the fit where others remain.
    let own = |point: &Point| {
        point.in_flight == in_flight && point.output_tokens.is_some_and(|tokens| tokens.abs_diff(output_tokens) < 8)
    };
    let others = one.points.used.iter().filter(|point| !own(point)).count();
    let (model, modes) = if others >= 3 {
        refit(one, &|index| !own(&one.points.used[index]))?
    } else {
        (one.model.clone(), one.modes.clone())
    };
    let target =
        table_model(&one.described.setup, std::slice::from_ref(&point), one.described.known, model.seed).ok()?;
    let target = Model { priors: model.priors.clone(), setup: model.setup.clone(), ..target };
    let tokens = job.output_tokens_total as f64 / f64::from(share);
    let found = forecast(&modes, &model, &target, &point, None, &|found| tokens / found.tok_per_s)?;
    Some(Test {
        kind: TestKind::WholeJob,
        table: one.name.clone(),
        what: format!("{} requests, {in_flight} in flight", job.requests),
        measured: job.seconds,
        forecast: found,
        flagged: one.unexplained.is_some(),
    })
}

impl Validation {
    /// Accuracy of one kind over all tables; `None` without predictions.
    pub fn accuracy(&self, kind: TestKind) -> Option<Accuracy> {
        Accuracy::of(self.tests.iter().filter(|test| test.kind == kind))
    }

    /// The same over the tables that the model explains: those of which it does not say by itself that they are beyond it.
    pub fn accuracy_explained(&self, kind: TestKind) -> Option<Accuracy> {
        Accuracy::of(self.tests.iter().filter(|test| test.kind == kind && !test.flagged))
    }
}

impl Accuracy {
    fn of<'a>(tests: impl Iterator<Item = &'a Test>) -> Option<Accuracy> {
        let tests: Vec<&Test> = tests.collect();
        if tests.is_empty() {
            return None;
        }
        let mut signed: Vec<f64> = tests.iter().map(|test| test.error().exp_m1()).collect();
        let mut size: Vec<f64> = signed.iter().map(|error| error.abs()).collect();
        signed.sort_by(f64::total_cmp);
        size.sort_by(f64::total_cmp);
        let at = |sorted: &[f64], level: f64| sorted[(level * (sorted.len() - 1) as f64).round() as usize];
        let share =
            |holds: &dyn Fn(&Test) -> bool| tests.iter().filter(|test| holds(test)).count() as f64 / tests.len() as f64;
        Some(Accuracy {
            count: tests.len(),
            median: at(&size, 0.5),
            p90: at(&size, 0.9),
            bias: at(&signed, 0.5),
            inside_half: share(&|test| test.forecast.holds_half(test.measured)),
            inside_nine_tenths: share(&|test| test.forecast.holds_nine_tenths(test.measured)),
        })
    }
}
