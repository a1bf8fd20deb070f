//! Why a table plateaus, as text that a person can act on and as JSON.

use std::io::{self, Write};

use serde_json::{Map, Value, json};

use crate::calibrate::{Diagnosis, Explanation, Mechanism, Unmeasured};
use crate::experiment::Setup;
use crate::report::format::{rate, thousands};
use crate::report::write_said;

/// What `diagnose` says.
pub struct DiagnoseReport<'a> {
    setup: &'a Setup,
    diagnosis: &'a Diagnosis,
    seed: u64,
    said: Vec<String>,
}

impl<'a> DiagnoseReport<'a> {
    /// The report of a diagnosis; `said` is what was read off the engine.
    pub fn new(setup: &'a Setup, diagnosis: &'a Diagnosis, seed: u64, said: Vec<String>) -> Self {
        DiagnoseReport { setup, diagnosis, seed, said }
    }

    fn drafts(&self) -> bool {
        self.setup.settings.speculation.is_some()
    }

    /// As JSON, one object.
    ///
    /// # Errors
    /// What writing gives.
    pub fn write_json(&self, out: &mut impl Write) -> io::Result<()> {
        let found = self.diagnosis;
        let mechanisms: Vec<Value> = found
            .explanations
            .iter()
            .map(|explanation| {
                let predicts: Map<String, Value> = explanation
                    .predicts
                    .iter()
                    .map(|(what, [p5, p50, p95])| (what.key().to_owned(), json!({"p5": p5, "p50": p50, "p95": p95})))
                    .collect();
                json!({
                    "name": explanation.mechanism.key(),
                    "probability": explanation.probability,
                    "prior": explanation.mechanism.prior(),
                    "rms_log_error": explanation.rms_log_error,
                    "log_evidence": explanation.log_evidence,
                    "predicts": predicts,
                    "note": explanation.note,
                })
            })
            .collect();
        let measurement = |next: &crate::calibrate::Measurement| {
            json!({
                "name": next.name, "what": next.what, "minutes": next.minutes, "bits": next.bits,
                "outcomes": next.outcomes.iter().map(|(who, what)| json!({"if": who, "then": what})).collect::<Vec<_>>(),
            })
        };
        let object = json!({
            "scenario": self.setup.scenario.name,
            "seed": self.seed,
            "mechanisms": mechanisms,
            "read_off_the_engine": self.said,
            "running_cap": found.caps.iter().map(|(cap, p)| json!({"cap": cap, "probability": p})).collect::<Vec<_>>(),
            "arithmetic": found.arithmetic.iter().map(|line| {
                json!({"flags": line.flags, "running_cap": line.cap, "kv_pool_tokens": line.kv_pool_tokens})
            }).collect::<Vec<_>>(),
            "next_measurement": found.measurements.first().map(measurement),
            "measurements": found.measurements.iter().map(measurement).collect::<Vec<_>>(),
            "explained": found.unexplained().is_none(),
            "unexplained": found.unexplained(),
            "simulations": found.simulations,
            "wall_s": found.wall_s,
        });
        serde_json::to_writer_pretty(&mut *out, &object)?;
        writeln!(out)
    }

    /// As text.
    ///
    /// # Errors
    /// What writing gives.
    pub fn write_text(&self, out: &mut impl Write) -> io::Result<()> {
        let found = self.diagnosis;
        let Some(best) = found.explanations.first() else { return writeln!(out, "nothing to explain") };
        write_said(out, &self.said)?;
        self.write_verdict(out, best)?;
        writeln!(out, "\nmechanism                               probability   before   rms error")?;
        for explanation in &found.explanations {
            writeln!(
                out,
                "{:<41} {:>9.3} {:>8.2} {:>10.1}%",
                explanation.mechanism.words(),
                explanation.probability,
                explanation.mechanism.prior(),
                100.0 * explanation.rms_log_error
            )?;
        }
        self.write_predictions(out)?;
        self.write_arithmetic(out, best)?;
        if let Some(next) = found.measurements.first() {
            writeln!(out, "\nnext: {}", next.what)?;
            for (who, what) in &next.outcomes {
                writeln!(out, "    {who}: {what}")?;
            }
            writeln!(out, "    about {} min; expected to tell {:.2} bits", next.minutes, next.bits)?;
        }
        for other in found.measurements.iter().skip(1) {
            writeln!(out, "else: {} ({} min, {:.2} bits)", other.what, other.minutes, other.bits)?;
        }
        writeln!(
            out,
            "\n{} simulations in {:.1} s: {} a second",
            found.simulations,
            found.wall_s,
            rate(found.simulations as f64 / found.wall_s.max(1e-3))
        )
    }

    fn write_verdict(&self, out: &mut impl Write, best: &Explanation) -> io::Result<()> {
        let found = self.diagnosis;
        if let Some(why) = found.unexplained() {
            writeln!(out, "{why}")?;
            writeln!(
                out,
                "the least bad explanation is {} (rms error {:.0}%): measure the odd rows again, or suspect what the model \
                 lacks (a power limit, another kernel from some batch on, retraction that never ends)",
                best.mechanism.words(),
                100.0 * best.rms_log_error
            )?;
            return Ok(());
        }
        writeln!(out, "{} with probability {:.2}", best.mechanism.words(), best.probability)?;
        if best.mechanism != Mechanism::RunningCap {
            return Ok(());
        }
        let listed = found.caps.iter().filter(|(_, probability)| *probability >= 0.03);
        let text: Vec<String> = listed.map(|(cap, probability)| format!("{cap} ({probability:.2})")).collect();
        writeln!(out, "cap of running requests: {}", text.join(", "))?;
        let cap = found.caps.first().map_or(1, |(cap, _)| *cap);
        let known = found.caps.len() == 1 && !self.said.is_empty();
        if self.drafts() && self.setup.sizes.state.is_some() && !known {
            writeln!(
                out,
                "rates alone cannot tell too few recurrent-state slots from a `--max-running-requests {cap}` flag (or a \
                 `--max-mamba-cache-size` that gives {cap}); the log can: `#running-req: {cap}, #queue-req: …` at a higher \
                 concurrency confirms the cap, and the start-up line `max_running_requests={cap}` with or without a warning \
                 about the mamba state cache says which of the two it is"
            )?;
            writeln!(
                out,
                "to try: `--mamba-ssm-dtype bfloat16` or a larger `--mamba-full-memory-ratio` (more slots), or the flag raised"
            )?;
        } else {
            writeln!(out, "to try: raise the engine's maximum of running requests above {cap}")?;
        }
        Ok(())
    }

    fn write_predictions(&self, out: &mut impl Write) -> io::Result<()> {
        let found = self.diagnosis;
        let most = found.most_in_flight;
        writeln!(out, "\nwhat each would give, tok/s (5% to 95%)")?;
        for what in Unmeasured::ALL {
            let title = match what {
                Unmeasured::TwiceInFlight => format!("concurrency {}", 2 * most),
                Unmeasured::CapDoubled => format!("cap doubled, at {most}"),
                Unmeasured::Uncapped => format!("no cap, at {most}"),
                Unmeasured::LongOutputs => format!("outputs of 2,500, at {most}"),
                Unmeasured::WithoutDrafts => format!("MTP off, at {most}"),
                Unmeasured::FourGpus => "four GPUs, nothing shared".to_owned(),
            };
            let mut parts = Vec::new();
            for explanation in found.explanations.iter().filter(|explanation| explanation.probability >= 0.01) {
                let interval = explanation.predicts.iter().find(|(other, _)| *other == what).map(|(_, found)| *found);
                if let Some([p5, p50, p95]) = interval {
                    let text =
                        format!("{}: {} ({} to {})", explanation.mechanism.key(), rate(p50), rate(p5), rate(p95));
                    parts.push(text);
                }
            }
            if !parts.is_empty() {
                writeln!(out, "    {title:<27} {}", parts.join("; "))?;
            }
        }
        Ok(())
    }

    fn write_arithmetic(&self, out: &mut impl Write, best: &Explanation) -> io::Result<()> {
        let found = self.diagnosis;
        if found.arithmetic.is_empty() {
            return Ok(());
        }
        writeln!(out, "\nthe engine's own memory arithmetic")?;
        for line in &found.arithmetic {
            let pool = thousands(line.kv_pool_tokens);
            writeln!(out, "    {}: {} running requests, {pool} KV tokens", line.flags, line.cap)?;
        }
        let cap = found.caps.first().map_or(1, |(cap, _)| *cap);
        let held = best.model.points.iter().map(|point| point.prompt_tokens + point.output_tokens.unwrap_or(0)).max();
        if let Some(held) = held {
            let needed = thousands(u64::from(cap) * u64::from(held));
            writeln!(out, "    {cap} requests of this benchmark hold at most {needed} KV tokens")?;
        }
        Ok(())
    }
}
