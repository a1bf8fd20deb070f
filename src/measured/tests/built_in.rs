//! The tables of this repository: all are read, and what is found in them is what their sources say.

use std::fs;
use std::path::PathBuf;

use super::super::*;

fn folder(below: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("traces/measured").join(below)
}

/// Names of the files of `below` that end in `suffix`, without it, in order.
fn names(below: &str, suffix: &str) -> Vec<String> {
    let entries = fs::read_dir(folder(below)).unwrap();
    let mut names: Vec<String> = entries
        .filter_map(|entry| entry.unwrap().file_name().into_string().unwrap().strip_suffix(suffix).map(str::to_owned))
        .collect();
    names.sort();
    names
}

fn text(below: &str, file: &str) -> String {
    fs::read_to_string(folder(below).join(file)).unwrap()
}

fn load(below: &str, name: &str) -> Table {
    let (csv, toml) = (format!("{name}.csv"), format!("{name}.toml"));
    let about = read_about(&text(below, &toml), &toml).unwrap();
    read_table(&text(below, &csv), name).unwrap().with_about(about)
}

const SWEEPS: [&str; 7] = [
    "hybrid-27b-mtp1",
    "hybrid-27b-sweep",
    "qwen3-8b-job-s128",
    "qwen3-8b-job-s32",
    "qwen3-8b-kv16k",
    "qwen3-8b-slots8",
    "qwen3-8b-sweep",
];

fn tables() -> Vec<Table> {
    let mut tables: Vec<Table> = names("", ".toml").iter().map(|name| load("", name)).collect();
    tables.extend(SWEEPS.iter().map(|name| load("h200", name)));
    tables
}

#[test]
fn every_table_is_read_with_its_description() {
    let tables = tables();
    assert_eq!(tables.len(), 79 + SWEEPS.len());
    assert_eq!(tables[..79].iter().map(|table| table.rows.len()).sum::<usize>(), 303);
    assert_eq!(tables[79..].iter().map(|table| table.rows.len()).sum::<usize>(), 29);
    assert!(tables.iter().all(|table| table.unused_columns.is_empty()));
    // The points, and the list of jobs.
    assert_eq!(names("", ".csv").len(), 80);
}

#[test]
fn every_other_file_is_well_formed_and_described() {
    for name in names("h200", ".toml") {
        read_about(&text("h200", &format!("{name}.toml")), &name).unwrap();
        assert!(folder("h200").join(format!("{name}.csv")).exists(), "{name} has no numbers");
    }
    assert_eq!(names("h200", ".toml").len(), 18);
    for name in names("h200", ".csv") {
        let text = text("h200", &format!("{name}.csv"));
        let mut reader = csv::Reader::from_reader(text.as_bytes());
        assert!(reader.records().map(Result::unwrap).count() > 0, "{name} is empty");
    }
}

#[test]
fn the_jobs_are_those_of_the_descriptions() {
    let jobs = read_jobs(&text("", "jobs.csv"), "jobs.csv").unwrap();
    assert_eq!(jobs.len(), 53);
    let described: usize = tables()[..79].iter().map(|table| table.about.as_ref().unwrap().job.len()).sum();
    assert_eq!(described, jobs.len());
    for job in jobs {
        let about = load("", &job.table).about.unwrap();
        assert!(
            about.job.iter().any(|other| other.seconds == job.seconds
                && other.requests == job.requests
                && other.concurrency == job.concurrency),
            "{job:?}"
        );
    }
}

/// Built-in tables contradict neither themselves nor their tpot, and hold no second rate for one point.
#[test]
fn no_built_in_table_has_an_error() {
    for table in tables() {
        for finding in check(&table) {
            assert_ne!(finding.severity, Severity::Error, "{}: {finding}", table.file);
            assert_ne!(finding.topic, Topic::TwoRates, "{}: {finding}", table.file);
        }
    }
}

fn found(topic: Topic) -> Vec<(String, u32)> {
    let mut found = Vec::new();
    for table in tables() {
        for finding in check(&table).iter().filter(|finding| finding.topic == topic) {
            let row = table.rows.iter().find(|row| row.line == finding.lines[0]).unwrap();
            found.push((table.file.clone(), row.concurrency));
        }
    }
    found
}

#[test]
fn the_outliers_are_the_rows_that_the_sources_doubt() {
    let doubted: Vec<String> = tables()
        .iter()
        .filter(|table| table.about.as_ref().is_some_and(|about| about.suspect.is_some()))
        .map(|table| table.file.clone())
        .collect();
    let outliers = found(Topic::Outlier);
    assert_eq!(outliers.iter().map(|(file, _)| file.clone()).collect::<Vec<_>>(), doubted);
    assert_eq!(outliers.iter().map(|(_, concurrency)| *concurrency).collect::<Vec<_>>(), [128, 2]);
}

#[test]
fn the_cliffs_are_where_the_descriptions_say_falling_or_non_monotone() {
    let cliffs = found(Topic::Cliff);
    let expected = [
        ("pro6000x2-deepseek-v4-flash-vllm-tp2-in8192-dspark3", 16),
        ("pro6000x4-qwen3.5-397b-awq-vllm-mtp2-ctx128k", 128),
        ("pro6000x8-glm5.1-nvfp4-vllm-dcp1-nomtp-ctx0", 32),
    ];
    assert_eq!(cliffs, expected.map(|(file, concurrency)| (file.to_owned(), concurrency)));
    for (file, _) in cliffs {
        let shape = load("", &file).about.unwrap().shape.unwrap();
        assert!(shape.starts_with("falling") || shape.starts_with("non-monotone"), "{file}: {shape}");
    }
}

#[test]
fn the_cap_of_eight_is_found_from_rate_and_tpot() {
    let table = load("h200", "qwen3-8b-slots8");
    let points = &table.curves()[0].points;
    assert_eq!(knee(points), Some(8));
    for batch in capped(points) {
        assert!((batch.running - 8.0).abs() < 0.2, "{batch:?}");
    }
    assert_eq!(capped(points).len(), 4);
    // Full KV pool: the rate is flat as well, but tpot is not.
    assert!(capped(&load("h200", "qwen3-8b-kv16k").curves()[0].points).is_empty());
}

#[test]
fn caps_are_found_in_the_tables_whose_queue_grows_at_a_flat_rate() {
    let found: Vec<String> = found(Topic::Capped).into_iter().map(|(file, _)| file).collect();
    let expected = [
        "b200x1-qwen3.6-27b-fp8-sglang-nomtp",
        "b200x1-qwen3.6-27b-nvfp4-sglang-nomtp",
        "b200x1-qwen3.6-35b-a3b-fp8-sglang-nomtp",
        "h200x1-llama3.1-70b-fp8-trtllm-tp1-1k8k",
        "h200x1-qwen3.6-35b-a3b-fp8-sglang-nomtp",
        "pro6000x1-glm4.5-air-awq-vllm",
        "qwen3-8b-slots8",
    ];
    assert_eq!(found, expected);
}

#[test]
fn plateaus_agree_with_the_judgement_in_the_descriptions() {
    let mut disagree = Vec::new();
    for table in tables() {
        let shape = table.about.as_ref().and_then(|about| about.shape.clone()).unwrap_or_default();
        let flat = table.curves().iter().any(|curve| plateau(&curve.points).is_some());
        let rising = shape == "rising";
        if shape.starts_with("plateau") && !flat || rising && flat {
            disagree.push(table.file);
        }
    }
    // Two points 16 apart; a rise of 11 % for a doubling; and the one whose level rests on the doubted row.
    let names: Vec<&str> = disagree.iter().map(String::as_str).collect();
    let expected = [
        "h100x1-qwen3.6-27b-bf16-sglang-mtp",
        "pro6000x4-deepseek-v4-flash-vllm-dp4-ep4",
        "pro6000x4-qwen3.8-27b-fp8-vllm-dp4-judge",
    ];
    assert_eq!(names, expected);
}

#[test]
fn values_given_as_words_keep_their_number() {
    let about = load("", "pro6000x1-llama3.1-8b-bf16-vllm-job300").about.unwrap();
    assert_eq!(about.max_running_requests.unwrap().number(), Some(128.0));
    let words = load("", "pro6000x1-glm4.5-air-awq-vllm").about.unwrap().max_running_requests.unwrap();
    assert_eq!((words.number(), words), (None, Given::Text("engine default".into())));
    let repeats = load("h200", "qwen3-8b-sweep").about.unwrap().repeats.unwrap();
    assert!(matches!(repeats, Given::ByPoint(points) if points["c16"] == 3.0));
}

/// Case: one card admits about 41 of 400 requests.
#[test]
fn the_admitted_requests_of_a_saturated_card_are_seen() {
    let table = load("", "rtx4090x1-qwen3-coder-30b-a3b-awq-vllm-dp1");
    let running = effective_batch(&table.curves()[0].points[0]).unwrap().running;
    assert!((running - 41.4).abs() < 0.1, "{running}");
    assert!(check(&table).iter().any(|finding| finding.what.contains("about 41.4 of 400 requests decode")));
}
