//! The commands as a person and a script meet them: keys of JSON, files written, determinism, real traces.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a panic is how a test fails, in its helpers too")]

use std::fs;
use std::path::{Path, PathBuf};

use assert_cmd::Command;
use serde_json::Value;

const SMALL: &str = "\
title = \"A small job\"

[job]
requests = 120
prompt_tokens = { law = \"lognormal\", median = 200, sigma = 0.9 }
output_tokens = { law = \"lognormal\", median = 150, sigma = 0.8 }
max_tokens = 400

[fleet]
hardware = \"rtx-pro-6000\"
gpus = 2

[model]
llm = \"qwen3.6-27b\"

[engine]
name = \"sglang\"
state_slots = 40
state_slots_per_request = 5

[engine.speculation]
draft_tokens = 3
acceptance = 0.7
acceptance_spread = 0.1

[client]
concurrency = 12
";

/// A fleet that reads recorded requests, a few at a time.
const TRACED: &str = "\
[job]
trace = \"TRACE\"
requests = 2000

[fleet]
hardware = \"h200\"
gpus = 4

[model]
llm = \"qwen3-8b\"

[engine]
name = \"vllm\"
";

fn program(arguments: &[&str]) -> String {
    let output = Command::cargo_bin("makespan").unwrap().args(arguments).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{arguments:?}: {said}");
    assert!(said.is_empty(), "{arguments:?} answered, and said {said}");
    String::from_utf8(output.stdout).unwrap()
}

fn object(arguments: &[&str]) -> Value {
    let all: Vec<&str> = arguments.iter().copied().chain(["--json"]).collect();
    serde_json::from_str(&program(&all)).unwrap()
}

fn number(answer: &Value, key: &str) -> f64 {
    answer[key].as_f64().unwrap_or_else(|| panic!("{key} is no number in {answer}"))
}

/// A scenario file in a folder of its own.
fn scenario(text: &str) -> (tempfile::TempDir, String) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("scenario.toml");
    fs::write(&path, text).unwrap();
    let name = path.to_str().unwrap().to_owned();
    (folder, name)
}

/// What does not depend on the machine.
fn without_wall_time(text: &str) -> String {
    text.lines().filter(|line| !line.contains("wall_s")).collect::<Vec<_>>().join("\n")
}

#[test]
fn simulate_has_the_documented_keys() {
    let (_folder, path) = scenario(SMALL);
    let answer = object(&["simulate", &path]);
    let numbers = [
        "makespan_s",
        "requests",
        "output_tokens",
        "output_tok_per_s",
        "mean_running",
        "running_cap",
        "preemptions",
        "steps",
        "wall_s",
    ];
    for key in numbers {
        assert!(number(&answer, key) >= 0.0, "{key}");
    }
    for key in ["steady_output_tok_per_s", "limit", "ledger"] {
        assert!(answer.get(key).is_some(), "{key}");
    }
    assert_eq!(answer["requests"], 120);
    assert_eq!(answer["running_cap"], 8);
    let rate = number(&answer, "output_tokens") / number(&answer, "makespan_s");
    assert!((number(&answer, "output_tok_per_s") / rate - 1.0).abs() < 1e-12);
    assert!(number(&answer, "mean_running") <= 8.0);
}

#[test]
fn shares_of_the_ledger_sum_to_one() {
    let (_folder, path) = scenario(SMALL);
    for arguments in [
        vec!["simulate", path.as_str()],
        vec!["simulate", "napkin", "--set", "job.requests=100"],
        vec!["simulate", "qwen3.6-27b-914k-vllm", "--set", "job.requests=500"],
        vec!["simulate", "qwen3.6-27b-914k-transformers", "--set", "job.requests=500"],
        vec!["simulate", "qwen3.6-27b-a6000", "--set", "job.requests=500"],
        vec!["simulate", path.as_str(), "--set", "fleet.startup_s=60", "--set", "fleet.speed_spread=0.1"],
    ] {
        let answer = object(&arguments);
        for key in ["ledger", "limit_share"] {
            let shares: Vec<f64> = answer[key].as_object().unwrap().values().map(|it| it.as_f64().unwrap()).collect();
            assert!(shares.iter().all(|share| (0.0..=1.0).contains(share)), "{arguments:?}: {key} {shares:?}");
            let sum: f64 = shares.iter().sum();
            assert!((sum - 1.0).abs() < 1e-9, "{arguments:?}: {key} sums to {sum}");
        }
    }
}

#[test]
fn sweep_has_the_documented_keys() {
    let answer = object(&["sweep", "--replications", "2"]);
    let points = answer["points"].as_array().unwrap();
    assert_eq!(points.len(), 6);
    for point in points {
        for key in ["concurrency", "output_tok_per_s", "measured_tok_per_s", "ttft_ms", "tpot_ms", "mean_running"] {
            assert!(number(point, key) > 0.0, "{key}");
        }
        assert!(point["limit"].is_string());
    }
    assert!(number(&answer, "knee_concurrency") >= 1.0);
    assert!(number(&answer, "plateau_tok_per_s") > 0.0);
}

#[test]
fn sweep_runs_the_concurrencies_asked_for_with_or_without_a_table() {
    let concurrencies = |answer: &Value| -> Vec<u64> {
        answer["points"].as_array().unwrap().iter().map(|point| point["concurrency"].as_u64().unwrap()).collect()
    };
    let answer = object(&["sweep", "--replications", "1", "--at", "2,8,64"]);
    assert_eq!(concurrencies(&answer), [2, 8, 64]);
    assert_eq!(number(&answer["points"][1], "measured_tok_per_s"), 370.0);
    assert!(answer["points"][2]["measured_tok_per_s"].is_null());
    let (_folder, path) = scenario(&format!("{SMALL}\n[benchmark]\nprompt_tokens = 100\noutput_tokens = 64\n"));
    let answer = object(&["sweep", &path, "--replications", "1"]);
    assert_eq!(concurrencies(&answer), [1, 2, 4, 8, 16, 32, 64, 128, 256]);
    assert!(answer["measured_table"].is_null());
}

#[test]
fn list_names_every_kind_and_show_shows_one_of_each() {
    let listed = object(&["list"]);
    let kinds = listed.as_object().unwrap();
    for kind in ["scenario", "llm", "quantisation", "hardware", "collective", "engine", "law", "measured"] {
        let names = kinds[kind].as_array().unwrap_or_else(|| panic!("no {kind} in {listed}"));
        let name = names.first().unwrap_or_else(|| panic!("no {kind} is built in")).as_str().unwrap();
        let shown = object(&["show", name, "--kind", kind]);
        if kind == "scenario" {
            assert_eq!(shown["scenario"], name);
            continue;
        }
        assert_eq!((&shown["kind"], &shown["name"]), (&Value::from(kind), &Value::from(name)));
        let text = program(&["show", name, "--kind", kind]);
        assert_eq!(shown["text"], text, "{kind} {name}");
    }
    let text = program(&["list"]);
    assert!(text.contains("\nllm\n    ") && text.contains("qwen3.6-27b"), "{text}");
    let llms = program(&["list", "llm"]);
    assert_eq!(llms.lines().count(), kinds["llm"].as_array().unwrap().len());
    assert!(llms.lines().any(|name| name == "qwen3.6-27b"));
}

#[test]
fn show_of_a_scenario_gives_sizes_limits_and_priors() {
    let shown = object(&["show", "qwen3.6-27b-914k"]);
    assert_eq!((number(&shown, "running_cap"), number(&shown, "replicas")), (8.0, 4.0));
    assert_eq!(number(&shown, "kv_bytes_per_token"), 65_536.0);
    assert!(number(&shown["priors"], "bandwidth_share") > 0.0);
    assert!(!shown["arithmetic"].as_array().unwrap().is_empty());
    let text = program(&["show", "qwen3.6-27b-914k", "--set", "engine.state_slots=20"]);
    assert!(text.contains("20 slots (given), 5 reserved per request, so 4 run at once"), "{text}");
}

#[test]
fn a_report_answers_in_ten_lines_or_so() {
    let text = program(&["simulate", "--set", "job.requests=20000"]);
    assert!(text.lines().count() <= 14, "{text}");
    for part in ["completes in", "tok/s on 4 GPUs", "limited by", "recurrent-state slots", "ramp and tail", "napkin"] {
        assert!(text.contains(part), "{part}: {text}");
    }
    assert!(text.lines().all(|line| line.len() < 200), "{text}");
}

#[test]
fn stepwise_gives_the_same_answer_to_the_last_digit() {
    let (_folder, path) = scenario(SMALL);
    let keep = |answer: Value| {
        let mut answer = answer;
        answer.as_object_mut().unwrap().remove("wall_s");
        answer
    };
    for set in ["client.concurrency=12", "client.concurrency=all", "engine.kv_pool_tokens=4000"] {
        let strided = keep(object(&["simulate", &path, "--set", set]));
        let stepwise = keep(object(&["simulate", &path, "--set", set, "--stepwise"]));
        assert_eq!(strided["makespan_s"], stepwise["makespan_s"], "{set}");
        for key in ["steps", "output_tokens", "preemptions", "completed", "limit", "truncated"] {
            assert_eq!(strided[key], stepwise[key], "{set}: {key}");
        }
    }
}

#[test]
fn the_same_seed_gives_the_same_bytes_for_any_number_of_threads() {
    let (_folder, path) = scenario(SMALL);
    for arguments in [vec!["simulate", path.as_str(), "--json"], vec!["sweep", "--replications", "3", "--json"]] {
        let run = |threads: &str, seed: &str| {
            let mut command = Command::cargo_bin("makespan").unwrap();
            let output = command.args(&arguments).args(["--seed", seed]).env("RAYON_NUM_THREADS", threads).output();
            without_wall_time(&String::from_utf8(output.unwrap().stdout).unwrap())
        };
        let one = run("1", "7");
        assert!(one.len() > 100);
        assert_eq!(one, run("1", "7"), "{arguments:?}");
        assert_eq!(one, run("5", "7"), "{arguments:?}");
        assert_ne!(one, run("1", "8"), "{arguments:?}");
    }
}

#[test]
fn a_row_is_written_for_each_request_with_times_in_order() {
    let (folder, path) = scenario(SMALL);
    let rows = folder.path().join("rows.csv");
    let name = rows.to_str().unwrap();
    let answer = object(&["simulate", &path, "--requests-csv", name]);
    let mut reader = csv::Reader::from_path(&rows).unwrap();
    let header: Vec<String> = reader.headers().unwrap().iter().map(str::to_owned).collect();
    let expected = "request,replica,prompt_tokens,output_tokens,truncated,submitted_s,admitted_s,first_token_s,\
                    last_token_s,preemptions";
    assert_eq!(header.join(","), expected);
    let records: Vec<csv::StringRecord> = reader.records().map(Result::unwrap).collect();
    assert_eq!(records.len(), 120);
    let value = |record: &csv::StringRecord, key: &str| -> f64 {
        record[header.iter().position(|name| name == key).unwrap()].parse().unwrap()
    };
    let mut ids: Vec<u64> = Vec::new();
    for record in &records {
        let times = ["submitted_s", "admitted_s", "first_token_s", "last_token_s"].map(|key| value(record, key));
        assert!(times.is_sorted(), "{record:?}");
        assert!(value(record, "output_tokens") <= 400.0 && value(record, "replica") < 2.0, "{record:?}");
        ids.push(value(record, "request") as u64);
    }
    ids.sort_unstable();
    assert_eq!(ids, (0..120).collect::<Vec<u64>>());
    let sum = |key: &str| records.iter().map(|record| value(record, key)).sum::<f64>();
    assert_eq!(sum("output_tokens"), number(&answer, "output_tokens"));
    assert_eq!(sum("prompt_tokens"), number(&answer, "prompt_tokens"));
    let last = records.iter().map(|record| value(record, "last_token_s")).fold(0.0, f64::max);
    assert!((last / number(&answer, "makespan_s") - 1.0).abs() < 1e-9, "{last}");
    // A file that exists is kept unless it may go.
    program(&["simulate", &path, "--requests-csv", name, "--force"]);
    let left: Vec<PathBuf> = fs::read_dir(folder.path()).unwrap().map(|entry| entry.unwrap().path()).collect();
    assert_eq!(left.len(), 2, "nothing unfinished stays: {left:?}");
}

/// Cases A1 and A2: slots over slots reserved set the cap, whatever else was configured, and the rate is flat above it.
#[test]
fn a_cap_of_slots_shows_as_a_plateau_with_a_flat_pace_and_a_rising_first_token() {
    let text = SMALL
        .replace("state_slots = 40\nstate_slots_per_request = 5", "state_slots = 52\nstate_slots_per_request = 4")
        .replace("name = \"sglang\"", "name = \"sglang\"\nmax_running_requests = 40")
        .replace("[engine.speculation]\ndraft_tokens = 3\nacceptance = 0.7\nacceptance_spread = 0.1\n", "")
        + "\n[benchmark]\nprompt_tokens = 1500\noutput_tokens = 600\nwaves = 8\n";
    let (_folder, path) = scenario(&text);
    let answer = object(&["sweep", &path, "--at", "4,8,13,20,40", "--replications", "2"]);
    assert_eq!(answer["running_cap"], 13);
    let points = answer["points"].as_array().unwrap();
    let at = |place: usize, key: &str| number(&points[place], key);
    for place in [3, 4] {
        assert!((at(place, "output_tok_per_s") / at(2, "output_tok_per_s") - 1.0).abs() < 0.05, "{answer}");
        assert!((at(place, "tpot_ms") / at(2, "tpot_ms") - 1.0).abs() < 0.05, "{answer}");
        assert_eq!(points[place]["limit"], "state_slots");
    }
    assert!(at(3, "ttft_ms") > 2.0 * at(2, "ttft_ms") && at(4, "ttft_ms") > 2.0 * at(3, "ttft_ms"), "{answer}");
    // Six reserved and five held of 60: ten run, and ten slots stay idle.
    let set = ["engine.state_slots=60", "engine.state_slots_per_request=6", "engine.state_slots_held_per_request=5"];
    let mut arguments = vec!["show", path.as_str()];
    set.iter().for_each(|over| arguments.extend(["--set", over]));
    assert_eq!(object(&arguments)["running_cap"], 10);
}

/// Recorded requests that may stand beside the repository.
fn recorded(name: &str) -> Option<String> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../shared/traces").join(name);
    if path.is_file() {
        return Some(path.to_str().unwrap().to_owned());
    }
    #[allow(clippy::print_stderr, reason = "a test that is left out says so")]
    {
        eprintln!("left out: {} is not there", path.display());
    }
    None
}

#[test]
fn recorded_traces_are_replayed_whatever_their_columns_are_called() {
    for (name, span_s) in [("azure_llm_2023_conv.csv", 300.0), ("mooncake_conversation.jsonl.gz", 300.0)] {
        let Some(trace) = recorded(name) else { continue };
        let (_folder, path) = scenario(&TRACED.replace("TRACE", &trace));
        let timed = object(&["simulate", &path]);
        assert_eq!((number(&timed, "requests"), number(&timed, "rejected")), (2000.0, 0.0), "{name}");
        // Arrivals last longer than the work: the client is the limit, and the time is theirs.
        assert!(number(&timed, "makespan_s") > span_s, "{name}: {}", timed["makespan_s"]);
        assert_eq!(timed["limit"], "client", "{name}");
        let at_once = object(&["simulate", &path, "--set", "job.arrivals=at_once"]);
        for key in ["prompt_tokens", "output_tokens", "requests"] {
            assert_eq!(timed[key], at_once[key], "{name}: {key}");
        }
        assert!(number(&at_once, "makespan_s") < 0.8 * number(&timed, "makespan_s"), "{name}");
    }
}
