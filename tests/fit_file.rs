//! A fit on disk: what it refuses, and what the other commands take from it.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a panic is how a test fails, in its helpers too")]

use std::process::Command;
use std::sync::LazyLock;

use makespan::calibrate::{FitFile, FitOptions, PLAIN, Points, Structure, fit, predict};
use makespan::experiment::{Setup, measured_table};
use makespan::model::scenario::{DEFAULT_SCENARIO, Override, Scenario};

/// The fit of the default scenario.
static FITTED: LazyLock<FitFile> = LazyLock::new(|| {
    let setup = Setup::new(&Scenario::load(DEFAULT_SCENARIO, &[]).unwrap()).unwrap();
    let (name, table) = measured_table(&setup).unwrap().unwrap();
    let found = fit(&setup, &table, FitOptions { draws: 200, ..FitOptions::new(1) }).unwrap();
    FitFile::new(&found, &name, &table)
});

fn set(text: &str) -> Override {
    Override::parse(text).unwrap()
}

fn refused(file: &FitFile, overrides: &[Override]) -> String {
    match file.scenario(DEFAULT_SCENARIO, overrides, true) {
        Ok(_) => panic!("a fit that belongs to something else was taken"),
        Err(error) => error.to_string(),
    }
}

#[test]
fn the_medians_give_the_table_again() {
    let setup = Setup::new(&FITTED.scenario(DEFAULT_SCENARIO, &[], true).unwrap()).unwrap();
    let (_, table) = measured_table(&setup).unwrap().unwrap();
    let waves = 1;
    for point in Points::new(&setup, &table).unwrap().used {
        let structure = Structure { running_cap: None, waves, client_cap: None };
        let found = predict(&setup, &point, structure, PLAIN, 1).unwrap().tok_per_s;
        let measured = point.measured.tok_per_s.unwrap();
        assert!((found / measured).ln().abs() < 0.12, "{found} for {measured} at {}", point.concurrency);
    }
}

#[test]
fn draws_differ_and_cover_what_the_fit_does_not_know() {
    assert!(FITTED.draws.len() > 20);
    for (index, key) in FITTED.keys.iter().enumerate() {
        let mut values: Vec<f64> = FITTED.draws.iter().map(|row| row[index]).collect();
        values.sort_by(f64::total_cmp);
        values.dedup();
        // A posterior of a few draws would look certain of everything.
        assert!(values.len() > 15, "{key}: {} different values", values.len());
    }
    let scenario = FITTED.scenario(DEFAULT_SCENARIO, &[], true).unwrap();
    assert!(scenario.unknowns.iter().any(|unknown| unknown.name == "fit"));
    // The cap that was fitted is the cap that runs, whatever the scenario assumes of slots.
    let nine = FitFile { caps: vec![9; 8], ..FITTED.clone() };
    let scenario = nine.scenario(DEFAULT_SCENARIO, &[], true).unwrap();
    assert_eq!(Setup::new(&scenario).unwrap().settings.running_cap, 9);
}

#[test]
fn what_is_set_wins_over_the_fit() {
    let overrides = [set("engine.max_running=6"), set("engine.cost.bandwidth_share=0.5")];
    let scenario = FITTED.scenario(DEFAULT_SCENARIO, &overrides, true).unwrap();
    let units = scenario.units(makespan::random::Streams::new(1, 3));
    for scenario in [scenario.clone(), scenario.resolve(&units).unwrap()] {
        let setup = Setup::new(&scenario).unwrap();
        assert_eq!(setup.settings.running_cap, 6);
        assert_eq!(setup.parameters.bandwidth_share, 0.5);
        assert_ne!(setup.parameters.flops_share, setup.hardware.as_ref().unwrap().priors.flops_share);
    }
}

#[test]
fn a_fit_of_something_else_is_refused() {
    let other_version = FitFile { version: "0.0.1".to_owned(), ..FITTED.clone() };
    assert!(refused(&other_version, &[]).contains("0.0.1"));
    let other_rows = FitFile { table_hash: "0".to_owned(), ..FITTED.clone() };
    assert!(refused(&other_rows, &[]).contains("other rows"));
    assert!(refused(&FITTED, &[set("fleet.hardware=h200")]).contains("h200"));
    let unexplained = FitFile { unexplained: Some("not explained by the model".to_owned()), ..FITTED.clone() };
    assert!(refused(&unexplained, &[]).contains("not explained"));
    assert!(unexplained.scenario(DEFAULT_SCENARIO, &[], false).is_ok());
    let mut short = FITTED.clone();
    short.draws[0].pop();
    assert!(refused(&short, &[]).contains("each key"));
}

#[test]
fn the_commands_read_it_and_those_that_fit_refuse_it() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("fit.toml");
    FITTED.save(&path).unwrap();
    assert_eq!(&FitFile::load(&path).unwrap(), &*FITTED);
    let run = |command: &[&str]| {
        let mut all = Command::new(env!("CARGO_BIN_EXE_makespan"));
        all.args(command).arg("--fit").arg(&path).output().unwrap()
    };
    let few = ["--set", "job.requests=200", "--json"];
    for command in
        [&["simulate"][..], &["sweep"], &["forecast", "--replications", "4"], &["decide", "--replications", "4"]]
    {
        let done = run(&[command, &few].concat());
        assert!(done.status.success(), "{command:?}: {}", String::from_utf8_lossy(&done.stderr));
    }
    for command in ["calibrate", "diagnose"] {
        let done = run(&[command]);
        assert_eq!(done.status.code(), Some(2), "{command}");
        assert!(String::from_utf8_lossy(&done.stderr).contains("--fit"));
    }
}
