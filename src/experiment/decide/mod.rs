//! Options side by side: what each takes and what it leaves, on the same draws.
//!
//! A comparison is made of units ([`runs`]), each a run of one option on the draws of one replication, and of verdicts
//! ([`verdicts`]), which follow from the rows of those units alone.

mod runs;
mod solve;
mod verdicts;

use crate::error::Result;
use crate::experiment::account::Thinking;
use crate::experiment::options::Choice;
use crate::model::scenario::Scenario;
use crate::shard::{Store, Work, run_missing};
pub use runs::{Candidate, Comparison, Row};
pub use solve::{Solved, Stopped, solve};
pub use verdicts::{Verdict, recommend, verdicts};

/// Confidence of paired intervals.
const CONFIDENCE: f64 = 0.95;

/// What the user wants to keep.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Keep {
    /// Answers that ended by themselves.
    Complete,
    /// Requests, however they ended.
    Samples,
    /// Output tokens, without those of requests cut before their answer began.
    Tokens,
}

/// How options are compared.
#[derive(Clone, Copy, Debug)]
pub struct Terms {
    /// The seed.
    pub seed: u64,
    /// Replications of each option.
    pub replications: u64,
    /// When the job must be done, days.
    pub deadline_days: Option<f64>,
    /// How likely it must be done by then.
    pub confidence: f64,
    /// What cut answers are worth.
    pub thinking: Thinking,
    /// What to keep.
    pub keep: Keep,
    /// What running costs.
    pub prices: Prices,
}

/// What running costs, as far as it was given.
#[derive(Clone, Copy, Debug, Default)]
pub struct Prices {
    /// Of one GPU for an hour, in any currency.
    pub gpu_hour: Option<f64>,
    /// Of a kilowatt-hour, in the same currency.
    pub kwh: Option<f64>,
    /// Power of one GPU, with its share of the host, while it works, watts.
    pub watts: Option<f64>,
    /// The same while it has nothing to do or is down, watts; `None`: as while it works.
    pub idle_watts: Option<f64>,
}

impl Prices {
    /// Energy of so many GPU-hours of which a share is idle, kWh.
    fn kwh(&self, gpu_hours: f64, idle_share: f64) -> Option<f64> {
        let watts = self.watts?;
        let idle = self.idle_watts.unwrap_or(watts);
        Some(gpu_hours * (watts * (1.0 - idle_share) + idle * idle_share) / 1e3)
    }

    /// Cost of GPU-hours and energy; `None` when neither has a price.
    fn cost(&self, gpu_hours: f64, kwh: Option<f64>) -> Option<f64> {
        let gpus = self.gpu_hour.map(|price| price * gpu_hours);
        let energy = self.kwh.zip(kwh).map(|(price, kwh)| price * kwh);
        match (gpus, energy) {
            (None, None) => None,
            (gpus, energy) => Some(gpus.unwrap_or(0.0) + energy.unwrap_or(0.0)),
        }
    }
}

/// The options compared.
#[derive(Clone, Debug)]
pub struct Decision {
    /// One for each option, in their order.
    pub verdicts: Vec<Verdict>,
    /// Which one to take.
    pub recommended: usize,
    /// With a deadline: what is best at it.
    pub solved: Option<Solved>,
    /// Requests in each run of the job as it is, and how many it stands for.
    pub requests: (u64, u64),
}

/// Runs every option on the same draws.
///
/// # Errors
/// Bad options; jobs that cannot be done are verdicts.
pub fn decide(scenario: &Scenario, choices: &[Choice], terms: Terms, finished: &(dyn Fn() + Sync)) -> Result<Decision> {
    let comparison = Comparison::new(scenario, choices, terms.seed, terms.thinking)?;
    let mut store = Store::new(comparison.identity()?);
    let units = 0..comparison.units(terms.replications);
    run_missing(&comparison, units.clone(), &mut store, finished)?;
    decision(&comparison, &store.numbered(units), scenario, terms)
}

/// What the rows of a comparison come to; only what is solved at the deadline takes further runs.
///
/// # Errors
/// What those lead to.
pub fn decision(comparison: &Comparison, rows: &[Row], scenario: &Scenario, terms: Terms) -> Result<Decision> {
    let verdicts = verdicts(&comparison.candidates, rows, terms);
    let recommended = recommend(&verdicts, terms);
    let solved = match terms.deadline_days {
        Some(deadline) => solve(comparison, rows, scenario, deadline, terms)?,
        None => None,
    };
    Ok(Decision { verdicts, recommended, solved, requests: comparison.requests() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn energy_and_cost_are_sums_that_a_hand_can_check() {
        let prices = Prices { gpu_hour: Some(2.0), kwh: Some(0.25), watts: Some(600.0), idle_watts: Some(100.0) };
        // 10 hours: 8 at 600 W and 2 at 100 W.
        assert_eq!(prices.kwh(10.0, 0.2), Some(5.0));
        assert_eq!(prices.cost(10.0, Some(5.0)), Some(21.25));
        let only_watts = Prices { watts: Some(600.0), ..Prices::default() };
        assert_eq!(only_watts.kwh(10.0, 0.2), Some(6.0));
        assert_eq!(only_watts.cost(10.0, Some(6.0)), None);
        assert_eq!(Prices::default().kwh(10.0, 0.2), None);
    }
}
