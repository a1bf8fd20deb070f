//! Cases that people reported of batches that are smaller than asked for, plateaus, full pools and preemption, each with
//! its reduced input and the answer that it should get. What a measured table alone tells of A4, B1 and G1 is tested in
//! `src/measured/tests/reports.rs`.
#![allow(clippy::unwrap_used)]

mod harness;

use std::path::Path;
use std::sync::Arc;

use harness::*;
use makespan::cost::StepCost;
use makespan::engine::observe::{Limit, Observer, Unobserved};
use makespan::engine::prefix_cache::Prompts;
use makespan::engine::sequence::Sequence;
use makespan::engine::settings::{EngineSettings, PolicySettings, PrefixCacheSettings, RunningCap};
use makespan::experiment::Setup;
use makespan::model::scenario::Scenario;
use makespan::model::sizes::ModelSizes;
use makespan::simulation::{InFlight, Outcome, simulate};
use makespan::units::SimTime;
use makespan::workload::trace::{Trace, TraceOptions};

/// An engine whose prompts are read at `prefill_tok_per_s` and whose decode steps take `decode_s`.
fn rates(prefill_tok_per_s: f64, decode_s: f64) -> StepCost {
    let parameters = makespan::cost::CostParameters {
        step_gap_s: decode_s,
        per_request_s: 0.0,
        prefill_launch_s: 0.0,
        eager_launch_s: 0.0,
        ..parameters()
    };
    // Twice the parameters a token, at 0.6 of 2e14 FLOP/s.
    let model = ModelSizes { body_parameters: 0.6 * 2e14 / 2.0 / prefill_tok_per_s, ..toy_model(0.0, 0.0) };
    cost_of(&model, &parameters, 0)
}

fn run(settings: &EngineSettings, cost: impl Fn() -> StepCost, job: Job, in_flight: InFlight) -> Outcome {
    watched(settings, cost, job, in_flight, &mut Unobserved)
}

fn watched(
    settings: &EngineSettings,
    cost: impl Fn() -> StepCost,
    job: Job,
    in_flight: InFlight,
    observer: &mut impl Observer,
) -> Outcome {
    let mut fleet = fleet(settings, 1, cost);
    fleet.in_flight = in_flight;
    simulate(fleet, job, observer).unwrap()
}

fn cached(mut settings: EngineSettings, prompts: Prompts) -> EngineSettings {
    settings.prefix_cache =
        Some(PrefixCacheSettings { prompts: Arc::new(prompts), checkpoint_pages: None, state_slots: None });
    settings
}

#[track_caller]
fn near(found: f64, expected: f64, slack: f64) {
    assert!((found / expected - 1.0).abs() <= slack, "{found}, expected {expected}");
}

fn setup(engine: &str) -> makespan::error::Result<Setup> {
    let text = format!(
        r#"
        [job]
        requests = 100
        prompt_tokens = 1500
        output_tokens = 600
        [fleet]
        hardware = "rtx-pro-6000"
        gpus = 1
        [model]
        llm = "qwen3.6-27b"
        weights = "fp8"
        [engine]
        {engine}
        "#
    );
    Setup::new(&Scenario::parse(&text, "case", "case.toml", Path::new("").to_owned(), &[])?)
}

/// A1: the state pool caps the batch, whatever the configured maximum says.
#[test]
fn a1_slots_over_slots_per_request_cap_the_batch() {
    let engine = "name = \"sglang\"\nmax_running = 40\nstate_slots = 52\nstate_slots_per_request = 4";
    let setup = setup(engine).unwrap();
    assert_eq!((setup.settings.running_cap, setup.settings.cap_source), (13, RunningCap::StateSlots));
    assert!(setup.cap_note().contains("52 slots (given), 4 reserved"), "{}", setup.cap_note());
    let outcomes: Vec<Outcome> = [4u32, 8, 13, 20, 40]
        .iter()
        .map(|&streams| {
            let job = Job::new(&[(1500, 600); 156]);
            run(&setup.settings, || setup.step_cost(), job, InFlight::PerReplica(streams))
        })
        .collect();
    let rate = |index: usize| outcomes[index].output_tok_per_s();
    let ttft = |index: usize| outcomes[index].mean_ttft_s.unwrap();
    assert!(rate(0) < 0.7 * rate(2) && rate(1) < 0.85 * rate(2));
    for index in [3, 4] {
        near(rate(index), rate(2), 0.05);
        near(outcomes[index].mean_tpot_s.unwrap(), outcomes[2].mean_tpot_s.unwrap(), 0.05);
        assert_eq!(outcomes[index].main_limit().unwrap().0, Limit::StateSlots);
        assert_eq!(outcomes[index].replicas[0].counters.peak_running, 13);
    }
    assert!(ttft(3) > 2.0 * ttft(2) && ttft(4) > 2.0 * ttft(3));
}

/// A2: what is reserved sets the cap, what is held does not.
#[test]
fn a2_slots_reserved_and_slots_held_differ() {
    let engine = "name = \"sglang\"\nstate_slots = 60\nstate_slots_per_request = 6\nstate_slots_held_per_request = 5";
    let setup = setup(engine).unwrap();
    assert_eq!(setup.settings.running_cap, 10);
    assert_eq!(setup.limits.unwrap().state.unwrap().idle_slots(10), 10);
}

/// A3: more sequences than state blocks is refused with both numbers.
#[test]
fn a3_more_sequences_than_blocks_are_refused() {
    let engine = "name = \"vllm\"\nnum_gpu_blocks_override = 700\nmax_num_seqs = 1024";
    let error = setup(engine).map(|_| ()).unwrap_err().to_string();
    assert!(error.contains("1024") && error.contains("700") && error.contains("at most 700"), "{error}");
}

/// A4: rate × time per token is the batch that really ran, though nobody says what capped it.
#[test]
fn a4_the_batch_shows_in_rate_and_time_per_token() {
    let capped = settings(PolicySettings::Sglang(sglang()), 23, 1 << 22);
    let mut rates_at = Vec::new();
    for streams in [512u32, 2048] {
        let job = Job::new(&vec![(100, 400); 2 * streams as usize]);
        let outcome = run(&capped, || rates(1e6, 0.012), job, InFlight::PerReplica(streams));
        near(outcome.output_tok_per_s() * outcome.mean_tpot_s.unwrap(), 23.0, 0.03);
        rates_at.push(outcome.output_tok_per_s());
    }
    near(rates_at[1], rates_at[0], 0.02);
    // The table of the report: 1900 tok/s at 12 ms a token.
    near(1900.0 * 0.012, 23.0, 0.02);
}

/// B1: past the knee more streams only wait longer; for the makespan it does not matter.
#[test]
fn b1_beyond_the_plateau_latency_is_queue() {
    let job = || Job::new(&vec![(8192, 1024); 4096]);
    let engine = settings(PolicySettings::Sglang(sglang()), 16, 1 << 22);
    let outcomes: Vec<Outcome> = [16u32, 64, 512, 2048]
        .iter()
        .map(|&streams| run(&engine, || rates(40_000.0, 0.01), job(), InFlight::PerReplica(streams)))
        .collect();
    let makespan = |index: usize| outcomes[index].makespan.as_s();
    (1..4).for_each(|index| near(makespan(index), makespan(1), 0.01));
    assert!(makespan(0) < makespan(1) / 0.95, "95 % of the plateau is reached by 16");
    let ttft = |index: usize| outcomes[index].mean_ttft_s.unwrap();
    // The last streams start with a full queue, so the ratio is somewhat less than that of the streams.
    assert!((2.5..=4.2).contains(&(ttft(3) / ttft(2))), "{}", ttft(3) / ttft(2));
}

/// B2: offered more than the prefill can take, the queue grows without bound.
#[test]
fn b2_prefill_bounds_what_can_be_offered() {
    let requests = 200;
    let arrivals: Vec<f64> = (0..requests).map(|request| f64::from(request) / 0.8).collect();
    let job = Job::new(&vec![(12_000, 150); requests as usize]).arriving(&arrivals);
    let engine = settings(PolicySettings::Vllm(vllm()), 64, 1 << 21);
    let mut log = Log::default();
    let outcome = watched(&engine, || rates(5000.0, 0.020), job, InFlight::All, &mut log);
    let capacity = f64::from(requests) / outcome.makespan.as_s();
    assert!(capacity < 5000.0 / 12_000.0 && capacity > 0.3, "{capacity}");
    // Twice the load is offered: half of it waits when the last request arrives.
    let last = SimTime::from_s(arrivals[arrivals.len() - 1]).unwrap();
    let open = log.completed.iter().filter(|(.., at)| *at > last).count();
    assert!(open as f64 > 0.45 * f64::from(requests), "{open}");
    assert!(outcome.output_tok_per_s() < 63.0);
    assert!(outcome.ledger.share(makespan::cost::Cause::Prefill) > 0.8);
}

/// B3: agents that repeat their conversation are limited by what is new in their prompts.
#[test]
fn b3_reused_turns_leave_the_new_tokens_as_the_limit() {
    const TURN: u32 = 4500;
    let lengths: Vec<(u32, u32)> = (0..60 * 5).map(|request| ((request / 60 + 1) * TURN, 300)).collect();
    let prompts = Prompts::Sessions { sessions: 60, turns: 5, system_tokens: 0, turn_tokens: TURN };
    let engine = cached(settings(PolicySettings::Vllm(vllm()), 64, 2_000_000), prompts);
    let outcome = run(&engine, || rates(25_000.0, 0.010), Job::new(&lengths), InFlight::PerReplica(60));
    let counters = &outcome.replicas[0].counters;
    near(counters.prefill_tokens as f64 / lengths.len() as f64, f64::from(TURN), 0.02);
    // 25,000 tok/s over 4500 new tokens a request, 300 tokens each: 1667 tok/s at most.
    assert!((1000.0..1667.0).contains(&outcome.output_tok_per_s()), "{}", outcome.output_tok_per_s());
    let cache = outcome.replicas[0].reuse.unwrap().cache;
    // Turn t finds t of its t + 1 parts: 10 of 15.
    near(cache.device_hit_pages as f64 / cache.asked_pages as f64, 10.0 / 15.0, 0.02);
}

/// B4: a cliff: once the conversations do not fit the pool together, each is read anew.
#[test]
fn b4_past_the_pool_the_rate_falls() {
    let rate = |streams: u64| {
        // 14k of prompt, 24 blocks of 512 of it as the last time (88 %).
        let mut text = String::new();
        for request in 0..8 * streams {
            let own = (0..24).map(|block| (request % streams) * 100 + block);
            let new = (0..4).map(|block| 1_000_000 + 10 * request + block);
            let ids: Vec<String> = own.chain(new).map(|id| id.to_string()).collect();
            let ids = ids.join(",");
            text += &format!(
                "{{\"timestamp\":{request},\"input_length\":14000,\"output_length\":1500,\"hash_ids\":[{ids}]}}\n"
            );
        }
        let trace = Trace::from_reader(text.as_bytes(), Path::new("case.jsonl"), TraceOptions::default()).unwrap();
        let engine = settings(PolicySettings::Vllm(vllm()), 64, 400_000);
        let engine = cached(engine, Prompts::Recorded(trace.prefix_blocks.unwrap()));
        let job = Job::new(&vec![(14_000, 1500); 8 * streams as usize]);
        let outcome = run(&engine, || rates(8000.0, 0.02), job, InFlight::PerReplica(streams as u32));
        (outcome.output_tok_per_s(), outcome.preemptions, outcome.replicas[0].reuse.unwrap().cache)
    };
    let (at16, at24, at30) = (rate(16), rate(24), rate(30));
    assert!(at24.0 > 1.1 * at16.0, "{} then {}", at16.0, at24.0);
    assert!(at30.0 < 0.8 * at24.0, "{} then {}", at24.0, at30.0);
    let hits = |cache: &makespan::engine::prefix_cache::CacheCounters| {
        cache.device_hit_pages as f64 / cache.asked_pages as f64
    };
    assert!(hits(&at24.2) > 0.7 && hits(&at30.2) < 0.5, "{} then {}", hits(&at24.2), hits(&at30.2));
}

/// B5: where prompts are all, neither the cap nor the pool matters.
#[test]
fn b5_the_cap_does_not_matter_when_prefill_is_the_bottleneck() {
    for cap in [4, 8, 16] {
        let engine = settings(PolicySettings::Sglang(sglang()), cap, 1_270_000);
        let job = Job::new(&[(24_000, 200); 120]);
        let outcome = run(&engine, || rates(9000.0, 0.001), job, InFlight::PerReplica(cap));
        // 200 tokens for each 24,000 read at 9000 a second.
        near(outcome.output_tok_per_s(), 75.0, 0.06);
        assert!(outcome.ledger.share(makespan::cost::Cause::Prefill) > 0.9);
    }
}

/// D1: the pool is full in mid-flight: one request goes back and is read again.
#[test]
fn d1_a_full_pool_retracts_one_request() {
    let engine = settings(PolicySettings::Sglang(sglang()), 8, 500_000);
    let mut log = Log::default();
    let job = Job::new(&[(90_000, 30_000); 5]);
    let outcome = watched(&engine, || rates(20_000.0, 0.01), job, InFlight::All, &mut log);
    assert_eq!(outcome.preemptions, 1);
    assert_eq!(log.preempted.len(), 1);
    near(outcome.recomputed_tokens as f64, 100_000.0, 0.01);
    assert!(outcome.peak_pool_share > 0.999);
}

/// D2: what preempted requests find of themselves is no reuse.
#[test]
fn d2_recompute_is_kept_apart_from_hits() {
    let engine = cached(settings(PolicySettings::Vllm(vllm()), 1024, 300_000), Prompts::Distinct);
    let job = Job::new(&[(800, 800); 400]);
    let outcome = run(&engine, || rates(50_000.0, 0.02), job, InFlight::All);
    assert!((250..=375).contains(&outcome.replicas[0].counters.peak_running));
    assert!((180.0..370.0).contains(&outcome.mean_running), "{}", outcome.mean_running);
    assert!(outcome.preemptions > 0);
    let cache = outcome.replicas[0].reuse.unwrap().cache;
    assert_eq!((cache.device_hit_pages, cache.host_hit_pages), (0, 0));
    assert_eq!(cache.lookups, 400);
    assert!(cache.resumed_pages > 0);
}

/// Preemptions of one request.
struct Victim(u64, u32);

impl Observer for Victim {
    fn preempted(&mut self, _replica: usize, sequence: &Sequence, _at: SimTime) {
        self.1 += u32::from(sequence.request.id == self.0);
    }
}

/// D3: admitted by its first chunk, a long request is preempted again and again; with its whole prompt reserved it waits.
#[test]
fn d3_admission_by_chunk_thrashes() {
    let run = |reserve_full_prompt: bool| {
        let mut rules = vllm();
        rules.reserve_full_prompt = reserve_full_prompt;
        let engine = settings(PolicySettings::Vllm(rules), 64, 65_536);
        let mut lengths = vec![(8000, 1300); 7];
        lengths.push((20_000, 50));
        let mut arrivals = vec![0.0; 7];
        arrivals.push(8.0);
        let mut victim = Victim(7, 0);
        let job = Job::new(&lengths).arriving(&arrivals);
        let outcome = watched(&engine, || rates(20_000.0, 0.02), job, InFlight::All, &mut victim);
        (victim.1, outcome.recomputed_tokens, outcome.replicas[0].counters.prefill_tokens)
    };
    let (thrashed, recomputed, read) = run(false);
    let (waited, _, read_once) = run(true);
    assert!(thrashed >= 2, "{thrashed}");
    assert_eq!(waited, 0);
    assert!(recomputed > 2000 && read > read_once, "{recomputed}: {read} and {read_once}");
}

/// A single request that is larger than the pool is an answer with a reason.
#[test]
fn a_request_larger_than_the_pool_is_refused_with_the_numbers() {
    for policy in [PolicySettings::Sglang(sglang()), PolicySettings::Vllm(vllm())] {
        let engine = cached(settings(policy, 8, 10_000), Prompts::Distinct);
        let mut fleet = fleet(&engine, 1, || rates(20_000.0, 0.02));
        fleet.in_flight = InFlight::All;
        let error = simulate(fleet, Job::new(&[(100, 50), (9000, 2000)]), &mut Unobserved).unwrap_err().to_string();
        assert!(error.contains("11000") && error.contains("request 1"), "{error}");
    }
}
