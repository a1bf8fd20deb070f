//! One measured table: rows as read, each with its line, and the conversion between kinds of rate.

use serde::Serialize;

use super::about::About;
use super::columns::{Columns, Field};
use super::curve::Curve;
use super::import;
use super::separator::table_reader;
use crate::error::{InputError, nearest};

/// What a rate counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum RateKind {
    /// Generated tokens only.
    Output,
    /// Prompt and generated tokens.
    Total,
}

impl RateKind {
    /// The name in a table.
    pub fn name(self) -> &'static str {
        match self {
            RateKind::Output => "output",
            RateKind::Total => "total",
        }
    }
}

/// Lengths of a request, tokens; means where they vary. Rows of one shape form a curve.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Shape {
    /// Prompt tokens; in a decode window the context that each stream holds.
    pub input_tokens: Option<f64>,
    /// Generated tokens; unknown in a decode window.
    pub output_tokens: Option<f64>,
}

/// One measured point.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Row {
    /// Line in the file, from 1.
    pub line: u64,
    /// Requests the client keeps in flight, over all replicas.
    pub concurrency: u32,
    /// Tokens per second of the whole configuration, of the kind below.
    pub tok_per_s: f64,
    /// What that rate counts.
    pub kind: RateKind,
    /// Lengths of a request.
    pub shape: Shape,
    /// Requests sent at this point.
    pub num_requests: Option<u64>,
    /// Time to first token, ms, the client's queue included.
    pub ttft_ms: Option<f64>,
    /// Time per output token after the first, ms.
    pub tpot_ms: Option<f64>,
    /// Where the number was read.
    pub source: String,
}

/// One configuration that was measured.
#[derive(Clone, Debug)]
pub struct Table {
    /// File or built-in name.
    pub file: String,
    /// Points, in file order.
    pub rows: Vec<Row>,
    /// Columns that were not used, as written.
    pub unused_columns: Vec<String>,
    /// The description, where there is one.
    pub about: Option<About>,
    /// What the tool that wrote it recorded of the server.
    pub server: Server,
    /// Runs and files that were left out, with the reason.
    pub left_out: Vec<String>,
}

/// What a benchmark tool recorded of the server beside the rates.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Server {
    /// Tokens of one request and step, the bonus token included: mean over the runs that say.
    pub acceptance: Option<f64>,
    /// Most requests that one replica may run, as the server resolved it.
    pub running_cap: Option<u32>,
}

impl Table {
    /// Rows without anything beside them.
    pub fn of_rows(file: &str, rows: Vec<Row>) -> Table {
        Table {
            file: file.to_owned(),
            rows,
            unused_columns: Vec::new(),
            about: None,
            server: Server::default(),
            left_out: Vec::new(),
        }
    }

    /// The same table with its description.
    #[must_use]
    pub fn with_about(mut self, about: About) -> Table {
        self.about = Some(about);
        self
    }

    /// The rows by shape, shapes in file order, points by concurrency.
    pub fn curves(&self) -> Vec<Curve<'_>> {
        let mut groups: Vec<Vec<&Row>> = Vec::new();
        for row in &self.rows {
            match groups.iter_mut().find(|group| group[0].shape == row.shape) {
                Some(group) => group.push(row),
                None => groups.push(vec![row]),
            }
        }
        groups.into_iter().map(Curve::of).collect()
    }
}

/// Generated tokens per second of `row`.
///
/// A total rate times output / (input + output); unknown when it is a total rate and a length is unknown.
pub fn output_tok_per_s(row: &Row) -> Option<f64> {
    match row.kind {
        RateKind::Output => Some(row.tok_per_s),
        RateKind::Total => {
            let (input, output) = (row.shape.input_tokens?, row.shape.output_tokens?);
            Some(row.tok_per_s * output / (input + output))
        }
    }
}

/// Reads the points of a table from CSV text, a markdown table or the result file of a benchmark tool; `file` names it
/// in errors.
pub fn read_table(text: &str, file: &str) -> Result<Table, InputError> {
    if import::is_result(text) {
        if let Some(csv) = import::markdown_as_csv(text)
            && import::import(text, file).is_err()
        {
            return read(&csv, file).map_err(|error| error.file(file));
        }
        return import::import(text, file)?.table(file);
    }
    read(text, file).map_err(|error| error.file(file))
}

fn read(text: &str, file: &str) -> Result<Table, InputError> {
    let mut reader = table_reader(text).from_reader(text.as_bytes());
    let columns = Columns::of(reader.headers().map_err(csv_error)?)?;
    let needed = Needed::of(&columns)?;
    let mut rows = Vec::new();
    for record in reader.records() {
        let record = record.map_err(csv_error)?;
        rows.push(needed.row(&columns, &record, line_of(text, &record))?);
    }
    if rows.is_empty() {
        return Err(InputError::new("the table has no rows", "add at least one line with a concurrency and a rate"));
    }
    Ok(Table { unused_columns: columns.unused, ..Table::of_rows(file, rows) })
}

/// Line of `record` in `text`, from 1. The reader's own position stands before the blank lines that it skips.
pub(super) fn line_of(text: &str, record: &csv::StringRecord) -> u64 {
    let start = record.position().map_or(0, |position| position.byte() as usize);
    let blank = text[start..].len() - text[start..].trim_start_matches(['\n', '\r']).len();
    1 + text[..start + blank].matches('\n').count() as u64
}

/// Turns an error of the CSV reader into one with line and remedy.
pub(super) fn csv_error(error: csv::Error) -> InputError {
    let line = error.position().map(csv::Position::line);
    let input = match error.kind() {
        csv::ErrorKind::UnequalLengths { expected_len, len, .. } => InputError::new(
            format!("{len} cells where the header has {expected_len}"),
            "write one cell per column, empty where unknown",
        ),
        _ => InputError::new(error.to_string(), "write comma-separated text with a header line"),
    };
    match line {
        Some(line) => input.line(line),
        None => input,
    }
}

/// One cell with its place, for errors.
pub(super) struct Cell<'a> {
    pub line: u64,
    pub column: &'a str,
    pub text: &'a str,
}

impl Cell<'_> {
    fn error(&self, remedy: &str) -> InputError {
        InputError::new(format!("found `{}`", self.text), remedy).key(self.column).line(self.line)
    }

    /// A finite number of at least `least` (above it, if `above`); nothing if the cell is empty.
    pub fn number(&self, least: f64, above: bool) -> Result<Option<f64>, InputError> {
        if self.text.is_empty() {
            return Ok(None);
        }
        let bound = if above { "above" } else { "of at least" };
        let remedy = format!("write a number {bound} {least}, digits only, without unit or thousands separator");
        let number: f64 = self.text.parse().map_err(|_| self.error(&remedy))?;
        let inside = if above { number > least } else { number >= least };
        if number.is_finite() && inside { Ok(Some(number)) } else { Err(self.error(&remedy)) }
    }

    /// A whole number of at least 1; nothing if the cell is empty.
    pub fn count(&self) -> Result<Option<u64>, InputError> {
        if self.text.is_empty() {
            return Ok(None);
        }
        match self.text.parse() {
            Ok(count) if count >= 1 => Ok(Some(count)),
            _ => Err(self.error("write a whole number of at least 1")),
        }
    }

    /// The error for an empty cell that must not be.
    pub fn empty(&self, remedy: &str) -> InputError {
        InputError::new("empty cell", remedy).key(self.column).line(self.line)
    }
}

/// The columns every row needs: a concurrency, and one way to a rate.
struct Needed {
    rates: Vec<Field>,
}

impl Needed {
    fn of(columns: &Columns) -> Result<Needed, InputError> {
        let has = |field| columns.index(field).is_some();
        if !has(Field::Concurrency) {
            return Err(columns.missing("concurrency", "it says how many requests the client kept in flight"));
        }
        let mut rates = Vec::new();
        // Request rate first: tokens per second of unknown kind are the commonest mistake in published tables.
        if has(Field::RequestRate) && has(Field::OutputTokens) {
            rates.push(Field::RequestRate);
        }
        rates.extend([Field::Rate, Field::OutputRate, Field::TotalRate].into_iter().filter(|field| has(*field)));
        if rates.is_empty() {
            let why = "a measured rate is needed: tokens per second with `throughput_kind`, or requests per second \
                       with the output length (a decode rate computed from tpot is not a measured one)";
            return Err(columns.missing("throughput_tok_s", why));
        }
        if has(Field::Rate) && !has(Field::Kind) {
            let why = "say `output` if the rate counts generated tokens, `total` if it counts prompts too";
            return Err(columns.missing("throughput_kind", why));
        }
        Ok(Needed { rates })
    }

    fn row(&self, columns: &Columns, record: &csv::StringRecord, line: u64) -> Result<Row, InputError> {
        let cell = |field| {
            let (column, _) = columns.header(field).unwrap_or(("", 1.0));
            Cell { line, column, text: columns.index(field).and_then(|index| record.get(index)).unwrap_or("") }
        };
        let scaled = |field, least, above| -> Result<Option<f64>, InputError> {
            let scale = columns.header(field).map_or(1.0, |(_, scale)| scale);
            Ok(cell(field).number(least, above)?.map(|number| number * scale))
        };
        let concurrency = cell(Field::Concurrency);
        let count = concurrency.count()?.ok_or_else(|| concurrency.empty("write the requests in flight"))?;
        let shape = Shape {
            input_tokens: scaled(Field::InputTokens, 0.0, false)?,
            output_tokens: scaled(Field::OutputTokens, 0.0, true)?,
        };
        let mut rate = None;
        for &field in &self.rates {
            let Some(number) = scaled(field, 0.0, true)? else { continue };
            rate = match field {
                Field::RequestRate => shape.output_tokens.map(|tokens| (number * tokens, RateKind::Output)),
                Field::Rate => Some((number, kind(&cell(Field::Kind))?)),
                Field::TotalRate => Some((number, RateKind::Total)),
                _ => Some((number, RateKind::Output)),
            };
            if rate.is_some() {
                break;
            }
        }
        let (tok_per_s, kind) = rate.ok_or_else(|| cell(self.rates[0]).empty("every row needs its measured rate"))?;
        Ok(Row {
            line,
            concurrency: u32::try_from(count).map_err(|_| concurrency.error("write a number below 2^32"))?,
            tok_per_s,
            kind,
            shape,
            num_requests: cell(Field::NumRequests).count()?,
            ttft_ms: scaled(Field::Ttft, 0.0, true)?,
            tpot_ms: scaled(Field::Tpot, 0.0, true)?,
            source: cell(Field::Source).text.to_owned(),
        })
    }
}

fn kind(cell: &Cell<'_>) -> Result<RateKind, InputError> {
    let known = [RateKind::Output, RateKind::Total];
    if let Some(kind) = known.into_iter().find(|kind| kind.name() == cell.text) {
        return Ok(kind);
    }
    let remedy = match nearest(&cell.text.to_lowercase(), known.map(RateKind::name)) {
        Some(near) => format!("did you mean `{near}`? `output` counts generated tokens, `total` prompts too"),
        None => "write `output` (generated tokens) or `total` (prompt and generated tokens)".to_owned(),
    };
    Err(cell.error(&remedy))
}
