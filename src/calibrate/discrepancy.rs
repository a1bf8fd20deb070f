//! What the model gets wrong in one configuration, carried from measured points to their neighbours.
//!
//! A cost model is wrong by a few percent in a way that is alike for points that are alike: a kernel that is slower than
//! it should be at 16 requests is so at 12 too. This error is a Gaussian process over the logarithms of concurrency and
//! lengths (Kennedy and O'Hagan, "Bayesian calibration of computer models", J. R. Stat. Soc. B 63, 2001), of the size
//! that the fit found as the model's own noise; the residuals of measured points say what it is near them.

use nalgebra::{Cholesky, DMatrix, DVector, Dyn};

use super::mode::Mode;
use super::model::NOISE_FLOOR;
use super::points::Point;

/// Distance in the logarithm of the concurrency over which the correlation falls to 1/e.
const CONCURRENCY_LENGTH: f64 = 1.5;

/// The same for the logarithms of prompt and output.
const LENGTHS_LENGTH: f64 = 1.0;

/// The model's own error, known at some points.
pub(super) struct Discrepancy {
    points: Vec<Point>,
    variance: f64,
    cholesky: Cholesky<f64, Dyn>,
    weights: DVector<f64>,
}

impl Discrepancy {
    /// From the residuals of a mode at the points that it was fitted to, and the variance of the error before they are
    /// known; `None` where none has a rate.
    pub(super) fn new(points: &[Point], mode: &Mode, variance: f64) -> Option<Discrepancy> {
        let known = points.iter().zip(&mode.predictions).filter_map(|(point, found)| {
            let error = (point.measured.tok_per_s? / found.tok_per_s).ln();
            let scatter = found.run_deviation.hypot(point.measured.noise).hypot(NOISE_FLOOR);
            Some((point.clone(), error, scatter * scatter))
        });
        Discrepancy::given(known.collect(), variance)
    }

    /// From points, their errors, and the variance of the scatter of each.
    fn given(known: Vec<(Point, f64, f64)>, variance: f64) -> Option<Discrepancy> {
        let covariance = DMatrix::from_fn(known.len(), known.len(), |a, b| {
            let scatter = if a == b { known[a].2 } else { 0.0 };
            variance * correlation(&known[a].0, &known[b].0) + scatter
        });
        let cholesky = covariance.cholesky()?;
        let errors = DVector::from_iterator(known.len(), known.iter().map(|(_, error, _)| *error));
        let weights = cholesky.solve(&errors);
        Some(Discrepancy { points: known.into_iter().map(|(point, ..)| point).collect(), variance, cholesky, weights })
    }

    /// Mean and variance of ln(true rate ÷ modelled rate) at a point.
    pub(super) fn at(&self, point: &Point) -> (f64, f64) {
        let to = DVector::from_iterator(
            self.points.len(),
            self.points.iter().map(|known| self.variance * correlation(known, point)),
        );
        let left = self.variance - (to.transpose() * self.cholesky.solve(&to))[(0, 0)];
        (self.weights.dot(&to), left.max(0.0))
    }
}

/// 1 for the same point, falling with the distance; 0 between a request that ends and a window of decoding.
fn correlation(a: &Point, b: &Point) -> f64 {
    let ratio = |a: u32, b: u32| (f64::from(a.max(1)) / f64::from(b.max(1))).ln().abs();
    let output = match (a.output_tokens, b.output_tokens) {
        (Some(a), Some(b)) => ratio(a, b),
        (None, None) => 0.0,
        _ => return 0.0,
    };
    let lengths = ratio(a.prompt_tokens, b.prompt_tokens) + output;
    (-ratio(a.concurrency, b.concurrency) / CONCURRENCY_LENGTH - lengths / LENGTHS_LENGTH).exp()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::calibrate::points::Measured;

    fn point(concurrency: u32, output_tokens: u32) -> Point {
        Point {
            line: 0,
            in_flight: concurrency,
            concurrency,
            requests: None,
            prompt_tokens: 128,
            output_tokens: Some(output_tokens),
            measured: Measured::default(),
            replicas: 1,
        }
    }

    fn known(points: &[(u32, f64)], variance: f64, scatter: f64) -> Discrepancy {
        let all: Vec<(Point, f64, f64)> =
            points.iter().map(|(c, error)| (point(*c, 512), *error, scatter * scatter)).collect();
        Discrepancy::given(all, variance).unwrap()
    }

    /// One point: the closed form is error · v ρ ÷ (v + s²), and v − v² ρ² ÷ (v + s²) is left.
    #[test]
    fn one_known_point_pulls_as_much_as_its_noise_allows() {
        let (variance, scatter) = (0.04f64.powi(2), 0.02);
        let one = known(&[(8, 0.05)], variance, scatter);
        for concurrency in [8, 16, 2] {
            let rho = (-(f64::from(concurrency) / 8.0).ln().abs() / CONCURRENCY_LENGTH).exp();
            let share = variance / (variance + scatter * scatter);
            let (mean, left) = one.at(&point(concurrency, 512));
            assert!((mean - 0.05 * rho * share).abs() < 1e-12, "{concurrency}: {mean}");
            assert!((left - variance * (1.0 - rho * rho * share)).abs() < 1e-12, "{concurrency}: {left}");
        }
    }

    /// The exponential kernel is that of a Markov process: beyond a point known exactly, farther ones say nothing.
    #[test]
    fn the_nearest_known_points_screen_the_others() {
        let near = known(&[(8, 0.05), (32, -0.02)], 1e-2, 1e-9);
        let all = known(&[(1, 0.3), (8, 0.05), (32, -0.02), (64, -0.4)], 1e-2, 1e-9);
        let (a, b) = (near.at(&point(16, 512)), all.at(&point(16, 512)));
        assert!((a.0 - b.0).abs() < 1e-9 && (a.1 - b.1).abs() < 1e-9, "{a:?} {b:?}");
        // Half-way in the logarithm both count the same, and less than their mean.
        assert!(a.0 > 0.0 && a.0 < 0.015, "{a:?}");
    }

    #[test]
    fn other_lengths_and_windows_learn_little_or_nothing() {
        let one = known(&[(8, 0.05)], 1e-2, 0.0);
        let window = Point { output_tokens: None, ..point(8, 1) };
        assert_eq!(one.at(&window), (0.0, 1e-2));
        let (mean, left) = one.at(&point(8, 512 * 20));
        assert!((mean - 0.05 / 20.0).abs() < 1e-12 && left > 0.99e-2, "{mean} {left}");
    }
}
