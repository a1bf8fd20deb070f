//! What `--timeline` and `--trace` write.
#![allow(clippy::unwrap_used)]

use std::collections::HashMap;
use std::path::Path;

use assert_cmd::Command;

fn makespan(arguments: &[&str]) -> std::process::Output {
    Command::cargo_bin("makespan").unwrap().args(arguments).output().unwrap()
}

fn rows(path: &Path) -> Vec<HashMap<String, String>> {
    csv::Reader::from_path(path).unwrap().deserialize().map(|row| row.unwrap()).collect()
}

/// The whole job: files stay of a size that their viewers open, time rises, and shares are shares.
#[test]
fn files_of_the_whole_job_are_bounded_and_in_order() {
    let folder = tempfile::tempdir().unwrap();
    let (csv, json) = (folder.path().join("t.csv"), folder.path().join("t.json"));
    let run = ["simulate", "--timeline", csv.to_str().unwrap(), "--trace", json.to_str().unwrap()];
    let output = makespan(&run);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    assert!(std::fs::metadata(&csv).unwrap().len() < 4 << 20);
    assert!(std::fs::metadata(&json).unwrap().len() < 256 << 20);
    let table = rows(&csv);
    let number = |row: &HashMap<String, String>, key: &str| row[key].parse::<f64>().unwrap();
    let width = number(&table[0], "width_s");
    let mut last = [-1.0; 4];
    let (mut written, mut most_running) = (0.0, 0.0f64);
    for row in &table {
        let replica = number(row, "replica") as usize;
        assert!(number(row, "t_s") > last[replica], "{row:?}");
        last[replica] = number(row, "t_s");
        for key in ["busy_share", "kv_share", "h2d_utilisation", "d2h_utilisation"] {
            assert!((0.0..=1.0001).contains(&number(row, key)), "{key} in {row:?}");
        }
        written += number(row, "output_tok_per_s") * width;
        most_running = most_running.max(number(row, "running"));
    }
    assert!(most_running <= 8.0, "the slots of the scenario allow 8: {most_running}");
    let answer: serde_json::Value = serde_json::from_slice(&makespan(&["simulate", "--json"]).stdout).unwrap();
    let (tokens, requests) = (answer["output_tokens"].as_f64().unwrap(), answer["requests"].as_f64().unwrap());
    // The last verify step of a request may accept more than the request still asks for: at most 3 drafts.
    let beyond = (written - tokens) / requests;
    assert!((-0.5..3.0).contains(&beyond), "{written} of {tokens}");
    let trace: serde_json::Value = serde_json::from_slice(&std::fs::read(&json).unwrap()).unwrap();
    let slices = trace["traceEvents"].as_array().unwrap();
    assert_eq!(trace["otherData"]["slices"], slices.len());
    assert!(slices.len() > 1000);
    let mut ends = [0.0; 4];
    for slice in slices {
        let (start, track) = (slice["ts"].as_f64().unwrap(), slice["tid"].as_u64().unwrap() as usize);
        // Microseconds with three decimals.
        assert!(start >= ends[track] - 0.01, "{slice}");
        ends[track] = start + slice["dur"].as_f64().unwrap();
    }
}

#[test]
fn a_file_that_exists_is_kept_unless_forced() {
    let folder = tempfile::tempdir().unwrap();
    for flag in ["--timeline", "--trace"] {
        let path = folder.path().join(&flag[2..]);
        std::fs::write(&path, "mine").unwrap();
        let run = ["simulate", "--set", "job.requests=50", flag, path.to_str().unwrap()];
        let output = makespan(&run);
        assert_eq!(output.status.code(), Some(2));
        let words = String::from_utf8_lossy(&output.stderr);
        assert!(words.contains("exists") && words.contains("--force"), "{words}");
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "mine");
        let forced: Vec<&str> = run.iter().copied().chain(["--force"]).collect();
        assert!(makespan(&forced).status.success());
        assert_ne!(std::fs::read_to_string(&path).unwrap(), "mine");
    }
}
