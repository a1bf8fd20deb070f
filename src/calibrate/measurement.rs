//! What to measure next: the expected information about the mechanism, for what it costs.

use super::caps::ArithmeticCap;
use super::diagnose::{Explanation, rate_without_drafts};
use super::mechanism::Mechanism;
use super::model::NOISE_FLOOR;
use super::points::Point;
use super::posterior::Draw;
use super::predict::{Structure, predict};
use crate::experiment::Setup;

/// A measurement that could be made.
#[derive(Clone, Debug)]
pub struct Measurement {
    /// The key in JSON.
    pub name: &'static str,
    /// What to do, and what to look at.
    pub what: String,
    /// Minutes of a person's and the machine's time, about.
    pub minutes: f64,
    /// Expected information about the mechanism, bits.
    pub bits: f64,
    /// What each explanation that is still likely predicts.
    pub outcomes: Vec<(String, String)>,
}

/// A mechanism, or one of the two causes of a running cap that rates cannot tell apart.
struct Hypothesis {
    name: String,
    probability: f64,
    explanation: usize,
    cause: Cause,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Cause {
    StateSlots,
    Flag,
    Other,
}

/// Share of caps that come from state slots where the engine's arithmetic gives such a cap; the rest was set by hand.
const SLOTS_SHARE: f64 = 0.7;

/// Explanations below this probability are not listed with their outcomes.
const LISTED: f64 = 0.01;

/// Draws of each posterior.
const DRAWS: usize = 24;

const LN_2: f64 = std::f64::consts::LN_2;

/// All measurements, the one with most bits a minute first.
pub(super) fn measurements(
    explanations: &[Explanation],
    caps: &[(u32, f64)],
    arithmetic: &[ArithmeticCap],
    most: &Point,
    plain: Option<&Setup>,
) -> Vec<Measurement> {
    let hypotheses = hypotheses(explanations, arithmetic, plain.is_some());
    let cap = caps.first().map_or(1, |(cap, _)| *cap);
    let in_flight = most.concurrency;
    let log = |hypothesis: &Hypothesis| match (explanations[hypothesis.explanation].mechanism, hypothesis.cause) {
        (Mechanism::RunningCap, _) => format!("#running-req: {cap}, #queue-req: N - {cap}"),
        (Mechanism::KvPool, _) => "#running-req below N, token usage near 1.00".to_owned(),
        (Mechanism::Client, _) => "#running-req below N, #queue-req: 0".to_owned(),
        _ => "#running-req: N, #queue-req: 0".to_owned(),
    };
    let line = |hypothesis: &Hypothesis| match hypothesis.cause {
        Cause::StateSlots => {
            format!("max_running_requests={cap}, with a warning that the mamba state cache capped it")
        }
        Cause::Flag => format!("max_running_requests={cap}, and no such warning"),
        Cause::Other => "max_running_requests well above the plateau's knee".to_owned(),
    };
    let at = |structure: &dyn Fn(&Draw) -> Structure, concurrency: u32, tpot: bool| {
        let point = most.at(concurrency);
        let value = |hypothesis: &Hypothesis, draw: &Draw| {
            let model = &explanations[hypothesis.explanation].model;
            let (setup, beside) = model.setup_at(&draw.scores);
            let found = predict(&setup, &point, structure(draw), beside, model.seed).ok()?;
            if tpot { found.tpot_ms } else { Some(found.tok_per_s) }
        };
        hypotheses.iter().map(|h| normal(explanations, h, &|draw| value(h, draw))).collect::<Vec<_>>()
    };
    let as_fitted = |draw: &Draw| draw.structure;
    let middle = (1.5 * f64::from(cap)).round() as u32;
    let mut all = vec![
        discrete(
            "startup_line",
            format!("read the engine's start-up line: max_running_requests={cap}? and a warning beside it?"),
            1.0,
            &hypotheses,
            &line,
        ),
        discrete(
            "running_requests_in_log",
            format!("read the decode lines of the log at concurrency {in_flight}: #running-req and #queue-req"),
            2.0,
            &hypotheses,
            &log,
        ),
        continuous(
            "tpot_at_high_concurrency",
            format!("measure tpot at concurrency {in_flight}, ms"),
            6.0,
            &hypotheses,
            &at(&as_fitted, in_flight, true),
        ),
        continuous(
            "extra_point",
            format!("measure the rate at concurrency {middle}, tok/s"),
            5.0,
            &hypotheses,
            &at(&as_fitted, middle.max(1), false),
        ),
    ];
    if let Some(plain) = plain {
        let point = most.at(cap);
        let rates: Vec<(f64, f64)> = hypotheses
            .iter()
            .map(|h| {
                let model = &explanations[h.explanation].model;
                normal(explanations, h, &|draw| rate_without_drafts(model, plain, draw, &point))
            })
            .collect();
        let what = format!("turn MTP off and measure the rate at concurrency {cap}, tok/s");
        all.push(continuous("speculation_off", what, 15.0, &hypotheses, &rates));
        let doubled =
            |draw: &Draw| Structure { running_cap: draw.structure.running_cap.map(|c| 2 * c), ..draw.structure };
        let (kept, lifted) = (at(&as_fitted, in_flight, false), at(&doubled, in_flight, false));
        let rates: Vec<(f64, f64)> = hypotheses
            .iter()
            .enumerate()
            .map(|(index, h)| if h.cause == Cause::StateSlots { lifted[index] } else { kept[index] })
            .collect();
        let what = format!("double the state pool and measure the rate at concurrency {in_flight}, tok/s");
        all.push(continuous("state_pool_doubled", what, 20.0, &hypotheses, &rates));
    }
    all.sort_by(|a, b| (b.bits / b.minutes).total_cmp(&(a.bits / a.minutes)));
    all
}

fn hypotheses(explanations: &[Explanation], arithmetic: &[ArithmeticCap], drafts: bool) -> Vec<Hypothesis> {
    let slots = !arithmetic.is_empty() && drafts;
    let mut all = Vec::new();
    for (index, explanation) in explanations.iter().enumerate() {
        let mut add = |name: &str, share: f64, cause: Cause| {
            let probability = explanation.probability * share;
            all.push(Hypothesis { name: name.to_owned(), probability, explanation: index, cause });
        };
        match explanation.mechanism {
            Mechanism::RunningCap if slots => {
                add("running_cap by state slots", SLOTS_SHARE, Cause::StateSlots);
                add("running_cap by a flag", 1.0 - SLOTS_SHARE, Cause::Flag);
            }
            Mechanism::RunningCap => add("running_cap", 1.0, Cause::Flag),
            other => add(other.key(), 1.0, Cause::Other),
        }
    }
    all
}

/// Mean and deviation of the logarithm of one measurement under a hypothesis, noise included.
fn normal(explanations: &[Explanation], hypothesis: &Hypothesis, value: &dyn Fn(&Draw) -> Option<f64>) -> (f64, f64) {
    // What is all but excluded tells nothing: no simulations for it.
    if hypothesis.probability < 1e-4 {
        return (0.0, 1.0);
    }
    let posterior = &explanations[hypothesis.explanation].posterior;
    let draws = posterior.resample(DRAWS);
    let values: Vec<f64> = draws.iter().filter_map(|draw| value(draw)).map(f64::ln).collect();
    let count = values.len().max(1) as f64;
    let mean = values.iter().sum::<f64>() / count;
    let variance = values.iter().map(|value| (value - mean).powi(2)).sum::<f64>() / count;
    let noise = posterior.moments(|draw| draw.noise).0;
    (mean, (variance + noise * noise + NOISE_FLOOR * NOISE_FLOOR).sqrt())
}

fn discrete(
    name: &'static str,
    what: String,
    minutes: f64,
    hypotheses: &[Hypothesis],
    outcome: &dyn Fn(&Hypothesis) -> String,
) -> Measurement {
    let mut mass: Vec<(String, f64)> = Vec::new();
    for hypothesis in hypotheses {
        let found = outcome(hypothesis);
        match mass.iter_mut().find(|(known, _)| *known == found) {
            Some((_, sum)) => *sum += hypothesis.probability,
            None => mass.push((found, hypothesis.probability)),
        }
    }
    // A hypothesis fixes the outcome, so the information is the outcome's entropy.
    let bits = mass.iter().map(|(_, p)| if *p > 0.0 { -p * p.ln() / LN_2 } else { 0.0 }).sum();
    let listed = hypotheses.iter().filter(|hypothesis| hypothesis.probability >= LISTED);
    let outcomes = listed.map(|hypothesis| (hypothesis.name.clone(), outcome(hypothesis))).collect();
    Measurement { name, what, minutes, bits, outcomes }
}

fn continuous(
    name: &'static str,
    what: String,
    minutes: f64,
    hypotheses: &[Hypothesis],
    normals: &[(f64, f64)],
) -> Measurement {
    let listed: Vec<(&Hypothesis, (f64, f64))> = hypotheses.iter().zip(normals.iter().copied()).collect();
    let outcomes = listed
        .iter()
        .filter(|(hypothesis, _)| hypothesis.probability >= LISTED)
        .map(|(hypothesis, (mean, deviation))| {
            let at = |score: f64| (mean + score * deviation).exp();
            (hypothesis.name.clone(), format!("{:.1} ({:.1} to {:.1})", at(0.0), at(-1.645), at(1.645)))
        })
        .collect();
    Measurement { name, what, minutes, bits: information(&listed), outcomes }
}

/// Mutual information, bits, between the hypothesis and an outcome that is normal under each: ∫ Σ p f ln(f / Σ p f).
fn information(hypotheses: &[(&Hypothesis, (f64, f64))]) -> f64 {
    const CELLS: usize = 2000;
    let kept = || hypotheses.iter().filter(|(hypothesis, _)| hypothesis.probability > 1e-4);
    let low = kept().map(|(_, (mean, deviation))| mean - 5.0 * deviation).fold(f64::INFINITY, f64::min);
    let high = kept().map(|(_, (mean, deviation))| mean + 5.0 * deviation).fold(f64::NEG_INFINITY, f64::max);
    let width = (high - low) / CELLS as f64;
    let density = |x: f64, (mean, deviation): (f64, f64)| {
        (-0.5 * ((x - mean) / deviation).powi(2)).exp() / (deviation * (2.0 * std::f64::consts::PI).sqrt())
    };
    let mut sum = 0.0;
    for cell in 0..CELLS {
        let x = low + (cell as f64 + 0.5) * width;
        let mixture: f64 = kept().map(|(hypothesis, normal)| hypothesis.probability * density(x, *normal)).sum();
        for (hypothesis, normal) in kept() {
            let own = density(x, *normal);
            if own > 0.0 && mixture > 0.0 {
                sum += hypothesis.probability * own * (own / mixture).ln() * width;
            }
        }
    }
    (sum / LN_2).max(0.0)
}
