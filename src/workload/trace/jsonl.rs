//! Traces as JSON: an object per line, a list of objects, or one object over many lines.

use std::fmt;
use std::io::{BufRead, Read as _};

use serde::de::{Deserializer as _, SeqAccess, Visitor};
use serde_json::Value;

use super::batch;
use super::json_formats::{Keys, detect};
use super::lines::{LONGEST_LINE_BYTES, Lines};
use super::object::Object;
use super::record::{Finish, Record, RecordSink, hashed};
use super::{Checked, TextTokens, TraceFormat, guessed_time_ns, parse_tokens, time_ns, whole_tokens};
use crate::error::{Error, InputError, Result};

/// Takes each record of an object.
pub(super) struct Emit<'a> {
    take: &'a mut dyn FnMut(Record, Option<&Value>) -> Checked<()>,
    texts: &'a TextTokens,
}

impl Emit<'_> {
    /// Takes a record with its list of prefix blocks.
    pub(super) fn record(&mut self, record: Record, prefix: Option<&Value>) -> Checked<()> {
        (self.take)(record, prefix)
    }

    /// Tokens of a text.
    pub(super) fn tokens(&self, text: &str) -> u32 {
        self.texts.count(text)
    }
}

/// Reads objects into a sink, in the format of the first of them.
struct Reading<'s> {
    sink: &'s mut dyn RecordSink,
    texts: &'s TextTokens,
    keys: Option<&'static Keys>,
}

impl Reading<'_> {
    fn object(&mut self, object: &Object, line: u64) -> Result<()> {
        let keys = match self.keys {
            Some(keys) => keys,
            None => {
                let (keys, timed) = detect(object).map_err(|error| error.line(line))?;
                let timed = timed || (keys.format == TraceFormat::OpenAiBatch && batch::has_time(object));
                self.sink.start(keys.format, timed, [keys.prompt[0], keys.output[0]]);
                *self.keys.insert(keys)
            }
        };
        let sink = &mut *self.sink;
        // A failure of the sink ends the reading, a bad record does not.
        let mut fatal = Ok(());
        let mut take = |record: Record, prefix: Option<&Value>| {
            if fatal.is_err() {
                return Ok(());
            }
            if let Err(error) = sink.record(&Record { line, ..record }, prefix) {
                fatal = sink.refused(error.line(line));
            }
            Ok(())
        };
        let read = (keys.read)(keys, object, &mut Emit { take: &mut take, texts: self.texts });
        fatal?;
        read.or_else(|error| self.sink.refused(error.line(line)))
    }
}

pub(super) fn read<R: BufRead>(lines: &mut Lines<'_, R>, texts: &TextTokens, sink: &mut dyn RecordSink) -> Result<()> {
    let mut reading = Reading { sink, texts, keys: None };
    if lines.starts_list()? {
        list(lines, &mut reading)?;
    } else {
        while let Some(line) = next_filled(lines)? {
            match serde_json::from_slice::<Object>(line) {
                Ok(object) => reading.object(&object, lines.number)?,
                Err(error) if error.is_eof() && reading.keys.is_none() => {
                    document(lines, &mut reading)?;
                    break;
                }
                // A truncated or odd line of an otherwise good file is one refused row.
                Err(error) if reading.keys.is_some() => reading.sink.refused(syntax(&error, lines.number))?,
                Err(error) => return Err(syntax(&error, lines.number).into()),
            }
        }
    }
    match reading.keys {
        Some(_) => Ok(()),
        None => Err(InputError::new("an empty file", "give one JSON object per line").into()),
    }
}

/// One or more objects that span lines: read as a whole.
fn document<R: BufRead>(lines: &mut Lines<'_, R>, reading: &mut Reading<'_>) -> Result<()> {
    let line = lines.number;
    let mut text = std::mem::take(&mut lines.line);
    let path = lines.path;
    let mut rest = (&mut lines.reader).take(LONGEST_LINE_BYTES);
    rest.read_to_end(&mut text).map_err(|source| Error::file(path, source))?;
    let text = text.strip_prefix(b"\xef\xbb\xbf".as_slice()).unwrap_or(&text);
    for object in serde_json::Deserializer::from_slice(text).into_iter::<Object>() {
        let object = object.map_err(|error| syntax(&error, line + error.line() as u64 - 1))?;
        reading.object(&object, line)?;
    }
    Ok(())
}

/// A list of objects, one held at a time. The number of the element stands in for its line.
fn list<R: BufRead>(lines: &mut Lines<'_, R>, reading: &mut Reading<'_>) -> Result<()> {
    struct Elements<'r, 's> {
        reading: &'r mut Reading<'s>,
        failed: Option<Error>,
    }
    impl<'de> Visitor<'de> for &mut Elements<'_, '_> {
        type Value = ();

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("a list of objects")
        }

        fn visit_seq<A: SeqAccess<'de>>(self, mut elements: A) -> std::result::Result<(), A::Error> {
            let mut number = 0;
            while let Some(object) = elements.next_element::<Object>()? {
                number += 1;
                if let Err(error) = self.reading.object(&object, number) {
                    self.failed = Some(error);
                    return Err(serde::de::Error::custom("refused"));
                }
            }
            Ok(())
        }
    }
    lines.skip_mark()?;
    let mut elements = Elements { reading, failed: None };
    let limited = (&mut lines.reader).take(LONGEST_LINE_BYTES << 6);
    let read = serde_json::Deserializer::from_reader(limited).deserialize_seq(&mut elements);
    match (elements.failed, read) {
        (Some(error), _) => Err(error),
        (None, Ok(())) => Ok(()),
        (None, Err(error)) if error.is_io() => Err(Error::file(lines.path, error.into())),
        (None, Err(error)) => Err(syntax(&error, error.line() as u64).into()),
    }
}

fn syntax(error: &serde_json::Error, line: u64) -> InputError {
    let remedy = "give one whole JSON object per line, or a list of objects";
    // The parser counts lines within the record, so only its column means something.
    let found = match error.to_string().rsplit_once(" at line ") {
        _ if error.is_data() => "a value that is no object".to_owned(),
        Some((found, _)) => format!("{found} at character {}", error.column()),
        None => error.to_string(),
    };
    InputError::new(found, remedy).line(line)
}

pub(super) fn plain(keys: &Keys, object: &Object, emit: &mut Emit<'_>) -> Checked<()> {
    let found = |names: &[&'static str]| names.iter().copied().find(|name| object.contains_key(name));
    let input = match (found(keys.prompt), object.get("text_input")) {
        (Some(key), _) => Some(token_value(object, key)?),
        (None, Some(text)) => text.as_str().map(|text| emit.tokens(text)),
        (None, None) => None,
    };
    let output = found(keys.output).map(|key| token_value(object, key)).transpose()?;
    let tokens = |names: &[&str]| names.iter().find_map(|key| tokens_of(Some(object.get(key)?)).ok());
    let record = Record {
        input,
        output,
        thinking: tokens(&["reasoning_tokens", "thinking_tokens", "thinking_length"]),
        answer: tokens(&["answer_tokens", "answer_length"]),
        total: tokens(&["total_tokens"]),
        cap: tokens(&["max_tokens", "max_completion_tokens"]),
        time_ns: row_time(keys, object)?,
        finish: object.get("finish_reason").and_then(Value::as_str).map_or(Finish::Unknown, Finish::from_reason),
        id: id_of(object, &["request_id", "custom_id"]),
        ..Record::default()
    };
    emit.record(record, object.get("hash_ids"))
}

pub(super) fn id_of(object: &Object, names: &[&str]) -> Option<u64> {
    names.iter().find_map(|key| object.get(key)).and_then(Value::as_str).map(hashed)
}

/// The requests of a session come one after another; their tools' times are between them, so only the first has an
/// arrival of its own and the others take it.
pub(super) fn sub_requests(keys: &Keys, object: &Object, emit: &mut Emit<'_>) -> Checked<()> {
    let Some(requests) = object.get("sub_requests") else { return plain(keys, object, emit) };
    let bad = || InputError::new(requests.to_string(), "give a list of requests").key("sub_requests");
    let start = row_time(keys, object)?;
    for request in requests.as_array().ok_or_else(bad)? {
        let request = request.as_object().ok_or_else(bad)?;
        let tokens = |key: &str| tokens_of(request.get(key)).map_err(|error| error.key(key));
        let input = Some(tokens(keys.prompt[0])?);
        let output = Some(tokens(keys.output[0])?);
        emit.record(Record { input, output, time_ns: start, ..Record::default() }, None)?;
    }
    Ok(())
}

pub(super) fn conversation(_: &Keys, object: &Object, emit: &mut Emit<'_>) -> Checked<()> {
    let turns = object.get("conversations").or_else(|| object.get("conversation")).and_then(Value::as_array);
    let text = |turn: usize| {
        let turn = turns?.get(turn)?;
        turn.get("value").or_else(|| turn.get("content"))?.as_str()
    };
    let (Some(prompt), Some(answer)) = (text(0), text(1)) else {
        let remedy = "a conversation has a prompt and an answer";
        return Err(InputError::new("fewer than 2 turns", remedy).key("conversations"));
    };
    let record = Record {
        input: Some(emit.tokens(prompt)),
        output: Some(emit.tokens(answer)),
        empty_answer: Some(answer.trim().is_empty()),
        id: id_of(object, &["id"]),
        ..Record::default()
    };
    emit.record(record, None)
}

/// `max_tokens` is a cap, not a length: there is no output.
pub(super) fn chat_request(_: &Keys, object: &Object, emit: &mut Emit<'_>) -> Checked<()> {
    let input = object.get("messages").map(|messages| emit.tokens(&batch::message_text(messages)));
    let cap = token_value(object, "max_completion_tokens").or_else(|_| token_value(object, "max_tokens")).ok();
    emit.record(Record { input, cap, ..Record::default() }, None)
}

pub(super) fn prompt_only(_: &Keys, object: &Object, emit: &mut Emit<'_>) -> Checked<()> {
    let input = object.get("prompt").and_then(Value::as_str).map(|text| emit.tokens(text));
    let output = object.contains_key("output_tokens").then(|| token_value(object, "output_tokens")).transpose()?;
    emit.record(Record { input, output, ..Record::default() }, None)
}

fn row_time(keys: &Keys, object: &Object) -> Checked<Option<i64>> {
    let found = keys.time.iter().find_map(|(key, ns_per_unit)| Some((*key, ns_per_unit, object.get(key)?)));
    let Some((key, ns_per_unit, value)) = found else { return Ok(None) };
    let time = value.as_f64().ok_or_else(|| InputError::new(value.to_string(), "give a number").key(key))?;
    let ns = match ns_per_unit {
        Some(ns_per_unit) => time_ns(time, *ns_per_unit),
        None => guessed_time_ns(time),
    };
    ns.map(Some).map_err(|error| error.key(key))
}

fn token_value(object: &Object, key: &str) -> Checked<u32> {
    tokens_of(object.get(key)).map_err(|error| error.key(key))
}

pub(super) fn tokens_of(value: Option<&Value>) -> Checked<u32> {
    match value {
        Some(Value::Number(number)) => whole_tokens(number.as_f64().unwrap_or(f64::NAN)),
        Some(Value::String(text)) => parse_tokens(text),
        Some(other) => Err(InputError::new(other.to_string(), "give a whole number of tokens")),
        None => Err(InputError::new("missing", "every row needs it")),
    }
}

pub(super) fn column<R: BufRead>(
    lines: &mut Lines<'_, R>,
    column: &str,
    take: &mut dyn FnMut(Checked<f64>) -> Result<()>,
) -> Result<()> {
    let mut known = false;
    while let Some(line) = next_filled(lines)? {
        let object = serde_json::from_slice::<Object>(line).map_err(|error| syntax(&error, lines.number));
        if let Some(object) = object.as_ref().ok().filter(|object| !known && !object.contains_key(column)) {
            return Err(super::no_column(column, object.keys()).line(lines.number).into());
        }
        known = true;
        let value = object.and_then(|object| token_value(&object, column)).and_then(super::length);
        take(value.map_err(|error| if error.line.is_none() { error.key(column).line(lines.number) } else { error }))?;
    }
    Ok(())
}

/// The next line that is not blank.
fn next_filled<'l, R: BufRead>(lines: &'l mut Lines<'_, R>) -> Result<Option<&'l [u8]>> {
    loop {
        match lines.next_line()? {
            None => return Ok(None),
            Some(line) if line.iter().all(u8::is_ascii_whitespace) => {}
            Some(_) => return Ok(Some(lines.current())),
        }
    }
}
