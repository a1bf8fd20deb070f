//! Which unknown drives the spread of the completion time: Sobol shares, by simulation.
//!
//! A Saltelli design over the unknowns and, as one more input, everything that varies (requests, speeds of replicas).
//! Its runs are too many to be whole jobs: each is a reduced one, and how well those stand for whole ones is checked
//! against the replications of the forecast, which are the first sample of the design.

use rayon::prelude::*;

use crate::error::Result;
use crate::experiment::replicate::{Reduced, Replication};
use crate::random::Streams;
use crate::stats::{SobolIndex, SobolRuns, mean, variance};

/// What varies from request to request, as an input of its own.
pub const VARIATION: &str = "requests (variation)";

/// The second sample takes replications from here on: no forecast comes this far.
const SECOND_SAMPLE: u64 = 1 << 40;

/// One driver of the spread.
#[derive(Clone, Debug, PartialEq)]
pub struct Driver {
    /// The unknown, or [`VARIATION`].
    pub name: String,
    /// Its shares.
    pub index: SobolIndex,
}

/// The drivers, and how far the runs behind them can be trusted.
#[derive(Clone, Debug)]
pub struct Drivers {
    /// By falling share.
    pub drivers: Vec<Driver>,
    /// Rows of the design.
    pub rows: u64,
    /// Simulations run for it.
    pub runs: u64,
    /// Requests in each.
    pub requests: u64,
    /// Share of the variance of whole jobs' completion times that the reduced ones of the same replications reproduce:
    /// 1 − variance of the difference ÷ variance. `None` where there is nothing to compare.
    pub reproduced: Option<f64>,
}

/// Shares over `rows` rows; `whole` are replications of the forecast, by number.
///
/// # Errors
/// What a run leads to.
pub fn drivers(
    reduced: &Reduced,
    seed: u64,
    rows: u64,
    whole: &[&Replication],
    finished: &(dyn Fn() + Sync),
) -> Result<Option<Drivers>> {
    let unknowns = reduced.scenario.unknowns.len();
    let numbers: Vec<u64> = whole.iter().map(|row| row.unit).take(rows as usize).collect();
    // Per row: the first sample, the second, and the first with each input from the second.
    let row = |&number: &u64| -> Result<Vec<f64>> {
        let (streams, other) = (Streams::new(seed, number), Streams::new(seed, SECOND_SAMPLE + number));
        let (units, others) = (reduced.scenario.units(streams), reduced.scenario.units(other));
        let run = |units: &[f64], streams| {
            let makespan = reduced.run(units, streams);
            finished();
            makespan
        };
        let mut outputs = vec![run(&units, streams)?, run(&others, other)?];
        for place in 0..unknowns {
            let mut swapped = units.clone();
            swapped[place] = others[place];
            outputs.push(run(&swapped, streams)?);
        }
        outputs.push(run(&units, other)?);
        Ok(outputs)
    };
    let outputs: Vec<Vec<f64>> = numbers.par_iter().with_max_len(1).map(row).collect::<Result<_>>()?;
    let column = |place: usize| -> Vec<f64> { outputs.iter().map(|row| row[place]).collect() };
    let runs = SobolRuns { a: column(0), b: column(1), swapped: (2..unknowns + 3).map(column).collect() };
    let Some(indices) = runs.indices() else { return Ok(None) };
    let names = reduced.scenario.unknowns.iter().map(|unknown| unknown.name.clone());
    let mut drivers: Vec<Driver> =
        names.chain([VARIATION.to_owned()]).zip(indices).map(|(name, index)| Driver { name, index }).collect();
    drivers.sort_by(|a, b| b.index.first.total_cmp(&a.index.first));
    let full: Vec<f64> = whole.iter().take(outputs.len()).map(|row| row.makespan_s).collect();
    let difference: Vec<f64> = full.iter().zip(&runs.a).map(|(full, reduced)| full - reduced).collect();
    // Against the mean square and not the variance of the difference: a bias counts as well.
    let square = mean(&difference.iter().map(|d| d * d).collect::<Vec<_>>());
    let reproduced = variance(&full).filter(|all| *all > 0.0).zip(square).map(|(all, square)| 1.0 - square / all);
    Ok(Some(Drivers {
        drivers,
        rows: outputs.len() as u64,
        runs: (outputs.len() * (unknowns + 3)) as u64,
        requests: reduced.requests,
        reproduced,
    }))
}
