//! The prediction of one measurement that a fit has not seen, with its spread.

use nalgebra::{DMatrix, DVector};
use serde::{Deserialize, Serialize};

use super::super::discrepancy::Discrepancy;
use super::super::mode::Mode;
use super::super::model::{Model, NOISE_FLOOR};
use super::super::points::Point;
use super::super::posterior::noise_variance;
use super::super::predict::{Prediction, Structure};

/// A prediction of the logarithm of a value.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Forecast {
    /// Median.
    pub value: f64,
    /// Standard deviation of the logarithm: parameters, structures, model error and scatter of a run.
    pub deviation: f64,
}

/// Quantiles of Student's law with 5 degrees of freedom, that of the fit's errors: 75 and 95%.
const HALF: f64 = 0.727;
const NINE_TENTHS: f64 = 2.015;

/// Step of the finite differences, in scores.
const STEP: f64 = 0.1;

impl Forecast {
    /// True when a measured value lies in the 50% interval.
    pub fn holds_half(&self, measured: f64) -> bool {
        (measured / self.value).ln().abs() <= HALF * self.deviation
    }

    /// True when it lies in the 90% interval.
    pub fn holds_nine_tenths(&self, measured: f64) -> bool {
        (measured / self.value).ln().abs() <= NINE_TENTHS * self.deviation
    }
}

/// What `target` gives at `point` with what was fitted to `source`: shared parameters keep their values, the target's own
/// stay at their priors. `own_structure` keeps the running cap of the target's engine in place of the fitted one.
pub fn forecast(
    modes: &[Mode],
    source: &Model,
    target: &Model,
    point: &Point,
    own_structure: Option<Structure>,
    value: &dyn Fn(&Prediction) -> f64,
) -> Option<Forecast> {
    let best = modes.first()?.log_evidence;
    let mut parts: Vec<(f64, f64, f64)> = Vec::new();
    for mode in modes {
        let weight = (mode.log_evidence - best).exp();
        if weight < 0.01 && !parts.is_empty() {
            continue;
        }
        let structure = own_structure.unwrap_or(mode.structure);
        let (scores, covariance) = carry_over(mode, source, target);
        let noise = noise_variance(source, mode)?;
        // What is wrong with the model here is so in the same configuration only.
        let known = own_structure.is_none().then(|| Discrepancy::new(&source.points, mode, noise)).flatten();
        let (error, unexplained) = known.map_or((0.0, noise), |known| known.at(point));
        let at = |scores: &[f64]| -> Option<(f64, f64)> {
            let found = target.predict(scores, structure, std::slice::from_ref(point))?;
            let rate = found[0].tok_per_s * error.exp();
            Some((value(&Prediction { tok_per_s: rate, ..found[0] }).ln(), found[0].run_deviation))
        };
        let Some((centre, scatter)) = at(&scores) else { continue };
        let slopes: Vec<f64> = (0..scores.len())
            .map(|index| {
                let mut moved = scores.clone();
                moved[index] += STEP;
                at(&moved).map_or(0.0, |(there, _)| (there - centre) / STEP)
            })
            .collect();
        let slopes = DVector::from_vec(slopes);
        let parameters = (slopes.transpose() * &covariance * &slopes)[(0, 0)].max(0.0);
        let own = parameters + unexplained + NOISE_FLOOR * NOISE_FLOOR + scatter * scatter;
        parts.push((weight, centre, own));
    }
    let total: f64 = parts.iter().map(|(weight, ..)| weight).sum();
    let mean = parts.iter().map(|(weight, centre, _)| weight * centre).sum::<f64>() / total;
    let variance =
        parts.iter().map(|(weight, centre, own)| weight * (own + (centre - mean).powi(2))).sum::<f64>() / total;
    (!parts.is_empty()).then(|| Forecast { value: mean.exp(), deviation: variance.sqrt() })
}

/// Scores and covariance of a mode in the priors of another model.
fn carry_over(mode: &Mode, source: &Model, target: &Model) -> (Vec<f64>, DMatrix<f64>) {
    let count = target.priors.len();
    let place = |index: usize| {
        let parameter = target.priors[index].parameter;
        source.priors.iter().position(|prior| prior.parameter == parameter)
    };
    let places: Vec<Option<usize>> = (0..count).map(place).collect();
    let scores = (0..count)
        .map(|index| match places[index] {
            Some(from) => target.priors[index].score(source.priors[from].value(mode.scores[from])),
            None => 0.0,
        })
        .collect();
    let ratio = |index: usize, from: usize| source.priors[from].deviation / target.priors[index].deviation;
    let covariance = DMatrix::from_fn(count, count, |a, b| match (places[a], places[b]) {
        (Some(from_a), Some(from_b)) => mode.covariance[(from_a, from_b)] * ratio(a, from_a) * ratio(b, from_b),
        _ if a == b => 1.0,
        _ => 0.0,
    });
    (scores, covariance)
}
