//! Sixteen checks of a file of lengths, each from one pass. They report and never drop a row.

mod file;
mod parts;
mod spikes;
mod values;

use std::fmt;

use serde::Serialize;

use super::gather::Gathered;
use super::job::JobPart;
use crate::format::percent;
use crate::measured::Severity;

pub use spikes::{Spike, spikes, stands_out};

/// What the user says of the file.
#[derive(Clone, Copy, Debug, Default)]
pub struct Declared {
    /// The job gives fixed short answers, as a classifier does.
    pub short_answers: bool,
    /// The model thinks before it answers.
    pub thinking: bool,
    /// Cap that was asked for, tokens.
    pub max_tokens: Option<u32>,
    /// Longest prompt and output together, tokens.
    pub context_tokens: Option<u32>,
}

/// The checks by number, with the rule of each in a few words.
pub const NAMES: [(&str, &str); 16] = [
    ("bad values", "no number, negative, zero, missing or a fraction"),
    ("one value dominates", "one length has more than 20% of the rows"),
    ("spike", "over 0.2% of the rows and 5 times its neighbours"),
    ("tiny outputs", "over 5% at or below 8 where the median is above 100 or the model thinks"),
    ("pile-up at the cap", "over 0.5% of the rows in the last 1%, or a spike at the top"),
    ("cap below the top", "a pile-up at a cap with longer rows above it"),
    ("empty answers", "an answer without text"),
    ("thinking is missing", "a thinking model without thinking tokens, or 2 to 6 characters a token not kept"),
    ("parts do not add up", "thinking above output, or input + output not the total"),
    ("duplicates", "one id twice, or repeated pairs over 1% and twice the chance"),
    ("few values", "entropy below 4 bits, or fewer than 50 lengths, in over 1,000 rows"),
    ("order", "the halves differ by over 0.05 (input) or 0.1 (output), or a sorted column"),
    ("identical columns", "input = output, a constant ratio, powers of two, correlation over 0.99"),
    ("sampling", "few rows for the job, or its finished part"),
    ("time stamps", "unit, rounding, over 20% of gaps of zero"),
    ("exceeds context", "input + output above the context"),
];

/// Something that a check found.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Finding {
    /// Number of the check, 1 to 16.
    pub check: u8,
    /// Its name.
    pub name: &'static str,
    /// How much it matters; an error makes the file unfit for planning.
    pub severity: Severity,
    /// What was found.
    pub what: String,
    /// Share of the rows that it concerns.
    pub share: Option<f64>,
    /// Line of an example, from 1.
    pub line: Option<u64>,
    /// What it does to an estimate, or what to do.
    pub effect: String,
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let severity = match self.severity {
            Severity::Error => "error",
            Severity::Warning => "warning",
            Severity::Note => "note",
        };
        write!(f, "{severity} {}, {}: {}", self.check, self.name, self.what)?;
        if let Some(line) = self.line {
            write!(f, " (as on line {line})")?;
        }
        write!(f, "; {}", self.effect)
    }
}

/// Collects findings.
pub(super) struct Findings {
    pub list: Vec<Finding>,
    /// Checks that could be done.
    done: u16,
}

impl Findings {
    fn check(&mut self, number: u8) {
        self.done |= 1 << (number - 1);
    }

    fn add(&mut self, check: u8, severity: Severity, what: String, effect: impl Into<String>) -> &mut Finding {
        let name = NAMES[usize::from(check) - 1].0;
        self.list.push(Finding { check, name, severity, what, share: None, line: None, effect: effect.into() });
        let last = self.list.len() - 1;
        &mut self.list[last]
    }
}

impl Finding {
    fn share(&mut self, share: f64) -> &mut Finding {
        self.share = Some(share);
        self
    }

    fn line(&mut self, line: Option<u64>) -> &mut Finding {
        self.line = line.filter(|line| *line > 0);
        self
    }
}

/// What the checks say of a file.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Checked {
    /// What was found, errors first.
    pub findings: Vec<Finding>,
    /// Numbers of the checks that were done and found nothing.
    pub passed: Vec<u8>,
    /// Numbers of the checks for which the file has not the columns, or the options do not say enough.
    pub not_done: Vec<u8>,
}

/// Runs every check that the file allows.
pub fn run(gathered: &Gathered, declared: Declared, job: Option<&JobPart>) -> Checked {
    let mut findings = Findings { list: Vec::new(), done: 0 };
    values::run(gathered, declared, &mut findings);
    parts::run(gathered, declared, &mut findings);
    file::run(gathered, job, &mut findings);
    let rank = |severity: Severity| match severity {
        Severity::Error => 0,
        Severity::Warning => 1,
        Severity::Note => 2,
    };
    let mut list = findings.list;
    list.sort_by_key(|finding| (rank(finding.severity), finding.check));
    let numbers = || (1..=16u8).filter(|number| !list.iter().any(|finding| finding.check == *number));
    let was_done = |number: &u8| findings.done & (1 << (number - 1)) != 0;
    let passed = numbers().filter(was_done).collect();
    let not_done = numbers().filter(|number| !was_done(number)).collect();
    Checked { findings: list, passed, not_done }
}

/// A share as people read it, with its count.
fn rows(count: f64, total: f64) -> String {
    let whole = crate::format::thousands(count.round() as u64);
    format!("{} of the rows ({whole})", percent(count / total))
}
