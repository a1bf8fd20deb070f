//! Which explanation of a table is likely, what each predicts for what was not measured, and what to measure next.

use std::time::Instant;

use rand_distr::{Distribution, StandardNormal};
use rayon::prelude::*;

use crate::error::Result;
use crate::experiment::Setup;
use crate::measured::{Finding, Table};
use crate::model::scenario::Override;
use crate::random::{Purpose, Streams};

use super::caps::{ArithmeticCap, arithmetic_caps};
use super::fit::{FitOptions, unexplained};
use super::measurement::{Measurement, measurements};
use super::mechanism::Mechanism;
use super::mode::{Mode, find_modes};
use super::model::{Model, NOISE_FLOOR, rms_log_error};
use super::points::{Point, Points};
use super::posterior::{Draw, Posterior, sample, weighted_quantiles};
use super::predict::{Structure, predict, simulations};

/// One explanation with its fit.
#[derive(Clone)]
pub struct Explanation {
    /// The mechanism.
    pub mechanism: Mechanism,
    /// What its extra prior says.
    pub note: String,
    /// Its probability, given the table and that one of the mechanisms holds.
    pub probability: f64,
    /// Root mean square of ln(measured ÷ fitted) of its best fit.
    pub rms_log_error: f64,
    /// Logarithm of its marginal likelihood.
    pub log_evidence: f64,
    /// Its model.
    pub model: Model,
    /// Its best mode.
    pub best: Mode,
    /// Its posterior.
    pub posterior: Posterior,
    /// What it predicts for what was not measured: quantiles at 5, 50 and 95%, tokens per second.
    pub predicts: Vec<(Unmeasured, [f64; 3])>,
}

/// Situations that no row of the table shows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unmeasured {
    /// Twice the largest concurrency.
    TwiceInFlight,
    /// The running cap doubled, at the largest concurrency.
    CapDoubled,
    /// No running cap, at the largest concurrency.
    Uncapped,
    /// Outputs of 2,500 tokens, at the largest concurrency.
    LongOutputs,
    /// Without speculation, at the largest concurrency.
    WithoutDrafts,
    /// Four GPUs, each with the largest concurrency.
    FourGpus,
}

impl Unmeasured {
    /// All of them.
    pub const ALL: [Unmeasured; 6] = [
        Unmeasured::TwiceInFlight,
        Unmeasured::CapDoubled,
        Unmeasured::Uncapped,
        Unmeasured::LongOutputs,
        Unmeasured::WithoutDrafts,
        Unmeasured::FourGpus,
    ];

    /// The key in JSON.
    pub fn key(self) -> &'static str {
        match self {
            Unmeasured::TwiceInFlight => "twice_in_flight",
            Unmeasured::CapDoubled => "cap_doubled",
            Unmeasured::Uncapped => "uncapped",
            Unmeasured::LongOutputs => "output_2500",
            Unmeasured::WithoutDrafts => "speculation_off",
            Unmeasured::FourGpus => "four_gpus",
        }
    }
}

/// The whole diagnosis.
#[derive(Clone)]
pub struct Diagnosis {
    /// Explanations, the likeliest first.
    pub explanations: Vec<Explanation>,
    /// Cap of the running requests and its probability, under that mechanism.
    pub caps: Vec<(u32, f64)>,
    /// The engine's memory arithmetic under usual flags.
    pub arithmetic: Vec<ArithmeticCap>,
    /// What could be measured next, the best first.
    pub measurements: Vec<Measurement>,
    /// The largest concurrency of the table.
    pub most_in_flight: u32,
    /// What the check of the table found.
    pub findings: Vec<Finding>,
    /// Simulations of a point.
    pub simulations: u64,
    /// Seconds of wall time.
    pub wall_s: f64,
}

impl Diagnosis {
    /// Why no explanation must be trusted, if so.
    pub fn unexplained(&self) -> Option<String> {
        let best = self.explanations.first()?;
        unexplained(&best.model, &best.best, best.rms_log_error)
    }
}

/// Draws of each posterior that predictions are made from.
const PREDICTED_DRAWS: usize = 48;

/// Mechanisms less likely than the best by this factor (e¹²) get a fraction of the draws.
const EXCLUDED: f64 = 12.0;
const FEWER: usize = 5;

/// Output length of [`Unmeasured::LongOutputs`], tokens.
const LONG_OUTPUT: u32 = 2500;

/// Explains a table.
///
/// # Errors
/// As [`super::fit`].
pub fn diagnose(setup: &Setup, table: &Table, options: FitOptions) -> Result<Diagnosis> {
    let started = Instant::now();
    let before = simulations();
    let Points { used, findings, .. } = Points::new(setup, table)?;
    let Some(most) = used.iter().max_by_key(|point| point.concurrency).cloned() else {
        return Ok(nothing(findings));
    };
    let plain = without_speculation(setup);
    let fitted = Mechanism::ALL
        .into_par_iter()
        .map(|mechanism| {
            let (model, note) = mechanism.model(setup, &used, options.known, options.seed)?;
            let modes = find_modes(&model, None);
            Ok(Candidate { mechanism, note, model, modes })
        })
        .collect::<Result<Vec<_>>>()?;
    let likeliest = fitted.iter().map(Candidate::log_weight).fold(f64::NEG_INFINITY, f64::max);
    let mut explanations: Vec<Explanation> = fitted
        .into_par_iter()
        .filter_map(|candidate| {
            let excluded = candidate.log_weight() < likeliest - EXCLUDED;
            let draws = if excluded { options.draws / FEWER } else { options.draws };
            explain(candidate, plain.as_ref(), &most, draws)
        })
        .collect();
    let evidence = options.known.evidence;
    let weight = |explanation: &Explanation| {
        let seen = evidence.log_likelihood(explanation.mechanism, most.concurrency);
        explanation.log_evidence + explanation.mechanism.prior().ln() + seen
    };
    let best = explanations.iter().map(weight).fold(f64::NEG_INFINITY, f64::max);
    let total: f64 = explanations.iter().map(|explanation| (weight(explanation) - best).exp()).sum();
    for explanation in &mut explanations {
        explanation.probability = (weight(explanation) - best).exp() / total;
    }
    explanations.sort_by(|a, b| b.probability.total_cmp(&a.probability));
    let caps = explanations
        .iter()
        .find(|explanation| explanation.mechanism == Mechanism::RunningCap)
        .map(|explanation| cap_probabilities(&explanation.posterior))
        .unwrap_or_default();
    let arithmetic = arithmetic_caps(setup);
    let measurements = measurements(&explanations, &caps, &arithmetic, &most, plain.as_ref());
    Ok(Diagnosis {
        most_in_flight: most.concurrency,
        explanations,
        caps,
        arithmetic,
        measurements,
        findings,
        simulations: simulations() - before,
        wall_s: started.elapsed().as_secs_f64(),
    })
}

fn nothing(findings: Vec<Finding>) -> Diagnosis {
    Diagnosis {
        explanations: Vec::new(),
        caps: Vec::new(),
        arithmetic: Vec::new(),
        measurements: Vec::new(),
        most_in_flight: 0,
        findings,
        simulations: 0,
        wall_s: 0.0,
    }
}

/// The same setup without speculation; `None` where there is none to turn off.
fn without_speculation(setup: &Setup) -> Option<Setup> {
    setup.settings.speculation.as_ref()?;
    let off = Override::parse("engine.speculation.enabled=false").ok()?;
    let mut plain = Setup::new(&setup.scenario.with(&[off]).ok()?).ok()?;
    plain.replicas = 1;
    Some(plain)
}

/// A mechanism whose modes are known.
struct Candidate {
    mechanism: Mechanism,
    note: String,
    model: Model,
    modes: Vec<Mode>,
}

impl Candidate {
    /// Logarithm of its weight among the mechanisms, by Laplace's approximation.
    fn log_weight(&self) -> f64 {
        self.modes.first().map_or(f64::NEG_INFINITY, |mode| mode.log_evidence) + self.mechanism.prior().ln()
    }
}

fn explain(candidate: Candidate, plain: Option<&Setup>, most: &Point, draws: usize) -> Option<Explanation> {
    let Candidate { mechanism, note, model, modes } = candidate;
    let posterior = sample(&model, &modes, draws, model.seed);
    let best = modes.into_iter().next().filter(|_| !posterior.draws.is_empty())?;
    let predicts = Unmeasured::ALL
        .into_iter()
        .filter(|what| *what != Unmeasured::WithoutDrafts || plain.is_some())
        .filter_map(|what| Some((what, interval(what, &model, plain, &posterior, most)?)))
        .collect();
    Some(Explanation {
        mechanism,
        note,
        probability: 0.0,
        rms_log_error: rms_log_error(&model.points, &best.predictions),
        log_evidence: posterior.log_evidence,
        model,
        best,
        posterior,
        predicts,
    })
}

/// Quantiles of one measurement of `what`, noise included.
fn interval(
    what: Unmeasured,
    model: &Model,
    plain: Option<&Setup>,
    posterior: &Posterior,
    most: &Point,
) -> Option<[f64; 3]> {
    let draws = posterior.resample(PREDICTED_DRAWS);
    let share = 1.0 / draws.len().max(1) as f64;
    let values: Vec<(f64, f64)> = draws
        .iter()
        .enumerate()
        .filter_map(|(index, draw)| {
            let mut generator = Streams::new(model.seed, 0).endless(Purpose::Uncertainty, (1 << 40) + index as u64);
            let noise: f64 = StandardNormal.sample(&mut generator);
            let rate = rate_of(what, model, plain, draw, most)?;
            Some((rate * (draw.noise.hypot(NOISE_FLOOR) * noise).exp(), share))
        })
        .collect();
    (!values.is_empty()).then(|| weighted_quantiles(values, [0.05, 0.5, 0.95]))
}

fn rate_of(what: Unmeasured, model: &Model, plain: Option<&Setup>, draw: &Draw, most: &Point) -> Option<f64> {
    let Structure { running_cap, client_cap, .. } = draw.structure;
    let doubled = Structure { running_cap: running_cap.map(|cap| 2 * cap), ..draw.structure };
    let (point, structure, gpus) = match what {
        Unmeasured::TwiceInFlight => (most.at(2 * most.concurrency), draw.structure, 1.0),
        Unmeasured::CapDoubled => (most.at(most.concurrency), doubled, 1.0),
        Unmeasured::Uncapped => {
            (most.at(most.concurrency), Structure { running_cap: None, client_cap, ..draw.structure }, 1.0)
        }
        Unmeasured::LongOutputs => {
            let long = Point { output_tokens: most.output_tokens.map(|_| LONG_OUTPUT), ..most.at(most.concurrency) };
            (long, draw.structure, 1.0)
        }
        Unmeasured::WithoutDrafts => {
            return rate_without_drafts(model, plain?, draw, &most.at(most.concurrency));
        }
        Unmeasured::FourGpus => (most.at(most.concurrency), draw.structure, 4.0),
    };
    let (setup, mut beside) = model.setup_at(&draw.scores);
    // Four GPUs share the link.
    beside.transfer_s = beside.transfer_s.map(|seconds| seconds * gpus);
    Some(gpus * predict(&setup, &point, structure, beside, model.seed).ok()?.tok_per_s)
}

/// The rate of a draw without speculation: the same costs, the same cap.
pub(super) fn rate_without_drafts(model: &Model, plain: &Setup, draw: &Draw, point: &Point) -> Option<f64> {
    let mut setup = plain.clone();
    setup.settings.running_cap = model.setup.settings.running_cap;
    let beside = super::prior::apply(&mut setup, &model.priors, &draw.scores, &model.laws);
    Some(predict(&setup, point, draw.structure, beside, model.seed).ok()?.tok_per_s)
}

fn cap_probabilities(posterior: &Posterior) -> Vec<(u32, f64)> {
    let mut all: Vec<(u32, f64)> = Vec::new();
    for draw in &posterior.draws {
        let Some(cap) = draw.structure.running_cap else { continue };
        match all.iter_mut().find(|(known, _)| *known == cap) {
            Some((_, sum)) => *sum += draw.weight,
            None => all.push((cap, draw.weight)),
        }
    }
    all.sort_by(|a, b| b.1.total_cmp(&a.1));
    all
}
