//! Outputs of batch services and benchmark tools: what each says of a request's lengths and end.

use serde_json::Value;

use super::jsonl::{Emit, id_of, tokens_of};
use super::object::Object;
use super::record::{Finish, NO_LENGTH, Record};
use super::{Checked, guessed_time_ns, time_ns};
use crate::error::InputError;

fn failed(why: &str, detail: String) -> InputError {
    InputError::new(detail, why)
}

/// Whether a line of an OpenAI batch output says when it was made.
pub(super) fn has_time(object: &Object) -> bool {
    created(object.get("response").and_then(|response| response.get("body"))).is_some()
}

fn created(body: Option<&Value>) -> Option<f64> {
    let body = body?;
    body.get("created").or_else(|| body.get("created_at"))?.as_f64()
}

/// `usage` of the chat and completions endpoints counts prompt and completion tokens, that of the responses endpoint
/// input and output tokens.
pub(super) fn openai_output(object: &Object, emit: &mut Emit<'_>) -> Checked<()> {
    if let Some(error) = object.get("error").filter(|error| !error.is_null()) {
        let code = error.get("code").and_then(Value::as_str).unwrap_or("an error");
        return Err(failed(NO_LENGTH, code.to_owned()).key("error"));
    }
    let response = object.get("response").and_then(Value::as_object);
    let status = response.and_then(|response| response.get("status_code")).and_then(Value::as_u64);
    if status != Some(200) {
        let status = status.map_or_else(|| "no status".to_owned(), |status| format!("status {status}"));
        return Err(failed(NO_LENGTH, status).key("response"));
    }
    let body = response.and_then(|response| response.get("body"));
    let usage = body.and_then(|body| body.get("usage"));
    let field = |names: [&str; 2]| names.iter().find_map(|name| usage?.get(*name));
    let detail = |names: [&str; 2], key: &str| tokens_of(field(names)?.get(key)).ok();
    let choices = body.and_then(|body| body.get("choices")).and_then(Value::as_array);
    let reasons = choices.into_iter().flatten().filter_map(|choice| choice.get("finish_reason")?.as_str());
    let status = body.and_then(|body| body.get("status")).and_then(Value::as_str);
    let ends: Vec<Finish> = reasons.chain(status).map(Finish::from_reason).collect();
    let finish = ends.iter().copied().find(|end| *end == Finish::Cut).or(ends.first().copied()).unwrap_or_default();
    let mut output = tokens_of(field(["completion_tokens", "output_tokens"])).map_err(|e| e.key("usage"))?;
    // With several choices the usage covers all of them: the mean stands for each.
    let several = choices.map_or(1, Vec::len).max(1) as u32;
    output = output.div_ceil(several);
    let text = |choice: &Value| {
        let message = choice.get("message").unwrap_or(choice);
        message.get("content").or_else(|| message.get("text"))?.as_str().map(str::to_owned)
    };
    let answers: Vec<String> = choices.into_iter().flatten().filter_map(text).collect();
    let record = Record {
        input: Some(tokens_of(field(["prompt_tokens", "input_tokens"])).map_err(|e| e.key("usage"))?),
        output: Some(output),
        thinking: detail(["completion_tokens_details", "output_tokens_details"], "reasoning_tokens")
            .map(|tokens| tokens.div_ceil(several)),
        total: (several == 1)
            .then(|| field(["total_tokens", "total_tokens"]).and_then(|it| tokens_of(Some(it)).ok()))
            .flatten(),
        time_ns: created(body).map(guessed_time_ns).transpose().map_err(|error| error.key("created"))?,
        finish,
        id: id_of(object, &["custom_id"]),
        empty_answer: (!answers.is_empty()).then(|| answers.iter().any(|answer| answer.trim().is_empty())),
        characters: (several == 1).then(|| answers.first().map(|answer| answer.chars().count() as u32)).flatten(),
        ..Record::default()
    };
    for _ in 0..several {
        emit.record(record, None)?;
    }
    Ok(())
}

pub(super) fn anthropic_output(object: &Object, emit: &mut Emit<'_>) -> Checked<()> {
    let result = object.get("result");
    let kind = result.and_then(|result| result.get("type")).and_then(Value::as_str).unwrap_or("no result");
    if kind != "succeeded" {
        return Err(failed(NO_LENGTH, kind.to_owned()).key("result"));
    }
    let message = result.and_then(|result| result.get("message"));
    let usage = message.and_then(|message| message.get("usage"));
    let tokens = |name: &str| tokens_of(usage.and_then(|usage| usage.get(name))).map_err(|error| error.key(name));
    let parts = message.and_then(|message| message.get("content")).and_then(Value::as_array);
    let text = parts.map(|parts| {
        let texts = parts.iter().filter_map(|part| part.get("text")?.as_str());
        texts.collect::<String>()
    });
    let reason = message.and_then(|message| message.get("stop_reason")).and_then(Value::as_str);
    // What was read from or written to a cache is not in `input_tokens`.
    let cached = ["cache_read_input_tokens", "cache_creation_input_tokens"].iter().filter_map(|name| tokens(name).ok());
    let input = cached.fold(tokens("input_tokens")?, u32::saturating_add);
    let record = Record {
        input: Some(input),
        output: Some(tokens("output_tokens")?),
        finish: reason.map_or(Finish::Unknown, Finish::from_reason),
        id: id_of(object, &["custom_id"]),
        empty_answer: text.as_ref().map(|text| text.trim().is_empty()),
        ..Record::default()
    };
    emit.record(record, None)
}

/// The text of a list of messages, whose contents are texts or lists of parts.
pub(super) fn message_text(messages: &Value) -> String {
    let mut text = String::new();
    for message in messages.as_array().into_iter().flatten() {
        match message.get("content") {
            Some(Value::String(content)) => text.push_str(content),
            Some(Value::Array(parts)) => {
                text.extend(parts.iter().filter_map(|part| part.get("text")?.as_str()));
            }
            _ => {}
        }
    }
    text
}

pub(super) fn openai_input(object: &Object, emit: &mut Emit<'_>) -> Checked<()> {
    let remedy = "a line of a batch input has the request in `body`";
    let body = object.get("body").and_then(Value::as_object).ok_or_else(|| InputError::new("no body", remedy))?;
    let text = match (body.get("messages"), body.get("prompt").or_else(|| body.get("input"))) {
        (Some(messages), _) => message_text(messages),
        (None, Some(Value::String(prompt))) => prompt.clone(),
        (None, Some(messages)) => message_text(messages),
        (None, None) => String::new(),
    };
    let caps = ["max_completion_tokens", "max_tokens", "max_output_tokens"];
    let cap = caps.iter().find_map(|name| tokens_of(Some(body.get(*name)?)).ok());
    let record =
        Record { input: Some(emit.tokens(&text)), cap, id: id_of(object, &["custom_id"]), ..Record::default() };
    emit.record(record, None)
}

pub(super) fn aiperf_export(object: &Object, emit: &mut Emit<'_>) -> Checked<()> {
    if object.get("error").is_some_and(|error| !error.is_null()) {
        return Err(failed(NO_LENGTH, "an error".to_owned()).key("error"));
    }
    let metadata = object.get("metadata");
    if metadata.and_then(|it| it.get("was_cancelled")).and_then(Value::as_bool) == Some(true) {
        return Err(failed("its length is not the model's own", "cancelled by the client".to_owned()).key("metadata"));
    }
    let metrics = object.get("metrics");
    let metric = |name: &str| tokens_of(metrics.and_then(|it| it.get(name)?.get("value"))).map_err(|it| it.key(name));
    let start = metadata.and_then(|it| it.get("request_start_ns")).and_then(Value::as_f64);
    let record = Record {
        input: Some(metric("input_sequence_length")?),
        output: Some(metric("output_sequence_length")?),
        thinking: metric("reasoning_token_count").ok(),
        answer: metric("output_token_count").ok(),
        time_ns: start.map(|ns| time_ns(ns, 1.0)).transpose().map_err(|error| error.key("request_start_ns"))?,
        ..Record::default()
    };
    emit.record(record, None)
}

/// The requests of one run, in the order they were sent; failed ones have an error text and output 0.
pub(super) fn bench_result(object: &Object, emit: &mut Emit<'_>) -> Checked<()> {
    let list = |key: &str| object.get(key).and_then(Value::as_array);
    let bad = |key: &str| InputError::new("no list", "give one length per request").key(key);
    let (inputs, outputs) =
        (list("input_lens").ok_or_else(|| bad("input_lens"))?, list("output_lens").ok_or_else(|| bad("output_lens"))?);
    if inputs.len() != outputs.len() {
        let found = format!("{} input lengths and {} output lengths", inputs.len(), outputs.len());
        return Err(InputError::new(found, "give one of each per request").key("output_lens"));
    }
    let starts = list("start_times").filter(|times| times.len() == inputs.len());
    let errors = list("errors");
    for (place, (input, output)) in inputs.iter().zip(outputs).enumerate() {
        let error = errors.and_then(|errors| errors.get(place)?.as_str()).is_some_and(|error| !error.is_empty());
        let start = starts.and_then(|starts| starts[place].as_f64());
        let record = Record {
            input: Some(tokens_of(Some(input)).map_err(|error| error.key("input_lens"))?),
            output: Some(tokens_of(Some(output)).map_err(|error| error.key("output_lens"))?),
            time_ns: start.map(guessed_time_ns).transpose().map_err(|error| error.key("start_times"))?,
            ..Record::default()
        };
        let finish = if error { Finish::Failed } else { Finish::Unknown };
        emit.record(Record { finish, ..record }, None)?;
    }
    Ok(())
}
