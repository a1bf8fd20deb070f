//! The public traces, where they lie beside the repository: their known quirks, and the published fits.
#![allow(missing_docs, clippy::unwrap_used, clippy::print_stdout)]

use std::path::Path;

use makespan::inspect::{Kind, Options, fits, inspect};
use makespan::measured::Severity;
use makespan::workload::Trace;
use makespan::workload::finished::Seen;
use makespan::workload::trace::TraceOptions;

/// What the README of the traces lists of each file, and what else is above a threshold of `lengths.md`; nothing more of
/// the same severity. Files of other kinds say what they are.
#[test]
fn the_real_traces_have_their_listed_quirks_and_no_others() {
    use Severity::{Error, Note, Warning};
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../shared/traces");
    if !folder.is_dir() {
        println!("skipped: no shared traces");
        return;
    }
    type Quirk = (Severity, u8, &'static str);
    let azure_chat: &[Quirk] = &[
        (Warning, 3, "exactly 18 "),
        (Warning, 3, "exactly 217 output tokens, 29 times"),
        (Warning, 3, "exactly 396 "),
        (Warning, 3, "28% of the rows (5,366) lie within 10% of 406"),
        (Warning, 5, "outputs stop at 1,000: <0.1% of the rows (11)"),
        (Warning, 10, "28% of the rows repeat a pair of input and output, 11% by chance"),
    ];
    let cases: [(&str, &[Quirk]); 12] = [
        ("azure_llm_2023_conv.csv", azure_chat),
        ("vidur_splitwise_conv.csv", azure_chat),
        ("azure_llm_2023_code.csv", &[(Note, 15, "spread 13.2 times")]),
        (
            "mooncake_conversation.jsonl.gz",
            &[
                (Warning, 3, "2.1% of the rows (255) have exactly 3 "),
                (Warning, 5, "outputs stop at 2,000: 0.2% of the rows (30)"),
                (Warning, 15, "(10,851) have the time of the row before; 55% of the others come 3.0 s later"),
            ],
        ),
        ("llmservingsim_mixed.jsonl", &[]),
        ("vllm_run_qwen3_30b_a3b_rtxpro6000.jsonl", &[]),
        ("vllm_run_llama31_8b_rtxpro6000.jsonl", &[]),
        ("servegen_deepseek_r1_sample.csv.gz", &[(Warning, 6, "exactly 1,500")]),
        (
            "servegen_deepseek_r1_hist.csv.gz",
            &[(Warning, 5, "stop at 32,768"), (Warning, 6, "0.3% of the rows (3,855) stop at exactly 1,500")],
        ),
        // Rule 3: over 0.2% and 7 times the neighbours.
        ("servegen_m_large_hist.csv.gz", &[(Warning, 3, "exactly 15 output tokens, 7 times")]),
        // Empty rows (rule 1: over 0.1%), one-word replies (rule 3), 91 empty answers, a file in the order of its models.
        (
            "thinking_short_puzzles.csv",
            &[
                (Error, 1, "(40) have 0"),
                (Warning, 3, "exactly 3 "),
                (Warning, 7, "(91) have an empty answer"),
                (Warning, 12, "in output by 0.11"),
            ],
        ),
        // The provider's own cap; five runs of each prompt (rule 10), in the order of the prompts (rule 12).
        (
            "thinking_token_economy.csv",
            &[
                (Note, 6, "exactly 4,096 or 8,192 though they asked for more"),
                (Warning, 5, "(2) were cut at a cap; the longest output is 30,000"),
                (Warning, 7, "(3) have an empty answer"),
                (Warning, 10, "6.1% of the rows repeat a pair"),
                (Warning, 12, "in input by 0.64"),
                (Warning, 12, "in output by 0.52"),
            ],
        ),
    ];
    for (name, expected) in cases {
        let lengths = inspect(&folder.join(name), &Options::default()).unwrap().lengths.unwrap();
        let found = &lengths.checks.findings;
        for (severity, check, words) in expected {
            assert!(
                found.iter().any(|it| it.severity == *severity && it.check == *check && it.what.contains(words)),
                "{name}: {check} {words}: {found:#?}"
            );
        }
        let severe = found.iter().filter(|it| it.severity != Note).count();
        assert_eq!(severe, expected.iter().filter(|it| it.0 != Note).count(), "{name}: {found:#?}");
    }
    let rates = inspect(&folder.join("servegen_deepseek_r1_rates.csv.gz"), &Options::default()).unwrap();
    assert_eq!(
        (rates.kind, rates.notes[0].as_str()),
        (Kind::Rates, "144 windows of 73 clients, 16.015 requests/s on average")
    );
    for (name, most) in [("llama31_8b", 128), ("qwen3_30b_a3b", 256)] {
        let name = format!("vllm_run_{name}_rtxpro6000_timeseries.csv");
        let engine = inspect(&folder.join(&name), &Options::default()).unwrap().engine.unwrap();
        assert_eq!(engine.most_running, most, "{name}");
    }
    // No file of the folder is missing above.
    let data = std::fs::read_dir(&folder).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let data = data.filter(|name| [".csv", ".jsonl", ".gz"].iter().any(|end| name.ends_with(end)));
    assert_eq!(data.count(), cases.len() + 3);
}

/// The fits of `lengths.md`, where the sample is public: AIC above the mixture's, and the mixture itself.
#[test]
fn fits_of_the_real_traces_are_the_published_ones() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../shared/traces");
    if !folder.is_dir() {
        println!("skipped: no shared traces");
        return;
    }
    for (name, lognormal, gamma, weibull, mixture) in [
        ("azure_llm_2023_code.csv", 2988.0, 8025.0, 7795.0, [0.66, 11.0, 0.38, 0.34, 37.0, 0.90]),
        ("azure_llm_2023_conv.csv", 15_651.0, 15_718.0, 16_006.0, [0.72, 103.0, 0.71, 0.28, 406.0, 0.05]),
        ("mooncake_conversation.jsonl.gz", 10_437.0, 4903.0, 4518.0, [0.34, 56.0, 1.62, 0.66, 407.0, 0.35]),
    ] {
        // The published fits take every length as whole.
        let trace = Trace::read(&folder.join(name), TraceOptions::default()).unwrap();
        let mut rows: Vec<u32> = trace.rows.iter().map(|row| row.output_tokens).collect();
        rows.sort_unstable();
        let groups = rows.chunk_by(|a, b| a == b);
        let seen = groups.map(|group| Seen { tokens: group[0], complete: group.len() as f64, censored: 0.0 });
        let fits = fits(&seen.collect::<Vec<_>>());
        assert_eq!(fits[0].law, "mixture", "{name}");
        for (law, expected) in [("lognormal", lognormal), ("gamma", gamma), ("weibull", weibull)] {
            let found = fits.iter().find(|fit| fit.law == law).unwrap().delta_aic;
            assert!((found - expected).abs() < 0.002 * expected, "{name} {law}: {found}");
        }
        for ((parameter, found), expected) in fits[0].parameters.iter().zip(mixture) {
            assert!((found / expected - 1.0).abs() < 0.04, "{name} {parameter}: {found}");
        }
    }
}
