//! `makespan diagnose`.

use clap::Args;
use makespan::calibrate::{FitOptions, diagnose};
use makespan::experiment::{Setup, measured_table};
use makespan::report::DiagnoseReport;

use super::calibrate::no_table;
use super::{ScenarioArgs, print};

#[derive(Args)]
pub(super) struct Diagnose {
    #[command(flatten)]
    scenario: ScenarioArgs,
    /// Draws of the posterior of each mechanism
    #[arg(long, default_value_t = 300, value_name = "N", value_parser = clap::value_parser!(u32).range(100..=1_000_000))]
    draws: u32,
}

impl Diagnose {
    pub(super) fn run(&self) -> anyhow::Result<()> {
        let setup = Setup::new(&self.scenario.load_unfitted()?)?;
        let (_, table) = measured_table(&setup)?.ok_or_else(|| no_table(&setup))?;
        let options = FitOptions { draws: self.draws as usize, ..FitOptions::new(self.scenario.seed) };
        let diagnosis = diagnose(&setup, &table, options)?;
        let report = DiagnoseReport::new(&setup, &diagnosis, self.scenario.seed);
        print(|out| if self.scenario.json { report.write_json(out) } else { report.write_text(out) })
    }
}
