//! What a fit says: parameters, what the table taught, residuals.

use std::io::{self, Write};

use serde_json::{Map, Value, json};

use crate::calibrate::{Fit, FitFile, signed_percent};
use crate::format::{rate, significant};
use crate::measured::Topic;
use crate::report::write_said;

/// What `calibrate` says.
pub struct CalibrateReport<'a> {
    fit: &'a Fit,
    file: &'a FitFile,
    said: Vec<String>,
}

/// From this on a table has narrowed a prior enough to speak of it.
const LEARNED: f64 = 0.2;

/// Fewer effective draws than this give rough quantiles.
const FEW_DRAWS: f64 = 50.0;

impl<'a> CalibrateReport<'a> {
    /// The report of a fit and of the file that keeps it; `said` is what was read off the engine.
    pub fn new(fit: &'a Fit, file: &'a FitFile, said: Vec<String>) -> Self {
        CalibrateReport { fit, file, said }
    }

    /// As JSON, one object.
    ///
    /// # Errors
    /// What writing gives.
    pub fn write_json(&self, out: &mut impl Write) -> io::Result<()> {
        let fit = self.fit;
        let mut parameters: Map<String, Value> = Map::new();
        for (prior, summary) in fit.summaries() {
            let [p5, p50, p95] = summary.quantiles;
            let [low, middle, high] = summary.prior_quantiles;
            parameters.insert(
                prior.parameter.key().to_owned(),
                json!({
                    "p5": p5, "p50": p50, "p95": p95, "learned": summary.learned,
                    "prior": {"p5": low, "p50": middle, "p95": high, "source": prior.source},
                }),
            );
        }
        if let Some(cap) = self.file.running_cap {
            parameters.insert(
                "running_cap".to_owned(),
                json!({"p5": cap.p5, "p50": cap.p50, "p95": cap.p95, "learned": cap.learned}),
            );
        }
        let residuals: Vec<Value> = fit
            .residuals
            .iter()
            .map(|row| {
                json!({
                    "line": row.point.line, "concurrency": row.point.in_flight, "used": row.used,
                    "input_tokens": row.point.prompt_tokens, "output_tokens": row.point.output_tokens,
                    "measured_tok_per_s": row.point.measured.tok_per_s.map(|rate| rate * f64::from(row.point.replicas)),
                    "fitted_tok_per_s": row.prediction.tok_per_s * f64::from(row.point.replicas),
                    "log_error": row.error,
                })
            })
            .collect();
        let object = json!({
            "scenario": fit.model.setup.scenario.name,
            "table": self.file.table,
            "table_hash": self.file.table_hash,
            "version": self.file.version,
            "seed": self.file.seed,
            "parameters": parameters,
            "residuals": residuals,
            "rms_log_error": fit.rms_log_error,
            "noise": fit.noise(),
            "waves": self.waves(),
            "read_off_the_engine": self.said,
            "correlations": fit.correlations().iter().map(|(a, b, value)| json!([a, b, value])).collect::<Vec<_>>(),
            "effective_draws": fit.posterior.effective_draws,
            "log_evidence": fit.posterior.log_evidence,
            "unexplained": fit.unexplained(),
            "findings": fit.findings.iter().map(ToString::to_string).collect::<Vec<_>>(),
            "simulations": fit.simulations,
            "wall_s": fit.wall_s,
        });
        serde_json::to_writer_pretty(&mut *out, &object)?;
        writeln!(out)
    }

    /// Probability of each number of waves, where it is a nuisance.
    fn waves(&self) -> Map<String, Value> {
        let known = self.fit.model.points.iter().all(|point| point.requests.is_some());
        let all = if known { Vec::new() } else { self.fit.probabilities(|structure| Some(structure.waves)) };
        all.iter().map(|(waves, share)| (waves.unwrap_or(1).to_string(), json!(share))).collect()
    }

    /// As text.
    ///
    /// # Errors
    /// What writing gives.
    pub fn write_text(&self, out: &mut impl Write) -> io::Result<()> {
        let fit = self.fit;
        writeln!(out, "{} fitted to {}\n", fit.model.setup.scenario.name, self.file.table)?;
        write_said(out, &self.said)?;
        if let Some(why) = fit.unexplained() {
            writeln!(out, "{why}; do not forecast from this fit\n")?;
        }
        writeln!(out, "parameter                 5%         50%         95%   learned   before the table (5% to 95%)")?;
        for (prior, summary) in fit.summaries() {
            let [p5, p50, p95] = summary.quantiles.map(significant);
            let [low, _, high] = summary.prior_quantiles.map(significant);
            writeln!(
                out,
                "{:<20} {p5:>11} {p50:>11} {p95:>11} {:>8.0}%   {low} to {high} ({})",
                prior.parameter.key(),
                100.0 * summary.learned,
                prior.source
            )?;
        }
        if let Some(cap) = self.file.running_cap {
            let text = |value: Option<u32>| value.map_or("none".to_owned(), |cap| cap.to_string());
            let (p5, p50, p95) = (text(cap.p5), text(cap.p50), text(cap.p95));
            writeln!(
                out,
                "{:<20} {p5:>11} {p50:>11} {p95:>11} {:>8.0}%   1 to none (engine's arithmetic, each doubling)",
                "running_cap",
                100.0 * cap.learned
            )?;
        }
        self.write_not_learned(out)?;
        writeln!(out, "\n   in flight      in/out    measured      fitted   error")?;
        for row in &fit.residuals {
            let output = row.point.output_tokens.map_or("window".to_owned(), |tokens| tokens.to_string());
            let scale = f64::from(row.point.replicas);
            writeln!(
                out,
                "{:>12} {:>11} {:>11} {:>11} {:>7}{}",
                row.point.in_flight,
                format!("{}/{output}", row.point.prompt_tokens),
                row.point.measured.tok_per_s.map_or("?".to_owned(), |measured| rate(measured * scale)),
                rate(row.prediction.tok_per_s * scale),
                // As in `sweep`: above 0 where the fit is above what was measured.
                signed_percent(-row.error),
                if row.used { "" } else { "   left out" }
            )?;
        }
        writeln!(
            out,
            "\nrms error {:.1}%, noise of one measurement {:.1}%; {:.0} effective of {} draws",
            100.0 * fit.rms_log_error,
            100.0 * fit.noise(),
            fit.posterior.effective_draws,
            fit.posterior.draws.len()
        )?;
        if fit.posterior.effective_draws < FEW_DRAWS {
            writeln!(out, "few draws carry the weight: read the 5% and 95% values as rough")?;
        }
        let worth = |topic: Topic| !matches!(topic, Topic::Plateau | Topic::Capped | Topic::PartlyRunning);
        for finding in fit.findings.iter().filter(|finding| worth(finding.topic)) {
            writeln!(out, "{finding}")?;
        }
        writeln!(
            out,
            "{} simulations in {:.1} s: {} a second",
            fit.simulations,
            fit.wall_s,
            rate(fit.simulations as f64 / fit.wall_s.max(1e-3))
        )
    }

    fn write_not_learned(&self, out: &mut impl Write) -> io::Result<()> {
        let fit = self.fit;
        let untaught: Vec<&str> = fit
            .summaries()
            .iter()
            .filter(|(_, summary)| summary.learned < LEARNED)
            .map(|(prior, _)| prior.parameter.key())
            .collect();
        if !untaught.is_empty() {
            writeln!(out, "\nthe table says little of {}: these are as assumed", untaught.join(", "))?;
        }
        for (a, b, correlation) in fit.correlations() {
            let how = if correlation > 0.0 { "rise together" } else { "stand in for each other" };
            writeln!(out, "{a} and {b} cannot be told apart by this table: they {how} ({correlation:+.2})")?;
        }
        let waves = self.waves();
        if let Some(one) = waves.get("1").and_then(Value::as_f64) {
            writeln!(out, "the benchmark was a single wave with probability {one:.2}, else several in a row")?;
        }
        Ok(())
    }
}
