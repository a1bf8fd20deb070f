//! Options side by side: what each takes and what it leaves, on the same draws.

use rayon::prelude::*;

use crate::error::{Error, Result};
use crate::experiment::account::{Account, Thinking};
use crate::experiment::options::Choice;
use crate::experiment::replicate::{Reduced, run_at};
use crate::model::scenario::{Override, Scenario};
use crate::random::Streams;
use crate::stats::{Paired, mean, paired, quantile, sorted};
use crate::units::{SECONDS_PER_DAY, SimTime};

/// Confidence of paired intervals.
const CONFIDENCE: f64 = 0.95;

/// A cap below this is no answer, tokens.
const LEAST_CAP: u64 = 64;

/// What the user wants to keep.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Keep {
    /// Answers that ended by themselves.
    Complete,
    /// Requests, however they ended.
    Samples,
    /// Output tokens, without those of requests cut before their answer began.
    Tokens,
}

/// How options are compared.
#[derive(Clone, Copy, Debug)]
pub struct Terms {
    /// The seed.
    pub seed: u64,
    /// Replications of each option.
    pub replications: u64,
    /// When the job must be done, days.
    pub deadline_days: Option<f64>,
    /// How likely it must be done by then.
    pub confidence: f64,
    /// What cut answers are worth.
    pub thinking: Thinking,
    /// What to keep.
    pub keep: Keep,
    /// Price of one GPU for an hour.
    pub price: Option<f64>,
}

/// What one option comes to; counts are means over the replications.
#[derive(Clone, Debug)]
pub struct Verdict {
    /// The option.
    pub name: String,
    /// Why it cannot be done, if so; everything else is then empty.
    pub impossible: Option<String>,
    /// Completion times by replication, days.
    pub days: Vec<f64>,
    /// Share that is done by the deadline.
    pub p_deadline: Option<f64>,
    /// Days more than running it as is, pair by pair.
    pub difference: Option<Paired>,
    /// Answers that ended by themselves.
    pub complete: f64,
    /// Requests cut by a limit.
    pub truncated: f64,
    /// Of those, cut before their answer began.
    pub cut_thinking: f64,
    /// Output tokens.
    pub tokens: f64,
    /// Of those, tokens of requests cut before their answer began.
    pub tokens_without_answer: f64,
    /// GPUs × completion time, hours.
    pub gpu_hours: f64,
    /// At the price given.
    pub cost: Option<f64>,
    /// The first option that is nowhere worse and somewhere clearly better.
    pub dominated_by: Option<String>,
}

impl Verdict {
    /// How much of what is wanted it keeps.
    pub fn kept(&self, keep: Keep) -> f64 {
        match keep {
            Keep::Complete => self.complete,
            Keep::Samples => self.complete + self.truncated,
            Keep::Tokens => self.tokens - self.tokens_without_answer,
        }
    }

    /// A quantile of the completion time, days.
    pub fn quantile(&self, p: f64) -> Option<f64> {
        quantile(&sorted(&self.days), p)
    }
}

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

/// The options compared.
#[derive(Clone, Debug)]
pub struct Decision {
    /// One for each option, in their order.
    pub verdicts: Vec<Verdict>,
    /// Which one to take: the most of what is to be kept among those in time, the sooner of two alike.
    pub recommended: usize,
    /// With a deadline: what is best at it.
    pub solved: Option<Solved>,
    /// Requests in each run, and how many it stands for.
    pub requests: (u64, u64),
}

/// One run of one option.
struct Run {
    days: f64,
    account: Account,
}

/// Runs every option on the same draws.
///
/// # Errors
/// Bad options; jobs that cannot be done are verdicts.
pub fn decide(scenario: &Scenario, choices: &[Choice], terms: Terms, finished: &(dyn Fn() + Sync)) -> Result<Decision> {
    let mut verdicts = Vec::new();
    let mut as_is: Vec<f64> = Vec::new();
    for choice in choices {
        let verdict = match verdict(scenario, choice, terms, finished) {
            Ok(verdict) => verdict,
            Err(Error::Impossible(reason)) => Verdict::impossible(&choice.name, reason),
            Err(other) => return Err(other),
        };
        if as_is.is_empty() {
            as_is.clone_from(&verdict.days);
        }
        verdicts.push(Verdict { difference: paired(&verdict.days, &as_is, CONFIDENCE), ..verdict });
    }
    let found: Vec<Option<String>> = (0..verdicts.len()).map(|index| dominating(&verdicts, index, terms)).collect();
    verdicts.iter_mut().zip(found).for_each(|(verdict, by)| verdict.dominated_by = by);
    let recommended = recommend(&verdicts, terms);
    let reduced = Reduced::new(scenario)?;
    let solved = terms.deadline_days.map(|deadline| solve(scenario, &reduced, deadline, terms)).transpose()?;
    Ok(Decision { verdicts, recommended, solved, requests: (reduced.requests, reduced.full) })
}

fn verdict(scenario: &Scenario, choice: &Choice, terms: Terms, finished: &(dyn Fn() + Sync)) -> Result<Verdict> {
    let changed = scenario.with(&choice.set)?;
    let reduced = Reduced::new(&changed)?;
    let factor = reduced.factor();
    let run = |index: u64| {
        let run = run(&reduced, terms, index);
        finished();
        run
    };
    let runs: Vec<Run> = (0..terms.replications).into_par_iter().map(run).collect::<Result<_>>()?;
    let days: Vec<f64> = runs.iter().map(|run| run.days).collect();
    let average = |value: &dyn Fn(&Account) -> f64| {
        runs.iter().map(|run| value(&run.account)).sum::<f64>() / runs.len().max(1) as f64 * factor
    };
    let gpu_hours = f64::from(changed.tables.fleet.gpus) * mean(&days).unwrap_or(0.0) * 24.0;
    let in_time = |deadline| days.iter().filter(|day| **day <= deadline).count() as f64 / days.len().max(1) as f64;
    Ok(Verdict {
        name: choice.name.clone(),
        impossible: None,
        p_deadline: terms.deadline_days.map(in_time),
        difference: None,
        complete: average(&|account| account.complete as f64),
        truncated: average(&|account| account.truncated as f64),
        cut_thinking: average(&|account| account.cut_thinking),
        tokens: average(&|account| account.tokens as f64),
        tokens_without_answer: average(&|account| account.tokens_without_answer),
        gpu_hours,
        cost: terms.price.map(|price| price * gpu_hours),
        dominated_by: None,
        days,
    })
}

fn run(reduced: &Reduced, terms: Terms, index: u64) -> Result<Run> {
    let streams = Streams::new(terms.seed, index);
    let mut account = Account::new(terms.thinking, SimTime::NEVER);
    let (_, outcome) = run_at(&reduced.scenario, &reduced.scenario.units(streams), streams, &mut account)?;
    Ok(Run { days: reduced.makespan_s(&outcome) / SECONDS_PER_DAY, account })
}

impl Verdict {
    fn impossible(name: &str, reason: String) -> Verdict {
        Verdict {
            name: name.to_owned(),
            impossible: Some(reason),
            days: Vec::new(),
            p_deadline: None,
            difference: None,
            complete: 0.0,
            truncated: 0.0,
            cut_thinking: 0.0,
            tokens: 0.0,
            tokens_without_answer: 0.0,
            gpu_hours: 0.0,
            cost: None,
            dominated_by: None,
        }
    }
}

/// The first option that takes no more time and no more GPU time and keeps no less than option `index`, and is clearly
/// better in one: its interval of the paired difference in time leaves out 0, or it keeps 1% more.
fn dominating(verdicts: &[Verdict], index: usize, terms: Terms) -> Option<String> {
    let own = &verdicts[index];
    if own.impossible.is_some() {
        return None;
    }
    let better = |other: &&Verdict| {
        if other.impossible.is_some() {
            return false;
        }
        let Some(pair) = paired(&other.days, &own.days, CONFIDENCE) else { return false };
        let (kept, own_kept) = (other.kept(terms.keep), own.kept(terms.keep));
        let sooner = pair.half_width.is_some_and(|half| pair.mean + half < 0.0);
        pair.mean <= 0.0 && other.gpu_hours <= own.gpu_hours && kept >= own_kept && (sooner || kept > 1.01 * own_kept)
    };
    verdicts.iter().filter(|other| !std::ptr::eq(*other, own)).find(better).map(|other| other.name.clone())
}

/// Most kept among those in time (else the likeliest in time); fewer GPU-hours, then less time decide between equals.
fn recommend(verdicts: &[Verdict], terms: Terms) -> usize {
    let in_time = |verdict: &Verdict| verdict.p_deadline.is_none_or(|p| p >= terms.confidence);
    let possible = || (0..verdicts.len()).filter(|index| verdicts[*index].impossible.is_none());
    let most = |index: &usize| {
        let verdict = &verdicts[*index];
        (three_digits(verdict.kept(terms.keep)), -verdict.gpu_hours)
    };
    let order = |a: &usize, b: &usize| most(a).partial_cmp(&most(b)).unwrap_or(std::cmp::Ordering::Equal);
    let chance = |index: &usize| verdicts[*index].p_deadline.unwrap_or(1.0);
    possible()
        .filter(|index| in_time(&verdicts[*index]))
        .max_by(order)
        .or_else(|| possible().max_by(|a, b| chance(a).total_cmp(&chance(b)).then_with(|| order(a, b))))
        .unwrap_or(0)
}

/// Rounded to three digits: what differs by less counts as the same.
fn three_digits(number: f64) -> f64 {
    let unit = 10f64.powf(number.max(1.0).log10().floor() - 2.0);
    (number / unit).round() * unit
}

fn solve(scenario: &Scenario, reduced: &Reduced, deadline_days: f64, terms: Terms) -> Result<Solved> {
    let replications = || (0..terms.replications).into_par_iter();
    let chance = |cap: u64| -> Result<f64> {
        let set = Override::new("job.max_tokens", toml::Value::Integer(cap as i64), "solved:");
        let capped = Reduced { scenario: reduced.scenario.with(&[set])?, ..*reduced };
        let hits: Vec<bool> =
            replications().map(|index| Ok(run(&capped, terms, index)?.days <= deadline_days)).collect::<Result<_>>()?;
        Ok(hits.iter().filter(|hit| **hit).count() as f64 / hits.len().max(1) as f64)
    };
    let tables = &scenario.tables.job;
    let most = tables.max_tokens.or(tables.context_tokens).unwrap_or(1 << 17);
    let max_tokens = if chance(most)? >= terms.confidence {
        Some(most)
    } else if chance(LEAST_CAP)? < terms.confidence {
        None
    } else {
        // The chance falls with the cap; each run is on the same draws, so it falls step by step.
        let (mut low, mut high) = (LEAST_CAP, most);
        while high - low > (low / 64).max(1) {
            let middle = low.midpoint(high);
            if chance(middle)? >= terms.confidence { low = middle } else { high = middle }
        }
        Some(low)
    };
    // A longer job adds time at the steady rate, so the number that is in time follows from each run.
    let fitting = |index: u64| -> Result<f64> {
        let streams = Streams::new(terms.seed, index);
        let (_, outcome) = run_at(
            &reduced.scenario,
            &reduced.scenario.units(streams),
            streams,
            &mut crate::engine::observe::Unobserved,
        )?;
        let (one, two) = (outcome.makespan.as_s(), reduced.makespan_s(&outcome));
        let each = if reduced.full > reduced.requests {
            (two - one) / (reduced.full - reduced.requests) as f64
        } else {
            one / reduced.requests as f64
        };
        let deadline = deadline_days * SECONDS_PER_DAY;
        Ok((reduced.requests as f64 + (deadline - one) / each).clamp(0.0, reduced.full as f64))
    };
    let numbers: Vec<f64> = replications().map(fitting).collect::<Result<_>>()?;
    let requests = quantile(&sorted(&numbers), 1.0 - terms.confidence).unwrap_or(0.0) as u64;
    Ok(Solved { max_tokens, requests, stopped: stop(scenario, deadline_days, terms)? })
}

/// Whole jobs, watched up to the deadline: a few, as each takes as long as a replication of a forecast.
fn stop(scenario: &Scenario, deadline_days: f64, terms: Terms) -> Result<Stopped> {
    const RUNS: u64 = 8;
    let until =
        SimTime::ZERO + crate::units::Span::from_s(deadline_days * SECONDS_PER_DAY).unwrap_or(crate::units::Span::ZERO);
    let one = |index: u64| -> Result<Stopped> {
        let streams = Streams::new(terms.seed, index);
        let mut account = Account::new(terms.thinking, until);
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
