//! Traces with one JSON object per line.

use std::io::BufRead;

use serde_json::{Map, Value};

use super::{Checked, Lines, PrefixBlocks, RawRows, TraceFormat, TraceOptions, parse_tokens, time_ns, whole_tokens};
use crate::error::{InputError, Result};

/// What the keys of a format are called.
struct Keys {
    format: TraceFormat,
    /// Time keys with nanoseconds per unit; the first one there counts.
    time: &'static [(&'static str, f64)],
    prompt: &'static str,
    output: &'static str,
    /// Tokens per prefix block of `hash_ids`.
    block_tokens: Option<u32>,
}

const MOONCAKE: Keys = Keys {
    format: TraceFormat::Mooncake,
    time: &[("timestamp", 1e6)],
    prompt: "input_length",
    output: "output_length",
    block_tokens: Some(512),
};

const QWEN_BAILIAN: Keys = Keys {
    format: TraceFormat::QwenBailian,
    time: &[("timestamp", 1e9)],
    prompt: "input_length",
    output: "output_length",
    block_tokens: Some(16),
};

/// Recorded runs put Unix time into `arrival_time` and the engine's clock into `queued_ts`.
const LLM_SERVING_SIM: Keys = Keys {
    format: TraceFormat::LlmServingSim,
    time: &[("queued_ts", 1e9), ("arrival_time_ns", 1.0)],
    prompt: "input_toks",
    output: "output_toks",
    block_tokens: None,
};

fn detect(object: &Map<String, Value>) -> Checked<&'static Keys> {
    let has = |key: &str| object.contains_key(key);
    if has("sub_requests") {
        let remedy = "write one line per request: sessions with tool calls are not supported";
        return Err(InputError::new("a session", remedy).key("sub_requests"));
    }
    if has("input_toks") && has("output_toks") {
        return Ok(&LLM_SERVING_SIM);
    }
    if has("input_length") && has("output_length") {
        // The same keys as Mooncake's, but seconds and smaller blocks; chat ids tell them apart.
        return Ok(if has("chat_id") || has("parent_chat_id") { &QWEN_BAILIAN } else { &MOONCAKE });
    }
    let keys: Vec<&str> = object.keys().map(String::as_str).collect();
    let remedy = "looked for input_length with output_length (Mooncake, Qwen-Bailian) or input_toks with output_toks \
                  (LLMServingSim)";
    Err(InputError::new(format!("no known token keys among {}", keys.join(", ")), remedy))
}

pub(super) fn read<R: BufRead>(lines: &mut Lines<'_, R>, options: TraceOptions) -> Result<RawRows> {
    let mut state: Option<(&Keys, RawRows)> = None;
    while let Some(object) = next_object(lines)? {
        let line = lines.number;
        let (keys, rows) = match &mut state {
            Some(state) => state,
            None => {
                let keys = detect(&object).map_err(|error| error.line(line))?;
                let timed = keys.time.iter().any(|(key, _)| object.contains_key(*key));
                let mut rows = RawRows::new(keys.format, timed, options);
                rows.prefix_blocks = keys
                    .block_tokens
                    .filter(|_| object.contains_key("hash_ids"))
                    .map(|block_tokens| PrefixBlocks { block_tokens, ..PrefixBlocks::default() });
                state.insert((keys, rows))
            }
        };
        add(keys, rows, &object).map_err(|error| error.line(line))?;
    }
    state.map(|(_, rows)| rows).ok_or_else(|| InputError::new("an empty file", "give one JSON object per line").into())
}

fn add(keys: &Keys, rows: &mut RawRows, object: &Map<String, Value>) -> Checked<()> {
    let prompt = token_value(object, keys.prompt)?;
    let output = token_value(object, keys.output)?;
    let time_ns = if rows.timed { row_time(keys, object)? } else { 0 };
    if rows.push(prompt, output, time_ns, [keys.prompt, keys.output])?
        && let Some(blocks) = &mut rows.prefix_blocks
    {
        if let Some(ids) = object.get("hash_ids") {
            let bad = |found: String| InputError::new(found, "give a list of whole numbers").key("hash_ids");
            for id in ids.as_array().ok_or_else(|| bad(ids.to_string()))? {
                blocks.ids.push(id.as_u64().ok_or_else(|| bad(id.to_string()))?);
            }
        }
        blocks.ends.push(blocks.ids.len());
    }
    Ok(())
}

fn row_time(keys: &Keys, object: &Map<String, Value>) -> Checked<i64> {
    let found = keys.time.iter().find_map(|(key, ns_per_unit)| Some((*key, ns_per_unit, object.get(*key)?)));
    let Some((key, ns_per_unit, value)) = found else {
        return Err(InputError::new("missing", "the first row has a time, so every row needs one").key(keys.time[0].0));
    };
    let time = value.as_f64().ok_or_else(|| InputError::new(value.to_string(), "give a number").key(key))?;
    time_ns(time, *ns_per_unit).map_err(|error| error.key(key))
}

fn token_value(object: &Map<String, Value>, key: &str) -> Checked<u32> {
    let tokens = match object.get(key) {
        Some(Value::Number(number)) => whole_tokens(number.as_f64().unwrap_or(f64::NAN)),
        Some(Value::String(text)) => parse_tokens(text),
        Some(other) => Err(InputError::new(other.to_string(), "give a whole number of tokens")),
        None => Err(InputError::new("missing", "every row needs it")),
    };
    tokens.map_err(|error| error.key(key))
}

pub(super) fn column<R: BufRead>(lines: &mut Lines<'_, R>, column: &str) -> Result<Vec<f64>> {
    let mut values = Vec::new();
    while let Some(object) = next_object(lines)? {
        if values.is_empty() && !object.contains_key(column) {
            return Err(super::no_column(column, object.keys().map(String::as_str)).line(lines.number).into());
        }
        let value = token_value(&object, column).and_then(super::length);
        values.push(value.map_err(|error| error.key(column).line(lines.number))?);
    }
    Ok(values)
}

/// The object on the next line that is not blank.
fn next_object<R: BufRead>(lines: &mut Lines<'_, R>) -> Result<Option<Map<String, Value>>> {
    loop {
        let Some(line) = lines.next_line()? else { return Ok(None) };
        if line.iter().all(u8::is_ascii_whitespace) {
            continue;
        }
        return match serde_json::from_slice(line) {
            Ok(object) => Ok(Some(object)),
            Err(error) => {
                let remedy = "give one whole JSON object per line, not a list over many lines";
                // The parser counts lines within the record, so only its column means something.
                let found = match error.is_data() {
                    true => "a value that is no object".to_owned(),
                    false => error.to_string().replace(" at line 1 column ", " at character "),
                };
                Err(InputError::new(found, remedy).line(lines.number).into())
            }
        };
    }
}
