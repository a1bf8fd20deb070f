//! The posterior as weighted draws: importance sampling from Student t laws around the modes.

use nalgebra::{DMatrix, DVector};
use rand::Rng;
use rand_distr::{ChiSquared, Distribution, StandardNormal};
use rayon::prelude::*;
use statrs::function::gamma::ln_gamma;

use super::mode::Mode;
use super::model::{Model, Residual, log_likelihood, log_normal, noise_at, residuals};
use super::predict::{Prediction, Structure};
use crate::random::{Purpose, Streams, open_unit};

/// One draw of the posterior.
#[derive(Clone, Debug)]
pub struct Draw {
    /// Structure.
    pub structure: Structure,
    /// Scores of the parameters.
    pub scores: Vec<f64>,
    /// The model's own error, standard deviation of the logarithm.
    pub noise: f64,
    /// Weight; all weights sum to 1.
    pub weight: f64,
    /// Predictions at the model's points.
    pub predictions: Vec<Prediction>,
}

/// The posterior.
#[derive(Clone, Debug)]
pub struct Posterior {
    /// Weighted draws.
    pub draws: Vec<Draw>,
    /// Draws that these are worth: (Σ w)² / Σ w².
    pub effective_draws: f64,
    /// Logarithm of the marginal likelihood of the table.
    pub log_evidence: f64,
}

/// Degrees of freedom and width of the proposals: tails heavier than the posterior's.
const PROPOSAL_FREEDOM: f64 = 6.0;
const PROPOSAL_WIDTH: f64 = 1.15;

/// Cells of the proposal of the noise's score: from −4 to 6, a tenth each.
const NOISE_CELLS: usize = 100;
const NOISE_LOW: f64 = -4.0;
const NOISE_CELL: f64 = 0.1;

/// Share of the noise's proposal that is its prior, so that no cell is starved.
const NOISE_FROM_PRIOR: f64 = 0.1;

/// Flattens the shares of draws between structures, so that a poor Laplace approximation starves none.
const FLATNESS: f64 = 0.7;

/// Where draws of one structure come from. First the noise, from its own marginal law; then the scores, as wide as that
/// noise lets them be: with loose rows the table says less.
struct Proposal<'a> {
    mode: &'a Mode,
    share: f64,
    /// Directions of the scores, and how sharply the table fixes each at the mode's noise.
    directions: DMatrix<f64>,
    curvature: DVector<f64>,
    residuals: Vec<Residual>,
    /// Probability of each cell of the noise's score, running sums.
    noise: Vec<f64>,
}

impl<'a> Proposal<'a> {
    fn new(model: &Model, mode: &'a Mode, share: f64) -> Option<Proposal<'a>> {
        let information = mode.covariance.clone().cholesky()?.inverse();
        let eigen = information.symmetric_eigen();
        // The prior of a score adds 1 in every direction.
        let curvature = eigen.eigenvalues.map(|value| (value - 1.0).max(0.0));
        let residuals = residuals(&model.points, &mode.predictions);
        let mut proposal =
            Proposal { mode, share, directions: eigen.eigenvectors, curvature, residuals, noise: Vec::new() };
        let prior = shares(noise_scores().map(log_normal));
        let mut sum = 0.0;
        for (marginal, prior) in proposal.noise_law().into_iter().zip(prior) {
            sum += (1.0 - NOISE_FROM_PRIOR) * marginal + NOISE_FROM_PRIOR * prior;
            proposal.noise.push(sum);
        }
        Some(proposal)
    }

    /// Probability of each cell of the noise's score, the scores integrated out.
    fn noise_law(&self) -> Vec<f64> {
        shares(noise_scores().map(|score| {
            let noise = noise_at(score);
            log_likelihood(&self.residuals, noise) + log_normal(score) + self.log_scale(noise)
        }))
    }

    /// Width of the proposal in each direction.
    fn widths(&self, noise: f64) -> DVector<f64> {
        let at_mode = noise_at(self.mode.noise_score);
        let looser: f64 =
            self.residuals.iter().map(|one| (one.deviation(at_mode) / one.deviation(noise)).powi(2)).sum();
        let looser = looser / self.residuals.len().max(1) as f64;
        self.curvature.map(|curvature| PROPOSAL_WIDTH / (1.0 + looser * curvature).sqrt())
    }

    /// Logarithm of the volume that the widths span.
    fn log_scale(&self, noise: f64) -> f64 {
        self.widths(noise).iter().map(|width| width.ln()).sum()
    }

    /// A noise score from a uniform number, and the log density there.
    fn noise_score(&self, unit: f64) -> (f64, f64) {
        let cell = self.noise.partition_point(|sum| *sum < unit).min(NOISE_CELLS - 1);
        let before = if cell == 0 { 0.0 } else { self.noise[cell - 1] };
        let share = self.noise[cell] - before;
        let inside = ((unit - before) / share).clamp(0.0, 1.0);
        (NOISE_LOW + (cell as f64 + inside) * NOISE_CELL, (share / NOISE_CELL).ln())
    }

    /// Log density of scores at so many widths from the mode.
    fn log_density(&self, standard: &DVector<f64>, noise: f64) -> f64 {
        let dimension = standard.len() as f64;
        let constant = ln_gamma(0.5 * (PROPOSAL_FREEDOM + dimension))
            - ln_gamma(0.5 * PROPOSAL_FREEDOM)
            - 0.5 * dimension * (PROPOSAL_FREEDOM * std::f64::consts::PI).ln();
        let distance = standard.norm_squared();
        constant - self.log_scale(noise) - 0.5 * (PROPOSAL_FREEDOM + dimension) * (distance / PROPOSAL_FREEDOM).ln_1p()
    }
}

/// Middles of the cells of the noise's score.
pub(super) fn noise_scores() -> impl Iterator<Item = f64> {
    (0..NOISE_CELLS).map(|cell| NOISE_LOW + (cell as f64 + 0.5) * NOISE_CELL)
}

/// Logarithms of weights as shares of their sum.
pub(super) fn shares(logs: impl Iterator<Item = f64>) -> Vec<f64> {
    let logs: Vec<f64> = logs.collect();
    let most = logs.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let all: Vec<f64> = logs.iter().map(|log| (log - most).exp()).collect();
    let sum: f64 = all.iter().sum();
    all.into_iter().map(|one| one / sum).collect()
}

/// Expected square of the model's own error around a mode, over what the table leaves open of it: with few rows far more
/// than the square of its most probable value. `None` when the mode has no shape.
pub(super) fn noise_variance(model: &Model, mode: &Mode) -> Option<f64> {
    let law = Proposal::new(model, mode, 1.0)?.noise_law();
    Some(law.into_iter().zip(noise_scores()).map(|(share, score)| share * noise_at(score).powi(2)).sum())
}

/// Draws the posterior around `modes`, `count` draws in all.
pub fn sample(model: &Model, modes: &[Mode], count: usize, seed: u64) -> Posterior {
    let best = modes.iter().map(|mode| mode.log_evidence).fold(f64::NEG_INFINITY, f64::max);
    let raw: Vec<f64> = modes.iter().map(|mode| (FLATNESS * (mode.log_evidence - best)).exp()).collect();
    let sum: f64 = raw.iter().sum();
    let proposals: Vec<Proposal<'_>> =
        modes.iter().zip(&raw).filter_map(|(mode, raw)| Proposal::new(model, mode, raw / sum)).collect();
    let weighted: Vec<(Draw, f64)> = (0..count)
        .into_par_iter()
        .filter_map(|index| {
            let mut generator = Streams::new(seed, 0).endless(Purpose::Uncertainty, index as u64);
            // Stratified over the structures.
            let mut position = (index as f64 + open_unit(generator.next_u64())) / count as f64;
            let proposal = proposals.iter().find(|proposal| {
                position -= proposal.share;
                position < 0.0
            });
            let proposal = proposal.or(proposals.last())?;
            let dimension = model.priors.len();
            let normal: Vec<f64> = (0..dimension).map(|_| StandardNormal.sample(&mut generator)).collect();
            let chi: f64 = ChiSquared::new(PROPOSAL_FREEDOM).ok()?.sample(&mut generator);
            let standard = DVector::from_vec(normal) * (PROPOSAL_FREEDOM / chi).sqrt();
            let (noise_score, log_density_of_noise) = proposal.noise_score(open_unit(generator.next_u64()));
            let noise = noise_at(noise_score);
            let step = &proposal.directions * proposal.widths(noise).component_mul(&standard);
            let scores = DVector::from_column_slice(&proposal.mode.scores) + step;
            let structure = proposal.mode.structure;
            let predictions = model.predictions(scores.as_slice(), structure)?;
            let log_weight = log_likelihood(&residuals(&model.points, &predictions), noise)
                + scores.iter().map(|score| log_normal(*score)).sum::<f64>()
                + log_normal(noise_score)
                + proposal.mode.prior.ln()
                - proposal.log_density(&standard, noise)
                - log_density_of_noise
                - proposal.share.ln();
            let scores = scores.as_slice().to_vec();
            log_weight.is_finite().then_some((Draw { structure, scores, noise, weight: 0.0, predictions }, log_weight))
        })
        .collect();
    let most = weighted.iter().map(|(_, log_weight)| *log_weight).fold(f64::NEG_INFINITY, f64::max);
    let total: f64 = weighted.iter().map(|(_, log_weight)| (log_weight - most).exp()).sum();
    // Truncated importance sampling (Ionides 2008): no draw weighs more than √n times the mean, so that a lucky one does
    // not make the posterior look certain.
    let largest = total / (count as f64).sqrt();
    let truncated = |log_weight: f64| (log_weight - most).exp().min(largest);
    let kept: f64 = weighted.iter().map(|(_, log_weight)| truncated(*log_weight)).sum();
    let draws: Vec<Draw> =
        weighted.into_iter().map(|(draw, log_weight)| Draw { weight: truncated(log_weight) / kept, ..draw }).collect();
    let squares: f64 = draws.iter().map(|draw| draw.weight * draw.weight).sum();
    Posterior {
        effective_draws: if squares > 0.0 { 1.0 / squares } else { 0.0 },
        log_evidence: most + (total / count as f64).ln(),
        draws,
    }
}

impl Posterior {
    /// Quantiles of a value over the draws.
    pub fn quantiles<const N: usize>(&self, value: impl Fn(&Draw) -> f64, at: [f64; N]) -> [f64; N] {
        let values: Vec<(f64, f64)> = self.draws.iter().map(|draw| (value(draw), draw.weight)).collect();
        weighted_quantiles(values, at)
    }

    /// Mean and standard deviation of a value over the draws.
    pub fn moments(&self, value: impl Fn(&Draw) -> f64) -> (f64, f64) {
        let mean: f64 = self.draws.iter().map(|draw| draw.weight * value(draw)).sum();
        let variance: f64 = self.draws.iter().map(|draw| draw.weight * (value(draw) - mean).powi(2)).sum();
        (mean, variance.sqrt())
    }

    /// `count` draws of equal weight (systematic resampling).
    pub fn resample(&self, count: usize) -> Vec<&Draw> {
        systematic(self.draws.iter().map(|draw| (draw, draw.weight)), count)
    }
}

/// `count` of some things by shares that sum to 1: systematic resampling.
pub(super) fn systematic<T: Copy>(things: impl Iterator<Item = (T, f64)>, count: usize) -> Vec<T> {
    let mut chosen = Vec::with_capacity(count);
    let mut sum = 0.0;
    for (thing, share) in things {
        sum += share;
        while chosen.len() < count && (chosen.len() as f64 + 0.5) / count as f64 <= sum {
            chosen.push(thing);
        }
    }
    chosen
}

/// Quantiles of weighted values; the weights sum to 1.
pub fn weighted_quantiles<const N: usize>(mut values: Vec<(f64, f64)>, at: [f64; N]) -> [f64; N] {
    values.sort_by(|a, b| a.0.total_cmp(&b.0));
    at.map(|level| {
        let mut sum = 0.0;
        let found = values.iter().find(|(_, weight)| {
            sum += weight;
            sum >= level
        });
        found.or(values.last()).map_or(f64::NAN, |(value, _)| *value)
    })
}
