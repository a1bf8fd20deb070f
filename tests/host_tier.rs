//! Prefix reuse, the host tier and swapping through the simulator: what recordings and the real engine say, the table of
//! recompute, restore and swap, and the case that the project started from.
#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "a panic is how a test fails; tables are for people")]

mod harness;

use std::path::Path;
use std::sync::Arc;

use harness::*;
use makespan::cost::{CapturedGraphs, CostParameters, StepCost, StepCostInputs};
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
    let (ttft, ..) = round(&recompute, 1);
    near("ttft s, recomputed", ttft, 0.0979, 0.15);
    let (ttft, _, outcome) = round(&offload, 1);
    near("ttft s, read back", ttft, 0.0310, 0.15);
    let reuse = outcome.replicas[0].reuse.unwrap();
    assert_eq!((reuse.cache.device_hit_pages, reuse.cache.host_hit_blocks), (0, 32 * 8));
    assert!(reuse.bytes[0] <= reuse.bytes[1]);
    let (_, batch, _) = round(&recompute, 8);
    near("batch s, recomputed", batch, 3.59, 0.15);
    let (_, batch, _) = round(&offload, 8);
    near("batch s, read back", batch, 0.82, 0.15);
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
