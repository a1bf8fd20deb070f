//! Laws of what was seen of a running job: weighted lengths, and a named law beyond the longest of them.

use std::path::Path;
use std::sync::Arc;

use super::shape::Shape;
use super::{Checked, Law};
use crate::error::{InputError, Result};
use crate::model::workload::LengthLaw;
use crate::workload::finished::Survival;

/// Share of lengths beyond the longest below which they are rounding, not mass.
const NO_MASS: f64 = 1e-9;

/// Values with weights.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Weighted {
    /// Rising, tokens.
    values: Vec<f64>,
    /// Share at or below each value; the last is 1.
    cumulative: Vec<f64>,
}

impl Weighted {
    pub(super) fn quantile(&self, p: f64) -> f64 {
        let place = self.cumulative.partition_point(|share| *share < p);
        self.values[place.min(self.values.len() - 1)]
    }

    pub(super) fn survival(&self, x: f64) -> f64 {
        match self.values.partition_point(|value| *value <= x) {
            0 => 1.0,
            place => 1.0 - self.cumulative[place - 1],
        }
    }

    pub(super) fn mean_capped(&self, cap: f64) -> f64 {
        let mut before = 0.0;
        let parts = self.values.iter().zip(&self.cumulative).map(|(value, share)| {
            let mass = share - before;
            before = *share;
            mass * value.min(cap)
        });
        parts.sum()
    }
}

/// A law given that the length is above `from`.
#[derive(Clone, Debug)]
pub(crate) struct Above {
    law: Law,
    from: f64,
    /// Share of the law at or below `from`.
    below: f64,
}

impl PartialEq for Above {
    fn eq(&self, other: &Above) -> bool {
        (self.from, self.below) == (other.from, other.below) && self.law.parts == other.law.parts
    }
}

impl Above {
    pub(super) fn quantile(&self, p: f64) -> f64 {
        self.law.quantile(self.below + p * (1.0 - self.below)).max(self.from)
    }

    pub(super) fn survival(&self, x: f64) -> f64 {
        if x < self.from { 1.0 } else { (self.law.survival(x) / (1.0 - self.below)).min(1.0) }
    }

    pub(super) fn mean_capped(&self, cap: f64) -> f64 {
        if cap <= self.from {
            return cap;
        }
        self.from + (self.law.mean_capped(cap) - self.law.mean_capped(self.from)) / (1.0 - self.below)
    }
}

impl Law {
    /// Values with weights in any unit: only values that were seen are drawn.
    ///
    /// # Errors
    ///
    /// When there are none, a value is not between 1 and 1e9, or the weights are no shares.
    pub fn weighted(values: &[f64], weights: &[f64]) -> Checked<Law> {
        if values.is_empty() || values.len() != weights.len() {
            return Err(InputError::new("no values", "give at least one length, each with a weight").key("values"));
        }
        for value in values {
            super::length("values", *value)?;
        }
        let cumulative = super::cumulative_shares(weights, |place| format!("weights[{place}]"))?;
        Ok(Law::single(Shape::Weighted(Arc::new(Weighted { values: values.to_vec(), cumulative }))))
    }

    /// The law of `survival`, continued by `beyond` above the longest length.
    ///
    /// # Errors
    ///
    /// When some lengths are beyond the longest that was seen, and neither a law for them is given nor are they cut
    /// there by `truncate`, or when that law has nothing there.
    pub fn of_survival(survival: &Survival, beyond: Option<Law>, truncate: Option<f64>) -> Checked<Law> {
        let (values, masses): (Vec<f64>, Vec<f64>) = survival.steps().iter().copied().unzip();
        let longest = survival.longest();
        if survival.beyond() < NO_MASS {
            return Law::weighted(&values, &masses);
        }
        let cut_there = truncate.is_some_and(|truncate| truncate <= longest);
        let tail = match beyond {
            Some(law) => {
                let below = law.cdf(longest);
                if below >= 1.0 - NO_MASS {
                    let found = format!("a law without lengths above {longest}, the longest that was seen");
                    return Err(InputError::new(found, "give a law with a longer tail").key("beyond"));
                }
                Law::single(Shape::Above(Arc::new(Above { law, from: longest, below })))
            }
            None if cut_there => Law::constant(longest)?,
            None => {
                let share = 100.0 * survival.beyond();
                let found = format!("{share:.1}% of the lengths are above {longest}, the longest that was seen");
                let remedy = format!(
                    "name a law for them, as in beyond = \"central\", or plan for a cap of at most that: \
                     truncate_tokens = {longest}"
                );
                return Err(InputError::new(found, remedy).key("beyond"));
            }
        };
        if values.is_empty() {
            return Ok(tail);
        }
        Law::mixture(vec![(1.0 - survival.beyond(), Law::weighted(&values, &masses)?), (survival.beyond(), tail)])
    }

    /// The law of a finished part: errors of reading outside, errors of the law inside.
    pub(super) fn of_finished(
        file: &Path,
        running: Option<&Path>,
        beyond: Option<&LengthLaw>,
        truncate: Option<f64>,
        key: &str,
    ) -> Result<Checked<Law>> {
        let survival = Survival::read(file, running)?;
        let beyond = beyond.map(|law| Law::from_description(law, &format!("{key}.beyond"))).transpose()?;
        Ok(Law::of_survival(&survival, beyond, truncate))
    }
}
