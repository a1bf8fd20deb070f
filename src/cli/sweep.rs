//! `makespan sweep`.

use clap::Args;
use makespan::experiment::{Changes, Setup, sweep};
use makespan::report::SweepReport;

use super::measured::TableArg;
use super::{ScenarioArgs, print};

#[derive(Args)]
pub(super) struct Sweep {
    #[command(flatten)]
    scenario: ScenarioArgs,
    #[command(flatten)]
    table: TableArg,
    /// Concurrencies to run, as in --at 1,8,64 (default: those of the measured table)
    #[arg(long, value_delimiter = ',', value_name = "N,N,...")]
    at: Vec<u32>,
    /// Running requests at most, in place of what the engine allows: what lifting the cap would give
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    cap: Option<u32>,
    /// Runs of each point, with other draws; rates are averages, and "+-" is how much one run scatters
    #[arg(long, default_value_t = 32, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=100_000))]
    replications: u32,
}

impl Sweep {
    pub(super) fn run(&self) -> anyhow::Result<()> {
        let setup = Setup::new(&self.scenario.load_with(self.table.overrides()?)?)?;
        let changes = Changes { running_cap: self.cap, ..Changes::default() };
        let result = sweep(&setup, &self.at, changes, self.scenario.seed, self.replications)?;
        let cap = self.cap.unwrap_or(setup.settings.running_cap);
        let report = SweepReport::new(&setup, &result, cap, self.scenario.seed, self.replications);
        print(|out| if self.scenario.json { report.write_json(out) } else { report.write_text(out) })
    }
}
