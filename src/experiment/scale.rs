//! More GPUs: what 1, 2, 4, 8 give under what may keep them from giving that many times one, and the question turned
//! round: what would have to be true for a given loss?

use rayon::prelude::*;
use toml::Value;

use crate::engine::observe::Unobserved;
use crate::error::{Error, InputError, Result};
use crate::experiment::replicate::{Reduced, run_at, settled};
use crate::experiment::setup::Setup;
use crate::model::scenario::{Override, Scenario};
use crate::random::Streams;
use crate::stats::{mean, mean_half_width};

/// Confidence of intervals of efficiencies.
const CONFIDENCE: f64 = 0.95;

/// Speeds of cards of one model differ by a few per cent: an assumption.
pub const SPREAD: f64 = 0.03;

/// Each further server on a host lengthens the gap between steps by this share of it: an assumption.
pub const HOST_SHARE: f64 = 0.25;

/// Something that may keep N GPUs from being N times one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mechanism {
    /// Nothing: equal replicas behind one queue.
    Perfect,
    /// Speeds differ; one queue.
    Spread,
    /// Each replica has its own part of the job.
    Static,
    /// Both.
    SpreadStatic,
    /// The host's processors are shared: the gap between steps grows with the servers on it.
    SharedHost,
}

impl Mechanism {
    /// All, in the order of reports.
    pub const ALL: [Mechanism; 5] =
        [Mechanism::Perfect, Mechanism::Spread, Mechanism::Static, Mechanism::SpreadStatic, Mechanism::SharedHost];

    /// The key in JSON.
    pub fn key(self) -> &'static str {
        match self {
            Mechanism::Perfect => "perfect",
            Mechanism::Spread => "speed_spread",
            Mechanism::Static => "static",
            Mechanism::SpreadStatic => "speed_spread_static",
            Mechanism::SharedHost => "shared_host",
        }
    }

    /// In words.
    pub fn words(self) -> String {
        match self {
            Mechanism::Perfect => "equal cards, one queue".to_owned(),
            Mechanism::Spread => format!("speeds spread by {:.0}%, one queue", SPREAD * 100.0),
            Mechanism::Static => "equal cards, a fixed part each".to_owned(),
            Mechanism::SpreadStatic => format!("speeds spread by {:.0}%, a fixed part each", SPREAD * 100.0),
            Mechanism::SharedHost => format!("step gap +{:.0}% for each further server", HOST_SHARE * 100.0),
        }
    }

    fn set(self, gpus: u32, gap_s: f64, replicas: u32) -> Vec<Override> {
        let mut set = vec![change("fleet.gpus", Value::Integer(i64::from(gpus)))];
        let fixed = matches!(self, Mechanism::Static | Mechanism::SpreadStatic);
        let spread = if matches!(self, Mechanism::Spread | Mechanism::SpreadStatic) { SPREAD } else { 0.0 };
        set.push(change("fleet.dispatch", Value::String(if fixed { "static" } else { "shared" }.to_owned())));
        set.push(change("fleet.speed_spread", Value::Float(spread)));
        if self == Mechanism::SharedHost {
            let gap = gap_s * (1.0 + HOST_SHARE * f64::from(replicas - 1));
            set.push(change("engine.cost.step_gap_s", Value::Float(gap)));
        }
        set
    }
}

fn change(key: &str, value: Value) -> Override {
    Override::new(key, value, "scale:")
}

/// One number of GPUs under one mechanism.
#[derive(Clone, Debug)]
pub struct Point {
    /// Cards.
    pub gpus: u32,
    /// What is assumed.
    pub mechanism: Mechanism,
    /// Completion time, days, mean over the replications.
    pub days: f64,
    /// Output rate over the whole job, tok/s.
    pub output_tok_per_s: f64,
    /// That rate over the number of GPUs times that of the fewest equal cards per card.
    pub efficiency: f64,
    /// Half the width of its 95% interval; `None` below two replications.
    pub half_width: Option<f64>,
}

/// Runs whole jobs of `scenario`, at its own values, for every number of GPUs under every mechanism.
///
/// # Errors
/// Numbers of GPUs that do not divide into replicas, and what a run leads to.
pub fn scale(
    scenario: &Scenario,
    gpus: &[u32],
    seed: u64,
    replications: u64,
    finished: &(dyn Fn() + Sync),
) -> Result<Vec<Point>> {
    let setup = Setup::new(scenario)?;
    if setup.limits.is_none() {
        return Err(scenario.error("engine.name", "a fixed rate scales as it is told to", "name an engine"));
    }
    let Some(&fewest) = gpus.iter().min() else {
        return Err(Error::Input(InputError::new("no numbers of GPUs", "give some, as in 1,2,4,8").key("--gpus")));
    };
    let ranks = setup.tensor_parallel;
    let rates = |mechanism: Mechanism, gpus: u32| -> Result<Vec<(f64, f64)>> {
        let changed = scenario.with(&mechanism.set(gpus, setup.parameters.step_gap_s, gpus / ranks))?;
        let settled = settled(&changed);
        let one = |index: u64| -> Result<(f64, f64)> {
            let (_, outcome) = run_at(&settled, &[], Streams::new(seed, index), &mut Unobserved)?;
            finished();
            Ok((outcome.makespan.as_s() / crate::units::SECONDS_PER_DAY, outcome.output_tok_per_s()))
        };
        (0..replications).into_par_iter().map(one).collect()
    };
    let base = rates(Mechanism::Perfect, fewest)?;
    let mut points = Vec::new();
    for mechanism in Mechanism::ALL {
        for &count in gpus {
            // With one replica there is nothing to share and no other part.
            let alone = count / ranks == 1 && !matches!(mechanism, Mechanism::Spread | Mechanism::SpreadStatic);
            let found = if alone && count == fewest { base.clone() } else { rates(mechanism, count)? };
            let ratio = |(own, base): (&(f64, f64), &(f64, f64))| own.1 / base.1 * f64::from(fewest) / f64::from(count);
            let efficiencies: Vec<f64> = found.iter().zip(&base).map(ratio).collect();
            let average =
                |value: &dyn Fn(&(f64, f64)) -> f64| found.iter().map(value).sum::<f64>() / found.len().max(1) as f64;
            points.push(Point {
                gpus: count,
                mechanism,
                days: average(&|run| run.0),
                output_tok_per_s: average(&|run| run.1),
                efficiency: mean(&efficiencies).unwrap_or(0.0),
                half_width: mean_half_width(&efficiencies, CONFIDENCE),
            });
        }
    }
    Ok(points)
}

/// A value that would explain a loss.
#[derive(Clone, Debug)]
pub struct Explanation {
    /// What would have to be true, in words, with `{}` for the value.
    pub what: &'static str,
    /// Its key.
    pub key: &'static str,
    /// As the scenario has it.
    pub now: f64,
    /// What it would have to be for each target; `None` where no value gives that.
    pub needed: Vec<Option<f64>>,
}

/// Solves for the values that turn the rate of equal cards into each of `shares` of it, all else as it is.
///
/// # Errors
/// What a run leads to.
pub fn explain(scenario: &Scenario, shares: &[f64], seed: u64) -> Result<Vec<Explanation>> {
    let perfect =
        [change("fleet.dispatch", Value::String("shared".into())), change("fleet.speed_spread", Value::Float(0.0))];
    let base = settled(&scenario.with(&perfect)?);
    let setup = Setup::new(&base)?;
    let reduced = Reduced::new(&base)?;
    let rate = |key: &str, value: f64| -> Result<f64> {
        let changed = base.with(&[change(key, Value::Float(value))])?;
        let job = Reduced { scenario: settled(&changed), ..reduced };
        Ok(1.0 / job.run(&[], Streams::new(seed, 0))?)
    };
    let whole = 1.0 / reduced.run(&[], Streams::new(seed, 0))?;
    let parameters = &setup.parameters;
    let mut candidates = vec![
        (
            "the gap between steps is longer with all servers at work, ms",
            "engine.cost.step_gap_s",
            parameters.step_gap_s,
            20.0 * parameters.step_gap_s.max(1e-3),
        ),
        (
            "cards reach less of their memory bandwidth together (clocks, heat)",
            "engine.cost.bandwidth_share",
            parameters.bandwidth_share,
            0.05,
        ),
        (
            "each running request costs more of a shared host, ms a step",
            "engine.cost.per_request_s",
            parameters.per_request_s,
            0.02,
        ),
    ];
    if let Some(acceptance) = base.tables.engine.speculation.as_ref().and_then(|speculation| speculation.acceptance) {
        candidates.push(("fewer drafted tokens are accepted", "engine.speculation.acceptance", acceptance, 0.05));
    }
    let mut found = Vec::new();
    for (what, key, now, worst) in candidates {
        let needed = |share: &f64| -> Result<Option<f64>> {
            let (mut good, mut bad) = (now, worst);
            if rate(key, bad)? > share * whole {
                return Ok(None);
            }
            for _ in 0..14 {
                let middle = f64::midpoint(good, bad);
                if rate(key, middle)? > share * whole { good = middle } else { bad = middle }
            }
            Ok(Some(f64::midpoint(good, bad)))
        };
        let needed = shares.par_iter().map(needed).collect::<Result<_>>()?;
        found.push(Explanation { what, key, now, needed });
    }
    // No simulation: a card that is down for a share of the time gives that share less.
    found.push(Explanation {
        what: "cards are down or starved, hours a day each",
        key: "down_hours_per_day",
        now: 0.0,
        needed: shares.iter().map(|share| Some((1.0 - share) * 24.0)).collect(),
    });
    Ok(found)
}
