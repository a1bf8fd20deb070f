//! What `sweep`, `calibrate` and `diagnose` compare with: a measured table, and what was read off the engine.

use std::path::PathBuf;

use clap::Args;
use makespan::calibrate::{Evidence, Known, position_acceptance};
use makespan::error::{Error, InputError};
use makespan::experiment::{Setup, measured_table};
use makespan::format::thousands;
use makespan::inspect::{EngineReadings, read_engine};
use makespan::measured::Table;
use makespan::model::scenario::Override;
use toml::Value;

use super::ScenarioArgs;

#[derive(Args)]
pub(super) struct TableArg {
    /// A measured table: a file, a result of a benchmark tool, a folder of results, or a built-in name; in place of the
    /// scenario's benchmark.table
    #[arg(long, value_name = "FILE")]
    table: Option<PathBuf>,
}

impl TableArg {
    /// What it changes in the scenario.
    pub(super) fn overrides(&self) -> anyhow::Result<Vec<Override>> {
        let Some(table) = &self.table else { return Ok(Vec::new()) };
        // A path on the command line starts from here, one in a scenario from the scenario's folder.
        let place = if table.exists() { std::path::absolute(table)? } else { table.clone() };
        Ok(vec![Override::new("benchmark.table", Value::String(place.display().to_string()), "--table")])
    }
}

#[derive(Args)]
pub(super) struct Measured {
    #[command(flatten)]
    table: TableArg,
    /// The engine's log, a snapshot of its metrics, or a table of its state over time, from while the table was measured:
    /// what ran and waited, the KV pool and the acceptance count as known
    #[arg(long, value_name = "FILE")]
    log: Option<PathBuf>,
}

/// A setup with what was measured of it.
pub(super) struct Comparison {
    pub setup: Setup,
    /// Name of the table.
    pub name: String,
    pub table: Table,
    /// What is known besides the table.
    pub known: Known,
    /// What was read off the engine, in words.
    pub said: Vec<String>,
}

impl Measured {
    pub(super) fn read(&self, scenario: &ScenarioArgs) -> anyhow::Result<Comparison> {
        let readings = self.log.as_deref().map(read_engine).transpose()?;
        let mut evidence = readings.as_ref().map(Evidence::of_log).unwrap_or_default();
        let mut overrides = self.table.overrides()?;
        if let Some(tokens) = evidence.kv_pool_tokens {
            let tokens = Value::Integer(i64::try_from(tokens).unwrap_or(i64::MAX));
            overrides.push(Override::new("engine.kv_pool_tokens", tokens, "--log"));
        }
        let setup = Setup::new(&scenario.load_unfitted(overrides)?)?;
        let (name, table) = measured_table(&setup)?.ok_or_else(|| no_table(&setup))?;
        let mut said = readings.as_ref().map(words).unwrap_or_default();
        let recorded = Evidence::of_table(table.server);
        if let Some(cap) = recorded.running_cap {
            said.push(format!("the benchmark recorded that the server runs at most {cap} requests"));
        }
        evidence = evidence.or(recorded);
        let mut known = Known { evidence, ..Known::default() };
        if let Some(length) = evidence.acceptance {
            match &setup.settings.speculation {
                Some(law) if length <= f64::from(law.draft_tokens() + 1) => {
                    known.acceptance = Some(position_acceptance(length, law.draft_tokens()));
                    said.push(format!("{length:.2} tokens a step and request, taken as the acceptance"));
                }
                Some(law) => said.push(format!(
                    "{length:.2} tokens a step and request do not fit the scenario, which drafts {}: not used",
                    law.draft_tokens()
                )),
                None => said.push("drafts are accepted, but the scenario has no speculation: not used".to_owned()),
            }
        }
        Ok(Comparison { setup, name, table, known, said })
    }
}

/// What bears on a plateau.
fn words(readings: &EngineReadings) -> Vec<String> {
    let mut said: Vec<String> = readings.verdict.iter().take(usize::from(readings.held.is_some())).cloned().collect();
    if let (None, Some(cap)) = (readings.held, readings.max_running) {
        said.push(format!("at most {cap} requests run, as resolved at start-up"));
    }
    if let Some(tokens) = readings.kv_pool_tokens {
        said.push(format!("a KV pool of {} tokens, in place of the scenario's", thousands(tokens)));
    }
    said
}

/// The scenario has no measured table.
fn no_table(setup: &Setup) -> Error {
    let remedy = "name one with --table; `makespan list measured` shows the built-in ones";
    Error::Input(
        setup.scenario.locate(InputError::new("there is no measured table to fit", remedy).key("benchmark.table")),
    )
}
