//! Keys of a scenario for reuse, host tier and swapping: each moves the answer, or is refused where it could not.
#![allow(clippy::unwrap_used)]

use makespan::engine::observe::Unobserved;
use makespan::engine::settings::Stride;
use makespan::experiment::{JobSource, Setup};
use makespan::model::scenario::{DEFAULT_SCENARIO, Override, Scenario};
use makespan::random::Streams;
use makespan::simulation::Outcome;

const VLLM: &str = "qwen3.6-27b-914k-vllm";

fn run(name: &str, sets: &[&str]) -> makespan::error::Result<Outcome> {
    let common = ["fleet.gpus=1", "job.requests=60", "job.prompt_tokens=3000", "job.output_tokens=300"];
    let overrides: Vec<Override> = common.iter().chain(sets).map(|text| Override::parse(text).unwrap()).collect();
    let scenario = Scenario::load(name, &overrides)?;
    let job = JobSource::new(&scenario)?;
    Setup::new(&scenario)?.run(&job, Streams::new(1, 0), Stride::Longest, &mut Unobserved)
}

#[track_caller]
fn refused(name: &str, sets: &[&str], words: &str) {
    let error = run(name, sets).map(|_| ()).unwrap_err().to_string();
    assert!(error.contains(words), "{error}");
}

#[track_caller]
fn moves(name: &str, base: &[&str], change: &str) -> [Outcome; 2] {
    let changed: Vec<&str> = base.iter().copied().chain([change]).collect();
    let (before, after) = (run(name, base).unwrap(), run(name, &changed).unwrap());
    assert_ne!(before.makespan, after.makespan, "{change} changes nothing");
    [before, after]
}

#[test]
fn shared_prompts_move_the_answer_and_so_does_the_cache() {
    let shared = "job.shared_prefix_tokens=2800";
    for name in [DEFAULT_SCENARIO, VLLM] {
        let [alone, together] = moves(name, &[], shared);
        assert!(together.makespan < alone.makespan);
        let reuse = together.reuse().unwrap();
        assert!(reuse.device_hit_share > 0.5, "{name}: {reuse:?}");
        moves(name, &[shared], "job.prompts_per_prefix=3");
        moves(name, &[], "job.sessions={sessions=4, turns=3, turn_tokens=900}");
    }
    let off = ["engine.hicache.enabled=false", shared];
    let [_, uncached] = moves(DEFAULT_SCENARIO, &off, "engine.prefix_cache=false");
    assert!(uncached.reuse().is_none());
    let [_, by_flag] = moves(DEFAULT_SCENARIO, &off, "engine.disable_radix_cache=true");
    assert!(by_flag.reuse().is_none());
}

#[test]
fn hicache_keys_move_the_answer() {
    moves(DEFAULT_SCENARIO, &[], "engine.hicache.enabled=false");
    moves(DEFAULT_SCENARIO, &[], "engine.hicache.io_backend=direct");
    moves(DEFAULT_SCENARIO, &[], "engine.hicache.write_policy=write_back");
    // More sessions than the pool holds, in rounds: what the host keeps is read back, if it is large enough.
    let many = ["engine.kv_pool_tokens=40000", "job.sessions={sessions=20, turns=3, turn_tokens=1000}"];
    moves(DEFAULT_SCENARIO, &many, "engine.hicache={ratio=0.2}");
    moves(DEFAULT_SCENARIO, &many, "engine.hicache={bytes=5e8}");
    moves(DEFAULT_SCENARIO, &many, "engine.hicache.write_policy=write_through_selective");
}

#[test]
fn vllms_host_memory_moves_the_answer() {
    moves(VLLM, &[], "engine.kv_offloading_bytes=64e9");
    let swaps = ["engine.num_gpu_blocks_override=200", "job.output_tokens=3000", "engine.max_num_seqs=11"];
    let [recomputed, swapped] = moves(VLLM, &swaps, "engine.spill=running");
    assert!(recomputed.preemptions > 0 && swapped.preemptions > 0);
    assert!(swapped.recomputed_tokens < recomputed.recomputed_tokens);
    let swaps: Vec<&str> = swaps.into_iter().chain(["engine.spill=running"]).collect();
    moves(VLLM, &swaps, "engine.swap_space_bytes=1e6");
}

#[test]
fn what_would_change_nothing_is_refused() {
    refused(DEFAULT_SCENARIO, &["engine.prefix_cache=false"], "the prefix cache is off");
    refused(DEFAULT_SCENARIO, &["engine.hicache={ratio=2, bytes=1e9}"], "given twice");
    refused(DEFAULT_SCENARIO, &["engine.hicache={ratio=0}"], "above 0");
    refused(DEFAULT_SCENARIO, &["engine.spill=running"], "flag of vLLM");
    refused(DEFAULT_SCENARIO, &["job.prompts_per_prefix=2"], "no prefix is shared");
    refused(
        DEFAULT_SCENARIO,
        &["job.shared_prefix_tokens=9", "job.sessions={sessions=1, turns=1, turn_tokens=9}"],
        "keep one of the two",
    );
    refused(VLLM, &["engine.swap_space_bytes=1e9"], "nothing is swapped");
    refused(VLLM, &["engine.spill=running", "engine.kv_offloading_bytes=1e9"], "keep one");
    refused(VLLM, &["engine.hicache={}"], "flag of SGLang");
    refused(VLLM, &["engine.enable_prefix_caching=false", "engine.prefix_cache=true"], "turns the cache off");
    refused("qwen3.6-27b-914k-transformers", &["job.shared_prefix_tokens=9"], "no prefix cache");
    refused("qwen3.6-27b-914k-transformers", &["engine.prefix_cache=true"], "no such setting");
}
