//! Result files of benchmark tools as measured tables: what each tool calls its numbers, and nothing typed again.

mod folder;
mod text;
mod tools;

use std::fmt;

use serde::Serialize;
use serde_json::{Map, Value};

use super::table::{RateKind, Row, Server, Shape, Table};
use crate::error::InputError;

pub use folder::{Sweep, read_folder};
pub(crate) use text::{is_aiperf_csv, markdown_as_csv};

/// A tool that writes results.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Tool {
    /// vllm bench serve, alone or in a sweep.
    VllmBench,
    /// sglang.bench_serving.
    SglangBench,
    /// sglang.bench_offline_throughput.
    SglangOffline,
    /// sglang.bench_one_batch_server.
    SglangOneBatch,
    /// AIPerf and genai-perf.
    Aiperf,
    /// InferenceMAX and InferenceX aggregates.
    InferenceX,
    /// llama-batched-bench: a static batch in lock step.
    LlamaBatchedBench,
    /// llama-bench: one stream.
    LlamaBench,
    /// guidellm.
    Guidellm,
}

impl fmt::Display for Tool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Tool::VllmBench => "vllm bench serve",
            Tool::SglangBench => "sglang bench_serving",
            Tool::SglangOffline => "sglang bench_offline_throughput",
            Tool::SglangOneBatch => "sglang bench_one_batch_server",
            Tool::Aiperf => "AIPerf",
            Tool::InferenceX => "InferenceX",
            Tool::LlamaBatchedBench => "llama-batched-bench",
            Tool::LlamaBench => "llama-bench",
            Tool::Guidellm => "guidellm",
        })
    }
}

/// One run of a tool.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Run {
    /// Requests in flight, or the batch.
    pub concurrency: Option<f64>,
    /// Generated tokens per second.
    pub output_tok_per_s: Option<f64>,
    /// Prompt and generated tokens per second.
    pub total_tok_per_s: Option<f64>,
    /// Mean prompt tokens.
    pub input_tokens: Option<f64>,
    /// Mean generated tokens; absent where the rate is that of decoding alone.
    pub output_tokens: Option<f64>,
    /// Requests done.
    pub requests: Option<f64>,
    /// Requests that failed.
    pub failed: Option<f64>,
    /// Time to first token, ms.
    pub ttft_ms: Option<f64>,
    /// Time per output token, ms.
    pub tpot_ms: Option<f64>,
    /// Wall time, s, ramps included.
    pub seconds: Option<f64>,
    /// Tokens of one request and step, the bonus token included.
    pub acceptance: Option<f64>,
    /// Most requests that the server may run, as it resolved it.
    pub running_cap: Option<f64>,
    /// Mean requests in flight, as measured.
    pub mean_in_flight: Option<f64>,
}

/// The runs of a file.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Imported {
    /// The tool that wrote it.
    pub tool: Tool,
    /// Model, as the file names it.
    pub model: Option<String>,
    /// The runs with their place in the file: line, or number of the element.
    pub runs: Vec<(u64, Run)>,
    /// Runs that were left out, with the reason.
    pub left_out: Vec<String>,
}

/// Which tool writes objects with such keys.
pub fn tool_of(object: &Map<String, Value>) -> Option<Tool> {
    let has = |key: &str| object.contains_key(key);
    if object
        .get("benchmarks")
        .and_then(Value::as_array)
        .is_some_and(|all| all.iter().any(|it| it.get("metrics").is_some()))
    {
        Some(Tool::Guidellm)
    } else if has("output_token_throughput") && object["output_token_throughput"].get("avg").is_some() {
        Some(Tool::Aiperf)
    } else if has("tput_per_gpu") && has("conc") {
        Some(Tool::InferenceX)
    } else if has("pl") && has("speed_tg") {
        Some(Tool::LlamaBatchedBench)
    } else if has("avg_ts") && has("n_gen") {
        Some(Tool::LlamaBench)
    } else if has("successful_requests") && has("total_latency") {
        Some(Tool::SglangOffline)
    } else if has("batch_size") && has("latency") && has("output_throughput") {
        Some(Tool::SglangOneBatch)
    } else if has("accept_length") || has("sharegpt_output_len") || has("server_info") || has("random_range_ratio") {
        has("output_throughput").then_some(Tool::SglangBench)
    } else if has("output_throughput") && (has("completed") || has("max_concurrency")) {
        let sglang = object.get("backend").and_then(Value::as_str).is_some_and(|name| name.starts_with("sglang"));
        Some(if sglang { Tool::SglangBench } else { Tool::VllmBench })
    } else if has("duration") && has("completed") && has("total_output_tokens") {
        Some(Tool::VllmBench)
    } else {
        None
    }
}

/// Reads the runs in a result file: one JSON object, objects in lines, a list, or a table; `file` names it in errors.
///
/// # Errors
///
/// Broken JSON, no object of a known tool.
pub fn import(text: &str, file: &str) -> Result<Imported, InputError> {
    let objects = text::objects(text).map_err(|error| error.file(file))?;
    let first = objects.iter().find_map(|(line, object)| Some((*line, tool_of(object)?)));
    let Some((_, tool)) = first else {
        let keys: Vec<&str> =
            objects.iter().flat_map(|(_, object)| object.keys()).take(12).map(String::as_str).collect();
        let remedy = "known are results of vllm bench, sglang bench, AIPerf, InferenceX, llama.cpp and guidellm";
        return Err(InputError::new(format!("no known result among {}", keys.join(", ")), remedy).file(file));
    };
    let mut imported = Imported { tool, model: None, runs: Vec::new(), left_out: Vec::new() };
    let from_path = concurrency_in(file);
    for (line, object) in &objects {
        if tool_of(object) != Some(tool) {
            imported.left_out.push(format!("line {line}: not of {tool}"));
            continue;
        }
        let model =
            ["model_id", "model", "model_filename", "model_type"].iter().find_map(|key| object.get(*key)?.as_str());
        imported.model = imported.model.take().or(model.map(str::to_owned));
        for run in tools::runs(tool, object) {
            let concurrency = run.concurrency.or(from_path);
            imported.runs.push((*line, Run { concurrency, ..run }));
        }
    }
    Ok(imported)
}

/// The number after "concurrency" in a path: AIPerf names the folders of its runs so, and its CSV does not say it.
fn concurrency_in(path: &str) -> Option<f64> {
    let rest = &path[path.rfind("concurrency")? + "concurrency".len()..];
    let digits = rest.trim_start_matches(['-', '_', '=']);
    let end = digits.find(|c: char| !c.is_ascii_digit()).unwrap_or(digits.len());
    digits[..end].parse().ok()
}

/// Whether a text is a result file rather than a table of this project: JSON, AIPerf's CSV, or columns that are a
/// tool's keys.
pub(super) fn is_result(text: &str) -> bool {
    let text = text.trim_start_matches('\u{feff}').trim_start();
    let header = text.lines().next().unwrap_or("");
    text.starts_with(['{', '[', '|'])
        || is_aiperf_csv(text)
        || header.contains("completed,") && header.contains("duration")
}

impl Imported {
    /// The runs as a measured table; those without a rate or a concurrency stay out and are named.
    ///
    /// # Errors
    ///
    /// When none is left.
    pub fn table(&self, file: &str) -> Result<Table, InputError> {
        let mut left_out = self.left_out.clone();
        let mut rows: Vec<Row> = Vec::new();
        for (line, run) in &self.runs {
            match row(*line, run, self.tool) {
                Ok(row) => rows.push(row),
                Err(why) => left_out.push(format!("line {line}: {why}")),
            }
        }
        if rows.is_empty() {
            let found = left_out.first().cloned().unwrap_or_else(|| "no runs".to_owned());
            let remedy = "a run needs a concurrency and tokens per second";
            return Err(InputError::new(found, remedy).file(file));
        }
        rows.sort_by_key(|row| row.concurrency);
        Ok(Table { server: self.server(), left_out, ..Table::of_rows(file, rows) })
    }

    /// What the runs recorded of the server.
    pub fn server(&self) -> Server {
        let runs = || self.runs.iter().map(|(_, run)| run);
        let accepted: Vec<f64> = runs().filter_map(|run| run.acceptance).filter(|length| *length >= 1.0).collect();
        let caps = runs().filter_map(|run| run.running_cap).filter(|cap| *cap >= 1.0 && *cap <= f64::from(u32::MAX));
        Server {
            acceptance: (!accepted.is_empty()).then(|| accepted.iter().sum::<f64>() / accepted.len() as f64),
            running_cap: caps.map(|cap| cap as u32).next(),
        }
    }
}

fn row(line: u64, run: &Run, tool: Tool) -> Result<Row, &'static str> {
    let positive = |value: Option<f64>| value.filter(|value| value.is_finite() && *value > 0.0);
    let concurrency = positive(run.concurrency).ok_or("no concurrency")?.round().max(1.0);
    if concurrency > f64::from(u32::MAX) {
        return Err("a concurrency beyond any client's");
    }
    let rate = positive(run.output_tok_per_s).map(|rate| (rate, RateKind::Output));
    let (tok_per_s, kind) =
        rate.or_else(|| Some((positive(run.total_tok_per_s)?, RateKind::Total))).ok_or("no tokens per second")?;
    Ok(Row {
        line,
        concurrency: concurrency as u32,
        tok_per_s,
        kind,
        shape: Shape { input_tokens: positive(run.input_tokens), output_tokens: positive(run.output_tokens) },
        num_requests: positive(run.requests).map(|count| count as u64),
        ttft_ms: positive(run.ttft_ms),
        tpot_ms: positive(run.tpot_ms),
        source: tool.to_string(),
    })
}
