//! Whole jobs with their wall time, against which a makespan is tested.

use serde::Serialize;

use super::table::{Cell, csv_error, line_of};
use crate::error::InputError;

/// One job that was run from start to end.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Job {
    /// Line in the file, from 1.
    pub line: u64,
    /// Name of the table of the same configuration.
    pub table: String,
    /// Requests in flight; unknown where requests came at their own pace.
    pub concurrency: Option<u64>,
    /// Requests done.
    pub requests: u64,
    /// Prompt tokens of all requests.
    pub input_tokens_total: Option<u64>,
    /// Generated tokens of all requests.
    pub output_tokens_total: u64,
    /// Wall time, s, from the first request to the last token.
    pub seconds: f64,
}

impl Job {
    /// Generated tokens per second over the whole job, ramp-up and tail included.
    pub fn output_tok_per_s(&self) -> f64 {
        self.output_tokens_total as f64 / self.seconds
    }
}

/// Reads a list of jobs from CSV text; `file` names it in errors.
pub fn read_jobs(text: &str, file: &str) -> Result<Vec<Job>, InputError> {
    read(text).map_err(|error| error.file(file))
}

const COLUMNS: [&str; 6] = ["table", "concurrency", "requests", "input_tokens_total", "output_tokens_total", "seconds"];

fn read(text: &str) -> Result<Vec<Job>, InputError> {
    let mut reader = csv::ReaderBuilder::new().trim(csv::Trim::All).from_reader(text.as_bytes());
    let headers = reader.headers().map_err(csv_error)?.clone();
    let mut places = [0; COLUMNS.len()];
    for (place, column) in places.iter_mut().zip(COLUMNS) {
        let remedy = format!("the columns are {}", COLUMNS.join(", "));
        *place = headers
            .iter()
            .position(|header| header == column)
            .ok_or_else(|| InputError::new("missing column", remedy).key(column).line(1))?;
    }
    let mut jobs = Vec::new();
    for record in reader.records() {
        let record = record.map_err(csv_error)?;
        let line = line_of(text, &record);
        let cell = |column: usize| Cell { line, column: COLUMNS[column], text: &record[places[column]] };
        let needed = "every job needs its requests, generated tokens and seconds";
        jobs.push(Job {
            line,
            table: record[places[0]].to_owned(),
            concurrency: cell(1).count()?,
            requests: cell(2).count()?.ok_or_else(|| cell(2).empty(needed))?,
            input_tokens_total: cell(3).count()?,
            output_tokens_total: cell(4).count()?.ok_or_else(|| cell(4).empty(needed))?,
            seconds: cell(5).number(0.0, true)?.ok_or_else(|| cell(5).empty(needed))?,
        });
    }
    Ok(jobs)
}
