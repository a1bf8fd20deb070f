//! More GPUs.

use std::io::{self, Write};

use serde::Serialize;

use crate::experiment::{Explained, Point};
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
    simulated_tok_per_s: f64,
    explanations: Vec<ExplanationReport>,
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
        found: &Explained,
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
            simulated_tok_per_s: found.tok_per_s,
            explanations: found
                .explanations
                .iter()
                .map(|it| ExplanationReport { key: it.key, what: it.what, now: it.now, needed: it.needed.clone() })
                .collect(),
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
        writeln!(out, "at the scenario's own values, {} replications each; ±: 95% interval\n", self.replications)?;
        let mut counts: Vec<u32> = self.points.iter().map(|point| point.gpus).collect();
        counts.sort_unstable();
        counts.dedup();
        let of = |mechanism: &str, gpus: u32| {
            self.points.iter().find(|point| point.mechanism == mechanism && point.gpus == gpus)
        };
        let heads: String =
            counts.iter().map(|gpus| format!(" {:>12}", format!("{gpus} GPU{}", plural(*gpus)))).collect();
        writeln!(out, "{:<48}{heads}", "output, tok/s")?;
        for point in self.points.iter().filter(|point| point.gpus == counts[0]) {
            let cell = |gpus: &u32| of(point.mechanism, *gpus).map_or(String::new(), |it| rate(it.output_tok_per_s));
            let cells: String = counts.iter().map(|gpus| format!(" {:>12}", cell(gpus))).collect();
            writeln!(out, "  {:<46}{cells}", point.words)?;
        }
        writeln!(out, "\n{:<48}{heads}", "efficiency")?;
        for point in self.points.iter().filter(|point| point.gpus == counts[0]) {
            let cell = |gpus: &u32| {
                let it = of(point.mechanism, *gpus)?;
                let half = it.efficiency_half_width.map_or(String::new(), |half| format!(" ±{:>4.1}", half * 100.0));
                Some(format!("{:.1}%{half}", it.efficiency * 100.0))
            };
            let cells: String = counts.iter().map(|gpus| format!(" {:>12}", cell(gpus).unwrap_or_default())).collect();
            writeln!(out, "  {:<46}{cells}", point.words)?;
        }
        writeln!(out, "\nfigures in an assumption are assumed, not measured; failures lose what was in flight")?;
        let shares: Vec<f64> = self.to_tok_per_s.iter().map(|target| target / self.from_tok_per_s).collect();
        let named = |rates: &mut dyn Iterator<Item = f64>| rates.map(rate).collect::<Vec<_>>().join(" or ");
        let losses = shares.iter().map(|share| percent(1.0 - share)).collect::<Vec<_>>().join(" or ");
        writeln!(
            out,
            "\n{} tok/s in place of {} is a loss of {losses}. What would take as much of the\n\
             simulated {} tok/s of {} GPU{} (leaving {}), one at a time, all else as it is:\n",
            named(&mut self.to_tok_per_s.iter().copied()),
            rate(self.from_tok_per_s),
            rate(self.simulated_tok_per_s),
            self.gpus,
            plural(self.gpus),
            named(&mut shares.iter().map(|share| share * self.simulated_tok_per_s)),
        )?;
        let heads: String =
            shares.iter().map(|share| format!(" {:>10}", format!("-{}", percent(1.0 - share)))).collect();
        writeln!(out, "  {:<62} {:>10}{heads}", "", "now")?;
        for it in &self.explanations {
            let needed = |value: &Option<f64>| value.map_or("none".to_owned(), digits);
            let cells: String = it.needed.iter().map(|value| format!(" {:>10}", needed(value))).collect();
            writeln!(out, "  {:<62} {:>10}{cells}", it.what, digits(it.now))?;
        }
        Ok(())
    }
}

fn plural(number: u32) -> &'static str {
    if number == 1 { "" } else { "s" }
}

/// Four digits that count.
fn digits(value: f64) -> String {
    if value == 0.0 {
        return "0".to_owned();
    }
    if value.abs() < 1e-3 {
        return format!("{value:.2e}");
    }
    let decimals = (3.0 - value.abs().log10().floor()).clamp(0.0, 9.0) as usize;
    format!("{value:.decimals$}")
}
