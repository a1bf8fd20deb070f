//! The formats of JSON traces: what their keys are called, and which format an object is of.

use super::jsonl::{Emit, chat_request, conversation, plain, prompt_only, sub_requests};
use super::object::Object;
use super::{Checked, TraceFormat, batch};
use crate::error::InputError;
use crate::measured::import::tool_of;

/// What the keys of a format are called.
pub(super) struct Keys {
    pub format: TraceFormat,
    /// Time keys with nanoseconds per unit; the first one there counts. No unit: told by the number's size.
    pub time: &'static [(&'static str, Option<f64>)],
    pub prompt: &'static [&'static str],
    pub output: &'static [&'static str],
    pub read: fn(&Keys, &Object, &mut Emit<'_>) -> Checked<()>,
}

const fn keys(
    format: TraceFormat,
    time: &'static [(&'static str, Option<f64>)],
    prompt: &'static [&'static str],
    output: &'static [&'static str],
) -> Keys {
    Keys { format, time, prompt, output, read: plain }
}

const MOONCAKE: Keys = keys(TraceFormat::Mooncake, &[("timestamp", Some(1e6))], &["input_length"], &["output_length"]);

const QWEN_BAILIAN: Keys =
    keys(TraceFormat::QwenBailian, &[("timestamp", Some(1e9))], &["input_length"], &["output_length"]);

/// `delay` counts from the end of the session's previous request: no arrival time.
const AIPERF_TRACE: Keys =
    keys(TraceFormat::AiperfTrace, &[("timestamp", Some(1e6))], &["input_length"], &["output_length"]);

/// Recorded runs put Unix time into `arrival_time` and the engine's clock into `queued_ts`.
const LLM_SERVING_SIM: Keys = keys(
    TraceFormat::LlmServingSim,
    &[("queued_ts", Some(1e9)), ("arrival_time_ns", Some(1.0))],
    &["input_toks"],
    &["output_toks"],
);

const SESSIONS: Keys = Keys { read: sub_requests, ..LLM_SERVING_SIM };

const RECORDING: Keys = keys(
    TraceFormat::Recording,
    &[
        ("arrival_s", Some(1e9)),
        ("submit_s", Some(1e9)),
        ("timestamp", None),
        ("arrival_time", None),
        ("created", None),
    ],
    &["prompt_tokens", "input_tokens", "input_len", "prompt_len", "request_tokens"],
    &["output_tokens", "completion_tokens", "output_len", "response_tokens", "generated_tokens"],
);

const fn texts(format: TraceFormat, read: fn(&Keys, &Object, &mut Emit<'_>) -> Checked<()>) -> Keys {
    Keys { format, time: &[], prompt: &["prompt"], output: &["output_tokens"], read }
}

const CONVERSATIONS: Keys = texts(TraceFormat::Conversations, conversation);
const CHAT_REQUESTS: Keys = texts(TraceFormat::ChatRequests, chat_request);
const PROMPTS: Keys = texts(TraceFormat::Prompts, prompt_only);
const OPENAI_INPUT: Keys = texts(TraceFormat::OpenAiBatchInput, |_, object, emit| batch::openai_input(object, emit));

const OPENAI_OUTPUT: Keys = Keys {
    format: TraceFormat::OpenAiBatch,
    time: &[("created", None)],
    prompt: &["usage.prompt_tokens"],
    output: &["usage.completion_tokens"],
    read: |_, object, emit| batch::openai_output(object, emit),
};

const ANTHROPIC_OUTPUT: Keys = Keys {
    format: TraceFormat::AnthropicBatch,
    time: &[],
    prompt: &["usage.input_tokens"],
    output: &["usage.output_tokens"],
    read: |_, object, emit| batch::anthropic_output(object, emit),
};

const AIPERF_EXPORT: Keys = Keys {
    format: TraceFormat::AiperfExport,
    time: &[("request_start_ns", Some(1.0))],
    prompt: &["input_sequence_length"],
    output: &["output_sequence_length"],
    read: |_, object, emit| batch::aiperf_export(object, emit),
};

const BENCH_RESULT: Keys = Keys {
    format: TraceFormat::BenchResult,
    time: &[("start_times", None)],
    prompt: &["input_lens"],
    output: &["output_lens"],
    read: |_, object, emit| batch::bench_result(object, emit),
};

pub(super) fn detect(object: &Object) -> Checked<(&'static Keys, bool)> {
    let has = |key: &str| object.contains_key(key);
    let any = |names: &[&str]| names.iter().any(|name| has(name));
    let keys = if has("custom_id") && has("response") {
        &OPENAI_OUTPUT
    } else if has("custom_id") && has("result") {
        &ANTHROPIC_OUTPUT
    } else if has("custom_id") && has("body") {
        &OPENAI_INPUT
    } else if has("input_lens") && has("output_lens") {
        &BENCH_RESULT
    } else if has("metadata") && has("metrics") {
        &AIPERF_EXPORT
    } else if has("sub_requests") {
        &SESSIONS
    } else if has("input_toks") && has("output_toks") {
        &LLM_SERVING_SIM
    } else if any(&["text_input", "delay"]) || has("session_id") && has("input_length") {
        &AIPERF_TRACE
    } else if has("input_length") && has("output_length") {
        // The same keys as Mooncake's, but seconds and smaller blocks; chat ids tell them apart.
        if any(&["chat_id", "parent_chat_id"]) { &QWEN_BAILIAN } else { &MOONCAKE }
    } else if has("conversations") {
        &CONVERSATIONS
    } else if has("messages") {
        &CHAT_REQUESTS
    } else if any(RECORDING.output) {
        if any(RECORDING.prompt) || !has("prompt") { &RECORDING } else { &PROMPTS }
    } else if has("prompt") {
        &PROMPTS
    } else if let Some(tool) = tool_of(&object.to_map()) {
        let remedy = "use it as a table: benchmark.table = \"…\"; a run with detailed output has lengths too";
        return Err(InputError::new(format!("this is a result of {tool}, not a trace"), remedy));
    } else if has("hidden_size") || has("text_config") {
        return Err(InputError::new("this is a model's config.json, not a trace", "use it as model.llm = \"…\""));
    } else {
        let keys: Vec<&str> = object.keys().take(12).collect();
        let remedy = "looked for input_length with output_length (Mooncake, Qwen-Bailian), input_toks with output_toks \
                      (LLMServingSim), prompt_tokens with completion_tokens, custom_id with response (batch output) \
                      and others; `makespan inspect` says what a file is";
        return Err(InputError::new(format!("no known token keys among {}", keys.join(", ")), remedy));
    };
    let timed = keys.time.iter().any(|(key, _)| has(key)) || matches!(keys.format, TraceFormat::AiperfExport);
    Ok((keys, timed))
}
