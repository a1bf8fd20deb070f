//! What a setup would have measured at a point: the simulator run as the benchmark was.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::cost::CONTEXT_UNIT_BITS;
use crate::engine::observe::Unobserved;
use crate::engine::settings::Stride;
use crate::error::Result;
use crate::experiment::{Changes, JobSource, Setup};
use crate::random::Streams;
use crate::simulation::{InFlight, Outcome, simulate};
use crate::units::Span;

use super::points::Point;
use super::prior::Beside;

/// What is whole-numbered or structural about a setup and its benchmark.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Structure {
    /// Running requests at most; `None`: what the engine's own arithmetic gives.
    pub running_cap: Option<u32>,
    /// Requests per point as a multiple of its concurrency, where the table does not say.
    pub waves: u32,
    /// Requests that the client really keeps in flight at most.
    pub client_cap: Option<u32>,
}

/// What would have been measured on one replica.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Prediction {
    /// Output tokens per second, averaged over replications.
    pub tok_per_s: f64,
    /// Standard deviation of the logarithm of that rate from run to run.
    pub run_deviation: f64,
    /// Mean time to first token, ms.
    pub ttft_ms: Option<f64>,
    /// Mean time per output token, ms.
    pub tpot_ms: Option<f64>,
    /// Requests running on average.
    pub mean_running: f64,
}

/// Requests over all replications of a point: enough to average over the acceptance of single requests.
const REQUESTS_PER_POINT: u64 = 96;
const MOST_REPLICATIONS: u64 = 8;

/// Rows of one benchmark send the same prompts as far as they send as many: of the scatter between requests about half is
/// common to all rows, which the acceptance takes up.
const OWN_SCATTER: f64 = 0.5;

/// Quantiles of the acceptance at which the spread of request lengths in steps is taken.
const QUANTILES: u32 = 16;

/// A decode window lasts about this long, seconds, and a request writes at most so many tokens in it: the context grows
/// by half of it on average.
const WINDOW_S: f64 = 30.0;
const WINDOW_TOKENS: f64 = 8192.0;

/// Sharpness with which the host link takes over as the bottleneck.
const LINK_EXPONENT: f64 = 6.0;

/// Simulations of this process so far: only for saying how fast they run.
static SIMULATIONS: AtomicU64 = AtomicU64::new(0);

/// Simulations of this process so far.
pub fn simulations() -> u64 {
    SIMULATIONS.load(Ordering::Relaxed)
}

/// Replications of a point with so many requests: draws matter only where requests differ.
fn replications(setup: &Setup, requests: u64) -> u64 {
    if setup.settings.speculation.is_none() {
        return 1;
    }
    REQUESTS_PER_POINT.div_ceil(requests).clamp(1, MOST_REPLICATIONS)
}

/// What `setup` would have measured at `point`. The draws of a seed are the same whatever the parameters, so the answer
/// moves smoothly with them.
///
/// # Errors
/// When a request of the point can never be served.
pub fn predict(setup: &Setup, point: &Point, structure: Structure, beside: Beside, seed: u64) -> Result<Prediction> {
    let concurrency = point.concurrency.min(structure.client_cap.unwrap_or(u32::MAX)).max(1);
    let cap = structure.running_cap.unwrap_or(setup.settings.running_cap);
    let single = if concurrency == 1 && setup.settings.speculation.is_none() { beside.single_token } else { 1.0 };
    let Some(output_tokens) = point.output_tokens else {
        return Ok(decode_window(setup, point, concurrency.min(cap), single));
    };
    let sent = point.requests.unwrap_or(u64::from(point.concurrency) * u64::from(structure.waves)).max(1);
    // Requests one after another differ from replications by nothing but the time to set them up.
    let in_a_row = concurrency == 1 && setup.settings.speculation.is_some();
    let simulated = if in_a_row { sent.max(REQUESTS_PER_POINT) } else { sent };
    let job = JobSource::benchmark(simulated, point.prompt_tokens, output_tokens)?;
    let change = Changes { running_cap: Some(cap), benchmark_output_tokens: Some(output_tokens) };
    let run = |replication: u64| -> Result<Outcome> {
        let streams = Streams::new(seed, replication);
        let workload = job.workload(streams)?;
        let mut fleet = setup.fleet(streams, Stride::Longest, change)?;
        fleet.replicas.truncate(1);
        fleet.in_flight = InFlight::PerReplica(concurrency);
        fleet.startup = Span::ZERO;
        simulate(fleet, job.stream(&workload, streams), &mut Unobserved)
    };
    let runs = (0..replications(setup, simulated)).map(run).collect::<Result<Vec<_>>>()?;
    SIMULATIONS.fetch_add(runs.len() as u64, Ordering::Relaxed);
    let count = runs.len() as f64;
    let linked = |outcome: &Outcome| {
        let rate = outcome.output_tok_per_s() * single;
        let Some(transfer_s) = beside.transfer_s else { return rate };
        let on_link = transfer_s / f64::from(output_tokens);
        (rate.powf(-LINK_EXPONENT) + on_link.powf(LINK_EXPONENT)).powf(-1.0 / LINK_EXPONENT)
    };
    let rate = runs.iter().map(linked).sum::<f64>() / count;
    let mean_ms = |value: &dyn Fn(&Outcome) -> Option<f64>| {
        let values: Vec<f64> = runs.iter().filter_map(value).collect();
        (!values.is_empty()).then(|| values.iter().sum::<f64>() / values.len() as f64 * 1e3)
    };
    Ok(Prediction {
        tok_per_s: rate,
        run_deviation: run_deviation(
            setup,
            output_tokens,
            sent,
            concurrency.min(cap),
            count * simulated as f64 / sent as f64,
        ),
        ttft_ms: mean_ms(&|run| run.mean_ttft_s),
        tpot_ms: mean_ms(&|run| run.mean_tpot_s.map(|tpot| tpot / single)),
        mean_running: runs.iter().map(|run| run.mean_running).sum::<f64>() / count,
    })
}

/// Standard deviation of the logarithm of a run's rate, and of its estimate from `replications` runs: requests differ
/// in steps by v (of the logarithm), so their sum by v / √requests, and the end of the last wave by that of the longest
/// of n requests, v · (1 + 0.55 ln n)^−0.6 over the number of waves (a fit to normal maxima, 1 to 64).
///
/// A formula and not the scatter of the replications, which with a handful of them is itself all scatter.
fn run_deviation(setup: &Setup, output_tokens: u32, requests: u64, running: u32, replications: f64) -> f64 {
    let Some(speculation) = &setup.settings.speculation else { return 0.0 };
    let at = |index: u32| {
        let draw = (f64::from(index) + 0.5) / f64::from(QUANTILES);
        f64::from(speculation.steps(output_tokens, draw, 0.5)).ln()
    };
    let mean = (0..QUANTILES).map(at).sum::<f64>() / f64::from(QUANTILES);
    let spread = ((0..QUANTILES).map(|i| (at(i) - mean).powi(2)).sum::<f64>() / f64::from(QUANTILES)).sqrt();
    let requests = requests as f64;
    let running = f64::from(running).min(requests).max(1.0);
    let longest = (1.0 + 0.55 * running.ln()).powf(-0.6) * running / requests;
    OWN_SCATTER * spread * requests.sqrt().recip().max(longest) * (1.0 + 1.0 / replications).sqrt()
}

/// A decode window: every stream holds its context (shared where the pool would not hold it for each) and writes; prefill
/// is not in the rate. The rate is
/// batch · tokens of a step ÷ step time, at the context half-way through the window.
fn decode_window(setup: &Setup, point: &Point, running: u32, single: f64) -> Prediction {
    let cost = setup.step_cost();
    let tokens = setup.settings.speculation.as_ref().map_or(1.0, |speculation| speculation.mean_tokens_per_step());
    let context = f64::from(point.prompt_tokens);
    let batch = running.max(1);
    let step_s = |context: f64| {
        let units = (f64::from(batch) * context * f64::from(1u32 << CONTEXT_UNIT_BITS)) as u64;
        let price = cost.decode(batch);
        let piece = price.segment(units);
        let attoseconds = price.fixed_attoseconds
            + piece.extra_attoseconds
            + u128::from(units) * u128::from(piece.slope_attoseconds)
            + u128::from(batch) * cost.window_attoseconds(context);
        Span(attoseconds).as_s() / single
    };
    let written = (WINDOW_S * tokens / step_s(context)).min(WINDOW_TOKENS);
    let step = step_s(context + 0.5 * written);
    Prediction {
        tok_per_s: f64::from(batch) * tokens / step,
        run_deviation: 0.0,
        ttft_ms: None,
        tpot_ms: Some(step / tokens * 1e3),
        mean_running: f64::from(batch),
    }
}
