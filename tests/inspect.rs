//! Files as users have them: recognised, read with the right values, and their faults named.
#![allow(missing_docs, clippy::unwrap_used, clippy::panic)]

use std::io::Write as _;
use std::path::{Path, PathBuf};

use assert_cmd::Command;
use makespan::inspect::{Declared, Inspection, JobPart, Kind, Options, inspect};
use makespan::workload::Trace;
use makespan::workload::trace::TraceOptions;

fn sample(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/samples").join(name)
}

fn look(name: &str) -> Inspection {
    inspect(&sample(name), &Options::default()).unwrap_or_else(|error| panic!("{name}: {error}"))
}

#[test]
fn every_request_format_is_read_with_the_right_values() {
    // Rows, used, refused, mean input, mean output, seconds from the first to the last.
    for (name, format, rows, used, refused, input, output, span) in [
        ("azure.csv", "Azure", 3, 3.0, 0, 977.333, 52.667, 15_140_653.329_34),
        ("burstgpt_1_1.csv", "BurstGPT", 3, 3.0, 0, 658.667, 98.0, 113.0),
        ("burstgpt_1_2.csv", "BurstGPT", 3, 3.0, 0, 658.667, 98.0, 113.0),
        ("vidur.csv", "Vidur", 2, 2.0, 0, 385.0, 76.5, 4.314_579),
        ("vidur_lengths.csv", "Vidur", 2, 2.0, 0, 2893.5, 105.0, 0.0),
        ("splitwise.csv", "Splitwise", 2, 2.0, 0, 3072.0, 20.0, 2.0),
        ("mooncake.jsonl", "Mooncake", 2, 2.0, 0, 1200.0, 39.0, 3.0),
        ("qwen_bailian.jsonl", "Qwen-Bailian", 2, 2.0, 0, 120.0, 110.0, 61.1),
        ("aiperf_sessions.jsonl", "AIPerf trace", 3, 3.0, 0, 150.667, 21.333, 0.0),
        ("aiperf_export.jsonl", "AIPerf profile export", 1, 1.0, 0, 120.0, 903.0, 0.0),
        ("llmservingsim.jsonl", "LLMServingSim", 2, 2.0, 0, 66.0, 257.0, 0.005),
        ("llmservingsim_session.jsonl", "LLMServingSim", 2, 2.0, 0, 120.0, 25.0, 0.0),
        ("openai_batch_output.jsonl", "OpenAI batch output", 4, 2.0, 2, 125.5, 2499.5, 1.0),
        ("openai_batch_responses.jsonl", "OpenAI batch output", 1, 1.0, 0, 120.0, 903.0, 0.0),
        ("openai_batch_input.jsonl", "OpenAI batch input", 2, 0.0, 0, 4.0, 0.0, 0.0),
        ("anthropic_batch.jsonl", "Anthropic batch output", 2, 1.0, 1, 120.0, 903.0, 0.0),
        ("sharegpt.json", "conversations", 2, 1.0, 1, 4.0, 2.0, 0.0),
        ("sglang_custom.jsonl", "conversations", 2, 2.0, 0, 4.0, 1.5, 0.0),
        ("sglang_openai.jsonl", "chat requests", 1, 0.0, 0, 4.0, 0.0, 0.0),
        ("vllm_custom.jsonl", "prompts", 2, 1.0, 0, 4.5, 12.0, 0.0),
        ("vllm_result.json", "benchmark result with lengths", 3, 2.0, 1, 125.5, 700.0, 0.0),
        ("servegen_dataset.json", "histogram", 1, 1e6, 0, 56.75, 800.0, 0.0),
    ] {
        let lengths = look(name).lengths.unwrap_or_else(|| panic!("{name}: no lengths"));
        assert_eq!(lengths.format, format, "{name}");
        assert_eq!((lengths.rows, lengths.used.round(), lengths.refused), (rows, used, refused), "{name}");
        let mean = |column: &Option<makespan::inspect::Column>| column.as_ref().map_or(0.0, |column| column.mean);
        assert!((mean(&lengths.input) - input).abs() < 1e-3, "{name}: {:?}", lengths.input);
        assert!((mean(&lengths.output) - output).abs() < 1e-3, "{name}: {:?}", lengths.output);
        let found = lengths.arrivals.map_or(0.0, |arrivals| arrivals.span_s);
        assert!((found - span).abs() < 1e-3, "{name}: {found} s");
    }
}

#[test]
fn the_end_of_a_batch_request_is_censoring() {
    let batch = look("openai_batch_output.jsonl").lengths.unwrap();
    assert_eq!((batch.censored, batch.beyond), (1.0, Some(0.5)));
    assert_eq!(look("openai_batch_responses.jsonl").lengths.unwrap().censored, 1.0);
    assert_eq!(look("anthropic_batch.jsonl").lengths.unwrap().censored, 0.0);
    // As a trace: failed lines are left out with the empty rows, or named.
    let trace = |skip_empty| {
        Trace::read(&sample("openai_batch_output.jsonl"), TraceOptions { skip_empty, ..TraceOptions::default() })
    };
    let read = trace(true).unwrap();
    assert_eq!((read.rows.len(), read.skipped), (2, 2));
    let error = trace(false).unwrap_err().to_string();
    assert!(error.ends_with(":3: response: status 400; a failed request has no length"), "{error}");
    let options = Options { inputs: Some(sample("openai_batch_input.jsonl")), ..Options::default() };
    let joined = inspect(&sample("openai_batch_output.jsonl"), &options).unwrap().lengths.unwrap();
    assert_eq!(joined.job.unwrap().total, 2);
}

#[test]
fn every_result_becomes_points() {
    // Points as concurrency, output tokens/s; ttft and tpot of the first; acceptance.
    type Case = (&'static str, &'static [(u32, f64)], f64, f64, f64);
    let cases: [Case; 13] = [
        ("result_vllm.jsonl", &[(8, 285.7), (16, 450.0)], 120.0, 25.1, 2.3),
        ("result_sglang.jsonl", &[(16, 400.0)], 900.0, 0.0, 2.4),
        ("result_sglang_offline.jsonl", &[(64, 2000.0)], 0.0, 0.0, 0.0),
        ("result_sglang_one_batch.jsonl", &[(4, 128.0)], 0.0, 0.0, 2.5),
        ("result_aiperf.json", &[(12, 300.0)], 150.0, 38.0, 0.0),
        ("result_inferencex.json", &[(8, 310.0)], 200.0, 21.0, 0.0),
        ("result_batched_bench.jsonl", &[(1, 40.0), (4, 128.0)], 50.0, 25.0, 0.0),
        ("result_batched_bench.md", &[(4, 128.0)], 100.0, 31.25, 0.0),
        ("result_llama_bench.json", &[(1, 50.0)], 0.0, 20.0, 0.0),
        ("result_guidellm.json", &[(8, 300.0)], 90.0, 0.0, 0.0),
        ("result_sweep_summary.csv", &[(8, 285.7), (16, 450.0)], 120.0, 0.0, 0.0),
        ("table_h1.md", &[(1, 40.832), (4, 147.2)], 52.5, 24.3, 0.0),
        ("vllm_result.json", &[(3, 112.0)], 0.0, 0.0, 0.0),
    ];
    for (name, points, ttft, tpot, acceptance) in cases {
        let table = look(name).table.unwrap_or_else(|| panic!("{name}: no table"));
        let found: Vec<(u32, f64)> = table.points.iter().map(|row| (row.concurrency, row.tok_per_s)).collect();
        assert_eq!(found.len(), points.len(), "{name}: {found:?} {:?}", table.left_out);
        for ((concurrency, rate), (expected, expected_rate)) in found.iter().zip(points) {
            assert_eq!(concurrency, expected, "{name}");
            assert!((rate - expected_rate).abs() < 0.01, "{name}: {rate}");
        }
        let first = &table.points[0];
        assert!((first.ttft_ms.unwrap_or(0.0) - ttft).abs() < 1e-6, "{name}: {:?}", first.ttft_ms);
        assert!((first.tpot_ms.unwrap_or(0.0) - tpot).abs() < 1e-6, "{name}: {:?}", first.tpot_ms);
        assert!(
            (table.server.acceptance.unwrap_or(0.0) - acceptance).abs() < 1e-9,
            "{name}: {:?}",
            table.server.acceptance
        );
    }
    assert_eq!(look("result_sglang.jsonl").table.unwrap().server.running_cap, Some(8));
}

#[test]
fn a_folder_of_results_is_one_sweep() {
    let folder = tempfile::tempdir().unwrap();
    for concurrency in [16, 4] {
        let run = folder.path().join(format!("m-concurrency{concurrency}"));
        std::fs::create_dir(&run).unwrap();
        std::fs::copy(sample("result_aiperf.csv"), run.join("profile_export_aiperf.csv")).unwrap();
    }
    std::fs::write(folder.path().join("notes.txt"), "hello\n").unwrap();
    std::fs::write(folder.path().join("server.log"), "hello\n").unwrap();
    std::fs::write(folder.path().join("broken.json"), "{\"output_throughput\": 3").unwrap();
    std::fs::write(folder.path().join("summary.csv"), "x\n1\n").unwrap();
    std::fs::copy(sample("result_vllm.jsonl"), folder.path().join("other.jsonl")).unwrap();
    let inspection = inspect(folder.path(), &Options::default()).unwrap();
    let table = inspection.table.unwrap();
    let found: Vec<(u32, f64)> = table.points.iter().map(|row| (row.concurrency, row.tok_per_s)).collect();
    assert_eq!(found, [(4, 300.0), (16, 300.0)]);
    assert_eq!(table.points[0].num_requests, Some(1200));
    assert_eq!(inspection.notes, ["2 result files read as one sweep, 5 left out"]);
    // Each with its reason.
    for (file, why) in [
        ("broken.json", "EOF"),
        ("notes.txt", "no known result among"),
        ("other.jsonl", "of vllm bench serve, not of AIPerf"),
        ("server.log", "not a result by its name"),
        ("summary.csv", "repeats the runs beside it"),
    ] {
        let found =
            table.left_out.iter().find(|it| it.contains(file)).unwrap_or_else(|| panic!("{:#?}", table.left_out));
        assert!(found.contains(why), "{found}");
    }
    // The commands that fit to such a sweep say it too.
    let sweep = makespan::measured::import::read_folder(folder.path()).unwrap();
    let findings = makespan::measured::check(&sweep.table);
    assert!(
        findings.iter().any(|it| it.what.contains("broken.json") && it.what.contains("and 4 more")),
        "{findings:?}"
    );
    let error = inspect(&folder.path().join("nothing"), &Options::default()).unwrap_err();
    assert_eq!(error.exit_code(), 2);
}

#[test]
fn a_folder_of_tables_names_the_broken_one() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("a.csv"), "concurrency;output_tok_s\n1;50\n4;180\n").unwrap();
    std::fs::write(folder.path().join("b.csv"), "concurrency,output_tok_s\n1,fast\n").unwrap();
    let table = inspect(folder.path(), &Options::default()).unwrap().table.unwrap();
    assert_eq!(table.points.len(), 2);
    assert_eq!(table.left_out.len(), 1);
    assert!(table.left_out[0].contains("b.csv: line 2: output_tok_s: found `fast`"), "{:?}", table.left_out);
}

#[test]
fn other_files_are_recognised() {
    for (name, kind) in [
        ("sglang.log", Kind::EngineLog),
        ("vllm.log", Kind::EngineLog),
        ("vllm.prom", Kind::Metrics),
        ("config_qwen3_8b.json", Kind::ModelConfig),
        ("servegen_trace.csv", Kind::Rates),
    ] {
        assert_eq!(look(name).kind, kind, "{name}");
    }
    let scenario = Path::new(env!("CARGO_MANIFEST_DIR")).join("models/scenario");
    for entry in std::fs::read_dir(scenario).unwrap() {
        let path = entry.unwrap().path();
        assert_eq!(inspect(&path, &Options::default()).unwrap().kind, Kind::Scenario, "{}", path.display());
    }
    let error = inspect(&sample("README.md"), &Options::default()).unwrap_err().to_string();
    assert!(error.contains("nothing that is known; known are request traces"), "{error}");
}

/// Columns in another order, beside others, with a mark, CRLF, blank lines, quotes and scientific notation.
#[test]
fn untidy_files_are_read_the_same() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("untidy");
    let text = "\u{feff}note,GeneratedTokens,TIMESTAMP,x,ContextTokens\r\n\r\n\"a, b\",\"44\",2023-11-16 18:15:46.68,1,3.74e2\r\n,109,2023-11-16 18:15:50.68,,396\r\n\r\n";
    let check = |path: &Path| {
        let lengths = inspect(path, &Options::default()).unwrap().lengths.unwrap();
        assert_eq!((lengths.format.as_str(), lengths.rows), ("Azure", 2));
        assert!((lengths.input.unwrap().mean - 385.0).abs() < 1e-9);
        assert!((lengths.arrivals.unwrap().span_s - 4.0).abs() < 1e-9);
    };
    std::fs::write(&path, text).unwrap();
    check(&path);
    let mut gzip = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    gzip.write_all(text.as_bytes()).unwrap();
    std::fs::write(&path, gzip.finish().unwrap()).unwrap();
    check(&path);
    std::fs::write(&path, zstd::encode_all(text.as_bytes(), 1).unwrap()).unwrap();
    check(&path);
}

/// Semicolons, as spreadsheets write where the comma is the decimal mark, tabs, and quoted cells that hold them.
#[test]
fn other_separators_and_bare_columns_are_read() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("lengths.csv");
    for (text, input, output) in [
        ("tokens\n10\n20\n", None, 15.0),
        ("id,length\na,10\nb,20\n", None, 15.0),
        ("prompt_tokens;\"output_tokens\";note\n5;10;\"a;b\"\n7;20;\"c,d\"\n", Some(6.0), 15.0),
        ("\"a,b,c\"\tprompt_tokens\toutput_tokens\r\nx\t5\t10\r\n\t7\t2e1\r\n", Some(6.0), 15.0),
    ] {
        std::fs::write(&path, text).unwrap();
        let lengths = inspect(&path, &Options::default()).unwrap().lengths.unwrap();
        assert_eq!((lengths.rows, lengths.refused), (2, 0), "{text:?}");
        assert_eq!(lengths.input.map(|column| column.mean), input, "{text:?}");
        assert_eq!(lengths.output.unwrap().mean, output, "{text:?}");
    }
    // A bare name beside another count could be the total.
    std::fs::write(&path, "prompt_tokens,tokens\n5,10\n").unwrap();
    assert!(inspect(&path, &Options::default()).is_err());
}

#[test]
fn a_header_without_rows_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("empty.csv");
    for text in ["prompt_tokens,output_tokens\n", "tokens\n\n\n", "field,value,probability\n", "t,running,waiting\n"] {
        std::fs::write(&path, text).unwrap();
        let error = inspect(&path, &Options::default()).unwrap_err();
        assert!(error.exit_code() == 2 && error.to_string().contains("a header and no rows"), "{text:?}: {error}");
    }
}

#[test]
fn what_the_user_says_of_a_file_must_agree_with_it() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("done.csv");
    let rows: String = (0..100).map(|row| format!("{},{}\n", 50 + row % 7, 100 + 9 * row)).collect();
    std::fs::write(&path, format!("prompt_tokens,output_tokens\n{rows}")).unwrap();
    let declared = |max_tokens| Options {
        declared: Declared { max_tokens: Some(max_tokens), ..Declared::default() },
        ..Options::default()
    };
    let errors = inspect(&path, &declared(900)).unwrap().errors();
    assert!(
        errors[0].contains("11% of the rows (11) are above the 900 tokens of --max-tokens, up to 991"),
        "{errors:?}"
    );
    assert!(inspect(&path, &declared(991)).unwrap().errors().is_empty());
    let job = |total| Options { job: Some(JobPart::parse(&format!("total={total}")).unwrap()), ..Options::default() };
    let error = inspect(&path, &job(99)).unwrap_err().to_string();
    assert_eq!(
        error,
        "--job: total=99, but 100 requests have finished and 0 run; give the number of requests of the whole job"
    );
    assert!(inspect(&path, &job(100)).is_ok());
}

#[test]
fn wrong_units_of_time_are_named_by_their_range() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("t.jsonl");
    // Seconds in a format that has milliseconds, with 1e6 too many requests a second.
    let rows: String = (0..50)
        .map(|row| {
            format!("{{\"timestamp\": {}, \"input_length\": 9{row}, \"output_length\": 3{row}}}\n", row as f64 * 1e-6)
        })
        .collect();
    std::fs::write(&path, rows).unwrap();
    let lengths = inspect(&path, &Options::default()).unwrap().lengths.unwrap();
    assert!(
        lengths.checks.findings.iter().any(|it| it.check == 15 && it.what.contains("requests/s")),
        "{:?}",
        lengths.checks
    );
    // Unix times in ns, ms and s are the same times.
    for factor in [1.0, 1e3, 1e9] {
        let rows: String =
            (0..3).map(|row| format!("{},10,20\n", ((1_700_000_000 + 60 * row) as f64 * factor) as i64)).collect();
        std::fs::write(&path, format!("timestamp,prompt_tokens,output_tokens\n{rows}")).unwrap();
        let span = inspect(&path, &Options::default()).unwrap().lengths.unwrap().arrivals.unwrap().span_s;
        assert!((span - 120.0).abs() < 1e-3, "{factor}: {span}");
    }
}

fn faulty(rows: u32) -> String {
    let mut text = String::from("prompt_tokens,response_tokens\n");
    for row in 0..rows {
        let draw = row.wrapping_mul(2_654_435_761) % 1000;
        let output = if draw < 870 { 6 } else { 200 + row.wrapping_mul(40_503) % 3000 };
        text += &format!("{},{output}\n", 60 + row.wrapping_mul(97) % 300);
    }
    text
}

#[test]
fn an_empty_thinking_block_is_named_in_plain_words_and_refused() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("replies.csv");
    std::fs::write(&path, faulty(5000)).unwrap();
    let inspection = inspect(&path, &Options::default()).unwrap();
    let errors = inspection.errors();
    assert!(errors[0].starts_with("error 2, one value dominates: 87% of the rows (4,348) have exactly 6 output tokens: most likely an empty thinking block (<think></think>)"), "{errors:?}");
    assert!(errors[0].contains("makes the job look 7."), "{}", errors[0]);
    let numbers: Vec<u8> = inspection.lengths.unwrap().checks.findings.iter().map(|it| it.check).collect();
    assert!([2, 4, 11].iter().all(|check| numbers.contains(check)), "{numbers:?}");
    let classifier =
        Options { declared: Declared { short_answers: true, ..Declared::default() }, ..Options::default() };
    assert!(inspect(&path, &classifier).unwrap().errors().is_empty());

    let run = |arguments: &[&str]| {
        let output = Command::cargo_bin("makespan").unwrap().args(arguments).output().unwrap();
        (output.status.code(), String::from_utf8(output.stdout).unwrap(), String::from_utf8(output.stderr).unwrap())
    };
    let file = path.to_str().unwrap();
    let (code, out, error) = run(&["inspect", file]);
    assert_eq!(code, Some(1));
    assert!(out.contains("87% of the rows") && error.contains("--accept-faults"), "{out}{error}");
    let (code, out, _) = run(&["inspect", file, "--accept-faults", "--json"]);
    assert_eq!(code, Some(0));
    let json: serde_json::Value = serde_json::from_str(&out).unwrap();
    assert_eq!(json["lengths"]["checks"]["findings"][0]["check"], 2);
    // The same file refuses a plan.
    let scenario = folder.path().join("job.toml");
    let text = "title = \"t\"\n[job]\nrequests = 100\nprompt_tokens = 133\noutput_tokens = { file = \"replies.csv\", column \
                = \"response_tokens\" }\n[fleet]\ngpus = 4\n[engine]\nname = \"fixed-rate\"\ntok_per_s_per_gpu = 400\n";
    std::fs::write(&scenario, text).unwrap();
    let (code, _, error) = run(&["simulate", scenario.to_str().unwrap()]);
    assert_eq!(code, Some(1), "{error}");
    assert!(error.contains("has faults: error 2, one value dominates: 87%"), "{error}");
    let (code, _, error) = run(&["simulate", scenario.to_str().unwrap(), "--accept-faults"]);
    assert_eq!(code, Some(0), "{error}");
    let (code, ..) = run(&["inspect", "no-such-file"]);
    assert_eq!(code, Some(2));
}

#[test]
fn a_finished_part_warns_and_is_corrected() {
    let folder = tempfile::tempdir().unwrap();
    let (done, running) = (folder.path().join("done.csv"), folder.path().join("running.csv"));
    let mut text = String::from("prompt_tokens,output_tokens,finish_reason\n");
    (0..1024u32).for_each(|row| text += &format!("{},{},stop\n", 100 + row % 77, 200 + row * 2));
    std::fs::write(&done, &text).unwrap();
    let job = Some(JobPart::parse("total=914000,slots=256").unwrap());
    let alone = inspect(&done, &Options { job, ..Options::default() }).unwrap().lengths.unwrap();
    let finding = alone.checks.findings.iter().find(|it| it.check == 14).unwrap();
    assert!(finding.what.contains("1,024 of 914,000 requests are finished, 4 times the 256 slots"), "{finding}");
    assert!(finding.effect.contains("about 14% low"), "{finding}");
    let mut text = String::from("output_tokens\n");
    (0..256u32).for_each(|row| text += &format!("{}\n", 1 + row * 8));
    std::fs::write(&running, text).unwrap();
    let options = Options { job, running: Some(running), ..Options::default() };
    let corrected = inspect(&done, &options).unwrap().lengths.unwrap();
    assert_eq!(corrected.censored, 256.0);
    let at = corrected.caps.iter().find(|cap| cap.cap == 2048).unwrap();
    assert!(at.corrected_mean.unwrap() > 1.05 * at.mean_capped, "{at:?}");
}

/// A cap beside finish reasons must not bend the fitted law, nor a pile-up where nothing says how requests ended.
#[test]
fn cut_outputs_are_lower_bounds_for_the_fitted_law() {
    let folder = tempfile::tempdir().unwrap();
    for (name, column) in [("said.csv", true), ("unsaid.csv", false)] {
        let mut text = String::from(if column { "output_tokens,finish_reason\n" } else { "output_tokens\n" });
        for row in 0..20_000u32 {
            // Quantiles of an exponential law of mean 1,000, in an order without drift.
            let draw = row.wrapping_mul(7919) % 20_000;
            let length = -1000.0 * ((f64::from(draw) + 0.5) / 20_000.0).ln();
            let cut = length > 2000.0;
            text += &format!("{}", (length.min(2000.0) as u32).max(1));
            text += if column && cut {
                ",length\n"
            } else if column {
                ",stop\n"
            } else {
                "\n"
            };
        }
        let path = folder.path().join(name);
        std::fs::write(&path, text).unwrap();
        let lengths = inspect(&path, &Options::default()).unwrap().lengths.unwrap();
        let gamma = lengths.fits.iter().find(|fit| fit.law == "gamma").unwrap();
        assert!((gamma.parameters[0].1 / 1000.0 - 1.0).abs() < 0.02, "{name}: {gamma:?}");
        assert!((lengths.censored - 2707.0).abs() < 2.0, "{name}: {}", lengths.censored);
        assert!(lengths.checks.findings.iter().any(|it| it.check == 5), "{name}");
    }
}
