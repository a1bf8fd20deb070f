//! The whole answer: why the table plateaus, how long the job takes and why, and what the options come to.

use std::collections::VecDeque;

use rayon::prelude::*;

use crate::calibrate::{Diagnosis, FitOptions, Owed, diagnose};
use crate::engine::observe::Observer;
use crate::engine::sequence::Sequence;
use crate::engine::settings::Stride;
use crate::error::Result;
use crate::experiment::{
    Choice, Decision, Drivers, Forecast, JobSource, Reduced, Replication, Setup, Step, Terms, bridge, choices, decide,
    drivers, measured_table, settled,
};
use crate::model::scenario::Scenario;
use crate::random::Streams;
use crate::simulation::Outcome;
use crate::units::SimTime;

/// How thorough a plan is.
#[derive(Clone, Copy, Debug)]
pub struct Effort {
    /// Replications of the forecast.
    pub replications: u64,
    /// Rows of the design behind the drivers.
    pub rows: u64,
    /// Draws of the posterior of each explanation of the table.
    pub draws: usize,
}

/// A measured row beside what the likeliest explanation gives.
#[derive(Clone, Copy, Debug)]
pub struct Row {
    /// Requests in flight.
    pub concurrency: u32,
    /// Measured rate, tok/s.
    pub measured: f64,
    /// Rate under the likeliest explanation: quantiles at 5, 50 and 95% of its posterior.
    pub band: [f64; 3],
}

/// Everything that a plan says.
pub struct Plan {
    /// The setup of the job.
    pub setup: Setup,
    /// The explanations of the benchmark table; `None` where the scenario has none.
    pub diagnosis: Option<Diagnosis>,
    /// Its rows.
    pub rows: Vec<Row>,
    /// What a cap on running requests takes, where that is the likeliest explanation.
    pub owed: Option<Owed>,
    /// The whole job, once, at the scenario's own values.
    pub whole: Outcome,
    /// Its end: seconds before the end, and requests still running from then on.
    pub drain: Vec<(f64, u64)>,
    /// The completion time as a distribution.
    pub forecast: Forecast,
    /// What its spread comes from.
    pub drivers: Option<Drivers>,
    /// The way there from the napkin.
    pub bridge: Vec<Step>,
    /// What can be done.
    pub choices: Vec<Choice>,
    /// What that comes to.
    pub decision: Decision,
    /// The quickest of the options that only let more requests run at once, and how many it lets, if any.
    pub lift: Option<(usize, u32)>,
    /// Makespan of the reduced job over that of the whole one, at the scenario's own values, minus 1.
    pub reduction_error: f64,
    /// Requests of the reduced job.
    pub reduced_requests: u64,
}

/// The last requests to end.
struct Last {
    kept: usize,
    ends: VecDeque<SimTime>,
}

impl Observer for Last {
    fn completed(&mut self, _replica: usize, sequence: &Sequence) {
        if self.ends.len() == self.kept {
            self.ends.pop_front();
        }
        self.ends.push_back(sequence.finished_at);
    }
}

/// Makes the plan of a scenario; `finished` hears of each of its parts, [`PARTS`] in all.
///
/// # Errors
/// What any of the simulations leads to.
pub fn plan(scenario: &Scenario, terms: Terms, effort: Effort, finished: &(dyn Fn() + Sync)) -> Result<Plan> {
    let setup = Setup::new(scenario)?;
    let diagnosis = match measured_table(&setup)? {
        Some((_, table)) => {
            Some(diagnose(&setup, &table, FitOptions { draws: effort.draws, ..FitOptions::new(terms.seed) })?)
        }
        None => None,
    };
    finished();
    let owed = diagnosis.as_ref().and_then(|diagnosis| diagnosis.owed_to_cap(terms.seed));
    let rows = diagnosis.as_ref().map(rows).unwrap_or_default();

    let job = JobSource::new(scenario)?;
    let running = (u64::from(setup.settings.running_cap) * u64::from(setup.replicas)).min(job.requests());
    let mut last = Last { kept: usize::try_from(running).unwrap_or(usize::MAX).max(1), ends: VecDeque::new() };
    let whole = setup.run(&job, Streams::new(terms.seed, 0), Stride::Longest, &mut last)?;
    finished();

    let reduced = Reduced::new(scenario)?;
    let replications: Vec<Replication> = (0..effort.replications.max(1))
        .into_par_iter()
        .map(|index| reduced.replicate(terms.seed, index))
        .collect::<Result<_>>()?;
    let replications: Vec<&Replication> = replications.iter().collect();
    let forecast = Forecast::new(&replications, terms.deadline_days)
        .ok_or_else(|| crate::error::Error::Impossible("no replication ended".to_owned()))?;
    finished();
    let rows_of_design = effort.rows.min(effort.replications.max(1));
    let drivers = drivers(&reduced, terms.seed, rows_of_design, &replications, &|| {})?
        // These replications are reduced jobs themselves: agreeing with them shows nothing.
        .map(|drivers| Drivers { reproduced: None, ..drivers })
        .filter(|_| !scenario.unknowns.is_empty());
    finished();
    let bridge = bridge(scenario, terms.seed, Some(forecast.quantile(0.5)))?;
    finished();
    let choices = choices(scenario, &[])?;
    let decision = decide(scenario, &choices, terms, &|| {})?;
    finished();
    let own_values = Reduced { scenario: settled(&reduced.scenario), ..reduced };
    let reduction_error = own_values.run(&[], Streams::new(terms.seed, 0))? / whole.makespan.as_s() - 1.0;
    Ok(Plan {
        lift: quickest_lift(scenario, &setup, &choices, &decision)?,
        drain: drain(&whole, last),
        reduced_requests: own_values.requests,
        setup,
        diagnosis,
        rows,
        owed,
        whole,
        forecast,
        drivers,
        bridge,
        choices,
        decision,
        reduction_error,
    })
}

/// How often [`plan`] reports progress.
pub const PARTS: u64 = 6;

fn rows(diagnosis: &Diagnosis) -> Vec<Row> {
    let Some(best) = diagnosis.explanations.first() else { return Vec::new() };
    let row = |(place, point): (usize, &crate::calibrate::Point)| {
        let band = best.posterior.quantiles(|draw| draw.predictions[place].tok_per_s, [0.05, 0.5, 0.95]);
        Some(Row { concurrency: point.concurrency, measured: point.measured.tok_per_s?, band })
    };
    best.model.points.iter().enumerate().filter_map(row).collect()
}

/// How many still run, from the first of the last requests' ends on.
fn drain(whole: &Outcome, last: Last) -> Vec<(f64, u64)> {
    let mut ends: Vec<SimTime> = last.ends.into();
    ends.sort_unstable();
    let count = ends.len() as u64;
    let before = |end: &SimTime| whole.makespan.as_s() - end.as_s();
    ends.iter().enumerate().map(|(place, end)| (before(end), count - 1 - place as u64)).collect()
}

/// The quickest option that changes the engine or its memory and nothing of the job or the fleet, and lets more run.
fn quickest_lift(
    scenario: &Scenario,
    setup: &Setup,
    choices: &[Choice],
    decision: &Decision,
) -> Result<Option<(usize, u32)>> {
    let mut best: Option<(usize, u32, f64)> = None;
    for (place, (choice, verdict)) in choices.iter().zip(&decision.verdicts).enumerate() {
        let inside = |key: &str| key.starts_with("engine.") || key.starts_with("model.");
        let Some(days) = verdict.quantile(0.5).filter(|_| choice.set.iter().all(|over| inside(over.key()))) else {
            continue;
        };
        let cap = Setup::new(&scenario.with(&choice.set)?)?.settings.running_cap;
        if cap > setup.settings.running_cap && best.is_none_or(|(_, _, least)| days < least) {
            best = Some((place, cap, days));
        }
    }
    Ok(best.map(|(place, cap, _)| (place, cap)))
}
