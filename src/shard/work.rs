//! Running units.

use std::sync::Mutex;

use rayon::prelude::*;

use crate::error::{Error, InputError, Result};

use super::identity::Identity;
use super::row::Row;
use super::store::Store;

/// Work of independent units.
pub trait Work: Sync {
    /// What a unit comes to.
    type Row: Row;

    /// Runs a unit: the same row wherever, whenever and beside whatever it runs.
    ///
    /// # Errors
    /// What running it leads to.
    fn run(&self, unit: u64) -> Result<Self::Row>;

    /// What the rows belong to.
    ///
    /// # Errors
    /// When a file that the work depends on cannot be read.
    fn identity(&self) -> Result<Identity>;

    /// What the unit is, for an error: "replication 12".
    fn describe(&self, unit: u64) -> String;
}

/// Runs those of `units` that are not there yet on all threads; `finished` hears of each that ends.
///
/// # Errors
/// What a unit leads to, the lowest number first, and results that cannot be written.
pub fn run_missing<W: Work>(
    work: &W,
    units: std::ops::Range<u64>,
    store: &mut Store<W::Row>,
    finished: &(dyn Fn() + Sync),
) -> Result<()> {
    let missing = store.missing(units);
    let shared = Mutex::new(store);
    let outcomes: Vec<Result<()>> = missing
        .par_iter()
        .with_max_len(1)
        .map(|&unit| {
            let row = work.run(unit).map_err(|error| placed(error, || work.describe(unit)))?;
            // A thread that panicked has failed the run already.
            shared.lock().unwrap_or_else(std::sync::PoisonError::into_inner).add(row)?;
            finished();
            Ok(())
        })
        .collect();
    outcomes.into_iter().collect()
}

/// Says in which unit something went wrong.
fn placed(error: Error, unit: impl Fn() -> String) -> Error {
    match error {
        Error::Input(input) => {
            let found = format!("{} (in {})", input.found, unit());
            Error::Input(InputError { found, ..input })
        }
        Error::Impossible(reason) => Error::Impossible(format!("in {}, {reason}", unit())),
        other => other,
    }
}
