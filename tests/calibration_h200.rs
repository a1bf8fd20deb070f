//! What a fit to one sweep of a real engine says of what it never saw: step times, and the same engine with drafts.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a panic is how a test fails, in its helpers too")]
#![allow(clippy::print_stdout, reason = "the numbers are worth reading")]

use std::path::{Path, PathBuf};

use makespan::calibrate::{Effort, Mode, Model, Points, describe, find_mode, forecast, load_tables, table_model};
use makespan::cost::CONTEXT_UNIT_BITS;
use makespan::units::Span;

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("traces/measured/h200")
}

/// The model of a table, of the rows that `keep` wants.
fn model(name: &str, keep: impl Fn(u32) -> bool) -> Model {
    let (_, table) = load_tables(Some(&folder())).unwrap().into_iter().find(|(other, _)| other == name).unwrap();
    let described = describe(&table).unwrap();
    let mut points = Points::new(&described.setup, &table).unwrap().used;
    points.retain(|point| keep(point.in_flight));
    table_model(&described.setup, &points, described.known, 1).unwrap()
}

fn mode(model: &Model) -> Mode {
    let (structure, prior) = model.structures[0];
    find_mode(model, structure, prior, &vec![0.0; model.priors.len()], Effort::Full).unwrap()
}

fn median(errors: &mut [f64]) -> f64 {
    errors.sort_by(f64::total_cmp);
    errors[errors.len() / 2]
}

#[test]
fn a_sweep_at_short_context_predicts_the_grid_of_steps() {
    // The sweep holds at most 640 tokens of context: what long contexts cost is a prediction of the model's shapes.
    for (rows, bound) in [("nine", 0.05), ("three", 0.05)] {
        let source = model("qwen3-8b-sweep", |in_flight| rows == "nine" || matches!(in_flight, 1 | 16 | 128));
        let (setup, _) = source.setup_at(&mode(&source).scores);
        let cost = setup.step_cost();
        let mut reader = csv::Reader::from_path(folder().join("qwen3-8b-decode-grid.csv")).unwrap();
        let mut errors: Vec<f64> = reader
            .records()
            .map(|row| {
                let row = row.unwrap();
                let number = |column: usize| row[column].parse::<f64>().unwrap();
                let price = cost.decode(number(1) as u32);
                let units = (number(3) as u64) << CONTEXT_UNIT_BITS;
                let piece = price.segment(units);
                let step = price.fixed_attoseconds
                    + piece.extra_attoseconds
                    + u128::from(piece.slope_attoseconds) * u128::from(units);
                let error = Span(step).as_s() * 1e3 / number(4) - 1.0;
                println!("{rows} rows: batch {} at {}: {error:+.3}", &row[1], &row[0]);
                error.abs()
            })
            .collect();
        let found = median(&mut errors);
        println!("{rows} rows: median {found:.4}");
        assert!(found <= bound, "{rows}: {found}");
    }
}

#[test]
fn a_sweep_without_drafts_predicts_one_with_a_given_acceptance() {
    let (source, target) = (model("hybrid-27b-sweep", |_| true), model("hybrid-27b-mtp1", |_| true));
    let modes = [mode(&source)];
    let mut errors: Vec<f64> = target
        .points
        .iter()
        .map(|point| {
            let own = Some(target.structures[0].0);
            let found = forecast(&modes, &source, &target, point, own, &|found| found.tok_per_s).unwrap();
            let error = found.value / point.measured.tok_per_s.unwrap() - 1.0;
            println!("{} in flight: {error:+.3}", point.in_flight);
            error.abs()
        })
        .collect();
    let found = median(&mut errors);
    assert!(found <= 0.08, "{errors:?}");
}
