//! More GPUs: what 1, 2, 4, 8 give under what may keep them from giving that many times one, and the question turned
//! round: what would have to be true for a given loss?

use rand::Rng;
use rayon::prelude::*;
use toml::Value;

use crate::engine::observe::Unobserved;
use crate::engine::settings::Stride;
use crate::error::{Error, InputError, Result};
use crate::experiment::jobs::JobSource;
use crate::experiment::replicate::{Reduced, settled};
use crate::experiment::setup::Setup;
use crate::model::scenario::{Override, Scenario};
use crate::random::{Purpose, Streams, open_unit};
use crate::simulation::Outcome;
use crate::stats::{mean, mean_half_width};
use crate::units::SECONDS_PER_DAY;

/// Confidence of intervals of efficiencies.
const CONFIDENCE: f64 = 0.95;

/// Speeds of cards of one model differ by a few per cent: an assumption.
pub const SPREAD: f64 = 0.03;

/// Each further server on a host lengthens the gap between steps by this share of it: an assumption.
pub const HOST_SHARE: f64 = 0.25;

/// A straggler takes this much longer for everything: an assumption (a card throttled by heat or power).
pub const STRAGGLER: f64 = 1.25;

/// Each further card in a chassis takes this share of everyone's clocks: an assumption.
pub const DERATING: f64 = 0.01;

/// A server fails once in so many hours, is back after so many, and has lost what was in flight: assumptions.
pub const MTBF_H: f64 = 100.0;
/// Hours to notice and start again, weights and graphs included.
pub const RESTART_H: f64 = 0.25;

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
    /// All cards behind one PCIe root: each has its part of one link.
    SharedRoot,
    /// One card is slower; one queue.
    Straggler,
    /// One card is slower; each has its own part.
    StragglerStatic,
    /// Clocks fall with the cards in the chassis.
    Derating,
    /// Servers fail and are started again; one queue.
    Failures,
}

impl Mechanism {
    /// All, in the order of reports.
    pub const ALL: [Mechanism; 10] = [
        Mechanism::Perfect,
        Mechanism::Spread,
        Mechanism::Static,
        Mechanism::SpreadStatic,
        Mechanism::SharedHost,
        Mechanism::SharedRoot,
        Mechanism::Straggler,
        Mechanism::StragglerStatic,
        Mechanism::Derating,
        Mechanism::Failures,
    ];

    /// The key in JSON.
    pub fn key(self) -> &'static str {
        match self {
            Mechanism::Perfect => "perfect",
            Mechanism::Spread => "speed_spread",
            Mechanism::Static => "static",
            Mechanism::SpreadStatic => "speed_spread_static",
            Mechanism::SharedHost => "shared_host",
            Mechanism::SharedRoot => "shared_pcie_root",
            Mechanism::Straggler => "straggler",
            Mechanism::StragglerStatic => "straggler_static",
            Mechanism::Derating => "derating",
            Mechanism::Failures => "failures",
        }
    }

    /// In words.
    pub fn words(self) -> String {
        let percent = |share: f64| format!("{:.0}%", share * 100.0);
        match self {
            Mechanism::Perfect => "equal cards, one queue".to_owned(),
            Mechanism::Spread => format!("speeds spread by {}, one queue", percent(SPREAD)),
            Mechanism::Static => "equal cards, a fixed part each".to_owned(),
            Mechanism::SpreadStatic => format!("speeds spread by {}, a fixed part each", percent(SPREAD)),
            Mechanism::SharedHost => format!("step gap +{} for each further server", percent(HOST_SHARE)),
            Mechanism::SharedRoot => "all cards on one PCIe link".to_owned(),
            Mechanism::Straggler => format!("one card {} slower, one queue", percent(STRAGGLER - 1.0)),
            Mechanism::StragglerStatic => format!("one card {} slower, a fixed part each", percent(STRAGGLER - 1.0)),
            Mechanism::Derating => format!("clocks -{} for each further card (power, heat)", percent(DERATING)),
            Mechanism::Failures => {
                format!("a failure in {MTBF_H:.0} h a server, {:.0} min to restart", RESTART_H * 60.0)
            }
        }
    }

    fn has_fixed_parts(self) -> bool {
        matches!(self, Mechanism::Static | Mechanism::SpreadStatic | Mechanism::StragglerStatic)
    }

    /// Whether it takes two servers for this to make a difference.
    fn needs_company(self) -> bool {
        !matches!(
            self,
            Mechanism::Spread
                | Mechanism::SpreadStatic
                | Mechanism::Straggler
                | Mechanism::StragglerStatic
                | Mechanism::Failures
        )
    }

    fn set(self, gpus: u32, gap_s: f64, replicas: u32) -> Vec<Override> {
        let mut set = vec![change("fleet.gpus", Value::Integer(i64::from(gpus)))];
        let dispatch = if self.has_fixed_parts() { "static" } else { "shared" };
        let spread = if matches!(self, Mechanism::Spread | Mechanism::SpreadStatic) { SPREAD } else { 0.0 };
        set.push(change("fleet.dispatch", Value::String(dispatch.to_owned())));
        set.push(change("fleet.speed_spread", Value::Float(spread)));
        if self == Mechanism::SharedHost {
            let gap = gap_s * (1.0 + HOST_SHARE * f64::from(replicas - 1));
            set.push(change("engine.cost.step_gap_s", Value::Float(gap)));
        }
        set
    }

    /// What no key of a scenario says.
    fn apply(self, setup: &mut Setup) {
        let count = setup.replicas;
        match self {
            Mechanism::Straggler | Mechanism::StragglerStatic => setup.slowness = vec![STRAGGLER],
            Mechanism::Derating => {
                let clocks = 1.0 - DERATING * f64::from(count * setup.tensor_parallel - 1);
                setup.slowness = vec![clocks.max(0.1).recip(); count as usize];
            }
            Mechanism::SharedRoot => {
                if let Some(host) = &mut setup.settings.host {
                    let rates = &mut host.link.rates;
                    for rate in rates.alone.iter_mut().chain(&mut rates.both) {
                        *rate /= u64::from(count);
                    }
                }
            }
            _ => {}
        }
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

/// Completion time, days, and tokens of the whole job.
type Run = (f64, f64);

/// Runs jobs of `scenario`, at its own values, for every number of GPUs under every mechanism: whole ones where each
/// replica has its own part, as the largest of them decides, else reduced ones.
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
    let runs = |mechanism: Mechanism, gpus: u32| -> Result<Vec<Run>> {
        let changed = settled(&scenario.with(&mechanism.set(gpus, setup.parameters.step_gap_s, gpus / ranks))?);
        let full = JobSource::new(&changed)?.requests();
        let job = if mechanism.has_fixed_parts() {
            Reduced { scenario: changed, full, requests: full }
        } else {
            let reduced = Reduced::new(&changed)?;
            Reduced { scenario: settled(&reduced.scenario), ..reduced }
        };
        let mut setup = Setup::new(&job.scenario)?;
        mechanism.apply(&mut setup);
        let source = JobSource::new(&job.scenario)?;
        let one = |index: u64| -> Result<Run> {
            let streams = Streams::new(seed, index);
            let outcome = setup.run(&source, streams, Stride::Longest, &mut Unobserved)?;
            finished();
            let seconds = job.makespan_s(&outcome);
            let tokens = outcome.output_tokens as f64 * job.factor();
            let seconds = match mechanism {
                Mechanism::Failures => with_failures(seconds, setup.replicas, lost_s(&outcome), streams),
                _ => seconds,
            };
            Ok((seconds / SECONDS_PER_DAY, tokens))
        };
        (0..replications).into_par_iter().map(one).collect()
    };
    let base = runs(Mechanism::Perfect, fewest)?;
    let mut points = Vec::new();
    for mechanism in Mechanism::ALL {
        for &count in gpus {
            let alone = count / ranks == 1 && mechanism.needs_company();
            let found = if alone && count == fewest { base.clone() } else { runs(mechanism, count)? };
            let per_day = |run: &Run| run.1 / run.0;
            let ratio = |(own, base): (&Run, &Run)| per_day(own) / per_day(base) * f64::from(fewest) / f64::from(count);
            let efficiencies: Vec<f64> = found.iter().zip(&base).map(ratio).collect();
            let average =
                |value: &dyn Fn(&Run) -> f64| found.iter().map(value).sum::<f64>() / found.len().max(1) as f64;
            points.push(Point {
                gpus: count,
                mechanism,
                days: average(&|run| run.0),
                output_tok_per_s: average(&|run| per_day(run) / SECONDS_PER_DAY),
                efficiency: mean(&efficiencies).unwrap_or(0.0),
                half_width: mean_half_width(&efficiencies, CONFIDENCE),
            });
        }
    }
    Ok(points)
}

/// Work that a failure destroys, seconds of its server: requests in flight are half done on average, and are run again.
fn lost_s(outcome: &Outcome) -> f64 {
    let each = outcome.output_tokens as f64 / outcome.completed.max(1) as f64;
    0.5 * each * outcome.mean_tpot_s.unwrap_or(0.0)
}

/// When servers that share a queue and together work for `seconds` each have done so, though each fails at random
/// (exponential times of work between failures), loses `lost_s` of work each time and is away for a restart. The
/// failures are drawn; the work between them goes on at the simulated rate.
fn with_failures(seconds: f64, servers: u32, lost_s: f64, streams: Streams) -> f64 {
    let (mtbf_s, restart_s) = (MTBF_H * 3600.0, RESTART_H * 3600.0);
    // Stretches of work (start, end, what they add) by server, long enough whatever happens: drawn as far as needed.
    let mut clocks: Vec<(f64, rand_chacha::ChaCha8Rng)> =
        (0..servers).map(|server| (0.0, streams.endless(Purpose::Replica, (1 << 40) + u64::from(server)))).collect();
    let mut left = seconds * f64::from(servers);
    // Servers at work from `.0` on until they fail at `.1`; the earliest failure ends a stretch of the whole fleet.
    let mut fails: Vec<f64> = clocks.iter_mut().map(|(_, rng)| exponential(mtbf_s, rng)).collect();
    let mut now = 0.0;
    loop {
        let working = clocks.iter().filter(|(from, _)| *from <= now).count() as f64;
        let back = clocks.iter().map(|(from, _)| *from).filter(|from| *from > now).fold(f64::INFINITY, f64::min);
        let failing = (0..fails.len()).min_by(|a, b| fails[*a].total_cmp(&fails[*b])).unwrap_or(0);
        let until = back.min(fails[failing]);
        if working > 0.0 && left <= working * (until - now) {
            return now + left / working;
        }
        left -= working * (until - now);
        now = until;
        if fails[failing] <= now {
            left += lost_s.min(now - clocks[failing].0);
            let (from, rng) = &mut clocks[failing];
            *from = now + restart_s;
            fails[failing] = *from + exponential(mtbf_s, rng);
        }
    }
}

fn exponential(mean: f64, rng: &mut impl Rng) -> f64 {
    -mean * open_unit(rng.next_u64()).ln()
}

/// A value that would explain a loss.
#[derive(Clone, Debug)]
pub struct Explanation {
    /// What would have to be true, in words.
    pub what: &'static str,
    /// Its key.
    pub key: &'static str,
    /// As the scenario has it.
    pub now: f64,
    /// What it would have to be for each target; `None` where no value gives that.
    pub needed: Vec<Option<f64>>,
}

/// What [`explain`] finds.
#[derive(Clone, Debug)]
pub struct Explained {
    /// The simulated rate of all GPUs at the scenario's values, tok/s.
    pub tok_per_s: f64,
    /// Values that would turn it into shares of it.
    pub explanations: Vec<Explanation>,
}

/// Halvings of the range in which a value is looked for.
const HALVINGS: usize = 18;

/// Solves for the values that turn the rate of equal cards into each of `shares` of it, all else as it is.
///
/// # Errors
/// What a run leads to.
pub fn explain(scenario: &Scenario, shares: &[f64], seed: u64) -> Result<Explained> {
    let perfect =
        [change("fleet.dispatch", Value::String("shared".into())), change("fleet.speed_spread", Value::Float(0.0))];
    let reduced = Reduced::new(&settled(&scenario.with(&perfect)?))?;
    let base = settled(&reduced.scenario);
    let setup = Setup::new(&base)?;
    let source = JobSource::new(&base)?;
    // Requests are the same ones, and so are their tokens: the time tells all.
    let seconds = |setup: &Setup| -> Result<(f64, f64)> {
        let outcome = setup.run(&source, Streams::new(seed, 0), Stride::Longest, &mut Unobserved)?;
        Ok((reduced.makespan_s(&outcome), outcome.output_tokens as f64 * reduced.factor()))
    };
    let (whole_s, tokens) = seconds(&setup)?;
    let keyed = |key: &str, value: f64| -> Result<f64> {
        let changed = settled(&base.with(&[change(key, Value::Float(value))])?);
        Ok(seconds(&Setup::new(&changed)?)?.0)
    };
    let slowed = |speeds: &dyn Fn(u32) -> f64| -> Result<f64> {
        let mut setup = setup.clone();
        setup.slowness = (0..setup.replicas).map(|replica| speeds(replica).recip()).collect();
        Ok(seconds(&setup)?.0)
    };
    // The least value from `now` towards `worst` with which the job takes as long as it must.
    let solve = |now: f64, worst: f64, time: &(dyn Fn(f64) -> Result<f64> + Sync)| -> Result<Vec<Option<f64>>> {
        let needed = |share: &f64| -> Result<Option<f64>> {
            let goal = whole_s / share;
            let (mut good, mut bad) = (now, worst);
            if time(bad)? < goal {
                return Ok(None);
            }
            for _ in 0..HALVINGS {
                let middle = f64::midpoint(good, bad);
                if time(middle)? < goal { good = middle } else { bad = middle }
            }
            Ok(Some(f64::midpoint(good, bad)))
        };
        shares.par_iter().map(needed).collect()
    };
    let parameters = &setup.parameters;
    let mut by_key = vec![
        (
            "the gap between steps with all servers at work, s",
            "engine.cost.step_gap_s",
            parameters.step_gap_s,
            20.0 * parameters.step_gap_s.max(1e-3),
        ),
        (
            "share of the memory bandwidth that the cards reach together",
            "engine.cost.bandwidth_share",
            parameters.bandwidth_share,
            0.05,
        ),
        (
            "work of a shared host for each running request and step, s",
            "engine.cost.per_request_s",
            parameters.per_request_s,
            0.02,
        ),
    ];
    if let Some(acceptance) = base.tables.engine.speculation.as_ref().and_then(|speculation| speculation.acceptance) {
        by_key.push(("share of drafted tokens accepted", "engine.speculation.acceptance", acceptance, 0.05));
    }
    let mut explanations = Vec::new();
    for (what, key, now, worst) in by_key {
        explanations.push(Explanation { what, key, now, needed: solve(now, worst, &|value| keyed(key, value))? });
    }
    let all = solve(1.0, 0.1, &|speed| slowed(&|_| speed))?;
    explanations.push(Explanation { what: "speed of every card (power, heat)", key: "speed", now: 1.0, needed: all });
    let one = solve(1.0, 0.02, &|speed| slowed(&|replica| if replica == 0 { speed } else { 1.0 }))?;
    explanations.push(Explanation { what: "speed of one card, one queue", key: "straggler", now: 1.0, needed: one });
    // No simulation: a card that is down for a share of the time gives that share less.
    explanations.push(Explanation {
        what: "hours a day in which each card is down or starved",
        key: "down_hours_per_day",
        now: 0.0,
        needed: shares.iter().map(|share| Some((1.0 - share) * 24.0)).collect(),
    });
    Ok(Explained { tok_per_s: tokens / whole_s, explanations })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failures_take_the_share_of_time_that_renewal_theory_gives() {
        // One server over a long time: of each cycle of work and restart, work less what is lost counts.
        let (seconds, lost) = (4e8, 600.0);
        let taken = with_failures(seconds, 1, lost, Streams::new(1, 0));
        let (mtbf, restart) = (MTBF_H * 3600.0, RESTART_H * 3600.0);
        let expected = seconds * (mtbf + restart) / (mtbf - lost);
        assert!((taken / expected - 1.0).abs() < 5e-4, "{taken} and {expected}");
    }

    #[test]
    fn servers_of_one_queue_fail_independently_and_share_the_work() {
        let alone = with_failures(1e8, 1, 0.0, Streams::new(2, 0)) / 1e8;
        let four = with_failures(1e8, 4, 0.0, Streams::new(2, 0)) / 1e8;
        assert!((alone - four).abs() < 1e-3, "{alone} and {four}");
    }
}
