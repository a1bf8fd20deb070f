//! The runs behind a comparison. They are numbered replication by replication: unit `replication × options + option`, so
//! that any range of units holds whole pairs but for its two ends, and may run anywhere.

use serde::{Deserialize, Serialize};

use crate::cost::Cause;
use crate::error::{Error, Result};
use crate::experiment::account::{Account, Thinking};
use crate::experiment::forecast::identity;
use crate::experiment::options::Choice;
use crate::experiment::replicate::{Reduced, run_at};
use crate::model::scenario::Scenario;
use crate::random::{Streams, fnv1a};
use crate::shard::{self, Identity, Work};
use crate::units::{SECONDS_PER_DAY, SimTime};

/// What one unit came to: counts of the requests that were run, and the time of the whole job that they stand for.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Row {
    /// Its number: replication × options + option.
    pub unit: u64,
    /// Why it cannot be done; everything else is then 0.
    pub impossible: Option<String>,
    /// Time of the requests that were run, seconds.
    pub run_s: f64,
    /// Time of all requests of the job, seconds.
    pub makespan_s: f64,
    /// Requests that ended by themselves.
    pub complete: u64,
    /// Requests cut by a limit.
    pub truncated: u64,
    /// Of those, cut by the end of the context before `max_tokens`.
    pub cut_by_context: u64,
    /// Of the cut ones, cut before their answer began.
    pub cut_thinking: f64,
    /// Requests that could never be served.
    pub rejected: u64,
    /// Output tokens.
    pub tokens: u64,
    /// Of those, tokens of requests cut before their answer began.
    pub tokens_without_answer: f64,
    /// Share of the GPU time in which a GPU had nothing to do.
    pub idle_share: f64,
}

impl shard::Row for Row {
    const COLUMNS: &'static [&'static str] = &[
        "unit",
        "impossible",
        "run_s",
        "makespan_s",
        "complete",
        "truncated",
        "cut_by_context",
        "cut_thinking",
        "rejected",
        "tokens",
        "tokens_without_answer",
        "idle_share",
    ];

    fn unit(&self) -> u64 {
        self.unit
    }

    fn numbered(self, unit: u64) -> Self {
        Row { unit, ..self }
    }
}

impl Row {
    /// The completion time, days.
    pub fn days(&self) -> f64 {
        self.makespan_s / SECONDS_PER_DAY
    }

    fn impossible(unit: u64, reason: String) -> Row {
        Row {
            unit,
            impossible: Some(reason),
            run_s: 0.0,
            makespan_s: 0.0,
            complete: 0,
            truncated: 0,
            cut_by_context: 0,
            cut_thinking: 0.0,
            rejected: 0,
            tokens: 0,
            tokens_without_answer: 0.0,
            idle_share: 0.0,
        }
    }
}

/// An option, ready to run.
#[derive(Clone, Debug)]
pub struct Candidate {
    /// Its name.
    pub name: String,
    /// GPUs that it takes.
    pub gpus: u32,
    /// The job of each of its runs, or why there can be none.
    pub job: std::result::Result<Reduced, String>,
}

/// Options that are run on the same draws; the first is the job as it is.
#[derive(Clone, Debug)]
pub struct Comparison {
    /// The options, in their order.
    pub candidates: Vec<Candidate>,
    scenario: Scenario,
    choices: Vec<Choice>,
    seed: u64,
    thinking: Thinking,
}

impl Comparison {
    /// Sets every option up.
    ///
    /// # Errors
    /// Bad options; one that cannot be done is a candidate that says so.
    pub fn new(scenario: &Scenario, choices: &[Choice], seed: u64, thinking: Thinking) -> Result<Comparison> {
        let candidate = |choice: &Choice| -> Result<Candidate> {
            let changed = scenario.with(&choice.set)?;
            let gpus = changed.tables.fleet.gpus;
            Ok(Candidate { name: choice.name.clone(), gpus, job: possible(Reduced::new(&changed))? })
        };
        let candidates = choices.iter().map(candidate).collect::<Result<_>>()?;
        Ok(Comparison { candidates, scenario: scenario.clone(), choices: choices.to_vec(), seed, thinking })
    }

    /// Units of so many replications of every option.
    pub fn units(&self, replications: u64) -> u64 {
        replications * self.candidates.len() as u64
    }

    /// Requests in each run of the first option, and how many it stands for.
    pub fn requests(&self) -> (u64, u64) {
        let first = self.candidates.first().and_then(|first| first.job.as_ref().ok());
        first.map_or((0, 0), |job| (job.requests, job.full))
    }
}

impl Work for Comparison {
    type Row = Row;

    /// Runs one unit; one that cannot be done is a row that says so.
    fn run(&self, unit: u64) -> Result<Row> {
        let options = self.candidates.len() as u64;
        match &self.candidates[(unit % options) as usize].job {
            Ok(job) => match possible(run(job, self.seed, unit / options, self.thinking))? {
                Ok(row) => Ok(Row { unit, ..row }),
                Err(reason) => Ok(Row::impossible(unit, reason)),
            },
            Err(reason) => Ok(Row::impossible(unit, reason.clone())),
        }
    }

    fn identity(&self) -> Result<Identity> {
        let changes = |choice: &Choice| {
            let set: Vec<String> = choice.set.iter().map(ToString::to_string).collect();
            format!("{}: {}", choice.name, set.join(", "))
        };
        let options: Vec<String> = self.choices.iter().map(changes).collect();
        let options = format!("{} {:016x}", options.len(), fnv1a(&format!("{options:?} {:?}", self.thinking)));
        Ok(identity("decide", &self.scenario, self.seed)?.with("options", options))
    }

    fn describe(&self, unit: u64) -> String {
        let options = self.candidates.len() as u64;
        let name = &self.candidates[(unit % options) as usize].name;
        format!("replication {} of option `{name}`", unit / options)
    }
}

/// A job that cannot be done is an answer; everything else that goes wrong is an error.
fn possible<T>(found: Result<T>) -> Result<std::result::Result<T, String>> {
    match found {
        Ok(found) => Ok(Ok(found)),
        Err(Error::Impossible(reason)) => Ok(Err(reason)),
        Err(other) => Err(other),
    }
}

/// One replication of one job; the number of the unit is left to the caller.
pub(super) fn run(job: &Reduced, seed: u64, replication: u64, thinking: Thinking) -> Result<Row> {
    let streams = Streams::new(seed, replication);
    let mut account = Account::new(thinking, job.scenario.tables.job.max_tokens, SimTime::NEVER);
    let (_, outcome) = run_at(&job.scenario, &job.scenario.units(streams), streams, &mut account)?;
    let idle = [Cause::Ramp, Cause::Starved, Cause::Tail, Cause::Down];
    Ok(Row {
        unit: 0,
        impossible: None,
        run_s: outcome.makespan.as_s(),
        makespan_s: job.makespan_s(&outcome),
        complete: account.complete,
        truncated: account.truncated,
        cut_by_context: account.cut_by_context,
        cut_thinking: account.cut_thinking,
        rejected: outcome.rejected,
        tokens: account.tokens,
        tokens_without_answer: account.tokens_without_answer,
        idle_share: idle.into_iter().map(|cause| outcome.ledger.share(cause)).sum(),
    })
}
