//! The numbers that the project started from, through the program itself.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a panic is how a test fails, in its helpers too")]

use assert_cmd::Command;
use serde_json::Value;

/// One JSON object that the program answers with.
fn answer(arguments: &[&str]) -> Value {
    let output = Command::cargo_bin("makespan").unwrap().args(arguments).arg("--json").output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{arguments:?}: {said}");
    serde_json::from_slice(&output.stdout).unwrap()
}

fn simulate(scenario: &str, set: &[&str]) -> Value {
    let mut arguments = vec!["simulate", scenario];
    set.iter().for_each(|over| arguments.extend(["--set", over]));
    answer(&arguments)
}

fn number(answer: &Value, key: &str) -> f64 {
    answer[key].as_f64().unwrap_or_else(|| panic!("{key} is no number in {answer}"))
}

#[track_caller]
fn close(what: &str, found: f64, expected: f64, tolerance: f64) {
    assert!((found / expected - 1.0).abs() <= tolerance, "{what}: {found}, expected {expected} ± {tolerance}");
}

const JOB: &str = "qwen3.6-27b-914k";

#[test]
fn the_napkin_gives_the_days_of_the_envelope() {
    for (requests, tokens, days) in [
        (914_000, 2500, 16.5),
        (914_000, 2000, 13.2),
        (914_000, 1500, 9.9),
        (500_000, 2500, 9.0),
        (500_000, 2000, 7.2),
        (914_000, 1200, 7.9),
    ] {
        let set = [format!("job.requests={requests}"), format!("job.output_tokens={tokens}")];
        let answer = simulate("napkin", &[&set[0], &set[1]]);
        close(&format!("{requests} requests of {tokens} tokens"), number(&answer, "makespan_days"), days, 0.01);
        close("rate", number(&answer, "output_tok_per_s"), 1600.0, 1e-4);
    }
}

#[test]
fn the_sweep_meets_every_measured_point_with_nothing_fitted() {
    let sweep = answer(&["sweep", JOB]);
    let points = sweep["points"].as_array().unwrap();
    let measured: Vec<(u64, f64)> = points
        .iter()
        .map(|point| (point["concurrency"].as_u64().unwrap(), number(point, "measured_tok_per_s")))
        .collect();
    assert_eq!(measured, [(1, 62.0), (4, 207.0), (8, 370.0), (16, 385.0), (32, 393.0), (48, 409.0)]);
    for point in points {
        let what = format!("at concurrency {}", point["concurrency"]);
        close(&what, number(point, "output_tok_per_s"), number(point, "measured_tok_per_s"), 0.08);
        if point["concurrency"].as_u64().unwrap() > 8 {
            assert_eq!(point["limit"], "state_slots", "{what}");
        }
    }
    // A cap shows as a first token that waits and a pace that does not change.
    let (at_16, at_48) = (&points[3], &points[5]);
    assert!(number(at_48, "ttft_ms") > 3.0 * number(at_16, "ttft_ms"));
    close("pace", number(at_48, "tpot_ms"), number(at_16, "tpot_ms"), 0.03);
    assert!(sweep["knee_concurrency"].as_u64().unwrap() <= 16);
}

#[test]
fn with_the_cap_lifted_the_rate_keeps_rising() {
    let sweep = answer(&["sweep", JOB, "--cap", "48"]);
    let points = sweep["points"].as_array().unwrap();
    for pair in points.windows(2).filter(|pair| pair[0]["concurrency"].as_u64().unwrap() >= 8) {
        let rise = number(&pair[1], "output_tok_per_s") / number(&pair[0], "output_tok_per_s");
        assert!(rise >= 1.2, "from {} to {}: {rise}", pair[0]["concurrency"], pair[1]["concurrency"]);
    }
    let (capped, lifted) = (answer(&["sweep", JOB]), points);
    for (capped, lifted) in capped["points"].as_array().unwrap().iter().zip(lifted).take(3) {
        let rate = |point: &Value| number(point, "output_tok_per_s");
        assert_eq!(rate(capped), rate(lifted), "a cap changes nothing below it");
    }
}

#[test]
fn the_job_takes_days_and_state_slots_are_why() {
    let job = simulate(JOB, &[]);
    let days = number(&job, "makespan_days");
    assert!((9.0..14.0).contains(&days), "{days} days");
    assert_eq!(job["requests"], 914_000);
    assert_eq!(job["limit"], "state_slots");
    assert!(number(&job["limit_share"], "state_slots") > 0.99);
    assert_eq!(job["running_cap"], 8);
    assert!(number(&job, "mean_running") > 7.9);
    assert_eq!(job["preemptions"], 0);
    close("napkin", number(&job, "napkin_days"), 16.53, 0.001);
}

#[test]
fn the_memory_arithmetic_alone_caps_the_batch_at_six_to_nine() {
    let shown = answer(&["show", JOB, "--kind", "scenario"]);
    assert_eq!(shown["running_cap"], 8);
    let text = include_str!("../models/scenario/qwen3.6-27b-914k.toml");
    let kept: Vec<&str> = text.lines().filter(|line| !line.starts_with("state_slots")).collect();
    assert_eq!(kept.len() + 2, text.lines().count());
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("without.toml");
    std::fs::write(&path, kept.join("\n")).unwrap();
    for fraction in ["0.80", "0.85", "0.88"] {
        let set = format!("engine.mem_fraction_static={fraction}");
        let shown = answer(&["show", path.to_str().unwrap(), "--set", &set]);
        let cap = shown["running_cap"].as_u64().unwrap();
        assert!((6..=9).contains(&cap), "{cap} at mem_fraction_static {fraction}");
    }
}

#[test]
fn ten_times_the_requests_take_ten_times_as_long() {
    let time = |requests: u32| number(&simulate(JOB, &[&format!("job.requests={requests}")]), "makespan_s");
    let ratio = time(914_000) / time(91_400);
    assert!((9.9..10.1).contains(&ratio), "{ratio}");
}

#[test]
fn a_lower_cap_cuts_tokens_and_no_request() {
    let set = "job.requests=50000";
    let (whole, cut) = (simulate(JOB, &[set]), simulate(JOB, &[set, "job.max_tokens=2048"]));
    assert_eq!(whole["requests"], cut["requests"]);
    assert_eq!(whole["prompt_tokens"], cut["prompt_tokens"]);
    assert!(number(&cut, "output_tokens") < 0.9 * number(&whole, "output_tokens"));
    assert!(number(&cut, "truncated") > number(&whole, "truncated"));
    assert!(number(&cut, "makespan_s") < number(&whole, "makespan_s"));
}

#[test]
fn every_built_in_scenario_runs() {
    let listed = answer(&["list", "scenario"]);
    let names = listed["scenario"].as_array().unwrap();
    assert!(names.len() >= 6, "{names:?}");
    for name in names {
        let name = name.as_str().unwrap();
        let job = simulate(name, &["job.requests=20000"]);
        assert_eq!(job["completed"], 20_000, "{name}");
        assert!(number(&job, "makespan_s") > 0.0, "{name}");
    }
}

#[test]
fn engines_differ_as_reported() {
    let set = ["job.requests=20000"];
    let rate = |name: &str| number(&simulate(name, &set), "output_tok_per_s");
    let (sglang, vllm) = (rate(JOB), rate("qwen3.6-27b-914k-vllm"));
    let transformers = rate("qwen3.6-27b-914k-transformers");
    // Static batches wait for their longest; vLLM's states fit 24 requests where SGLang's slots fit 8.
    assert!(transformers < 0.5 * sglang, "{transformers} against {sglang}");
    assert!(vllm > 1.5 * sglang, "{vllm} against {sglang}");
}

#[test]
fn a_shared_queue_is_not_slower_than_fixed_shares() {
    for requests in ["job.requests=2000", "job.requests=20000"] {
        let time =
            |dispatch: &str| number(&simulate(JOB, &[requests, &format!("fleet.dispatch={dispatch}")]), "makespan_s");
        let shared = time("shared");
        for dispatch in ["static", "round_robin"] {
            assert!(shared <= 1.005 * time(dispatch), "{requests}, {dispatch}");
        }
    }
}

#[test]
fn lifting_slots_past_the_cap_shortens_the_job_and_lowering_them_lengthens_it() {
    let time = |slots: u32| {
        let set = format!("engine.state_slots={slots}");
        number(&simulate(JOB, &["job.requests=20000", &set]), "makespan_s")
    };
    let (four, eight, sixteen) = (time(20), time(40), time(80));
    assert!(four > 1.5 * eight && eight > 1.4 * sixteen, "{four}, {eight}, {sixteen}");
}
