//! Checks 12 to 15: the file as a whole.

use super::{Findings, rows};
use crate::format::{duration, percent, thousands};
use crate::inspect::gather::Gathered;
use crate::inspect::job::JobPart;
use crate::measured::Severity::{Error, Note, Warning};

/// Drift of the input above which it is more than that of a service from half an hour to the next (0.06 to 0.08 in
/// Azure's and Mooncake's traces).
const LARGE_DRIFT: f64 = 0.15;

/// Standard deviation over mean of the gaps from which arrivals come in bursts; real services lie between 1 and 3.
const BURSTY: f64 = 4.0;

pub(super) fn run(gathered: &Gathered, job: Option<&JobPart>, findings: &mut Findings) {
    order(gathered, findings);
    identical(gathered, findings);
    sampling(gathered, job, findings);
    times(gathered, findings);
}

fn order(gathered: &Gathered, findings: &mut Findings) {
    if gathered.histogram || gathered.output_order.rows() < 100 {
        return;
    }
    findings.check(12);
    for (order, column, threshold) in [(&gathered.input_order, "input", 0.05), (&gathered.output_order, "output", 0.1)]
    {
        if let Some(way) = order.monotone() {
            let what = format!("the {column} is sorted, {way}");
            let effect = "the load changes over the job, and the drain depends on it; shuffle only on purpose";
            findings.add(12, Warning, what, effect);
            continue;
        }
        let distance = order.ks_of_halves();
        // What two halves of one law differ by, once in a thousand.
        let chance = 1.95 * f64::sqrt(4.0 / order.rows().max(1) as f64);
        if distance > threshold && distance > chance {
            let what = format!("the first and second half differ in {column} by {distance:.2} (Kolmogorov-Smirnov)");
            let effect = "the mix drifts or rows are grouped: a part of the file does not stand for the whole";
            // The mix of prompts of every real service drifts a little within the hour.
            let severity = if column == "input" && distance < LARGE_DRIFT { Note } else { Warning };
            findings.add(12, severity, what, effect);
        }
    }
}

fn identical(gathered: &Gathered, findings: &mut Findings) {
    let n = gathered.both.n;
    if n >= 20.0 {
        findings.check(13);
        let effect = "a wrong column or made-up lengths";
        let one_length = gathered.output.distinct() == 1;
        if gathered.equal as f64 > 0.9 * n {
            findings.add(13, Error, "input and output are equal".to_owned(), effect);
        } else if gathered.ratio_kept as f64 > 0.99 * (n - 1.0) && !one_length {
            let what = format!("output over input is always {:.3}", gathered.ratio.unwrap_or(0.0));
            findings.add(13, Error, what, effect);
        } else if gathered.both.correlation() > 0.99 {
            findings.add(13, Error, "the correlation of input and output is above 0.99".to_owned(), effect);
        }
    }
    if gathered.used() >= 20.0 && gathered.output.distinct() > 1 {
        findings.check(13);
        for (bits, column) in [(gathered.output_bits, "output"), (gathered.input_bits, "input")] {
            if bits > 0 && bits.trailing_zeros() > 0 && !gathered.histogram {
                let what = format!("every {column} is a multiple of {}", 1u64 << bits.trailing_zeros());
                findings.add(13, Error, what, "lengths were rounded, padded or made up");
            }
        }
    }
}

fn sampling(gathered: &Gathered, job: Option<&JobPart>, findings: &mut Findings) {
    let Some(job) = job else { return };
    findings.check(14);
    let done = gathered.used();
    if gathered.running.total() == 0.0 && job.bias() < 0.98 && done < job.total as f64 {
        let what = format!(
            "{} of {} requests are finished, {} times the {} slots",
            thousands(done as u64),
            thousands(job.total),
            (done / job.slots as f64).round(),
            job.slots
        );
        let effect = format!(
            "short requests finish first: the plain mean is about {} low. Give the running requests' lengths so far, \
             or wait",
            percent(1.0 - job.bias())
        );
        findings.add(14, Warning, what, effect);
    } else if done < job.total as f64 {
        let what = format!("{} of the job's {} requests", percent(done / job.total as f64), thousands(job.total));
        findings.add(14, Note, what, "they stand for the rest only if they were taken at random");
    }
}

fn times(gathered: &Gathered, findings: &mut Findings) {
    let arrivals = &gathered.arrivals;
    if arrivals.rows < 20 {
        return;
    }
    findings.check(15);
    let gaps = (arrivals.rows - 1) as f64;
    let zero = arrivals.zero_gaps as f64 / gaps;
    let coarse = arrivals.step_ns >= 1_000_000_000;
    let span = arrivals.span_s();
    if span == 0.0 {
        let what = "every time stamp is the same".to_owned();
        findings.add(15, Note, what, "all requests are there at the start");
    } else if zero > 0.2 || coarse {
        let mut what = format!("{} have the time of the row before", rows(arrivals.zero_gaps as f64, gaps));
        if let Some((gap_ms, share)) = arrivals.usual_gap_ms().filter(|(gap, share)| *gap >= 1000 && *share > 0.3) {
            what += &format!("; {} of the others come {} later", percent(share), duration(f64::from(gap_ms) * 1e-3));
        } else if coarse {
            what += &format!("; all are multiples of {} apart", duration(arrivals.step_ns as f64 * 1e-9));
        }
        let severity = if zero > 0.2 { Warning } else { Note };
        let effect = "time stamps are rounded or requests come in batches: the spread of the gaps says little";
        findings.add(15, severity, what, effect).share(zero);
    }
    if let Some(cv) = arrivals.gap_cv().filter(|cv| *cv > BURSTY && zero <= 0.2 && !coarse) {
        let what = format!("the gaps between arrivals spread {cv:.1} times as much as those of a Poisson stream");
        let effect = "requests come in bursts: a rate alone does not describe the load, replay the times of the file";
        findings.add(15, Note, what, effect);
    }
    // Below one request an hour, or above 100,000 a second, the unit is not what the format says.
    let per_s = gaps / span;
    if span > 0.0 && !(1.0 / 3600.0..=1e5).contains(&per_s) {
        let guess = if per_s > 1e5 { "finer" } else { "coarser" };
        let what = format!("{per_s:.2e} requests/s over {}", duration(span));
        let effect = format!("the unit of the time stamps is probably {guess} than this format's");
        findings.add(15, Warning, what, effect);
    }
    if arrivals.backward as f64 > 0.01 * gaps {
        let what = format!("{} come before the row above them", rows(arrivals.backward as f64, gaps));
        findings.add(15, Note, what, "rows are sorted by arrival when the file is used as a trace");
    }
}
