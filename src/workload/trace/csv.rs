//! Traces and tables with a header line.

use std::io::BufRead;

use super::record::{Finish, Record, RecordSink, hashed};
use super::table::Table;
use super::{Checked, Lines, TraceFormat, guessed_time_ns, parse_tokens, time_ns};
use crate::error::{InputError, Result, nearest};

/// What the columns of a format are called; names earlier in a list win.
struct Columns {
    format: TraceFormat,
    time: &'static [&'static str],
    /// Wall clock rather than seconds.
    wall_clock: bool,
    prompt: &'static [&'static str],
    output: &'static [&'static str],
}

/// In order of precedence: the first format whose length columns are all there is it.
const FORMATS: [Columns; 5] = [
    Columns {
        format: TraceFormat::Azure,
        time: &["TIMESTAMP"],
        wall_clock: true,
        prompt: &["ContextTokens"],
        output: &["GeneratedTokens"],
    },
    Columns {
        format: TraceFormat::BurstGpt,
        time: &["Timestamp"],
        wall_clock: false,
        prompt: &["Request tokens"],
        output: &["Response tokens"],
    },
    Columns {
        format: TraceFormat::Vidur,
        time: &["arrived_at"],
        wall_clock: false,
        prompt: &["num_prefill_tokens"],
        output: &["num_decode_tokens"],
    },
    Columns {
        format: TraceFormat::Splitwise,
        time: &["arrival_timestamp"],
        wall_clock: false,
        prompt: &["prompt_size"],
        output: &["token_size"],
    },
    Columns {
        format: TraceFormat::Recording,
        time: &["arrival_s", "submit_s", "queued_s", "timestamp", "arrival_time", "time", "created"],
        wall_clock: false,
        prompt: &[
            "prompt_tokens",
            "input_tokens",
            "prompt_length",
            "input_length",
            "input_len",
            "prompt_len",
            "num_prompt_tokens",
            "request_tokens",
            "context_tokens",
            "input_toks",
        ],
        output: &[
            "output_tokens",
            "completion_tokens",
            "output_length",
            "output_len",
            "response_tokens",
            "response_length",
            "generated_tokens",
            "num_output_tokens",
            "completion_length",
            "output_toks",
        ],
    },
];

/// Names of lengths alone; see [`bare`].
const BARE: [&str; 6] = ["tokens", "n_tokens", "num_tokens", "token_count", "length", "lengths"];

/// Columns that any format may have beside its own.
struct Extras {
    thinking: Option<usize>,
    answer: Option<usize>,
    total: Option<usize>,
    cap: Option<usize>,
    finish: Option<usize>,
    id: Option<usize>,
    asked_to_think: Option<usize>,
}

impl Extras {
    fn of(find: impl Fn(&[&str]) -> Option<usize>) -> Extras {
        Extras {
            thinking: find(&["thinking_length", "thinking_tokens", "reasoning_tokens", "reason_tokens"]),
            answer: find(&["answer_length", "answer_tokens"]),
            total: find(&["Total tokens", "num_total_tokens", "total_tokens"]),
            cap: find(&["max_tokens", "max_completion_tokens", "max_new_tokens"]),
            finish: find(&["finish_reason", "stop_reason", "finish", "status"]),
            id: find(&["custom_id", "request_id", "id"]),
            asked_to_think: find(&["thinking"]),
        }
    }

    /// What the current row says; an extra cell that is empty or odd says nothing.
    fn read<R: BufRead>(&self, table: &Table<'_, '_, R>, record: &mut Record) {
        let tokens = |place: Option<usize>| parse_tokens(table.field(place?)?).ok();
        record.thinking = tokens(self.thinking);
        record.answer = tokens(self.answer);
        record.total = tokens(self.total);
        record.cap = tokens(self.cap);
        record.empty_answer = record.answer.map(|answer| answer == 0);
        record.asked_to_think = match tokens(self.asked_to_think) {
            Some(0) => Some(false),
            Some(1) => Some(true),
            _ => None,
        };
        if let Some(reason) = self.finish.and_then(|place| table.field(place)) {
            record.finish = Finish::from_reason(reason);
        }
        record.id = self.id.and_then(|place| table.field(place)).filter(|id| !id.is_empty()).map(hashed);
    }
}

pub(super) fn read<R: BufRead>(lines: &mut Lines<'_, R>, sink: &mut dyn RecordSink) -> Result<()> {
    let mut table = Table::new(lines);
    let names = table.header()?;
    let find = |known: &[&str]| known.iter().find_map(|name| names.iter().position(|it| it.eq_ignore_ascii_case(name)));
    let recognised =
        FORMATS.iter().find_map(|columns| Some((columns, Some(find(columns.prompt)?), find(columns.output)?)));
    // Outputs alone are enough for a law of lengths.
    let recognised = recognised.or_else(|| {
        let recording = &FORMATS[FORMATS.len() - 1];
        Some((recording, None, find(recording.output).or_else(|| bare(&names))?))
    });
    let Some((columns, prompt, output)) = recognised else { return Err(unknown_columns(&names, table.line).into()) };
    if prompt.is_none() && names.iter().any(|name| is_slip(name, &names).is_some()) {
        return Err(unknown_columns(&names, table.line).into());
    }
    let time = find(columns.time);
    let format = match (columns.format, time) {
        (TraceFormat::Recording, None) => TraceFormat::Lengths,
        (format, _) => format,
    };
    let prompt_name = prompt.map_or("prompt_tokens", |place| &names[place]);
    sink.start(format, time.is_some(), [prompt_name, &names[output]]);
    let extras = Extras::of(find);
    let time_of = match columns.format {
        TraceFormat::Recording => time.map_or(seconds_ns as fn(&str) -> Checked<i64>, |place| {
            if names[place].ends_with("_s") { seconds_ns } else { clock_or_number_ns }
        }),
        _ if columns.wall_clock => wall_clock_ns,
        _ => seconds_ns,
    };
    let header = table.line;
    while table.advance()? {
        let row = |table: &Table<'_, '_, R>| -> Checked<Record> {
            let mut record = Record { line: table.line, ..Record::default() };
            record.input = prompt.map(|place| table.parse(place, &names, parse_tokens)).transpose()?;
            record.output = Some(table.parse(output, &names, parse_tokens)?);
            record.time_ns = time.map(|place| table.parse(place, &names, time_of)).transpose()?;
            extras.read(table, &mut record);
            Ok(record)
        };
        if let Err(error) = row(&table).and_then(|record| sink.record(&record, None)) {
            sink.refused(error.line(table.line))?;
        }
    }
    // Blank lines move nothing.
    if table.line == header {
        return Err(no_rows(header).into());
    }
    Ok(())
}

fn no_rows(header: u64) -> InputError {
    InputError::new("a header and no rows", "give one row per request below it").line(header)
}

/// The column of lengths that does not say whose they are: it is the output where no other column counts tokens.
fn bare(names: &[String]) -> Option<usize> {
    let counts = |name: &str| ["tok", "len", "prompt"].iter().any(|part| name.contains(part));
    let lower: Vec<String> = names.iter().map(|name| name.to_lowercase()).collect();
    let place = lower.iter().position(|name| BARE.contains(&name.as_str()))?;
    (lower.iter().filter(|name| counts(name)).count() == 1).then_some(place)
}

/// A number in a unit that its size tells, or a date and time.
fn clock_or_number_ns(text: &str) -> Checked<i64> {
    match text.trim().parse() {
        Ok(number) => guessed_time_ns(number),
        Err(_) => wall_clock_ns(text),
    }
}

/// The known column that `name` may be a slip of, when no column has it.
fn is_slip(name: &str, names: &[String]) -> Option<&'static str> {
    let known = FORMATS.iter().flat_map(|columns| columns.prompt.iter().chain(columns.output)).copied();
    if known.clone().any(|known| known.eq_ignore_ascii_case(name)) {
        return None;
    }
    let near = nearest(name, known)?;
    // Nearer than other columns of real files are to each other, such as answer_length to output_length.
    let close = strsim::normalized_damerau_levenshtein(name, near) > 0.85;
    (close && !names.iter().any(|other| other.eq_ignore_ascii_case(near))).then_some(near)
}

pub(super) fn column<R: BufRead>(
    lines: &mut Lines<'_, R>,
    column: &str,
    take: &mut dyn FnMut(Checked<f64>) -> Result<()>,
) -> Result<()> {
    let mut table = Table::new(lines);
    let names = table.header()?;
    let Some(place) = names.iter().position(|name| name == column) else {
        return Err(super::no_column(column, names.iter().map(String::as_str)).line(table.line).into());
    };
    let header = table.line;
    while table.advance()? {
        take(table.parse(place, &names, |text| super::length(parse_tokens(text)?)))?;
    }
    if table.line == header {
        return Err(no_rows(header).into());
    }
    Ok(())
}

fn unknown_columns(names: &[String], line: u64) -> InputError {
    if names.iter().any(|name| name.to_lowercase().contains("concurrency")) {
        let remedy = "use it as benchmark.table = \"…\"";
        return InputError::new("this is a table of throughput against concurrency, not a trace", remedy).line(line);
    }
    if names.iter().any(|name| name.contains("#running-req") || name.contains("Avg prompt throughput")) {
        let remedy = "`makespan inspect` reads it";
        return InputError::new("this is an engine log, not a trace", remedy).line(line);
    }
    let looked_for: Vec<String> = FORMATS
        .iter()
        .map(|columns| format!("{} with {}", columns.prompt.join(" or "), columns.output.join(" or ")))
        .collect();
    let mut remedy = format!("looked for {}", looked_for.join("; "));
    // A known name that is nearly there is the likeliest slip.
    let slip = names.iter().find_map(|name| Some((name, is_slip(name, names)?)));
    if let Some((name, near)) = slip {
        remedy = format!("is {name} meant to be {near}? {remedy}");
    }
    InputError::new(format!("no known token columns among {}", names.join(", ")), remedy).line(line)
}

fn seconds_ns(text: &str) -> Checked<i64> {
    let remedy = "give a time in seconds";
    let seconds: f64 = text.trim().parse().map_err(|_| InputError::new(format!("\"{text}\""), remedy))?;
    time_ns(seconds, 1e9)
}

/// `2023-11-16 18:15:46.6805900`, with or without a zone; without one, UTC.
fn wall_clock_ns(text: &str) -> Checked<i64> {
    let text = text.trim();
    let zoned = text.parse::<jiff::Timestamp>();
    let instant = zoned.or_else(|_| jiff::tz::Offset::UTC.to_timestamp(text.parse::<jiff::civil::DateTime>()?));
    let ns = instant.ok().and_then(|instant| i64::try_from(instant.as_nanosecond()).ok());
    ns.filter(|ns| ns.abs() < 4_600_000_000_000_000_000).ok_or_else(|| {
        InputError::new(format!("\"{text}\""), "give a date and time, such as 2023-11-16 18:15:46.6805900")
    })
}
