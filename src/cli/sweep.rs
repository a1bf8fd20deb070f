//! `makespan sweep`.

use std::ops::Range;

use clap::Args;
use makespan::experiment::{Benchmark, Changes, Setup};
use makespan::report::SweepReport;
use makespan::shard::{Grid, Identity, run_missing};

use super::forecast::progress;
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
        let mut identities = Vec::new();
        for (cell, setup) in cells.into_iter().zip(&setups) {
            let benchmark = self.benchmark(setup)?;
            identities.push(benchmark.identity()?);
            let units = benchmark.units();
            works.push((cell.name, benchmark, units));
        }
        let grid = Grid::new(works);
        let range = self.units.range_of(grid.units())?;
        let base = Identity::new("sweep").with("seed", self.scenario.seed);
        let mut store = self.units.store(grid::identity(base, &identities, grid.units()))?;
        let bar = progress(store.missing(range.clone()).len() as u64, "points");
        run_missing(&grid, range.clone(), &mut store, &|| bar.inc(1))?;
        store.finish()?;
        bar.finish_and_clear();
        if range != (0..grid.units()) {
            return self.units.print_part(&range, grid.units(), self.scenario.json);
        }
        let report = |((name, benchmark, units), setup): ((&str, &Benchmark<'_>, Range<u64>), &Setup)| {
            let result = benchmark.sweep(store.range(units).into_iter().cloned().collect());
            Ok((name.to_owned(), grid::json_of(|out| self.report(setup, &result).write_json(out))?))
        };
        let reports = grid.cells().zip(&setups).map(report).collect::<anyhow::Result<Vec<_>>>()?;
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
        let range = self.units.range_of(benchmark.units())?;
        let mut store = self.units.store(benchmark.identity()?)?;
        run_missing(&benchmark, range.clone(), &mut store, &|| {})?;
        store.finish()?;
        if range != (0..benchmark.units()) {
            return self.units.print_part(&range, benchmark.units(), self.scenario.json);
        }
        let result = benchmark.sweep(store.range(range).into_iter().cloned().collect());
        let report = self.report(&setup, &result);
        print(|out| if self.scenario.json { report.write_json(out) } else { report.write_text(out) })
    }
}
