//! A PCIe root that cards share: between the GPUs of a replica and between replicas.
#![allow(clippy::unwrap_used)]

use std::path::Path;

use makespan::engine::observe::Unobserved;
use makespan::engine::settings::Stride;
use makespan::experiment::{JobSource, Setup};
use makespan::model::scenario::{Override, Scenario};
use makespan::random::Streams;
use makespan::simulation::Outcome;

/// More conversations than the pools hold, each turn as long as all: the host reads back for most of them.
const JOB: &str = r#"
    [job]
    requests = 240
    prompt_tokens = 9000
    output_tokens = { law = "lognormal", median = 80, sigma = 0.5 }
    sessions = { sessions = 80, turns = 3, turn_tokens = 3000 }
    [fleet]
    hardware = "h200"
    gpus = 1
    dispatch = "round_robin"
    [model]
    llm = "qwen3-8b"
    [engine]
    name = "sglang"
    kv_pool_tokens = 60000
    hicache = { ratio = 50.0, io_backend = "direct" }
"#;

fn run(sets: &[&str], stride: Stride) -> makespan::error::Result<Outcome> {
    let overrides: Vec<Override> = sets.iter().map(|text| Override::parse(text).unwrap()).collect();
    let scenario = Scenario::parse(JOB, "job", "job.toml", Path::new("").to_owned(), &overrides)?;
    let job = JobSource::new(&scenario)?;
    Setup::new(&scenario)?.run(&job, Streams::new(1, 0), stride, &mut Unobserved)
}

fn root(gpus: u32, gb_per_s: f64) -> String {
    let rate = gb_per_s * 1e9;
    let both = 1.5 * rate;
    format!(
        "fleet.pcie_root={{gpus={gpus}, h2d_bytes_per_s={rate:.1}, d2h_bytes_per_s={rate:.1}, both_bytes_per_s={both:.1}}}"
    )
}

fn with_root(sets: &[&str], root: &str) -> Outcome {
    let sets: Vec<&str> = sets.iter().copied().chain([root]).collect();
    run(&sets, Stride::Longest).unwrap()
}

const GB_PER_S: f64 = 4.0;

#[test]
fn a_root_that_is_wider_than_its_links_changes_nothing() {
    let four = ["fleet.gpus=4"];
    let free = run(&four, Stride::Longest).unwrap();
    assert!(free.reuse().unwrap().host_hit_share > 0.3, "{:?}", free.reuse());
    assert_eq!(with_root(&four, &root(2, 1000.0)).makespan, free.makespan);
    assert!(with_root(&four, &root(4, GB_PER_S)).makespan > free.makespan);
}

/// What replicas get of a root that they share lies between half of it for each and all of it for each.
#[test]
fn replicas_share_what_they_use_at_the_same_time() {
    let two = ["fleet.gpus=2"];
    let shared = with_root(&two, &root(2, GB_PER_S));
    let halves = with_root(&two, &root(1, GB_PER_S / 2.0));
    let whole = with_root(&two, &root(1, GB_PER_S));
    assert!(shared.makespan < halves.makespan && shared.makespan > whole.makespan);
    let moved: u64 = shared.replicas.iter().map(|replica| replica.reuse.unwrap().bytes[0]).sum();
    assert!(moved as f64 / shared.makespan.as_s() < GB_PER_S * 1e9);
    let sets = [two[0], &root(2, GB_PER_S)];
    assert_eq!(run(&sets, Stride::Stepwise).unwrap().makespan, shared.makespan);
    // Two that do the same at the same time have half of it each, whoever of them asks first. One kernel copies all
    // pages: of many small copies, the rests of one GPU's would be the other's gain.
    let same = [two[0], "job.output_tokens=80", "engine.hicache.io_backend=kernel"];
    let (shared, halves) = (with_root(&same, &root(2, GB_PER_S)), with_root(&same, &root(1, GB_PER_S / 2.0)));
    let ratio = shared.makespan.as_s() / halves.makespan.as_s();
    assert!((0.99..1.001).contains(&ratio), "{ratio}");
}

/// The GPUs of one replica copy the same at the same time: each has an equal part of their root.
#[test]
fn gpus_of_one_replica_have_equal_parts() {
    let one_replica = ["fleet.gpus=2", "fleet.tensor_parallel=2"];
    let together = with_root(&one_replica, &root(2, GB_PER_S));
    assert_eq!(with_root(&one_replica, &root(1, GB_PER_S / 2.0)).makespan, together.makespan);
    // Two replicas of two, all four cards behind one root.
    let two_replicas = ["fleet.gpus=4", "fleet.tensor_parallel=2"];
    assert!(
        with_root(&two_replicas, &root(4, GB_PER_S)).makespan > with_root(&two_replicas, &root(2, GB_PER_S)).makespan
    );
}

#[test]
fn a_root_that_cannot_be_or_changes_nothing_is_refused() {
    let refused = |sets: &[&str], words: &str| {
        let error = run(sets, Stride::Longest).map(|_| ()).unwrap_err().to_string();
        assert!(error.contains(words), "{error}");
    };
    refused(&[&root(3, 50.0), "fleet.gpus=6", "fleet.tensor_parallel=2"], "multiple of the other");
    refused(&[&root(2, 50.0), "engine.hicache.enabled=false"], "nothing is copied");
    refused(&[&root(0, 50.0)], "between 1 and 64");
    refused(&[&root(2, -1.0)], "above 0");
}
