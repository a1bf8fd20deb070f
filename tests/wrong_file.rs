//! Tables and logs named on the command line, and files given where they do not belong.
#![allow(missing_docs, clippy::unwrap_used)]

use std::path::Path;

use assert_cmd::Command;

fn run(arguments: &[&str]) -> (Option<i32>, String, String) {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/samples");
    let output = Command::cargo_bin("makespan").unwrap().current_dir(folder).args(arguments).output().unwrap();
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    (output.status.code(), text(output.stdout), text(output.stderr))
}

#[test]
fn a_wrong_file_is_recognised_and_its_place_is_named() {
    let cases: [(&[&str], &str); 8] = [
        (&["sweep", "--table", "azure.csv"], "this is a file of requests, not a measured table"),
        (&["sweep", "--table", "sglang.log"], "this is an engine log, not a measured table"),
        (&["sweep", "--table", "config_qwen3_8b.json"], "this is a model's config.json, not a measured table"),
        (&["diagnose", "--log", "result_vllm.jsonl"], "this is a benchmark result, not an engine log or its metrics"),
        (&["simulate", "--set", "model.llm=azure.csv"], "this is a file of requests, not a model"),
        (&["simulate", "sglang.log"], "this is an engine log, not a scenario"),
        (&["simulate", "table_h1.md"], "this is a measured table, not a scenario"),
        (
            &["simulate", "--set", "job.output_tokens={ finished = \"sglang.log\" }"],
            "this is an engine log, not a file of lengths",
        ),
    ];
    for (arguments, expected) in cases {
        let (code, out, error) = run(arguments);
        assert_eq!((code, out.as_str()), (Some(2), ""), "{arguments:?}: {error}");
        assert!(error.contains(expected) && error.contains("; use it as "), "{arguments:?}: {error}");
    }
}

#[test]
fn a_log_with_a_queue_beside_a_steady_number_settles_the_plateau() {
    let (code, out, error) = run(&["diagnose", "--log", "sglang.log", "--draws", "100", "--json"]);
    assert_eq!(code, Some(0), "{error}");
    let json: serde_json::Value = serde_json::from_str(&out).unwrap();
    let likeliest = &json["mechanisms"][0];
    assert_eq!(likeliest["name"], "running_cap");
    assert!(likeliest["probability"].as_f64().unwrap() > 0.99, "{likeliest}");
    assert_eq!(json["running_cap"][0]["cap"], 8);
    let said = json["read_off_the_engine"][0].as_str().unwrap();
    assert!(said.starts_with("running 8 with 40 queued: an admission cap of 8"), "{said}");
}

/// The same log fixes the cap of a fit instead of leaving it to the table.
#[test]
fn a_log_gives_calibrate_the_running_cap() {
    let (code, out, error) = run(&["calibrate", "--log", "sglang.log", "--draws", "100", "--json"]);
    assert_eq!(code, Some(0), "{error}");
    let json: serde_json::Value = serde_json::from_str(&out).unwrap();
    let cap = &json["parameters"]["running_cap"];
    for quantile in ["p5", "p50", "p95"] {
        assert_eq!(cap[quantile], 8, "{cap}");
    }
    let said = json["read_off_the_engine"][0].as_str().unwrap();
    assert!(said.starts_with("running 8 with 40 queued: an admission cap of 8"), "{said}");
}

#[test]
fn a_result_file_is_the_table_of_a_sweep() {
    let (code, out, error) = run(&["sweep", "--table", "result_vllm.jsonl", "--replications", "1", "--json"]);
    assert_eq!(code, Some(0), "{error}");
    let json: serde_json::Value = serde_json::from_str(&out).unwrap();
    let points = json["points"].as_array().unwrap();
    let found: Vec<_> =
        points.iter().map(|it| (it["concurrency"].as_u64(), it["measured_tok_per_s"].as_f64())).collect();
    assert_eq!(found, [(Some(8), Some(285.7)), (Some(16), Some(450.0))]);
}
