//! The posterior by Markov moves, where importance sampling leaves off.
//!
//! A table often fixes a combination of parameters far better than each of them, and the posterior is then a long bent
//! ridge that no ellipse around its top covers. Walkers that start at importance draws move along it by differential
//! evolution: a walker steps by the difference of two others, so that steps are as long and as aligned as the posterior
//! itself (ter Braak, "A Markov Chain Monte Carlo version of the genetic algorithm Differential Evolution", Statistics and
//! Computing 16, 2006; ter Braak and Vrugt, ibid. 18, 2008, for updates of a few parameters at a time). Two halves take
//! turns: each moves by differences of the other, so the walkers of a half are independent of one another and move in
//! parallel.
//!
//! Walkers stay within their structure, whose probability remains that of importance sampling, as does the evidence.

use rand::Rng;
use rand_chacha::ChaCha8Rng;
use rand_distr::{Distribution, StandardNormal};
use rayon::prelude::*;

use super::model::{Model, Residual, log_likelihood, log_normal, noise_at, residuals};
use super::points::Point;
use super::posterior::{Draw, Posterior, noise_scores, shares, systematic};
use super::predict::{Prediction, Structure, predict};
use crate::random::{Purpose, Streams, open_unit};
use crate::stats::variance;

/// Walkers, in two halves.
const WALKERS: usize = 64;

/// Exponent on the weights of importance draws that walkers start from: draws on a ridge that the proposal misses have
/// large weights and are few.
const FLATTENED: f64 = 0.25;

/// Step over the difference of two walkers, times √(2 · parameters moved): the best for a normal law.
const STEP: f64 = 2.38;

/// Every so many rounds a step is the whole difference, which leads from one hill to another.
const WHOLE_STEP_EVERY: usize = 8;

/// Shares of the parameters that one step moves, alike often.
const MOVED: [f64; 3] = [1.0, 0.6, 0.3];

/// Deviation of what is added to every step, in scores, so that walkers can come off the grid of their differences.
const JITTER: f64 = 1e-3;

/// Draws are kept from every so many rounds of the second half: neighbours tell little more.
const KEPT_EVERY: usize = 5;

/// Streams of the walkers; other users of the purpose stay below.
const STREAM: u64 = 1 << 42;

/// One walker.
struct Walker {
    structure: Structure,
    scores: Vec<f64>,
    noise_score: f64,
    predictions: Vec<Prediction>,
    residuals: Vec<Residual>,
}

/// What is needed to move, alike for all walkers.
struct Ground<'a> {
    model: &'a Model,
    /// Points in the order in which a step is put to them, the cheapest first.
    order: Vec<usize>,
    /// What each point would contribute at most: its residuals, were they none.
    exact: Vec<Vec<Residual>>,
    seed: u64,
}

/// Moves the draws of `start` for so many rounds; the draws of the result are those of the second half of the rounds.
pub fn explore(model: &Model, start: Posterior, rounds: usize, seed: u64) -> Posterior {
    if rounds == 0 {
        return start;
    }
    let (mut walkers, probabilities) = walkers(model, &start);
    if walkers.len() < 4 {
        return start;
    }
    let ground = Ground::new(model, seed);
    let mut kept: Vec<Vec<Draw>> = walkers.iter().map(|_| Vec::new()).collect();
    let half = walkers.len() / 2;
    for round in 0..rounds {
        let (first, second) = walkers.split_at_mut(half);
        step_half(&ground, round, 0, first, second);
        step_half(&ground, round, half, second, first);
        if 2 * round >= rounds && (rounds - 1 - round).is_multiple_of(KEPT_EVERY) {
            for (draws, walker) in kept.iter_mut().zip(&walkers) {
                draws.push(walker.draw());
            }
        }
    }
    let effective_draws = effective_draws(&kept);
    // Draws of one structure stand together, and those of one walker.
    let mut draws: Vec<Draw> = Vec::new();
    for (structure, probability) in probabilities {
        let own = || kept.iter().flatten().filter(|draw| draw.structure == structure);
        let weight = probability / own().count().max(1) as f64;
        draws.extend(own().map(|draw| Draw { weight, ..draw.clone() }));
    }
    Posterior { draws, effective_draws, log_evidence: start.log_evidence }
}

fn step_half(ground: &Ground<'_>, round: usize, offset: usize, moving: &mut [Walker], still: &[Walker]) {
    moving.par_iter_mut().enumerate().for_each(|(index, walker)| {
        let id = STREAM + (round * WALKERS + offset + index) as u64;
        let mut generator = Streams::new(ground.seed, 0).endless(Purpose::Uncertainty, id);
        walker.step(ground, round, still, &mut generator);
        walker.draw_noise(&mut generator);
    });
}

/// Walkers at importance draws, and the probability of each structure that has one. Structures have walkers by their
/// probability, and within one those draws that flattened weights choose; both by systematic resampling.
fn walkers(model: &Model, start: &Posterior) -> (Vec<Walker>, Vec<(Structure, f64)>) {
    let mut groups: Vec<(Structure, f64, Vec<&Draw>)> = Vec::new();
    for draw in start.draws.iter().filter(|draw| draw.weight > 0.0) {
        match groups.iter_mut().find(|(structure, ..)| *structure == draw.structure) {
            Some((_, sum, own)) => {
                *sum += draw.weight;
                own.push(draw);
            }
            None => groups.push((draw.structure, draw.weight, vec![draw])),
        }
    }
    let mut all = Vec::with_capacity(WALKERS);
    let mut probabilities = Vec::new();
    let mut before = 0.0;
    for (structure, probability, draws) in groups {
        let until = before + probability * WALKERS as f64;
        let count = (until + 0.5).floor() as usize - (before + 0.5).floor() as usize;
        before = until;
        if count == 0 {
            continue;
        }
        probabilities.push((structure, probability));
        let sum: f64 = draws.iter().map(|draw| draw.weight.powf(FLATTENED)).sum();
        let flattened = draws.into_iter().map(|draw| (draw, draw.weight.powf(FLATTENED) / sum));
        all.extend(systematic(flattened, count).into_iter().map(|draw| Walker {
            structure,
            scores: draw.scores.clone(),
            noise_score: nearest_noise_score(draw.noise),
            predictions: draw.predictions.clone(),
            residuals: residuals(&model.points, &draw.predictions),
        }));
    }
    // Both halves have walkers of every structure.
    let (even, odd): (Vec<_>, Vec<_>) = all.into_iter().enumerate().partition(|(index, _)| index % 2 == 0);
    let all: Vec<Walker> = even.into_iter().chain(odd).map(|(_, walker)| walker).collect();
    let total: f64 = probabilities.iter().map(|(_, probability)| probability).sum();
    (all, probabilities.into_iter().map(|(structure, probability)| (structure, probability / total)).collect())
}

/// The cell of the noise's score that is nearest to a noise.
fn nearest_noise_score(noise: f64) -> f64 {
    let distance = |score: &f64| (noise_at(*score) / noise).ln().abs();
    noise_scores().min_by(|a, b| distance(a).total_cmp(&distance(b))).unwrap_or(0.0)
}

impl<'a> Ground<'a> {
    fn new(model: &'a Model, seed: u64) -> Ground<'a> {
        let exact =
            model.points.iter().map(|point| residuals(std::slice::from_ref(point), &[as_measured(point)])).collect();
        let mut order: Vec<usize> = (0..model.points.len()).collect();
        let requests = |point: &Point| point.requests.unwrap_or(u64::from(point.concurrency));
        order.sort_by_key(|&index| requests(&model.points[index]));
        Ground { model, order, exact, seed }
    }

    /// Predictions and residuals at some scores, if the logarithm of the likelihood is at least `least`: as soon as the
    /// points that are left could not make up for what is lost, the rest is not simulated (early rejection: Solonen et
    /// al., Bayesian Analysis 7, 2012).
    fn at_least(
        &self,
        scores: &[f64],
        structure: Structure,
        noise: f64,
        least: f64,
    ) -> Option<(Vec<Prediction>, Vec<Residual>)> {
        let model = self.model;
        let most = |index: usize| log_likelihood(&self.exact[index], noise);
        let mut bound: f64 = (0..model.points.len()).map(most).sum();
        if bound < least {
            return None;
        }
        let (setup, beside) = model.setup_at(scores);
        let mut found: Vec<Option<Prediction>> = vec![None; model.points.len()];
        for &index in &self.order {
            let point = std::slice::from_ref(&model.points[index]);
            let prediction = predict(&setup, &point[0], structure, beside, model.seed).ok()?;
            bound += log_likelihood(&residuals(point, &[prediction]), noise) - most(index);
            if bound.is_nan() || bound < least {
                return None;
            }
            found[index] = Some(prediction);
        }
        let predictions = found.into_iter().collect::<Option<Vec<Prediction>>>()?;
        let residuals = residuals(&model.points, &predictions);
        Some((predictions, residuals))
    }
}

/// The prediction that a point's measurement agrees with best.
fn as_measured(point: &Point) -> Prediction {
    let measured = &point.measured;
    Prediction {
        tok_per_s: measured.tok_per_s.unwrap_or(1.0),
        run_deviation: 0.0,
        ttft_ms: measured.ttft_ms,
        tpot_ms: measured.tpot_ms,
        mean_running: 0.0,
    }
}

impl Walker {
    /// One step by the difference of two walkers of the other half, taken with the probability of Metropolis.
    fn step(&mut self, ground: &Ground<'_>, round: usize, others: &[Walker], generator: &mut ChaCha8Rng) {
        let mut unit = || open_unit(generator.next_u64());
        let pick = |unit: f64, count: usize| ((unit * count as f64) as usize).min(count - 1);
        let a = pick(unit(), others.len());
        let b = (a + 1 + pick(unit(), others.len() - 1)) % others.len();
        let whole = round % WHOLE_STEP_EVERY == WHOLE_STEP_EVERY - 1;
        let share = if whole { 1.0 } else { MOVED[pick(unit(), MOVED.len())] };
        let mut moved: Vec<usize> = (0..self.scores.len()).filter(|_| unit() < share).collect();
        if moved.is_empty() {
            moved.push(pick(unit(), self.scores.len()));
        }
        let factor = if whole { 1.0 } else { STEP / (2.0 * moved.len() as f64).sqrt() };
        let accept = unit().ln();
        let mut scores = self.scores.clone();
        for index in moved {
            let jitter: f64 = StandardNormal.sample(generator);
            scores[index] += factor * (others[a].scores[index] - others[b].scores[index]) + JITTER * jitter;
        }
        let prior = |scores: &[f64]| scores.iter().map(|score| log_normal(*score)).sum::<f64>();
        let noise = noise_at(self.noise_score);
        let least = log_likelihood(&self.residuals, noise) + prior(&self.scores) - prior(&scores) + accept;
        if let Some((predictions, residuals)) = ground.at_least(&scores, self.structure, noise, least) {
            self.scores = scores;
            self.predictions = predictions;
            self.residuals = residuals;
        }
    }

    /// A noise from its own law given everything else, over its cells.
    fn draw_noise(&mut self, generator: &mut ChaCha8Rng) {
        let law =
            shares(noise_scores().map(|score| log_likelihood(&self.residuals, noise_at(score)) + log_normal(score)));
        let mut left = open_unit(generator.next_u64());
        let found = noise_scores().zip(law).find(|(_, share)| {
            left -= share;
            left < 0.0
        });
        if let Some((score, _)) = found {
            self.noise_score = score;
        }
    }

    fn draw(&self) -> Draw {
        Draw {
            structure: self.structure,
            scores: self.scores.clone(),
            noise: noise_at(self.noise_score),
            weight: 0.0,
            predictions: self.predictions.clone(),
        }
    }
}

/// Independent draws that those kept are worth, for the score of which they are fewest: a mean over the draws of one walker
/// scatters between walkers by the variance over what each is worth.
fn effective_draws(kept: &[Vec<Draw>]) -> f64 {
    let each = kept.first().map_or(0, Vec::len);
    let dimension = kept.iter().flatten().next().map_or(0, |draw| draw.scores.len());
    if each == 0 || dimension == 0 {
        return 0.0;
    }
    let worth = |index: usize| {
        let all: Vec<f64> = kept.iter().flatten().map(|draw| draw.scores[index]).collect();
        let means: Vec<f64> =
            kept.iter().map(|own| own.iter().map(|draw| draw.scores[index]).sum::<f64>() / each as f64).collect();
        let of_each = variance(&all).zip(variance(&means)).map_or(f64::NAN, |(all, means)| all / means);
        if of_each.is_nan() { 1.0 } else { of_each.clamp(1.0, each as f64) }
    };
    kept.len() as f64 * (0..dimension).map(worth).fold(f64::INFINITY, f64::min)
}
