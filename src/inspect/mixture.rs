//! One or two lognormals by expectation and maximisation, with lengths that are only lower bounds.

use super::fits::Values;
use crate::workload::law::normal_cdf;

/// One lognormal of a mixture.
#[derive(Clone, Copy, Debug)]
pub(super) struct Normal {
    pub share: f64,
    /// Mean of the logarithm.
    pub mu: f64,
    /// Standard deviation of the logarithm.
    pub sigma: f64,
}

/// The least spread, which keeps a part from falling onto one value.
const LEAST_SIGMA: f64 = 0.03;

/// Steps of a climb at most.
const STEPS: usize = 500;

impl Normal {
    /// Log density of a length, its share left out.
    pub fn ln_density(&self, x: f64) -> f64 {
        let z = (x.ln() - self.mu) / self.sigma;
        -x.ln() - self.sigma.ln() - 0.5 * (2.0 * std::f64::consts::PI).ln() - 0.5 * z * z
    }

    /// Chance of a logarithm above `y`, and the mean and mean square of those that are.
    fn above(&self, y: f64) -> (f64, f64, f64) {
        let z = (y - self.mu) / self.sigma;
        let chance = normal_cdf(-z);
        let density = (-0.5 * z * z).exp() / (2.0 * std::f64::consts::PI).sqrt();
        // Far out the ratio of two vanishing numbers is z + 1/z.
        let hazard = if chance > 1e-280 { density / chance } else { z + 1.0 / z };
        let mean = self.mu + self.sigma * hazard;
        let square =
            self.mu * self.mu + 2.0 * self.mu * self.sigma * hazard + self.sigma * self.sigma * (1.0 + z * hazard);
        (chance, mean, square)
    }
}

/// Two lognormals from a few starts, at quantiles of the estimate `steps`; the shorter first.
pub(super) fn two_lognormals(whole: &Values, bounds: &Values, steps: &Values) -> Option<[Normal; 2]> {
    let quantile = |p: f64| {
        let mut below = 0.0;
        let found = steps.iter().find(|(_, share)| {
            below += share;
            below >= p
        });
        found.or(steps.last()).map_or(0.0, |(x, _)| x.ln())
    };
    let starts = [
        (0.25, 0.75, 0.5, 0.5),
        (0.1, 0.6, 0.8, 0.5),
        (0.4, 0.95, 0.5, 0.5),
        (0.4, 0.85, 0.8, 0.1),
        (0.2, 0.5, 0.2, 0.9),
    ];
    let runs = starts.map(|(a, b, sigma_a, sigma_b)| {
        let start = [(a, sigma_a), (b, sigma_b)].map(|(p, sigma)| Normal { share: 0.5, mu: quantile(p), sigma });
        climb(whole, bounds, start)
    });
    let best = runs.into_iter().max_by(|a, b| a.1.total_cmp(&b.1))?;
    let [a, b] = best.0;
    Some(if a.mu <= b.mu { [a, b] } else { [b, a] })
}

/// The parts that a climb of the likelihood from `start` ends at, and the likelihood there up to a constant.
pub(super) fn climb<const K: usize>(whole: &Values, bounds: &Values, start: [Normal; K]) -> ([Normal; K], f64) {
    let logs = |values: &Values| -> Values { values.iter().map(|(x, weight)| (x.ln(), *weight)).collect() };
    let (whole, bounds) = (logs(whole), logs(bounds));
    let n: f64 = whole.iter().chain(&bounds).map(|(_, weight)| weight).sum();
    let mut parts = start;
    let mut before = f64::NEG_INFINITY;
    for _ in 0..STEPS {
        let mut sums = [[0.0f64; 3]; K];
        let mut likelihood = 0.0;
        let mut take = |weight: f64, seen: [(f64, f64, f64); K]| {
            let total = seen.iter().map(|(chance, ..)| chance).sum::<f64>().max(f64::MIN_POSITIVE);
            likelihood += weight * total.ln();
            for (sum, (chance, mean, square)) in sums.iter_mut().zip(seen) {
                let part = weight * chance / total;
                sum[0] += part;
                sum[1] += part * mean;
                sum[2] += part * square;
            }
        };
        for (y, weight) in &whole {
            let seen = parts.map(|part| {
                let z = (y - part.mu) / part.sigma;
                (part.share / (part.sigma * (2.0 * std::f64::consts::PI).sqrt()) * (-0.5 * z * z).exp(), *y, y * y)
            });
            take(*weight, seen);
        }
        for (y, weight) in &bounds {
            let seen = parts.map(|part| {
                let (chance, mean, square) = part.above(*y);
                (part.share * chance, mean, square)
            });
            take(*weight, seen);
        }
        for (part, [weight, first, second]) in parts.iter_mut().zip(sums) {
            if weight > 1e-9 * n {
                let mu = first / weight;
                let sigma = (second / weight - mu * mu).max(0.0).sqrt().max(LEAST_SIGMA);
                *part = Normal { share: weight / n, mu, sigma };
            }
        }
        if likelihood - before < 1e-9 * n {
            return (parts, likelihood);
        }
        before = likelihood;
    }
    (parts, before)
}
