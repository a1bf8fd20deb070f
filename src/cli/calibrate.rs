//! `makespan calibrate`.

use std::path::PathBuf;

use clap::Args;
use makespan::calibrate::{FitFile, FitOptions, fit};
use makespan::error::InputError;
use makespan::experiment::{Setup, measured_table};
use makespan::report::CalibrateReport;

use super::{ScenarioArgs, print};

#[derive(Args)]
pub(super) struct Calibrate {
    #[command(flatten)]
    scenario: ScenarioArgs,
    /// Draws of the posterior
    #[arg(long, default_value_t = 1200, value_name = "N", value_parser = clap::value_parser!(u32).range(100..=1_000_000))]
    draws: u32,
    /// Write the fit to a file, for --fit of the other commands
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
}

impl Calibrate {
    pub(super) fn run(&self) -> anyhow::Result<()> {
        let setup = Setup::new(&self.scenario.load_unfitted()?)?;
        let (name, table) = measured_table(&setup)?.ok_or_else(|| no_table(&setup))?;
        let options = FitOptions { draws: self.draws as usize, ..FitOptions::new(self.scenario.seed) };
        let fit = fit(&setup, &table, options)?;
        let file = FitFile::new(&fit, &name, &table);
        if let Some(path) = &self.out {
            file.save(path)?;
        }
        let report = CalibrateReport::new(&fit, &file);
        print(|out| if self.scenario.json { report.write_json(out) } else { report.write_text(out) })
    }
}

/// The scenario has no measured table.
pub(super) fn no_table(setup: &Setup) -> makespan::error::Error {
    let remedy = "name one with --set benchmark.table=…; `makespan list measured` shows the built-in ones";
    makespan::error::Error::Input(
        setup.scenario.locate(InputError::new("there is no measured table to fit", remedy).key("benchmark.table")),
    )
}
