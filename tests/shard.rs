//! Work in parts: files of ranges that ran anywhere are put together to the bytes of one run, and nothing that was cut,
//! changed or mixed up passes for a result.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a panic is how a test fails, in its helpers too")]

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use makespan::shard::merge;

/// A job that takes no time to simulate, with three things unknown.
const JOB: &str = include_str!("jobs/fixed_rate.toml");

const SWEEP: &str = r#"
[job]
requests = 1
prompt_tokens = 128
output_tokens = 64
[fleet]
hardware = "h200"
gpus = 1
[model]
llm = "qwen3-8b"
[engine]
name = "vllm"
[benchmark]
prompt_tokens = 128
output_tokens = 64
"#;

fn makespan(folder: &Path, line: &str) -> Output {
    let mut command = Command::new(assert_cmd::cargo::cargo_bin("makespan"));
    command.current_dir(folder).args(line.split(' ').map(|word| word.replace('~', " "))).output().unwrap()
}

fn good(folder: &Path, line: &str) -> String {
    let output = makespan(folder, line);
    assert!(output.status.success(), "{line}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

fn refused(folder: &Path, line: &str) -> String {
    let output = makespan(folder, line);
    let error = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(2), "{line}: {error}");
    assert!(output.stdout.is_empty(), "{line}");
    error
}

fn folder() -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("job.toml"), JOB).unwrap();
    std::fs::write(folder.path().join("sweep.toml"), SWEEP).unwrap();
    std::fs::write(folder.path().join("grid.csv"), "fleet.gpus,job.max_tokens\n2,4096\n4,1024\n8,\n").unwrap();
    std::fs::write(folder.path().join("grid.toml"), "[axes]\n\"fleet.gpus\" = [1, 2]\n\"job.requests\" = [1, 2]\n")
        .unwrap();
    folder
}

/// Runs `command` whole and in parts, and compares the files and what is printed from them.
fn in_parts(command: &str, ends: &[u64]) {
    let folder = folder();
    let folder = folder.path();
    let whole = good(folder, &format!("{command} --results whole.csv --threads 1"));
    let mut parts = Vec::new();
    let mut start = 0;
    for end in ends {
        good(folder, &format!("{command} --range {start}..{end} --results part{start}.csv"));
        parts.insert(0, format!("part{start}.csv"));
        start = *end;
    }
    good(folder, &format!("merge {} --out merged.csv", parts.join(" ")));
    let read = |name: &str| std::fs::read_to_string(folder.join(name)).unwrap();
    assert_eq!(read("merged.csv"), read("whole.csv"));
    assert_eq!(good(folder, &format!("{command} --from merged.csv")), whole);
    // From a part on to the whole.
    good(folder, &format!("{command} --results part0.csv"));
    assert_eq!(read("part0.csv"), read("whole.csv"));
    // Nothing is overwritten unasked.
    let error = refused(folder, &format!("merge {} --out whole.csv", parts.join(" ")));
    assert!(error.contains("whole.csv exists"), "{error}");
}

#[test]
fn parts_of_a_forecast_come_from_ranges_alone() {
    let folder = folder();
    let folder = folder.path();
    let whole = good(folder, "forecast job.toml --json --quantiles-only --replications 40 --results whole.csv");
    for part in 0..8 {
        let range = format!("{}..{}", part * 5, part * 5 + 5);
        good(folder, &format!("forecast job.toml --json --quantiles-only --range {range} --results {part}.csv"));
    }
    good(folder, "merge 3.csv 0.csv 7.csv 1.csv 2.csv 6.csv 5.csv 4.csv --out merged.csv --range 0..40");
    let read = |name: &str| std::fs::read(folder.join(name)).unwrap();
    assert_eq!(read("merged.csv"), read("whole.csv"));
    let again = good(folder, "forecast job.toml --json --quantiles-only --range 0..40 --from merged.csv");
    assert_eq!(again, whole);
}

#[test]
fn sweeps_in_parts_are_the_whole() {
    in_parts("sweep sweep.toml --json --at 1,2,4,8,16 --replications 3", &[2, 3, 5]);
}

#[test]
fn comparisons_in_parts_are_the_whole() {
    in_parts(
        "decide job.toml --json --replications 10 --option a:~fleet.gpus=2 --option b:~job.requests=20",
        &[7, 20, 30],
    );
}

#[test]
fn validations_in_parts_are_the_whole() {
    // The time it took is not compared.
    let folder = folder();
    let folder = folder.path();
    good(folder, "validate --only gpt-oss-120b --results whole.csv");
    let rows = std::fs::read_to_string(folder.join("whole.csv")).unwrap();
    let units = rows.lines().filter(|line| !line.starts_with('#')).count() - 1;
    if units < 2 {
        panic!("the tables' names have changed: {units}");
    }
    good(folder, "validate --only gpt-oss-120b --range 0..1 --results a.csv");
    good(folder, &format!("validate --only gpt-oss-120b --range 1..{units} --results b.csv"));
    good(folder, "merge b.csv a.csv --out merged.csv");
    assert_eq!(std::fs::read_to_string(folder.join("merged.csv")).unwrap(), rows);
}

#[test]
fn grids_in_parts_are_the_whole() {
    in_parts("forecast job.toml --json --grid grid.csv --replications 10", &[4, 17, 30]);
    in_parts("decide job.toml --json --grid grid.csv --replications 4 --option a:~fleet.gpus=16", &[5, 24]);
    in_parts("sweep sweep.toml --json --grid grid.toml --at 1,2 --replications 2", &[3, 8]);
}

#[test]
fn a_grid_is_the_scenarios_one_by_one() {
    let folder = folder();
    let folder = folder.path();
    let grid: serde_json::Value =
        serde_json::from_str(&good(folder, "forecast job.toml --json --grid grid.csv --replications 10")).unwrap();
    let one =
        "forecast job.toml --json --quantiles-only --replications 10 --set fleet.gpus=4 --set job.max_tokens=1024";
    let one: serde_json::Value = serde_json::from_str(&good(folder, one)).unwrap();
    assert_eq!(grid["cells"].as_array().unwrap().len(), 3);
    assert_eq!(grid["cells"][1]["cell"], "fleet.gpus=4, job.max_tokens=1024");
    assert_eq!(grid["cells"][1]["report"]["makespan_days"], one["makespan_days"]);
    for (grid, says) in
        [("", "no scenarios"), ("fleet.gpus\n0\n", "fleet.gpus=0"), ("fleet.gpsu\n1\n", "did you mean `gpus`")]
    {
        std::fs::write(folder.join("bad.csv"), grid).unwrap();
        let error = refused(folder, "forecast job.toml --grid bad.csv");
        assert!(error.contains(says), "{error}");
    }
}

#[test]
fn what_does_not_belong_together_is_refused_by_name() {
    let folder = folder();
    let folder = folder.path();
    let part = |name: &str, range: &str, more: &str| {
        let line = format!("forecast job.toml --quantiles-only --range {range} --results {name}{more}");
        good(folder, &line);
    };
    part("a.csv", "0..5", "");
    part("b.csv", "5..10", "");
    part("gap.csv", "12..15", "");
    part("over.csv", "3..8", "");
    part("seed.csv", "5..10", " --seed 2");
    part("set.csv", "5..10", " --set job.requests=41");
    good(folder, "sweep sweep.toml --at 1,2 --replications 2 --results sweep.csv");
    let text = std::fs::read_to_string(folder.join("b.csv")).unwrap();
    let without_end = text.lines().filter(|line| !line.starts_with("# units")).collect::<Vec<_>>().join("\n") + "\n";
    std::fs::write(folder.join("open.csv"), without_end).unwrap();
    std::fs::write(folder.join("old.csv"), text.replace("version 0", "version 9")).unwrap();
    std::fs::write(folder.join("windows.csv"), text.replace('\n', "\r\n")).unwrap();
    for (files, says) in [
        ("a.csv gap.csv", "units 5..12 are in no file"),
        ("a.csv over.csv", "over.csv: units 3..5 are in a.csv too"),
        ("a.csv a.csv", "a.csv: units 0..5 are in a.csv too"),
        ("a.csv seed.csv", "seed.csv:1: results of something else: seed is `2`, not `1`"),
        ("a.csv set.csv", "set.csv:1: results of something else: fingerprint is"),
        ("a.csv sweep.csv", "sweep.csv:1: results of something else: the command is `sweep`, not `forecast`"),
        ("a.csv open.csv", "open.csv: not finished: units 5..10 are there"),
        ("a.csv old.csv", "old.csv:1: the first two lines do not fit their checksum"),
        ("a.csv windows.csv", "windows.csv:2: not the columns of results"),
        ("a.csv job.toml", "job.toml:1: not a results file"),
        ("a.csv nothing.csv", "nothing.csv: there is no such file"),
        ("a.csv b.csv --range 0..20", "units 10..20 are in no file"),
        ("a.csv b.csv --range 0..8", "units 8..10 are beyond 0..8"),
    ] {
        let error = refused(folder, &format!("merge {files} --out merged.csv"));
        assert!(error.contains(says), "{files}: {error}");
        assert!(!folder.join("merged.csv").exists());
    }
    // Rows with good checksums of their own do not fit another file.
    let row = text.lines().nth(2).unwrap();
    let spliced = std::fs::read_to_string(folder.join("set.csv")).unwrap().replacen("\n5,", &format!("\n{row}\n5,"), 1);
    std::fs::write(folder.join("spliced.csv"), spliced).unwrap();
    let error = refused(folder, "merge spliced.csv --out merged.csv");
    assert!(error.contains("spliced.csv:3: a damaged row"), "{error}");
}

#[test]
fn results_of_other_lengths_are_not_gone_on_with() {
    let folder = folder();
    let folder = folder.path();
    let known = JOB.split("[uncertain]").next().unwrap();
    let job = known.replace(
        "{ law = \"lognormal\", median = 400, sigma = 1.0 }",
        "{ file = \"lengths.csv\", column = \"output_tokens\" }",
    );
    assert_ne!(job, known);
    std::fs::write(folder.join("job.toml"), job + "[uncertain]\nfleet.speed_spread = { p5 = 0.01, p95 = 0.05 }\n")
        .unwrap();
    let lengths = |longest: u32| {
        let rows: Vec<String> = (0..200).map(|i| (100 + i * 7 % longest).to_string()).collect();
        std::fs::write(folder.join("lengths.csv"), format!("output_tokens\n{}\n", rows.join("\n"))).unwrap();
    };
    lengths(500);
    good(folder, "forecast job.toml --quantiles-only --accept-faults --replications 3 --results r.csv");
    lengths(400);
    let error = refused(folder, "forecast job.toml --quantiles-only --accept-faults --replications 3 --results r.csv");
    assert!(error.contains("results of something else: files is"), "{error}");
}

/// Cut or changed at a byte, a file is read or refused, never wrong.
#[test]
fn cut_or_changed_anywhere_a_file_gives_its_rows_or_an_error() {
    let folder = folder();
    let path = |name: &str| folder.path().join(name);
    good(folder.path(), "decide job.toml --json --replications 6 --option a:~fleet.gpus=2 --results whole.csv");
    let whole = std::fs::read(path("whole.csv")).unwrap();
    let text = String::from_utf8(whole.clone()).unwrap();
    let mut state = 7u64;
    let mut random = |below: usize| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        ((state >> 33) as usize) % below
    };
    let files: [PathBuf; 1] = [path("cut.csv")];
    let mut refused = 0;
    for _ in 0..500 {
        let cut = random(whole.len());
        std::fs::write(&files[0], &whole[..cut]).unwrap();
        // Without its last line no file is whole.
        let error = merge(&files, None).unwrap_err().to_string();
        assert!(error.contains("cut.csv"), "{error}");
        refused += u32::from(error.contains("not finished"));
    }
    assert!(refused > 300, "{refused}");
    for _ in 0..500 {
        let mut changed = whole.clone();
        let place = random(whole.len());
        changed[place] ^= 1 << random(8);
        std::fs::write(&files[0], &changed).unwrap();
        let error = merge(&files, None).unwrap_err().to_string();
        assert!(error.contains("cut.csv"), "byte {place}: {error}");
    }
    // And a run goes on from wherever it was cut to the same end.
    for place in 0..12 {
        std::fs::write(path("resumed.csv"), &whole[..whole.len() * place / 12 + place]).unwrap();
        let line = "decide job.toml --json --replications 6 --option a:~fleet.gpus=2 --results resumed.csv";
        let output = makespan(folder.path(), line);
        assert!(output.status.success());
        let at_end = text.as_bytes().get(whole.len() * place / 12 + place - usize::from(place > 0)) == Some(&b'\n');
        let note = String::from_utf8(output.stderr).unwrap();
        let head = text.match_indices('\n').nth(1).unwrap().0;
        if !at_end && whole.len() * place / 12 + place > head {
            assert!(note.contains("resumed.csv:") && note.contains("cut short"), "{note}");
        }
        assert_eq!(std::fs::read(path("resumed.csv")).unwrap(), whole);
    }
}

#[test]
fn two_runs_do_not_write_one_file() {
    let folder = folder();
    let path = folder.path().join("results.csv");
    let held = makespan::files::Growing::open(&path).unwrap();
    let error = refused(folder.path(), "forecast job.toml --quantiles-only --replications 3 --results results.csv");
    assert!(error.contains("another run is writing it"), "{error}");
    drop(held);
    good(folder.path(), "forecast job.toml --quantiles-only --replications 3 --results results.csv");
}

#[test]
fn ranges_that_lead_nowhere_are_refused() {
    let folder = folder();
    for (line, says) in [
        ("sweep sweep.toml --at 1,2 --range 0..1", "keep it with --results"),
        ("sweep sweep.toml --at 1,2 --range 0..3 --results r.csv", "there are 2 units"),
        ("decide job.toml --replications 2 --range 4..4 --results r.csv", "the first and the one after the last"),
        ("forecast job.toml --range 0..2 --replications 3", "--replications"),
        ("forecast job.toml --grid grid.csv --precision 0.1", "--precision"),
        ("validate --only h200x --range 0..1", "keep it with --results"),
    ] {
        let error = refused(folder.path(), line);
        assert!(error.contains(says), "{line}: {error}");
        assert!(!folder.path().join("r.csv").exists(), "{line}");
    }
}
