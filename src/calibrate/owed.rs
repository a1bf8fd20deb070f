//! What the likeliest explanation says of the table's own rows, and how much of the time a cap on running requests costs.

use rand_distr::{Distribution, StandardNormal};

use crate::random::{Purpose, Streams};

use super::diagnose::{Diagnosis, Explanation};
use super::mechanism::Mechanism;
use super::model::NOISE_FLOOR;
use super::posterior::{Draw, weighted_quantiles};
use super::predict::{Structure, predict};

/// Draws of the posterior that the loss is taken over, and measurements that the band of a row is taken over.
const DRAWS: usize = 48;
const MEASUREMENTS: usize = 400;

/// Streams of the noise here; other users of the purpose stay below.
const NOISE_STREAM: u64 = 1 << 41;

/// What a cap takes at the largest concurrency measured.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Owed {
    /// The likeliest cap.
    pub cap: u32,
    /// Probability that a cap is the reason of the plateau.
    pub probability: f64,
    /// The concurrency.
    pub concurrency: u32,
    /// Rate with the cap, tok/s of one replica: quantiles at 5, 50 and 95%.
    pub capped: [f64; 3],
    /// Rate without, memory permitting.
    pub uncapped: [f64; 3],
    /// Share of the time that is owed to the cap, 1 − capped ÷ uncapped, draw by draw.
    pub share: [f64; 3],
}

impl Diagnosis {
    /// What the cap takes, under the explanation that there is one; `None` where another explanation is likelier.
    pub fn owed_to_cap(&self, seed: u64) -> Option<Owed> {
        let explanation = self.explanations.first().filter(|it| it.mechanism == Mechanism::RunningCap)?;
        let draws = pairs(explanation, seed);
        let quantiles = |value: &dyn Fn(&(f64, f64)) -> f64| {
            let weight = 1.0 / draws.len() as f64;
            weighted_quantiles(draws.iter().map(|pair| (value(pair), weight)).collect(), [0.05, 0.5, 0.95])
        };
        (!draws.is_empty()).then(|| Owed {
            cap: self.caps.first().map_or(1, |(cap, _)| *cap),
            probability: explanation.probability,
            concurrency: self.most_in_flight,
            capped: quantiles(&|pair| pair.0),
            uncapped: quantiles(&|pair| pair.1),
            share: quantiles(&|pair| 1.0 - pair.0 / pair.1),
        })
    }
}

impl Explanation {
    /// What one measurement of each point would give, noise included: rates at 5, 50 and 95%, tok/s.
    pub fn bands(&self, seed: u64) -> Vec<[f64; 3]> {
        let draws = self.posterior.resample(MEASUREMENTS);
        let weight = 1.0 / draws.len().max(1) as f64;
        let band = |place: usize| {
            let value = |(index, draw): (usize, &&Draw)| {
                let number = (place * MEASUREMENTS + index) as u64;
                (draw.predictions[place].tok_per_s * noise(draw, seed, number), weight)
            };
            weighted_quantiles(draws.iter().enumerate().map(value).collect(), [0.05, 0.5, 0.95])
        };
        (0..self.model.points.len()).map(band).collect()
    }
}

/// A factor on a predicted rate: the model's own error and that of a measurement.
fn noise(draw: &Draw, seed: u64, number: u64) -> f64 {
    let mut generator = Streams::new(seed, 0).endless(Purpose::Uncertainty, NOISE_STREAM + number);
    let score: f64 = StandardNormal.sample(&mut generator);
    (draw.noise.hypot(NOISE_FLOOR) * score).exp()
}

/// Rates with and without the cap, by draw. The first was measured; the second is a prediction, with the error of one.
fn pairs(explanation: &Explanation, seed: u64) -> Vec<(f64, f64)> {
    let model = &explanation.model;
    let Some(most) = (0..model.points.len()).max_by_key(|&place| model.points[place].concurrency) else {
        return Vec::new();
    };
    let draws = explanation.posterior.resample(DRAWS);
    let pair = |(index, draw): (usize, &&Draw)| {
        let (setup, beside) = model.setup_at(&draw.scores);
        let lifted = Structure { running_cap: None, ..draw.structure };
        let uncapped = predict(&setup, &model.points[most], lifted, beside, seed).ok()?;
        Some((
            draw.predictions[most].tok_per_s,
            uncapped.tok_per_s * noise(draw, seed, (MEASUREMENTS * model.points.len() + index) as u64),
        ))
    };
    draws.iter().enumerate().filter_map(pair).collect()
}
