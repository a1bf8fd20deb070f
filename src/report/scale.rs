//! More GPUs.

use std::io::{self, Write};

use serde::Serialize;

use crate::experiment::{Explanation, Point};
use crate::model::scenario::Scenario;
use crate::report::format::{percent, rate};

/// What `scale` says.
#[derive(Clone, Debug, Serialize)]
pub struct ScaleReport {
    scenario: String,
    seed: u64,
    replications: u64,
    points: Vec<PointReport>,
    from_tok_per_s: f64,
    to_tok_per_s: Vec<f64>,
    explanations: Vec<ExplanationReport>,
    not_modelled: [&'static str; 3],
    #[serde(skip)]
    title: String,
    #[serde(skip)]
    gpus: u32,
}

#[derive(Clone, Debug, Serialize)]
struct PointReport {
    mechanism: &'static str,
    gpus: u32,
    makespan_days: f64,
    output_tok_per_s: f64,
    efficiency: f64,
    efficiency_half_width: Option<f64>,
    #[serde(skip)]
    words: String,
}

#[derive(Clone, Debug, Serialize)]
struct ExplanationReport {
    key: &'static str,
    what: &'static str,
    now: f64,
    needed: Vec<Option<f64>>,
}

impl ScaleReport {
    /// The report of a scaling study; `rates` are the rate hoped for and those to explain, tok/s.
    pub fn new(
        scenario: &Scenario,
        seed: u64,
        replications: u64,
        points: &[Point],
        rates: &[f64],
        found: &[Explanation],
    ) -> Self {
        ScaleReport {
            scenario: scenario.name.clone(),
            seed,
            replications,
            points: points
                .iter()
                .map(|point| PointReport {
                    mechanism: point.mechanism.key(),
                    gpus: point.gpus,
                    makespan_days: point.days,
                    output_tok_per_s: point.output_tok_per_s,
                    efficiency: point.efficiency,
                    efficiency_half_width: point.half_width,
                    words: point.mechanism.words(),
                })
                .collect(),
            from_tok_per_s: rates.first().copied().unwrap_or(0.0),
            to_tok_per_s: rates.iter().skip(1).copied().collect(),
            explanations: found
                .iter()
                .map(|it| ExplanationReport { key: it.key, what: it.what, now: it.now, needed: it.needed.clone() })
                .collect(),
            not_modelled: [
                "failures and restarts",
                "a shared PCIe root unless fleet.pcie_root gives one",
                "thermal limits over time",
            ],
            title: scenario.tables.title.clone().unwrap_or_else(|| scenario.name.clone()),
            gpus: scenario.tables.fleet.gpus,
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
        writeln!(out, "{}", self.title)?;
        writeln!(out, "whole jobs at the scenario's own values, {} replications each\n", self.replications)?;
        writeln!(out, "{:>5} {:>8} {:>9} {:>11}   assumption", "GPUs", "days", "tok/s", "efficiency")?;
        for point in &self.points {
            let half = point.efficiency_half_width.map_or(String::new(), |half| format!(" ±{:.1}", half * 100.0));
            writeln!(
                out,
                "{:>5} {:>8.2} {:>9} {:>11}   {}",
                point.gpus,
                point.makespan_days,
                rate(point.output_tok_per_s),
                format!("{:.1}%{half}", point.efficiency * 100.0),
                point.words
            )?;
        }
        let targets: Vec<String> = self.to_tok_per_s.iter().map(|target| format!("{target:.0}")).collect();
        writeln!(
            out,
            "\nwhat would turn {:.0} tok/s into {} on {} GPUs, one at a time, all else as it is",
            self.from_tok_per_s,
            targets.join(" or "),
            self.gpus
        )?;
        for it in &self.explanations {
            // Times are stored in seconds and shown in ms.
            let unit = if it.what.contains(" ms") { 1e3 } else { 1.0 };
            let shown = |value: f64| format!("{:.3}", value * unit);
            let needed: Vec<String> =
                it.needed.iter().map(|value| value.map_or("no value does".to_owned(), shown)).collect();
            writeln!(out, "  {:<68} {:>7} now, {}", it.what, shown(it.now), needed.join(" or "))?;
        }
        if let (Some(first), Some(last)) = (self.to_tok_per_s.first(), self.to_tok_per_s.last()) {
            let share = |target: &f64| percent(1.0 - target / self.from_tok_per_s);
            writeln!(
                out,
                "a loss of {} to {}; not modelled: {}",
                share(first),
                share(last),
                self.not_modelled.join(", ")
            )?;
        }
        Ok(())
    }
}
