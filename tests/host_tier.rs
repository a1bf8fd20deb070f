//! Prefix reuse, the host tier and swapping through the simulator: what recordings and the real engine say, the table of
//! recompute, restore and swap, and the case that the project started from.
#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "a panic is how a test fails; tables are for people")]

mod harness;

use std::path::Path;
use std::sync::Arc;

use harness::*;
use makespan::cost::{CapturedGraphs, CostParameters, StepCost, StepCostInputs};
use makespan::engine::host_tier::estimate::{Move, Recompute, crossover_tokens};
use makespan::engine::host_tier::{DevicePools, HostTierSettings};
use makespan::engine::link::{Copier, LinkSettings, Rates};
use makespan::engine::observe::Unobserved;
use makespan::engine::prefix_cache::Prompts;
use makespan::engine::settings::{
    EngineSettings, HostSettings, PolicySettings, PrefixCacheSettings, Spill, Stride, VllmSettings,
};
use makespan::experiment::{JobSource, Setup};
use makespan::model::hardware::{Hardware, HostLink};
use makespan::model::llm::Llm;
use makespan::model::quantisation::{KvDtype, Quantisation, StateDtype};
use makespan::model::scenario::{DEFAULT_SCENARIO, Override, Scenario};
use makespan::model::sizes::ModelSizes;
use makespan::random::Streams;
use makespan::simulation::{InFlight, Outcome, simulate};
use makespan::workload::trace::{Trace, TraceOptions};

/// Bytes of KV of a token of Qwen3-8B: 36 layers, 8 heads of 128, keys and values in bf16.
const QWEN3_8B_TOKEN: u64 = 147_456;

#[track_caller]
fn near(what: &str, found: f64, expected: f64, slack: f64) {
    println!("{what:<60} {found:>10.4} {expected:>10.4} {:>+7.2} %", (found / expected - 1.0) * 100.0);
    assert!((found / expected - 1.0).abs() <= slack, "{what}: {found}, expected {expected}");
}

fn run(settings: &EngineSettings, cost: impl Fn() -> StepCost, job: Job, in_flight: InFlight) -> Outcome {
    let mut fleet = fleet(settings, 1, cost);
    fleet.in_flight = in_flight;
    simulate(fleet, job, &mut Unobserved).unwrap()
}

/// Qwen3-8B under vLLM on an H200, with the shares of bandwidth and matrix rate that its own steps showed.
fn qwen3_8b(bandwidth_share: f64, flops_share: f64, max_running: u32) -> StepCost {
    let hardware = Hardware::find("h200").unwrap();
    let bf16 = Quantisation::find("bf16").unwrap();
    let sizes = Llm::find("qwen3-8b").unwrap().sizes(&bf16, KvDtype::Bf16, StateDtype::Float32).unwrap();
    let engine: makespan::model::engine::Engine = toml::from_str(include_str!("../models/engine/vllm.toml")).unwrap();
    let vllm = engine.vllm.as_ref().unwrap();
    let host = &engine.host;
    let layers = f64::from(sizes.layers);
    let parameters = CostParameters {
        bandwidth_share,
        flops_share,
        prefill_flops_share: flops_share * 0.61 / 0.75,
        smooth_exponent: 3.0,
        step_gap_s: host.step_gap_s_per_operation * host.operations_per_layer * layers,
        draft_pass_gap_s: 0.0,
        per_request_s: host.step_s_per_request,
        prefill_launch_s: host.prefill_launch_s_per_layer_in_graph * layers,
        eager_launch_s: host.prefill_launch_s_per_layer_eager * layers,
    };
    let largest = vllm.graph_max_tokens.min(vllm.graph_max_decode_steps * u64::from(max_running));
    let captured = vllm.graphs.sizes(largest).into_iter().map(|size| size as u32).collect();
    StepCost::new(StepCostInputs {
        sizes: &sizes,
        hbm_bytes_per_s: hardware.hbm_bytes_per_s,
        flops_per_s: hardware.bf16_flops_per_s,
        tensor_parallel: 1,
        communication_s: Box::new(|_, _| 0.0),
        parameters: &parameters,
        draft_steps: 0,
        state_moves: (0.0, 0.0),
        graphs: CapturedGraphs::new(captured, host.prefill_graph_max_tokens as u32),
        draft_prefill: false,
        step_table: None,
    })
}

fn vllm_settings(running_cap: u32, kv_tokens: u64) -> EngineSettings {
    let rules = VllmSettings { token_budget: 8192, reserve_full_prompt: true, watermark: 0.0, spill: Spill::Recompute };
    settings(PolicySettings::Vllm(rules), running_cap, kv_tokens)
}

fn cached(mut settings: EngineSettings, prompts: Prompts) -> EngineSettings {
    settings.prefix_cache =
        Some(PrefixCacheSettings { prompts: Arc::new(prompts), checkpoint_pages: None, state_slots: None });
    settings
}

fn pools(settings: &EngineSettings, token_bytes: u64, layers: u32) -> DevicePools {
    let page = u64::from(settings.page_tokens);
    DevicePools {
        page_tokens: settings.page_tokens,
        page_bytes: page * token_bytes,
        pages: settings.kv_pool_tokens / page,
        layers,
        state_bytes: 0,
        state_layers: 0,
        state_slots: 0,
    }
}

fn offloaded(mut settings: EngineSettings, link: LinkSettings, bytes: u64) -> EngineSettings {
    let tier = HostTierSettings::vllm_offload(pools(&settings, QWEN3_8B_TOKEN, 36), bytes);
    settings.host = Some(HostSettings { link, tier });
    settings
}

fn h200_link() -> LinkSettings {
    let hardware = Hardware::find("h200").unwrap();
    LinkSettings::new(&hardware.host_link, hardware.hbm_bytes_per_s, Copier::CopyEngine, true)
}

/// `traces/README.md` of the recordings: 36.64 % of the 288,500 blocks were there before.
#[test]
fn an_unbounded_cache_reuses_what_the_mooncake_conversations_share() {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../shared/traces/mooncake_conversation.jsonl.gz");
    if !file.is_file() {
        println!("skipped: no shared traces");
        return;
    }
    let trace = Trace::read(&file, TraceOptions::default()).unwrap();
    let lengths: Vec<(u32, u32)> = trace.rows.iter().map(|row| (row.prompt_tokens, row.output_tokens)).collect();
    let mut engine = vllm_settings(1024, 1 << 34);
    engine.page_tokens = 1;
    let engine = cached(engine, Prompts::Recorded(trace.prefix_blocks.unwrap()));
    let outcome = run(&engine, || constant_cost(1e-4), Job::new(&lengths), InFlight::PerReplica(1));
    let cache = outcome.replicas[0].reuse.unwrap().cache;
    assert_eq!(cache.lookups, lengths.len() as u64);
    // One token of each prompt is always computed, so a block of one token is never asked for.
    near("asked blocks", cache.asked_blocks as f64, 288_500.0, 0.001);
    near("reused blocks", cache.device_hit_blocks as f64 / cache.asked_blocks as f64, 0.3664, 0.003);
    let read = outcome.replicas[0].counters.prefill_tokens;
    assert_eq!(read + cache.device_hit_pages, outcome.prompt_tokens, "what is not found is computed");
}

/// 32 prompts of 4096 tokens in cyclic order, a pool that holds 12 (`qwen3-8b-kv-offload`).
#[test]
fn reading_back_beats_recomputing_as_measured() {
    // Each round brings the same 32 prompts.
    let text: String = (0..64u32)
        .map(|request| {
            let ids: Vec<String> = (0..8).map(|block| (request % 32 * 8 + block).to_string()).collect();
            let ids = ids.join(",");
            format!("{{\"timestamp\":{request},\"input_length\":4096,\"output_length\":16,\"hash_ids\":[{ids}]}}\n")
        })
        .collect();
    let trace = Trace::from_reader(text.as_bytes(), Path::new("rounds.jsonl"), TraceOptions::default()).unwrap();
    let prompts = Prompts::Recorded(trace.prefix_blocks.unwrap());
    let job = || Job::new(&[(4096, 16); 64]);
    let recompute = cached(vllm_settings(64, 49_152), prompts);
    let offload = offloaded(recompute.clone(), h200_link(), 24 << 30);
    let cost = || qwen3_8b(0.76, 0.75, 64);
    // Mean time to first token and time of the second round, by completions.
    let round = |settings: &EngineSettings, in_flight: u32| {
        let mut fleet = fleet(settings, 1, cost);
        fleet.in_flight = InFlight::PerReplica(in_flight);
        let mut log = Log::default();
        let outcome = simulate(fleet, job(), &mut log).unwrap();
        log.completed.sort_by_key(|(.., at)| *at);
        let begin = log.completed[31].3;
        let second = log.completed.iter().filter(|(id, ..)| *id >= 32);
        let submitted = |id: u64| log.submitted.iter().find(|(other, _)| *other == id).unwrap().1;
        let ttft = second.map(|(id, _, first, _)| first.since(submitted(*id)).as_s()).sum::<f64>() / 32.0;
        (ttft, outcome.makespan.since(begin).as_s(), outcome)
    };
    // The way of a request to the engine process and back is in what was measured and in no step: what a prompt of one
    // block took (15.7 ms, `qwen3-8b-prefill`) less what its step takes.
    let short = run(&recompute, cost, Job::new(&[(16, 1)]), InFlight::All);
    let way_s = 0.0157 - short.makespan.as_s();
    assert!((0.002..0.007).contains(&way_s), "{way_s}");
    let (ttft, ..) = round(&recompute, 1);
    near("ttft s, recomputed", ttft + way_s, 0.0979, 0.15);
    let (ttft, _, outcome) = round(&offload, 1);
    near("ttft s, read back", ttft + way_s, 0.0310, 0.15);
    let reuse = outcome.replicas[0].reuse.unwrap();
    assert_eq!((reuse.cache.device_hit_pages, reuse.cache.host_hit_blocks), (0, 32 * 8));
    assert!(reuse.bytes[0] <= reuse.bytes[1]);
    // Eight at a time, the second round after the first has ended.
    let batch = |settings: &EngineSettings| {
        let arrivals: Vec<f64> = (0..64).map(|request| if request < 32 { 0.0 } else { 10.0 }).collect();
        let settings = EngineSettings { running_cap: 8, ..settings.clone() };
        run(&settings, cost, job().arriving(&arrivals), InFlight::All).makespan.as_s() - 10.0
    };
    near("batch s, recomputed", batch(&recompute), 3.59, 0.15);
    near("batch s, read back", batch(&offload), 0.82, 0.15);
}

/// `qwen3-8b-kv16k` with the shares that the sweep without pressure showed.
#[test]
fn a_small_pool_costs_what_was_measured() {
    let rows = [(8, 1422.0), (16, 2883.0), (32, 4316.0), (64, 5336.0), (128, 5308.0)];
    let file = format!("{}/traces/measured/h200/qwen3-8b-kv16k.runs.csv", env!("CARGO_MANIFEST_DIR"));
    let mut reader = csv::Reader::from_path(file).unwrap();
    let runs: Vec<std::collections::HashMap<String, String>> = reader.deserialize().map(|row| row.unwrap()).collect();
    for (concurrency, rate) in rows {
        let row = runs.iter().find(|row| row["concurrency"] == concurrency.to_string()).unwrap();
        let number = |key: &str| row[key].parse::<f64>().unwrap();
        let engine = vllm_settings(number("max_num_seqs") as u32, number("kv_tokens") as u64);
        let job = Job::new(&vec![(128, 512); number("num_requests") as usize]);
        let mut fleet = fleet(&engine, 1, || qwen3_8b(0.76, 0.75, engine.running_cap));
        fleet.in_flight = InFlight::Total(concurrency);
        fleet.submit_interval = makespan::units::Span::from_s(0.15e-3).unwrap();
        let outcome = simulate(fleet, job, &mut Unobserved).unwrap();
        near(&format!("kv16k tok/s at {concurrency}"), outcome.output_tok_per_s(), rate, 0.06);
    }
}

/// A link of PCIe 4 or 5 with 16 lanes.
fn pcie(generation: u32) -> LinkSettings {
    let rate = if generation == 4 { 25e9 } else { 55e9 };
    let link = HostLink { h2d_bytes_per_s: rate, d2h_bytes_per_s: rate, both_bytes_per_s: 1.8 * rate, ..host_link() };
    LinkSettings::new(&link, 4.8e12, Copier::CopyEngine, true)
}

fn host_link() -> HostLink {
    Hardware::find("h200").unwrap().host_link
}

/// One of two requests is preempted once: the difference of two policies is that of moving and computing its context.
#[test]
fn swapping_beats_recomputing_from_the_closed_forms_crossover_on() {
    const TOKEN_BYTES: u64 = 1_200_000;
    const FLOPS_PER_PAIR: f64 = 2e6;
    let model = ModelSizes { prefill_attention_flops_per_pair: FLOPS_PER_PAIR, ..toy_model(0.0, TOKEN_BYTES as f64) };
    let model = ModelSizes { body_parameters: 1e9, ..model };
    let parameters = CostParameters { prefill_launch_s: 0.0, eager_launch_s: 0.0, ..parameters() };
    let cost = || cost_of(&model, &parameters, 0);
    let time_s = |context: u32, spill: Spill, generation: u32| {
        let rules = VllmSettings { token_budget: 1 << 24, reserve_full_prompt: true, watermark: 0.0, spill };
        let mut engine = settings(PolicySettings::Vllm(rules), 2, u64::from(2 * context + 64));
        engine.page_tokens = 1;
        engine.host = (spill == Spill::Running).then(|| HostSettings {
            link: pcie(generation),
            // A kernel copies the pages, so that the number of copies does not matter.
            tier: HostTierSettings {
                kernel_copies: true,
                ..HostTierSettings::vllm_offload(pools(&engine, TOKEN_BYTES, 10), 1 << 50)
            },
        });
        let outcome = run(&engine, cost, Job::new(&[(context, 64); 2]), InFlight::All);
        assert_eq!(outcome.preemptions, 1);
        outcome.makespan.as_s()
    };
    for generation in [4, 5] {
        let link = pcie(generation);
        let flops_per_s = 2e14 * 0.6;
        let recompute = Recompute { flops_per_token: 2e9, flops_per_pair: FLOPS_PER_PAIR, flops_per_s, fixed_s: 0.0 };
        // There and back, and a decode step for the token that a recomputed prompt comes with.
        let bytes = TOKEN_BYTES as f64;
        let s_per_token = 2.0 * bytes / link.rates.alone[0] as f64 + bytes / (0.8 * 1e12);
        let moving = Move { s_per_token, fixed_s: parameters.step_gap_s };
        let closed = crossover_tokens(&recompute, &moving).unwrap();
        let swap_wins =
            |context: u32| time_s(context, Spill::Running, generation) < time_s(context, Spill::Recompute, generation);
        let (mut loses, mut wins) = (64, 1 << 16);
        assert!(!swap_wins(loses) && swap_wins(wins), "PCIe {generation}: the crossover {closed} lies between");
        while wins - loses > 16 {
            let middle = u32::midpoint(loses, wins);
            if swap_wins(middle) { wins = middle } else { loses = middle }
        }
        near(&format!("crossover on PCIe {generation}, tokens"), f64::from(wins), closed, 0.05);
    }
}

/// Conversations of four turns on pools of a part of what they hold together. The rate rises with the number of
/// conversations, peaks where the pool is full and falls behind, unless the host keeps what the pool cannot.
#[test]
fn the_rate_rises_peaks_and_falls_and_restoring_holds_it() {
    const TURN: u32 = 3000;
    const OUTPUT: u32 = 300;
    const MOST: u64 = 48;
    let working_set = MOST * u64::from(4 * TURN + OUTPUT);
    let rate = |streams: u64, part: u64, way: &str, generation: u32| {
        let spill = if way == "swap" { Spill::Running } else { Spill::Recompute };
        let mut engine = vllm_settings(128, working_set / part);
        engine.policy =
            PolicySettings::Vllm(VllmSettings { token_budget: 8192, reserve_full_prompt: true, watermark: 0.0, spill });
        let prompts = Prompts::Sessions { sessions: streams, turns: 4, system_tokens: 0, turn_tokens: TURN };
        let mut engine = cached(engine, prompts);
        if way != "recompute" {
            engine = offloaded(engine, pcie(generation), 400 << 30);
        }
        if way == "swap" {
            // Older engines that swapped had no tier behind their cache: the host holds swapped requests alone.
            engine.prefix_cache = None;
        }
        let lengths: Vec<(u32, u32)> =
            (0..4 * streams).map(|request| ((request / streams) as u32 * TURN + TURN, OUTPUT)).collect();
        run(&engine, || qwen3_8b(0.76, 0.75, 128), Job::new(&lengths), InFlight::PerReplica(streams as u32))
            .output_tok_per_s()
    };
    println!("tok/s               conversations:       4       8      16      32      48");
    let mut table = std::collections::HashMap::new();
    for part in [8, 4, 2, 1] {
        for (way, generation) in [("recompute", 5), ("swap", 4), ("swap", 5), ("restore", 4), ("restore", 5)] {
            let rates = [4, 8, 16, 32, MOST].map(|streams| rate(streams, part, way, generation));
            let cells = rates.map(|rate| format!("{rate:8.0}")).concat();
            println!("pool 1/{part} {way:<10} PCIe {generation}        {cells}");
            table.insert((part, way, generation), rates);
        }
    }
    let peak = |rates: &[f64; 5]| rates.iter().copied().fold(0.0, f64::max);
    for part in [8, 4, 2] {
        let recompute = table[&(part, "recompute", 5)];
        let falls = if part == 8 { 0.98 } else { 0.95 };
        assert!(recompute[0] < 0.9 * peak(&recompute) && recompute[4] < falls * peak(&recompute), "{recompute:?}");
        let restore = table[&(part, "restore", 5)];
        assert!(restore[4] > 1.2 * recompute[4], "{restore:?} against {recompute:?}");
        assert!(restore[4] >= table[&(part, "restore", 4)][4]);
    }
    let whole = table[&(1, "recompute", 5)];
    assert!(whole[4] >= 0.97 * peak(&whole), "what fits does not fall: {whole:?}");
}

fn seed_case(overrides: &[&str]) -> (Setup, Outcome) {
    let overrides: Vec<Override> = overrides.iter().map(|text| Override::parse(text).unwrap()).collect();
    let scenario = Scenario::load(DEFAULT_SCENARIO, &overrides).unwrap();
    let setup = Setup::new(&scenario).unwrap();
    let job = JobSource::new(&scenario).unwrap();
    let outcome = setup.run(&job, Streams::new(1, 0), Stride::Longest, &mut Unobserved).unwrap();
    (setup, outcome)
}

/// By hand: a request of 133 + 1,813 tokens leaves 1,946 × 69,632 B = 135 MB of keys and values and one or two states of
/// 153.9 MB (one of its prompt if that reaches 256 tokens, one of its end). The whole job sends 0.94 requests a second,
/// 0.24 to each card: 0.24 × 0.3 GB = 70 MB/s of 55 GB/s, 0.13 %. The GPU waits for none of it, and what the copies take
/// from decode steps (6 % of a step while one runs, 0.13 % of the time) is lost in the ledger.
#[test]
fn hicache_is_not_what_limits_the_seed_case() {
    let requests = "job.requests=20000";
    let (_, without) = seed_case(&[requests, "engine.hicache.enabled=false"]);
    let (_, with) = seed_case(&[requests]);
    near("makespan with hicache, s", with.makespan.as_s(), without.makespan.as_s(), 0.01);
    for replica in &with.replicas {
        let reuse = replica.reuse.unwrap();
        let rate = reuse.bytes[1] as f64 / with.makespan.as_s();
        println!("written at {:.0} MB/s, {:.3} % of the link", rate / 1e6, rate / 55e9 * 100.0);
        assert!(rate > 50e6 && rate < 0.01 * 55e9, "{rate}");
        assert_eq!(reuse.bytes[0], 0, "distinct prompts read nothing back");
        assert!(replica.counters.slowed_time.as_s() / with.makespan.as_s() < 0.005);
    }
}

/// Narrower links until the copies cost a tenth of the rate: what the job leaves behind fills a link of some 70 MB/s.
#[test]
fn hicache_would_limit_the_seed_case_below_a_fraction_of_a_gigabyte_per_second() {
    let (setup, _) = seed_case(&["job.requests=100"]);
    let scenario = |text: &[&str]| {
        let all: Vec<Override> = text.iter().map(|text| Override::parse(text).unwrap()).collect();
        Scenario::load(DEFAULT_SCENARIO, &all).unwrap()
    };
    let job = JobSource::new(&scenario(&["job.requests=2000"])).unwrap();
    let streams = Streams::new(1, 0);
    let run = |mb_per_s: u64| {
        let workload = job.workload(streams).unwrap();
        let mut setup = Setup::new(&setup.scenario).unwrap();
        if let Some(host) = &mut setup.settings.host {
            host.link.rates = Rates { alone: [mb_per_s * 1_000_000; 2], both: [mb_per_s * 900_000; 2] };
        }
        let fleet = setup.fleet(streams, Stride::Longest, Default::default()).unwrap();
        simulate(fleet, job.stream(&workload, streams), &mut Unobserved).unwrap()
    };
    let free = run(55_000).output_tok_per_s();
    let mut limited_at = None;
    for mb_per_s in [10_000, 1000, 300, 100, 60, 40, 20] {
        let outcome = run(mb_per_s);
        let rate = outcome.output_tok_per_s();
        let (limit, share) = outcome.main_limit().unwrap();
        println!("{mb_per_s:>6} MB/s: {:.3} of the rate, {} for {share:.2}", rate / free, limit.key());
        if rate < 0.9 * free && limited_at.is_none() {
            limited_at = Some(mb_per_s);
        }
    }
    let at = limited_at.unwrap();
    assert!((20..=100).contains(&at), "{at} MB/s");
}

/// `cargo test --release --test host_tier -- --ignored --nocapture`
#[test]
#[ignore = "it measures time"]
fn the_host_tier_makes_the_simulation_at_most_half_longer() {
    let best_s = |sets: &[&str]| {
        let times = (0..5).map(|_| {
            let started = std::time::Instant::now();
            seed_case(sets);
            started.elapsed().as_secs_f64()
        });
        times.fold(f64::MAX, f64::min)
    };
    let (without, with) = (best_s(&["engine.hicache.enabled=false"]), best_s(&[]));
    println!("{without:.3} s without, {with:.3} s with: {:.2}", with / without);
    assert!(with / without <= 1.5);
}
