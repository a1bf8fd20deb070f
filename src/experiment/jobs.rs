//! The requests of a scenario, as the fleet reads them.

use std::sync::Arc;

use crate::error::{Error, Result};
use crate::inspect::{Kind, wrong_file};
use crate::model::scenario::{Rows, Scenario};
use crate::model::workload::{ArrivalLaw, LengthLaw, Order};
use crate::random::Streams;
use crate::simulation::RequestStream;
use crate::units::SimTime;
use crate::workload::Request;
use crate::workload::arrivals::{ArrivalTimes, Arrivals};
use crate::workload::law::Law;
use crate::workload::source::{Cursor, Lengths, Limits, RowDraw, Workload};
use crate::workload::trace::{TextTokens, Trace, TraceOptions};

/// Laws or trace of a job, read once and used by every run.
#[derive(Clone)]
pub struct JobSource {
    lengths: Lengths,
    arrivals: Arrivals,
    open: bool,
    requests: u64,
    limits: Limits,
    order: Order,
    /// The trace, if lengths come from one.
    pub trace: Option<Arc<Trace>>,
}

impl JobSource {
    /// Reads what the scenario's job names.
    ///
    /// # Errors
    /// Bad laws, files or rows, at their place.
    pub fn new(scenario: &Scenario) -> Result<JobSource> {
        let located = |error: Error| match error {
            // An error inside a file that the scenario names stays there.
            Error::Input(input) if input.file.is_none() => Error::Input(scenario.locate(input)),
            other => other,
        };
        // A file that cannot be read is the fault of the key that names it.
        let named = |error: Error, key: &str| match error {
            Error::File { .. } => scenario.error(key, error.to_string(), ""),
            other => located(other),
        };
        let job = &scenario.tables.job;
        let mut trace = None;
        let lengths = if let Some(path) = &job.trace {
            let texts = match &job.tokenizer {
                Some(file) => {
                    TextTokens::from_file(&scenario.folder.join(file)).map_err(|e| named(e, "job.tokenizer"))?
                }
                None => TextTokens::default(),
            };
            let options = TraceOptions {
                skip_empty: job.skip_empty_rows.unwrap_or(false),
                skip_faulty: job.skip_faulty_rows.unwrap_or(false),
                texts,
            };
            let path = scenario.folder.join(path);
            let of_requests =
                |error| wrong_file(error, &path, "a file of requests", &[Kind::Requests, Kind::Benchmark]);
            let rows = Trace::read(&path, options).map_err(of_requests).map_err(|e| named(e, "job.trace"))?;
            if job.tokenizer.is_some() && !rows.format.has_text() {
                let found = format!("{} has numbers of tokens and no text", rows.format);
                return Err(scenario.error("job.tokenizer", found, "leave it out: there is nothing to count"));
            }
            let rows = Arc::new(rows);
            trace = Some(rows.clone());
            let draw = match job.rows {
                Some(Rows::WithReplacement) => RowDraw::WithReplacement,
                Some(Rows::InOrder) | None => RowDraw::InOrder,
            };
            Lengths::Trace { trace: rows, draw }
        } else {
            let law = |value: &Option<toml::Value>, key: &str| -> Result<Law> {
                let value = value.clone().unwrap_or(toml::Value::Integer(0));
                let description = LengthLaw::from_toml(&value, key, &scenario.folder).map_err(|e| named(e, key))?;
                let file = match &description {
                    LengthLaw::File { file, .. } | LengthLaw::Finished { file, .. } => Some(file),
                    _ => None,
                };
                let of_lengths = |error| match file {
                    Some(file) => wrong_file(error, file, "a file of lengths", &[Kind::Requests, Kind::Benchmark]),
                    None => error,
                };
                Law::from_description(&description, key).map_err(of_lengths).map_err(|e| named(e, key))
            };
            Lengths::Laws {
                prompt: law(&job.prompt_tokens, "job.prompt_tokens")?,
                output: law(&job.output_tokens, "job.output_tokens")?,
                rank_correlation: job.rank_correlation.unwrap_or(0.0),
            }
        };
        let rows = trace.as_ref().map_or(0, |trace| trace.rows.len() as u64);
        let closed = scenario.concurrency()?.is_some();
        let law = match &job.arrivals {
            Some(value) => ArrivalLaw::from_toml(value, "job.arrivals").map_err(located)?,
            None if !closed
                && trace.as_ref().is_some_and(|trace| trace.timed)
                && job.rows != Some(Rows::WithReplacement) =>
            {
                ArrivalLaw::Trace { time_scale: 1.0 }
            }
            None => ArrivalLaw::AtOnce,
        };
        let open = law != ArrivalLaw::AtOnce;
        if open && closed {
            return Err(scenario.error(
                "client.concurrency",
                "requests in flight are limited and requests arrive at their own times",
                "keep one: concurrency = \"all\", or arrivals = \"at_once\"",
            ));
        }
        if open && scenario.tables.client.submit_interval_s.is_some() {
            let found = "requests arrive at their own times";
            return Err(scenario.error("client.submit_interval_s", found, "leave it out: it would change nothing"));
        }
        let order = match &job.order {
            Some(word) => Order::from_word(word, "job.order").map_err(located)?,
            None => Order::File,
        };
        let arrivals = Arrivals::from_description(&law, trace.as_ref(), "job.arrivals")
            .map_err(|error| Error::Input(scenario.locate(error)))?;
        let small = |tokens: Option<u64>| tokens.map(|tokens| tokens.min(u64::from(u32::MAX)) as u32);
        let source = JobSource {
            lengths,
            arrivals,
            open,
            requests: job.requests.unwrap_or(rows),
            limits: Limits { max_tokens: small(job.max_tokens), context_tokens: small(job.context_tokens) },
            order,
            trace,
        };
        // Refuses what laws and limits refuse now, and not in the middle of a run.
        source.workload(Streams::new(0, 0)).map_err(|error| match error {
            Error::Input(input) => Error::Input(scenario.locate(input)),
            other => other,
        })?;
        Ok(source)
    }

    /// Number of requests.
    pub fn requests(&self) -> u64 {
        self.requests
    }

    /// The same job with other lengths for every request and everything at once: a benchmark.
    ///
    /// # Errors
    /// When a length is out of range.
    pub fn benchmark(requests: u64, prompt_tokens: u32, output_tokens: u32) -> Result<JobSource> {
        Ok(JobSource {
            lengths: Lengths::Laws {
                prompt: Law::constant(f64::from(prompt_tokens))?,
                output: Law::constant(f64::from(output_tokens))?,
                rank_correlation: 0.0,
            },
            arrivals: Arrivals::at_once(),
            open: false,
            requests,
            limits: Limits { max_tokens: None, context_tokens: None },
            order: Order::File,
            trace: None,
        })
    }

    /// The requests under one seed and replication.
    ///
    /// # Errors
    /// As [`Workload::new`].
    pub fn workload(&self, streams: Streams) -> Result<Workload> {
        Workload::new(self.lengths.clone(), self.requests, self.limits, self.order, streams).map_err(|error| {
            let key = error.key.clone().unwrap_or_default();
            error.key(format!("job.{key}")).into()
        })
    }

    /// A reader of `workload` for the fleet.
    pub fn stream<'a>(&'a self, workload: &'a Workload, streams: Streams) -> JobStream<'a> {
        JobStream {
            cursor: workload.cursor(),
            length: workload.len(),
            times: self.open.then(|| self.arrivals.times(streams)),
            drawn: None,
        }
    }
}

/// Reads a workload for the fleet.
#[derive(Clone)]
pub struct JobStream<'a> {
    cursor: Cursor<'a>,
    length: u64,
    times: Option<ArrivalTimes<'a>>,
    /// The last arrival drawn: how many were drawn, and when it is.
    drawn: Option<(u64, SimTime)>,
}

impl RequestStream for JobStream<'_> {
    fn len(&self) -> u64 {
        self.length
    }

    fn request(&mut self, position: u64) -> Option<Request> {
        self.cursor.request(position).ok()
    }

    fn arrival(&mut self, position: u64) -> Option<SimTime> {
        let times = self.times.as_mut()?;
        loop {
            match self.drawn {
                Some((count, at)) if count > position => return Some(at),
                _ => {}
            }
            let count = self.drawn.map_or(0, |(count, _)| count);
            self.drawn = Some((count + 1, times.next()?));
        }
    }
}
