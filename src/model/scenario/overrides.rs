//! Values set beside the file, and errors at the place a user knows.

use super::*;
use crate::error::{Error, InputError, Result};
use crate::model::parse::{TEXT_NEEDED, line_of, parse_toml};
use crate::model::uncertain::is_within;
use std::fmt;
use toml::{Table, Value};

/// One `--set key=value`.
#[derive(Clone, Debug, PartialEq)]
pub struct Override {
    pub(super) key: String,
    pub(super) value: Value,
    /// Where it comes from, for errors.
    pub(super) origin: String,
}

impl fmt::Display for Override {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}={}", self.key, self.value)
    }
}

impl Override {
    /// Reads `key=value`; the value is TOML, or else text.
    ///
    /// # Errors
    /// When there is no `=` or no key.
    pub fn parse(written: &str) -> Result<Override> {
        let remedy = "write --set job.max_tokens=2048 or --set client.concurrency=all";
        let Some((key, value)) = written.split_once('=') else {
            return Err(InputError::new(format!("no `=` in `{written}`"), remedy).file("--set").into());
        };
        let key = key.trim();
        if key.is_empty() || key.split('.').any(|part| part.trim().is_empty()) {
            return Err(InputError::new(format!("no key in `{written}`"), remedy).file("--set").into());
        }
        let value = format!("v = {value}")
            .parse::<Table>()
            .ok()
            .and_then(|mut table| if table.len() == 1 { table.remove("v") } else { None })
            .unwrap_or_else(|| Value::String(value.trim().to_owned()));
        Ok(Override { key: key.to_owned(), value, origin: format!("--set {written}") })
    }

    /// Sets `key` to `value`; `origin` is what errors about it name as its place.
    pub fn new(key: &str, value: Value, origin: &str) -> Override {
        Override { key: key.to_owned(), origin: format!("{origin} {key} = {value}"), value }
    }

    /// The key that it sets.
    pub fn key(&self) -> &str {
        &self.key
    }

    /// The value that it sets.
    pub fn value(&self) -> &Value {
        &self.value
    }

    /// Puts the value into the tables, making tables on the way.
    pub(super) fn apply(&self, tables: &mut Table) -> Result<()> {
        let mut parts: Vec<&str> = self.key.split('.').map(str::trim).collect();
        let Some(last) = parts.pop() else { return Ok(()) };
        let mut table = tables;
        for part in parts {
            let entry = table.entry(part).or_insert_with(|| Value::Table(Table::new()));
            table = match entry {
                Value::Table(inner) => inner,
                other => {
                    let found = format!("`{part}` is a {}, not a table", other.type_str());
                    return Err(InputError::new(found, "set it as a whole").key(&self.key).file("--set").into());
                }
            };
        }
        table.insert(last.to_owned(), self.value.clone());
        Ok(())
    }
}

/// Gives an error about tables with overrides in them its place: the override that caused it, else the file's line.
/// Lines of the rendered text mean nothing to the user.
pub(super) fn place(mut error: InputError, text: &str, file: &str, overrides: &[Override]) -> InputError {
    error.line = None;
    let Some(key) = error.key.clone() else { return error.file(file) };
    let about = |over: &&Override| is_within(&key, &over.key) || is_within(&over.key, &key);
    if let Some(over) = overrides.iter().rev().find(about) {
        if error.remedy == TEXT_NEEDED {
            error.remedy = format!("{TEXT_NEEDED}: --set '{}=\"{}\"'", over.key, over.value);
        }
        return error.file(over.origin.clone());
    }
    let error = error.file(file);
    match line_of(text, &key) {
        Some(line) => error.line(line),
        None => error,
    }
}

/// Reads tables that are no longer the text of a file; errors name the place that a user knows.
pub(super) fn read_rendered(tables: &Table, text: &str, file: &str, overrides: &[Override]) -> Result<Tables> {
    let rendered =
        toml::to_string(tables).map_err(|e| InputError::new(e.to_string(), "set plain values").file("--set"))?;
    parse_toml(&rendered, "").map_err(with_missing_table).map_err(|error| match error {
        Error::Input(mut input) => {
            input.file = None;
            Error::Input(place(input, text, file, overrides))
        }
        other => other,
    })
}

/// Says which table to add where a whole one is missing.
pub(super) fn with_missing_table(error: Error) -> Error {
    match error {
        Error::Input(mut input) if input.key.is_none() => {
            if let Some(table) = ["job", "fleet", "engine"].iter().find(|table| input.found.contains(*table)) {
                input.remedy = format!("add a table `[{table}]`");
            }
            Error::Input(input)
        }
        other => other,
    }
}
