//! Request traces: lengths, arrival times and shared prefixes of recorded requests.
//!
//! Columns and keys are matched by name, never by place; unknown ones are ignored. Files may be gzip or zstd.

mod batch;
mod csv;
mod json_formats;
mod jsonl;
mod lines;
mod object;
mod record;
mod table;
#[cfg(test)]
mod tests;
mod texts;

use std::fmt;
use std::io::BufRead;
use std::path::Path;

use serde_json::Value;

use crate::error::{Error, InputError, Result, nearest};

use lines::Lines;
pub use record::{Finish, Record, RecordSink};
pub use texts::{CHARACTERS_PER_TOKEN, TextTokens};

/// A result whose error still lacks its file.
type Checked<T> = std::result::Result<T, InputError>;

/// Which known format a trace was recognised as.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TraceFormat {
    /// Azure LLM inference traces, 2023 and later.
    Azure,
    /// BurstGPT.
    BurstGpt,
    /// Vidur's request traces.
    Vidur,
    /// The Splitwise simulator's traces.
    Splitwise,
    /// A table with an arrival time and token columns, such as a recorded run.
    Recording,
    /// A table of lengths alone.
    Lengths,
    /// Mooncake JSON lines: prefix blocks of 512 tokens.
    Mooncake,
    /// Qwen-Bailian JSON lines: prefix blocks of 16 tokens.
    QwenBailian,
    /// LLMServingSim JSON lines, made or recorded; sessions become their sub-requests.
    LlmServingSim,
    /// AIPerf's extension of Mooncake's lines: sessions, delays, texts.
    AiperfTrace,
    /// AIPerf's profile export, a line per measured request.
    AiperfExport,
    /// Output of an OpenAI batch: chat, completions or responses endpoint.
    OpenAiBatch,
    /// Input of an OpenAI batch: prompts as text, and caps.
    OpenAiBatchInput,
    /// Output of an Anthropic batch.
    AnthropicBatch,
    /// Result of vllm bench serve or sglang bench_serving with the lengths of each request.
    BenchResult,
    /// ShareGPT and SGLang's `custom`: conversations as text.
    Conversations,
    /// SGLang's `openai`: messages as text, and caps.
    ChatRequests,
    /// vLLM's `custom`: prompts as text.
    Prompts,
}

impl fmt::Display for TraceFormat {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            TraceFormat::Azure => "Azure",
            TraceFormat::BurstGpt => "BurstGPT",
            TraceFormat::Vidur => "Vidur",
            TraceFormat::Splitwise => "Splitwise",
            TraceFormat::Recording => "recording",
            TraceFormat::Lengths => "lengths",
            TraceFormat::Mooncake => "Mooncake",
            TraceFormat::QwenBailian => "Qwen-Bailian",
            TraceFormat::LlmServingSim => "LLMServingSim",
            TraceFormat::AiperfTrace => "AIPerf trace",
            TraceFormat::AiperfExport => "AIPerf profile export",
            TraceFormat::OpenAiBatch => "OpenAI batch output",
            TraceFormat::OpenAiBatchInput => "OpenAI batch input",
            TraceFormat::AnthropicBatch => "Anthropic batch output",
            TraceFormat::BenchResult => "benchmark result with lengths",
            TraceFormat::Conversations => "conversations",
            TraceFormat::ChatRequests => "chat requests",
            TraceFormat::Prompts => "prompts",
        })
    }
}

impl TraceFormat {
    /// Tokens in a block of `hash_ids`; the formats without one have no prefix blocks.
    fn block_tokens(self) -> Option<u32> {
        match self {
            TraceFormat::Mooncake | TraceFormat::AiperfTrace => Some(512),
            TraceFormat::QwenBailian => Some(16),
            _ => None,
        }
    }

    /// Whether some lengths are those of texts, counted or estimated by [`TextTokens`].
    pub fn has_text(self) -> bool {
        use TraceFormat::{AiperfTrace, ChatRequests, Conversations, OpenAiBatchInput, Prompts};
        matches!(self, AiperfTrace | ChatRequests | Conversations | OpenAiBatchInput | Prompts)
    }
}

/// One recorded request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TraceRow {
    /// Prompt length, tokens, at least 1.
    pub prompt_tokens: u32,
    /// Output length, tokens, at least 1.
    pub output_tokens: u32,
    /// Nanoseconds since the earliest arrival of the trace; 0 when the trace has no times.
    pub arrival_ns: u64,
}

/// Ids of the prefix blocks of each row's prompt: equal ids are equal tokens.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PrefixBlocks {
    /// Tokens in a block; the last block of a prompt may hold fewer.
    pub block_tokens: u32,
    ids: Vec<u64>,
    /// End of each row's ids.
    ends: Vec<usize>,
}

impl PrefixBlocks {
    /// Block ids of row `row`, from the start of the prompt; empty where the trace gives none.
    pub fn of_row(&self, row: usize) -> &[u64] {
        let Some(end) = self.ends.get(row) else { return &[] };
        let start = if row == 0 { 0 } else { self.ends[row - 1] };
        &self.ids[start..*end]
    }
}

/// What to do with odd rows, and with texts.
#[derive(Clone, Debug, Default)]
pub struct TraceOptions {
    /// Leave out rows whose prompt or output is 0 tokens (failures in BurstGPT) instead of refusing the trace.
    pub skip_empty: bool,
    /// Leave out rows that cannot be requests, and count them, instead of refusing the trace.
    pub skip_faulty: bool,
    /// How texts become numbers of tokens.
    pub texts: TextTokens,
}

/// Rows that were left out because they cannot be used.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LeftOut {
    /// How many.
    pub rows: u64,
    /// What was wrong with the first.
    pub first: Option<String>,
}

impl LeftOut {
    fn add(&mut self, error: &InputError) {
        self.rows += 1;
        self.first.get_or_insert_with(|| error.to_string());
    }
}

/// A trace, in order of arrival.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Trace {
    /// The format it was read as.
    pub format: TraceFormat,
    /// The requests. Rows of equal time keep the order of the file.
    pub rows: Vec<TraceRow>,
    /// Whether the trace has arrival times.
    pub timed: bool,
    /// Prefix blocks, where the format has them.
    pub prefix_blocks: Option<PrefixBlocks>,
    /// Rows left out by [`TraceOptions::skip_empty`].
    pub skipped: u64,
    /// Rows left out by [`TraceOptions::skip_faulty`].
    pub left_out: LeftOut,
    /// Rows that stood after a later arrival in the file and were moved.
    pub moved: u64,
}

impl Trace {
    /// Reads the trace at `path`.
    ///
    /// # Errors
    ///
    /// An unreadable file, an unknown format, a bad row (with line and column), or no rows.
    pub fn read(path: &Path, options: TraceOptions) -> Result<Trace> {
        Trace::from_reader(crate::files::open(path)?, path, options)
    }

    /// Reads a trace from `reader`; `path` is its name for errors.
    ///
    /// # Errors
    ///
    /// As [`Trace::read`].
    pub fn from_reader(reader: impl BufRead, path: &Path, options: TraceOptions) -> Result<Trace> {
        let mut rows = RawRows::new(&options);
        read_records(reader, path, &options.texts, &mut rows)?;
        rows.into_trace().map_err(|error| in_file(error, path))
    }
}

/// Reads the records of `reader`, whatever their format, into `sink`; `path` is the name for errors. Texts are counted by
/// `texts`.
///
/// # Errors
///
/// An unreadable file, an unknown format, and what the sink refuses to go on from.
pub fn read_records(reader: impl BufRead, path: &Path, texts: &TextTokens, sink: &mut dyn RecordSink) -> Result<()> {
    let mut lines = Lines::new(reader, path);
    let json = lines.starts_json()?;
    let read = if json { jsonl::read(&mut lines, texts, sink) } else { csv::read(&mut lines, sink) };
    read.map_err(|error| in_file(error, path))
}

/// The lengths in `column` (or JSON key) of the file at `path`, tokens, at least 1 each; rows without one are left out and
/// counted where `skip_faulty` is set.
///
/// # Errors
///
/// An unreadable file, a column that is not there (with those that are), a bad value (with its line), or no rows.
pub fn read_lengths(path: &Path, column: &str, skip_faulty: bool) -> Result<(Vec<f64>, LeftOut)> {
    let mut lines = Lines::new(crate::files::open(path)?, path);
    let mut left_out = LeftOut::default();
    let mut values = Vec::new();
    let mut take = |value: Checked<f64>| match value {
        Ok(value) => {
            values.push(value);
            Ok(())
        }
        Err(error) if skip_faulty => {
            left_out.add(&error);
            Ok(())
        }
        Err(error) => Err(error.into()),
    };
    let read = if lines.starts_json()? {
        jsonl::column(&mut lines, column, &mut take)
    } else {
        csv::column(&mut lines, column, &mut take)
    };
    read.map_err(|error| in_file(error, path))?;
    if let (true, Some(first)) = (values.is_empty(), &left_out.first) {
        let found = format!("no row with a length; the first: {first}");
        return Err(in_file(InputError::new(found, "give at least one").into(), path));
    }
    Ok((values, left_out))
}

fn in_file(error: Error, path: &Path) -> Error {
    match error {
        Error::Input(error) => Error::Input(error.file(path.display().to_string())),
        other => other,
    }
}

/// Rows of a trace: a row that cannot be a request ends the reading.
struct RawRows {
    format: TraceFormat,
    timed: bool,
    skip_empty: bool,
    skip_faulty: bool,
    skipped: u64,
    left_out: LeftOut,
    rows: Vec<RawRow>,
    prefix_blocks: Option<PrefixBlocks>,
    names: [String; 2],
}

struct RawRow {
    prompt_tokens: u32,
    output_tokens: u32,
    /// Nanoseconds on the clock of the source.
    time_ns: i64,
}

impl RawRows {
    fn new(options: &TraceOptions) -> Self {
        RawRows {
            format: TraceFormat::Lengths,
            timed: false,
            skip_empty: options.skip_empty,
            skip_faulty: options.skip_faulty,
            skipped: 0,
            left_out: LeftOut::default(),
            rows: Vec::new(),
            prefix_blocks: None,
            names: Default::default(),
        }
    }
}

impl RecordSink for RawRows {
    fn start(&mut self, format: TraceFormat, timed: bool, names: [&str; 2]) {
        (self.format, self.timed) = (format, timed);
        self.names = names.map(str::to_owned);
    }

    fn record(&mut self, record: &Record, prefix: Option<&Value>) -> Checked<()> {
        let [prompt_name, output_name] = &self.names;
        let mut found = [0; 2];
        for ((place, tokens), name) in
            found.iter_mut().zip([record.input, record.output]).zip([prompt_name, output_name])
        {
            match tokens {
                Some(0) if self.skip_empty => {
                    self.skipped += 1;
                    return Ok(());
                }
                Some(0) => {
                    let remedy = "every request has at least 1 token; skip_empty leaves such rows out";
                    return Err(InputError::new("0 tokens", remedy).key(name));
                }
                Some(tokens) => *place = tokens,
                None => return Err(InputError::new("missing", "every row needs it").key(name)),
            }
        }
        let time_ns = match (self.timed, record.time_ns) {
            (true, None) => return Err(InputError::new("no time", "the first row has a time, so every row needs one")),
            (_, time) => time.unwrap_or(0),
        };
        self.rows.push(RawRow { prompt_tokens: found[0], output_tokens: found[1], time_ns });
        // A trace has prefix blocks when its first request has them.
        if self.rows.len() == 1 && prefix.is_some() {
            self.prefix_blocks =
                self.format.block_tokens().map(|block_tokens| PrefixBlocks { block_tokens, ..PrefixBlocks::default() });
        }
        if let Some(blocks) = &mut self.prefix_blocks {
            if let Some(ids) = prefix {
                let bad = |found: String| InputError::new(found, "give a list of whole numbers").key("hash_ids");
                for id in ids.as_array().ok_or_else(|| bad(ids.to_string()))? {
                    blocks.ids.push(id.as_u64().ok_or_else(|| bad(id.to_string()))?);
                }
            }
            blocks.ends.push(blocks.ids.len());
        }
        Ok(())
    }

    fn refused(&mut self, error: InputError) -> Result<()> {
        // A failed line of a batch output is an empty row too.
        if self.skip_empty && error.remedy == record::NO_LENGTH {
            self.skipped += 1;
            return Ok(());
        }
        if self.skip_faulty {
            self.left_out.add(&error);
            return Ok(());
        }
        Err(error.into())
    }
}

impl RawRows {
    fn into_trace(self) -> Result<Trace> {
        let Some(start_ns) = self.rows.iter().map(|row| row.time_ns).min() else {
            let faults =
                self.left_out.first.map(|first| format!(", of {} rows, the first: {first}", self.left_out.rows));
            let found = format!("no requests{}", faults.unwrap_or_default());
            return Err(InputError::new(found, "give a trace with at least one row").into());
        };
        let mut order: Vec<usize> = (0..self.rows.len()).collect();
        let mut latest = i64::MIN;
        let mut moved = 0;
        for row in &self.rows {
            moved += u64::from(row.time_ns < latest);
            latest = latest.max(row.time_ns);
        }
        order.sort_by_key(|place| self.rows[*place].time_ns);
        let rows = order.iter().map(|place| {
            let row = &self.rows[*place];
            TraceRow {
                prompt_tokens: row.prompt_tokens,
                output_tokens: row.output_tokens,
                arrival_ns: row.time_ns.abs_diff(start_ns),
            }
        });
        let rows = rows.collect();
        let prefix_blocks = self.prefix_blocks.map(|blocks| {
            if moved == 0 {
                return blocks;
            }
            let mut ordered = PrefixBlocks { block_tokens: blocks.block_tokens, ..PrefixBlocks::default() };
            for place in &order {
                ordered.ids.extend_from_slice(blocks.of_row(*place));
                ordered.ends.push(ordered.ids.len());
            }
            ordered
        });
        let RawRows { format, timed, skipped, left_out, .. } = self;
        Ok(Trace { format, rows, timed, prefix_blocks, skipped, left_out, moved })
    }
}

/// A token count: a whole number, also as `1e3` or `12.0`.
fn parse_tokens(text: &str) -> Checked<u32> {
    let text = text.trim();
    if let Ok(tokens) = text.parse::<u32>() {
        return Ok(tokens);
    }
    match text.parse::<f64>() {
        Ok(tokens) => whole_tokens(tokens),
        Err(_) if text.is_empty() => Err(InputError::new("empty", "give a whole number of tokens")),
        Err(_) => Err(InputError::new(format!("\"{text}\""), "give a whole number of tokens")),
    }
}

fn whole_tokens(tokens: f64) -> Checked<u32> {
    if tokens.fract() == 0.0 && (0.0..=f64::from(u32::MAX)).contains(&tokens) {
        return Ok(tokens as u32);
    }
    Err(InputError::new(format!("{tokens}"), "give a whole number of tokens between 0 and 4294967295"))
}

/// A time of `ns_per_unit`, as nanoseconds.
fn time_ns(time: f64, ns_per_unit: f64) -> Checked<i64> {
    let ns = (time * ns_per_unit).round();
    // Half the range of i64, so that differences fit.
    if ns.is_finite() && ns.abs() < 4.6e18 {
        return Ok(ns as i64);
    }
    Err(InputError::new(format!("{time}"), "give a finite time within 146 years of the clock's zero"))
}

/// A time stamp whose column does not name its unit, as nanoseconds: Unix times of the years 2001 to 2286 tell
/// seconds, milliseconds, microseconds and nanoseconds apart; smaller numbers are seconds.
fn guessed_time_ns(time: f64) -> Checked<i64> {
    let ns_per_unit = match time.abs() {
        1e18.. => 1.0,
        1e15.. => 1e3,
        1e12.. => 1e6,
        _ => 1e9,
    };
    time_ns(time, ns_per_unit)
}

/// A length for a law: at least 1 token.
fn length(tokens: u32) -> Checked<f64> {
    if tokens == 0 {
        return Err(InputError::new("0 tokens", "a length is at least 1 token"));
    }
    Ok(f64::from(tokens))
}

fn no_column<'a>(column: &str, names: impl Iterator<Item = &'a str>) -> InputError {
    let names: Vec<&str> = names.collect();
    let near = nearest(column, names.iter().copied()).map(|near| format!("did you mean {near}? ")).unwrap_or_default();
    InputError::new("no such column", format!("{near}the file has {}", names.join(", "))).key(column)
}
