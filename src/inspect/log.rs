//! Engine logs: what start-up and periodic lines of SGLang and vLLM say of caps, pools, queue and speed.

use std::io::BufRead;

use serde::Serialize;

use super::counts::Counts;
use crate::error::{Error, InputError, Result};
use crate::format::{percent, rate, thousands};

/// Points of the time series that are kept; with more, every second one is dropped.
const MOST_POINTS: usize = 4096;

/// Longest line that is read, bytes; the rest of a longer one is skipped.
const LONGEST_LINE: usize = 1 << 16;

/// A pool this full holds requests back.
const FULL: f64 = 0.97;

/// Share of the moments with a queue in which one number runs, from which it is a cap.
const STEADY: f64 = 0.6;

/// What held requests back, as far as the moments tell.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Held {
    /// Nothing: no request ever waited.
    Nothing {
        /// Most requests that ran.
        most_running: u32,
    },
    /// A cap: a steady number ran while others waited and the KV pool had room.
    Cap {
        /// That number.
        running: u32,
    },
    /// The KV pool was full.
    KvPool,
    /// Requests waited, the number that ran varied, and the KV pool had room.
    Unclear,
}

/// The engine at one moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct LogPoint {
    /// Line, from 1.
    pub line: u64,
    /// Requests that decode.
    pub running: u32,
    /// Requests that wait.
    pub queued: u32,
    /// Generated tokens per second.
    pub tok_per_s: Option<f64>,
    /// Tokens of one request and step, the bonus token included.
    pub acceptance: Option<f64>,
    /// Share of the KV pool in use.
    pub kv_used: Option<f64>,
    /// Share of the recurrent states in use.
    pub state_used: Option<f64>,
}

/// What an engine's log or metrics say.
#[derive(Clone, Debug, Default, Serialize)]
pub struct EngineReadings {
    /// The engine.
    pub engine: &'static str,
    /// Most requests that may run, as resolved at start-up.
    pub max_running: Option<u64>,
    /// Tokens that the KV pool holds.
    pub kv_pool_tokens: Option<u64>,
    /// Recurrent states that the pool holds.
    pub state_slots: Option<u64>,
    /// Longest context, tokens.
    pub context_tokens: Option<u64>,
    /// Tokens of a prefill chunk.
    pub prefill_chunk_tokens: Option<u64>,
    /// Lines that were read.
    pub lines: u64,
    /// Lines that told a moment.
    pub moments: u64,
    /// Requests taken back for lack of memory.
    pub preemptions: u64,
    /// Mean tokens of one request and step, the bonus token included.
    pub acceptance: Option<f64>,
    /// Chance that drafted tokens 1 to i are all accepted.
    pub acceptance_by_place: Vec<f64>,
    /// Generated tokens per second: mean over the moments with running requests.
    pub mean_tok_per_s: Option<f64>,
    /// Most generated tokens per second.
    pub peak_tok_per_s: Option<f64>,
    /// Share of prompt tokens found in the cache.
    pub prefix_hit_share: Option<f64>,
    /// Most requests that ran.
    pub most_running: u32,
    /// Most requests that waited.
    pub most_queued: u32,
    /// Time of a step with the usual number of running requests, ms: running · acceptance / rate.
    pub step_ms: Option<f64>,
    /// What held requests back; unknown without a moment.
    pub held: Option<Held>,
    /// What follows.
    pub verdict: Vec<String>,
    /// The moments, thinned.
    pub points: Vec<LogPoint>,
    #[serde(skip)]
    pub(super) keep_every: u64,
    #[serde(skip)]
    pub(super) sums: Sums,
}

#[derive(Clone, Debug, Default)]
pub(super) struct Sums {
    running_while_queued: Counts,
    running: Counts,
    rate: f64,
    rates: f64,
    acceptance: f64,
    accepted: f64,
    kv_full_while_queued: f64,
    states_full_while_queued: f64,
    step: f64,
    steps: f64,
}

/// The number after `label`, with thousands separators and a percent sign dropped.
fn number(line: &str, label: &str) -> Option<f64> {
    let start = line.find(label)? + label.len();
    let text = line[start..].trim_start_matches([' ', '=', ':', '\'', '"']);
    let end =
        text.find(|c: char| !(c.is_ascii_digit() || matches!(c, '.' | ',' | '-' | 'e' | '+'))).unwrap_or(text.len());
    text[..end].trim_end_matches([',', '.']).replace(',', "").parse().ok()
}

fn whole(line: &str, label: &str) -> Option<u64> {
    number(line, label).filter(|number| *number >= 0.0).map(|number| number as u64)
}

impl EngineReadings {
    /// Reads the log in `reader`; `name` is its name for errors.
    ///
    /// # Errors
    ///
    /// An unreadable file, or no line of a known engine.
    pub fn of_log(mut reader: impl BufRead, name: &std::path::Path) -> Result<EngineReadings> {
        let mut readings = EngineReadings { keep_every: 1, ..EngineReadings::default() };
        let mut line = Vec::new();
        loop {
            line.clear();
            let mut limited = std::io::Read::take(&mut reader, LONGEST_LINE as u64);
            let read = limited.read_until(b'\n', &mut line).map_err(|source| Error::file(name, source))?;
            if read == 0 {
                break;
            }
            readings.lines += 1;
            let line = String::from_utf8_lossy(&line);
            readings.line(&line);
        }
        if readings.engine.is_empty() {
            let remedy = "give a log of SGLang or vLLM with start-up or periodic lines";
            return Err(InputError::new("no line of a known engine", remedy).file(name.display().to_string()).into());
        }
        readings.conclude();
        Ok(readings)
    }

    fn line(&mut self, line: &str) {
        if line.contains("#running-req") {
            self.engine = "SGLang";
            // Prefill lines repeat what decode lines say, without a rate.
            if !line.contains("Prefill batch") {
                let point = LogPoint {
                    line: self.lines,
                    running: whole(line, "#running-req").unwrap_or(0) as u32,
                    queued: whole(line, "#queue-req").unwrap_or(0) as u32,
                    tok_per_s: number(line, "gen throughput (token/s)"),
                    acceptance: number(line, "accept len"),
                    kv_used: number(line, "full token usage").or_else(|| number(line, "token usage")),
                    state_used: number(line, "mamba usage"),
                };
                self.moment(point);
            }
        } else if line.contains("max_total_num_tokens=") {
            self.engine = "SGLang";
            self.kv_pool_tokens = whole(line, "max_total_num_tokens");
            self.max_running = whole(line, "max_running_requests").or(self.max_running);
            self.context_tokens = whole(line, "context_len").or(self.context_tokens);
            self.prefill_chunk_tokens = whole(line, "chunked_prefill_size").or(self.prefill_chunk_tokens);
        } else if line.contains("Mamba Cache is allocated") {
            self.engine = "SGLang";
            self.state_slots = whole(line, "max_mamba_cache_size");
        } else if line.contains("Retract requests") {
            self.preemptions += whole(line, "#retracted_reqs").unwrap_or(1);
        } else if line.contains("Avg generation throughput") {
            self.engine = "vLLM";
            let point = LogPoint {
                line: self.lines,
                running: whole(line, "Running:").unwrap_or(0) as u32,
                queued: whole(line, "Waiting:").unwrap_or(0) as u32,
                tok_per_s: number(line, "Avg generation throughput"),
                acceptance: None,
                kv_used: number(line, "KV cache usage").map(|percent| percent / 100.0),
                state_used: None,
            };
            self.preemptions += whole(line, "Preemptions:").unwrap_or(0);
            self.prefix_hit_share = number(line, "Prefix cache hit rate").map(|percent| percent / 100.0);
            self.moment(point);
        } else if line.contains("SpecDecoding metrics") {
            self.engine = "vLLM";
            if let Some(length) = number(line, "Mean acceptance length") {
                self.sums.acceptance += length;
                self.sums.accepted += 1.0;
            }
            if let Some((_, rest)) = line.split_once("Per-position acceptance rate:") {
                let places = rest.split(',').map_while(|place| place.trim().parse::<f64>().ok());
                self.acceptance_by_place = places.collect();
            }
        } else if line.contains("KV cache size:") && line.contains("tokens") {
            self.engine = "vLLM";
            self.kv_pool_tokens = whole(line, "KV cache size");
        } else if line.contains("max_num_seqs") || line.contains("max_model_len") {
            self.max_running = whole(line, "max_num_seqs").or(self.max_running);
            self.context_tokens = whole(line, "max_model_len").or(self.context_tokens);
            self.prefill_chunk_tokens = whole(line, "max_num_batched_tokens").or(self.prefill_chunk_tokens);
        }
    }

    /// Takes one moment.
    pub(super) fn moment(&mut self, point: LogPoint) {
        self.moments += 1;
        self.most_running = self.most_running.max(point.running);
        self.most_queued = self.most_queued.max(point.queued);
        let sums = &mut self.sums;
        if point.running > 0 {
            sums.running.add(point.running, 1.0);
            if let Some(rate) = point.tok_per_s.filter(|rate| *rate > 0.0) {
                sums.rate += rate;
                sums.rates += 1.0;
                self.peak_tok_per_s = Some(self.peak_tok_per_s.unwrap_or(0.0).max(rate));
                if point.acceptance.is_some() || self.engine == "SGLang" {
                    sums.step += f64::from(point.running) * point.acceptance.unwrap_or(1.0) / rate;
                    sums.steps += 1.0;
                }
            }
            if let Some(length) = point.acceptance {
                sums.acceptance += length;
                sums.accepted += 1.0;
            }
        }
        if point.queued > 0 {
            sums.running_while_queued.add(point.running, 1.0);
            sums.kv_full_while_queued += f64::from(u8::from(point.kv_used.is_some_and(|used| used > FULL)));
            sums.states_full_while_queued += f64::from(u8::from(point.state_used.is_some_and(|used| used > FULL)));
        }
        if self.moments.is_multiple_of(self.keep_every.max(1)) {
            self.points.push(point);
            if self.points.len() > MOST_POINTS {
                let mut place = 0;
                self.points.retain(|_| {
                    place += 1;
                    place % 2 == 0
                });
                self.keep_every = self.keep_every.max(1) * 2;
            }
        }
    }

    /// Means and what follows from them.
    pub(super) fn conclude(&mut self) {
        let mean = |sum: f64, n: f64| (n > 0.0).then(|| sum / n);
        self.mean_tok_per_s = mean(self.sums.rate, self.sums.rates);
        self.acceptance = mean(self.sums.acceptance, self.sums.accepted).or(self.acceptance);
        self.step_ms = mean(self.sums.step * 1e3, self.sums.steps);
        self.held = self.holds();
        self.verdict = self.verdicts();
    }

    fn holds(&self) -> Option<Held> {
        let queued = &self.sums.running_while_queued;
        let Some((usual, count)) = queued.top().filter(|_| queued.total() >= 1.0) else {
            return (self.moments > 0).then_some(Held::Nothing { most_running: self.most_running });
        };
        let steady = count >= STEADY * queued.total() || queued.total() < 3.0;
        let kv_full = self.sums.kv_full_while_queued > 0.5 * queued.total();
        Some(match (steady, kv_full) {
            (true, false) => Held::Cap { running: usual },
            (_, true) => Held::KvPool,
            (false, false) => Held::Unclear,
        })
    }

    /// Why a cap holds, as far as start-up lines and the use of the pools tell.
    fn cause(&self, usual: u32) -> String {
        let states_full = self.sums.states_full_while_queued > 0.5 * self.sums.running_while_queued.total();
        match (self.max_running, self.state_slots) {
            (Some(cap), _) if cap == u64::from(usual) => format!("the engine resolved its cap to {cap} at start-up"),
            (_, Some(slots)) if states_full => format!("the pool of {slots} recurrent states is full"),
            _ if states_full => "the pool of recurrent states is full".to_owned(),
            _ => "no pool is full, so look for a cap on running requests in the start-up lines".to_owned(),
        }
    }

    fn verdicts(&self) -> Vec<String> {
        let mut said = Vec::new();
        let usual = self.sums.running_while_queued.top().map_or(0, |(usual, _)| usual);
        let busy = format!("running {usual} with {} queued", self.most_queued);
        match self.held {
            Some(Held::Cap { running }) => {
                said.push(format!("{busy}: an admission cap of {running}; {}", self.cause(running)));
            }
            Some(Held::KvPool) => {
                said.push(format!("{busy} and a full KV pool: memory limits the running requests, not a cap"));
            }
            Some(Held::Unclear) => {
                said.push(format!("{busy}, but the number that runs varies: {}", self.cause(usual)));
            }
            Some(Held::Nothing { most_running }) => said.push(format!(
                "nothing ever waited and at most {most_running} ran: the client keeps too few in flight to find the \
                 engine's cap"
            )),
            None => {}
        }
        if self.preemptions > 0 {
            let count = thousands(self.preemptions);
            said.push(format!("{count} requests were taken back for lack of KV memory: their work is done twice"));
        }
        if let Some(acceptance) = self.acceptance {
            said.push(format!("{acceptance:.2} tokens a step and request with speculation"));
        }
        if let (Some(step), Some((usual, _))) = (self.step_ms, self.sums.running.top()) {
            let rate = self.mean_tok_per_s.map(|mean| format!(", {} tok/s on average", rate(mean))).unwrap_or_default();
            said.push(format!("about {step:.1} ms a step with mostly {usual} running{rate}"));
        }
        if let Some(hits) = self.prefix_hit_share.filter(|share| *share > 0.0) {
            said.push(format!("{} of the prompt tokens came from the prefix cache", percent(hits)));
        }
        said
    }
}
