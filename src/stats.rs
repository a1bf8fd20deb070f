//! Pure functions on samples: quantiles, intervals, paired differences, shares of variance.
//!
//! One estimator of quantiles for the whole project: linear interpolation between order statistics at 1 + p (n − 1)
//! (Hyndman and Fan 1996, type 7; what R and numpy give unless asked otherwise).

use statrs::distribution::{Binomial, ContinuousCDF, DiscreteCDF, StudentsT};

/// The quantile at `p` of a sorted sample; `None` when it is empty.
pub fn quantile(sorted: &[f64], p: f64) -> Option<f64> {
    let last = sorted.len().checked_sub(1)?;
    let place = p.clamp(0.0, 1.0) * last as f64;
    let below = place as usize;
    let above = (below + 1).min(last);
    Some(sorted[below] + (place - below as f64) * (sorted[above] - sorted[below]))
}

/// A copy, sorted.
pub fn sorted(values: &[f64]) -> Vec<f64> {
    let mut sorted = values.to_vec();
    sorted.sort_unstable_by(f64::total_cmp);
    sorted
}

/// An interval that contains the quantile at `p` with at least `confidence`, whatever the law: the number of values
/// below it is binomial, so two order statistics enclose it. `None` when the sample is too small for that.
pub fn quantile_interval(sorted: &[f64], p: f64, confidence: f64) -> Option<(f64, f64)> {
    let n = sorted.len() as u64;
    let law = Binomial::new(p, n).ok()?;
    let side = (1.0 - confidence) / 2.0;
    // x(l) lies above the quantile when fewer than l values lie below it; x(u) below it when at least u do.
    let lower = (1..=n).rev().find(|l| law.cdf(l - 1) <= side)?;
    let upper = (1..=n).find(|u| 1.0 - law.cdf(u - 1) <= side)?;
    Some((sorted[lower as usize - 1], sorted[upper as usize - 1]))
}

/// The mean; `None` when the sample is empty.
pub fn mean(values: &[f64]) -> Option<f64> {
    (!values.is_empty()).then(|| values.iter().sum::<f64>() / values.len() as f64)
}

/// The unbiased variance; `None` below two values.
pub fn variance(values: &[f64]) -> Option<f64> {
    let centre = mean(values)?;
    (values.len() > 1).then(|| values.iter().map(|v| (v - centre).powi(2)).sum::<f64>() / (values.len() - 1) as f64)
}

/// Half the width of Student's interval for the mean; `None` below two values.
pub fn mean_half_width(values: &[f64], confidence: f64) -> Option<f64> {
    let n = values.len() as f64;
    let law = StudentsT::new(0.0, 1.0, n - 1.0).ok()?;
    Some(law.inverse_cdf(1.0 - (1.0 - confidence) / 2.0) * (variance(values)? / n).sqrt())
}

/// What one thing is more than another, run by run.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Paired {
    /// Mean of the differences.
    pub mean: f64,
    /// Half the width of the interval for it; `None` below two pairs.
    pub half_width: Option<f64>,
    /// Share of the pairs in which the first is below the second.
    pub below: f64,
}

/// Paired differences `a[i] - b[i]`, to the length of the shorter; `None` without pairs.
pub fn paired(a: &[f64], b: &[f64], confidence: f64) -> Option<Paired> {
    let differences: Vec<f64> = a.iter().zip(b).map(|(a, b)| a - b).collect();
    let below = differences.iter().filter(|difference| **difference < 0.0).count() as f64;
    Some(Paired {
        mean: mean(&differences)?,
        half_width: mean_half_width(&differences, confidence),
        below: below / differences.len() as f64,
    })
}

/// An interval for a probability after `hits` of `n` (Wilson 1927), at the two-sided 95%.
pub fn share_interval(hits: u64, n: u64) -> Option<(f64, f64)> {
    const Z: f64 = 1.959_963_984_540_054;
    if n == 0 {
        return None;
    }
    let (n, p) = (n as f64, hits as f64 / n as f64);
    let centre = (p + Z * Z / (2.0 * n)) / (1.0 + Z * Z / n);
    let half = Z / (1.0 + Z * Z / n) * (p * (1.0 - p) / n + Z * Z / (4.0 * n * n)).sqrt();
    Some(((centre - half).max(0.0), (centre + half).min(1.0)))
}

/// Outputs of a Saltelli design: two independent samples of the inputs, and the first with input *i* taken from the
/// second.
#[derive(Clone, Debug, Default)]
pub struct SobolRuns {
    /// Outputs at the first sample, a row each.
    pub a: Vec<f64>,
    /// Outputs at the second.
    pub b: Vec<f64>,
    /// For each input, outputs at the first with that input from the second.
    pub swapped: Vec<Vec<f64>>,
}

/// Shares of the variance that one input has.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SobolIndex {
    /// Of this input alone.
    pub first: f64,
    /// Standard error of that.
    pub first_error: f64,
    /// Of everything in which this input has a part.
    pub total: f64,
    /// Standard error of that.
    pub total_error: f64,
}

/// Groups of the jackknife that gives sampling errors.
const JACKKNIFE_GROUPS: usize = 32;

impl SobolRuns {
    /// The indices, by input. First order: mean of f(B) (f(ABᵢ) − f(A)) over the variance (Saltelli et al. 2010), total:
    /// half the mean of (f(A) − f(ABᵢ))² over it (Jansen 1999); outputs are centred first, which takes the mean's
    /// sampling error out of the product. Errors by a jackknife over groups of rows. `None` when nothing varies.
    pub fn indices(&self) -> Option<Vec<SobolIndex>> {
        let rows = self.a.len();
        let whole = self.estimates(&|_| true)?;
        let groups = JACKKNIFE_GROUPS.min(rows);
        let parts: Vec<Vec<(f64, f64)>> =
            (0..groups).map(|group| self.estimates(&|row| row % groups != group)).collect::<Option<_>>()?;
        let error = |values: Vec<f64>| {
            let centre = values.iter().sum::<f64>() / groups as f64;
            let sum: f64 = values.iter().map(|value| (value - centre).powi(2)).sum();
            (sum * (groups as f64 - 1.0) / groups as f64).sqrt()
        };
        let index = |(input, (first, total)): (usize, &(f64, f64))| SobolIndex {
            first: *first,
            first_error: error(parts.iter().map(|part| part[input].0).collect()),
            total: *total,
            total_error: error(parts.iter().map(|part| part[input].1).collect()),
        };
        Some(whole.iter().enumerate().map(index).collect())
    }

    /// First and total shares by input over the rows that are `kept`.
    fn estimates(&self, kept: &dyn Fn(usize) -> bool) -> Option<Vec<(f64, f64)>> {
        let rows: Vec<usize> = (0..self.a.len()).filter(|row| kept(*row)).collect();
        let both: Vec<f64> = rows.iter().flat_map(|&row| [self.a[row], self.b[row]]).collect();
        let centre = mean(&both)?;
        let variance = variance(&both).filter(|variance| *variance > 0.0)?;
        let average =
            |value: &dyn Fn(usize) -> f64| rows.iter().map(|&row| value(row)).sum::<f64>() / rows.len() as f64;
        Some(
            self.swapped
                .iter()
                .map(|swapped| {
                    let first = average(&|row| (self.b[row] - centre) * (swapped[row] - self.a[row]));
                    let total = average(&|row| (self.a[row] - swapped[row]).powi(2)) / 2.0;
                    (first / variance, total / variance)
                })
                .collect(),
        )
    }
}

#[cfg(test)]
#[path = "stats_tests.rs"]
mod tests;
