//! `makespan calibrate`.

use std::path::PathBuf;

use clap::Args;
use makespan::calibrate::{FitFile, FitOptions, fit};
use makespan::report::CalibrateReport;

use super::measured::{Comparison, Measured};
use super::{ScenarioArgs, claim, print};

#[derive(Args)]
pub(super) struct Calibrate {
    #[command(flatten)]
    scenario: ScenarioArgs,
    #[command(flatten)]
    measured: Measured,
    /// Importance draws, from which the walkers of the posterior start
    #[arg(long, default_value_t = 400, value_name = "N", allow_negative_numbers = true, value_parser = clap::value_parser!(u32).range(100..=1_000_000))]
    draws: u32,
    /// Write the fit to a file, for --fit of the other commands
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
    /// Replace the file if it exists
    #[arg(long, requires = "out")]
    force: bool,
}

impl Calibrate {
    pub(super) fn run(&self) -> anyhow::Result<()> {
        claim(&[("--out", &self.out)], self.force)?;
        let Comparison { setup, name, table, known, said } = self.measured.read(&self.scenario)?;
        let options = FitOptions { draws: self.draws as usize, known, ..FitOptions::new(self.scenario.seed) };
        let fit = fit(&setup, &table, options)?;
        let file = FitFile::new(&fit, &name, &table);
        if let Some(path) = &self.out {
            file.save(path)?;
        }
        let report = CalibrateReport::new(&fit, &file, said);
        print(|out| if self.scenario.json { report.write_json(out) } else { report.write_text(out) })
    }
}
