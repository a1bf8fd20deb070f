use super::*;
use crate::model::scenario::{Override, Scenario};
use std::path::PathBuf;

const PLAIN: &str = "[job]\nrequests = 10\nprompt_tokens = 5\noutput_tokens = 100\n[fleet]\ngpus = 2\n[engine]\nname = \"fixed-rate\"\ntok_per_s_per_gpu = 400\n";

fn scenario(text: &str, set: &[&str]) -> Result<Scenario> {
    let overrides: Vec<Override> = set.iter().map(|text| Override::parse(text).unwrap()).collect();
    Scenario::parse(text, "s", "s.toml", PathBuf::new(), &overrides)
}

fn refused(text: &str) -> String {
    scenario(text, &[]).unwrap_err().to_string()
}

fn rate(scenario: &Scenario) -> f64 {
    scenario.tables.engine.tok_per_s_per_gpu.unwrap()
}

#[test]
fn a_plain_scenario_resolves_to_itself() {
    let plain = scenario(PLAIN, &[]).unwrap();
    assert!(plain.unknowns.is_empty());
    let resolved = plain.resolve(&plain.units(Streams::new(1, 7))).unwrap();
    assert_eq!(format!("{:?}", resolved.tables), format!("{:?}", plain.tables));
}

#[test]
fn a_law_in_place_leaves_its_middle_and_one_beside_leaves_the_value() {
    let inside = scenario(&PLAIN.replace("= 400\n", "= { p5 = 100, p95 = 400 }\n"), &[]).unwrap();
    assert!((rate(&inside) - 200.0).abs() < 1e-9, "median of the lognormal");
    let beside = format!("{PLAIN}[uncertain]\nengine.tok_per_s_per_gpu = {{ min = 100, mode = 300, max = 500 }}\n");
    let beside = scenario(&beside, &[]).unwrap();
    assert_eq!(rate(&beside), 400.0);
    assert_eq!(beside.unknowns.len(), 1);
    let drawn = beside.resolve(&[0.5]).unwrap();
    assert!(drawn.unknowns.is_empty());
    assert!((rate(&drawn) - 300.0).abs() < 1e-6, "a symmetric PERT has its median in the middle");
}

#[test]
fn quantiles_of_the_laws_are_those_asked_for() {
    let text = |law: &str| format!("{PLAIN}[uncertain]\nengine.tok_per_s_per_gpu = {law}\n");
    let at = |law: &str, unit| rate(&scenario(&text(law), &[]).unwrap().resolve(&[unit]).unwrap());
    assert!((at("{ p5 = 100, p95 = 400 }", 0.05) - 100.0).abs() < 1e-3);
    assert!((at("{ p5 = 100, p95 = 400 }", 0.95) - 400.0).abs() < 1e-3);
    assert_eq!(at("{ values = [1, 2, 3], weights = [1, 0, 1] }", 0.49), 1.0);
    assert_eq!(at("{ values = [1, 2, 3], weights = [1, 0, 1] }", 0.51), 3.0);
    // Mean of a PERT law: (min + 4 mode + max) / 6.
    let law = scenario(&text("{ min = 0.1, mode = 0.2, max = 0.9 }"), &[]).unwrap();
    let mean = (0..2000).map(|i| rate(&law.resolve(&[(f64::from(i) + 0.5) / 2000.0]).unwrap())).sum::<f64>() / 2000.0;
    assert!((mean - 0.3).abs() < 1e-3, "{mean}");
}

#[test]
fn whole_numbers_stay_whole_and_names_of_laws_are_chosen() {
    let text = format!(
        "{PLAIN}[uncertain]\nfleet.gpus = {{ p5 = 2, p95 = 9 }}\njob.output_tokens = {{ values = [\"light\", \"heavy\"] }}\n"
    );
    let unsure = scenario(&text, &[]).unwrap();
    let drawn = unsure.resolve(&[0.7, 0.2]).unwrap();
    assert_eq!(drawn.tables.fleet.gpus, 5);
    assert_eq!(drawn.tables.job.output_tokens, Some(Value::String("light".to_owned())));
}

#[test]
fn draws_belong_to_the_name_of_the_key() {
    let one = format!("{PLAIN}[uncertain]\nengine.tok_per_s_per_gpu = {{ p5 = 1, p95 = 2 }}\n");
    let two = one.replace("[uncertain]\n", "[uncertain]\nfleet.startup_s = { p5 = 1, p95 = 2 }\n");
    let streams = Streams::new(3, 11);
    let (one, two) = (scenario(&one, &[]).unwrap(), scenario(&two, &[]).unwrap());
    assert_eq!(one.units(streams)[0], two.units(streams)[1]);
    assert_ne!(two.units(streams)[0], two.units(streams)[1]);
    assert_ne!(one.units(streams), one.units(Streams::new(3, 12)));
}

#[test]
fn what_is_set_is_no_longer_uncertain() {
    let text = format!("{PLAIN}[uncertain]\nengine.tok_per_s_per_gpu = {{ p5 = 1, p95 = 2 }}\n");
    let set = scenario(&text, &["engine.tok_per_s_per_gpu=7"]).unwrap();
    assert!(set.unknowns.is_empty());
    assert_eq!(rate(&set), 7.0);
    let other = scenario(&text, &["engine.tok_per_s_per_gpu={p5 = 8, p95 = 32}"]).unwrap();
    assert_eq!(other.unknowns.len(), 1);
    assert_eq!(rate(&other), 16.0);
}

#[test]
fn keys_drawn_together_keep_their_rows() {
    let number = |n: f64| Value::Float(n);
    let rows = vec![vec![number(100.0), number(1.0)], vec![number(200.0), number(2.0)]];
    let keys = vec!["engine.tok_per_s_per_gpu".to_owned(), "fleet.startup_s".to_owned()];
    let joint = Unknown::joint("fit", keys, rows).unwrap();
    let fitted = scenario(PLAIN, &[]).unwrap().with_unknown(joint);
    let drawn = fitted.resolve(&[0.9]).unwrap();
    assert_eq!((rate(&drawn), drawn.tables.fleet.startup_s), (200.0, Some(2.0)));
    let other = Override::parse("job.requests=5").unwrap();
    assert_eq!(fitted.with(&[other]).unwrap().unknowns.len(), 1, "a change elsewhere keeps what was added");
}

#[test]
fn slips_are_answered_with_place_and_remedy() {
    let beside = |line: &str| refused(&format!("{PLAIN}[uncertain]\n{line}\n"));
    let text = beside("engine.tok_per_s_per_gpu = { p5 = 3 }");
    assert!(text.starts_with("s.toml:11: uncertain.engine.tok_per_s_per_gpu: `p95` is missing; give { p5"), "{text}");
    let text = beside("engine.tok_per_s_per_gpu = { p5 = -1, p95 = 2 }");
    assert!(text.contains("give 0 < p5 < p95"), "{text}");
    let text = beside("engine.tok_per_s_per_gpus = { p5 = 1, p95 = 2 }");
    assert!(text.starts_with("s.toml:11: uncertain.engine.tok_per_s_per_gpus: unknown key"), "{text}");
    assert!(text.contains("did you mean `tok_per_s_per_gpu`"), "{text}");
    let text = beside("engine.tok_per_s_per_gpu = { p5 = 1, p95 = 2, p99 = 3 }");
    assert!(text.contains("unknown key `p99`; did you mean `p9"), "{text}");
    let text = beside("engine.tok_per_s_per_gpu = { p5 = 1, max = 2 }");
    assert!(text.contains("keys of several forms"), "{text}");
    let text = beside("engine.tok_per_s_per_gpu = 3");
    assert!(text.starts_with("s.toml:11: uncertain.engine.tok_per_s_per_gpu: found 3; give"), "{text}");
    let text = beside("job.output_tokens = { values = [\"light\"], weights = [1, 2] }");
    assert!(text.contains("give one weight for each value"), "{text}");
    let text = refused(&PLAIN.replace("= 400\n", "= { p5 = 9, p95 = 4 }\n"));
    assert!(text.starts_with("s.toml:9: engine.tok_per_s_per_gpu.p5: 9 and 4;"), "{text}");
}
