//! `makespan sweep`.

use clap::Args;
use makespan::experiment::{Benchmark, Changes, Setup};
use makespan::report::SweepReport;
use makespan::shard::Grid;

use super::grid::{self, Cell, Column, GridArgs};
use super::measured::TableArg;
use super::units::UnitsArgs;
use super::{ScenarioArgs, print};

#[derive(Args)]
pub(super) struct Sweep {
    #[command(flatten)]
    scenario: ScenarioArgs,
    #[command(flatten)]
    table: TableArg,
    /// Concurrencies to run, as in --at 1,8,64 (default: those of the measured table)
    #[arg(long, value_delimiter = ',', value_name = "N,N,...", allow_negative_numbers = true)]
    at: Vec<u32>,
    /// Running requests at most, in place of what the engine allows: what lifting the cap would give
    #[arg(long, value_name = "N", allow_negative_numbers = true, value_parser = clap::value_parser!(u32).range(1..))]
    cap: Option<u32>,
    /// Runs of each point, with other draws; rates are averages, and "+-" is how much one run scatters
    #[arg(long, default_value_t = 32, value_name = "N", allow_negative_numbers = true, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    replications: u32,
    #[command(flatten)]
    grid: GridArgs,
    #[command(flatten)]
    units: UnitsArgs,
}

impl Sweep {
    pub(super) fn run(&self) -> anyhow::Result<()> {
        self.units.on_threads(|| self.sweep())
    }

    fn benchmark<'a>(&self, setup: &'a Setup) -> makespan::error::Result<Benchmark<'a>> {
        let changes = Changes { running_cap: self.cap, ..Changes::default() };
        Benchmark::new(setup, &self.at, changes, self.scenario.seed, self.replications)
    }

    fn report(&self, setup: &Setup, result: &makespan::experiment::Sweep) -> SweepReport {
        let cap = self.cap.unwrap_or(setup.settings.running_cap);
        SweepReport::new(setup, result, cap, self.scenario.seed, self.replications)
    }

    /// The sweep of every scenario of a grid.
    fn grid(&self, cells: Vec<Cell>) -> anyhow::Result<()> {
        let setups = cells.iter().map(|cell| Setup::new(&cell.scenario)).collect::<Result<Vec<_>, _>>()?;
        let mut works = Vec::new();
        for (cell, setup) in cells.into_iter().zip(&setups) {
            let benchmark = self.benchmark(setup)?;
            let units = benchmark.units();
            works.push((cell.name, benchmark, units));
        }
        let grid = Grid::new(works);
        let Some(store) = self.units.run(&grid, grid.units(), "points", self.scenario.json)? else { return Ok(()) };
        let mut reports = Vec::new();
        for ((name, benchmark, units), setup) in grid.cells().zip(&setups) {
            let report = self.report(setup, &benchmark.sweep(store.numbered(units)));
            reports.push((name.to_owned(), serde_json::to_value(&report)?));
        }
        let columns: [Column; 4] = [
            ("plateau tok/s", "/plateau_tok_per_s", 0),
            ("knee", "/knee_concurrency", 0),
            ("rms log error", "/rms_log_error", 3),
            ("running cap", "/running_cap", 0),
        ];
        grid::print(&reports, &columns, self.scenario.json)
    }

    fn sweep(&self) -> anyhow::Result<()> {
        let table = self.table.overrides()?;
        if let Some(cells) = self.grid.cells(&self.scenario, &table)? {
            return self.grid(cells);
        }
        let setup = Setup::new(&self.scenario.load_with(table)?)?;
        let benchmark = self.benchmark(&setup)?;
        let all = benchmark.units();
        let Some(store) = self.units.run(&benchmark, all, "points", self.scenario.json)? else { return Ok(()) };
        let report = self.report(&setup, &benchmark.sweep(store.numbered(0..all)));
        print(|out| if self.scenario.json { report.write_json(out) } else { report.write_text(out) })
    }
}
