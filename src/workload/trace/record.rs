//! One request as a file states it, before anything is refused, and what takes it.

use std::hash::{DefaultHasher, Hash, Hasher};

use serde_json::Value;

use super::{Checked, TraceFormat};
use crate::error::{InputError, Result};

/// What is said of a request that failed.
pub(crate) const NO_LENGTH: &str = "a failed request has no length";

/// How a request ended.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Finish {
    /// The file does not say.
    #[default]
    Unknown,
    /// The model stopped by itself.
    Complete,
    /// A limit cut the output: the true length is at least the recorded one.
    Cut,
    /// Not finished: the length so far.
    Running,
    /// An error ended it: no length.
    Failed,
}

impl Finish {
    /// The meaning of a finish reason, as engines and batch services write it.
    pub fn from_reason(reason: &str) -> Finish {
        match reason.trim().to_ascii_lowercase().as_str() {
            "length" | "max_tokens" | "incomplete" | "truncated" | "model_context_window_exceeded" => Finish::Cut,
            "stop" | "end_turn" | "stop_sequence" | "completed" | "eos" | "tool_calls" | "tool_use" => Finish::Complete,
            "running" | "in_progress" | "unfinished" => Finish::Running,
            _ => Finish::Unknown,
        }
    }
}

/// One request as recorded. Lengths in tokens; what the file does not state is absent.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Record {
    /// Line in the file, from 1.
    pub line: u64,
    /// Hash of the request's id.
    pub id: Option<u64>,
    /// Prompt.
    pub input: Option<u32>,
    /// Everything generated: thinking and answer.
    pub output: Option<u32>,
    /// Thinking part of the output.
    pub thinking: Option<u32>,
    /// Answer part of the output.
    pub answer: Option<u32>,
    /// Input and output together, as the file adds them.
    pub total: Option<u32>,
    /// The cap that the request asked for.
    pub cap: Option<u32>,
    /// Nanoseconds on the clock of the source.
    pub time_ns: Option<i64>,
    /// How it ended.
    pub finish: Finish,
    /// Whether the answer's text is empty, where there is one.
    pub empty_answer: Option<bool>,
    /// Characters of the output's text, where there is one.
    pub characters: Option<u32>,
    /// The file says that thinking was switched on.
    pub asked_to_think: Option<bool>,
}

/// Takes the records of a file, one by one.
pub trait RecordSink {
    /// Called once, before any record. `names` are those of the prompt and output columns.
    fn start(&mut self, format: TraceFormat, timed: bool, names: [&str; 2]);

    /// Takes a record; `prefix` is its list of block ids.
    ///
    /// # Errors
    /// When the record cannot be used; it then goes to [`RecordSink::refused`].
    fn record(&mut self, record: &Record, prefix: Option<&Value>) -> Checked<()>;

    /// Takes the reason why a row was not used.
    ///
    /// # Errors
    /// To end the reading.
    fn refused(&mut self, error: InputError) -> Result<()>;
}

/// A number that stands for an id.
pub(super) fn hashed(id: &str) -> u64 {
    let mut hasher = DefaultHasher::new();
    id.hash(&mut hasher);
    hasher.finish()
}
