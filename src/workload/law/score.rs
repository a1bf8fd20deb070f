//! Normal scores, and quantile functions tabulated over them.
//!
//! The score of a probability p is z = Φ⁻¹(p). Over scores the logarithm of a length is smooth (a straight line for a
//! lognormal), which makes a small table exact, and a Gaussian copula needs scores anyway.

use std::f64::consts::{FRAC_1_SQRT_2, SQRT_2};

use statrs::function::erf::{erfc, erfc_inv};

/// Scores outside this never come from a draw: the least draw is 2⁻⁵³, with score -8.21.
pub(crate) const LARGEST_SCORE: f64 = 8.25;

const NODES_PER_UNIT: f64 = 128.0;

/// Φ⁻¹(p) for p in (0, 1), to 1e-15: one rational function for the middle 85% (algorithm AS 241, Wichura 1988),
/// quicker than the library's, which serves the tails.
#[inline]
pub(crate) fn normal_quantile(p: f64) -> f64 {
    let q = p - 0.5;
    if q.abs() > 0.425 {
        return -SQRT_2 * erfc_inv(2.0 * p);
    }
    let r = 0.180_625 - q * q;
    let over = [
        2_509.080_928_730_122_7,
        33_430.575_583_588_13,
        67_265.770_927_008_7,
        45_921.953_931_549_87,
        13_731.693_765_509_46,
        1_971.590_950_306_551_3,
        133.141_667_891_784_38,
        3.387_132_872_796_366_5,
    ];
    let under = [
        5_226.495_278_852_854,
        28_729.085_735_721_943,
        39_307.895_800_092_71,
        21_213.794_301_586_597,
        5_394.196_021_424_751,
        687.187_007_492_057_9,
        42.313_330_701_600_91,
        1.0,
    ];
    let at_r = |sum: f64, coefficient: f64| sum * r + coefficient;
    q * over.into_iter().fold(0.0, at_r) / under.into_iter().fold(0.0, at_r)
}

/// Φ(z).
pub(crate) fn normal_cdf(z: f64) -> f64 {
    0.5 * erfc(-z * FRAC_1_SQRT_2)
}

/// A positive quantile function, tabulated as its logarithm over scores.
///
/// Monotone cubic Hermite interpolation (Fritsch and Carlson, SIAM J. Numer. Anal. 17, 1980) with fourth-order
/// slopes: relative error below 1e-6 where the law is smooth. A gap or an atom is smeared over at most 1/128 in score.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct ScoreTable {
    /// ln x and its slope per node spacing.
    nodes: Vec<(f64, f64)>,
}

impl ScoreTable {
    /// Tabulates `ln_quantile`, a function of the score that never falls.
    pub(crate) fn new(ln_quantile: impl Fn(f64) -> f64) -> Self {
        let last = (2.0 * LARGEST_SCORE * NODES_PER_UNIT) as usize;
        let mut values: Vec<f64> =
            (0..=last).map(|node| ln_quantile(node as f64 / NODES_PER_UNIT - LARGEST_SCORE)).collect();
        // Rounding in the root finder must not make the table fall.
        for node in 1..values.len() {
            values[node] = values[node].max(values[node - 1]);
        }
        let nodes = (0..=last).map(|node| (values[node], slope(&values, node))).collect();
        ScoreTable { nodes }
    }

    /// The value at score `z`.
    pub(crate) fn at(&self, z: f64) -> f64 {
        let place = ((z + LARGEST_SCORE) * NODES_PER_UNIT).clamp(0.0, (self.nodes.len() - 1) as f64 - 1e-9);
        let node = place as usize;
        let t = place - node as f64;
        let (left, left_slope) = self.nodes[node];
        let (right, right_slope) = self.nodes[node + 1];
        let rise = right - left;
        let cubic = left_slope + right_slope - 2.0 * rise;
        let square = rise - left_slope - cubic;
        (left + t * (left_slope + t * (square + t * cubic))).exp()
    }
}

fn slope(values: &[f64], node: usize) -> f64 {
    if node < 2 || node + 2 >= values.len() {
        return 0.0;
    }
    let fourth_order = (values[node - 2] - values[node + 2] + 8.0 * (values[node + 1] - values[node - 1])) / 12.0;
    let steepest = 3.0 * (values[node + 1] - values[node]).min(values[node] - values[node - 1]);
    fourth_order.clamp(0.0, steepest)
}

/// The root of `rising` between `low` and `high`, to 1e-12: regula falsi (Illinois), with a bisection every third
/// step so that jumps cannot stall it.
pub(crate) fn root(mut low: f64, mut high: f64, rising: impl Fn(f64) -> f64) -> f64 {
    let (mut at_low, mut at_high) = (rising(low), rising(high));
    if at_low >= 0.0 {
        return low;
    }
    if at_high <= 0.0 {
        return high;
    }
    for step in 0..300 {
        if high - low <= 1e-12 * (1.0 + low.abs()) {
            break;
        }
        let chord = (low * at_high - high * at_low) / (at_high - at_low);
        let middle = if step % 3 == 2 || !(chord > low && chord < high) { 0.5 * (low + high) } else { chord };
        let value = rising(middle);
        if value == 0.0 {
            return middle;
        }
        if value < 0.0 {
            (low, at_low) = (middle, value);
            at_high *= 0.5;
        } else {
            (high, at_high) = (middle, value);
            at_low *= 0.5;
        }
    }
    0.5 * (low + high)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scores_invert_the_normal_distribution() {
        for p in [1e-16, 1e-5, 0.02, 0.075, 0.0751, 0.3, 0.499, 0.5, 0.8, 0.9249, 0.999, 1.0 - 1e-12] {
            let back = normal_cdf(normal_quantile(p));
            // The library's erfc is good to 6e-11, relative.
            assert!((back / p - 1.0).abs() < 1e-10, "{p}: {back}");
        }
        // Values of Python's statistics.NormalDist, on both sides of the join at 0.075.
        for (p, z) in [
            (0.075, -1.439_531_470_938_455_7),
            (0.0751, -1.438_825_392_752_539_8),
            (0.3, -0.524_400_512_708_040_7),
            (0.499, -0.002_506_630_899_571_766_6),
            (0.975, 1.959_963_984_540_054),
        ] {
            assert!((normal_quantile(p) - z).abs() < 1e-14, "{p}: {}", normal_quantile(p));
        }
    }

    #[test]
    fn a_table_is_exact_for_a_lognormal_and_never_falls() {
        let table = ScoreTable::new(|z| 6.0 + 0.8 * z);
        for step in -800..800 {
            let z = f64::from(step) / 100.0 + 0.003;
            assert!((table.at(z) / (6.0 + 0.8 * z).exp() - 1.0).abs() < 1e-12);
        }
        let jump = ScoreTable::new(|z| if z < 0.3001 { 1.0 } else { 9.0 });
        let values: Vec<f64> = (0..10_000).map(|i| jump.at(f64::from(i) / 10_000.0)).collect();
        assert!(values.windows(2).all(|pair| pair[0] <= pair[1]));
    }
}
