//! Many scenarios from one: `--grid FILE`.

use std::path::PathBuf;

use clap::Args;
use makespan::error::{Error, InputError};
use makespan::files;
use makespan::model::scenario::{Override, Scenario};
use serde_json::Value;

use super::ScenarioArgs;
use super::forecast::refuse;

/// More scenarios than this are a slip of the pen.
const MOST_CELLS: usize = 100_000;

#[derive(Args)]
pub(super) struct GridArgs {
    /// Run many scenarios: a CSV whose columns are keys and whose rows are scenarios, or a TOML file with lists of values
    /// under [axes], all combinations of which are run
    #[arg(long, value_name = "FILE")]
    grid: Option<PathBuf>,
}

/// One scenario of a grid.
pub(super) struct Cell {
    /// What makes it differ, as in `fleet.gpus=8, job.max_tokens=2048`.
    pub(super) name: String,
    pub(super) scenario: Scenario,
}

impl GridArgs {
    /// The scenarios, where a grid was asked for.
    pub(super) fn cells(&self, scenario: &ScenarioArgs, more: &[Override]) -> anyhow::Result<Option<Vec<Cell>>> {
        let Some(path) = &self.grid else { return Ok(None) };
        let file = path.display().to_string();
        let text = files::read_to_string(path)?;
        let rows = if path.extension().is_some_and(|extension| extension == "toml") {
            axes(&text, &file)?
        } else {
            rows(&text, &file)?
        };
        let cell = |set: Vec<String>| -> anyhow::Result<Cell> {
            let name = set.join(", ");
            let mut overrides = set.iter().map(|text| Override::parse(text)).collect::<Result<Vec<_>, _>>()?;
            overrides.extend_from_slice(more);
            let found = scenario.load_with(overrides);
            let found = found.map_err(|error| error.context(format!("{file}: scenario `{name}`")))?;
            Ok(Cell { name, scenario: found })
        };
        rows.into_iter().map(cell).collect::<anyhow::Result<Vec<_>>>().map(Some)
    }
}

/// Rows of a CSV as settings.
fn rows(text: &str, file: &str) -> anyhow::Result<Vec<Vec<String>>> {
    let remedy = "write a CSV such as `job.max_tokens,fleet.gpus` with a row of values for each scenario";
    let mut reader = csv::ReaderBuilder::new().trim(csv::Trim::All).comment(Some(b'#')).from_reader(text.as_bytes());
    let keys = reader.headers()?.clone();
    let mut cells = Vec::new();
    for record in reader.records() {
        let record = record.map_err(|error| {
            let line = error.position().map_or(0, csv::Position::line);
            let found = "a row with more or fewer values than there are keys";
            Error::from(InputError::new(found, remedy).file(file).line(line))
        })?;
        cells.push(
            keys.iter().zip(&record).filter(|(_, value)| !value.is_empty()).map(|(k, v)| format!("{k}={v}")).collect(),
        );
        if cells.len() > MOST_CELLS {
            return Err(refuse(file, format!("more than {MOST_CELLS} scenarios"), "split the file"));
        }
    }
    if cells.is_empty() {
        return Err(refuse(file, "no scenarios".to_owned(), remedy));
    }
    Ok(cells)
}

/// All combinations of the values of axes, the last axis quickest.
fn axes(text: &str, file: &str) -> anyhow::Result<Vec<Vec<String>>> {
    let remedy = "write [axes] and below it lines such as \"fleet.gpus\" = [2, 4]";
    let table: toml::Table =
        text.parse().map_err(|error: toml::de::Error| refuse(file, error.message().to_owned(), remedy))?;
    if let Some(other) = table.keys().find(|key| *key != "axes") {
        return Err(refuse(file, format!("unknown key `{other}`"), remedy));
    }
    let mut cells: Vec<Vec<String>> = vec![Vec::new()];
    let axes = table.get("axes").and_then(toml::Value::as_table).filter(|axes| !axes.is_empty());
    for (key, values) in axes.ok_or_else(|| refuse(file, "no axes".to_owned(), remedy))? {
        let values = values.as_array().filter(|values| !values.is_empty()).ok_or_else(|| {
            refuse(file, format!("`{key}` has no list of values"), "quote the key: \"job.max_tokens\" = [1024, 2048]")
        })?;
        if cells.len().saturating_mul(values.len()) > MOST_CELLS {
            return Err(refuse(file, format!("more than {MOST_CELLS} scenarios"), "give fewer values"));
        }
        cells = cells
            .iter()
            .flat_map(|cell| values.iter().map(|value| [cell.clone(), vec![format!("{key}={value}")]].concat()))
            .collect();
    }
    Ok(cells)
}

/// A column of the table of a grid: its title, where its value stands in a report's JSON, and digits after the point.
pub(super) type Column = (&'static str, &'static str, usize);

/// Prints the reports of all cells.
pub(super) fn print(cells: &[(String, Value)], columns: &[Column], json: bool) -> anyhow::Result<()> {
    super::print(|out| {
        use std::io::Write;
        if json {
            let all: Vec<Value> =
                cells.iter().map(|(name, report)| serde_json::json!({ "cell": name, "report": report })).collect();
            serde_json::to_writer_pretty(&mut *out, &serde_json::json!({ "cells": all }))?;
            return writeln!(out);
        }
        let width = cells.iter().map(|(name, _)| name.chars().count()).max().unwrap_or(0).max("scenario".len());
        write!(out, "{:<width$}", "scenario")?;
        columns.iter().try_for_each(|(title, _, _)| write!(out, " {title:>14}"))?;
        writeln!(out)?;
        for (name, report) in cells {
            write!(out, "{name:<width$}")?;
            for (_, pointer, digits) in columns {
                match report.pointer(pointer) {
                    Some(Value::Number(number)) => {
                        write!(out, " {:>14.digits$}", number.as_f64().unwrap_or(f64::NAN), digits = *digits)?;
                    }
                    Some(Value::String(word)) => write!(out, " {word:>14}")?,
                    _ => write!(out, " {:>14}", "-")?,
                }
            }
            writeln!(out)?;
        }
        Ok(())
    })
}
