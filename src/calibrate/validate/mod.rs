//! Predictions put to the test on measured tables: rows left out, larger fleets, speculation turned on, whole jobs.

mod forecast;

pub use forecast::{Forecast, forecast};

use std::collections::BTreeMap;

use rayon::prelude::*;

use crate::measured::{Job, Table};

use super::describe::{Described, describe};
use super::fit::{FitOptions, fit, table_model};
use super::mode::{Effort, Mode, find_mode};
use super::model::Model;
use super::points::{Measured, Point, Points};
use super::predict::Prediction;

/// What was predicted from what.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
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
#[derive(Clone, Debug)]
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
#[derive(Clone, Debug)]
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

/// Steps that a table takes: its fit, and its rows left out.
pub const STEPS_PER_TABLE: u64 = 2;

/// Puts the simulator to the test on tables and jobs; `done` is called [`STEPS_PER_TABLE`] times for each table.
pub fn validate(tables: Vec<(String, Table)>, jobs: &[Job], seed: u64, done: &(impl Fn() + Sync)) -> Validation {
    let fit_one = |(name, table)| {
        let found = fit_table(name, table, seed);
        done();
        found
    };
    let fitted: Vec<Result<Fitted, TableNote>> = tables.into_par_iter().map(fit_one).collect();
    let mut notes = Vec::new();
    let mut known: BTreeMap<String, Fitted> = BTreeMap::new();
    for result in fitted {
        match result {
            Ok(one) => {
                notes.push(TableNote {
                    table: one.name.clone(),
                    rows: one.points.used.len(),
                    rms_log_error: Some(one.rms),
                    note: one.unexplained.clone(),
                    assumed: one.described.assumed.clone(),
                });
                known.insert(one.name.clone(), one);
            }
            Err(note) => notes.push(note),
        }
    }
    let all: Vec<&Fitted> = known.values().collect();
    let test_one = |one: &&Fitted| {
        let found = within(one);
        done();
        found
    };
    let mut tests: Vec<Test> = all.par_iter().flat_map(test_one).collect();
    tests.extend(all.par_iter().flat_map(|one| scaling(one, &all)).collect::<Vec<_>>());
    tests.extend(all.par_iter().flat_map(|one| speculation(one, &known)).collect::<Vec<_>>());
    tests.extend(jobs.par_iter().filter_map(|job| whole_job(job, known.get(&job.table)?)).collect::<Vec<_>>());
    tests.sort_by(|a, b| (a.kind, &a.table).cmp(&(b.kind, &b.table)));
    notes.sort_by(|a, b| a.table.cmp(&b.table));
    Validation { tests, tables: notes }
}

fn fit_table(name: String, table: Table, seed: u64) -> Result<Fitted, TableNote> {
    let refused = |error: crate::error::Error| TableNote {
        table: name.clone(),
        rows: table.rows.len(),
        rms_log_error: None,
        note: Some(error.to_string()),
        assumed: Vec::new(),
    };
    let described = describe(&table).map_err(refused)?;
    let points = Points::new(&described.setup, &table).map_err(refused)?;
    let options = FitOptions { draws: DRAWS, known: described.known, ..FitOptions::new(seed) };
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
fn scaling(one: &Fitted, all: &[&Fitted]) -> Vec<Test> {
    let group = |other: &Fitted| other.table.about.as_ref().and_then(|about| about.scaling_group.clone());
    let gpus = |other: &Fitted| other.table.about.as_ref().map_or(1, |about| about.gpus);
    let Some(name) = group(one) else { return Vec::new() };
    let members = all.iter().filter(|other| group(other).as_ref() == Some(&name));
    let Some(smallest) = members.min_by_key(|other| gpus(other)) else { return Vec::new() };
    if gpus(smallest) == gpus(one) { Vec::new() } else { transfer(TestKind::Scaling, smallest, one) }
}

/// A table with speculation from its sibling without.
fn speculation(one: &Fitted, known: &BTreeMap<String, Fitted>) -> Vec<Test> {
    let pair = one.table.about.as_ref().and_then(|about| about.pair.as_ref()).and_then(|pair| known.get(pair));
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
