//! Single lengths that stand out from their neighbours.

use serde::Serialize;
use statrs::function::gamma::gamma_lr;

use super::super::counts::Counts;

/// A length that stands out.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Spike {
    /// The length, tokens.
    pub tokens: u32,
    /// Rows of exactly this length.
    pub rows: f64,
    /// Its share of all rows.
    pub share: f64,
    /// Its rows over the mean of the neighbours within 10% (at least 3 tokens) on both sides; infinite without any.
    pub times: f64,
}

/// Times the neighbours' mean.
const TIMES: f64 = 5.0;

/// Chance at which the neighbours would make it, over all lengths: a spike in a few rows is no spike.
const CHANCE: f64 = 1e-3;

/// Mean rows of the lengths within 10% of `tokens`, at least 3 on both sides; nothing where there can be none.
pub(super) fn neighbours(counts: &Counts, tokens: u32) -> Option<f64> {
    let width = ((f64::from(tokens) * 0.1) as u32).max(3);
    // Beyond the longest and the shortest there can be no neighbours.
    let low = tokens.saturating_sub(width).max(1).min(tokens);
    let high = tokens.saturating_add(width).min(counts.max().unwrap_or(0).max(tokens));
    (high > low).then(|| (counts.between(low, high) - counts.at(tokens)) / f64::from(high - low))
}

/// How `tokens` compares with its neighbours, if it stands out at all.
pub(super) fn at(counts: &Counts, tokens: u32, distinct: usize) -> Option<Spike> {
    let rows = counts.at(tokens);
    if rows < 5.0 {
        return None;
    }
    let mean = neighbours(counts, tokens)?;
    // P(N ≥ rows) of a Poisson variable with the neighbours' mean.
    let chance = if mean > 0.0 { gamma_lr(rows, mean) } else { 0.0 };
    if rows <= TIMES * mean || chance * distinct as f64 > CHANCE {
        return None;
    }
    Some(Spike { tokens, rows, share: rows / counts.total(), times: rows / mean })
}

/// Whether `tokens` has over 5 times the rows of its neighbours, beyond what chance makes.
pub fn stands_out(counts: &Counts, tokens: u32) -> bool {
    at(counts, tokens, counts.distinct()).is_some()
}

/// Lengths with over 0.2% of the rows and over 5 times their neighbours, rising.
pub fn spikes(counts: &Counts) -> Vec<Spike> {
    // In fewer rows a handful of equal lengths is no spike.
    if counts.total() < 1000.0 {
        return Vec::new();
    }
    let distinct = counts.distinct();
    let frequent = counts.iter().filter(|(tokens, count)| *tokens > 0 && *count > 0.002 * counts.total());
    frequent.filter_map(|(tokens, _)| at(counts, tokens, distinct)).collect()
}
