//! A forecast that is killed at any moment goes on to the end that it would have come to.
#![allow(clippy::unwrap_used, reason = "a panic is how a test fails, in its helpers too")]

use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// A job that takes some tens of milliseconds, so that a kill finds replications finished and others under way.
const JOB: &str = include_str!("jobs/h200.toml");

fn forecast(folder: &Path, results: &str, extra: &[&str]) -> Command {
    let mut command = Command::new(assert_cmd::cargo::cargo_bin("makespan"));
    command.current_dir(folder).args(["forecast", "job.toml", "--replications", "40", "--quantiles-only", "--json"]);
    command.args(["--results", results]).args(extra).stdin(Stdio::null()).stderr(Stdio::null());
    command
}

#[test]
fn killed_at_twenty_moments_a_forecast_ends_as_if_it_had_run_through() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("job.toml"), JOB).unwrap();
    let started = Instant::now();
    let whole = forecast(folder.path(), "whole.csv", &[]).output().unwrap();
    let took = started.elapsed();
    assert!(whole.status.success());
    let mut kills = 0;
    // Moments spread over the run by a fixed sequence of fractions; on a machine that is suddenly quicker some come too
    // late, which harms nothing.
    for moment in 0..20u32 {
        let mut child = forecast(folder.path(), "killed.csv", &[]).stdout(Stdio::null()).spawn().unwrap();
        let fraction = (f64::from(moment) * 0.618_034).fract();
        std::thread::sleep(Duration::from_secs_f64(took.as_secs_f64() * fraction / 8.0));
        kills += u32::from(child.try_wait().unwrap().is_none());
        child.kill().unwrap();
        child.wait().unwrap();
    }
    assert!(kills > 0, "at least one was still at work");
    let resumed = forecast(folder.path(), "killed.csv", &[]).output().unwrap();
    assert_eq!(String::from_utf8(resumed.stdout).unwrap(), String::from_utf8(whole.stdout).unwrap());
    let read = |name: &str| std::fs::read_to_string(folder.path().join(name)).unwrap();
    assert_eq!(read("killed.csv"), read("whole.csv"));
}
