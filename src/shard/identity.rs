//! What results belong to.

use crate::error::{InputError, Result};

/// What rows of results belong to: rows of two runs belong together when every field of theirs is the same.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Identity {
    command: String,
    fields: Vec<(String, String)>,
}

const START: &str = "# makespan ";
const VERSION: &str = "version";
const UNITS: &str = "units";
const SEED: &str = "seed";

impl Identity {
    /// Results of a command of this version of the program.
    pub fn new(command: &str) -> Identity {
        let identity = Identity { command: command.to_owned(), fields: Vec::new() };
        identity.with(VERSION, env!("CARGO_PKG_VERSION"))
    }

    /// Adds a field. What would end a field or a line becomes a space.
    #[must_use]
    pub fn with(mut self, key: &str, value: impl ToString) -> Identity {
        let tame = |c: char| if c.is_control() || c == ';' { ' ' } else { c };
        self.fields.push((key.to_owned(), value.to_string().chars().map(tame).collect::<String>().trim().to_owned()));
        self
    }

    /// Adds the seed.
    #[must_use]
    pub fn with_seed(self, seed: impl ToString) -> Identity {
        self.with(SEED, seed)
    }

    /// The seed, as it was added; empty without.
    pub(super) fn seed(&self) -> &str {
        self.field(SEED).unwrap_or("")
    }

    /// Adds how many units there are in all, where that is known.
    #[must_use]
    pub fn with_units(self, units: u64) -> Identity {
        self.with(UNITS, units)
    }

    /// How many units there are in all, where that is known.
    pub fn units(&self) -> Option<u64> {
        self.field(UNITS)?.parse().ok()
    }

    /// The command that ran.
    pub fn command(&self) -> &str {
        &self.command
    }

    fn field(&self, key: &str) -> Option<&str> {
        self.fields.iter().find(|(name, _)| name == key).map(|(_, value)| value.as_str())
    }

    /// The first line of a results file, without its checksum.
    pub(super) fn line(&self) -> String {
        let mut line = format!("{START}{}", self.command);
        for (key, value) in &self.fields {
            line.push_str("; ");
            line.push_str(key);
            line.push(' ');
            line.push_str(value);
        }
        line
    }

    /// Reads such a line; `None` when it is none.
    pub(super) fn parse(line: &str) -> Option<Identity> {
        let mut parts = line.strip_prefix(START)?.split("; ");
        let command = parts.next()?.to_owned();
        let field = |part: &str| {
            let (key, value) = part.split_once(' ').unwrap_or((part, ""));
            (key.to_owned(), value.to_owned())
        };
        Some(Identity { command, fields: parts.map(field).collect() })
    }

    /// Makes sure that results of `other`, which stand in `file`, belong here.
    ///
    /// # Errors
    /// When they do not, by the first field that differs.
    pub(super) fn expect(&self, other: &Identity, file: &str, remedy: &str) -> Result<()> {
        let refuse = |what: &str, found: &str, own: &str| {
            let found = format!("results of something else: {what} is `{found}`, not `{own}`");
            Err(InputError::new(found, remedy).file(file).line(1).into())
        };
        if other.command != self.command {
            return refuse("the command", &other.command, &self.command);
        }
        for (key, own) in &self.fields {
            match other.field(key) {
                Some(found) if found == own => {}
                found => return refuse(key, found.unwrap_or(""), own),
            }
        }
        match other.fields.iter().find(|(key, _)| self.field(key).is_none()) {
            Some((key, found)) => refuse(key, found, ""),
            None => Ok(()),
        }
    }

    /// Makes sure that `other`, which stands in `file`, comes from this version of the program.
    ///
    /// # Errors
    /// When it does not.
    pub(super) fn expect_version(&self, other: &Identity, file: &str) -> Result<()> {
        let (own, found) = (self.field(VERSION).unwrap_or(""), other.field(VERSION).unwrap_or(""));
        if own == found {
            return Ok(());
        }
        let remedy = format!("merge with the version that ran it, or run it again with {own}");
        Err(InputError::new(format!("written by version {found}; this is {own}"), remedy).file(file).line(1).into())
    }
}
