//! Forecasts: the same bytes whatever threads, parts, or the moment at which a run was killed; intervals that hold what
//! they say.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a panic is how a test fails, in its helpers too")]

use std::path::{Path, PathBuf};

use makespan::engine::observe::Unobserved;
use makespan::experiment::{
    Extent, Forecast, Reduced, Replication, Replications, drivers, parse_days, replicate, run_at, run_forecast,
};
use makespan::model::scenario::{Override, Scenario};
use makespan::random::Streams;
use makespan::shard::{Store, Work};
use makespan::stats::{quantile, sorted};

/// A job that takes no time to simulate, with three things unknown.
const SMALL: &str = include_str!("jobs/fixed_rate.toml");

fn scenario(text: &str) -> Scenario {
    Scenario::parse(text, "small", "small.toml", PathBuf::new(), &[]).unwrap()
}

fn run(scenario: &Scenario, range: std::ops::Range<u64>, results: &mut Store<Replication>) -> std::ops::Range<u64> {
    let replications = Replications::new(scenario, 5).unwrap();
    run_forecast(&replications, &Extent { range, precision: None }, results, &|| {}).unwrap()
}

fn store(scenario: &Scenario, seed: u64) -> Store<Replication> {
    Store::new(Replications::new(scenario, seed).unwrap().identity().unwrap())
}

fn on_threads<T: Send>(threads: usize, work: impl FnOnce() -> T + Send) -> T {
    rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap().install(work)
}

fn whole(scenario: &Scenario, replications: u64) -> String {
    let mut results = store(scenario, 5);
    run(scenario, 0..replications, &mut results);
    results.to_csv().unwrap()
}

#[test]
fn any_number_of_threads_gives_the_same_bytes() {
    let scenario = scenario(SMALL);
    let one = on_threads(1, || whole(&scenario, 60));
    assert_eq!(one, on_threads(2, || whole(&scenario, 60)));
    assert_eq!(one, on_threads(5, || whole(&scenario, 60)));
}

#[test]
fn four_ranges_put_together_are_the_whole() {
    let scenario = scenario(SMALL);
    let folder = tempfile::tempdir().unwrap();
    let parts: Vec<PathBuf> = (0..4u64)
        .map(|part| {
            let path = folder.path().join(format!("{part}.csv"));
            let mut results = store(&scenario, 5);
            results.keep_in(&path, false).unwrap();
            run(&scenario, part * 15..(part + 1) * 15, &mut results);
            path
        })
        .collect();
    let mut merged = store(&scenario, 5);
    parts.iter().rev().for_each(|path| merged.read(path).unwrap());
    assert_eq!(merged.to_csv().unwrap(), whole(&scenario, 60));
}

#[test]
fn killed_at_any_byte_a_run_goes_on_to_the_same_end() {
    let scenario = scenario(SMALL);
    let complete = whole(&scenario, 30);
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("results.csv");
    // Twenty places over the whole file, those around the header and the ends of lines among them.
    let header = complete.find("\n0,").unwrap() + 1;
    let mut cuts = vec![0, 1, header - 1, header, header + 1, complete.len() - 1, complete.len()];
    cuts.extend((1..=14).map(|part| complete.len() * part / 15 + part % 3));
    for cut in cuts {
        std::fs::write(&path, &complete.as_bytes()[..cut]).unwrap();
        let mut results = store(&scenario, 5);
        results.keep_in(&path, false).unwrap();
        run(&scenario, 0..30, &mut results);
        assert_eq!(std::fs::read_to_string(&path).unwrap(), complete, "cut at byte {cut}");
    }
}

#[test]
fn rows_in_the_order_of_finishing_count_like_any_others() {
    let scenario = scenario(SMALL);
    let complete = whole(&scenario, 10);
    let mut lines: Vec<&str> = complete.lines().collect();
    lines.pop();
    lines[2..].reverse();
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("results.csv");
    std::fs::write(&path, lines.join("\n") + "\n9,12").unwrap();
    let mut results = store(&scenario, 5);
    results.keep_in(&path, false).unwrap();
    assert!((0..10).all(|index| results.contains(index)), "nothing is run again");
    run(&scenario, 0..10, &mut results);
    assert_eq!(std::fs::read_to_string(&path).unwrap(), complete);
}

#[test]
fn results_of_something_else_are_refused_and_kept() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("results.csv");
    let own = scenario(SMALL);
    std::fs::write(&path, whole(&own, 3)).unwrap();
    let before = std::fs::read(&path).unwrap();
    let changed = own.with(&[Override::parse("job.requests=41").unwrap()]).unwrap();
    for (scenario, seed) in [(&changed, 5), (&own, 6)] {
        let error = store(scenario, seed).keep_in(&path, false).unwrap_err().to_string();
        assert!(error.contains("results of something else") && error.contains("--force"), "{error}");
    }
    std::fs::write(folder.path().join("notes.txt"), "not this\nat all\n").unwrap();
    let error = store(&own, 5).keep_in(&folder.path().join("notes.txt"), false).unwrap_err().to_string();
    assert!(error.contains("not a results file"), "{error}");
    assert_eq!(std::fs::read(&path).unwrap(), before);
    store(&changed, 5).keep_in(&path, true).unwrap();
    assert_ne!(std::fs::read(&path).unwrap(), before);
}

#[test]
fn a_precision_stops_at_the_same_replication_whatever_was_there() {
    let scenario = scenario(SMALL);
    let extent = Extent { range: 0..4000, precision: Some(0.2) };
    let replications = Replications::new(&scenario, 5).unwrap();
    let stop = |results: &mut Store<Replication>| run_forecast(&replications, &extent, results, &|| {}).unwrap();
    let mut fresh = store(&scenario, 5);
    let done = stop(&mut fresh);
    assert!(done.end < 4000 && done.end.is_multiple_of(64), "{done:?}");
    let mut resumed = store(&scenario, 5);
    (0..100).rev().for_each(|index| resumed.add(replicate(&scenario, 5, index).unwrap()).unwrap());
    assert_eq!(stop(&mut resumed), done);
    let forecast = Forecast::new(&fresh.range(done), Some(1.0)).unwrap();
    let median = forecast.quantiles[2];
    let (low, high) = median.interval.unwrap();
    assert!(low >= median.days * 0.8 && high <= median.days * 1.2);
}

/// Jobs whose true rate, law and size are drawn as the forecast believes, each with requests of its own: the 90% interval
/// of 60 replications holds the realised makespan.
#[test]
fn ninety_per_cent_intervals_hold_ninety_per_cent() {
    const JOBS: u64 = 320;
    let mut inside = 0;
    for job in 0..JOBS {
        let spread = 1.2 + 0.01 * job as f64;
        let text = SMALL
            .replace("p95 = 500", &format!("p95 = {}", 300.0 * spread))
            .replace("requests = 40", &format!("requests = {}", 20 + job % 17));
        let scenario = scenario(&text);
        let forecast: Vec<f64> = (0..60).map(|index| replicate(&scenario, job, index).unwrap().makespan_s).collect();
        let truth = replicate(&scenario, job, 1_000_000).unwrap().makespan_s;
        let days = sorted(&forecast);
        let (low, high) = (quantile(&days, 0.05).unwrap(), quantile(&days, 0.95).unwrap());
        inside += u64::from(low <= truth && truth <= high);
    }
    let share = inside as f64 / JOBS as f64;
    println!("{inside} of {JOBS} realised makespans lie inside: {:.1}%", share * 100.0);
    assert!((0.85..=0.95).contains(&share), "{share}");
}

#[test]
fn the_unknown_that_matters_drives_the_spread() {
    let scenario = scenario(
        &SMALL
            .replace("requests = 40", "requests = 4000")
            .replace("{ values = [4, 2], weights = [3, 1] }", "{ values = [4] }"),
    );
    let rows: Vec<_> = (0..96).map(|index| replicate(&scenario, 5, index).unwrap()).collect();
    let rows: Vec<_> = rows.iter().collect();
    let found = drivers(&Reduced::new(&scenario).unwrap(), 5, 96, &rows, &|| {}).unwrap().unwrap();
    let share = |name: &str| found.drivers.iter().find(|driver| driver.name == name).unwrap().index;
    assert!(share("engine.tok_per_s_per_gpu").total > 0.3, "{found:?}");
    assert!(share("fleet.gpus").total == 0.0, "one value only: {found:?}");
    assert!(found.reproduced.unwrap() > 0.999, "not reduced at all: {found:?}");
}

#[test]
fn a_reduced_job_stands_for_the_whole_one() {
    let text = std::fs::read_to_string(Path::new("models/scenario/qwen3.6-27b-914k.toml")).unwrap();
    let scenario = scenario(&text.replace("requests = 914_000", "requests = 60_000"));
    let reduced = Reduced::new(&scenario).unwrap();
    assert_eq!(reduced.requests, 8192);
    for index in 0..3 {
        let streams = Streams::new(1, index);
        let units = scenario.units(streams);
        let (_, whole) = run_at(&scenario, &units, streams, &mut Unobserved).unwrap();
        let estimate = reduced.run(&units, streams).unwrap();
        let ratio = estimate / whole.makespan.as_s();
        // CV of the lengths under the cap 0.6 to 0.9 over √8192.
        assert!((ratio - 1.0).abs() < 0.03, "{ratio}");
    }
}

#[test]
fn draws_that_cannot_run_are_found_before_the_run() {
    let text = SMALL.replace("min = 0.5, mode = 1.0, max = 1.2", "min = -1, mode = 1.0, max = 1.2");
    let scenario = scenario(&text);
    let error = Replications::new(&scenario, 5).unwrap_err().to_string();
    assert!(error.starts_with("job.output_tokens.sigma: can be drawn so that"), "{error}");
    assert!(error.contains("narrow the law"), "{error}");
}

#[test]
fn times_are_read_with_their_unit() {
    assert_eq!(parse_days("10d").unwrap(), 10.0);
    assert_eq!(parse_days(" 36 h").unwrap(), 1.5);
    assert_eq!(parse_days("2 days").unwrap(), 2.0);
    for wrong in ["10", "d", "-1d", "soon", "infd"] {
        assert!(parse_days(wrong).unwrap_err().to_string().contains("as in 10d"), "{wrong}");
    }
}
