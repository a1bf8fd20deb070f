//! What a file is, from its first bytes: a request file, a result, a log, a description.

use std::io::Read;
use std::path::Path;

use serde_json::{Map, Value};

use super::prometheus;
use crate::error::{Error, InputError, Result};
use crate::measured::import::{is_aiperf_csv, markdown_as_csv, tool_of};
use crate::measured::table_reader;

/// Bytes that are looked at.
const HEAD_BYTES: u64 = 1 << 18;

/// Largest document of one JSON value that is read as a whole, bytes.
pub(super) const LARGEST_DOCUMENT: u64 = 256 << 20;

/// What a file is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Kind {
    /// Requests or lengths, in any format of a trace.
    Requests,
    /// Histograms of lengths, as ServeGen publishes them.
    Histogram,
    /// Arrival rates of clients over time, without lengths.
    Rates,
    /// The result of a benchmark tool.
    Benchmark,
    /// A table of concurrency against throughput.
    MeasuredTable,
    /// A log of SGLang or vLLM.
    EngineLog,
    /// The engine's state over time as a table.
    EngineSeries,
    /// A Prometheus snapshot.
    Metrics,
    /// A model's config.json.
    ModelConfig,
    /// A scenario of this program.
    Scenario,
    /// Another description of this program: a model, hardware, a law.
    Description,
    /// A folder of result files.
    Folder,
}

impl Kind {
    /// In words, with an article.
    pub fn words(self) -> &'static str {
        match self {
            Kind::Requests => "a file of requests",
            Kind::Histogram => "a histogram of lengths",
            Kind::Rates => "arrival rates of clients over time",
            Kind::Benchmark => "a benchmark result",
            Kind::MeasuredTable => "a measured table",
            Kind::EngineLog => "an engine log",
            Kind::EngineSeries => "an engine's state over time",
            Kind::Metrics => "a snapshot of an engine's metrics",
            Kind::ModelConfig => "a model's config.json",
            Kind::Scenario => "a scenario",
            Kind::Description => "a description of this program",
            Kind::Folder => "a folder",
        }
    }

    /// Where such a file belongs.
    pub fn use_as(self) -> &'static str {
        match self {
            Kind::Requests => {
                "a trace, job.trace = \"…\", or a law of lengths, job.output_tokens = { file = \"…\", column = \"…\" }"
            }
            Kind::Histogram => "a law of lengths, with the fit below as job.output_tokens",
            Kind::Rates => "the arrivals of a job; it has no lengths",
            Kind::Benchmark | Kind::MeasuredTable | Kind::Folder => {
                "a measured table: --table of sweep, calibrate and diagnose, or benchmark.table = \"…\""
            }
            Kind::EngineLog | Kind::EngineSeries | Kind::Metrics => {
                "evidence for the running cap and the pools: --log of calibrate and diagnose"
            }
            Kind::ModelConfig => "a model, model.llm = \"…\"",
            Kind::Scenario => "the scenario of any command",
            Kind::Description => "a description that a scenario names",
        }
    }
}

/// Says what `path` is.
///
/// # Errors
///
/// An unreadable file, or one that is nothing known.
pub fn recognise(path: &Path) -> Result<Kind> {
    if path.is_dir() {
        return Ok(Kind::Folder);
    }
    let mut head = Vec::new();
    let read = crate::files::open(path)?.take(HEAD_BYTES).read_to_end(&mut head);
    read.map_err(|source| Error::file(path, source))?;
    let whole = (head.len() as u64) < HEAD_BYTES;
    let text = String::from_utf8_lossy(&head);
    let text = text.trim_start_matches('\u{feff}').trim_start();
    let kind = if text.starts_with(['{', '[']) && !text.starts_with("[20") {
        json(path, text, whole)?
    } else {
        plain(path, text)
    };
    kind.ok_or_else(|| {
        let found = if text.is_empty() { "an empty file" } else { "nothing that is known" };
        let remedy = "known are request traces, lengths, batch outputs, benchmark results, tables of concurrency and \
                      throughput, engine logs, Prometheus snapshots, config.json and scenarios";
        InputError::new(found, remedy).file(path.display().to_string()).into()
    })
}

/// Replaces `error` where the file at `path` is recognised as something else than what was wanted of it: the reader that
/// could not make sense of it says less than what the file is, and where it belongs.
pub fn wrong_file(error: Error, path: &Path, wanted: &str, fits: &[Kind]) -> Error {
    if !matches!(error, Error::Input(_)) {
        return error;
    }
    match recognise(path) {
        Ok(kind) if !fits.contains(&kind) => {
            let found = format!("this is {}, not {wanted}", kind.words());
            InputError::new(found, format!("use it as {}", kind.use_as())).file(path.display().to_string()).into()
        }
        _ => error,
    }
}

/// The first object of a JSON file.
pub(super) fn first_object(path: &Path, head: &str, whole: bool) -> Result<Option<Map<String, Value>>> {
    let inner = head.strip_prefix('[').unwrap_or(head);
    let first = |text: &str| serde_json::Deserializer::from_str(text).into_iter::<Value>().next();
    match first(inner) {
        Some(Ok(Value::Object(object))) => return Ok(Some(object)),
        Some(Err(error)) if error.is_eof() && !whole => {}
        _ => return Ok(None),
    }
    let mut text = String::new();
    let mut limited = crate::files::open(path)?.take(LARGEST_DOCUMENT);
    limited.read_to_string(&mut text).map_err(|source| Error::file(path, source))?;
    let text = text.trim_start_matches('\u{feff}').trim_start();
    Ok(match first(text.strip_prefix('[').unwrap_or(text)) {
        Some(Ok(Value::Object(object))) => Some(object),
        _ => None,
    })
}

fn json(path: &Path, head: &str, whole: bool) -> Result<Option<Kind>> {
    let Some(object) = first_object(path, head, whole)? else { return Ok(None) };
    let has = |key: &str| object.contains_key(key);
    if is_config(&object) {
        return Ok(Some(Kind::ModelConfig));
    }
    if is_servegen(&object) {
        return Ok(Some(Kind::Histogram));
    }
    // A detailed result is both; its lengths are shown beside its rates.
    if tool_of(&object).is_some() || has("input_lens") && has("output_lens") {
        return Ok(Some(Kind::Benchmark));
    }
    Ok(Some(Kind::Requests))
}

/// Whether an object is the configuration of a model.
pub(super) fn is_config(object: &Map<String, Value>) -> bool {
    let has = |key: &str| object.contains_key(key);
    (has("model_type") || has("architectures"))
        && (has("hidden_size") || has("text_config") || has("num_hidden_layers"))
}

fn is_servegen(object: &Map<String, Value>) -> bool {
    object.iter().next().is_some_and(|(window, value)| {
        window.parse::<f64>().is_ok() && value.get("output_tokens").is_some_and(Value::is_string)
    })
}

fn plain(path: &Path, head: &str) -> Option<Kind> {
    const LOG: [&str; 7] = [
        "#running-req",
        "max_total_num_tokens=",
        "Mamba Cache is allocated",
        "Avg generation throughput",
        "KV cache size:",
        "Retract requests",
        "SpecDecoding metrics",
    ];
    // Words in the names of columns of lengths.
    const LENGTHS: [&str; 7] = ["token", "toks", "len", "size", "prompt", "output", "response"];
    if prometheus::is_snapshot(head) {
        return Some(Kind::Metrics);
    }
    if LOG.iter().any(|mark| head.contains(mark)) {
        return Some(Kind::EngineLog);
    }
    if is_aiperf_csv(head) {
        return Some(Kind::Benchmark);
    }
    let toml = path.extension().is_some_and(|extension| extension == "toml");
    if toml {
        let table: toml::Table = head.parse().ok()?;
        let scenario = table.contains_key("job") || table.contains_key("replace") || table.contains_key("like");
        return Some(if scenario { Kind::Scenario } else { Kind::Description });
    }
    let markdown = markdown_as_csv(head);
    let csv = markdown.as_deref().unwrap_or(head);
    let mut reader = table_reader(csv).has_headers(false).from_reader(csv.as_bytes());
    let header = reader.records().next()?.ok()?;
    let names: Vec<String> = header.iter().map(str::to_lowercase).collect();
    let has = |name: &str| names.iter().any(|it| it == name);
    let numbers = names.iter().filter(|name| name.parse::<f64>().is_ok()).count();
    if has("running") && (has("waiting") || has("queued")) {
        Some(Kind::EngineSeries)
    } else if has("field") && has("value") && has("probability") {
        Some(Kind::Histogram)
    } else if has("rate_per_s") && has("cv") || names.len() == 6 && numbers >= 4 {
        Some(Kind::Rates)
    } else if names.iter().any(|name| name == "output_throughput" || name == "s_tg t/s" || name == "avg_ts") {
        // Columns that are the JSON keys of a tool.
        Some(if has("concurrency") && !has("completed") { Kind::MeasuredTable } else { Kind::Benchmark })
    } else if names.iter().any(|name| name.contains("concurren") || name == "streams") {
        Some(Kind::MeasuredTable)
    } else if names.iter().any(|name| LENGTHS.iter().any(|word| name.contains(word)) && name.len() < 40) {
        Some(Kind::Requests)
    } else {
        None
    }
}
