//! When requests arrive. A closed loop is no arrival process: there the client submits when a request ends.
//!
//! Gaps are drawn with mean 1 and divided by the rate, so a sweep over load replays one pattern stretched.

use std::sync::Arc;

use super::law::unit_gamma_gap;
use super::trace::Trace;
use crate::error::InputError;
use crate::model::workload::ArrivalLaw;
use crate::random::{Blocks, DRAWS_PER_BLOCK, Purpose, Streams};
use crate::units::{SimTime, Span};

type UnitGap = Arc<dyn Fn(f64) -> f64 + Send + Sync>;

/// A checked arrival process.
#[derive(Clone)]
pub struct Arrivals(Process);

#[derive(Clone)]
enum Process {
    AtOnce,
    Gaps { unit_gap: UnitGap, rate_per_s: f64 },
    Trace { trace: Arc<Trace>, time_scale: f64 },
}

impl Arrivals {
    /// Everything at time 0.
    pub fn at_once() -> Arrivals {
        Arrivals(Process::AtOnce)
    }

    /// Independent exponential gaps with mean 1/`rate_per_s`.
    ///
    /// # Errors
    ///
    /// When the rate is not between 1e-9 and 1e9 per second.
    pub fn poisson(rate_per_s: f64) -> Result<Arrivals, InputError> {
        let unit_gap: UnitGap = Arc::new(|u: f64| -(-u).ln_1p());
        Ok(Arrivals(Process::Gaps { unit_gap, rate_per_s: checked_rate(rate_per_s)? }))
    }

    /// Independent gamma gaps with mean 1/`rate_per_s` and coefficient of variation `cv`: bursts when above 1.
    ///
    /// # Errors
    ///
    /// When the rate is not between 1e-9 and 1e9 per second or `cv` not between 0.01 and 20.
    pub fn gamma(rate_per_s: f64, cv: f64) -> Result<Arrivals, InputError> {
        let rate_per_s = checked_rate(rate_per_s)?;
        Ok(Arrivals(Process::Gaps { unit_gap: Arc::new(unit_gamma_gap(cv)?), rate_per_s }))
    }

    /// The times of `trace`, times `time_scale`: 0.5 is twice the load.
    ///
    /// # Errors
    ///
    /// When the trace has no times, or the scale is not between 1e-6 and 1e6.
    pub fn trace(trace: Arc<Trace>, time_scale: f64) -> Result<Arrivals, InputError> {
        if !trace.timed {
            let found = format!("a {} trace without times", trace.format);
            return Err(InputError::new(found, "use arrivals = \"at_once\" or a law with a rate").key("law"));
        }
        if !(1e-6..=1e6).contains(&time_scale) {
            let remedy = "the factor on all times is between 1e-6 and 1e6";
            return Err(InputError::new(format!("{time_scale}"), remedy).key("time_scale"));
        }
        Ok(Arrivals(Process::Trace { trace, time_scale }))
    }

    /// The process that `description` states; `trace` is the job's trace, if it has one.
    ///
    /// # Errors
    ///
    /// What the constructors refuse, with the key below `key`; trace times without a trace.
    pub fn from_description(
        description: &ArrivalLaw,
        trace: Option<&Arc<Trace>>,
        key: &str,
    ) -> Result<Arrivals, InputError> {
        let arrivals = match (description, trace) {
            (ArrivalLaw::AtOnce, _) => Ok(Arrivals::at_once()),
            (ArrivalLaw::Poisson { rate_per_s }, _) => Arrivals::poisson(*rate_per_s),
            (ArrivalLaw::Gamma { rate_per_s, cv }, _) => Arrivals::gamma(*rate_per_s, *cv),
            (ArrivalLaw::Trace { time_scale }, Some(trace)) => Arrivals::trace(trace.clone(), *time_scale),
            (ArrivalLaw::Trace { .. }, None) => {
                Err(InputError::new("trace times without a trace", "lengths must come from a trace too").key("law"))
            }
        };
        arrivals.map_err(|error| {
            let inner = error.key.clone().unwrap_or_default();
            error.key(format!("{key}.{inner}"))
        })
    }

    /// Instants of the first, second, … arrival; the n-th belongs to the n-th request in submission order. Never
    /// falls. Endless, except for a trace, which ends with its rows.
    pub fn times(&self, streams: Streams) -> ArrivalTimes<'_> {
        ArrivalTimes {
            process: &self.0,
            blocks: streams.blocks(Purpose::Arrival),
            draws: [0.0; DRAWS_PER_BLOCK],
            next: 0,
            now: SimTime::ZERO,
        }
    }
}

fn checked_rate(rate_per_s: f64) -> Result<f64, InputError> {
    if (1e-9..=1e9).contains(&rate_per_s) {
        return Ok(rate_per_s);
    }
    let remedy = "a rate is between 1e-9 and 1e9 requests per second";
    Err(InputError::new(format!("{rate_per_s}"), remedy).key("rate_per_s"))
}

/// See [`Arrivals::times`]. Gap *k* is draw *k* mod 8 of block *k* / 8.
#[derive(Clone)]
pub struct ArrivalTimes<'a> {
    process: &'a Process,
    blocks: Blocks,
    draws: [f64; DRAWS_PER_BLOCK],
    next: u64,
    now: SimTime,
}

impl Iterator for ArrivalTimes<'_> {
    type Item = SimTime;

    fn next(&mut self) -> Option<SimTime> {
        let place = self.next;
        self.next += 1;
        match self.process {
            Process::AtOnce => Some(SimTime::ZERO),
            Process::Gaps { unit_gap, rate_per_s } => {
                let slot = (place % DRAWS_PER_BLOCK as u64) as usize;
                if slot == 0 {
                    self.draws = self.blocks.draws(place / DRAWS_PER_BLOCK as u64);
                }
                // Whole attoseconds, so that a million gaps add up without rounding. A checked rate keeps each gap in range.
                self.now = self.now + Span::from_s(unit_gap(self.draws[slot]) / rate_per_s).unwrap_or(Span::ZERO);
                Some(self.now)
            }
            Process::Trace { trace, time_scale } => {
                let row = trace.rows.get(usize::try_from(place).ok()?)?;
                if *time_scale == 1.0 {
                    return Some(SimTime(u128::from(row.arrival_ns) * 1_000_000_000));
                }
                SimTime::from_s(row.arrival_ns as f64 * 1e-9 * time_scale)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn first(arrivals: &Arrivals, count: usize) -> Vec<f64> {
        arrivals.times(Streams::new(7, 0)).take(count).map(SimTime::as_s).collect()
    }

    #[test]
    fn gaps_have_the_mean_and_variation_asked_for() {
        for (arrivals, cv) in [
            (Arrivals::poisson(4.0).unwrap(), 1.0),
            (Arrivals::gamma(4.0, 3.0).unwrap(), 3.0),
            (Arrivals::gamma(4.0, 0.2).unwrap(), 0.2),
        ] {
            let times = first(&arrivals, 400_000);
            assert!(times.windows(2).all(|pair| pair[0] <= pair[1]));
            let gaps: Vec<f64> = times.windows(2).map(|pair| pair[1] - pair[0]).collect();
            let mean = gaps.iter().sum::<f64>() / gaps.len() as f64;
            let variance = gaps.iter().map(|gap| (gap - mean).powi(2)).sum::<f64>() / gaps.len() as f64;
            assert!((mean * 4.0 - 1.0).abs() < 0.005 * (1.0 + cv), "mean {mean} at cv {cv}");
            assert!((variance.sqrt() / mean / cv - 1.0).abs() < 0.03, "cv {} for {cv}", variance.sqrt() / mean);
        }
    }

    #[test]
    fn a_sweep_over_load_replays_one_pattern_stretched() {
        let slow = first(&Arrivals::gamma(2.0, 4.0).unwrap(), 1000);
        let fast = first(&Arrivals::gamma(8.0, 4.0).unwrap(), 1000);
        assert!(slow.iter().zip(&fast).all(|(slow, fast)| (slow - 4.0 * fast).abs() < 1e-9 * slow));
    }

    #[test]
    fn first_draws_are_stable() {
        let times = first(&Arrivals::poisson(1.0).unwrap(), 3);
        let pinned = [2.723661781712312, 3.054421104206565, 6.351882677023957];
        assert!(times.iter().zip(pinned).all(|(time, pinned)| (time - pinned).abs() < 1e-12), "{times:?}");
        assert!(first(&Arrivals::at_once(), 3) == [0.0; 3]);
    }

    #[test]
    fn bad_rates_are_refused_with_their_key() {
        for (law, place) in [
            (ArrivalLaw::Poisson { rate_per_s: 0.0 }, "job.arrivals.rate_per_s: 0; a rate is"),
            (ArrivalLaw::Poisson { rate_per_s: f64::NAN }, "job.arrivals.rate_per_s: NaN; a rate is"),
            (ArrivalLaw::Gamma { rate_per_s: 1.0, cv: -1.0 }, "job.arrivals.cv: -1; the coefficient of variation is"),
            (ArrivalLaw::Trace { time_scale: 1.0 }, "job.arrivals.law: trace times without a trace; "),
        ] {
            let error = Arrivals::from_description(&law, None, "job.arrivals").err().unwrap().to_string();
            assert!(error.starts_with(place), "{error}");
        }
    }
}
