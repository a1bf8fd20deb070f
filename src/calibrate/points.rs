//! The points that a fit is made to: rows of a measured table as one replica saw them, and what was left out.

use crate::error::{Error, InputError, Result};
use crate::experiment::Setup;
use crate::measured::{Finding, Severity, Table, check, expected_noise, output_tok_per_s};

/// One measured point, of one replica.
#[derive(Clone, Debug, PartialEq)]
pub struct Point {
    /// Line in the table, from 1; 0 for a point that was not measured.
    pub line: u64,
    /// Requests in flight over all replicas, as the table says.
    pub in_flight: u32,
    /// Requests in flight on this replica.
    pub concurrency: u32,
    /// Requests sent to this replica; unknown is a nuisance of the fit.
    pub requests: Option<u64>,
    /// Prompt of each request, tokens; in a decode window the context that each stream holds.
    pub prompt_tokens: u32,
    /// Output of each request, tokens; `None` in a decode window, where prefill is not in the rate.
    pub output_tokens: Option<u32>,
    /// What was measured.
    pub measured: Measured,
    /// Replicas whose rates add up to the table's.
    pub replicas: u32,
}

/// Measured values of one replica.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Measured {
    /// Output tokens per second.
    pub tok_per_s: Option<f64>,
    /// Time to first token, ms.
    pub ttft_ms: Option<f64>,
    /// Time per output token, ms.
    pub tpot_ms: Option<f64>,
    /// Noise to expect of so few requests, as a share; 0 where their number is unknown or all are alike.
    pub noise: f64,
}

/// The points of a table, with the findings that concern a fit.
#[derive(Clone, Debug)]
pub struct Points {
    /// Points used.
    pub used: Vec<Point>,
    /// Points left out, for which the fit still gives a residual.
    pub left_out: Vec<Point>,
    /// What the check of the table found.
    pub findings: Vec<Finding>,
}

/// Requests alike (fixed lengths, no drafts) scatter by less than the rule of thumb of published sweeps.
const ALIKE: f64 = 0.1;

impl Points {
    /// The points of `table` for one replica of `setup`.
    ///
    /// # Errors
    /// A table that contradicts itself, lengths that neither table nor scenario gives, and tables without a usable row.
    pub fn new(setup: &Setup, table: &Table) -> Result<Points> {
        let findings = check(table);
        if let Some(fault) = findings.iter().find(|finding| finding.severity == Severity::Error) {
            let error = InputError::new(fault.what.clone(), fault.done.clone()).file(&table.file);
            let line = fault.lines.first().copied();
            return Err(Error::Input(line.map_or(error.clone(), |line| error.line(line))));
        }
        let benchmark = setup.scenario.tables.benchmark.as_ref();
        let prompt = benchmark.and_then(|benchmark| benchmark.prompt_tokens);
        let output = benchmark.and_then(|benchmark| benchmark.output_tokens);
        let replicas = table.about.as_ref().and_then(|about| about.dp).map_or(1, |dp| dp.max(1));
        let alike = if setup.settings.speculation.is_none() { ALIKE } else { 1.0 };
        let (mut used, mut left_out) = (Vec::new(), Vec::new());
        for row in &table.rows {
            let prompt_tokens = row.shape.input_tokens.map(|tokens| tokens.round() as u64).or(prompt);
            let Some(prompt_tokens) = prompt_tokens else {
                let remedy = "give the length that the benchmark used: the table does not say";
                return Err(setup.scenario.error("benchmark.prompt_tokens", "missing", remedy));
            };
            let output_tokens = row.shape.output_tokens.map(|tokens| tokens.round() as u64).or(output);
            // A context without an output length is a decode window.
            if output_tokens.is_none() && row.shape.input_tokens.is_none() {
                let remedy = "give the length that the benchmark used: the table does not say";
                return Err(setup.scenario.error("benchmark.output_tokens", "missing", remedy));
            }
            // One stream on eight replicas keeps one of them busy.
            let share = replicas.min(row.concurrency);
            let point = Point {
                line: row.line,
                in_flight: row.concurrency,
                concurrency: row.concurrency.div_ceil(share),
                requests: row.num_requests.map(|count| count.div_ceil(u64::from(share))),
                prompt_tokens: prompt_tokens.clamp(1, u64::from(u32::MAX)) as u32,
                output_tokens: output_tokens.map(|tokens| tokens.clamp(1, u64::from(u32::MAX)) as u32),
                measured: Measured {
                    tok_per_s: output_tok_per_s(row).map(|rate| rate / f64::from(share)),
                    // Of a decode window ttft is the time to build the context.
                    ttft_ms: row.ttft_ms.filter(|_| output_tokens.is_some()),
                    tpot_ms: row.tpot_ms,
                    noise: row.num_requests.map_or(0.0, |count| alike * expected_noise(count)),
                },
                replicas: share,
            };
            let excluded = point.measured.tok_per_s.is_none()
                || findings.iter().any(|found| found.excludes_rows() && found.lines.contains(&row.line));
            if excluded { left_out.push(point) } else { used.push(point) }
        }
        if used.is_empty() {
            let found = "no row of the table can be used";
            return Err(InputError::new(found, "see `makespan inspect`").file(&table.file).into());
        }
        Ok(Points { used, left_out, findings })
    }
}

impl Point {
    /// The same point with nothing measured.
    #[must_use]
    pub fn at(&self, concurrency: u32) -> Point {
        Point {
            line: 0,
            in_flight: concurrency,
            concurrency,
            requests: None,
            measured: Measured::default(),
            replicas: 1,
            ..self.clone()
        }
    }
}
