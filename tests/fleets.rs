//! More cards: jobs that people ran on one and on several, and what simulation says of shards.
#![allow(clippy::unwrap_used, reason = "a panic is how a test fails, in its helpers too")]

use makespan::engine::observe::Unobserved;
use makespan::experiment::{Mechanism, Reduced, explain, run_at, scale, settled};
use makespan::model::scenario::{Override, Scenario};
use makespan::random::Streams;
use makespan::simulation::Outcome;
use makespan::stats::{mean, paired};

fn run(name: &str, set: &[String], replication: u64) -> Outcome {
    let overrides: Vec<Override> = set.iter().map(|text| Override::parse(text).unwrap()).collect();
    let mut scenario = Scenario::load(name, &overrides).unwrap();
    scenario.unknowns.clear();
    run_at(&scenario, &[], Streams::new(1, replication), &mut Unobserved).unwrap().1
}

/// E1: whole jobs of 1,200 requests on 1, 2 and 4 RTX 4090.
#[test]
fn makespan_of_two_and_four_cards_from_that_of_one() {
    let measured = [(1, 1060.9), (2, 505.1), (4, 269.2)];
    let seconds = |gpus: u32, share: f64| {
        let set = [format!("fleet.gpus={gpus}"), format!("engine.cost.bandwidth_share={share}")];
        run("qwen3-coder-30b-4090", &set, 0).makespan.as_s()
    };
    // Nothing fitted: priors only.
    for (gpus, measured) in measured {
        let simulated = run("qwen3-coder-30b-4090", &[format!("fleet.gpus={gpus}")], 0).makespan.as_s();
        println!(
            "{gpus} cards, priors: {simulated:.1} s against {measured} s: {:+.1}%",
            (simulated / measured - 1.0) * 100.0
        );
        assert!((simulated / measured - 1.0).abs() < 0.15, "{gpus}: {simulated}");
    }
    // One number fitted to the job on one card, the others predicted. Two cards did 5% better than half the time of one.
    let (mut low, mut high) = (0.3, 1.0);
    for _ in 0..30 {
        let middle = f64::midpoint(low, high);
        if seconds(1, middle) > measured[0].1 { low = middle } else { high = middle }
    }
    for (gpus, measured) in &measured[1..] {
        let simulated = seconds(*gpus, low);
        println!(
            "{gpus} cards, from one: {simulated:.1} s against {measured} s: {:+.1}%",
            (simulated / measured - 1.0) * 100.0
        );
        assert!((simulated / measured - 1.0).abs() < 0.07, "{gpus}: {simulated}");
    }
    // The cards hold about 41 requests each, whatever their number.
    let running = run("qwen3-coder-30b-4090", &["fleet.gpus=2".to_owned()], 0).mean_running;
    assert!((36.0..46.0).contains(&running), "{running}");
}

/// E4: static shards end with the slowest; the fewer requests a replica has, the more that costs.
#[test]
fn fixed_parts_take_longer_than_one_queue() {
    let cost = |requests: u32, replications: u64| {
        let seconds = |dispatch: &str| -> Vec<f64> {
            let set = [
                format!("job.requests={requests}"),
                "job.output_tokens={ law = \"lognormal\", median = 400, sigma = 1.0 }".to_owned(),
                "job.prompt_tokens=200".to_owned(),
                "job.max_tokens=32000".to_owned(),
                format!("fleet.dispatch={dispatch}"),
            ];
            (0..replications).map(|replication| run("qwen3.6-27b-914k", &set, replication).makespan.as_s()).collect()
        };
        let (shared, fixed) = (seconds("shared"), seconds("static"));
        let pair = paired(&fixed, &shared, 0.95).unwrap();
        let all = mean(&shared).unwrap();
        println!(
            "{requests} requests: fixed parts {:+.1}% ± {:.1}%",
            pair.mean / all * 100.0,
            pair.half_width.unwrap() / all * 100.0
        );
        (pair.mean / all, pair.half_width.unwrap() / all)
    };
    let (few, few_half) = cost(800, 400);
    let (many, many_half) = cost(12_800, 30);
    assert!(few - few_half > 0.0, "slower, and clearly so: {few} ± {few_half}");
    assert!(few - few_half > many + many_half, "{few} ± {few_half} against {many} ± {many_half}");
}

/// F1: two cards as two replicas serve twice the streams at twice the rate; as one replica of two they are not worth two.
#[test]
fn replicas_add_up_and_tensor_parallelism_does_not() {
    let rate = |gpus: u32, ranks: u32, streams: u32| {
        let set = [
            "fleet.hardware=rtx-4090".to_owned(),
            "model.llm=qwen3-8b".to_owned(),
            "model.weights=fp8".to_owned(),
            "job.requests=1024".to_owned(),
            "job.prompt_tokens=128".to_owned(),
            "job.output_tokens=512".to_owned(),
            "engine.max_num_seqs=64".to_owned(),
            format!("fleet.gpus={gpus}"),
            format!("fleet.tensor_parallel={ranks}"),
            format!("client.concurrency={streams}"),
            "client.per=total".to_owned(),
            "engine.speculation.enabled=false".to_owned(),
        ];
        run("qwen3.6-27b-914k-vllm", &set, 0).output_tok_per_s()
    };
    let (one, two, pair) = (rate(1, 1, 64), rate(2, 1, 128), rate(2, 2, 128));
    println!("one card {one:.0} tok/s, two replicas {two:.0}, one replica of two cards {pair:.0}");
    assert!((two / one - 2.0).abs() < 0.1, "{one} and {two}");
    assert!(pair < two, "{pair} and {two}");
}

/// What would explain a loss is found by simulation: put into the scenario, it gives that loss.
#[test]
fn a_value_that_explains_a_loss_gives_that_loss() {
    let scenario = Scenario::load("qwen3.6-27b-914k", &[]).unwrap();
    let shares = [0.9375, 0.875];
    let found = explain(&scenario, &shares, 1).unwrap();
    assert!((1500.0..1900.0).contains(&found.tok_per_s), "{}", found.tok_per_s);
    let reduced = Reduced::new(&scenario).unwrap();
    let time = |set: &[Override]| {
        let changed = Reduced { scenario: settled(&reduced.scenario.with(set).unwrap()), ..reduced };
        changed.run(&[], Streams::new(1, 0)).unwrap()
    };
    let whole = time(&[]);
    let mut keyed = 0;
    for it in &found.explanations {
        let needed: Vec<f64> = it.needed.iter().flatten().copied().collect();
        assert_eq!(needed.len(), 2, "{it:?}");
        assert!((needed[1] - it.now).abs() > 1.3 * (needed[0] - it.now).abs(), "more takes more: {it:?}");
        if it.key.contains('.') {
            for (value, share) in needed.iter().zip(shares) {
                let slower = time(&[Override::parse(&format!("{}={value}", it.key)).unwrap()]);
                assert!((whole / slower / share - 1.0).abs() < 2e-3, "{it:?}: {}", whole / slower);
                keyed += 1;
            }
        }
    }
    assert_eq!(keyed, 8);
}

#[test]
fn what_keeps_gpus_from_adding_up_is_as_large_as_it_must_be() {
    let scenario = Scenario::load("qwen3.6-27b-914k", &[Override::parse("job.requests=20000").unwrap()]).unwrap();
    let points = scale(&scenario, &[1, 4], 1, 2, &|| {}).unwrap();
    let of = |mechanism: Mechanism| {
        points.iter().find(|point| point.mechanism == mechanism && point.gpus == 4).unwrap().efficiency
    };
    assert!((of(Mechanism::Perfect) - 1.0).abs() < 0.01);
    // A slow card costs its own share with one queue, and everyone's with parts of their own.
    let (shared, own) = (of(Mechanism::Straggler), of(Mechanism::StragglerStatic));
    assert!((1.0 - shared - (1.0 - own) / 4.0).abs() < 0.02 && own < 0.85, "{shared} and {own}");
    assert!(of(Mechanism::Derating) < 0.98 && of(Mechanism::Derating) > 0.96);
    // 15 minutes in 100 hours, and half a request: 0.3%. This job takes six hours, so a failure may be absent.
    assert!(of(Mechanism::Failures) <= of(Mechanism::Perfect) + 1e-9 && of(Mechanism::Failures) > 0.9);
    // 0.1% of a link that four share is 0.4%.
    assert!((of(Mechanism::SharedRoot) - of(Mechanism::Perfect)).abs() < 0.01);
    assert!(
        of(Mechanism::Static) < of(Mechanism::Perfect) && of(Mechanism::SpreadStatic) < of(Mechanism::Static) + 0.02
    );
}

/// Reported of other nodes on jobs of this kind: 15,000 to 30,000 tok/s of eight B200, and far less of Ampere cards under
/// Transformers. Rates of a whole order apart; neither report says lengths, flags or versions.
#[test]
fn other_nodes_write_as_fast_as_was_reported_of_them() {
    let rate = |name: &str| {
        let scenario = Scenario::load(name, &[]).unwrap();
        let reduced = Reduced::new(&scenario).unwrap();
        let (_, outcome) = run_at(&settled(&reduced.scenario), &[], Streams::new(1, 0), &mut Unobserved).unwrap();
        let tokens = outcome.output_tokens as f64 * reduced.factor();
        tokens / reduced.makespan_s(&outcome)
    };
    let (b200, pro6000, a6000) = (rate("qwen3.6-27b-b200x8"), rate("qwen3.6-27b-914k"), rate("qwen3.6-27b-a6000"));
    assert!((15_000.0..30_000.0).contains(&b200), "{b200}");
    let transformers = rate("qwen3.6-27b-914k-transformers");
    assert!(b200 > 20.0 * a6000 && pro6000 > 3.0 * a6000, "{b200}, {pro6000}, {a6000}");
    assert!(pro6000 > 1.5 * transformers, "{pro6000}, {transformers}");
}
