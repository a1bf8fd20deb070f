//! A scenario: a job, a fleet, a model, an engine and a client put together, as in `models/scenario`.
//!
//! This module reads and checks; what follows from a scenario is derived in `experiment`.

mod check;
mod overrides;
mod tables;

use crate::error::{Error, InputError, Result};
use crate::model::builtin::{Kind, find};
use crate::model::parse::{line_of, parse_toml};
use crate::model::uncertain::{self, Unknown, is_within};
use crate::random::{Streams, fnv1a};
pub use overrides::Override;
use overrides::{place, read_rendered, with_missing_table};
use std::path::{Path, PathBuf};
pub use tables::*;
use toml::{Table, Value};

/// The scenario that every command uses when none is named.
pub const DEFAULT_SCENARIO: &str = "qwen3.6-27b-914k";

/// A scenario with the text it was read from.
#[derive(Clone, Debug)]
pub struct Scenario {
    /// Its name: that of the file without `.toml`.
    pub name: String,
    /// Its tables.
    pub tables: Tables,
    /// What relative paths in it start from.
    pub folder: PathBuf,
    /// What is not known about it, in the order of the file.
    pub unknowns: Vec<Unknown>,
    file: String,
    text: String,
    overrides: Vec<Override>,
    /// Those of the unknowns that do not stand in the file.
    added: Vec<Unknown>,
}

impl Scenario {
    /// Finds a scenario by path or built-in name and applies overrides in order.
    ///
    /// # Errors
    /// What does not parse, unknown keys (naming the nearest known one), values out of range.
    pub fn load(name_or_path: &str, overrides: &[Override]) -> Result<Scenario> {
        if Path::new(name_or_path).is_dir() {
            let remedy = "name a TOML file in it, or a built-in scenario (`makespan list scenario`)";
            return Err(InputError::new("is a folder", remedy).file(name_or_path).into());
        }
        let found = find(Kind::Scenario, name_or_path)?;
        let folder = Path::new(&found.file).parent().map(Path::to_owned).unwrap_or_default();
        let folder = if found.built_in { PathBuf::new() } else { folder };
        Scenario::parse(found.text()?, &found.name, &found.file, folder, overrides)
    }

    /// Reads a scenario from text; `folder` is what relative paths in it start from.
    ///
    /// # Errors
    /// As [`Scenario::load`].
    pub fn parse(text: &str, name: &str, file: &str, folder: PathBuf, overrides: &[Override]) -> Result<Scenario> {
        let mut raw: Table = parse_toml(text, file)?;
        for over in overrides {
            over.apply(&mut raw)?;
            uncertain::settle(&mut raw, &over.key);
        }
        let accepts = |tables: &Table| read_rendered(tables, text, file, overrides).map(|_| ());
        let written = raw.clone();
        let unknowns = uncertain::take(&mut raw, &accepts).map_err(|error| match error {
            Error::Input(input) if input.file.is_none() => Error::Input(place(input, text, file, overrides)),
            other => other,
        })?;
        let tables = if overrides.is_empty() && raw == written {
            // Straight from the text, so that errors carry its lines.
            parse_toml(text, file).map_err(with_missing_table)?
        } else {
            read_rendered(&raw, text, file, overrides)?
        };
        let scenario = Scenario {
            name: name.to_owned(),
            tables,
            folder,
            unknowns,
            file: file.to_owned(),
            text: text.to_owned(),
            overrides: overrides.to_vec(),
            added: Vec::new(),
        };
        scenario.check()?;
        Ok(scenario)
    }

    /// A copy with further overrides.
    ///
    /// # Errors
    /// As [`Scenario::load`].
    pub fn with(&self, overrides: &[Override]) -> Result<Scenario> {
        let all: Vec<Override> = self.overrides.iter().chain(overrides).cloned().collect();
        let mut changed = Scenario::parse(&self.text, &self.name, &self.file, self.folder.clone(), &all)?;
        for unknown in &self.added {
            if !overrides.iter().any(|over| unknown.is_settled_by(&over.key)) {
                changed = changed.with_unknown(unknown.clone());
            }
        }
        Ok(changed)
    }

    /// A copy in which something more is not known, as from a fit: it takes the place of what the file says of its keys.
    #[must_use]
    pub fn with_unknown(mut self, unknown: Unknown) -> Scenario {
        self.unknowns.retain(|other| !other.is_settled_by(&unknown.name) && !unknown.is_settled_by(&other.name));
        self.unknowns.push(unknown.clone());
        self.added.push(unknown);
        self
    }

    /// The draws of one replication, one for each unknown.
    pub fn units(&self, streams: Streams) -> Vec<f64> {
        self.unknowns.iter().map(|unknown| unknown.unit(streams)).collect()
    }

    /// The scenario with every unknown settled at these draws. Without unknowns: itself.
    ///
    /// # Errors
    /// When a value that was drawn is out of range.
    pub fn resolve(&self, units: &[f64]) -> Result<Scenario> {
        let drawn = |(unknown, unit): (&Unknown, &f64)| -> Vec<Override> {
            unknown.at(*unit).into_iter().map(|(key, value)| Override::new(key, value, "drawn:")).collect()
        };
        let overrides: Vec<Override> = self.unknowns.iter().zip(units).flat_map(drawn).collect();
        if overrides.is_empty() { Ok(self.clone()) } else { self.with(&overrides) }
    }

    /// A number that changes with everything that a forecast depends on: the text, what was set, and added unknowns.
    pub fn fingerprint(&self) -> u64 {
        let set: Vec<String> = self.overrides.iter().map(ToString::to_string).collect();
        fnv1a(&format!("{}\n{}\n{:?}", self.text, set.join("\n"), self.added))
    }

    /// A checksum over the files that the scenario names: traces, lengths, descriptions.
    ///
    /// # Errors
    /// When one of them cannot be read.
    pub fn files_checksum(&self) -> Result<u32> {
        let mut words = Vec::new();
        if let Ok(table) = self.text.parse::<Table>() {
            strings(&Value::Table(table), &mut words);
        }
        self.overrides.iter().for_each(|over| strings(&over.value, &mut words));
        let mut paths: Vec<PathBuf> = words.iter().map(|word| self.folder.join(word)).collect();
        paths.retain(|path| crate::files::is_file(path));
        crate::files::checksum(&paths)
    }

    /// An error about the value of `key`, at its place: the file's line, or the `--set` that put it there.
    pub fn error(&self, key: &str, found: impl Into<String>, remedy: impl Into<String>) -> Error {
        self.locate(InputError::new(found, remedy).key(key)).into()
    }

    /// Adds the place of its key to an error.
    pub fn locate(&self, error: InputError) -> InputError {
        let Some(key) = error.key.clone() else { return error.file(&self.file) };
        if let Some(set) = self.overrides.iter().rev().find(|over| is_within(&key, &over.key)) {
            return error.file(set.origin.clone());
        }
        let line = line_of(&self.text, &key);
        // A table that only an override made.
        if line.is_none()
            && let Some(set) = self.overrides.iter().rev().find(|over| is_within(&over.key, &key))
        {
            return error.file(set.origin.clone());
        }
        let error = error.file(&self.file);
        match line {
            Some(line) => error.line(line),
            None => error,
        }
    }

    /// Requests in flight: a number, or `None` for all.
    ///
    /// # Errors
    /// When it is neither a whole number of at least 1 nor "all".
    pub fn concurrency(&self) -> Result<Option<u32>> {
        let remedy = "give a whole number of requests of at least 1, or \"all\"";
        match &self.tables.client.concurrency {
            None => Ok(None),
            Some(Value::String(word)) if word == "all" => Ok(None),
            Some(Value::Integer(number)) if (1..=10_000_000).contains(number) => Ok(Some(*number as u32)),
            Some(other) => Err(self.error("client.concurrency", format!("found {other}"), remedy)),
        }
    }
}
/// Every string in a value.
fn strings(value: &Value, found: &mut Vec<String>) {
    match value {
        Value::String(word) => found.push(word.clone()),
        Value::Array(values) => values.iter().for_each(|value| strings(value, found)),
        Value::Table(table) => table.values().for_each(|value| strings(value, found)),
        _ => {}
    }
}
