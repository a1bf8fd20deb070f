//! `makespan forecast`.

use std::ops::Range;

use clap::Args;
use indicatif::{ProgressBar, ProgressStyle};
use makespan::error::{Error, InputError};
use makespan::experiment::{Extent, Forecast, Reduced, Replications, bridge, drivers, run_forecast};
use makespan::report::{ForecastReport, ForecastRun};
use makespan::shard::Grid;

use super::decide::deadline_days;
use super::grid::{self, Cell, Column, GridArgs};
use super::units::UnitsArgs;
use super::{ScenarioArgs, print};

/// Replications where neither the scenario nor the command line says how many.
const REPLICATIONS: u64 = 200;

/// Rows of the design behind the drivers: a quarter of the replications, within these.
const ROWS: Range<u64> = 32..256;

/// What is shown of each scenario of a grid.
const COLUMNS: [Column; 4] = [
    ("p5 days", "/makespan_days/p5", 2),
    ("p50 days", "/makespan_days/p50", 2),
    ("p95 days", "/makespan_days/p95", 2),
    ("in time", "/p_deadline", 2),
];

#[derive(Args)]
pub(super) struct ForecastCommand {
    #[command(flatten)]
    scenario: ScenarioArgs,
    /// Replications, at most where a precision is asked for (default: the scenario's, or 200)
    #[arg(long, value_name = "N", allow_negative_numbers = true, value_parser = clap::value_parser!(u64).range(1..=10_000_000))]
    replications: Option<u64>,
    /// Stop early once the 5%, 50% and 95% quantiles are known to this share, as in 0.02
    #[arg(long, value_name = "SHARE", allow_negative_numbers = true)]
    precision: Option<f64>,
    /// When the job must be done, as in 10d or 36h
    #[arg(long, value_name = "TIME")]
    deadline: Option<String>,
    #[command(flatten)]
    grid: GridArgs,
    #[command(flatten)]
    units: UnitsArgs,
    /// Leave out the drivers and the bridge
    #[arg(long)]
    quantiles_only: bool,
}

impl ForecastCommand {
    pub(super) fn run(&self) -> anyhow::Result<()> {
        self.units.on_threads(|| self.forecast())
    }

    /// The forecast of every scenario of a grid: quantiles only.
    fn grid<'a>(&self, cells: &'a [Cell]) -> anyhow::Result<()> {
        let seed = self.scenario.seed;
        let count = self.replications.unwrap_or(REPLICATIONS);
        let work = |cell: &'a Cell| Ok((cell.name.clone(), Replications::new(&cell.scenario, seed)?, count));
        let grid = Grid::new(cells.iter().map(work).collect::<anyhow::Result<_>>()?);
        let Some(store) = self.units.run(&grid, grid.units(), "replications", self.scenario.json)? else {
            return Ok(());
        };
        let mut reports = Vec::new();
        for ((name, _, units), cell) in grid.cells().zip(cells) {
            let deadline_days = deadline_days(self.deadline.as_deref(), &cell.scenario)?;
            let Some(forecast) = Forecast::new(&store.range(units), deadline_days) else { continue };
            let run = ForecastRun { seed, first: 0, deadline_days };
            let report = ForecastReport::new(&cell.scenario, run, forecast, None, &[]);
            reports.push((name.to_owned(), serde_json::to_value(&report)?));
        }
        grid::print(&reports, &COLUMNS, self.scenario.json)
    }

    fn forecast(&self) -> anyhow::Result<()> {
        if let Some(cells) = self.grid.cells(&self.scenario, &[])? {
            if self.precision.is_some() {
                let remedy = "leave it out: every scenario of a grid runs as many replications";
                return Err(refuse("--precision", "found beside --grid".to_owned(), remedy));
            }
            return self.grid(&cells);
        }
        let scenario = self.scenario.load()?;
        let seed = self.scenario.seed;
        let asked = scenario.tables.forecast;
        let range = match (self.units.range()?, self.replications) {
            (Some(_), Some(_)) => {
                let found = "found beside --range".to_owned();
                return Err(refuse("--replications", found, "give one of them: a range says how many"));
            }
            (Some(range), None) => range,
            (None, asked_here) => 0..asked_here.or(asked.replications).unwrap_or(REPLICATIONS),
        };
        let precision = match self.precision.or(asked.precision) {
            Some(share) if !(share > 0.0 && share < 1.0) => {
                let found = format!("found {share}");
                return Err(refuse("--precision", found, "give a share between 0 and 1, as in 0.02"));
            }
            share => share,
        };
        let deadline_days = deadline_days(self.deadline.as_deref(), &scenario)?;
        let replications = Replications::new(&scenario, seed)?;
        let mut results = self.units.store(&replications)?;
        let bar = progress(results.missing(range.clone()).len() as u64, "replications");
        let extent = Extent { range: range.clone(), precision };
        let done = run_forecast(&replications, &extent, &mut results, &|| bar.inc(1))?;
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
