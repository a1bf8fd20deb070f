//! How many verify steps a request needs.
//!
//! A verify step emits 1 token and as many drafted ones as the target accepts in a row: 1..=D tokens, D = drafted + 1.
//! A request that has L tokens to emit needs N steps, the number of draws until their sum reaches L; the last step's
//! surplus is cut. N is drawn once, from one uniform number: exactly for short requests, by a Cornish–Fisher
//! quantile of the renewal count for long ones. Requests differ in acceptance far more than steps of one request do,
//! so each request has its own acceptance, drawn from a Beta law.

use std::sync::Arc;

use statrs::distribution::{Beta, Continuous, ContinuousCDF, Normal};

use crate::error::InputError;

/// Requests of fewer tokens than this get the exact law of N.
const EXACT_BELOW_TOKENS: u32 = 48;

/// Points of the tabulated law of acceptance between requests.
const TABLE_POINTS: usize = 512;

/// Speculative decoding as the engine runs it.
#[derive(Clone, Debug)]
pub struct Speculation {
    /// Drafted tokens per step (draft passes of a chain drafter).
    draft_tokens: u32,
    /// Law of the tokens that a step emits, for evenly spaced quantiles of the law between requests. Shared: every replica
    /// of every run has it.
    table: Arc<[Emission]>,
    /// `probability[q][i]`: at quantile q a step emits i + 1 tokens. Apart from the moments, which every request needs.
    probability: Arc<[Vec<f64>]>,
}

/// The law of the tokens that one verify step of one request emits.
#[derive(Clone, Copy, Debug)]
struct Emission {
    mean: f64,
    deviation: f64,
    /// Third central moment over the squared deviation: the skewness term of the Cornish–Fisher expansion.
    skew_term: f64,
}

impl Emission {
    /// From the conditional probabilities that position i is accepted when all before it were.
    fn new(conditional: &[f64]) -> (Self, Vec<f64>) {
        let mut probability = Vec::with_capacity(conditional.len() + 1);
        let mut reached = 1.0;
        for accept in conditional {
            probability.push(reached * (1.0 - accept));
            reached *= accept;
        }
        probability.push(reached);
        let moment = |f: &dyn Fn(f64) -> f64| -> f64 {
            probability.iter().enumerate().map(|(i, p)| p * f(i as f64 + 1.0)).sum()
        };
        let mean = moment(&|x| x);
        let variance = moment(&|x| (x - mean).powi(2));
        let third = moment(&|x| (x - mean).powi(3));
        let skew_term = if variance > 0.0 { third / variance } else { 0.0 };
        (Emission { mean, deviation: variance.sqrt(), skew_term }, probability)
    }
}

impl Speculation {
    /// Speculation with `marginal[i]` the mean probability that drafted positions 0..=i are all accepted
    /// (non-increasing, in [0, 1]) and `spread` the standard deviation between requests of the acceptance of one position.
    ///
    /// # Errors
    /// When there is no position, a probability is outside [0, 1] or increases, or the spread is impossible for the mean.
    pub fn new(marginal: &[f64], spread: f64) -> Result<Self, InputError> {
        if marginal.is_empty() || marginal.len() > 64 {
            return Err(InputError::new(
                format!("found {} drafted positions", marginal.len()),
                "speculation drafts 1 to 64 tokens",
            )
            .key("acceptance"));
        }
        let mut before = 1.0;
        for &probability in marginal {
            if !(0.0..=before).contains(&probability) {
                return Err(InputError::new(
                    format!("found {probability} after {before}"),
                    "the probability that all drafted tokens up to a position are accepted lies in [0, 1] and never increases",
                )
                .key("acceptance"));
            }
            before = probability;
        }
        let positions = marginal.len() as f64;
        let conditional: Vec<f64> = marginal
            .iter()
            .scan(1.0, |before, &p| {
                let conditional = if *before > 0.0 { p / *before } else { 0.0 };
                *before = p;
                Some(conditional)
            })
            .collect();
        let mean = marginal[marginal.len() - 1].powf(1.0 / positions);
        if !(spread.is_finite() && spread >= 0.0) || spread * spread > 0.95 * mean * (1.0 - mean) && spread > 0.0 {
            return Err(InputError::new(
                format!("found {spread} for a mean acceptance of {mean:.3} a position"),
                format!(
                    "the standard deviation between requests lies in [0, {:.3}]",
                    (0.95 * mean * (1.0 - mean)).sqrt()
                ),
            )
            .key("acceptance_spread"));
        }
        let laws = if spread == 0.0 || mean <= 0.0 || mean >= 1.0 {
            vec![Emission::new(&conditional)]
        } else {
            let concentration = mean * (1.0 - mean) / (spread * spread) - 1.0;
            let beta = Beta::new(mean * concentration, (1.0 - mean) * concentration)
                .map_err(|e| InputError::new(e.to_string(), "a smaller spread").key("acceptance_spread"))?;
            quantiles(&beta)
                .into_iter()
                .map(|quantile| {
                    let quantile = quantile.clamp(1e-9, 1.0 - 1e-9);
                    // A power tilt keeps the shape over positions and moves their mean acceptance to the quantile.
                    let tilt = quantile.ln() / mean.ln();
                    Emission::new(&conditional.iter().map(|c| c.powf(tilt)).collect::<Vec<_>>())
                })
                .collect()
        };
        let (table, probability): (Vec<_>, Vec<_>) = laws.into_iter().unzip();
        Ok(Speculation { draft_tokens: marginal.len() as u32, table: table.into(), probability: probability.into() })
    }

    /// Drafted tokens per step.
    pub fn draft_tokens(&self) -> u32 {
        self.draft_tokens
    }

    /// Tokens per step over all requests, the bonus token included ("acceptance length", 1..=D).
    pub fn mean_tokens_per_step(&self) -> f64 {
        self.table.iter().map(|emission| emission.mean).sum::<f64>() / self.table.len() as f64
    }

    fn quantile(&self, acceptance_draw: f64) -> usize {
        // 32 bits convert in fewer instructions than 64.
        let index = (acceptance_draw * self.table.len() as f64) as u32 as usize;
        index.min(self.table.len() - 1)
    }

    /// Steps to emit `tokens` (at least 1) for the request at these draws.
    pub fn steps(&self, tokens: u32, acceptance_draw: f64, steps_draw: f64) -> u32 {
        let quantile = self.quantile(acceptance_draw);
        let emission = &self.table[quantile];
        if emission.deviation == 0.0 {
            return (f64::from(tokens) / emission.mean).ceil() as u32;
        }
        if tokens < EXACT_BELOW_TOKENS {
            exact_steps(&self.probability[quantile], tokens, steps_draw)
        } else {
            long_steps(emission, self.draft_tokens + 1, tokens, steps_draw)
        }
    }

    /// Tokens of one drawn step, for the token-exact reference.
    pub fn draw_step(&self, acceptance_draw: f64, unit: f64) -> u32 {
        let mut below = 0.0;
        for (index, probability) in self.probability[self.quantile(acceptance_draw)].iter().enumerate() {
            below += probability;
            if unit < below {
                return index as u32 + 1;
            }
        }
        self.draft_tokens + 1
    }
}

/// Quantiles at the middles of [`TABLE_POINTS`] cells. Exact in the tails; between every fourth of the others by cubic
/// Hermite interpolation, with the slope 1 / density: the law is built for every value of the acceptance that a fit tries.
fn quantiles(beta: &Beta) -> Vec<f64> {
    const TAIL: usize = 32;
    const EVERY: usize = 4;
    let level = |index: usize| (index as f64 + 0.5) / TABLE_POINTS as f64;
    let exact = |index: usize| beta.inverse_cdf(level(index));
    let mut all: Vec<f64> = Vec::with_capacity(TABLE_POINTS);
    all.extend((0..TAIL).map(exact));
    let knot = |index: usize| {
        let at = exact(index);
        // Rise over one stretch between knots.
        (at, EVERY as f64 / TABLE_POINTS as f64 / beta.pdf(at))
    };
    let mut left = knot(TAIL);
    for first in (TAIL..TABLE_POINTS - TAIL).step_by(EVERY) {
        let right = knot(first + EVERY);
        all.extend((0..EVERY).map(|index| hermite(left, right, index as f64 / EVERY as f64)));
        left = right;
    }
    all.extend((TABLE_POINTS - TAIL..TABLE_POINTS).map(exact));
    all
}

/// The cubic with these values and slopes at 0 and at 1.
fn hermite((z0, d0): (f64, f64), (z1, d1): (f64, f64), t: f64) -> f64 {
    let s = 1.0 - t;
    z0 * s * s * (1.0 + 2.0 * t) + d0 * s * s * t + z1 * t * t * (3.0 - 2.0 * t) - d1 * t * t * s
}

/// Smallest n with P(sum of n draws ≥ tokens) ≥ unit, by convolution.
fn exact_steps(probability: &[f64], tokens: u32, unit: f64) -> u32 {
    let needed = tokens as usize;
    let mut below = vec![0.0; needed];
    below[0] = 1.0;
    for steps in 1..tokens {
        let mut next = vec![0.0; needed];
        for (sum, mass) in below.iter().enumerate().filter(|(_, mass)| **mass > 0.0) {
            for (index, probability) in probability.iter().enumerate() {
                if let Some(slot) = next.get_mut(sum + index + 1) {
                    *slot += mass * probability;
                }
            }
        }
        below = next;
        if 1.0 - below.iter().sum::<f64>() >= unit {
            return steps;
        }
    }
    tokens
}

/// The same by a Cornish–Fisher quantile of the sum: n·μ + z·σ·√n + κ(z² − 1)/6 = tokens − ½, solved for n. The half
/// corrects for the lattice.
fn long_steps(emission: &Emission, width: u32, tokens: u32, unit: f64) -> u32 {
    // N ≤ n when the sum of n draws reaches the tokens, so the quantile of N at `unit` is where the sum's lower
    // quantile at 1 − unit does.
    let z = standard_normal_quantile(1.0 - unit);
    let goal = f64::from(tokens) - 0.5 - emission.skew_term * (z * z - 1.0) / 6.0;
    let half = z * emission.deviation;
    let root = (-half + (half * half + 4.0 * emission.mean * goal).sqrt()) / (2.0 * emission.mean);
    let exact = root * root;
    let whole = exact as u32;
    let steps = whole + u32::from(exact > f64::from(whole));
    let fewest = tokens.div_ceil(width);
    steps.clamp(fewest, tokens)
}

/// Quantile of the standard normal law, from a table of statrs' exact one: cubic Hermite inside, exact in the tails.
fn standard_normal_quantile(p: f64) -> f64 {
    const CELLS: usize = 256;
    static TABLE: std::sync::OnceLock<Vec<(f64, f64)>> = std::sync::OnceLock::new();
    let table = TABLE.get_or_init(|| {
        let normal = Normal::standard();
        (0..=CELLS)
            .map(|i| {
                let at = (i as f64 / CELLS as f64).clamp(1e-9, 1.0 - 1e-9);
                let z = normal.inverse_cdf(at);
                // dz/dp = 1/φ(z)
                (z, (2.0 * std::f64::consts::PI).sqrt() * (z * z / 2.0).exp() / CELLS as f64)
            })
            .collect()
    });
    let position = p * CELLS as f64;
    let cell = position as u32 as usize;
    if !(4..CELLS - 4).contains(&cell) {
        return Normal::standard().inverse_cdf(p);
    }
    let t = position - f64::from(cell as u32);
    hermite(table[cell], table[cell + 1], t)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random::{Purpose, Streams, open_unit};
    use rand::Rng;

    fn drawn_steps(speculation: &Speculation, tokens: u32, acceptance: f64, generator: &mut impl Rng) -> u32 {
        let (mut sum, mut steps) = (0, 0);
        while sum < tokens {
            sum += speculation.draw_step(acceptance, open_unit(generator.next_u64()));
            steps += 1;
        }
        steps
    }

    /// Largest distance of two empirical distribution functions.
    fn kolmogorov_smirnov(mut a: Vec<u32>, mut b: Vec<u32>) -> f64 {
        a.sort_unstable();
        b.sort_unstable();
        let share = |sorted: &[u32], x: u32| sorted.partition_point(|v| *v <= x) as f64 / sorted.len() as f64;
        a.iter().chain(&b).map(|&x| (share(&a, x) - share(&b, x)).abs()).fold(0.0, f64::max)
    }

    #[test]
    fn drawn_and_summed_steps_have_the_same_law() {
        for (marginal, spread) in
            [(vec![0.8], 0.0), (vec![0.8, 0.64, 0.512], 0.0), (vec![0.88, 0.77, 0.66], 0.1), (vec![0.3, 0.05], 0.05)]
        {
            let speculation = Speculation::new(&marginal, spread).unwrap();
            for tokens in [1, 2, 7, 47, 48, 100, 1023, 4000] {
                let n = 4000;
                let mut blocks = Streams::new(7, 0).blocks(Purpose::Request);
                let mut generator = Streams::new(7, 0).endless(Purpose::ExactSteps, 0);
                let mut at_once = Vec::new();
                let mut summed = Vec::new();
                for id in 0..n {
                    let draws = blocks.draws(id);
                    at_once.push(speculation.steps(tokens, draws[0], draws[1]));
                    summed.push(drawn_steps(&speculation, tokens, draws[2], &mut generator));
                }
                // P(D > 2.3·sqrt(2/n)) < 1e-4; the seed is fixed.
                let distance = kolmogorov_smirnov(at_once, summed);
                assert!(distance < 2.3 * (2.0f64 / n as f64).sqrt(), "{marginal:?} {spread} {tokens}: {distance}");
            }
        }
    }

    #[test]
    fn quantiles_between_knots_are_those_of_the_law() {
        for (mean, spread) in [(0.78, 0.05), (0.5, 0.2), (0.9, 0.25), (0.97, 0.01), (0.3, 0.44)] {
            let concentration = mean * (1.0 - mean) / (spread * spread) - 1.0;
            let beta = Beta::new(mean * concentration, (1.0 - mean) * concentration).unwrap();
            for (index, found) in quantiles(&beta).into_iter().enumerate() {
                let exact = beta.inverse_cdf((index as f64 + 0.5) / TABLE_POINTS as f64);
                assert!((found - exact).abs() < 1e-4 * spread, "{mean} {spread} {index}: {found} {exact}");
            }
        }
    }

    #[test]
    fn certain_acceptance_needs_tokens_over_width_steps() {
        let speculation = Speculation::new(&[1.0, 1.0, 1.0], 0.0).unwrap();
        assert_eq!(speculation.steps(1024, 0.5, 0.5), 256);
        assert_eq!(speculation.steps(1025, 0.5, 0.5), 257);
        let never = Speculation::new(&[0.0], 0.0).unwrap();
        assert_eq!(never.steps(100, 0.5, 0.9), 100);
    }

    #[test]
    fn impossible_acceptance_is_refused() {
        for (marginal, spread) in [
            (vec![], 0.0),
            (vec![1.2], 0.0),
            (vec![0.5, 0.6], 0.0),
            (vec![f64::NAN], 0.0),
            (vec![0.5], 0.6),
            (vec![0.5], -0.1),
        ] {
            assert!(Speculation::new(&marginal, spread).is_err(), "{marginal:?} {spread}");
        }
    }
}
