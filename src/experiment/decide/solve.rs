//! What is best at a deadline, running the job as it is: the largest cap, the most requests, and stopping everything.

use rayon::prelude::*;

use crate::error::Result;
use crate::experiment::account::Account;
use crate::experiment::decide::Terms;
use crate::experiment::decide::runs::{Comparison, Row, run};
use crate::experiment::replicate::{Reduced, run_at};
use crate::model::scenario::{Override, Scenario};
use crate::random::Streams;
use crate::stats::{quantile, sorted};
use crate::units::{SECONDS_PER_DAY, SimTime, Span};

/// A cap below this is no answer, tokens.
const LEAST_CAP: u64 = 64;

/// What happens when everything is stopped at the deadline, running the job as it is.
#[derive(Clone, Copy, Debug)]
pub struct Stopped {
    /// Share of the requests that have ended by then.
    pub ended: f64,
    /// Answers that have ended by themselves.
    pub complete: f64,
    /// Mean length of the ended ones over that of all, minus 1: long ones are still running.
    pub length_bias: f64,
}

/// Solved at the deadline and the confidence asked for.
#[derive(Clone, Copy, Debug)]
pub struct Solved {
    /// The largest cap that is in time; `None` when none is.
    pub max_tokens: Option<u64>,
    /// The most requests that are in time, in the order of the job.
    pub requests: u64,
    /// When everything is stopped then.
    pub stopped: Stopped,
}

/// Solves at `deadline_days` for the job as it is, whose own runs are the first option's rows.
///
/// # Errors
/// What a run leads to.
pub fn solve(
    comparison: &Comparison,
    rows: &[Row],
    scenario: &Scenario,
    deadline_days: f64,
    terms: Terms,
) -> Result<Option<Solved>> {
    let Some(Ok(job)) = comparison.candidates.first().map(|first| &first.job) else { return Ok(None) };
    let own: Vec<&Row> = rows.iter().step_by(comparison.candidates.len()).collect();
    if own.iter().any(|row| row.impossible.is_some()) {
        return Ok(None);
    }
    let numbers: Vec<f64> = own.iter().map(|row| fitting(job, row, deadline_days)).collect();
    let requests = quantile(&sorted(&numbers), 1.0 - terms.confidence).unwrap_or(0.0) as u64;
    let max_tokens = largest_cap(job, &own, deadline_days, terms)?;
    Ok(Some(Solved { max_tokens, requests, stopped: stop(scenario, deadline_days, terms)? }))
}

/// A longer job adds time at the steady rate, so the number of requests that is in time follows from each run.
fn fitting(job: &Reduced, row: &Row, deadline_days: f64) -> f64 {
    let missing = job.full - job.requests;
    let each = if missing > 0 {
        (row.makespan_s - row.run_s) / missing as f64
    } else {
        row.run_s / job.requests.max(1) as f64
    };
    let left = deadline_days * SECONDS_PER_DAY - row.run_s;
    (job.requests as f64 + left / each).clamp(0.0, job.full as f64)
}

fn largest_cap(job: &Reduced, own: &[&Row], deadline_days: f64, terms: Terms) -> Result<Option<u64>> {
    let share =
        |days: &[f64]| days.iter().filter(|day| **day <= deadline_days).count() as f64 / days.len().max(1) as f64;
    let tables = &job.scenario.tables.job;
    let most = tables.max_tokens.or(tables.context_tokens).unwrap_or(1 << 17);
    if share(&own.iter().map(|row| row.days()).collect::<Vec<_>>()) >= terms.confidence {
        return Ok(Some(most));
    }
    let chance = |cap: u64| -> Result<f64> {
        let set = Override::new("job.max_tokens", toml::Value::Integer(cap as i64), "solved:");
        let capped = Reduced { scenario: job.scenario.with(&[set])?, ..*job };
        let one = |index: u64| Ok(run(&capped, terms.seed, index, terms.thinking)?.days());
        let days: Vec<f64> = (0..own.len() as u64).into_par_iter().map(one).collect::<Result<_>>()?;
        Ok(share(&days))
    };
    if chance(LEAST_CAP)? < terms.confidence {
        return Ok(None);
    }
    // The chance falls with the cap; each run is on the same draws, so it falls step by step.
    let (mut low, mut high) = (LEAST_CAP, most);
    while high - low > (low / 64).max(1) {
        let middle = low.midpoint(high);
        if chance(middle)? >= terms.confidence { low = middle } else { high = middle }
    }
    Ok(Some(low))
}

/// Whole jobs, watched up to the deadline: a few, as each takes as long as a replication of a forecast.
fn stop(scenario: &Scenario, deadline_days: f64, terms: Terms) -> Result<Stopped> {
    const RUNS: u64 = 8;
    let until = SimTime::ZERO + Span::from_s(deadline_days * SECONDS_PER_DAY).unwrap_or(Span::ZERO);
    let one = |index: u64| -> Result<Stopped> {
        let streams = Streams::new(terms.seed, index);
        let mut account = Account::new(terms.thinking, scenario.tables.job.max_tokens, until);
        let (_, outcome) = run_at(scenario, &scenario.units(streams), streams, &mut account)?;
        let ended = (account.complete + account.truncated) as f64;
        let of_all = outcome.output_tokens as f64 / outcome.completed.max(1) as f64;
        Ok(Stopped {
            ended: ended / outcome.completed.max(1) as f64,
            complete: account.complete as f64,
            length_bias: account.tokens as f64 / ended.max(1.0) / of_all - 1.0,
        })
    };
    let runs: Vec<Stopped> = (0..RUNS.min(terms.replications)).into_par_iter().map(one).collect::<Result<_>>()?;
    let average = |value: &dyn Fn(&Stopped) -> f64| runs.iter().map(value).sum::<f64>() / runs.len().max(1) as f64;
    Ok(Stopped {
        ended: average(&|run| run.ended),
        complete: average(&|run| run.complete),
        length_bias: average(&|run| run.length_bias),
    })
}
