//! The most probable values for each structure, and the shape of the posterior around them.

use levenberg_marquardt::{LeastSquaresProblem, LevenbergMarquardt};
use nalgebra::storage::Owned;
use nalgebra::{DMatrix, DVector, Dyn};
use rayon::prelude::*;

use super::model::{Model, Residual, log_likelihood, log_normal, noise_at, residuals};
use super::points::Point;
use super::predict::{Prediction, Structure};

/// The most probable values under one structure.
#[derive(Clone, Debug)]
pub struct Mode {
    /// The structure.
    pub structure: Structure,
    /// Its prior probability.
    pub prior: f64,
    /// Scores of the parameters.
    pub scores: Vec<f64>,
    /// Score of the noise.
    pub noise_score: f64,
    /// Covariance of the scores around them.
    pub covariance: DMatrix<f64>,
    /// Logarithm of the evidence by Laplace's approximation, prior probability of the structure included.
    pub log_evidence: f64,
    /// Predictions at the points.
    pub predictions: Vec<Prediction>,
}

/// Step of the finite differences, in scores: wide enough to average over the steps of single requests.
const STEP: f64 = 0.05;

/// Step of the differences that measure how sharp the maximum is: a simulation moves in small jumps, whose slopes over a
/// short step would make the posterior look far narrower than it is.
const WIDE_STEP: f64 = 0.4;

/// Structures whose evidence is below the best by this factor (e⁸) are dropped.
const NEGLIGIBLE: f64 = 8.0;

/// Structures that are tried first, by how well their shape fits before anything is fitted.
const FIRST_TRIED: usize = 5;

struct Fit<'a> {
    model: &'a Model,
    structure: Structure,
    noise: f64,
    /// Scatter of each residual, held while the parameters move.
    scatter: Vec<f64>,
    scores: DVector<f64>,
    value: Option<DVector<f64>>,
}

impl Fit<'_> {
    fn value_at(&self, scores: &[f64]) -> Option<DVector<f64>> {
        let predictions = self.model.predictions(scores, self.structure)?;
        let found = residuals(&self.model.points, &predictions);
        if found.len() != self.scatter.len() {
            return None;
        }
        let data = found
            .iter()
            .zip(&self.scatter)
            .map(|(residual, &scatter)| Residual { scatter, ..*residual }.pseudo(self.noise));
        let all: Vec<f64> = data.chain(scores.iter().copied()).collect();
        all.iter().all(|value| value.is_finite()).then(|| DVector::from_vec(all))
    }

    /// Slopes over a wide step to both sides; over one of them at the edge of what can be served.
    fn wide_jacobian(&self) -> Option<DMatrix<f64>> {
        let here = self.value.as_ref()?;
        let column = |index: usize| -> Option<DVector<f64>> {
            let moved = |step: f64| {
                let mut moved = self.scores.clone();
                moved[index] += step;
                self.value_at(moved.as_slice())
            };
            match (moved(WIDE_STEP), moved(-WIDE_STEP)) {
                (Some(above), Some(below)) => Some((above - below) / (2.0 * WIDE_STEP)),
                (Some(above), None) => Some((above - here) / WIDE_STEP),
                (None, Some(below)) => Some((here - below) / WIDE_STEP),
                (None, None) => None,
            }
        };
        let columns: Option<Vec<DVector<f64>>> = (0..self.scores.len()).into_par_iter().map(column).collect();
        Some(DMatrix::from_columns(&columns?))
    }
}

impl LeastSquaresProblem<f64, Dyn, Dyn> for Fit<'_> {
    type ResidualStorage = Owned<f64, Dyn>;
    type JacobianStorage = Owned<f64, Dyn, Dyn>;
    type ParameterStorage = Owned<f64, Dyn>;

    fn set_params(&mut self, scores: &DVector<f64>) {
        self.scores.copy_from(scores);
        self.value = self.value_at(scores.as_slice());
    }

    fn params(&self) -> DVector<f64> {
        self.scores.clone()
    }

    fn residuals(&self) -> Option<DVector<f64>> {
        self.value.clone()
    }

    fn jacobian(&self) -> Option<DMatrix<f64>> {
        let here = self.value.as_ref()?;
        let column = |index: usize| -> Option<DVector<f64>> {
            let mut moved = self.scores.clone();
            moved[index] += STEP;
            let there = self.value_at(moved.as_slice());
            // At the edge of what can be served only the other side has an answer.
            match there {
                Some(there) => Some((there - here) / STEP),
                None => {
                    moved[index] -= 2.0 * STEP;
                    Some((here - self.value_at(moved.as_slice())?) / STEP)
                }
            }
        };
        let columns: Option<Vec<DVector<f64>>> = (0..self.scores.len()).into_par_iter().map(column).collect();
        Some(DMatrix::from_columns(&columns?))
    }
}

/// How hard to look for the mode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Effort {
    /// A few steps, to compare structures.
    Coarse,
    /// To convergence, noise included.
    Full,
}

/// The mode under one structure, from `start`; `None` when nothing there can be served.
pub fn find_mode(model: &Model, structure: Structure, prior: f64, start: &[f64], effort: Effort) -> Option<Mode> {
    let mut scores = DVector::from_column_slice(start);
    let mut noise_score = 0.0;
    let rounds = if effort == Effort::Full { 3 } else { 1 };
    let mut last = None;
    for round in 0..rounds {
        let predictions = model.predictions(scores.as_slice(), structure)?;
        let found = residuals(&model.points, &predictions);
        // The first round starts wide, so that a poor start is not mistaken for outliers.
        let noise = if round == 0 { noise_at(noise_score).max(0.05) } else { noise_at(noise_score) };
        let mut fit = Fit {
            model,
            structure,
            noise,
            scatter: found.iter().map(|residual| residual.scatter).collect(),
            scores: scores.clone(),
            value: None,
        };
        fit.value = fit.value_at(scores.as_slice());
        fit.value.as_ref()?;
        let patience = if effort == Effort::Full { 2 } else { 1 };
        let search = LevenbergMarquardt::new().with_ftol(1e-4).with_xtol(1e-3).with_gtol(1e-6).with_patience(patience);
        let (fit, _) = search.minimize(fit);
        scores = fit.params();
        let predictions = model.predictions(scores.as_slice(), structure)?;
        noise_score = best_noise(&residuals(&model.points, &predictions));
        last = Some((fit, predictions));
    }
    let (mut fit, predictions) = last?;
    let found = residuals(&model.points, &predictions);
    fit.noise = noise_at(noise_score);
    fit.scatter = found.iter().map(|residual| residual.scatter).collect();
    fit.set_params(&scores);
    let jacobian = fit.wide_jacobian()?;
    let information = jacobian.transpose() * &jacobian;
    let cholesky = information.cholesky()?;
    let log_determinant = 2.0 * cholesky.l_dirty().diagonal().iter().map(|entry| entry.ln()).sum::<f64>();
    let dimension = scores.len() as f64;
    let log_evidence = log_likelihood(&found, noise_at(noise_score))
        + scores.iter().map(|score| log_normal(*score)).sum::<f64>()
        + log_normal(noise_score)
        + 0.5 * (dimension * (2.0 * std::f64::consts::PI).ln() - log_determinant)
        + prior.ln();
    Some(Mode {
        structure,
        prior,
        scores: scores.as_slice().to_vec(),
        noise_score,
        covariance: cholesky.inverse(),
        log_evidence,
        predictions,
    })
}

/// The most probable score of the noise, on a grid: one dimension, and flat.
fn best_noise(residuals: &[Residual]) -> f64 {
    let value = |score: f64| log_likelihood(residuals, noise_at(score)) + log_normal(score);
    let grid = (-20..=50).map(|i| f64::from(i) * 0.1);
    grid.max_by(|a, b| value(*a).total_cmp(&value(*b))).unwrap_or(0.0)
}

/// The modes of all structures that matter, the best first.
///
/// Structures are ranked by how well the shape of the curve fits at the centres of the priors; the best of them are
/// fitted, then their neighbours as long as that helps.
pub fn find_modes(model: &Model, start: Option<&[f64]>) -> Vec<Mode> {
    let centre = vec![0.0; model.priors.len()];
    let start = start.unwrap_or(&centre);
    let mut ranked: Vec<(usize, f64)> = (0..model.structures.len())
        .into_par_iter()
        .filter_map(|index| {
            let (structure, prior) = model.structures[index];
            let predictions = model.predictions(start, structure)?;
            Some((index, shape_mismatch(&model.points, &predictions) - 2e-3 * prior.ln()))
        })
        .collect();
    ranked.sort_by(|a, b| a.1.total_cmp(&b.1));
    let mut tried = vec![false; model.structures.len()];
    let mut modes: Vec<Mode> = Vec::new();
    let mut queue: Vec<usize> = ranked.iter().take(FIRST_TRIED).map(|(index, _)| *index).collect();
    while !queue.is_empty() {
        queue.iter().for_each(|&index| tried[index] = true);
        let from = modes.first().map_or_else(|| start.to_vec(), |mode| mode.scores.clone());
        modes.par_extend(queue.par_iter().filter_map(|&index| {
            let (structure, prior) = model.structures[index];
            let warm = find_mode(model, structure, prior, &from, Effort::Coarse);
            if from == start {
                return warm;
            }
            // A start far from this structure's own mode may end in a poor one.
            let cold = find_mode(model, structure, prior, start, Effort::Coarse);
            [warm, cold].into_iter().flatten().max_by(|a, b| a.log_evidence.total_cmp(&b.log_evidence))
        }));
        modes.sort_by(|a, b| b.log_evidence.total_cmp(&a.log_evidence));
        let Some(best) = modes.first() else { break };
        queue = modes
            .iter()
            .filter(|mode| mode.log_evidence > best.log_evidence - 0.5 * NEGLIGIBLE)
            .flat_map(|mode| neighbours(model, mode.structure))
            .filter(|index| !tried[*index])
            .collect();
        queue.sort_unstable();
        queue.dedup();
    }
    let Some(best) = modes.first().map(|mode| mode.log_evidence) else { return modes };
    modes.retain(|mode| mode.log_evidence > best - NEGLIGIBLE);
    modes = modes
        .into_par_iter()
        .filter_map(|mode| find_mode(model, mode.structure, mode.prior, &mode.scores, Effort::Full))
        .collect();
    modes.sort_by(|a, b| b.log_evidence.total_cmp(&a.log_evidence));
    let Some(best) = modes.first().map(|mode| mode.log_evidence) else { return modes };
    modes.retain(|mode| mode.log_evidence > best - NEGLIGIBLE);
    modes
}

/// Spread of ln(measured ÷ predicted) of the rates around their mean: how badly the shape fits, whatever the level.
fn shape_mismatch(points: &[Point], predictions: &[Prediction]) -> f64 {
    let errors: Vec<f64> = points
        .iter()
        .zip(predictions)
        .filter_map(|(point, prediction)| Some((point.measured.tok_per_s? / prediction.tok_per_s).ln()))
        .collect();
    let count = errors.len().max(1) as f64;
    let mean = errors.iter().sum::<f64>() / count;
    (errors.iter().map(|error| (error - mean).powi(2)).sum::<f64>() / count).sqrt()
}

/// Structures that differ from `structure` in one thing, by one place in the list of its values.
fn neighbours(model: &Model, structure: Structure) -> Vec<usize> {
    let places = |value: &dyn Fn(&Structure) -> Option<u32>| -> Vec<Option<u32>> {
        let mut all: Vec<Option<u32>> = model.structures.iter().map(|(other, _)| value(other)).collect();
        // No limit is the largest.
        all.sort_by_key(|place| place.unwrap_or(u32::MAX));
        all.dedup();
        all
    };
    type Property<'a> = &'a dyn Fn(&Structure) -> Option<u32>;
    let values: [Property<'_>; 3] = [&|s| s.running_cap, &|s| Some(s.waves), &|s| s.client_cap];
    let lists = values.map(places);
    let place = |which: usize, s: &Structure| lists[which].iter().position(|value| *value == values[which](s));
    (0..model.structures.len())
        .filter(|&index| {
            let other = &model.structures[index].0;
            let apart: usize = (0..3)
                .map(|which| place(which, other).unwrap_or(0).abs_diff(place(which, &structure).unwrap_or(0)))
                .sum();
            apart == 1
        })
        .collect()
}
