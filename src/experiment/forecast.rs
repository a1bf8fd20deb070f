//! How long the job takes, as a distribution: replications over what is uncertain and what varies.

use std::ops::Range;

use crate::error::{InputError, Result};
use crate::experiment::replicate::{Replication, check_unknowns, replicate};
use crate::model::scenario::Scenario;
use crate::shard::{Identity, Store, Work, run_missing};
use crate::stats::{mean, quantile, quantile_interval, share_interval, sorted};
use crate::units::SECONDS_PER_DAY;

/// Replications between two looks at the precision. The numbers at which it is looked at do not depend on threads or
/// on what was there before, so neither does where a forecast stops.
pub const CHECKED_EVERY: u64 = 64;

/// Confidence of intervals of quantiles.
pub const CONFIDENCE: f64 = 0.95;

/// Quantiles that the precision is asked of.
const PRECISE: [f64; 3] = [0.05, 0.5, 0.95];

/// Which replications to run.
#[derive(Clone, Debug, PartialEq)]
pub struct Extent {
    /// Their numbers.
    pub range: Range<u64>,
    /// Stop early once intervals of the 5%, 50% and 95% quantiles reach no farther than this share of the quantile.
    pub precision: Option<f64>,
}

/// Replications of one scenario and seed, each a unit of its number.
#[derive(Clone, Debug)]
pub struct Replications<'a> {
    scenario: &'a Scenario,
    seed: u64,
}

impl<'a> Replications<'a> {
    /// The replications of a scenario.
    ///
    /// # Errors
    /// When a law of it can be drawn so that nothing can be set up.
    pub fn new(scenario: &'a Scenario, seed: u64) -> Result<Replications<'a>> {
        check_unknowns(scenario)?;
        Ok(Replications { scenario, seed })
    }
}

impl Work for Replications<'_> {
    type Row = Replication;

    fn run(&self, unit: u64) -> Result<Replication> {
        replicate(self.scenario, self.seed, unit)
    }

    fn identity(&self) -> Result<Identity> {
        let unknowns: Vec<&str> = self.scenario.unknowns.iter().map(|unknown| unknown.name.as_str()).collect();
        Ok(identity("forecast", self.scenario, self.seed)?.with("unknowns", unknowns.join(", ")))
    }

    fn describe(&self, unit: u64) -> String {
        format!("replication {unit}")
    }
}

/// What results of a command on a scenario belong to.
///
/// # Errors
/// When a file that the scenario names cannot be read.
pub fn identity(command: &str, scenario: &Scenario, seed: u64) -> Result<Identity> {
    let fingerprint = format!("{:016x}", scenario.fingerprint());
    let files = format!("{:08x}", scenario.files_checksum()?);
    Ok(Identity::new(command)
        .with("scenario", &scenario.name)
        .with("fingerprint", fingerprint)
        .with("files", files)
        .with_seed(seed))
}

/// Runs what is missing of `extent` on all threads and finishes the file; `finished` hears of each replication that ends.
/// Returns the numbers of those that count.
///
/// # Errors
/// What a replication leads to, the lowest number first, and results that cannot be written.
pub fn run(
    replications: &Replications<'_>,
    extent: &Extent,
    store: &mut Store<Replication>,
    finished: &(dyn Fn() + Sync),
) -> Result<Range<u64>> {
    let Range { start, end } = extent.range;
    let mut done = start;
    while done < end {
        // Without a precision everything is one batch: no thread waits for another.
        let next = extent.precision.map_or(end, |_| end.min(done + CHECKED_EVERY));
        run_missing(replications, done..next, store, finished)?;
        done = next;
        if let Some(precision) = extent.precision
            && Forecast::new(&store.range(start..done), None).is_some_and(|forecast| forecast.is_within(precision))
        {
            break;
        }
    }
    store.finish()?;
    Ok(start..done)
}

/// A quantile of the completion time, days.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Quantile {
    /// Which.
    pub p: f64,
    /// Its estimate.
    pub days: f64,
    /// An interval that holds it with [`CONFIDENCE`], whatever the law; `None` with too few replications.
    pub interval: Option<(f64, f64)>,
}

/// The distribution of the completion time.
#[derive(Clone, Debug)]
pub struct Forecast {
    /// Completion times, days, sorted.
    pub days: Vec<f64>,
    /// Mean, days.
    pub mean_days: f64,
    /// 5%, 25%, 50%, 75% and 95%.
    pub quantiles: Vec<Quantile>,
    /// Share of replications that end in time, with a 95% interval; `None` without a deadline.
    pub in_time: Option<(f64, (f64, f64))>,
    /// Share of the requests that were cut, on average.
    pub truncated_share: f64,
    /// Output tokens, on average.
    pub output_tokens: f64,
}

impl Forecast {
    /// From finished replications; `None` without any.
    pub fn new(rows: &[&Replication], deadline_days: Option<f64>) -> Option<Forecast> {
        let days = sorted(&rows.iter().map(|row| row.days()).collect::<Vec<_>>());
        let average =
            |value: &dyn Fn(&Replication) -> f64| mean(&rows.iter().map(|row| value(row)).collect::<Vec<_>>());
        let quantiles = [0.05, 0.25, 0.5, 0.75, 0.95]
            .into_iter()
            .map(|p| Some(Quantile { p, days: quantile(&days, p)?, interval: quantile_interval(&days, p, CONFIDENCE) }))
            .collect::<Option<_>>()?;
        let in_time = deadline_days.and_then(|deadline| {
            let hits = days.partition_point(|day| *day <= deadline) as u64;
            let n = days.len() as u64;
            Some((hits as f64 / n as f64, share_interval(hits, n)?))
        });
        Some(Forecast {
            mean_days: mean(&days)?,
            quantiles,
            in_time,
            truncated_share: average(&|row| row.truncated as f64 / row.completed.max(1) as f64)?,
            output_tokens: average(&|row| row.output_tokens as f64)?,
            days,
        })
    }

    /// The quantile at `p`, days.
    pub fn quantile(&self, p: f64) -> f64 {
        quantile(&self.days, p).unwrap_or(self.mean_days)
    }

    /// Whether the intervals of the outer quantiles and the median are narrow enough.
    fn is_within(&self, precision: f64) -> bool {
        PRECISE.iter().all(|&p| {
            let found = self.quantiles.iter().find(|quantile| quantile.p == p);
            found
                .and_then(|quantile| Some((quantile.days, quantile.interval?)))
                .is_some_and(|(days, (low, high))| (high - days).max(days - low) <= precision * days)
        })
    }
}

/// Reads a time such as `10d`, `36h`, `90min` or `30s`; returns days.
///
/// # Errors
/// When it is not a number above 0 with one of these units.
pub fn parse_days(text: &str) -> Result<f64> {
    let text = text.trim();
    let units = [("days", 86_400.0), ("d", 86_400.0), ("h", 3600.0), ("min", 60.0), ("s", 1.0)];
    let days = units.iter().find_map(|(unit, seconds)| {
        let number: f64 = text.strip_suffix(unit)?.trim().parse().ok()?;
        (number.is_finite() && number > 0.0).then_some(number * seconds / SECONDS_PER_DAY)
    });
    days.ok_or_else(|| {
        InputError::new(format!("found `{text}`"), "give a time above 0, as in 10d, 36h, 90min or 30s").into()
    })
}
