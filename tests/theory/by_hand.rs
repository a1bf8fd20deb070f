//! Runs short enough to be added up by hand: one request against the roofline's formula, and identical requests in waves.

use crate::harness::*;
use makespan::cost::{CapturedGraphs, CostParameters, StepCost, StepCostInputs};
use makespan::engine::settings::{EngineSettings, PolicySettings, Stride};
use makespan::engine::speculation::Speculation;
use makespan::model::sizes::ModelSizes;
use makespan::random::Streams;
use makespan::simulation::{Dispatch, InFlight, simulate};
use makespan::units::{SimTime, Span};

fn policies() -> [(&'static str, PolicySettings); 3] {
    [
        ("sglang", PolicySettings::Sglang(sglang())),
        ("vllm", PolicySettings::Vllm(vllm())),
        ("static", PolicySettings::Static),
    ]
}

// ---- one request -------------------------------------------------------------------------------------------------

const WEIGHT_BYTES: f64 = 1e10;
/// A power of two, so that a token's share of a step is a whole number of attoseconds.
const KV_BYTES: f64 = 65_536.0;
const FLOPS_PER_PAIR: f64 = 40_960.0;
const PARAMETERS: f64 = WEIGHT_BYTES / 2.0;
// Rates of the harness: 1e12 B/s · 0.8 and 2e14 FLOP/s · 0.75 (decode) or 0.6 (prefill).
const BYTES_PER_S: f64 = 0.8e12;
const DECODE_FLOPS_PER_S: f64 = 1.5e14;
const PREFILL_FLOPS_PER_S: f64 = 1.2e14;

/// (wᵖ + cᵖ)^(1/p) of one reading of the weights and 2 FLOPs a parameter and token, p = 3.
fn weight_pass(tokens: f64, flops_per_s: f64) -> f64 {
    let memory = WEIGHT_BYTES / BYTES_PER_S;
    let compute = 2.0 * PARAMETERS * tokens / flops_per_s;
    (memory.powi(3) + compute.powi(3)).cbrt()
}

fn model() -> ModelSizes {
    ModelSizes { prefill_attention_flops_per_pair: FLOPS_PER_PAIR, ..toy_model(WEIGHT_BYTES, KV_BYTES) }
}

/// Time to read a prompt in chunks. The host launches chunk by chunk; with overlap it works at most one step ahead:
/// a launch begins at the later of the last launch's end and the last step's start, and no step ends before its launch.
fn prefill_by_hand(chunks: &[f64], overlap: bool, own: &CostParameters) -> f64 {
    let (mut end, mut start_before, mut host, mut read) = (0.0f64, 0.0f64, 0.0f64, 0.0);
    for &tokens in chunks {
        let start = end;
        let pairs = tokens * (read + (tokens + 1.0) / 2.0);
        let gpu = weight_pass(tokens, PREFILL_FLOPS_PER_S)
            + FLOPS_PER_PAIR * pairs / PREFILL_FLOPS_PER_S
            + own.step_gap_s
            + own.per_request_s;
        let launch = if tokens <= 512.0 { own.prefill_launch_s } else { own.eager_launch_s };
        let launch_start = if overlap { host.max(start_before) } else { start };
        host = launch_start + launch;
        end = (start + gpu).max(host);
        start_before = start;
        read += tokens;
    }
    end
}

#[track_caller]
fn must_take(found: SimTime, by_hand: f64, what: &str) {
    let error = found.as_s() / by_hand - 1.0;
    assert!(error.abs() < 1e-12, "{what}: {} s against {by_hand} s by hand", found.as_s());
}

#[test]
fn one_request_takes_the_sum_of_its_steps() {
    let own = parameters();
    for (name, policy) in policies() {
        for (prompt, output) in [(1u32, 1u32), (300, 2), (300, 777), (1500, 100), (5000, 3000)] {
            for overlap in [false, true] {
                let mut settings = settings(policy, 4, 100_000);
                settings.overlap = overlap;
                let fleet = fleet(&settings, 1, || cost_of(&model(), &own, 0));
                let outcome = simulate(fleet, Job::new(&[(prompt, output)]), &mut Log::default()).unwrap();
                // SGLang's chunk and vLLM's budget are 2048 tokens; `generate` reads a prompt at once.
                let limit = if name == "static" { u32::MAX } else { 2048 };
                let mut chunks = Vec::new();
                let mut left = prompt;
                while left > 0 {
                    chunks.push(f64::from(left.min(limit)));
                    left -= left.min(limit);
                }
                // Step j of n = L − 1 reads a context of P + j tokens: Σ = n·P + n(n + 1)/2.
                let n = f64::from(output - 1);
                let contexts = n * f64::from(prompt) + n * (n + 1.0) / 2.0;
                let decode = n * (weight_pass(1.0, DECODE_FLOPS_PER_S) + own.step_gap_s + own.per_request_s)
                    + contexts * KV_BYTES / BYTES_PER_S;
                let by_hand = prefill_by_hand(&chunks, overlap, &own) + decode;
                must_take(outcome.makespan, by_hand, &format!("{name} {prompt} + {output}, overlap {overlap}"));
                assert_eq!(outcome.steps, chunks.len() as u64 + u64::from(output) - 1);
            }
        }
    }
}

#[test]
fn one_request_with_certain_acceptance_takes_a_third_of_the_steps() {
    let own = parameters();
    for (name, policy) in &policies()[..2] {
        let (prompt, output) = (400.0, 1 + 3 * 250);
        let mut settings = settings(*policy, 4, 100_000);
        settings.speculation = Some(Speculation::new(&[1.0, 1.0], 0.0).unwrap());
        let fleet = fleet(&settings, 1, || cost_of(&model(), &own, 2));
        let outcome = simulate(fleet, Job::new(&[(400, output)]), &mut Log::default()).unwrap();
        // 250 steps of 3 tokens; step j = 0, 1, … reads P + 1 + 3j.
        let n = 250.0;
        let contexts = n * (prompt + 1.0) + 3.0 * n * (n - 1.0) / 2.0;
        // The verify pass holds 3 tokens; the toy has no draft weights, so a draft pass is its gap.
        let step =
            weight_pass(3.0, DECODE_FLOPS_PER_S) + own.step_gap_s + 2.0 * own.draft_pass_gap_s + own.per_request_s;
        let by_hand = prefill_by_hand(&[prompt], true, &own) + n * step + contexts * KV_BYTES / BYTES_PER_S;
        must_take(outcome.makespan, by_hand, name);
    }
}

#[test]
fn a_step_launched_kernel_by_kernel_ends_when_its_launch_does_until_the_context_hides_it() {
    // 12.5 ms of weights and 1.01 ms of gaps; the launch takes 14 ms: hidden beyond about 5000 tokens of context.
    let own = CostParameters { eager_launch_s: 0.014, ..parameters() };
    let cost = || {
        StepCost::new(StepCostInputs {
            sizes: &model(),
            hbm_bytes_per_s: 1e12,
            flops_per_s: 2e14,
            tensor_parallel: 1,
            communication_s: Box::new(|_, _| 0.0),
            parameters: &own,
            draft_steps: 0,
            state_moves: (2.0, 3.0),
            graphs: CapturedGraphs::new(Vec::new(), 512),
            draft_prefill: true,
            step_table: None,
        })
    };
    for (name, policy) in policies() {
        let settings = settings(policy, 4, 100_000);
        let outcome = simulate(fleet(&settings, 1, cost), Job::new(&[(500, 9001)]), &mut Log::default()).unwrap();
        let fixed = weight_pass(1.0, DECODE_FLOPS_PER_S) + own.step_gap_s + own.per_request_s;
        let decode: f64 = (1..=9000).map(|j| (fixed + f64::from(500 + j) * KV_BYTES / BYTES_PER_S).max(0.014)).sum();
        let launched_last = fixed + 9500.0 * KV_BYTES / BYTES_PER_S;
        assert!(fixed < 0.014 && launched_last > 0.014);
        let overlap = settings.overlap;
        must_take(outcome.makespan, prefill_by_hand(&[500.0], overlap, &own) + decode, name);
    }
}

// ---- identical requests ------------------------------------------------------------------------------------------

const STEP_S: f64 = 0.01;

fn steps_taken(settings: &EngineSettings, replicas: usize, dispatch: Dispatch, job: &Job) -> u128 {
    let mut took = None;
    for stride in [Stride::Longest, Stride::Stepwise, Stride::TokenExact] {
        let settings = EngineSettings { stride, ..settings.clone() };
        let mut fleet = fleet(&settings, replicas, || constant_cost(STEP_S));
        fleet.dispatch = dispatch;
        let makespan = simulate(fleet, job.clone(), &mut Log::default()).unwrap().makespan;
        let step = Span::from_s(STEP_S).unwrap().0;
        assert_eq!(makespan.0 % step, 0, "a whole number of steps");
        assert_eq!(*took.get_or_insert(makespan.0 / step), makespan.0 / step, "{stride:?}");
    }
    took.unwrap()
}

/// Identical requests start and end together, wave after wave. A wave of L output tokens is one prefill step and L − 1
/// decode steps. SGLang's host learns of the ends a step later, while a step of ended rows runs: L + 1 steps, except
/// where nothing is left to admit, in the last wave. vLLM computes no ended rows, so nothing overlaps with the host's
/// catching up and a wave takes L steps; `generate` does not overlap at all.
#[test]
fn identical_requests_take_waves_times_steps() {
    for (name, policy) in policies() {
        for (replicas, cap, requests, output) in
            [(1, 1, 5, 4), (1, 4, 12, 7), (1, 4, 13, 7), (3, 4, 24, 5), (3, 4, 25, 5), (3, 4, 35, 1), (2, 16, 200, 40)]
        {
            let job = Job::new(&vec![(10, output); requests]);
            let waves = requests.div_ceil(replicas * cap as usize) as u128;
            let length = u128::from(output);
            for overlap in [true, false] {
                let mut settings = settings(policy, cap, 1_000_000);
                settings.overlap = overlap;
                let lag = u128::from(overlap && name == "sglang");
                let by_hand = waves * (length + lag) - lag;
                let what = format!("{name}: {requests} of {output} on {replicas} × {cap}, overlap {overlap}");
                assert_eq!(steps_taken(&settings, replicas, Dispatch::Shared, &job), by_hand, "{what}");
                // The fullest share, which is whole, decides.
                for dispatch in [Dispatch::RoundRobin, Dispatch::Static] {
                    assert_eq!(steps_taken(&settings, replicas, dispatch, &job), by_hand, "{what}, {dispatch:?}");
                }
            }
        }
    }
}

/// SGLang reads k prompts a step and decodes when all places are taken: c/k prefill steps, then L − 1 decode steps and
/// the late one.
#[test]
fn identical_requests_in_several_prefill_steps_take_those_steps_more() {
    let (cap, per_step, waves, output) = (12u32, 4u64, 3u128, 9u32);
    let mut rules = sglang();
    rules.max_prefill_tokens = per_step * 50;
    rules.chunked_prefill_tokens = None;
    let settings = settings(PolicySettings::Sglang(rules), cap, 1_000_000);
    for replicas in [1, 2] {
        let job = Job::new(&vec![(50, output); replicas * cap as usize * waves as usize]);
        let by_hand = waves * u128::from(u64::from(cap) / per_step + u64::from(output)) - 1;
        assert_eq!(steps_taken(&settings, replicas, Dispatch::Shared, &job), by_hand);
    }
}

/// Two places, one of them held by a long request of H tokens; M short ones of L pass through the other. With overlap a
/// place is given back one step after the end, so one short request ends every L + 1 steps, without it every L.
/// Prefill beside decodes (vLLM) costs the long request nothing; SGLang's own prefill steps stop it, M − 1 times.
#[test]
fn a_place_is_given_back_one_step_late_under_overlap() {
    let (long, short, count) = (500u128, 6u128, 20u128);
    for (name, policy) in &policies()[..2] {
        for overlap in [false, true] {
            let mut lengths = vec![(10, long as u32)];
            lengths.extend(vec![(10, short as u32); count as usize]);
            let mut settings = settings(*policy, 2, 1_000_000);
            settings.overlap = overlap;
            let mut log = Log::default();
            simulate(fleet(&settings, 1, || constant_cost(STEP_S)), Job::new(&lengths), &mut log).unwrap();
            let step = Span::from_s(STEP_S).unwrap().0;
            for (id, _, _, at) in &log.completed {
                let id = u128::from(*id);
                let by_hand = match id {
                    0 if *name == "sglang" => long + count - 1,
                    0 => long,
                    _ => (id - 1) * (short + u128::from(overlap)) + short,
                };
                assert_eq!(at.0, by_hand * step, "{name}, request {id}, overlap {overlap}");
            }
        }
    }
}

/// A client with one request in flight sends the next when the last token comes. Where no ended rows are computed, no
/// time passes between two requests.
#[test]
fn one_request_in_flight_takes_its_steps_again_and_again() {
    for (name, policy) in &policies()[1..] {
        let settings = settings(*policy, 4, 100_000);
        let mut fleet = fleet(&settings, 1, || constant_cost(STEP_S));
        fleet.in_flight = InFlight::PerReplica(1);
        let outcome = simulate(fleet, Job::new(&[(10, 8); 6]), &mut Log::default()).unwrap();
        assert_eq!(outcome.makespan.0, Span::from_s(STEP_S).unwrap().0 * 6 * 8, "{name}");
    }
}

/// Streams of a replica play no part where nothing is drawn.
#[test]
fn without_speculation_the_seed_of_the_engine_changes_nothing() {
    let settings = settings(PolicySettings::Vllm(vllm()), 4, 100_000);
    let run = |seed| {
        let fleet = fleet_with(&settings, 2, Streams::new(seed, 0), || cost_of(&model(), &parameters(), 0));
        let mut log = Log::default();
        simulate(fleet, Job::new(&[(100, 50), (7, 300), (20, 4)]), &mut log).unwrap();
        log
    };
    assert_eq!(run(1), run(2));
}
