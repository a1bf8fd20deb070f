//! Rows that cannot be requests: refused by name, or left out and counted where faults are accepted.
#![allow(missing_docs, clippy::unwrap_used)]

use std::path::Path;

use assert_cmd::Command;

fn run(folder: &Path, arguments: &[&str]) -> (Option<i32>, String, String) {
    let output = Command::cargo_bin("makespan").unwrap().current_dir(folder).args(arguments).output().unwrap();
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    (output.status.code(), text(output.stdout), text(output.stderr))
}

fn requests(out: &str) -> u64 {
    let json: serde_json::Value = serde_json::from_str(out).unwrap();
    json["requests"].as_u64().unwrap()
}

const ENGINE: &str = "[fleet]\ngpus = 4\n[engine]\nname = \"fixed-rate\"\ntok_per_s_per_gpu = 400\n";

#[test]
fn faulty_rows_of_a_trace_are_left_out_and_counted() {
    let folder = tempfile::tempdir().unwrap();
    let mut rows = String::from("prompt_tokens,output_tokens\n");
    (0..60).for_each(|row| rows += &format!("{},{}\n", 10 + row, 100 + 7 * row));
    rows += "12,many\n13,0\n14\n";
    std::fs::write(folder.path().join("t.csv"), rows).unwrap();
    std::fs::write(folder.path().join("job.toml"), format!("title = \"t\"\n[job]\ntrace = \"t.csv\"\n{ENGINE}"))
        .unwrap();
    let (code, out, error) = run(folder.path(), &["simulate", "job.toml", "--json"]);
    assert_eq!((code, out.as_str()), (Some(2), ""), "{error}");
    assert!(error.contains("t.csv:62: output_tokens: \"many\""), "{error}");
    let (code, out, error) = run(folder.path(), &["simulate", "job.toml", "--json", "--accept-faults"]);
    assert_eq!(code, Some(0), "{error}");
    assert_eq!(requests(&out), 60);
    assert!(
        error.contains("warning: 3 rows are left out of t.csv; the first: line 62: output_tokens: \"many\""),
        "{error}"
    );
    // The scenario can say it itself, either way.
    let key = ["simulate", "job.toml", "--json", "--set", "job.skip_faulty_rows=true"];
    let (code, said, error) = run(folder.path(), &key);
    assert_eq!((code, requests(&said)), (Some(0), 60), "{error}");
    assert!(error.contains("3 rows are left out"), "{error}");
    let key = ["simulate", "job.toml", "--accept-faults", "--set", "job.skip_faulty_rows=false"];
    assert_eq!(run(folder.path(), &key).0, Some(2));
    // Without any good row there is nothing to plan.
    std::fs::write(folder.path().join("t.csv"), "prompt_tokens,output_tokens\n1,x\n").unwrap();
    let (code, _, error) = run(folder.path(), &["simulate", "job.toml", "--accept-faults"]);
    assert_eq!(code, Some(2));
    assert!(error.contains("no requests, of 1 rows, the first: line 2"), "{error}");
}

#[test]
fn faulty_rows_of_a_file_of_lengths_are_left_out_and_counted() {
    let folder = tempfile::tempdir().unwrap();
    let mut csv = String::from("reply\n");
    let mut json = String::new();
    for row in 0..60 {
        csv += &format!("{}\n", 100 + 7 * row);
        json += &format!("{{\"reply\": {}}}\n", 100 + 7 * row);
    }
    std::fs::write(folder.path().join("l.csv"), csv + "0\n").unwrap();
    std::fs::write(folder.path().join("l.jsonl"), json + "{\"reply\": null}\n{\"reply\": 3").unwrap();
    for (file, told) in [("l.csv", "1 row is left out of l.csv"), ("l.jsonl", "2 rows are left out of l.jsonl")] {
        let law = format!("output_tokens = {{ file = \"{file}\", column = \"reply\" }}");
        let job = format!("title = \"t\"\n[job]\nrequests = 100\nprompt_tokens = 10\n{law}\n{ENGINE}");
        std::fs::write(folder.path().join("job.toml"), job).unwrap();
        let (code, _, error) = run(folder.path(), &["simulate", "job.toml", "--json"]);
        assert_eq!(code, Some(2), "{file}: {error}");
        let (code, out, error) = run(folder.path(), &["simulate", "job.toml", "--json", "--accept-faults"]);
        assert_eq!((code, requests(&out)), (Some(0), 100), "{file}: {error}");
        assert!(error.contains(told), "{file}: {error}");
    }
}
