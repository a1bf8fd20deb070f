//! How much of the time a cap on running requests costs.

use super::diagnose::{Diagnosis, Explanation};
use super::mechanism::Mechanism;
use super::posterior::weighted_quantiles;
use super::predict::{Structure, predict};

/// Draws of the posterior that the loss is taken over.
const DRAWS: usize = 48;

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

/// Rates with and without the cap, by draw.
fn pairs(explanation: &Explanation, seed: u64) -> Vec<(f64, f64)> {
    let model = &explanation.model;
    let Some(most) = (0..model.points.len()).max_by_key(|&place| model.points[place].concurrency) else {
        return Vec::new();
    };
    let draws = explanation.posterior.resample(DRAWS);
    let pair = |draw: &&super::posterior::Draw| {
        let (setup, beside) = model.setup_at(&draw.scores);
        let lifted = Structure { running_cap: None, ..draw.structure };
        let uncapped = predict(&setup, &model.points[most], lifted, beside, seed).ok()?;
        Some((draw.predictions[most].tok_per_s, uncapped.tok_per_s))
    };
    draws.iter().filter_map(pair).collect()
}
