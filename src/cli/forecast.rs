//! `makespan forecast`.

use std::ops::Range;
use std::path::PathBuf;

use clap::Args;
use indicatif::{ProgressBar, ProgressStyle};
use makespan::error::{Error, InputError};
use makespan::experiment::{Extent, Forecast, Reduced, Results, bridge, drivers, run_forecast};
use makespan::report::{ForecastReport, ForecastRun};

use super::decide::deadline_days;
use super::{ScenarioArgs, print};

/// Replications where neither the scenario nor the command line says how many.
const REPLICATIONS: u64 = 200;

/// Rows of the design behind the drivers: a quarter of the replications, within these.
const ROWS: Range<u64> = 32..256;

#[derive(Args)]
pub(super) struct ForecastCommand {
    #[command(flatten)]
    scenario: ScenarioArgs,
    /// Replications, at most where a precision is asked for (default: the scenario's, or 200)
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=10_000_000), conflicts_with = "range")]
    replications: Option<u64>,
    /// Stop early once the 5%, 50% and 95% quantiles are known to this share, as in 0.02
    #[arg(long, value_name = "SHARE")]
    precision: Option<f64>,
    /// When the job must be done, as in 10d or 36h
    #[arg(long, value_name = "TIME")]
    deadline: Option<String>,
    /// Run these replications only, as in 250..500: parts may run anywhere and be put together with --from
    #[arg(long, value_name = "A..B")]
    range: Option<String>,
    /// Keep finished replications in this file, and go on from what it holds
    #[arg(long, value_name = "FILE")]
    results: Option<PathBuf>,
    /// Take finished replications from this file too (repeatable)
    #[arg(long, value_name = "FILE")]
    from: Vec<PathBuf>,
    /// Start the results file anew, whatever it holds
    #[arg(long, requires = "results")]
    force: bool,
    /// Threads (default: all cores); results do not depend on it
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=4096))]
    threads: Option<u16>,
    /// Leave out the drivers and the bridge
    #[arg(long)]
    quantiles_only: bool,
}

impl ForecastCommand {
    pub(super) fn run(&self) -> anyhow::Result<()> {
        match self.threads {
            None => self.forecast(),
            Some(threads) => {
                rayon::ThreadPoolBuilder::new().num_threads(usize::from(threads)).build()?.install(|| self.forecast())
            }
        }
    }

    fn forecast(&self) -> anyhow::Result<()> {
        let scenario = self.scenario.load()?;
        let seed = self.scenario.seed;
        let asked = scenario.tables.forecast;
        let range = match &self.range {
            Some(text) => parse_range(text)?,
            None => 0..self.replications.or(asked.replications).unwrap_or(REPLICATIONS),
        };
        let precision = match self.precision.or(asked.precision) {
            Some(share) if !(share > 0.0 && share < 1.0) => {
                let found = format!("found {share}");
                return Err(refuse("--precision", found, "give a share between 0 and 1, as in 0.02"));
            }
            share => share,
        };
        let deadline_days = deadline_days(self.deadline.as_deref(), &scenario)?;
        let mut results = Results::new(&scenario, seed);
        for path in &self.from {
            results.read(path)?;
        }
        if let Some(path) = &self.results {
            results.keep_in(path, self.force)?;
        }
        let missing = range.clone().filter(|index| !results.contains(*index)).count() as u64;
        let bar = progress(missing, "replications");
        let extent = Extent { range: range.clone(), precision };
        let done = run_forecast(&scenario, seed, &extent, &mut results, &|| bar.inc(1))?;
        bar.finish_and_clear();
        let rows = results.range(done);
        let Some(forecast) = Forecast::new(&rows, deadline_days) else {
            return Err(refuse("--range", "no replications".to_owned(), "give a range such as 0..200"));
        };
        let (mut spread, mut steps) = (None, Vec::new());
        if !self.quantiles_only {
            if !scenario.unknowns.is_empty() {
                let wanted = (rows.len() as u64 / 4).clamp(ROWS.start, ROWS.end).min(rows.len() as u64);
                let runs = wanted * (scenario.unknowns.len() as u64 + 3);
                let bar = progress(runs, "runs behind the drivers");
                spread = drivers(&Reduced::new(&scenario)?, seed, wanted, &rows, &|| bar.inc(1))?;
                bar.finish_and_clear();
            }
            steps = bridge(&scenario, seed, Some(forecast.quantile(0.5)))?;
        }
        let run = ForecastRun { seed, first: range.start, deadline_days };
        let report = ForecastReport::new(&scenario, run, forecast, spread, &steps);
        print(|out| if self.scenario.json { report.write_json(out) } else { report.write_text(out) })
    }
}

/// An error about an option.
pub(super) fn refuse(option: &str, found: String, remedy: &str) -> anyhow::Error {
    Error::from(InputError::new(found, remedy).file(option)).into()
}

/// A bar with the time left, on stderr where that is a terminal.
pub(super) fn progress(total: u64, of_what: &str) -> ProgressBar {
    let bar = ProgressBar::new(total);
    if let Ok(style) = ProgressStyle::with_template("{bar:40} {human_pos}/{human_len} {msg}, {eta} left") {
        bar.set_style(style);
    }
    bar.set_message(of_what.to_owned());
    bar
}

fn parse_range(text: &str) -> anyhow::Result<Range<u64>> {
    let parsed = text.split_once("..").and_then(|(start, end)| Some(start.parse().ok()?..end.parse().ok()?));
    match parsed {
        Some(range) if range.start < range.end && range.end <= 1 << 40 => Ok(range),
        _ => Err(refuse(
            "--range",
            format!("found `{text}`"),
            "give the first and the one after the last, as in 250..500",
        )),
    }
}
