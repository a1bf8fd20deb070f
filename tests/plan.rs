//! The plan: what it says of the built-in case, its page, and other scenarios.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a panic is how a test fails, in its helpers too")]

use std::path::Path;
use std::sync::OnceLock;

use assert_cmd::Command;
use serde_json::Value;

fn makespan(arguments: &[&str]) -> std::process::Output {
    Command::cargo_bin("makespan").unwrap().args(arguments).output().unwrap()
}

/// The built-in case with a deadline: JSON and page of one run.
fn built_in() -> &'static (Value, String) {
    static PLAN: OnceLock<(Value, String)> = OnceLock::new();
    PLAN.get_or_init(|| {
        let folder = tempfile::tempdir().unwrap();
        let page = folder.path().join("plan.html");
        let page = page.to_str().unwrap();
        let output = makespan(&["plan", "--json", "--replications", "64", "--deadline", "7d", "--html", page]);
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        let left: Vec<_> = std::fs::read_dir(folder.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        assert_eq!(left, ["plan.html"], "nothing but the page is left");
        (serde_json::from_slice(&output.stdout).unwrap(), std::fs::read_to_string(page).unwrap())
    })
}

fn number(json: &Value, key: &str) -> f64 {
    json.pointer(key).and_then(Value::as_f64).unwrap_or_else(|| panic!("{key} is no number"))
}

#[test]
fn the_built_in_case_is_answered_from_table_to_advice() {
    let (json, _) = built_in();
    assert!((number(json, "/napkin_days") - 16.5).abs() < 0.1);
    assert_eq!(number(json, "/owed_to_cap/cap"), 8.0);
    // A batch of 48 costs far less than six of 8: half to four fifths of the time is owed to the cap.
    let [low, middle, high] = ["p5", "p50", "p95"].map(|p| number(json, &format!("/owed_to_cap/days_of_napkin/{p}")));
    assert!(9.0 < low && low < middle && middle < high && high < 13.0, "{low} {middle} {high}");
    let line = json.pointer("/plateau/check_first/what").and_then(Value::as_str).unwrap();
    assert!(line.contains("max_running_requests=8"), "{line}");
    let (lifted, as_is) = (number(json, "/lift/days/p50"), number(json, "/lift/days_as_is/p50"));
    assert!(0.3 * as_is < lifted && lifted < 0.8 * as_is, "{lifted} of {as_is}");
    let flags = json.pointer("/lift/flags").unwrap().to_string();
    assert!(flags.contains("--max-mamba-cache-size"), "{flags}");
    let advice = json["advice"].as_array().unwrap();
    assert!(advice.len() >= 4, "{advice:?}");
    // Every measured rate is inside what the likeliest explanation allows for a measurement, or all but.
    let rows = json.pointer("/plateau/rows").and_then(Value::as_array).unwrap();
    let inside = rows.iter().filter(|row| {
        let rate = number(row, "/measured_tok_per_s");
        0.97 * number(row, "/simulated_tok_per_s/p5") <= rate && rate <= 1.03 * number(row, "/simulated_tok_per_s/p95")
    });
    assert_eq!(inside.count(), 6, "{rows:?}");
    let ledger: f64 =
        json.pointer("/run/ledger").unwrap().as_object().unwrap().values().filter_map(Value::as_f64).sum();
    assert!((ledger - 1.0).abs() < 1e-9);
    let drain = json.pointer("/run/drain").and_then(Value::as_array).unwrap();
    assert_eq!(number(drain.last().unwrap(), "/running"), 0.0);
    assert_eq!(number(drain.last().unwrap(), "/seconds_before_end"), 0.0);
    assert!(drain.windows(2).all(|pair| number(&pair[0], "/running") > number(&pair[1], "/running")));
}

/// A number as a person reads it, and by how much rounding may have moved it.
fn read(shown: &str) -> (f64, f64) {
    let plain = shown.replace(',', "");
    let (digits, unit) = [("%", 0.01), (" B", 1e9), (" M", 1e6)]
        .iter()
        .find_map(|(suffix, unit)| plain.strip_suffix(suffix).map(|digits| (digits.to_owned(), *unit)))
        .unwrap_or((plain.clone(), 1.0));
    let decimals = digits.split_once('.').map_or(0, |(_, decimals)| decimals.len());
    (digits.parse::<f64>().unwrap() * unit, 0.500_001 * unit * 10f64.powi(-(decimals as i32)))
}

#[test]
fn every_number_of_the_page_is_the_one_of_the_json() {
    let (json, page) = built_in();
    let mut seen = 0;
    for piece in page.split("<data data-key=\"").skip(1) {
        let (key, rest) = piece.split_once("\" value=\"").unwrap();
        let (value, rest) = rest.split_once("\">").unwrap();
        let (shown, _) = rest.split_once("</data>").unwrap();
        // Read in the same way: the reader of JSON may be off by the last bit.
        assert_eq!(json.pointer(key), Some(&serde_json::from_str::<Value>(value).unwrap()), "{key}");
        if shown == "&lt;0.1%" {
            assert!(value.parse::<f64>().unwrap() < 0.001, "{key}: {value}");
        } else {
            let (number, rounding) = read(shown);
            let value: f64 = value.parse().unwrap();
            assert!((number - value).abs() <= rounding, "{key}: {value} is shown as {shown}");
        }
        seen += 1;
    }
    assert!(seen > 150, "only {seen} numbers");
    for place in 0..json["advice"].as_array().unwrap().len() {
        let step = json["advice"][place].as_str().unwrap();
        let escaped = step.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;");
        assert!(page.contains(&escaped), "{step}");
    }
}

#[test]
fn the_page_stands_alone_and_draws_everything() {
    let (_, page) = built_in();
    let without_names = page.replace("http://www.w3.org/2000/svg", "");
    for outside in ["http:", "https:", "<script", "<link", "src=", "@import", "url("] {
        assert!(!without_names.contains(outside), "{outside}");
    }
    assert_eq!(page.matches("<svg ").count(), 7);
    assert!(!page.contains("not drawn") && !page.contains("NaN"));
    assert!(page.contains("prefers-color-scheme: dark") && page.contains("@media print"));
}

const SMALL: &str = r#"
[job]
requests = 200
prompt_tokens = 100
output_tokens = { law = "lognormal", median = 200, sigma = 0.5 }
max_tokens = 400
[fleet]
hardware = "rtx-pro-6000"
gpus = 2
[model]
llm = "qwen3.6-27b"
[engine]
name = "vllm"
max_running = 16
[client]
concurrency = "all"
"#;

fn small(folder: &Path) -> String {
    let path = folder.join("small.toml");
    std::fs::write(&path, SMALL).unwrap();
    path.to_str().unwrap().to_owned()
}

#[test]
fn a_job_without_a_table_or_unknowns_is_planned_and_a_page_is_replaced_only_when_told() {
    let folder = tempfile::tempdir().unwrap();
    let scenario = small(folder.path());
    let page = folder.path().join("plan.html");
    std::fs::write(&page, "mine").unwrap();
    let path = page.to_str().unwrap();
    let refused = makespan(&["plan", &scenario, "--html", path]);
    assert_eq!(refused.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&refused.stderr).contains("--force"));
    assert_eq!(std::fs::read_to_string(&page).unwrap(), "mine");
    let done = makespan(&["plan", &scenario, "--html", path, "--force"]);
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
    let text = String::from_utf8(done.stdout).unwrap();
    assert!(text.contains("No benchmark table") && text.contains("32 running"), "{text}");
    assert!(text.lines().all(|line| line.chars().count() <= 110), "{text}");
    assert!(std::fs::read_to_string(&page).unwrap().contains("</html>"));
    // The same seed says the same but for the time that it took.
    let again = makespan(&["plan", &scenario]);
    let masked = |text: &str| text.lines().filter(|line| !line.contains(" s, seed")).collect::<Vec<_>>().join("\n");
    assert_eq!(masked(&text), masked(&String::from_utf8(again.stdout).unwrap()));
}
