//! `makespan diagnose`.

use clap::Args;
use makespan::calibrate::{FitOptions, diagnose};
use makespan::report::DiagnoseReport;

use super::measured::{Comparison, Measured};
use super::{ScenarioArgs, print};

#[derive(Args)]
pub(super) struct Diagnose {
    #[command(flatten)]
    scenario: ScenarioArgs,
    #[command(flatten)]
    measured: Measured,
    /// Draws of the posterior of each mechanism
    #[arg(long, default_value_t = 300, value_name = "N", allow_negative_numbers = true, value_parser = clap::value_parser!(u32).range(100..=1_000_000))]
    draws: u32,
}

impl Diagnose {
    pub(super) fn run(&self) -> anyhow::Result<()> {
        let Comparison { setup, table, known, said, .. } = self.measured.read(&self.scenario)?;
        let options = FitOptions { draws: self.draws as usize, known, ..FitOptions::new(self.scenario.seed) };
        let diagnosis = diagnose(&setup, &table, options)?;
        let report = DiagnoseReport::new(&setup, &diagnosis, self.scenario.seed, said);
        print(|out| if self.scenario.json { report.write_json(out) } else { report.write_text(out) })
    }
}
