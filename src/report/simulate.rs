//! One run in full.

use std::io::{self, Write};

use serde::Serialize;
use serde_json::{Map, Value, json};

use crate::cost::Cause;
use crate::engine::observe::{Limit, Observer};
use crate::engine::sequence::Sequence;
use crate::experiment::Setup;
use crate::report::format::{duration, percent, rate, thousands, tokens};
use crate::report::reuse::ReuseReport;
use crate::simulation::Outcome;
use crate::units::SECONDS_PER_DAY;

/// Counts what the outcome does not: requests cut by the cap.
#[derive(Clone, Copy, Debug, Default)]
pub struct Tally {
    /// Requests whose output was cut.
    pub truncated: u64,
}

impl Observer for Tally {
    fn completed(&mut self, _replica: usize, sequence: &Sequence) {
        self.truncated += u64::from(sequence.request.output_tokens < sequence.request.uncapped_output_tokens);
    }
}

/// What `simulate` says.
#[derive(Clone, Debug, Serialize)]
pub struct SimulateReport {
    scenario: String,
    title: String,
    seed: u64,
    makespan_s: f64,
    makespan_days: f64,
    requests: u64,
    completed: u64,
    rejected: u64,
    truncated: u64,
    prompt_tokens: u64,
    output_tokens: u64,
    output_tok_per_s: f64,
    steady_output_tok_per_s: Option<f64>,
    mean_running: f64,
    running_cap: u32,
    limit: Option<&'static str>,
    limit_share: Map<String, Value>,
    preemptions: u64,
    recomputed_tokens: u64,
    steps: u64,
    tokens_per_request_step: Option<f64>,
    ttft_ms: Option<f64>,
    tpot_ms: Option<f64>,
    ramp_s: f64,
    drain_s: f64,
    peak_kv_share: f64,
    mean_kv_share: f64,
    gpus: u32,
    replicas: u32,
    ledger: Map<String, Value>,
    #[serde(skip_serializing_if = "Option::is_none")]
    reuse: Option<ReuseReport>,
    napkin_days: Option<f64>,
    memory: Vec<String>,
    wall_s: f64,
    #[serde(skip)]
    limit_words: Option<(Limit, f64)>,
    #[serde(skip)]
    cap_note: String,
    #[serde(skip)]
    speculation: bool,
    #[serde(skip)]
    max_tokens: Option<u64>,
    #[serde(skip)]
    top_causes: Vec<(Cause, f64)>,
}

impl SimulateReport {
    /// The report of a run.
    pub fn new(setup: &Setup, outcome: &Outcome, tally: Tally, seed: u64, wall_s: f64) -> Self {
        let tables = &setup.scenario.tables;
        let limit = outcome.main_limit();
        let limit_total: f64 = outcome.limit_time.iter().map(|span| span.as_s()).sum();
        let limit_share = Limit::ALL
            .into_iter()
            .filter(|limit| outcome.limit_time[*limit as usize].as_s() > 0.0)
            .map(|limit| {
                (
                    limit.key().to_owned(),
                    json!(outcome.limit_time[limit as usize].as_s() / limit_total.max(f64::MIN_POSITIVE)),
                )
            })
            .collect();
        let shares = |cause: &Cause| outcome.ledger.share(*cause);
        let ledger = Cause::ALL.iter().map(|cause| (cause.key().to_owned(), json!(shares(cause)))).collect();
        let mut top_causes: Vec<(Cause, f64)> =
            Cause::ALL.iter().map(|cause| (*cause, shares(cause))).filter(|(_, share)| *share >= 0.0005).collect();
        top_causes.sort_by(|a, b| b.1.total_cmp(&a.1));
        let requests = outcome.completed + outcome.rejected;
        SimulateReport {
            scenario: setup.scenario.name.clone(),
            title: tables.title.clone().unwrap_or_else(|| setup.scenario.name.clone()),
            seed,
            makespan_s: outcome.makespan.as_s(),
            makespan_days: outcome.makespan.as_s() / SECONDS_PER_DAY,
            requests,
            completed: outcome.completed,
            rejected: outcome.rejected,
            truncated: tally.truncated,
            prompt_tokens: outcome.prompt_tokens,
            output_tokens: outcome.output_tokens,
            output_tok_per_s: outcome.output_tok_per_s(),
            steady_output_tok_per_s: outcome.steady_output_tok_per_s,
            mean_running: outcome.mean_running,
            running_cap: setup.settings.running_cap,
            limit: limit.map(|(limit, _)| limit.key()),
            limit_share,
            preemptions: outcome.preemptions,
            recomputed_tokens: outcome.recomputed_tokens,
            steps: outcome.steps,
            tokens_per_request_step: outcome.tokens_per_request_step,
            ttft_ms: outcome.mean_ttft_s.map(|s| s * 1e3),
            tpot_ms: outcome.mean_tpot_s.map(|s| s * 1e3),
            ramp_s: outcome.ramp.as_s(),
            drain_s: outcome.drain.as_s(),
            peak_kv_share: outcome.peak_pool_share,
            mean_kv_share: outcome.mean_pool_share,
            gpus: tables.fleet.gpus,
            replicas: setup.replicas,
            ledger,
            reuse: ReuseReport::new(setup, outcome.reuse()),
            napkin_days: tables.job.napkin.map(|napkin| {
                requests as f64 * napkin.mean_output_tokens
                    / (napkin.tok_per_s_per_gpu * f64::from(tables.fleet.gpus))
                    / SECONDS_PER_DAY
            }),
            memory: setup.limits.as_ref().map(|limits| limits.messages.clone()).unwrap_or_default(),
            wall_s,
            limit_words: limit,
            cap_note: match (limit, setup.settings.host) {
                (Some((Limit::HostLink, _)), Some(host)) => {
                    format!("the link moves at most {:.1} GB/s to the host", host.link.rates.alone[1] as f64 / 1e9)
                }
                (Some((Limit::KvPool, _)), _) => {
                    format!("the pool holds {} tokens", thousands(setup.settings.kv_pool_tokens))
                }
                _ => setup.cap_note(),
            },
            speculation: setup.settings.speculation.is_some(),
            max_tokens: tables.job.max_tokens,
            top_causes,
        }
    }

    /// As JSON, one object.
    ///
    /// # Errors
    /// What writing gives.
    pub fn write_json(&self, out: &mut impl Write) -> io::Result<()> {
        serde_json::to_writer_pretty(&mut *out, self)?;
        writeln!(out)
    }

    /// As text.
    ///
    /// # Errors
    /// What writing gives.
    pub fn write_text(&self, out: &mut impl Write) -> io::Result<()> {
        let line = |out: &mut dyn Write, name: &str, text: String| writeln!(out, "{name:<15} {text}");
        writeln!(out, "{}\n", self.title)?;
        let napkin =
            self.napkin_days.map_or(String::new(), |days| format!("   (napkin: {})", duration(days * SECONDS_PER_DAY)));
        line(out, "completes in", format!("{}{napkin}", duration(self.makespan_s)))?;
        let steady = self
            .steady_output_tok_per_s
            .map_or(String::new(), |steady| format!(", {} tok/s while the queue lasts", rate(steady)));
        line(
            out,
            "output",
            format!(
                "{} tokens at {} tok/s on {}{steady}",
                tokens(self.output_tokens),
                rate(self.output_tok_per_s),
                if self.gpus == 1 { "1 GPU".to_owned() } else { format!("{} GPUs", self.gpus) }
            ),
        )?;
        if let Some((limit, share)) = self.limit_words {
            line(
                out,
                "limited by",
                match limit {
                    Limit::MaxRunning | Limit::StateSlots | Limit::BatchSize => {
                        format!("{} for {} of the time: {}", limit.words(), percent(share), self.cap_note)
                    }
                    _ => format!("{} for {} of the time", limit.words(), percent(share)),
                },
            )?;
        }
        line(
            out,
            "running",
            format!("{:.2} requests on each replica on average, of at most {}", self.mean_running, self.running_cap),
        )?;
        let causes: Vec<String> = self
            .top_causes
            .iter()
            .take(7)
            .map(|(cause, share)| format!("{} {}", cause.words(), percent(*share)))
            .collect();
        line(out, "GPU time", causes.join(", "))?;
        let end = self.ramp_s + self.drain_s;
        line(
            out,
            "ramp and tail",
            format!(
                "{} to fill the batches, {} from the last admission to the end: {} of the time",
                duration(self.ramp_s),
                duration(self.drain_s),
                // Both at once where everything is admitted before the batches are full.
                percent((end / self.makespan_s.max(f64::MIN_POSITIVE)).min(1.0))
            ),
        )?;
        let cut = match self.max_tokens {
            Some(cap) => format!(
                "; {} ({}) cut at max_tokens = {cap}",
                thousands(self.truncated),
                percent(self.truncated as f64 / self.completed.max(1) as f64)
            ),
            None => String::new(),
        };
        let rejected = if self.rejected > 0 {
            format!("; {} rejected (their prompt fills the context)", thousands(self.rejected))
        } else {
            String::new()
        };
        line(out, "requests", format!("{} completed{cut}{rejected}", thousands(self.completed)))?;
        let preempted = if self.preemptions > 0 {
            format!(
                "; {} preemptions, {} tokens read again",
                thousands(self.preemptions),
                tokens(self.recomputed_tokens)
            )
        } else {
            "; no preemption".to_owned()
        };
        line(
            out,
            "KV pool",
            format!(
                "{} used at most, {} on average{preempted}",
                percent(self.peak_kv_share),
                percent(self.mean_kv_share)
            ),
        )?;
        if let Some(reuse) = &self.reuse {
            line(out, "reuse", reuse.words())?;
        }
        if let (Some(tpot), Some(ttft)) = (self.tpot_ms, self.ttft_ms) {
            let speculation = self
                .tokens_per_request_step
                .filter(|_| self.speculation)
                .map_or(String::new(), |tokens| format!(", {tokens:.2} tokens per verify step"));
            line(
                out,
                "latency",
                format!(
                    "{:.1} ms per token{speculation}; first token {} after submission on average",
                    tpot,
                    duration(ttft / 1e3)
                ),
            )?;
        }
        line(out, "run", format!("{} engine steps in {:.2} s, seed {}", thousands(self.steps), self.wall_s, self.seed))
    }
}
