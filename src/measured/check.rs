//! A table's faults, found before anything is fitted to it.

use std::fmt;

use serde::Serialize;

use super::curve::{Curve, Point, capped, effective_batch, expected_noise, knee, plateau};
use super::outlier::{OddityKind, oddities};
use super::table::{RateKind, Row, Table, output_tok_per_s};

/// How much a finding matters.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Severity {
    /// The table contradicts itself: it must not be used as it is.
    Error,
    /// Usable, but a number in it is in doubt.
    Warning,
    /// Worth knowing when reading the numbers.
    Note,
}

/// What a finding is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Topic {
    /// The kind of the rate contradicts tpot.
    KindAgainstTpot,
    /// Output and total rates in one curve, not convertible.
    MixedKinds,
    /// Two rates for one concurrency and shape.
    TwoRates,
    /// A row that does not fit its neighbours.
    Outlier,
    /// A lasting fall of the rate.
    Cliff,
    /// Signs of a cap on running requests.
    Capped,
    /// Fewer requests decode than are in flight.
    PartlyRunning,
    /// Plateau and knee.
    Plateau,
    /// Only points beyond the knee.
    Saturated,
    /// Prefill is not in the rate.
    DecodeWindow,
    /// As many requests as in flight.
    SingleWave,
    /// Fewer requests than the concurrency.
    BelowConcurrency,
    /// So few requests that noise matters.
    FewRequests,
    /// Columns that were not used.
    UnusedColumns,
    /// Runs or files that are not in the table.
    LeftOut,
    /// A row that the description doubts.
    DoubtedBySource,
}

/// One thing found in a table.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Finding {
    /// What it is about.
    pub topic: Topic,
    /// Lines in the file, from 1; none when it concerns the whole table.
    pub lines: Vec<u64>,
    /// How much it matters.
    pub severity: Severity,
    /// What was found, with its numbers.
    pub what: String,
    /// What the program does about it, or what would be right.
    pub done: String,
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let severity = match self.severity {
            Severity::Error => "error",
            Severity::Warning => "warning",
            Severity::Note => "note",
        };
        write!(f, "{severity}")?;
        if !self.lines.is_empty() {
            let lines: Vec<String> = self.lines.iter().map(u64::to_string).collect();
            write!(f, " (line {})", lines.join(", "))?;
        }
        write!(f, ": {}; {}", self.what, self.done)
    }
}

impl Finding {
    /// Whether the rows on its lines must stay out of a fit.
    pub fn excludes_rows(&self) -> bool {
        matches!(self.topic, Topic::KindAgainstTpot | Topic::MixedKinds | Topic::TwoRates | Topic::Outlier)
    }
}

fn finding(topic: Topic, lines: Vec<u64>, what: String, done: impl Into<String>) -> Finding {
    let severity = match topic {
        Topic::KindAgainstTpot | Topic::MixedKinds => Severity::Error,
        Topic::TwoRates | Topic::Outlier | Topic::Cliff | Topic::Capped | Topic::BelowConcurrency | Topic::LeftOut => {
            Severity::Warning
        }
        _ => Severity::Note,
    };
    Finding { topic, lines, severity, what, done: done.into() }
}

/// Everything found in `table`, curve by curve.
pub fn check(table: &Table) -> Vec<Finding> {
    let mut findings = Vec::new();
    for curve in table.curves() {
        findings.extend(curve.rows.iter().filter_map(|row| kind_against_tpot(row)));
        if curve.kind.is_none() {
            let what = "output and total rates in one curve whose lengths are unknown".to_owned();
            let done = "fill in input_tokens and output_tokens, or use one kind";
            findings.push(finding(Topic::MixedKinds, lines(&curve.rows), what, done));
            continue;
        }
        findings.extend(measured_how(&curve));
        let conflicts = two_rates(&curve);
        shape_of(&curve, &lines_of(&conflicts), &mut findings);
        findings.extend(conflicts);
    }
    if !table.unused_columns.is_empty() {
        let what = format!("columns not used: {}", table.unused_columns.join(", "));
        findings.push(finding(Topic::UnusedColumns, Vec::new(), what, "rates come from the other columns"));
    }
    if let Some(first) = table.left_out.first() {
        let rest = match table.left_out.len() {
            1 => String::new(),
            more => format!(", and {} more", more - 1),
        };
        let what = format!("left out: {first}{rest}");
        findings.push(finding(Topic::LeftOut, Vec::new(), what, "`makespan inspect` names each with its reason"));
    }
    if let Some(suspect) = table.about.as_ref().and_then(|about| about.suspect.as_ref()) {
        let what = format!("the description doubts a row: {suspect}");
        findings.push(finding(Topic::DoubtedBySource, Vec::new(), what, "the row stays in the table"));
    }
    findings
}

/// How far the output rate may exceed concurrency × 1000 / tpot: rounding, and means against medians.
const TPOT_SLACK: f64 = 1.15;

/// The kind of rate against tpot: `c` streams cannot give more output than c × 1000 / tpot, and one stream gives
/// output / (ttft + output × tpot).
fn kind_against_tpot(row: &Row) -> Option<Finding> {
    let ceiling = f64::from(row.concurrency) * 1e3 / row.tpot_ms?;
    let (tpot, rate, streams) = (short(row.tpot_ms?), row.tok_per_s, row.concurrency);
    let fits = |output: f64| output <= TPOT_SLACK * ceiling;
    let found = match row.kind {
        RateKind::Output if !fits(rate) => {
            let as_total = output_tok_per_s(&Row { kind: RateKind::Total, ..row.clone() }).filter(|rate| fits(*rate));
            let what = format!(
                "{} output tok/s at concurrency {streams}, but a tpot of {tpot} ms allows at most {} output tok/s",
                short(rate),
                short(ceiling)
            );
            let done = match (as_total, row.shape.input_tokens, row.shape.output_tokens) {
                (Some(_), Some(input), Some(output)) => format!(
                    "set throughput_kind to `total`: with {input} in and {output} out that tpot gives up to {} total",
                    short(ceiling * (input + output) / output)
                ),
                (_, None, _) | (_, _, None) => "is it `total`? fill in input_tokens and output_tokens".to_owned(),
                _ => "neither kind fits: is tpot in ms, and the rate that of all streams?".to_owned(),
            };
            (what, done)
        }
        RateKind::Total if row.concurrency == 1 => {
            let (output, ttft) = (row.shape.output_tokens?, row.ttft_ms?);
            let expected = output / (ttft + output * row.tpot_ms?) * 1e3;
            let as_total = output_tok_per_s(row)?;
            if as_total * TPOT_SLACK > expected || rate > TPOT_SLACK * expected || rate * TPOT_SLACK < expected {
                return None;
            }
            let what = format!(
                "{} total tok/s at one stream is {} output tok/s, but ttft and a tpot of {tpot} ms give {}",
                short(rate),
                short(as_total),
                short(expected)
            );
            (what, format!("set throughput_kind to `output`: {} fits that", short(rate)))
        }
        _ => return None,
    };
    Some(finding(Topic::KindAgainstTpot, vec![row.line], found.0, found.1))
}

/// Rates of one concurrency further apart than this are two states of the system, not scatter.
const SAME_RATE: f64 = 1.1;

fn two_rates(curve: &Curve<'_>) -> Vec<Finding> {
    let groups = curve.points.chunk_by(|a, b| a.concurrency == b.concurrency);
    groups
        .filter(|group| group.len() > 1)
        .filter_map(|group| {
            let (least, most) = extremes(group.iter().map(|point| point.tok_per_s));
            let lines = group.iter().map(|point| point.line).collect();
            let (streams, low, high) = (group[0].concurrency, short(least), short(most));
            (most > SAME_RATE * least).then(|| {
                let what = format!("two rates at concurrency {streams} for the same lengths: {low} and {high} tok/s");
                let done = "both are kept apart and left out of plateau and fit, never averaged; \
                            give each state of the system its own table";
                finding(Topic::TwoRates, lines, what, done)
            })
        })
        .collect()
}

/// Few requests per point, single waves, clients below their concurrency, decode windows.
fn measured_how(curve: &Curve<'_>) -> Vec<Finding> {
    let mut findings = Vec::new();
    let with = |test: &dyn Fn(&Row, u64) -> bool| -> Vec<&Row> {
        curve.rows.iter().copied().filter(|row| row.num_requests.is_some_and(|count| test(row, count))).collect()
    };
    if curve.shape.input_tokens.is_some() && curve.shape.output_tokens.is_none() {
        let what = "decode window: a context but no output length, so prefill is not in the rate".to_owned();
        findings.push(finding(
            Topic::DecodeWindow,
            lines(&curve.rows),
            what,
            "use it for decode steps only; its ttft is not judged",
        ));
    }
    let waves = with(&|row, count| count == u64::from(row.concurrency));
    if !waves.is_empty() {
        let what = "single wave: as many requests as in flight, so ramp-up and tail are in the rate".to_owned();
        findings.push(finding(Topic::SingleWave, lines(&waves), what, "a steady job is faster; compare with one wave"));
    }
    let below = with(&|row, count| count < u64::from(row.concurrency));
    if !below.is_empty() {
        let what = "fewer requests counted than the concurrency: it was not reached, or some failed".to_owned();
        findings.push(finding(Topic::BelowConcurrency, lines(&below), what, "take at most that many as in flight"));
    }
    // Below ten requests the noise exceeds a tenth.
    let few = with(&|_, count| count < 10);
    if let Some(least) = few.iter().filter_map(|row| row.num_requests).min() {
        let most = few.iter().filter_map(|row| row.num_requests).max().unwrap_or(least);
        let count = if least == most { least.to_string() } else { format!("{least} to {most}") };
        let noise = 100.0 * expected_noise(least);
        let what = format!("few requests per point ({count}): noise of up to about {noise:.0} % unless all are alike");
        findings.push(finding(Topic::FewRequests, lines(&few), what, "weigh by the number of requests"));
    }
    findings
}

/// Outliers and cliffs, then plateau, knee, cap and effective batch of what remains.
fn shape_of(curve: &Curve<'_>, conflicting: &[u64], findings: &mut Vec<Finding>) {
    let mut points = curve.points.clone();
    points.retain(|point| !conflicting.contains(&point.line));
    if curve.shape.input_tokens.is_some() && curve.shape.output_tokens.is_none() {
        points.iter_mut().for_each(|point| point.ttft_ms = None);
    }
    for odd in oddities(&points) {
        let (at, found, expected) = (odd.concurrency, short(odd.tok_per_s), short(odd.expected_tok_per_s));
        let (topic, what, done) = match odd.kind {
            OddityKind::Outlier => {
                points.retain(|point| point.line != odd.line);
                let what = format!("concurrency {at}: {found} tok/s does not fit its neighbours, {expected} would");
                (Topic::Outlier, what, "left out of plateau and fit; measure it again")
            }
            OddityKind::Cliff => {
                let what = format!("concurrency {at}: the rate falls from {expected} to {found} tok/s and stays down");
                (Topic::Cliff, what, "kept: a full KV pool does this; stay below that concurrency")
            }
        };
        findings.push(finding(topic, vec![odd.line], what, done));
    }
    let unit = match curve.kind {
        Some(RateKind::Total) => "total tok/s",
        _ => "output tok/s",
    };
    if let (Some(plateau), Some(knee)) = (plateau(&points), knee(&points)) {
        let on: Vec<u64> = points
            .iter()
            .filter(|point| point.concurrency >= plateau.from_concurrency)
            .map(|point| point.line)
            .collect();
        let level = short(plateau.tok_per_s);
        let (topic, what, done) = if on.len() == points.len() {
            let what = format!("saturated: every point is on the plateau of {level} {unit}");
            (Topic::Saturated, what, format!("the knee is at or below {knee}; the table cannot tell where"))
        } else {
            let what = format!("plateau of {level} {unit}, 95 % reached by concurrency {knee}");
            (Topic::Plateau, what, "more in flight adds waiting, not output".to_owned())
        };
        findings.push(finding(topic, on, what, done));
    }
    if curve.kind == Some(RateKind::Output) {
        running(&points, findings);
    }
}

fn running(points: &[Point], findings: &mut Vec<Finding>) {
    let cap = capped(points);
    if !cap.is_empty() {
        let (least, most) = extremes(cap.iter().map(|batch| batch.running));
        let what =
            format!("capped: about {} requests run at once (rate × tpot) whatever the concurrency", range(least, most));
        let done = "rate and tpot are flat, so this is a limit on running requests; lift it, or keep fewer in flight";
        findings.push(finding(Topic::Capped, cap.iter().map(|batch| batch.line).collect(), what, done));
        return;
    }
    for batch in points.iter().filter_map(effective_batch) {
        let in_flight = f64::from(batch.concurrency);
        if batch.running < 0.5 * in_flight {
            let running = short(batch.running);
            let what = format!("about {running} of {in_flight} requests decode at once (rate × tpot)");
            findings.push(finding(Topic::PartlyRunning, vec![batch.line], what, "the others wait or are in prefill"));
        }
    }
}

fn lines(rows: &[&Row]) -> Vec<u64> {
    rows.iter().map(|row| row.line).collect()
}

fn lines_of(findings: &[Finding]) -> Vec<u64> {
    findings.iter().flat_map(|finding| finding.lines.iter().copied()).collect()
}

fn extremes(values: impl Iterator<Item = f64>) -> (f64, f64) {
    values.fold((f64::INFINITY, 0.0), |(least, most), value| (least.min(value), most.max(value)))
}

/// `23`, or `22 to 24` when rounding tells them apart.
fn range(least: f64, most: f64) -> String {
    if least.round() == most.round() { format!("{least:.0}") } else { format!("{least:.0} to {most:.0}") }
}

/// A number for a message: three digits or more.
fn short(number: f64) -> String {
    match number {
        number if number >= 100.0 => format!("{number:.0}"),
        number if number >= 10.0 => format!("{number:.1}"),
        _ => format!("{number:.2}"),
    }
}
