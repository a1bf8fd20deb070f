//! One replication: everything uncertain drawn once, then the job run. Replication `i` of a seed is the same wherever
//! and in whatever company it runs.

use serde::{Deserialize, Serialize};

use crate::engine::observe::{Observer, Unobserved};
use crate::engine::sequence::Sequence;
use crate::engine::settings::Stride;
use crate::error::{Error, InputError, Result};
use crate::experiment::jobs::JobSource;
use crate::experiment::setup::Setup;
use crate::model::scenario::{Override, Scenario};
use crate::random::Streams;
use crate::shard::Row;
use crate::simulation::Outcome;
use crate::units::SECONDS_PER_DAY;

/// Requests for each running one in a reduced job: that many generations make a start and an end that weigh little.
const GENERATIONS: u64 = 256;

/// Requests in a reduced job at least.
const FEWEST: u64 = 8192;

/// What one replication came to.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Replication {
    /// Its number.
    pub unit: u64,
    /// End of the last request, seconds.
    pub makespan_s: f64,
    /// Requests that ended with an output.
    pub completed: u64,
    /// Requests that could never be served.
    pub rejected: u64,
    /// Requests cut by a limit.
    pub truncated: u64,
    /// Output tokens written.
    pub output_tokens: u64,
    /// Quantiles at which the unknowns stood, in the scenario's order.
    pub quantiles: Vec<f64>,
}

impl Row for Replication {
    const COLUMNS: &'static [&'static str] =
        &["unit", "makespan_s", "completed", "rejected", "truncated", "output_tokens", "quantiles"];

    fn unit(&self) -> u64 {
        self.unit
    }

    fn numbered(self, unit: u64) -> Self {
        Replication { unit, ..self }
    }
}

impl Replication {
    /// The makespan in days.
    pub fn days(&self) -> f64 {
        self.makespan_s / SECONDS_PER_DAY
    }
}

/// Counts requests cut by a limit.
#[derive(Clone, Copy, Debug, Default)]
pub struct Truncated(pub u64);

impl Observer for Truncated {
    fn completed(&mut self, _replica: usize, sequence: &Sequence) {
        self.0 += u64::from(sequence.request.output_tokens < sequence.request.uncapped_output_tokens);
    }
}

/// Runs a scenario with its unknowns at `units` and everything variable from `streams`.
///
/// # Errors
/// Bad scenarios and values, and jobs that cannot be done.
pub fn run_at<O: Observer>(
    scenario: &Scenario,
    units: &[f64],
    streams: Streams,
    observer: &mut O,
) -> Result<(Setup, Outcome)> {
    let resolved = scenario.resolve(units)?;
    let setup = Setup::new(&resolved)?;
    let job = JobSource::new(&resolved)?;
    let outcome = setup.run(&job, streams, Stride::Longest, observer)?;
    Ok((setup, outcome))
}

/// Runs replication `index` of `seed`.
///
/// # Errors
/// As [`run_at`].
pub fn replicate(scenario: &Scenario, seed: u64, index: u64) -> Result<Replication> {
    let streams = Streams::new(seed, index);
    let units = scenario.units(streams);
    let mut truncated = Truncated::default();
    let (_, outcome) = run_at(scenario, &units, streams, &mut truncated)?;
    Ok(Replication {
        unit: index,
        makespan_s: outcome.makespan.as_s(),
        completed: outcome.completed,
        rejected: outcome.rejected,
        truncated: truncated.0,
        output_tokens: outcome.output_tokens,
        quantiles: units,
    })
}

/// The scenario at its own values: nothing is drawn.
pub fn settled(scenario: &Scenario) -> Scenario {
    let mut settled = scenario.clone();
    settled.unknowns.clear();
    settled
}

/// Finds out whether the ends of every law, and each of its choices, make a scenario that can be set up, before a long
/// run ends at a draw that cannot.
///
/// # Errors
/// What such a draw leads to, naming the law.
pub fn check_unknowns(scenario: &Scenario) -> Result<()> {
    let middle = vec![0.5; scenario.unknowns.len()];
    for (place, unknown) in scenario.unknowns.iter().enumerate() {
        for probe in unknown.probes() {
            let mut units = middle.clone();
            units[place] = probe;
            let tried = scenario.resolve(&units).and_then(|resolved| {
                Setup::new(&resolved)?;
                JobSource::new(&resolved).map(|_| ())
            });
            tried.map_err(|error| {
                let remedy = "narrow the law: { min, mode, max } has ends";
                Error::Input(InputError::new(format!("can be drawn so that {error}"), remedy).key(&unknown.name))
            })?;
        }
    }
    Ok(())
}

/// A shorter job that stands for a longer one: the same laws, fewer requests. What a longer job adds is time at the
/// steady rate; the start and the end stay as they are.
#[derive(Clone, Debug)]
pub struct Reduced {
    /// The shorter job.
    pub scenario: Scenario,
    /// Requests of the longer one.
    pub full: u64,
    /// Requests of the shorter one.
    pub requests: u64,
}

impl Reduced {
    /// The shorter job, or the whole one where it is short already or where its order in time matters (arrivals, rows
    /// of a trace in their order).
    ///
    /// # Errors
    /// Bad scenarios.
    pub fn new(scenario: &Scenario) -> Result<Reduced> {
        let job = &scenario.tables.job;
        let full = JobSource::new(scenario)?.requests();
        let running = {
            let setup = Setup::new(scenario)?;
            u64::from(setup.settings.running_cap).min(1024) * u64::from(setup.replicas)
        };
        let requests = (GENERATIONS * running).max(FEWEST).min(full);
        if requests == full || job.arrivals.is_some() || job.trace.is_some() || job.order.is_some() {
            return Ok(Reduced { scenario: scenario.clone(), full, requests: full });
        }
        let fewer = Override::new("job.requests", toml::Value::Integer(requests as i64), "reduced to");
        Ok(Reduced { scenario: scenario.with(&[fewer])?, full, requests })
    }

    /// How many requests of the longer job one of the shorter stands for.
    pub fn factor(&self) -> f64 {
        self.full as f64 / self.requests as f64
    }

    /// The longer job's makespan, seconds: T + (N − n) · (output tokens a request) ÷ (steady tokens a second).
    pub fn makespan_s(&self, outcome: &Outcome) -> f64 {
        let missing = (self.full - self.requests) as f64;
        let per_request = outcome.output_tokens as f64 / outcome.completed.max(1) as f64;
        let served = outcome.completed as f64 / self.requests as f64;
        match outcome.steady_output_tok_per_s {
            _ if missing == 0.0 => outcome.makespan.as_s(),
            Some(rate) => outcome.makespan.as_s() + missing * served * per_request / rate,
            None => outcome.makespan.as_s() * self.factor(),
        }
    }

    /// Replication `index` of the longer job, as far as the shorter one tells.
    ///
    /// # Errors
    /// As [`run_at`].
    pub fn replicate(&self, seed: u64, index: u64) -> Result<Replication> {
        let streams = Streams::new(seed, index);
        let units = self.scenario.units(streams);
        let mut truncated = Truncated::default();
        let (_, outcome) = run_at(&self.scenario, &units, streams, &mut truncated)?;
        let whole = |count: u64| (count as f64 * self.factor()).round() as u64;
        Ok(Replication {
            unit: index,
            makespan_s: self.makespan_s(&outcome),
            completed: whole(outcome.completed),
            rejected: whole(outcome.rejected),
            truncated: whole(truncated.0),
            output_tokens: whole(outcome.output_tokens),
            quantiles: units,
        })
    }

    /// Runs it and returns the longer job's makespan, seconds.
    ///
    /// # Errors
    /// As [`run_at`].
    pub fn run(&self, units: &[f64], streams: Streams) -> Result<f64> {
        let (_, outcome) = run_at(&self.scenario, units, streams, &mut Unobserved)?;
        Ok(self.makespan_s(&outcome))
    }
}
