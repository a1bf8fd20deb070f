//! What a measured table's description says: configuration, method, source, and what is unknown.

use std::collections::BTreeMap;

use serde::Deserialize;

use crate::error::{InputError, nearest};

/// A value that sources give as a number, in words, or point by point.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(untagged, expecting = "expected a number, a text, or a table of numbers by point")]
pub enum Given {
    /// A number.
    Number(f64),
    /// Words.
    Text(String),
    /// A number for each point, as in `c16 = 3` for 16 in flight.
    ByPoint(BTreeMap<String, f64>),
}

impl Given {
    /// The number, if it is one: `128`, or words that only add whose number it is, as in "128 per replica".
    pub fn number(&self) -> Option<f64> {
        match self {
            Given::Number(number) => Some(*number),
            Given::Text(text) => text.strip_suffix(" per replica")?.parse().ok(),
            Given::ByPoint(_) => None,
        }
    }
}

/// A description. Every key but the GPUs may be missing; a missing key is unknown, not a default.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct About {
    /// The GPU, with memory and power limit where known.
    pub gpu: String,
    /// GPUs of the whole configuration.
    pub gpus: u32,
    /// The model that was served.
    pub model: Option<String>,
    /// Its family, in words.
    pub architecture: Option<String>,
    /// Layer counts and widths, where the model has only a shape.
    pub shape_config: Option<toml::Table>,
    /// Format of the weights.
    pub quantisation: Option<String>,
    /// What the weights and the sampling were, where they were not a trained model's.
    pub weights: Option<String>,
    /// Size of the weights on the GPUs, GiB.
    pub weights_gib: Option<f64>,
    /// Format of the KV cache.
    pub kv_dtype: Option<String>,
    /// KV of one token of context, bytes.
    pub kv_bytes_per_token: Option<u64>,
    /// Blocks in the KV pool.
    pub kv_blocks: Option<u64>,
    /// Tokens of context that the KV pool of one replica holds.
    pub kv_capacity_tokens_per_replica: Option<u64>,
    /// Recurrent state of one request, bytes (hybrid models).
    pub state_bytes_per_request: Option<u64>,
    /// Host memory for KV, GiB.
    pub cpu_kv_gib: Option<f64>,
    /// Link between host and GPU.
    pub host_link: Option<String>,
    /// GPUs that share one replica's layers (tensor parallelism).
    pub tp: Option<u32>,
    /// Replicas (data parallelism).
    pub dp: Option<u32>,
    /// Pipeline stages.
    pub pp: Option<u32>,
    /// GPUs that share the experts.
    pub ep: Option<u32>,
    /// Serving engine.
    pub engine: Option<String>,
    /// Its version, in the source's words.
    pub engine_version: Option<String>,
    /// Libraries and driver below it.
    pub software: Option<String>,
    /// Which of the engine's model runners ran.
    pub model_runner: Option<String>,
    /// Drafting method, or that there was none.
    pub speculation: Option<String>,
    /// Tokens drafted a step.
    pub draft_tokens: Option<u32>,
    /// What is known of the acceptance, in the source's words.
    pub acceptance: Option<String>,
    /// Chance that the first i drafted tokens are all accepted.
    pub acceptance_marginal: Option<Vec<f64>>,
    /// Cap on running requests: a number of one replica, or words.
    pub max_running_requests: Option<Given>,
    /// Longest context the engine accepts, tokens.
    pub max_model_len: Option<u64>,
    /// Most tokens of one step.
    pub max_num_batched_tokens: Option<u64>,
    /// Output cap of the job, tokens.
    pub max_tokens_cap: Option<u64>,
    /// Tokens of a KV block.
    pub block_size: Option<u32>,
    /// Share of GPU memory the engine may use.
    pub gpu_memory_utilization: Option<f64>,
    /// Whether shared prefixes were kept.
    pub prefix_caching: Option<bool>,
    /// Memory flags of the engine, in words.
    pub memory: Option<String>,
    /// What was sent.
    pub workload: Option<String>,
    /// Closed loop, or at which times requests came.
    pub arrival: Option<String>,
    /// What the rate counts and over which time.
    pub metric: Option<String>,
    /// Whether ttft and tpot are means or medians.
    pub statistic: Option<String>,
    /// What the curve does, as a reader judged it.
    pub shape: Option<String>,
    /// Joins tables that differ only in the number of GPUs.
    pub scaling_group: Option<String>,
    /// The table that differs in one thing only.
    pub pair: Option<String>,
    /// Meaning of the columns, where they are not those of a sweep.
    pub columns: Option<Vec<String>>,
    /// Number of rows, where it is worth a check.
    pub rows: Option<u64>,
    /// Runs per point.
    pub repeats: Option<Given>,
    /// Spread of the repeats, percent of the mean.
    pub spread_pct: Option<Given>,
    /// How it was measured.
    pub how: Option<String>,
    /// What was computed rather than read, with the formula.
    pub derived: Option<Vec<String>>,
    /// A row that disagrees with its neighbours, and why.
    pub suspect: Option<String>,
    /// Remarks.
    pub notes: Option<String>,
    /// Day of measurement.
    pub date: Option<String>,
    /// Repository the numbers come from.
    pub source_repo: Option<String>,
    /// File or issue in it.
    pub source_file: Option<String>,
    /// Commit that was read.
    pub source_commit: Option<String>,
    /// Address.
    pub source_url: Option<String>,
    /// Date of the source.
    pub source_date: Option<String>,
    /// Licence of the source.
    pub licence: Option<String>,
    /// What the source does not say: to be treated as unknown.
    pub unknown: Option<Vec<String>>,
    /// Requests of the job.
    pub requests: Option<u64>,
    /// Prompt tokens of the job.
    pub input_tokens_total: Option<u64>,
    /// Generated tokens of the job.
    pub output_tokens_total: Option<u64>,
    /// Wall time of the job, s.
    pub makespan_s: Option<f64>,
    /// Steps the engine made in the job.
    pub engine_steps: Option<u64>,
    /// Requests sent back to the queue in the job.
    pub preemptions: Option<u64>,
    /// Whole jobs that were run in this configuration.
    #[serde(default)]
    pub job: Vec<AboutJob>,
}

/// A whole job as a description lists it; totals, or lengths of each request.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AboutJob {
    /// Requests in flight; unknown where requests came at their own pace.
    pub concurrency: Option<u64>,
    /// Requests done.
    pub requests: u64,
    /// Prompt tokens of all requests.
    pub input_tokens_total: Option<u64>,
    /// Generated tokens of all requests.
    pub output_tokens_total: Option<u64>,
    /// Prompt tokens of each request.
    pub input_tokens_each: Option<u64>,
    /// Generated tokens of each request.
    pub output_tokens_each: Option<u64>,
    /// Wall time, s.
    pub seconds: f64,
    /// When the last request came, s from the first.
    pub arrivals_end_s: Option<f64>,
}

/// What is found where a key is missing.
const MISSING: &str = "missing key";

/// Reads a description from TOML text; `file` names it in errors.
pub fn read_about(text: &str, file: &str) -> Result<About, InputError> {
    toml::from_str(text).map_err(|error| {
        let input = explain(error.message()).file(file);
        match error.span() {
            // A missing key has no line of its own.
            Some(span) if input.found != MISSING => input.line(1 + text[..span.start].matches('\n').count() as u64),
            _ => input,
        }
    })
}

/// The reader's message with a remedy. It quotes names: first the unknown or missing one, then the known ones.
fn explain(message: &str) -> InputError {
    let mut quoted = message.split('`').skip(1).step_by(2);
    let Some(name) = quoted.next() else {
        return InputError::new(message.replace('\n', " "), "write `key = value` with a value of the expected kind");
    };
    if message.starts_with("unknown field") {
        let remedy = match nearest(name, quoted) {
            Some(near) => format!("did you mean `{near}`?"),
            None => "remove it, or put it into `notes`".to_owned(),
        };
        return InputError::new("unknown key", remedy).key(name);
    }
    if message.starts_with("missing field") {
        return InputError::new(MISSING, "add it to the description").key(name);
    }
    InputError::new(message.replace('\n', " "), "write `key = value` with a value of the expected kind")
}
