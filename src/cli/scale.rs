//! `makespan scale`.

use clap::Args;
use makespan::experiment::{Mechanism, explain, scale};
use makespan::report::ScaleReport;

use super::forecast::{progress, refuse};
use super::{ScenarioArgs, print};

#[derive(Args)]
pub(super) struct Scale {
    #[command(flatten)]
    scenario: ScenarioArgs,
    /// Numbers of GPUs
    #[arg(long, value_delimiter = ',', value_name = "N,N,...", allow_negative_numbers = true, default_values_t = [1, 2, 4, 8], value_parser = clap::value_parser!(u32).range(1..=4096))]
    gpus: Vec<u32>,
    /// Replications of each number under each assumption
    #[arg(long, value_name = "N", allow_negative_numbers = true, default_value_t = 4, value_parser = clap::value_parser!(u64).range(1..=100_000))]
    replications: u64,
    /// The rate hoped for and those to explain, tok/s of all GPUs of the scenario together
    #[arg(long, value_delimiter = ',', value_name = "FROM,TO,...", default_values_t = [1600.0, 1500.0, 1400.0])]
    rates: Vec<f64>,
}

impl Scale {
    pub(super) fn run(&self) -> anyhow::Result<()> {
        let from = self.rates.first().copied().unwrap_or(0.0);
        if self.rates.len() < 2 || !self.rates[1..].iter().all(|rate| *rate > 0.0 && *rate < from) {
            let found = format!("found {:?}", self.rates);
            return Err(refuse("--rates", found, "give the rate hoped for, then lower ones, as in 1600,1500,1400"));
        }
        if let Some((_, twice)) =
            self.gpus.iter().enumerate().find(|(place, count)| self.gpus[..*place].contains(count))
        {
            return Err(refuse("--gpus", format!("found {twice} twice"), "give each number once, as in 1,2,4,8"));
        }
        let scenario = self.scenario.load()?;
        let runs = (self.gpus.len() * Mechanism::ALL.len()) as u64 * self.replications;
        let bar = progress(runs, "runs");
        let points = scale(&scenario, &self.gpus, self.scenario.seed, self.replications, &|| bar.inc(1))?;
        bar.finish_and_clear();
        let shares: Vec<f64> = self.rates[1..].iter().map(|rate| rate / from).collect();
        let found = explain(&scenario, &shares, self.scenario.seed)?;
        let report = ScaleReport::new(&scenario, self.scenario.seed, self.replications, &points, &self.rates, &found);
        print(|out| if self.scenario.json { report.write_json(out) } else { report.write_text(out) })
    }
}
