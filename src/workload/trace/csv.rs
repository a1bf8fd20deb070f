//! Traces and tables with a header line.

use std::io::BufRead;

use super::{Checked, Lines, RawRows, TraceFormat, TraceOptions, parse_tokens, time_ns};
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
        time: &["arrival_s", "submit_s", "queued_s"],
        wall_clock: false,
        prompt: &["prompt_tokens", "input_tokens", "prompt_length", "input_length", "input_len"],
        output: &["output_tokens", "completion_tokens", "output_length", "output_len"],
    },
];

/// A table read record by record, with the exact line of each.
struct Table<'l, 'p, R> {
    lines: &'l mut Lines<'p, R>,
    parser: csv_core::Reader,
    fields: Vec<u8>,
    ends: Vec<usize>,
    count: usize,
    /// First line of the current record.
    line: u64,
}

impl<'l, 'p, R: BufRead> Table<'l, 'p, R> {
    fn new(lines: &'l mut Lines<'p, R>) -> Self {
        let (fields, ends) = (vec![0; 1024], vec![0; 64]);
        Table { lines, parser: csv_core::Reader::new(), fields, ends, count: 0, line: 0 }
    }

    /// Moves to the next record that is not blank.
    fn advance(&mut self) -> Result<bool> {
        let (mut written, mut ended) = (0, 0);
        let mut inside = false;
        loop {
            let number = self.lines.number + 1;
            let Some(line) = self.lines.next_line()? else {
                if inside {
                    let remedy = "close the quote that this record opens";
                    return Err(InputError::new("unfinished quoted field", remedy).line(self.line).into());
                }
                return Ok(false);
            };
            if !inside && line.iter().all(u8::is_ascii_whitespace) {
                continue;
            }
            let mut rest = line;
            let mut end_fed = false;
            if !inside {
                self.line = number;
                inside = true;
            }
            loop {
                let input = if rest.is_empty() { b"\n".as_slice() } else { rest };
                let feeding_end = rest.is_empty();
                let (state, read, wrote, ends) =
                    self.parser.read_record(input, &mut self.fields[written..], &mut self.ends[ended..]);
                written += wrote;
                ended += ends;
                match state {
                    csv_core::ReadRecordResult::OutputFull => self.fields.resize(self.fields.len() * 2, 0),
                    csv_core::ReadRecordResult::OutputEndsFull => self.ends.resize(self.ends.len() * 2, 0),
                    csv_core::ReadRecordResult::Record => {
                        self.count = ended;
                        return Ok(true);
                    }
                    csv_core::ReadRecordResult::InputEmpty | csv_core::ReadRecordResult::End => {
                        end_fed |= feeding_end;
                    }
                }
                if !feeding_end {
                    rest = &rest[read..];
                } else if end_fed {
                    // A line end inside quotes: the record goes on.
                    break;
                }
            }
        }
    }

    /// Field `place` of the current record.
    fn field(&self, place: usize) -> Option<&str> {
        let start = if place == 0 { 0 } else { self.ends[place - 1] };
        (place < self.count).then(|| std::str::from_utf8(&self.fields[start..self.ends[place]]).unwrap_or("\u{fffd}"))
    }

    fn header(&mut self) -> Result<Vec<String>> {
        if !self.advance()? {
            return Err(InputError::new("an empty file", "give a header line and one row per request").into());
        }
        Ok((0..self.count).filter_map(|place| self.field(place)).map(|name| name.trim().to_owned()).collect())
    }

    /// Field `place` of the current record, parsed; errors get line and column name.
    fn parse<T>(&self, place: usize, names: &[String], parse: impl Fn(&str) -> Checked<T>) -> Checked<T> {
        let value = match self.field(place) {
            Some(text) => parse(text),
            None => {
                let found = format!("a row of {} fields", self.count);
                Err(InputError::new(found, format!("give every row the {} fields of the header", names.len())))
            }
        };
        value.map_err(|error| error.key(names[place].clone()).line(self.line))
    }
}

pub(super) fn read<R: BufRead>(lines: &mut Lines<'_, R>, options: TraceOptions) -> Result<RawRows> {
    let mut table = Table::new(lines);
    let names = table.header()?;
    let find = |known: &[&str]| known.iter().find_map(|name| names.iter().position(|it| it.eq_ignore_ascii_case(name)));
    let recognised = FORMATS.iter().find_map(|columns| Some((columns, find(columns.prompt)?, find(columns.output)?)));
    let Some((columns, prompt, output)) = recognised else { return Err(unknown_columns(&names, table.line).into()) };
    let time = find(columns.time);
    let format = match (columns.format, time) {
        (TraceFormat::Recording, None) => TraceFormat::Lengths,
        (format, _) => format,
    };
    let mut rows = RawRows::new(format, time.is_some(), options);
    while table.advance()? {
        let prompt_tokens = table.parse(prompt, &names, parse_tokens)?;
        let output_tokens = table.parse(output, &names, parse_tokens)?;
        let time_ns = match time {
            None => 0,
            Some(place) if columns.wall_clock => table.parse(place, &names, wall_clock_ns)?,
            Some(place) => table.parse(place, &names, seconds_ns)?,
        };
        rows.push(prompt_tokens, output_tokens, time_ns, [&names[prompt], &names[output]])
            .map_err(|error| error.line(table.line))?;
    }
    Ok(rows)
}

pub(super) fn column<R: BufRead>(lines: &mut Lines<'_, R>, column: &str) -> Result<Vec<f64>> {
    let mut table = Table::new(lines);
    let names = table.header()?;
    let Some(place) = names.iter().position(|name| name == column) else {
        return Err(super::no_column(column, names.iter().map(String::as_str)).line(table.line).into());
    };
    let mut values = Vec::new();
    while table.advance()? {
        values.push(table.parse(place, &names, |text| super::length(parse_tokens(text)?))?);
    }
    Ok(values)
}

fn unknown_columns(names: &[String], line: u64) -> InputError {
    let looked_for: Vec<String> = FORMATS
        .iter()
        .map(|columns| format!("{} with {}", columns.prompt.join(" or "), columns.output.join(" or ")))
        .collect();
    let mut remedy = format!("looked for {}", looked_for.join("; "));
    let known = FORMATS.iter().flat_map(|columns| columns.prompt.iter().chain(columns.output)).copied();
    // A known name that is nearly there is the likeliest slip.
    let slip = names.iter().find_map(|name| {
        let near = nearest(name, known.clone())?;
        (!names.iter().any(|other| other.eq_ignore_ascii_case(near))).then_some((name, near))
    });
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
