//! Throughput against concurrency, run as the benchmark was, beside the measured table.

use std::path::Path;

use serde::{Deserialize, Serialize};

use crate::cost::{Cause, Ledger};
use crate::engine::observe::{LIMITS, Limit, Unobserved};
use crate::engine::settings::Stride;
use crate::error::{Error, InputError, Result};
use crate::experiment::forecast::identity;
use crate::experiment::jobs::JobSource;
use crate::experiment::setup::{Changes, Setup};
use crate::inspect;
use crate::measured::import::read_folder;
use crate::measured::{Table, output_tok_per_s, read_about, read_table};
use crate::model::builtin::{Kind, find};
use crate::random::{Streams, fnv1a};
use crate::shard::{Identity, Row, Work};
use crate::simulation::{InFlight, Outcome, ReuseTotals, main_limit, simulate};
use crate::units::Span;

/// Points of a sweep without a measured table.
const USUAL_CONCURRENCIES: [u32; 9] = [1, 2, 4, 8, 16, 32, 64, 128, 256];

/// Share of the plateau that the knee reaches.
const KNEE_SHARE: f64 = 0.95;

/// One point of a sweep.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SweepPoint {
    /// Its number.
    pub unit: u64,
    /// Requests in flight on one replica.
    pub concurrency: u32,
    /// Requests sent.
    pub requests: u64,
    /// Prompt and output of each, tokens.
    pub prompt_tokens: u32,
    /// Output of each, tokens.
    pub output_tokens: u32,
    /// Simulated output rate of one replica, averaged over the runs.
    pub output_tok_per_s: f64,
    /// Standard deviation of that rate from run to run: what one measurement would scatter by.
    pub run_deviation: f64,
    /// Measured output rate, where there is one.
    pub measured_tok_per_s: Option<f64>,
    /// Mean time to first token, ms.
    pub ttft_ms: Option<f64>,
    /// Mean time per output token, ms.
    pub tpot_ms: Option<f64>,
    /// Requests running on average.
    pub mean_running: f64,
    /// What limited the batch for the longest time.
    pub limit: Option<(Limit, f64)>,
    /// Preemptions in a run.
    pub preemptions: f64,
    /// Share of GPU time in prefill, for the first time or again.
    pub prefill_share: f64,
    /// Reuse and transfers of the first run; `None` without.
    pub reuse: Option<ReuseTotals>,
}

/// A sweep over concurrencies.
#[derive(Clone, Debug)]
pub struct Sweep {
    /// The points, by concurrency.
    pub points: Vec<SweepPoint>,
    /// Name of the measured table beside them.
    pub table: Option<String>,
}

#[derive(Clone, Debug)]
struct Point {
    concurrency: u32,
    requests: u64,
    prompt_tokens: u32,
    output_tokens: u32,
    measured_tok_per_s: Option<f64>,
}

/// Reads the scenario's measured table: a built-in one, a table, a result file of a benchmark tool, or a folder of such.
///
/// # Errors
/// When it cannot be found or read.
pub fn measured_table(setup: &Setup) -> Result<Option<(String, Table)>> {
    let Some(named) = setup.scenario.tables.benchmark.as_ref().and_then(|benchmark| benchmark.table.as_ref()) else {
        return Ok(None);
    };
    let joined = setup.scenario.folder.join(named);
    let folder = [joined.as_path(), Path::new(named)].into_iter().find(|path| path.is_dir());
    if let Some(folder) = folder {
        return Ok(Some((named.clone(), read_folder(folder)?.table)));
    }
    let name = if crate::files::is_file(&joined) { joined.display().to_string() } else { named.clone() };
    let path = Path::new(&name);
    let csv = if name.ends_with(".csv") || crate::files::is_file(path) { name.clone() } else { format!("{name}.csv") };
    let found = find(Kind::Measured, &csv).map_err(|error| match error {
        Error::Input(input) => Error::Input(setup.scenario.locate(input.key("benchmark.table"))),
        other => other,
    })?;
    let read = found.text().and_then(|text| Ok(read_table(text, &found.file)?));
    let fits = [inspect::Kind::Benchmark, inspect::Kind::MeasuredTable];
    let mut table =
        read.map_err(
            |error| {
                if found.built_in { error } else { inspect::wrong_file(error, path, "a measured table", &fits) }
            },
        )?;
    let about = csv.trim_end_matches(".csv");
    if let Ok(found) = find(Kind::Measured, &if found.built_in { about.to_owned() } else { format!("{about}.toml") }) {
        table = table.with_about(read_about(found.text()?, &found.file)?);
    }
    Ok(Some((named.clone(), table)))
}

/// The points of a sweep, each a unit.
pub struct Benchmark<'a> {
    setup: &'a Setup,
    points: Vec<Point>,
    change: Changes,
    seed: u64,
    replications: u32,
    table: Option<String>,
}

impl<'a> Benchmark<'a> {
    /// Every point `replications` times; `at` replaces the concurrencies of the measured table or the usual ones.
    ///
    /// # Errors
    /// Bad tables.
    pub fn new(setup: &'a Setup, at: &[u32], change: Changes, seed: u64, replications: u32) -> Result<Benchmark<'a>> {
        let table = measured_table(setup)?;
        let points = points(setup, table.as_ref().map(|(_, table)| table), at)?;
        Ok(Benchmark { setup, points, change, seed, replications, table: table.map(|(name, _)| name) })
    }

    /// How many points there are.
    pub fn units(&self) -> u64 {
        self.points.len() as u64
    }

    /// The sweep of finished points.
    pub fn sweep(&self, points: Vec<SweepPoint>) -> Sweep {
        Sweep { points, table: self.table.clone() }
    }
}

impl Work for Benchmark<'_> {
    type Row = SweepPoint;

    fn run(&self, unit: u64) -> Result<SweepPoint> {
        let point = usize::try_from(unit).ok().and_then(|place| self.points.get(place));
        let point = point.ok_or_else(|| InputError::new(format!("there is no point {unit}"), "").key("--range"))?;
        Ok(SweepPoint { unit, ..run_point(self.setup, point, self.change, self.seed, self.replications)? })
    }

    fn identity(&self) -> Result<Identity> {
        let arguments = format!("{:?} {:?} {}", self.points, self.change, self.replications);
        Ok(identity("sweep", &self.setup.scenario, self.seed)?
            .with("points", format!("{:016x}", fnv1a(&arguments)))
            .with_units(self.units()))
    }

    fn describe(&self, unit: u64) -> String {
        format!("point {unit}")
    }
}

impl Row for SweepPoint {
    const COLUMNS: &'static [&'static str] = &[
        "unit",
        "concurrency",
        "requests",
        "prompt_tokens",
        "output_tokens",
        "output_tok_per_s",
        "run_deviation",
        "measured_tok_per_s",
        "ttft_ms",
        "tpot_ms",
        "mean_running",
        "limit",
        "preemptions",
        "prefill_share",
        "reuse",
    ];

    fn unit(&self) -> u64 {
        self.unit
    }

    fn numbered(self, unit: u64) -> Self {
        SweepPoint { unit, ..self }
    }
}

fn points(setup: &Setup, table: Option<&Table>, at: &[u32]) -> Result<Vec<Point>> {
    let benchmark = setup.scenario.tables.benchmark.as_ref();
    let waves = benchmark.and_then(|benchmark| benchmark.waves).unwrap_or(1);
    let prompt = benchmark.and_then(|benchmark| benchmark.prompt_tokens);
    let output = benchmark.and_then(|benchmark| benchmark.output_tokens);
    let missing = |key: &str| {
        let remedy = match table {
            Some(_) => "give the length that the benchmark used: the table does not say",
            None => "give the length that every request of the sweep has",
        };
        setup.scenario.error(&format!("benchmark.{key}"), "missing", remedy)
    };
    // A table of several replicas counts their requests together.
    let share =
        table.and_then(|table| table.about.as_ref()).and_then(|about| about.dp).map_or(1, |replicas| replicas.max(1));
    let mut points = Vec::new();
    for row in table.map(|table| table.rows.as_slice()).unwrap_or_default() {
        if !at.is_empty() && !at.contains(&row.concurrency) {
            continue;
        }
        let prompt_tokens = row.shape.input_tokens.map(|t| t.round() as u64).or(prompt);
        let output_tokens = row.shape.output_tokens.map(|t| t.round() as u64).or(output);
        let concurrency = row.concurrency.div_ceil(share);
        points.push(Point {
            concurrency,
            requests: row.num_requests.map_or(u64::from(concurrency) * waves, |n| n.div_ceil(u64::from(share))),
            prompt_tokens: prompt_tokens.ok_or_else(|| missing("prompt_tokens"))? as u32,
            output_tokens: output_tokens.ok_or_else(|| missing("output_tokens"))? as u32,
            measured_tok_per_s: output_tok_per_s(row).map(|rate| rate / f64::from(share)),
        });
    }
    let known: Vec<u32> = points.iter().map(|point| point.concurrency).collect();
    let usual: &[u32] = if table.is_none() && at.is_empty() { &USUAL_CONCURRENCIES } else { at };
    for &concurrency in usual.iter().filter(|concurrency| !known.contains(concurrency)) {
        if concurrency == 0 || concurrency > 1 << 20 {
            let found = format!("found {concurrency}");
            return Err(InputError::new(found, "give concurrencies between 1 and 1048576").key("--at").into());
        }
        points.push(Point {
            concurrency,
            requests: u64::from(concurrency) * waves,
            prompt_tokens: prompt.ok_or_else(|| missing("prompt_tokens"))? as u32,
            output_tokens: output.ok_or_else(|| missing("output_tokens"))? as u32,
            measured_tok_per_s: None,
        });
    }
    points.sort_by_key(|point| (point.prompt_tokens, point.output_tokens, point.concurrency));
    Ok(points)
}

fn run_point(setup: &Setup, point: &Point, change: Changes, seed: u64, replications: u32) -> Result<SweepPoint> {
    let job = JobSource::benchmark(point.requests, point.prompt_tokens, point.output_tokens)?;
    let change = Changes { benchmark_output_tokens: Some(point.output_tokens), ..change };
    let run = |replication: u32| -> Result<Outcome> {
        let streams = Streams::new(seed, u64::from(replication));
        let workload = job.workload(streams)?;
        let mut fleet = setup.fleet(streams, Stride::Longest, change)?;
        fleet.replicas.truncate(1);
        fleet.in_flight = InFlight::PerReplica(point.concurrency);
        fleet.startup = Span::ZERO;
        simulate(fleet, job.stream(&workload, streams), &mut Unobserved)
    };
    let outcomes = (0..replications).map(run).collect::<Result<Vec<_>>>()?;
    let count = f64::from(replications);
    let mean = |value: &dyn Fn(&Outcome) -> f64| outcomes.iter().map(value).sum::<f64>() / count;
    let mean_ms = |value: &dyn Fn(&Outcome) -> Option<f64>| {
        let values: Vec<f64> = outcomes.iter().filter_map(value).collect();
        (!values.is_empty()).then(|| values.iter().sum::<f64>() / values.len() as f64 * 1e3)
    };
    let rate = mean(&|outcome| outcome.output_tok_per_s());
    let variance = mean(&|outcome| (outcome.output_tok_per_s() - rate).powi(2)) * count / (count - 1.0).max(1.0);
    let mut ledger = Ledger::default();
    let mut limit_time = [Span::ZERO; LIMITS];
    for outcome in &outcomes {
        ledger.add(&outcome.ledger);
        limit_time.iter_mut().zip(&outcome.limit_time).for_each(|(sum, time)| *sum += *time);
    }
    Ok(SweepPoint {
        unit: 0,
        concurrency: point.concurrency,
        requests: point.requests,
        prompt_tokens: point.prompt_tokens,
        output_tokens: point.output_tokens,
        output_tok_per_s: rate,
        run_deviation: variance.sqrt(),
        measured_tok_per_s: point.measured_tok_per_s,
        ttft_ms: mean_ms(&|outcome| outcome.mean_ttft_s),
        tpot_ms: mean_ms(&|outcome| outcome.mean_tpot_s),
        mean_running: mean(&|outcome| outcome.mean_running),
        limit: main_limit(&limit_time),
        preemptions: mean(&|outcome| outcome.preemptions as f64),
        prefill_share: ledger.share(Cause::Prefill) + ledger.share(Cause::Recompute),
        reuse: outcomes.first().and_then(Outcome::reuse),
    })
}

impl Sweep {
    /// The smallest concurrency that reaches 95% of the highest rate, and that rate: where more requests in flight stop
    /// helping, on these points. `None` without points.
    pub fn knee(&self) -> Option<(u32, f64)> {
        knee(&self.points)
    }

    /// Root mean square of log(simulated / measured) over the points that were measured.
    pub fn rms_log_error(&self) -> Option<f64> {
        let errors: Vec<f64> = self
            .points
            .iter()
            .filter_map(|point| point.measured_tok_per_s.map(|measured| (point.output_tok_per_s / measured).ln()))
            .collect();
        (!errors.is_empty()).then(|| (errors.iter().map(|e| e * e).sum::<f64>() / errors.len() as f64).sqrt())
    }
}

/// See [`Sweep::knee`].
pub fn knee(points: &[SweepPoint]) -> Option<(u32, f64)> {
    let plateau = points.iter().map(|point| point.output_tok_per_s).fold(0.0, f64::max);
    points
        .iter()
        .filter(|point| point.output_tok_per_s >= KNEE_SHARE * plateau)
        .map(|point| point.concurrency)
        .min()
        .map(|concurrency| (concurrency, plateau))
}
