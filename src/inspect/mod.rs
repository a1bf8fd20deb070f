//! What a user's file is, what it says, and what is wrong with it.

pub mod checks;
mod counts;
#[cfg(test)]
mod engine_tests;
mod fits;
mod gather;
pub mod histogram;
mod job;
mod lengths;
mod log;
mod mixture;
mod order;
mod prometheus;
mod recognise;

use std::collections::HashMap;
use std::io::Read;
use std::path::{Path, PathBuf};

use serde::Serialize;
use serde_json::Value;

pub use checks::{Checked, Declared, Finding};
pub use counts::Counts;
pub use fits::{Fit, fits};
pub use gather::{Gathered, Refusal};
pub use job::JobPart;
pub use lengths::{AtCap, CAPS, Column, LengthReport, Picture};
pub use log::{EngineReadings, Held, LogPoint};
pub use prometheus::read_metrics;
pub use recognise::{Kind, recognise, wrong_file};

use crate::error::{Error, InputError, Result};
use crate::format::thousands;
use crate::measured::import::{Imported, import, markdown_as_csv, read_folder};
use crate::measured::{self, Server, Severity, Table, read_table, table_reader};
use crate::model::Configured;
use crate::model::llm::Llm;
use crate::model::quantisation::{Quantisation, StateDtype};
use crate::workload::trace::{Record, RecordSink, TextTokens, TraceFormat, read_records};
use recognise::LARGEST_DOCUMENT;

/// How a file is looked at.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// What the user says of it.
    pub declared: Declared,
    /// The job that it is a part of.
    pub job: Option<JobPart>,
    /// Input file of the batch, joined by id: caps, and the number of requests.
    pub inputs: Option<PathBuf>,
    /// Requests that still run, with their lengths so far.
    pub running: Option<PathBuf>,
    /// How texts become numbers of tokens.
    pub texts: TextTokens,
}

impl Options {
    /// Whether something was asked that only a file of requests can answer.
    fn of_requests(&self) -> bool {
        self.job.is_some() || self.inputs.is_some() || self.running.is_some() || self.texts.file().is_some()
    }
}

/// A measured table with what was found in it.
#[derive(Clone, Debug, Serialize)]
pub struct TableReport {
    /// The runs of a result file.
    pub imported: Option<Imported>,
    /// The points.
    pub points: Vec<measured::Row>,
    /// Faults of the table.
    pub findings: Vec<measured::Finding>,
    /// What was left out, with the reason.
    pub left_out: Vec<String>,
    /// What the runs recorded of the server.
    #[serde(flatten)]
    pub server: Server,
}

/// What a file is and says.
#[derive(Clone, Debug, Serialize)]
pub struct Inspection {
    /// The file.
    pub file: String,
    /// What it is.
    pub kind: Kind,
    /// Lengths of requests.
    pub lengths: Option<LengthReport>,
    /// Points of throughput.
    pub table: Option<TableReport>,
    /// State of an engine.
    pub engine: Option<EngineReadings>,
    /// Model, as this program describes it: each line a size and how it was found.
    pub model: Vec<String>,
    /// What else was seen.
    pub notes: Vec<String>,
}

impl Inspection {
    /// The findings that make a plan from this file worthless.
    pub fn errors(&self) -> Vec<String> {
        let lengths = self.lengths.iter().flat_map(|lengths| &lengths.checks.findings);
        let lengths = lengths.filter(|finding| finding.severity == Severity::Error).map(Finding::to_string);
        let table = self.table.iter().flat_map(|table| &table.findings);
        let table = table.filter(|finding| finding.severity == Severity::Error).map(measured::Finding::to_string);
        lengths.chain(table).collect()
    }
}

/// Looks at the file or folder at `path`.
///
/// # Errors
///
/// An unreadable file, one that is nothing known, or broken contents.
pub fn inspect(path: &Path, options: &Options) -> Result<Inspection> {
    let kind = recognise(path)?;
    let mut inspection = Inspection {
        file: path.display().to_string(),
        kind,
        lengths: None,
        table: None,
        engine: None,
        model: Vec::new(),
        notes: Vec::new(),
    };
    if !matches!(kind, Kind::Requests | Kind::Benchmark | Kind::Histogram) && options.of_requests() {
        let remedy = "--job, --inputs, --running and --tokenizer belong to a file of requests: leave them out";
        return Err(InputError::new(format!("this is {}", kind.words()), remedy).file(inspection.file).into());
    }
    match kind {
        Kind::Requests => inspection.lengths = Some(requests(path, options, &mut inspection.notes)?),
        Kind::Histogram => {
            let mut gathered = Gathered::default();
            histogram::gather(path, &mut gathered)?;
            inspection.lengths = Some(LengthReport::new(&gathered, options.declared, options.job));
        }
        Kind::Rates => rates(path, &mut inspection.notes)?,
        Kind::Benchmark => {
            let text = text(path)?;
            if has_lengths(&text) {
                inspection.lengths = Some(requests(path, options, &mut inspection.notes)?);
            }
            inspection.table = match import(&text, &inspection.file) {
                Ok(imported) => Some(table_of(imported, &inspection.file)),
                // A file of lengths without rates is still worth reading.
                Err(_) if inspection.lengths.is_some() => None,
                Err(error) => return Err(error.into()),
            };
        }
        Kind::MeasuredTable => {
            let text = text(path)?;
            let csv = markdown_as_csv(&text).unwrap_or(text);
            let table = read_table(&csv, &inspection.file)?;
            inspection.table = Some(table_report(table, None));
        }
        Kind::Folder => inspection.table = Some(folder(path, &mut inspection.notes)?),
        Kind::EngineLog | Kind::EngineSeries | Kind::Metrics => inspection.engine = Some(read_engine(path)?),
        Kind::ModelConfig => {
            inspection.model = model(&Llm::from_config(&text(path)?, &inspection.file)?)?;
        }
        Kind::Scenario | Kind::Description => {}
    }
    Ok(inspection)
}

/// What the engine log, the metrics snapshot or the table of the engine's state over time at `path` says.
///
/// # Errors
///
/// An unreadable file, one that is something else, or one without a line of a known engine.
pub fn read_engine(path: &Path) -> Result<EngineReadings> {
    let in_file = |error: InputError| Error::from(error.file(path.display().to_string()));
    match recognise(path)? {
        Kind::EngineLog => EngineReadings::of_log(crate::files::open(path)?, path),
        Kind::EngineSeries => series(&text(path)?).map_err(in_file),
        Kind::Metrics => read_metrics(&text(path)?).map_err(in_file),
        other => {
            let found = format!("this is {}, not an engine log or its metrics", other.words());
            Err(in_file(InputError::new(found, format!("use it as {}", other.use_as()))))
        }
    }
}

/// How each size was found, and what follows from them.
fn model(configured: &Configured) -> Result<Vec<String>> {
    let llm = &configured.llm;
    let quantisation = Quantisation::find(&llm.default_weights)?;
    let sizes = llm.sizes(&quantisation, quantisation.kv, StateDtype::default())?;
    let mut lines = configured.derivation.clone();
    lines.push(format!(
        "{:.3} B parameters, {:.2} GB of weights",
        sizes.total_parameters / 1e9,
        sizes.resident_bytes / 1e9
    ));
    lines.push(format!("{} bytes of KV per token of context", thousands(sizes.kv.stored_bytes_per_token as u64)));
    if let Some(state) = &sizes.state {
        lines.push(format!("{} bytes of recurrent state per request", thousands(state.bytes_per_request as u64)));
    }
    Ok(lines)
}

/// The text of a file, up to a size that no result file reaches.
fn text(path: &Path) -> Result<String> {
    let mut bytes = Vec::new();
    let mut limited = crate::files::open(path)?.take(LARGEST_DOCUMENT);
    limited.read_to_end(&mut bytes).map_err(|source| Error::file(path, source))?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

fn has_lengths(text: &str) -> bool {
    let first = serde_json::Deserializer::from_str(text).into_iter::<Value>().next();
    matches!(first, Some(Ok(value)) if value.get("input_lens").is_some() && value.get("output_lens").is_some())
}

/// Takes the caps of a batch's inputs into its outputs.
struct Joined<'g> {
    gathered: &'g mut Gathered,
    caps: HashMap<u64, Option<u32>>,
    unknown: u64,
}

impl RecordSink for Joined<'_> {
    fn start(&mut self, format: TraceFormat, timed: bool, names: [&str; 2]) {
        self.gathered.start(format, timed, names);
    }

    fn record(&mut self, record: &Record, prefix: Option<&Value>) -> std::result::Result<(), InputError> {
        let mut record = *record;
        match record.id.and_then(|id| self.caps.get(&id)) {
            Some(cap) => record.cap = record.cap.or(*cap),
            None => self.unknown += 1,
        }
        self.gathered.record(&record, prefix)
    }

    fn refused(&mut self, error: InputError) -> Result<()> {
        self.gathered.refused(error)
    }
}

/// Ids and caps of a batch's input.
#[derive(Default)]
struct Inputs {
    caps: HashMap<u64, Option<u32>>,
    rows: u64,
}

impl RecordSink for Inputs {
    fn start(&mut self, _format: TraceFormat, _timed: bool, _names: [&str; 2]) {}

    fn record(&mut self, record: &Record, _prefix: Option<&Value>) -> std::result::Result<(), InputError> {
        self.rows += 1;
        if let Some(id) = record.id {
            self.caps.insert(id, record.cap);
        }
        Ok(())
    }

    fn refused(&mut self, _error: InputError) -> Result<()> {
        self.rows += 1;
        Ok(())
    }
}

fn requests(path: &Path, options: &Options, notes: &mut Vec<String>) -> Result<LengthReport> {
    let mut gathered = Gathered::default();
    let texts = &options.texts;
    let mut job = options.job;
    match &options.inputs {
        None => read_records(crate::files::open(path)?, path, texts, &mut gathered)?,
        Some(inputs_path) => {
            let mut inputs = Inputs::default();
            read_records(crate::files::open(inputs_path)?, inputs_path, texts, &mut inputs)?;
            job = job.or(Some(JobPart { total: inputs.rows, slots: 256, finished: 0.0 }));
            let mut joined = Joined { gathered: &mut gathered, caps: inputs.caps, unknown: 0 };
            read_records(crate::files::open(path)?, path, texts, &mut joined)?;
            if joined.unknown > 0 {
                notes.push(format!("{} rows have no request of their id in the input", joined.unknown));
            }
        }
    }
    if let Some(running) = &options.running {
        let mut so_far = Gathered::default();
        read_records(crate::files::open(running)?, running, texts, &mut so_far)?;
        gathered.running = if so_far.running.total() > 0.0 { so_far.running } else { so_far.output };
    }
    if let Some(job) = options.job {
        within(job, &gathered)?;
    }
    let mut report = LengthReport::new(&gathered, options.declared, job);
    if let Some(format) = gathered.format {
        report.estimated = format.has_text() && texts.file().is_none();
        notes.extend(texts.note(format));
        if texts.file().is_some() && !format.has_text() {
            let remedy = format!("{format} has numbers of tokens and no text: leave it out");
            return Err(InputError::new("a tokenizer that counts nothing", remedy).key("--tokenizer").into());
        }
    }
    Ok(report)
}

/// A job has at least the requests of its part.
fn within(job: JobPart, gathered: &Gathered) -> Result<()> {
    let (finished, running) = (gathered.used() as u64, gathered.running.total() as u64);
    if finished + running <= job.total {
        return Ok(());
    }
    let found = format!(
        "total={}, but {} requests have finished and {} run",
        job.total,
        thousands(finished),
        thousands(running)
    );
    Err(InputError::new(found, "give the number of requests of the whole job").key("--job").into())
}

fn rates(path: &Path, notes: &mut Vec<String>) -> Result<()> {
    let (rates, clients) =
        histogram::read_rates(&text(path)?).map_err(|error| error.file(path.display().to_string()))?;
    let mut windows: Vec<f64> = rates.iter().map(|rate| rate.start_s).collect();
    windows.sort_by(f64::total_cmp);
    windows.dedup();
    let mean = rates.iter().map(|rate| rate.rate_per_s).sum::<f64>() / windows.len() as f64;
    let of = if clients > 1 { format!(" of {clients} clients") } else { String::new() };
    notes.push(format!("{} windows{of}, {mean:.3} requests/s on average", windows.len()));
    Ok(())
}

fn table_of(imported: Imported, file: &str) -> TableReport {
    match imported.table(file) {
        Ok(table) => table_report(table, Some(imported)),
        Err(error) => {
            let (server, left_out) = (imported.server(), vec![error.to_string()]);
            let table = Table { server, left_out, ..Table::of_rows(file, Vec::new()) };
            table_report(table, Some(imported))
        }
    }
}

fn table_report(table: Table, imported: Option<Imported>) -> TableReport {
    let mut findings = if table.rows.is_empty() { Vec::new() } else { measured::check(&table) };
    // Each is named on its own.
    findings.retain(|finding| finding.topic != measured::Topic::LeftOut);
    TableReport { points: table.rows, findings, left_out: table.left_out, server: table.server, imported }
}

fn folder(path: &Path, notes: &mut Vec<String>) -> Result<TableReport> {
    let sweep = read_folder(path)?;
    let left_out = sweep.table.left_out.len();
    notes.push(format!("{} result files read as one sweep, {left_out} left out", sweep.read));
    Ok(table_report(sweep.table, sweep.imported))
}

/// A table of the engine's state over time: running, waiting, throughput, use of the KV pool (percent).
fn series(text: &str) -> std::result::Result<EngineReadings, InputError> {
    let mut reader = table_reader(text).from_reader(text.as_bytes());
    let csv_error = |error: csv::Error| InputError::new(error.to_string(), "write one row per moment");
    let headers = reader.headers().map_err(csv_error)?.clone();
    let column = |names: &[&str]| names.iter().find_map(|name| headers.iter().position(|header| header == *name));
    let (running, queued) = (column(&["running"]), column(&["waiting", "queued"]));
    let (rate, used) = (column(&["gen_throughput", "generation_throughput"]), column(&["kv_cache_pct"]));
    let mut readings = EngineReadings { engine: "an engine", ..EngineReadings::default() };
    for record in reader.records() {
        let record = record.map_err(csv_error)?;
        let number = |place: Option<usize>| record.get(place?)?.parse::<f64>().ok();
        readings.lines += 1;
        readings.moment(LogPoint {
            line: record.position().map_or(0, csv::Position::line),
            running: number(running).unwrap_or(0.0) as u32,
            queued: number(queued).unwrap_or(0.0) as u32,
            tok_per_s: number(rate),
            kv_used: number(used).map(|percent| percent / 100.0),
            ..LogPoint::default()
        });
    }
    if readings.lines == 0 {
        return Err(InputError::new("a header and no rows", "give one row per moment below it"));
    }
    readings.conclude();
    Ok(readings)
}
