//! The law of lengths from the finished part of a job: Kaplan and Meier's estimate (1958), since the requests that
//! finish first are the short ones and those that still run or were cut are known only to be longer.

use std::path::Path;

use serde_json::Value;

use super::trace::{Finish, Record, RecordSink, TextTokens, TraceFormat, read_records};
use crate::error::{InputError, Result};

/// Requests of one length.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Seen {
    /// Length, tokens.
    pub tokens: u32,
    /// Requests that ended by themselves at this length.
    pub complete: f64,
    /// Requests that are known only to be longer: cut there by a cap, or running.
    pub censored: f64,
}

/// An estimate of the law of lengths.
#[derive(Clone, Debug, PartialEq)]
pub struct Survival {
    steps: Vec<(f64, f64)>,
    beyond: f64,
    longest: f64,
    complete: f64,
    censored: f64,
}

impl Survival {
    /// Kaplan and Meier's estimate from what was `seen`, in any order.
    ///
    /// # Errors
    ///
    /// When nothing was seen.
    pub fn kaplan_meier(mut seen: Vec<Seen>) -> std::result::Result<Survival, InputError> {
        seen.retain(|it| it.tokens > 0);
        seen.sort_unstable_by_key(|it| it.tokens);
        let Some(last) = seen.last() else {
            return Err(InputError::new("no finished requests", "give at least one with its length"));
        };
        let longest = f64::from(last.tokens);
        let (complete, censored) =
            seen.iter().fold((0.0, 0.0), |(complete, censored), it| (complete + it.complete, censored + it.censored));
        let mut at_risk = complete + censored;
        let mut above = 1.0;
        let mut steps = Vec::new();
        for group in seen.chunk_by(|a, b| a.tokens == b.tokens) {
            let ended: f64 = group.iter().map(|it| it.complete).sum();
            // A request cut at this length was still at risk of ending at it.
            if ended > 0.0 {
                let mass = above * (ended / at_risk).min(1.0);
                steps.push((f64::from(group[0].tokens), mass));
                above -= mass;
            }
            at_risk -= group.iter().map(|it| it.complete + it.censored).sum::<f64>();
        }
        Ok(Survival { steps, beyond: above.max(0.0), longest, complete, censored })
    }

    /// Reads finished requests, and running ones, in any format of a trace. Requests that a cap cut, by their finish
    /// reason or because they are as long as the cap that they asked for, are censored; failed ones are left out.
    ///
    /// # Errors
    ///
    /// Unreadable files, unknown formats, no requests.
    pub fn read(finished: &Path, running: Option<&Path>) -> Result<Survival> {
        let mut lengths = Lengths::default();
        read_records(crate::files::open(finished)?, finished, &TextTokens::default(), &mut lengths)?;
        if let Some(running) = running {
            lengths.all_run = true;
            read_records(crate::files::open(running)?, running, &TextTokens::default(), &mut lengths)?;
        }
        Survival::kaplan_meier(lengths.seen).map_err(|error| error.file(finished.display().to_string()).into())
    }

    /// Each length that requests ended at with its share of all, rising.
    pub fn steps(&self) -> &[(f64, f64)] {
        &self.steps
    }

    /// Share of requests that are longer than every complete one.
    pub fn beyond(&self) -> f64 {
        self.beyond
    }

    /// The longest length that was seen, tokens.
    pub fn longest(&self) -> f64 {
        self.longest
    }

    /// Requests that ended by themselves.
    pub fn complete(&self) -> f64 {
        self.complete
    }

    /// Requests that are known only to be longer.
    pub fn censored(&self) -> f64 {
        self.censored
    }

    /// E[min(X, cap)], tokens, for a cap up to the longest; above, what is beyond counts as the longest.
    pub fn mean_capped(&self, cap: f64) -> f64 {
        let inside: f64 = self.steps.iter().map(|(value, mass)| mass * value.min(cap)).sum();
        inside + self.beyond * self.longest.min(cap)
    }

    /// Share above `tokens`, for lengths up to the longest.
    pub fn share_above(&self, tokens: f64) -> f64 {
        let inside: f64 = self.steps.iter().filter(|(value, _)| *value > tokens).map(|(_, mass)| mass).sum();
        inside + self.beyond
    }
}

/// Lengths of a file's requests.
#[derive(Default)]
struct Lengths {
    seen: Vec<Seen>,
    all_run: bool,
}

impl RecordSink for Lengths {
    fn start(&mut self, _format: TraceFormat, _timed: bool, _names: [&str; 2]) {}

    fn record(&mut self, record: &Record, _prefix: Option<&Value>) -> std::result::Result<(), InputError> {
        let Some(tokens) = record.output.filter(|_| record.finish != Finish::Failed) else { return Ok(()) };
        let cut = matches!(record.finish, Finish::Cut | Finish::Running)
            || record.finish == Finish::Unknown && record.cap == Some(tokens);
        let censored = f64::from(u8::from(cut || self.all_run));
        self.seen.push(Seen { tokens, complete: 1.0 - censored, censored });
        Ok(())
    }

    fn refused(&mut self, _error: InputError) -> Result<()> {
        // A failed line of a batch output has no length; `inspect` names such lines.
        Ok(())
    }
}

#[cfg(test)]
#[path = "finished_tests.rs"]
mod tests;
