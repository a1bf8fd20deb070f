//! How good predictions are on measured tables: as text, as JSON, and as the accuracy table in Markdown.

use std::io::{self, Write};

use serde_json::{Map, Value, json};

use crate::calibrate::{Accuracy, Test, TestKind, Validation, signed_percent};
use crate::report::format::rate;

/// What `validate` says.
pub struct ValidateReport<'a> {
    validation: &'a Validation,
    seed: u64,
    wall_s: f64,
}

fn accuracy_json(one: Accuracy) -> Value {
    json!({
        "count": one.count, "median": one.median, "p90": one.p90, "bias": one.bias,
        "inside_50": one.inside_half, "inside_90": one.inside_nine_tenths,
    })
}

/// Misses beyond this are listed.
const MISS: f64 = 0.15;

impl<'a> ValidateReport<'a> {
    /// The report of a validation.
    pub fn new(validation: &'a Validation, seed: u64, wall_s: f64) -> Self {
        ValidateReport { validation, seed, wall_s }
    }

    /// As JSON, one object.
    ///
    /// # Errors
    /// What writing gives.
    pub fn write_json(&self, out: &mut impl Write) -> io::Result<()> {
        let found = self.validation;
        let accuracy: Map<String, Value> = TestKind::ALL
            .into_iter()
            .filter_map(|kind| {
                let mut value = accuracy_json(found.accuracy(kind)?);
                value["explained"] = found.accuracy_explained(kind).map_or(Value::Null, accuracy_json);
                Some((kind.key().to_owned(), value))
            })
            .collect();
        let test = |test: &Test| {
            json!({
                "kind": test.kind.key(), "table": test.table, "what": test.what, "measured": test.measured,
                "predicted": test.forecast.value, "log_error": test.error(), "deviation": test.forecast.deviation,
                "flagged": test.flagged,
            })
        };
        let object = json!({
            "accuracy": accuracy,
            "tests": found.tests.iter().map(test).collect::<Vec<_>>(),
            "tables": found.tables.iter().map(|table| json!({
                "table": table.table, "rows": table.rows, "rms_log_error": table.rms_log_error, "note": table.note,
                "assumed": table.assumed,
            })).collect::<Vec<_>>(),
            "seed": self.seed,
            "wall_s": self.wall_s,
        });
        serde_json::to_writer_pretty(&mut *out, &object)?;
        writeln!(out)
    }

    /// As text.
    ///
    /// # Errors
    /// What writing gives.
    pub fn write_text(&self, out: &mut impl Write) -> io::Result<()> {
        let found = self.validation;
        writeln!(
            out,
            "                                                                             without flagged tables"
        )?;
        writeln!(
            out,
            "predicted from                   number   median   p90    bias  in 50%  in 90%   number  median    p90"
        )?;
        for kind in TestKind::ALL {
            let Some(one) = found.accuracy(kind) else { continue };
            let percent = |share: f64| format!("{:.1}%", 100.0 * share);
            let explained = found.accuracy_explained(kind);
            let explained = explained.map_or(String::new(), |one| {
                format!("{:>8} {:>7} {:>6}", one.count, percent(one.median), percent(one.p90))
            });
            writeln!(
                out,
                "{:<32} {:>6} {:>8} {:>5} {:>7} {:>6.0}% {:>6.0}% {explained}",
                kind.words(),
                one.count,
                percent(one.median),
                percent(one.p90),
                format!("{:+.1}%", 100.0 * one.bias),
                100.0 * one.inside_half,
                100.0 * one.inside_nine_tenths
            )?;
        }
        writeln!(out, "\nmisses beyond {:.0}%", 100.0 * MISS)?;
        for test in found.tests.iter().filter(|test| test.error().exp_m1().abs() > MISS) {
            writeln!(
                out,
                "    {} {}: {} for {} measured ({}){}{}",
                test.table,
                test.what,
                rate(test.forecast.value),
                rate(test.measured),
                signed_percent(test.error()),
                if test.forecast.holds_nine_tenths(test.measured) { "" } else { ", outside the 90% interval" },
                if test.flagged { ", flagged: not explained by the model" } else { "" }
            )?;
        }
        writeln!(out, "\ntable                                                     rows     fit")?;
        for table in &found.tables {
            let fit = table.rms_log_error.map_or("-".to_owned(), |rms| format!("{:.1}%", 100.0 * rms));
            let mut notes: Vec<String> = table.note.iter().cloned().collect();
            notes.extend(table.assumed.iter().map(|assumed| format!("assumed: {assumed}")));
            writeln!(out, "{:<58} {:>3} {:>7}   {}", table.table, table.rows, fit, notes.join("; "))?;
        }
        writeln!(out, "\n{:.1} s", self.wall_s)
    }

    /// The accuracy table, in Markdown.
    ///
    /// # Errors
    /// What writing gives.
    pub fn write_markdown(&self, out: &mut impl Write) -> io::Result<()> {
        let found = self.validation;
        writeln!(
            out,
            "| predicted from | predictions | median error | 90th percentile | in 50% interval | in 90% interval | \
             without flagged tables: median, 90th percentile |"
        )?;
        writeln!(out, "|---|---|---|---|---|---|---|")?;
        for kind in TestKind::ALL {
            let Some(one) = found.accuracy(kind) else { continue };
            let explained = found.accuracy_explained(kind);
            let explained =
                explained.map_or("-".to_owned(), |one| format!("{:.1}%, {:.1}%", 100.0 * one.median, 100.0 * one.p90));
            writeln!(
                out,
                "| {} | {} | {:.1}% | {:.1}% | {:.0}% | {:.0}% | {explained} |",
                kind.words(),
                one.count,
                100.0 * one.median,
                100.0 * one.p90,
                100.0 * one.inside_half,
                100.0 * one.inside_nine_tenths
            )?;
        }
        Ok(())
    }
}
