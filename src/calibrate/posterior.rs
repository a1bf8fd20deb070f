//! The posterior as weighted draws: importance sampling from Student t laws around the modes.

use nalgebra::{DMatrix, DVector};
use rand::Rng;
use rand_distr::{ChiSquared, Distribution, StandardNormal};
use rayon::prelude::*;
use statrs::function::gamma::ln_gamma;

use super::mode::Mode;
use super::model::{Model, log_likelihood, log_normal, noise_at, residuals};
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

/// Deviation of the proposal of the noise's score: its posterior is wide with few rows.
const NOISE_WIDTH: f64 = 0.8;

/// Flattens the shares of draws between structures, so that a poor Laplace approximation starves none.
const FLATNESS: f64 = 0.7;

struct Proposal<'a> {
    mode: &'a Mode,
    share: f64,
    factor: DMatrix<f64>,
    log_scale: f64,
}

impl Proposal<'_> {
    /// Log density of scores and noise score under this proposal.
    fn log_density(&self, standard: &DVector<f64>, noise_score: f64) -> f64 {
        let dimension = standard.len() as f64;
        let constant = ln_gamma(0.5 * (PROPOSAL_FREEDOM + dimension))
            - ln_gamma(0.5 * PROPOSAL_FREEDOM)
            - 0.5 * dimension * (PROPOSAL_FREEDOM * std::f64::consts::PI).ln();
        let distance = standard.norm_squared();
        constant - self.log_scale - 0.5 * (PROPOSAL_FREEDOM + dimension) * (distance / PROPOSAL_FREEDOM).ln_1p()
            + log_normal((noise_score - self.mode.noise_score) / NOISE_WIDTH)
            - NOISE_WIDTH.ln()
    }
}

/// Draws the posterior around `modes`, `count` draws in all.
pub fn sample(model: &Model, modes: &[Mode], count: usize, seed: u64) -> Posterior {
    let best = modes.iter().map(|mode| mode.log_evidence).fold(f64::NEG_INFINITY, f64::max);
    let raw: Vec<f64> = modes.iter().map(|mode| (FLATNESS * (mode.log_evidence - best)).exp()).collect();
    let sum: f64 = raw.iter().sum();
    let proposals: Vec<Proposal<'_>> = modes
        .iter()
        .zip(&raw)
        .filter_map(|(mode, raw)| {
            let factor = mode.covariance.clone().cholesky()?.l() * PROPOSAL_WIDTH;
            let log_scale = factor.diagonal().iter().map(|entry| entry.ln()).sum();
            Some(Proposal { mode, share: raw / sum, factor, log_scale })
        })
        .collect();
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
            let scores = DVector::from_column_slice(&proposal.mode.scores) + &proposal.factor * &standard;
            let shift: f64 = StandardNormal.sample(&mut generator);
            let noise_score = proposal.mode.noise_score + NOISE_WIDTH * shift;
            let noise = noise_at(noise_score);
            let structure = proposal.mode.structure;
            let predictions = model.predictions(scores.as_slice(), structure)?;
            let log_weight = log_likelihood(&residuals(&model.points, &predictions), noise)
                + scores.iter().map(|score| log_normal(*score)).sum::<f64>()
                + log_normal(noise_score)
                + proposal.mode.prior.ln()
                - proposal.log_density(&standard, noise_score)
                - proposal.share.ln();
            let scores = scores.as_slice().to_vec();
            log_weight.is_finite().then_some((Draw { structure, scores, noise, weight: 0.0, predictions }, log_weight))
        })
        .collect();
    let most = weighted.iter().map(|(_, log_weight)| *log_weight).fold(f64::NEG_INFINITY, f64::max);
    let total: f64 = weighted.iter().map(|(_, log_weight)| (log_weight - most).exp()).sum();
    let draws: Vec<Draw> = weighted
        .into_iter()
        .map(|(draw, log_weight)| Draw { weight: (log_weight - most).exp() / total, ..draw })
        .collect();
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
        let mut chosen = Vec::with_capacity(count);
        let (mut sum, mut next) = (0.0, 0);
        for draw in &self.draws {
            sum += draw.weight;
            while next < count && (next as f64 + 0.5) / count as f64 <= sum {
                chosen.push(draw);
                next += 1;
            }
        }
        chosen
    }
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
