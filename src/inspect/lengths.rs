//! Statistics of a file of requests, for the report.

use serde::Serialize;

use super::checks::{self, Checked, Declared};
use super::counts::Counts;
use super::fits::{Fit, fits};
use super::gather::{Gathered, Refusal};
use super::job::JobPart;
use crate::workload::finished::{Seen, Survival};

/// Caps for which shares and means are given, tokens.
pub const CAPS: [u32; 6] = [1024, 2048, 4096, 8192, 16_384, 32_768];

/// Columns of the picture.
const PICTURE: usize = 60;

/// Pairs that the rank correlation is taken over.
const RANKED: usize = 200_000;

/// Statistics of one column, tokens.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Column {
    /// Mean.
    pub mean: f64,
    /// Standard deviation over mean.
    pub cv: f64,
    /// Quantiles at 10, 50, 90 and 99%, and the largest.
    pub p10: u32,
    /// Median.
    pub p50: u32,
    /// 90%.
    pub p90: u32,
    /// 99%.
    pub p99: u32,
    /// Largest.
    pub max: u32,
}

impl Column {
    fn of(counts: &Counts) -> Option<Column> {
        (counts.total() > 0.0).then(|| Column {
            mean: counts.mean(),
            cv: counts.cv(),
            p10: counts.quantile(0.1),
            p50: counts.quantile(0.5),
            p90: counts.quantile(0.9),
            p99: counts.quantile(0.99),
            max: counts.max().unwrap_or(0),
        })
    }
}

/// What a cap does.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct AtCap {
    /// The cap, tokens.
    pub cap: u32,
    /// Share of outputs above it.
    pub share_above: f64,
    /// Mean of min(output, cap), tokens.
    pub mean_capped: f64,
    /// The same by Kaplan and Meier, where some outputs are lower bounds and the cap is not above the longest.
    pub corrected_mean: Option<f64>,
}

/// The picture of the length law: rows in columns of equal width in the logarithm.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Picture {
    /// Left edge, tokens.
    pub low: f64,
    /// Right edge, tokens.
    pub high: f64,
    /// Share of the rows in each column.
    pub shares: Vec<f64>,
}

/// Arrivals of a file with times.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct ArrivalStatistics {
    /// From the first to the last, s.
    pub span_s: f64,
    /// Mean rate, requests/s.
    pub rate_per_s: f64,
    /// Standard deviation over mean of the gaps; nothing where times go backward.
    pub gap_cv: Option<f64>,
}

/// What a file of requests says.
#[derive(Clone, Debug, Serialize)]
pub struct LengthReport {
    /// Format.
    pub format: String,
    /// Whether some lengths are estimates from the characters of texts.
    pub estimated: bool,
    /// Rows in the file.
    pub rows: u64,
    /// Rows with an output length, running ones left out; the weight of a histogram.
    pub used: f64,
    /// Rows with a prompt but no output length.
    pub without_output: u64,
    /// Rows that were not used.
    pub refused: u64,
    /// Why.
    pub reasons: Vec<Refusal>,
    /// Prompts.
    pub input: Option<Column>,
    /// Outputs as recorded.
    pub output: Option<Column>,
    /// Spearman's rank correlation of input and output.
    pub rank_correlation: Option<f64>,
    /// Caps.
    pub caps: Vec<AtCap>,
    /// Outputs that are lower bounds: cut or running.
    pub censored: f64,
    /// Share beyond the longest output, by Kaplan and Meier.
    pub beyond: Option<f64>,
    /// Picture.
    pub picture: Option<Picture>,
    /// Fitted laws, best first.
    pub fits: Vec<Fit>,
    /// Arrivals.
    pub arrivals: Option<ArrivalStatistics>,
    /// Checks.
    pub checks: Checked,
    /// The job that it is a part of.
    pub job: Option<JobPart>,
    /// What else should be known.
    pub notes: Vec<String>,
}

impl LengthReport {
    pub(super) fn new(gathered: &Gathered, declared: Declared, job: Option<JobPart>) -> LengthReport {
        let job = job.map(|job| JobPart { finished: gathered.used(), ..job });
        let seen = seen(gathered);
        let survival = Survival::kaplan_meier(seen.clone()).ok();
        let censored: f64 = seen.iter().map(|it| it.censored).sum();
        let corrected = |cap: u32| {
            let survival = survival.as_ref().filter(|_| censored > 0.0)?;
            (f64::from(cap) <= survival.longest() || survival.beyond() < 1e-9)
                .then(|| survival.mean_capped(f64::from(cap)))
        };
        let caps = CAPS.map(|cap| AtCap {
            cap,
            share_above: gathered.output.share_above(cap),
            mean_capped: gathered.output.mean_capped(f64::from(cap)),
            corrected_mean: corrected(cap),
        });
        let arrivals = &gathered.arrivals;
        let mut notes = Vec::new();
        if gathered.histogram {
            notes.push("a histogram: the rows of the report are its weights".to_owned());
        }
        if gathered.pairs.len() == super::gather::PAIRS {
            notes.push("pairs and the rank correlation are those of the first million rows".to_owned());
        }
        LengthReport {
            format: match gathered.format {
                Some(format) => format.to_string(),
                None => "histogram".to_owned(),
            },
            estimated: false,
            rows: gathered.rows,
            used: gathered.used(),
            without_output: gathered.without_output,
            refused: gathered.refused_rows(),
            reasons: gathered.refusals.values().cloned().collect(),
            input: Column::of(&gathered.input),
            output: Column::of(&gathered.output),
            rank_correlation: rank_correlation(&gathered.pairs),
            caps: if gathered.used() > 0.0 { caps.to_vec() } else { Vec::new() },
            censored,
            beyond: survival.as_ref().filter(|_| censored > 0.0).map(Survival::beyond),
            picture: picture(&gathered.output),
            fits: fits(&seen),
            arrivals: (arrivals.rows > 1 && arrivals.span_s() > 0.0).then(|| ArrivalStatistics {
                span_s: arrivals.span_s(),
                rate_per_s: (arrivals.rows - 1) as f64 / arrivals.span_s(),
                gap_cv: arrivals.gap_cv(),
            }),
            checks: checks::run(gathered, declared, job.as_ref()),
            job,
            notes,
        }
    }
}

/// Each length with the rows that are whole and those that are lower bounds: cut, running, and, where nothing says how
/// requests ended, those of a pile-up at the longest output.
fn seen(gathered: &Gathered) -> Vec<Seen> {
    let longest = gathered.output.max().filter(|_| gathered.cut.total() == 0.0 && !gathered.histogram);
    let pile = longest.filter(|longest| checks::stands_out(&gathered.output, *longest));
    let complete = gathered.output.iter().map(|(tokens, count)| {
        let cut = if pile == Some(tokens) { count } else { gathered.cut.at(tokens) };
        Seen { tokens, complete: count - cut, censored: cut }
    });
    let running = gathered.running.iter().map(|(tokens, count)| Seen { tokens, complete: 0.0, censored: count });
    complete.chain(running).collect()
}

/// Mean ranks of values, ties at their middle.
fn ranks(values: &[u32]) -> Vec<f64> {
    let mut order: Vec<usize> = (0..values.len()).collect();
    order.sort_unstable_by_key(|place| values[*place]);
    let mut ranks = vec![0.0; values.len()];
    let mut start = 0;
    for group in order.chunk_by(|a, b| values[*a] == values[*b]) {
        let middle = start as f64 + 0.5 * (group.len() - 1) as f64;
        group.iter().for_each(|place| ranks[*place] = middle);
        start += group.len();
    }
    ranks
}

fn rank_correlation(pairs: &[(u32, u32)]) -> Option<f64> {
    // Evenly over what was kept.
    let every = pairs.len().div_ceil(RANKED).max(1);
    let (inputs, outputs): (Vec<u32>, Vec<u32>) = pairs.iter().step_by(every).copied().unzip();
    if inputs.len() < 10 {
        return None;
    }
    let (x, y) = (ranks(&inputs), ranks(&outputs));
    let middle = 0.5 * (x.len() - 1) as f64;
    let (mut xy, mut xx, mut yy) = (0.0, 0.0, 0.0);
    for (x, y) in x.iter().zip(&y) {
        xy += (x - middle) * (y - middle);
        xx += (x - middle).powi(2);
        yy += (y - middle).powi(2);
    }
    (xx > 0.0 && yy > 0.0).then(|| xy / (xx * yy).sqrt())
}

fn picture(counts: &Counts) -> Option<Picture> {
    let positive = || counts.iter().filter(|(tokens, _)| *tokens > 0);
    let low = f64::from(positive().next()?.0);
    let high = f64::from(counts.max()?) + 1.0;
    let mut shares = vec![0.0; PICTURE];
    let width = (high / low).ln() / PICTURE as f64;
    for (tokens, count) in positive() {
        // A length stands for the interval from itself to the next, so that short ones leave no gaps.
        let place = |x: f64| ((x / low).ln() / width).max(0.0);
        let (from, to) = (place(f64::from(tokens)), place(f64::from(tokens) + 1.0).min(PICTURE as f64));
        let (first, last) = (from as usize, (to.ceil() as usize).min(PICTURE));
        for (column, share) in shares.iter_mut().enumerate().take(last).skip(first.min(PICTURE - 1)) {
            let inside = to.min(column as f64 + 1.0) - from.max(column as f64);
            *share += count / counts.total() * (inside / (to - from)).clamp(0.0, 1.0);
        }
    }
    Some(Picture { low, high, shares })
}
