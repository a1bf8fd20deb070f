//! Many pieces of work as one: their units follow one another.

use std::ops::Range;

use crate::error::{InputError, Result};
use crate::random::fnv1a;

use super::identity::Identity;
use super::row::Row;
use super::work::Work;

/// Pieces of work with names, the units of each after those of the one before.
#[derive(Debug)]
pub struct Grid<W> {
    cells: Vec<(String, W)>,
    /// Where each ends.
    ends: Vec<u64>,
}

impl<W: Work> Grid<W> {
    /// Cells, with how many units each has.
    pub fn new(cells: Vec<(String, W, u64)>) -> Grid<W> {
        let mut end = 0;
        let ends = cells.iter().map(|(_, _, units)| {
            end += units;
            end
        });
        let ends = ends.collect();
        Grid { cells: cells.into_iter().map(|(name, work, _)| (name, work)).collect(), ends }
    }

    /// Units in all.
    pub fn units(&self) -> u64 {
        self.ends.last().copied().unwrap_or(0)
    }

    /// Each cell with its name and units.
    pub fn cells(&self) -> impl Iterator<Item = (&str, &W, Range<u64>)> {
        let starts = std::iter::once(0).chain(self.ends.iter().copied());
        self.cells
            .iter()
            .zip(starts.zip(&self.ends))
            .map(|((name, work), (start, end))| (name.as_str(), work, start..*end))
    }

    fn cell(&self, unit: u64) -> Option<(&str, &W, u64)> {
        let place = self.ends.partition_point(|end| *end <= unit);
        let start = if place == 0 { 0 } else { *self.ends.get(place - 1)? };
        let (name, work) = self.cells.get(place)?;
        Some((name, work, unit - start))
    }
}

impl<W: Work> Work for Grid<W> {
    type Row = W::Row;

    fn run(&self, unit: u64) -> Result<W::Row> {
        let beyond =
            || InputError::new(format!("there is no unit {unit}"), "give units below their number").key("--range");
        let (_, work, own) = self.cell(unit).ok_or_else(beyond)?;
        Ok(work.run(own)?.numbered(unit))
    }

    /// That of every cell.
    fn identity(&self) -> Result<Identity> {
        let cells = self.cells.iter().map(|(_, work)| work.identity()).collect::<Result<Vec<_>>>()?;
        let first = cells.first().ok_or_else(|| InputError::new("no cells", "give at least one").key("--grid"))?;
        let grid = format!("{} {:016x}", cells.len(), fnv1a(&format!("{cells:?}")));
        Ok(Identity::new(first.command()).with_seed(first.seed()).with("grid", grid).with_units(self.units()))
    }

    fn describe(&self, unit: u64) -> String {
        match self.cell(unit) {
            Some((name, work, own)) => format!("{} of `{name}`", work.describe(own)),
            None => format!("unit {unit}"),
        }
    }
}
