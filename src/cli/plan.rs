//! `makespan plan`.

use std::path::PathBuf;
use std::time::Instant;

use clap::Args;
use makespan::plan::{Effort, PARTS, plan};
use makespan::report::PlanReport;

use super::decide::TermsArgs;
use super::forecast::progress;
use super::{ScenarioArgs, claim, print};

#[derive(Args)]
pub(super) struct PlanCommand {
    #[command(flatten)]
    scenario: ScenarioArgs,
    #[command(flatten)]
    terms: TermsArgs,
    /// Replications of the forecast
    #[arg(long, value_name = "N", allow_negative_numbers = true, default_value_t = 512, value_parser = clap::value_parser!(u64).range(32..=10_000_000))]
    replications: u64,
    /// Write the plan as a page too: one HTML file with its drawings inside
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
    /// Replace the page if there is one
    #[arg(long, requires = "html")]
    force: bool,
}

/// Replications of each option.
const OF_AN_OPTION: u64 = 64;

/// Rows of the design behind the drivers.
const ROWS: u64 = 64;

/// Draws of the posterior of each explanation of the table.
const DRAWS: usize = 300;

impl PlanCommand {
    pub(super) fn run(&self) -> anyhow::Result<()> {
        let scenario = self.scenario.load_unfitted(Vec::new())?;
        let terms = self.terms.terms(&scenario, self.scenario.seed, OF_AN_OPTION)?;
        claim(&[("--html", &self.html)], self.force)?;
        let started = Instant::now();
        let bar = progress(PARTS, "parts");
        let effort = Effort { replications: self.replications, rows: ROWS, draws: DRAWS };
        let found = plan(&scenario, terms, effort, &|| bar.inc(1))?;
        bar.finish_and_clear();
        let report = PlanReport::new(&scenario, terms, &found, started.elapsed().as_secs_f64());
        if let Some(path) = &self.html {
            makespan::files::write(path, report.page())?;
        }
        print(|out| if self.scenario.json { report.write_json(out) } else { report.write_text(out) })
    }
}
