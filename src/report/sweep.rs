//! Throughput against concurrency.

use std::io::{self, Write};

use serde::Serialize;

use crate::experiment::{Setup, Sweep};
use crate::report::format::{percent, rate};
use crate::report::reuse::ReuseReport;

/// What `sweep` says.
#[derive(Clone, Debug, Serialize)]
pub struct SweepReport {
    scenario: String,
    seed: u64,
    replications: u32,
    measured_table: Option<String>,
    points: Vec<Point>,
    knee_concurrency: Option<u32>,
    plateau_tok_per_s: Option<f64>,
    rms_log_error: Option<f64>,
    running_cap: u32,
    #[serde(skip)]
    title: String,
    #[serde(skip)]
    cap_note: String,
}

#[derive(Clone, Debug, Serialize)]
struct Point {
    concurrency: u32,
    requests: u64,
    prompt_tokens: u32,
    output_tokens: u32,
    output_tok_per_s: f64,
    run_deviation_tok_per_s: f64,
    measured_tok_per_s: Option<f64>,
    ttft_ms: Option<f64>,
    tpot_ms: Option<f64>,
    mean_running: f64,
    #[serde(skip_serializing_if = "Option::is_none")]
    reuse: Option<ReuseReport>,
    limit: Option<&'static str>,
    limit_share: Option<f64>,
    preemptions: f64,
    #[serde(skip)]
    limit_words: Option<&'static str>,
    prefill_share: f64,
}

impl SweepReport {
    /// The report of a sweep.
    pub fn new(setup: &Setup, sweep: &Sweep, running_cap: u32, seed: u64, replications: u32) -> Self {
        let knee = sweep.knee();
        SweepReport {
            scenario: setup.scenario.name.clone(),
            seed,
            replications,
            measured_table: sweep.table.clone(),
            points: sweep
                .points
                .iter()
                .map(|point| Point {
                    concurrency: point.concurrency,
                    requests: point.requests,
                    prompt_tokens: point.prompt_tokens,
                    output_tokens: point.output_tokens,
                    output_tok_per_s: point.output_tok_per_s,
                    run_deviation_tok_per_s: point.run_deviation,
                    measured_tok_per_s: point.measured_tok_per_s,
                    ttft_ms: point.ttft_ms,
                    tpot_ms: point.tpot_ms,
                    mean_running: point.mean_running,
                    limit: point.limit.map(|(limit, _)| limit.key()),
                    limit_share: point.limit.map(|(_, share)| share),
                    preemptions: point.preemptions,
                    reuse: ReuseReport::new(setup, point.reuse),
                    limit_words: point.limit.map(|(limit, _)| limit.words()),
                    prefill_share: point.prefill_share,
                })
                .collect(),
            knee_concurrency: knee.map(|(concurrency, _)| concurrency),
            plateau_tok_per_s: knee.map(|(_, plateau)| plateau),
            rms_log_error: sweep.rms_log_error(),
            running_cap,
            title: setup.scenario.tables.title.clone().unwrap_or_else(|| setup.scenario.name.clone()),
            cap_note: if running_cap == setup.settings.running_cap {
                setup.cap_note()
            } else {
                format!("running requests capped at {running_cap} by --cap")
            },
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
        writeln!(
            out,
            "{}\none replica, run as a benchmark {} times; {}\n",
            self.title, self.replications, self.cap_note
        )?;
        writeln!(
            out,
            "{:>11} {:>9} {:>6} {:>9} {:>8} {:>9} {:>9} {:>8} {:>8}  limited by",
            "concurrency", "tok/s", "+-", "measured", "error", "ttft ms", "tpot ms", "running", "prefill"
        )?;
        for point in &self.points {
            let measured = point.measured_tok_per_s.map_or("-".to_owned(), rate);
            let error = point.measured_tok_per_s.map_or("-".to_owned(), |measured| {
                format!("{:+.1}%", (point.output_tok_per_s / measured - 1.0) * 100.0)
            });
            let ms = |value: Option<f64>| value.map_or("-".to_owned(), rate);
            let limit = match (point.limit_words, point.limit_share) {
                (Some(words), Some(share)) => format!("{words} ({})", percent(share)),
                _ => "-".to_owned(),
            };
            let preempted = if point.preemptions > 0.0 {
                format!("; {} preemptions", rate(point.preemptions))
            } else {
                String::new()
            };
            writeln!(
                out,
                "{:>11} {:>9} {:>6} {:>9} {:>8} {:>9} {:>9} {:>8.1} {:>8}  {limit}{preempted}",
                point.concurrency,
                rate(point.output_tok_per_s),
                rate(point.run_deviation_tok_per_s),
                measured,
                error,
                ms(point.ttft_ms),
                ms(point.tpot_ms),
                point.mean_running,
                percent(point.prefill_share),
            )?;
        }
        writeln!(out)?;
        self.write_reuse(out)?;
        if let (Some(knee), Some(plateau)) = (self.knee_concurrency, self.plateau_tok_per_s) {
            writeln!(out, "95% of the highest rate ({} tok/s) is reached at concurrency {knee}.", rate(plateau))?;
        }
        if let (Some(rms), Some(table)) = (self.rms_log_error, &self.measured_table) {
            writeln!(out, "Against {table}: rms error {}. Nothing was fitted to it.", percent(rms))?;
        }
        Ok(())
    }

    /// A line for each point at which hits or copies matter; where they do nowhere, one for all.
    fn write_reuse(&self, out: &mut impl Write) -> io::Result<()> {
        let reuse = || self.points.iter().filter_map(|point| Some((point.concurrency, point.reuse.as_ref()?)));
        if reuse().any(|(_, reuse)| reuse.matters()) {
            for (concurrency, reuse) in reuse().filter(|(_, reuse)| reuse.matters()) {
                writeln!(out, "{} at {concurrency}: {}", reuse.title(), reuse.words())?;
            }
        } else if let Some((_, most)) = reuse().max_by(|(_, a), (_, b)| a.link_share().total_cmp(&b.link_share())) {
            writeln!(out, "{} at its busiest: {}", most.title(), most.words())?;
        }
        Ok(())
    }
}
