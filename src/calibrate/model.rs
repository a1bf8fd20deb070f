//! One model of a table: a setup, what is unknown about it, and how likely the table is under given values.

use std::sync::Arc;

use crate::experiment::Setup;

use super::points::Point;
use super::predict::{Prediction, Structure, predict};
use super::prior::{Beside, Laws, Prior, apply};

/// A setup with its unknowns, and the points it should explain.
#[derive(Clone)]
pub struct Model {
    /// One replica as its descriptions say.
    pub setup: Setup,
    /// The points.
    pub points: Vec<Point>,
    /// What is unknown and continuous.
    pub priors: Vec<Prior>,
    /// What is unknown and whole-numbered, with its prior probability.
    pub structures: Vec<(Structure, f64)>,
    /// Seed of the draws in every simulation.
    pub seed: u64,
    /// Laws of speculation in use.
    pub laws: Arc<Laws>,
}

/// A measured value against a predicted one.
#[derive(Clone, Copy, Debug)]
pub struct Residual {
    /// ln(measured ÷ predicted).
    pub error: f64,
    /// Scatter that is no fault of the model, standard deviation of the logarithm.
    pub scatter: f64,
    /// Factor on the noise: a mean latency tells less than a rate.
    pub looseness: f64,
}

/// Degrees of freedom of the errors: a row far out pulls little.
const FREEDOM: f64 = 5.0;

/// ln Γ(½ (f + 1)) − ln Γ(½ f) − ½ ln(π f) at f = 5.
const STUDENT_CONSTANT: f64 = -0.968_619_589_054_724_9;

/// Noise that every measurement has whatever the fit says: repeated points scatter by 0.1 to 6%, and no cost model is
/// better than this.
pub const NOISE_FLOOR: f64 = 0.02;

/// Prior of the model's own error on top of the floor: median and deviation of its logarithm.
pub const NOISE_PRIOR: (f64, f64) = (0.015, 0.8);

/// Times to first token hold the client's and the server's front end: they scatter by about a quarter.
const TTFT_SCATTER: f64 = 0.25;

/// Tables report means or medians of tpot, and rates derived from them.
const TPOT_LOOSENESS: f64 = 1.5;

impl Model {
    /// The setup at these values, and what has no place in a setup.
    pub fn setup_at(&self, scores: &[f64]) -> (Setup, Beside) {
        let mut setup = self.setup.clone();
        let beside = apply(&mut setup, &self.priors, scores, &self.laws);
        (setup, beside)
    }

    /// What would be measured at `points`; `None` when a request could never be served there.
    pub fn predict(&self, scores: &[f64], structure: Structure, points: &[Point]) -> Option<Vec<Prediction>> {
        let (setup, beside) = self.setup_at(scores);
        points.iter().map(|point| predict(&setup, point, structure, beside, self.seed).ok()).collect()
    }

    /// What would be measured at the model's own points.
    pub fn predictions(&self, scores: &[f64], structure: Structure) -> Option<Vec<Prediction>> {
        self.predict(scores, structure, &self.points)
    }
}

/// Measured against predicted, point by point: rate, then tpot and ttft where they were measured.
pub fn residuals(points: &[Point], predictions: &[Prediction]) -> Vec<Residual> {
    let mut all = Vec::with_capacity(points.len());
    for (point, prediction) in points.iter().zip(predictions) {
        let measured = &point.measured;
        let scatter = prediction.run_deviation.hypot(measured.noise);
        let mut add = |value: Option<f64>, predicted: Option<f64>, extra: f64, looseness: f64| {
            if let (Some(value), Some(predicted)) = (value, predicted)
                && predicted > 0.0
            {
                let scatter = scatter.hypot(extra);
                all.push(Residual { error: (value / predicted).ln(), scatter, looseness });
            }
        };
        add(measured.tok_per_s, Some(prediction.tok_per_s), 0.0, 1.0);
        add(measured.tpot_ms, prediction.tpot_ms, 0.0, TPOT_LOOSENESS);
        add(measured.ttft_ms, prediction.ttft_ms, TTFT_SCATTER, TPOT_LOOSENESS);
    }
    all
}

impl Residual {
    /// Standard deviation to expect, with the model's own error `noise`.
    pub fn deviation(&self, noise: f64) -> f64 {
        self.looseness * (NOISE_FLOOR * NOISE_FLOOR + noise * noise + self.scatter * self.scatter).sqrt()
    }

    /// A number whose square is −2 ln of the Student t density, up to its value at 0: robust least squares.
    pub fn pseudo(&self, noise: f64) -> f64 {
        let scaled = self.error / self.deviation(noise);
        scaled.signum() * ((FREEDOM + 1.0) * (scaled * scaled / FREEDOM).ln_1p()).sqrt()
    }

    /// Logarithm of the Student t density.
    pub fn log_likelihood(&self, noise: f64) -> f64 {
        STUDENT_CONSTANT - self.deviation(noise).ln() - 0.5 * self.pseudo(noise).powi(2)
    }
}

/// Logarithm of the likelihood of all residuals.
pub fn log_likelihood(residuals: &[Residual], noise: f64) -> f64 {
    residuals.iter().map(|residual| residual.log_likelihood(noise)).sum()
}

/// Logarithm of the standard normal density of a score.
pub fn log_normal(score: f64) -> f64 {
    -0.5 * (score * score + (2.0 * std::f64::consts::PI).ln())
}

/// The noise at a score of its prior.
pub fn noise_at(score: f64) -> f64 {
    NOISE_PRIOR.0 * (NOISE_PRIOR.1 * score).exp()
}

/// Root mean square of ln(measured ÷ predicted) of the rates.
pub fn rms_log_error(points: &[Point], predictions: &[Prediction]) -> f64 {
    let errors: Vec<f64> = points
        .iter()
        .zip(predictions)
        .filter_map(|(point, prediction)| Some((point.measured.tok_per_s? / prediction.tok_per_s).ln()))
        .collect();
    (errors.iter().map(|error| error * error).sum::<f64>() / errors.len().max(1) as f64).sqrt()
}

#[cfg(test)]
mod tests {
    use super::*;
    use statrs::function::gamma::ln_gamma;

    #[test]
    fn the_constant_is_that_of_students_density() {
        let constant =
            ln_gamma(0.5 * (FREEDOM + 1.0)) - ln_gamma(0.5 * FREEDOM) - 0.5 * (FREEDOM * std::f64::consts::PI).ln();
        assert!((constant - STUDENT_CONSTANT).abs() < 1e-12, "{constant}");
    }
}
