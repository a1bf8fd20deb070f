//! What `inspect` says of a file.

use std::io::{self, Write};

use crate::format::{duration, percent, rate, thousands};
use crate::inspect::checks::NAMES;
use crate::inspect::{Column, EngineReadings, Inspection, LengthReport, Picture, TableReport};

/// Lines of the picture.
const PICTURE_LINES: usize = 5;

/// Points of a table that are printed.
const MOST_POINTS: usize = 40;

/// The report of an inspection.
#[derive(Clone, Debug)]
pub struct InspectReport(pub Inspection);

impl InspectReport {
    /// As JSON, one object.
    ///
    /// # Errors
    /// What writing gives.
    pub fn write_json(&self, out: &mut impl Write) -> io::Result<()> {
        serde_json::to_writer_pretty(&mut *out, &self.0)?;
        writeln!(out)
    }

    /// As text.
    ///
    /// # Errors
    /// What writing gives.
    pub fn write_text(&self, out: &mut impl Write) -> io::Result<()> {
        let inspection = &self.0;
        let what = match (&inspection.lengths, &inspection.table, &inspection.engine) {
            (_, Some(TableReport { imported: Some(imported), .. }), _) => format!(" ({})", imported.tool),
            (Some(lengths), ..) => format!(" ({})", lengths.format),
            (_, _, Some(engine)) => format!(" ({})", engine.engine),
            _ => String::new(),
        };
        writeln!(out, "{} is {}{what}", inspection.file, inspection.kind.words())?;
        writeln!(out, "use it as {}", inspection.kind.use_as())?;
        inspection.notes.iter().try_for_each(|note| writeln!(out, "{note}"))?;
        if let Some(table) = &inspection.table {
            write_table(out, table)?;
        }
        if let Some(engine) = &inspection.engine {
            write_engine(out, engine)?;
        }
        if let Some(lengths) = &inspection.lengths {
            write_lengths(out, lengths)?;
        }
        if !inspection.model.is_empty() {
            writeln!(out)?;
            inspection.model.iter().try_for_each(|line| writeln!(out, "    {line}"))?;
        }
        Ok(())
    }
}

fn write_table(out: &mut impl Write, table: &TableReport) -> io::Result<()> {
    if !table.points.is_empty() {
        writeln!(out, "\nconcurrency      tok/s  kind    requests   input  output  ttft ms  tpot ms")?;
    }
    let cell = |value: Option<f64>| value.map_or_else(|| "-".to_owned(), rate);
    for row in table.points.iter().take(MOST_POINTS) {
        writeln!(
            out,
            "{:>11} {:>10}  {:<6} {:>9} {:>7} {:>7} {:>8} {:>8}",
            row.concurrency,
            rate(row.tok_per_s),
            row.kind.name(),
            row.num_requests.map_or_else(|| "-".to_owned(), thousands),
            cell(row.shape.input_tokens),
            cell(row.shape.output_tokens),
            cell(row.ttft_ms),
            cell(row.tpot_ms)
        )?;
    }
    if table.points.len() > MOST_POINTS {
        writeln!(out, "… and {} more", table.points.len() - MOST_POINTS)?;
    }
    if let Some(acceptance) = table.server.acceptance {
        writeln!(out, "acceptance  {acceptance:.2} tokens a step and request")?;
    }
    if let Some(cap) = table.server.running_cap {
        writeln!(out, "the server runs at most {cap} requests")?;
    }
    table.left_out.iter().try_for_each(|why| writeln!(out, "left out: {why}"))?;
    if !table.findings.is_empty() {
        writeln!(out)?;
    }
    table.findings.iter().try_for_each(|finding| writeln!(out, "{finding}"))
}

fn write_engine(out: &mut impl Write, engine: &EngineReadings) -> io::Result<()> {
    writeln!(out, "{} lines, {} moments\n", thousands(engine.lines), thousands(engine.moments))?;
    for (name, value) in [
        ("max running requests", engine.max_running),
        ("KV pool, tokens", engine.kv_pool_tokens),
        ("recurrent states", engine.state_slots),
        ("context, tokens", engine.context_tokens),
        ("prefill chunk, tokens", engine.prefill_chunk_tokens),
    ] {
        if let Some(value) = value {
            writeln!(out, "{name:<22} {:>10}", thousands(value))?;
        }
    }
    if engine.moments > 0 {
        writeln!(out, "{:<22} {:>10}", "most running", engine.most_running)?;
        writeln!(out, "{:<22} {:>10}", "most queued", engine.most_queued)?;
    }
    if let (Some(mean), Some(peak)) = (engine.mean_tok_per_s, engine.peak_tok_per_s) {
        writeln!(out, "{:<22} {:>10} on average, {} at most", "generated tok/s", rate(mean), rate(peak))?;
    }
    if !engine.acceptance_by_place.is_empty() {
        let places: Vec<String> = engine.acceptance_by_place.iter().map(|p| format!("{p:.2}")).collect();
        writeln!(out, "{:<22} {:>10}", "acceptance by place", places.join(" "))?;
    }
    writeln!(out)?;
    engine.verdict.iter().try_for_each(|line| writeln!(out, "{line}"))
}

fn write_lengths(out: &mut impl Write, lengths: &LengthReport) -> io::Result<()> {
    write!(
        out,
        "\nrows        {} read, {} with an output length",
        thousands(lengths.rows),
        thousands(lengths.used as u64)
    )?;
    if lengths.without_output > 0 {
        write!(out, ", {} without", thousands(lengths.without_output))?;
    }
    writeln!(out, ", {} refused", thousands(lengths.refused))?;
    for reason in &lengths.reasons {
        writeln!(out, "            {} refused: {}", thousands(reason.rows), reason.what)?;
    }
    lengths.notes.iter().try_for_each(|note| writeln!(out, "note        {note}"))?;
    if lengths.input.is_some() || lengths.output.is_some() {
        writeln!(out, "\ntokens         mean     cv     p10     p50     p90      p99      max")?;
    }
    for (name, column) in [("input", &lengths.input), ("output", &lengths.output)] {
        if let Some(column) = column {
            write_column(out, name, column)?;
        }
    }
    if let Some(rho) = lengths.rank_correlation {
        writeln!(out, "rank correlation of input and output {rho:+.2}")?;
    }
    if let Some(arrivals) = &lengths.arrivals {
        let spread = arrivals.gap_cv.map(|cv| format!(", gap cv {cv:.2}")).unwrap_or_default();
        writeln!(out, "{:.2} requests/s over {}{spread}", arrivals.rate_per_s, duration(arrivals.span_s))?;
    }
    if let Some(picture) = &lengths.picture {
        write_picture(out, picture)?;
    }
    if !lengths.caps.is_empty() {
        write_caps(out, lengths)?;
    }
    if let Some(best) = lengths.fits.first() {
        writeln!(out, "\nfitted law     AIC above the best   largest distance")?;
        for fit in &lengths.fits {
            writeln!(out, "{:<12} {:>20} {:>18.3}", fit.law, thousands(fit.delta_aic.round() as u64), fit.ks)?;
        }
        writeln!(out, "best           {}", best.toml)?;
    }
    write_checks(out, lengths)
}

fn write_column(out: &mut impl Write, name: &str, column: &Column) -> io::Result<()> {
    let count = |tokens: u32| thousands(u64::from(tokens));
    writeln!(
        out,
        "{name:<8} {:>10} {:>6.2} {:>7} {:>7} {:>7} {:>8} {:>8}",
        rate(column.mean),
        column.cv,
        count(column.p10),
        count(column.p50),
        count(column.p90),
        count(column.p99),
        count(column.max)
    )
}

fn write_picture(out: &mut impl Write, picture: &Picture) -> io::Result<()> {
    const EIGHTHS: [char; 9] = [' ', '▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];
    let most = picture.shares.iter().fold(0.0, |most: f64, share| most.max(*share));
    writeln!(out)?;
    for line in (0..PICTURE_LINES).rev() {
        let row: String = picture
            .shares
            .iter()
            .map(|share| {
                // A share that is there is seen.
                let height = (share / most * (8 * PICTURE_LINES) as f64).round().max(f64::from(u8::from(*share > 0.0)));
                EIGHTHS[((height as usize).saturating_sub(8 * line)).min(8)]
            })
            .collect();
        writeln!(out, "    {}", row.trim_end())?;
    }
    let width = picture.shares.len();
    let at = |share: f64| thousands((picture.low * (picture.high / picture.low).powf(share)).round() as u64);
    let (left, middle, right) = (at(0.0), at(0.5), at(1.0));
    let gap = (width / 2).saturating_sub(left.len() + middle.len() / 2);
    let rest = width.saturating_sub(left.len() + gap + middle.len() + right.len());
    writeln!(out, "    {left}{}{middle}{}{right}  output tokens", " ".repeat(gap), " ".repeat(rest))
}

fn write_caps(out: &mut impl Write, lengths: &LengthReport) -> io::Result<()> {
    let corrected = lengths.caps.iter().any(|cap| cap.corrected_mean.is_some());
    let heading = if corrected { "   corrected (Kaplan-Meier)" } else { "" };
    writeln!(out, "\ncap         share above   E[min(X, cap)]{heading}")?;
    // Beyond the longest output nothing changes.
    let last = lengths.caps.iter().position(|cap| cap.share_above == 0.0).unwrap_or(lengths.caps.len());
    for cap in lengths.caps.iter().take(last + 1) {
        let mean = match (corrected, cap.corrected_mean) {
            (false, _) => String::new(),
            (true, Some(mean)) => format!(" {:>16}", rate(mean)),
            (true, None) => format!(" {:>16}", "unknown"),
        };
        writeln!(
            out,
            "{:>6} {:>16} {:>16}{mean}",
            thousands(u64::from(cap.cap)),
            percent(cap.share_above),
            rate(cap.mean_capped)
        )?;
    }
    if let Some(beyond) = lengths.beyond {
        writeln!(
            out,
            "{} outputs are lower bounds (cut or running); {} are longer than any complete one",
            thousands(lengths.censored as u64),
            percent(beyond)
        )?;
    }
    if let (Some(job), Some(output)) = (&lengths.job, &lengths.output) {
        let largest = lengths.caps.iter().rev().find_map(|cap| cap.corrected_mean.map(|mean| (cap.cap, mean)));
        let total = job.total as f64;
        write!(
            out,
            "the whole job of {}: {} tokens by the plain mean",
            thousands(job.total),
            crate::format::tokens((output.mean * total) as u64)
        )?;
        match largest {
            Some((cap, mean)) => writeln!(
                out,
                ", {} corrected, with a cap of {}",
                crate::format::tokens((mean * total) as u64),
                thousands(u64::from(cap))
            )?,
            None => writeln!(out)?,
        }
    }
    Ok(())
}

fn write_checks(out: &mut impl Write, lengths: &LengthReport) -> io::Result<()> {
    let checks = &lengths.checks;
    writeln!(out)?;
    checks.findings.iter().try_for_each(|finding| writeln!(out, "{finding}"))?;
    let named = |numbers: &[u8]| {
        let names: Vec<String> =
            numbers.iter().map(|number| format!("{number} {}", NAMES[usize::from(*number) - 1].0)).collect();
        names.join(", ")
    };
    if !checks.passed.is_empty() {
        writeln!(out, "passed: {}", named(&checks.passed))?;
    }
    if !checks.not_done.is_empty() {
        writeln!(out, "not done, for lack of columns or rows: {}", named(&checks.not_done))?;
    }
    Ok(())
}
