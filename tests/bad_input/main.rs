//! Bad input through the real program: exit code, one line, place, remedy.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a panic is how a test fails, in its helpers too")]

mod two_hundred;

use std::fmt::Write as _;
use std::fs;
use std::path::Path;

use assert_cmd::Command;
use tempfile::TempDir;

/// A small job on a model without recurrent state, under vLLM. Line numbers below count from its first line.
const SMALL: &str = "\
[job]
requests = 40
prompt_tokens = 100
output_tokens = 50

[fleet]
hardware = \"rtx-pro-6000\"
gpus = 2

[model]
llm = \"qwen3-8b\"

[engine]
name = \"vllm\"
";

/// The same from a trace.
const TRACED: &str = "\
[job]
trace = \"good.csv\"

[fleet]
hardware = \"rtx-pro-6000\"
gpus = 2

[model]
llm = \"qwen3-8b\"

[engine]
name = \"vllm\"
";

/// Built-in scenarios that the cases start from.
const SGLANG: &str = "qwen3.6-27b-914k";
const VLLM: &str = "qwen3.6-27b-914k-vllm";
const STATIC: &str = "qwen3.6-27b-914k-transformers";

/// A scratch folder with scenarios and traces, good and bad.
fn scratch() -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    let files: [(&str, &[u8]); 17] = [
        ("small.toml", SMALL.as_bytes()),
        ("traced.toml", TRACED.as_bytes()),
        ("good.csv", b"arrival_s,prompt_tokens,output_tokens\n0,5,6\n1,7,2\n"),
        ("empty.csv", b""),
        ("header.csv", b"prompt_tokens,output_tokens\n"),
        ("column.csv", b"prompt_tokens,output_tokns\n5,6\n"),
        ("text.csv", b"prompt_tokens,output_tokens\n5,6\n7,many\n"),
        ("negative.csv", b"prompt_tokens,output_tokens\n5,6\n\n7,-2\n"),
        ("short.csv", b"prompt_tokens,output_tokens\n5,6\n7\n"),
        ("zero.csv", b"prompt_tokens,output_tokens\n5,6\n7,0\n"),
        ("huge.csv", b"prompt_tokens,output_tokens\n5,6\n7,5e12\n"),
        ("time.csv", b"arrival_s,prompt_tokens,output_tokens\nnoon,5,6\n"),
        ("half.jsonl", b"{\"input_length\":5,\"output_length\":3}\n{\"input_length\":5,\n"),
        ("list.json", b"[1, 2]"),
        ("cut.gz", b"\x1f\x8b\x08\x00\x00\x00\x00\x00\x00\x03cut"),
        ("binary.toml", b"\x00\xff\xfe[job]\n"),
        ("steps.csv", b"batch,context_tokens,step_ms\n1,0,fast\n"),
    ];
    for (name, contents) in files {
        fs::write(folder.path().join(name), contents).unwrap();
    }
    fs::create_dir(folder.path().join("folder")).unwrap();
    fs::write(folder.path().join("kept.csv"), "kept").unwrap();
    folder
}

/// What the program says of `arguments`: exit code and its one line.
fn refusal(folder: &Path, arguments: &[&str]) -> (i32, String) {
    let output = Command::cargo_bin("makespan").unwrap().current_dir(folder).args(arguments).output().unwrap();
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(output.stdout.is_empty(), "{arguments:?} wrote to stdout, and said {said}");
    let line = said.strip_suffix('\n').unwrap_or_else(|| panic!("{arguments:?} said {said:?}"));
    assert!(!line.contains('\n'), "{arguments:?} said more than a line: {said}");
    let error = line.strip_prefix("error: ").unwrap_or_else(|| panic!("{arguments:?} said {said}"));
    (output.status.code().unwrap(), error.to_owned())
}

/// Runs each case and gathers what is wrong with all of them. A case: arguments, exit code, what the line must hold.
fn check(folder: &Path, cases: &[(&[&str], i32, &[&str])]) {
    let mut wrong = String::new();
    for (arguments, code, fragments) in cases {
        let (found, error) = refusal(folder, arguments);
        let mut faults = Vec::new();
        if found != *code {
            faults.push(format!("exit code {found} and not {code}"));
        }
        faults.extend(fragments.iter().filter(|part| !error.contains(**part)).map(|part| format!("lacks `{part}`")));
        // Found and remedy are two clauses, and nothing is said twice.
        if !error.contains("; ") && !error.contains("? ") {
            faults.push("has no remedy".to_owned());
        }
        let start: String = error.chars().take(40).collect();
        if error.matches(&start).count() > 1 {
            faults.push("says it twice".to_owned());
        }
        if !faults.is_empty() {
            let _ = writeln!(wrong, "{arguments:?}\n    {error}\n    {}", faults.join("; "));
        }
    }
    assert!(wrong.is_empty(), "{} cases\n{wrong}", cases.len());
}

/// `simulate SCENARIO --set …`, each with what its line must hold; exit code 2 and the override as the place.
fn check_overrides(cases: &[(&str, &[&str], &[&str])]) {
    let folder = scratch();
    for (scenario, set, fragments) in cases {
        let mut arguments = vec!["simulate", *scenario];
        set.iter().for_each(|over| arguments.extend(["--set", over]));
        let place = format!("--set {}: ", set.last().unwrap());
        let all: Vec<&str> = std::iter::once(place.as_str()).chain(fragments.iter().copied()).collect();
        check(folder.path(), &[(&arguments, 2, &all)]);
    }
}

#[test]
fn unknown_keys_are_refused_with_the_nearest_known_one() {
    check_overrides(&[
        ("small.toml", &["flet.gpus=2"], &["flet: unknown key `flet`; did you mean `fleet`?"]),
        ("small.toml", &["job.request=5"], &["job.request: unknown key", "did you mean `requests`?"]),
        ("small.toml", &["job.napkin.tokens=5"], &["job.napkin", "unknown key `tokens`"]),
        ("small.toml", &["fleet.gpu=1"], &["fleet.gpu: ", "did you mean `gpus`?"]),
        ("small.toml", &["model.weigths=fp8"], &["model.weigths: ", "did you mean `weights`?"]),
        ("small.toml", &["engine.max_num_seq=5"], &["engine.max_num_seq: ", "did you mean `max_num_seqs`?"]),
        ("small.toml", &["client.concurency=5"], &["client.concurency: ", "did you mean `concurrency`?"]),
        (SGLANG, &["benchmark.wave=2"], &["benchmark.wave: ", "did you mean `waves`?"]),
        (SGLANG, &["engine.speculation.acceptanc=0.3"], &["did you mean `acceptance`?"]),
        ("small.toml", &["engine.cost.bandwith_share=0.5"], &["did you mean `bandwidth_share`?"]),
        (
            "small.toml",
            &["job.output_tokens={law='lognormal', median=5, sgma=1}"],
            &["job.output_tokens.sgma: unknown key; did you mean sigma?"],
        ),
        (
            "small.toml",
            &["job.arrivals={law='poisson', rate=1}"],
            &["job.arrivals.rate: unknown key; did you mean rate_per_s?"],
        ),
        (
            "small.toml",
            &["job.output_tokens={law='mixture', parts=[{share=1, law='lognormal', median=9, sgma=1}]}"],
            &["job.output_tokens.parts[0].sgma: unknown key; did you mean sigma?"],
        ),
    ]);
}

#[test]
fn unknown_names_are_refused_with_the_nearest_known_one() {
    check_overrides(&[
        ("small.toml", &["model.llm=qwen3-8"], &["model.llm: ", "did you mean `qwen3-8b`?", "`makespan list llm`"]),
        ("small.toml", &["model.weights=fp9"], &["model.weights: ", "did you mean `fp8`?"]),
        ("small.toml", &["model.kv=fp7"], &["model.kv: unknown value `fp7`; did you mean `fp8`?"]),
        ("small.toml", &["fleet.hardware=rtx-pro-600"], &["fleet.hardware: ", "did you mean `rtx-pro-6000`?"]),
        ("small.toml", &["fleet.dispatch=sharedd"], &["fleet.dispatch: ", "did you mean `shared`?"]),
        ("small.toml", &["engine.name=vlm"], &["engine.name: ", "did you mean `vllm`?"]),
        ("small.toml", &["job.output_tokens=centrall"], &["job.output_tokens: ", "did you mean \"central\"?"]),
        ("small.toml", &["job.output_tokens={law='lognorml'}"], &["job.output_tokens.law: ", "\"lognormal\""]),
        ("small.toml", &["job.order=longest"], &["job.order: ", "did you mean \"longest_first\"?"]),
        ("small.toml", &["job.arrivals=poison"], &["job.arrivals: ", "did you mean \"poisson\"?"]),
    ]);
    let folder = scratch();
    check(
        folder.path(),
        &[
            (&["simulate", "qwen3.6-27b-914"], 2, &["no scenario `qwen3.6-27b-914`", "`qwen3.6-27b-914k`?"]),
            (&["list", "llmm"], 2, &["no kind `llmm`; did you mean `llm`?"]),
            (&["show", "qwen3-8"], 2, &["nothing is called `qwen3-8`; did you mean `qwen3-8b`?"]),
            (&["sweep", "--set", "benchmark.table=pro6000x1-qwen"], 2, &["benchmark.table: ", "did you mean"]),
            (&["simulat"], 2, &["unrecognized subcommand 'simulat'", "'simulate'", "`--help`"]),
            (&["simulate", "--sed", "1"], 2, &["unexpected argument '--sed'", "'--seed'", "`--help`"]),
        ],
    );
}

#[test]
fn numbers_out_of_range_are_refused() {
    check_overrides(&[
        ("small.toml", &["job.requests=0"], &["job.requests: found 0; give a whole number between 1 and"]),
        ("small.toml", &["job.requests=-5"], &["job.requests: invalid value: integer `-5`; give a whole number"]),
        ("small.toml", &["job.requests=1_000_000_000_000"], &["job.requests: found 1000000000000; ", "1000000000"]),
        ("small.toml", &["job.requests=many"], &["job.requests: invalid type: string \"many\"; give a whole number"]),
        ("small.toml", &["job.max_tokens=0"], &["job.max_tokens: found 0; "]),
        ("small.toml", &["job.context_tokens=0"], &["job.context_tokens: found 0; "]),
        ("small.toml", &["fleet.gpus=0"], &["fleet.gpus: found 0; "]),
        ("small.toml", &["fleet.tensor_parallel=0"], &["fleet.tensor_parallel: found 0; "]),
        (
            "small.toml",
            &["fleet.gpus=3", "fleet.tensor_parallel=2"],
            &["3 GPUs do not divide into replicas of 2; gpus must be a multiple"],
        ),
        ("small.toml", &["fleet.speed_spread=nan"], &["fleet.speed_spread: found NaN; give a number between 0 and"]),
        ("small.toml", &["fleet.startup_s=inf"], &["fleet.startup_s: found inf; "]),
        ("small.toml", &["fleet.power_limit_w=10"], &["fleet.power_limit_w: ", "10 W; leave it out"]),
        ("small.toml", &["client.concurrency=0"], &["client.concurrency: found 0; ", "or \"all\""]),
        ("small.toml", &["client.concurrency=-3"], &["client.concurrency: found -3; "]),
        ("small.toml", &["client.concurrency=many"], &["client.concurrency: found \"many\"; ", "or \"all\""]),
        ("small.toml", &["client.concurrency=2.5"], &["client.concurrency: found 2.5; "]),
        ("small.toml", &["client.submit_interval_s=nan"], &["client.submit_interval_s: found NaN; "]),
        ("small.toml", &["engine.mem_fraction=1.5"], &["engine.mem_fraction: found 1.5; "]),
        ("small.toml", &["engine.max_num_seqs=0"], &["engine.max_num_seqs: found 0; "]),
        ("small.toml", &["engine.watermark=-0.1"], &["engine.watermark: found -0.1; "]),
        ("small.toml", &["engine.cost.bandwidth_share=nan"], &["engine.cost.bandwidth_share: found NaN; "]),
        ("small.toml", &["engine.cost.flops_share=1.01"], &["engine.cost.flops_share: found 1.01; "]),
        ("small.toml", &["engine.cost.step_gap_s=-1"], &["engine.cost.step_gap_s: found -1; "]),
        ("small.toml", &["engine.cost.smooth_exponent=0"], &["engine.cost.smooth_exponent: "]),
        (
            "small.toml",
            &["engine.version=5"],
            &["engine.version: ", "give text in quotes: --set 'engine.version=\"5\"'"],
        ),
        (SGLANG, &["engine.version=latest"], &["engine.version: found `latest`; write it as \"0.5.23\""]),
        (SGLANG, &["engine.chunked_prefill_size=0"], &["engine.chunked_prefill_size: found 0; ", "-1"]),
        (SGLANG, &["engine.state_slots_held_per_request=6"], &["6 held of 5 reserved; "]),
        (STATIC, &["engine.batch_size=0"], &["engine.batch_size: found 0; "]),
        ("napkin", &["engine.tok_per_s_per_gpu=nan"], &["engine.tok_per_s_per_gpu: found NaN; "]),
    ]);
}

#[test]
fn bad_length_laws_and_arrivals_are_refused() {
    check_overrides(&[
        ("small.toml", &["job.output_tokens=0"], &["job.output_tokens: 0; a length is between 1 and"]),
        ("small.toml", &["job.output_tokens=nan"], &["job.output_tokens: NaN; "]),
        ("small.toml", &["job.output_tokens=true"], &["job.output_tokens: boolean true; "]),
        ("small.toml", &["job.output_tokens={law='lognormal', median=50}"], &["job.output_tokens.sigma: missing; "]),
        (
            "small.toml",
            &["job.output_tokens={law='lognormal', median=50, mean=40, sigma=1}"],
            &["job.output_tokens.mean: both median and mean; give one of them"],
        ),
        ("small.toml", &["job.output_tokens={law='gamma', mean=-2, cv=1}"], &["job.output_tokens.mean: -2; "]),
        ("small.toml", &["job.output_tokens={law='mixture', parts=[]}"], &["job.output_tokens.parts: no parts; "]),
        (
            "small.toml",
            &["job.output_tokens={law='mixture', parts=[{share=0, law='constant', tokens=5}]}"],
            &["job.output_tokens.parts[0].share: the shares add up to 0; one must be above 0"],
        ),
        (
            "small.toml",
            &["job.output_tokens={law='histogram', edges=[1, 5, 3], counts=[1, 2]}"],
            &["job.output_tokens.edges[2]: 3 after 5; edges must rise"],
        ),
        (
            "small.toml",
            &["job.output_tokens={law='histogram', edges=[1, 5, 9], counts=[1]}"],
            &["job.output_tokens.edges: 3 edges for 1 counts; 2 edges are needed"],
        ),
        ("small.toml", &["job.output_tokens={law='empirical', values=[]}"], &["values: no values; "]),
        ("small.toml", &["job.rank_correlation=2"], &["job.rank_correlation: 2; ", "between -1 and 1"]),
        ("small.toml", &["job.arrivals={law='poisson', rate_per_s=0}"], &["job.arrivals.rate_per_s: 0; "]),
        ("small.toml", &["job.arrivals=trace"], &["job.arrivals.law: trace times without a trace; "]),
        (
            "small.toml",
            &["job.arrivals={law='poisson', rate_per_s=3}", "client.concurrency=4"],
            &["client.concurrency: ", "keep one: concurrency = \"all\", or arrivals = \"at_once\""],
        ),
        (
            "small.toml",
            &["job.arrivals={law='poisson', rate_per_s=3}", "client.submit_interval_s=1"],
            &["client.submit_interval_s: requests arrive at their own times; leave it out"],
        ),
        ("small.toml", &["job.rows=in_order"], &["job.rows: found without a trace; "]),
        ("traced.toml", &["job.rank_correlation=0.5"], &["job.rank_correlation: found 0.5 beside a trace; "]),
        ("traced.toml", &["job.requests=5"], &["job.requests: 5 requests from a trace of 2 rows; ask for fewer"]),
        ("small.toml", &["job.trace=good.csv"], &["job.trace: a trace and a law of lengths; give either"]),
    ]);
}

#[test]
fn settings_that_would_change_nothing_or_contradict_are_refused() {
    check_overrides(&[
        (
            "small.toml",
            &["engine.mem_fraction_static=0.9"],
            &["engine.mem_fraction_static: this is a flag of SGLang, and the engine is vllm; leave it out"],
        ),
        ("small.toml", &["engine.batch_size=4"], &["this is a flag of Transformers, and the engine is vllm; "]),
        (SGLANG, &["engine.max_num_seqs=8"], &["this is a flag of vLLM, and the engine is sglang; "]),
        (
            "small.toml",
            &["engine.gpu_memory_utilization=0.9", "engine.mem_fraction=0.9"],
            &["engine.mem_fraction: the memory fraction is given twice; keep mem_fraction, or"],
        ),
        ("small.toml", &["engine.gpu_memory_utilization=0.99"], &["engine.gpu_memory_utilization: ", "; at most 0.98"]),
        ("small.toml", &["engine.state_slots=40"], &["engine.state_slots: qwen3-8b has no recurrent state; "]),
        ("small.toml", &["client.per=total"], &["client.per: ", "; leave it out, or give client.concurrency"]),
        (
            "small.toml",
            &["engine.speculation={draft_tokens=3, acceptance=0.5}"],
            &["engine.speculation: qwen3-8b has no MTP layer to draft with; leave speculation out"],
        ),
        (STATIC, &["engine.speculation={draft_tokens=3, acceptance=0.5}"], &["no such setting; leave it out"]),
        ("napkin", &["model.llm=qwen3-8b"], &["model: found beside a fixed rate; leave it out"]),
        ("napkin", &["fleet.hardware=h200"], &["fleet.hardware: found beside a fixed rate; leave it out"]),
    ]);
}

#[test]
fn bad_speculation_is_refused() {
    check_overrides(&[
        (SGLANG, &["engine.speculation.acceptance=1.2"], &["engine.speculation.acceptance: found 1.2; ", "0 and 1"]),
        (SGLANG, &["engine.speculation.acceptance=nan"], &["engine.speculation.acceptance: found NaN; "]),
        (SGLANG, &["engine.speculation.draft_tokens=0"], &["engine.speculation.draft_tokens: found 0; draft 1 to 64"]),
        (SGLANG, &["engine.speculation.acceptance_spread=0.9"], &["engine.speculation.acceptance_spread: found 0.9"]),
        (
            SGLANG,
            &["engine.speculation={draft_tokens=3, acceptance_marginal=[0.5, 0.6, 0.4]}"],
            &["engine.speculation.acceptance_marginal: found 0.6 after 0.5; ", "never increases"],
        ),
        (
            SGLANG,
            &["engine.speculation={draft_tokens=3, acceptance_marginal=[0.5, 0.4]}"],
            &["engine.speculation.acceptance_marginal: 2 probabilities for 3 drafted tokens; give one for each"],
        ),
        (SGLANG, &["engine.speculation={draft_tokens=3}"], &["engine.speculation.acceptance: ", "give one of"]),
        (
            SGLANG,
            &["engine.speculation={acceptance=0.5}"],
            &["engine.speculation: the key `draft_tokens` is missing; "],
        ),
    ]);
}

#[test]
fn more_sequences_than_state_blocks_are_refused_with_both_numbers() {
    check_overrides(&[
        (
            VLLM,
            &["engine.state_slots=700", "engine.max_num_seqs=1024"],
            &["engine.max_num_seqs: ", "1024", "700 state blocks", "; set max_num_seqs to at most 700"],
        ),
        (
            VLLM,
            &["engine.state_slots=700", "engine.max_running=1024"],
            &["engine.max_running: ", "1024", "700 state blocks", "at most 700"],
        ),
        (VLLM, &["engine.max_num_batched_tokens=16"], &["16 tokens a step for 24 sequences of 4; at least 96 tokens"]),
    ]);
}

#[test]
fn overrides_that_are_none_are_refused() {
    let folder = scratch();
    let remedy = "; write --set job.max_tokens=2048";
    check(
        folder.path(),
        &[
            (&["simulate", "--set", "job.max_tokens"], 2, &["--set: no `=` in `job.max_tokens`", remedy]),
            (&["simulate", "--set", "=5"], 2, &["--set: no key in `=5`", remedy]),
            (&["simulate", "--set", "job..x=5"], 2, &["--set: no key in `job..x=5`", remedy]),
            (&["simulate", "--set", "job=5"], 2, &["--set job=5: job: ", "; give a table"]),
            (&["simulate", "--set", "job.requests.x=5"], 2, &["job.requests.x: ", "not a table; set it as a whole"]),
            (&["simulate", "--set"], 2, &["--set", "`--help`"]),
            (&["show", "qwen3-8b", "--set", "job.x=1"], 2, &["--set: qwen3-8b is shown as its llm file; "]),
        ],
    );
}

#[test]
fn jobs_that_can_never_be_done_are_answers() {
    let folder = scratch();
    let impossible = "this job cannot be done: ";
    check(
        folder.path(),
        &[
            (
                &["simulate", "--set", "fleet.hardware=rtx-3090"],
                1,
                &[impossible, "the weights of qwen3.6-27b take", "; what would help: more GPUs with tensor_parallel"],
            ),
            (
                &["simulate", "small.toml", "--set", "engine.kv_pool_tokens=120"],
                1,
                &[impossible, "request 0 needs 150 tokens", "prompt 100 + output 50", "holds 112; cap max_tokens"],
            ),
            (&["simulate", "--set", "engine.kv_pool_tokens=3000"], 1, &[impossible, "request", "tokens", "3000", "; "]),
            (
                &["simulate", "small.toml", "--set", "engine.gpu_memory_utilization=0.05"],
                1,
                &[impossible, "nothing is left for KV", "; what would help: ", "a larger gpu_memory_utilization"],
            ),
            // Nothing would be answered: no makespan, but a reason.
            (
                &["simulate", "small.toml", "--set", "job.context_tokens=100"],
                1,
                &[impossible, "every one of the 40 requests is rejected", "100 tokens; raise job.context_tokens"],
            ),
        ],
    );
}

#[test]
fn bad_traces_are_refused_with_line_and_column() {
    let folder = scratch();
    for (file, fragments) in [
        ("empty.csv", &["empty.csv: an empty file; "] as &[&str]),
        ("header.csv", &["header.csv:1: a header and no rows; give one row per request below it"]),
        ("column.csv", &["column.csv:1: ", "; is output_tokns meant to be output_tokens?"]),
        ("text.csv", &["text.csv:3: output_tokens: \"many\"; give a whole number"]),
        // A blank line counts as a line of the file.
        ("negative.csv", &["negative.csv:4: output_tokens: -2; give a whole number"]),
        ("short.csv", &["short.csv:3: output_tokens: a row of 1 fields; give every row the 2 fields"]),
        ("zero.csv", &["zero.csv:3: output_tokens: 0 tokens; "]),
        ("huge.csv", &["huge.csv:3: output_tokens: 5000000000000; "]),
        ("time.csv", &["time.csv:2: arrival_s: \"noon\"; give a time in seconds"]),
        ("half.jsonl", &["half.jsonl:2: ", "; give one whole JSON object per line"]),
        ("list.json", &["list.json:1: ", "; give one whole JSON object per line"]),
        ("small.toml", &["small.toml:1: ", "; give one whole JSON object per line"]),
        ("steps.csv", &["steps.csv:1: no known token columns among batch, context_tokens, step_ms; ", "looked for "]),
        ("cut.gz", &["cut.gz: "]),
        (
            "absent.csv",
            &["--set job.trace=absent.csv: job.trace: absent.csv: there is no such file", "; check the path"],
        ),
        ("folder", &["--set job.trace=folder: job.trace: folder: is a folder; name a file"]),
    ] {
        let set = format!("job.trace={file}");
        check(folder.path(), &[(&["simulate", "traced.toml", "--set", &set], 2, fragments)]);
    }
    let law = |file: &str, column: &str| format!("job.output_tokens={{file='{file}', column='{column}'}}");
    for (set, fragments) in [
        (law("text.csv", "output_tokens"), &["text.csv:3: output_tokens: \"many\"; "] as &[&str]),
        (law("good.csv", "output_token"), &["good.csv:1: output_token: no such column; did you mean output_tokens?"]),
        (law("absent.csv", "output_tokens"), &["job.output_tokens: absent.csv: there is no such file", "; check"]),
        ("engine.step_table=good.csv".to_owned(), &["good.csv:1: no column batch among", "; give batch, "]),
        ("engine.step_table=steps.csv".to_owned(), &["steps.csv:2: step_ms: found `fast`; "]),
        ("engine.step_table=absent.csv".to_owned(), &["engine.step_table: absent.csv: there is no such file", "; "]),
    ] {
        check(folder.path(), &[(&["simulate", "small.toml", "--set", &set], 2, fragments)]);
    }
}

#[test]
fn one_bad_line_among_a_million_is_named() {
    let folder = scratch();
    let mut text = String::from("prompt_tokens,output_tokens\n");
    for row in 0..1_000_000 {
        text.push_str(if row == 734_210 { "120,4O\n" } else { "120,40\n" });
    }
    fs::write(folder.path().join("million.csv"), text).unwrap();
    let arguments = ["simulate", "traced.toml", "--set", "job.trace=million.csv"];
    // Row 0 stands on line 2.
    check(folder.path(), &[(&arguments, 2, &["million.csv:734212: output_tokens: \"4O\"; give a whole number"])]);
}

#[test]
fn files_of_the_wrong_kind_are_refused() {
    let folder = scratch();
    check(
        folder.path(),
        &[
            (&["simulate", "folder"], 2, &["folder: this is a folder, not a scenario; use it as a measured table"]),
            (&["show", "folder"], 2, &["folder", "; "]),
            (&["simulate", "binary.toml"], 2, &["binary.toml: byte 1 is not UTF-8; give a text file"]),
            (&["simulate", "good.csv"], 2, &["good.csv: this is a file of requests, not a scenario", "job.trace"]),
            (&["simulate", "absent.toml"], 2, &["no scenario `absent.toml`", "; give a path or a built-in name"]),
            (&["simulate", "small.toml", "--set", "model.llm=small.toml"], 2, &["small.toml:1: ", "known here: name"]),
            (
                &["simulate", "small.toml", "--requests-csv", "no/such/folder.csv"],
                2,
                &["no/such/folder.csv: there is no such file or folder; check the path"],
            ),
            (&["simulate", "small.toml", "--requests-csv", "folder"], 2, &["folder: is a folder; name a file"]),
            (
                &["simulate", "small.toml", "--requests-csv", "kept.csv"],
                2,
                &["--requests-csv: kept.csv exists; name another file, or add --force"],
            ),
            (
                &["simulate", "small.toml", "--timeline", "same.csv", "--trace", "same.csv"],
                2,
                &["--trace: same.csv is what --timeline writes; name another file"],
            ),
            (&["calibrate", "--out", "kept.csv"], 2, &["--out: kept.csv exists; name another file, or add --force"]),
            (&["validate", "--write", "kept.csv"], 2, &["--write: kept.csv exists; name another file, or add --force"]),
            (&["validate", "--only", "zzz"], 2, &["--only: ", "`zzz`", "makespan list measured"]),
        ],
    );
    assert_eq!(fs::read_to_string(folder.path().join("kept.csv")).unwrap(), "kept");
}

#[test]
fn bad_sweeps_are_refused() {
    let folder = scratch();
    check(
        folder.path(),
        &[
            (&["sweep", "--at", "0"], 2, &["--at: found 0; give concurrencies between 1 and 1048576"]),
            (&["sweep", "--at", "5000000"], 2, &["--at: found 5000000; "]),
            (&["sweep", "--at", "x"], 2, &["--at", "`--help`"]),
            (&["sweep", "--cap", "0"], 2, &["--cap", "`--help`"]),
            (&["sweep", "--replications", "0"], 2, &["--replications", "`--help`"]),
            (&["sweep", "small.toml"], 2, &["small.toml: benchmark.prompt_tokens: missing; give the length"]),
        ],
    );
}

/// The line of the file is named, not that of some rendering of it.
#[test]
fn errors_in_a_scenario_name_its_line() {
    let folder = scratch();
    for (from, to, fragments) in [
        ("requests = 40", "request = 40", &["bad.toml:2: job.request: unknown key"] as &[&str]),
        ("requests = 40", "requests = 0", &["bad.toml:2: job.requests: found 0; "]),
        ("gpus = 2", "gpus = 2\ntensor_parallel = 3", &["bad.toml:9: fleet.tensor_parallel: ", "; gpus must be"]),
        ("gpus = 2", "", &["bad.toml:6: fleet: the key `gpus` is missing; add a line"]),
        ("output_tokens = 50", "", &["bad.toml:1: job.output_tokens: missing; give a law"]),
        (
            "output_tokens = 50",
            "output_tokens = { law = \"gamma\", mean = 5, cv = nan }",
            &["bad.toml:4: job.output_tokens.cv: NaN; "],
        ),
        ("\"qwen3-8b\"", "\"qwen3-9b\"", &["bad.toml:11: model.llm: there is no llm `qwen3-9b`"]),
        ("\"vllm\"", "\"vllm\"\nmax_runing = 3", &["bad.toml:15: engine.max_runing: ", "did you mean `max_running`?"]),
        ("[engine]", "[engine", &["bad.toml:13: ", "; write it as TOML"]),
        ("[engine]\nname = \"vllm\"\n", "", &["bad.toml: the key `engine` is missing; add a table `[engine]`"]),
        ("[model]\nllm = \"qwen3-8b\"\n", "", &["bad.toml: model: missing; give [model] llm"]),
        ("hardware = \"rtx-pro-6000\"\n", "", &["bad.toml:6: fleet.hardware: missing; name a GPU"]),
    ] {
        let text = SMALL.replacen(from, to, 1);
        assert_ne!(text, SMALL, "{from}");
        fs::write(folder.path().join("bad.toml"), text).unwrap();
        check(folder.path(), &[(&["simulate", "bad.toml"], 2, fragments)]);
    }
}
