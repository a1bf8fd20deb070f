//! Points that disagree with the rest of their curve: found one at a time, the worst first, and left out for the next.

use serde::Serialize;

use super::curve::Point;

/// What is odd about a point.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum OddityKind {
    /// Does not fit its neighbours: the setup of that run, most likely.
    Outlier,
    /// The rate falls for good after the point before it: preemption, cache misses, or a wrong row.
    Cliff,
}

/// An odd point.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Oddity {
    /// Line in the file.
    pub line: u64,
    /// Requests in flight.
    pub concurrency: u32,
    /// What is odd.
    pub kind: OddityKind,
    /// Tokens per second found.
    pub tok_per_s: f64,
    /// Outlier: the nearest rate that would fit its neighbours. Cliff: the rate of the point before.
    pub expected_tok_per_s: f64,
}

/// Ratio beyond the plausible range from which a point is an outlier. The dip that the built-in tables name as
/// doubtful lies at 1.8, ordinary scatter below 1.4.
const OUTLIER_FACTOR: f64 = 1.5;

/// The same where latency contradicts the load as well, so that the rate is not the only witness.
const CONTRADICTED_FACTOR: f64 = 1.1;

/// Ratio from which a fall is a cliff rather than scatter on a plateau.
const CLIFF_FACTOR: f64 = 1.25;

/// Odd points of one curve, whose `points` are in order of concurrency. Leave the outliers out of a fit; keep a cliff,
/// which is real as a rule. Points that share a concurrency are not judged: neither has the other as neighbour.
pub fn oddities(points: &[Point]) -> Vec<Oddity> {
    let mut kept: Vec<Point> = points.to_vec();
    let mut odd = Vec::new();
    while let Some((index, expected)) = worst(&kept) {
        odd.push(oddity(&kept[index], OddityKind::Outlier, expected));
        kept.remove(index);
    }
    for index in 1..kept.len() {
        let (before, here) = (&kept[index - 1], &kept[index]);
        let recovers = kept[index..].iter().any(|later| later.tok_per_s * CLIFF_FACTOR > before.tok_per_s);
        if here.concurrency > before.concurrency && !recovers {
            odd.push(oddity(here, OddityKind::Cliff, before.tok_per_s));
        }
    }
    odd.sort_by_key(|odd| odd.concurrency);
    odd
}

fn oddity(point: &Point, kind: OddityKind, expected_tok_per_s: f64) -> Oddity {
    let Point { line, concurrency, tok_per_s, .. } = *point;
    Oddity { line, concurrency, kind, tok_per_s, expected_tok_per_s }
}

/// The point furthest outside its plausible range, with the nearest rate inside.
fn worst(points: &[Point]) -> Option<(usize, f64)> {
    // Of two points that disagree either may be the wrong one.
    let indices = if points.len() < 3 { 0..0 } else { 0..points.len() };
    indices
        .filter_map(|index| {
            let expected = outside(points, index)?;
            Some((index, expected, (points[index].tok_per_s / expected).ln().abs()))
        })
        .max_by(|a, b| a.2.total_cmp(&b.2))
        .map(|(index, expected, _)| (index, expected))
}

/// The nearest plausible rate, if the point at `index` is outside. In log–log a throughput curve is concave and rises
/// no faster than the concurrency, so a point lies above the line between its neighbours and below linear growth.
fn outside(points: &[Point], index: usize) -> Option<f64> {
    let here = &points[index];
    let before = index.checked_sub(1).map(|index| &points[index]);
    let after = points.get(index + 1);
    if [before, after].iter().flatten().any(|point| point.concurrency == here.concurrency) {
        return None;
    }
    let low = match (before, after) {
        (Some(before), Some(after)) => Some(between(before, here, after)),
        // A first point may be low only if the second is not a peak, which would be the one to doubt.
        (None, Some(next)) if points[2].tok_per_s >= next.tok_per_s => Some(linear(next, here)),
        _ => None,
    };
    if let Some(low) = low.filter(|low| here.tok_per_s * OUTLIER_FACTOR < *low) {
        return Some(low);
    }
    let before = before?;
    let peak = after.is_none_or(|after| after.tok_per_s < here.tok_per_s);
    let high = linear(before, here);
    if peak && here.tok_per_s > OUTLIER_FACTOR * high {
        return Some(high);
    }
    // A peak before a fall is what a full KV pool looks like, unless its own latency contradicts its load.
    let level = after?.tok_per_s.max(before.tok_per_s);
    (contradicts_load(before, here) && here.tok_per_s > CONTRADICTED_FACTOR * level).then_some(level)
}

/// Rate at `here`'s concurrency if it grew in proportion from `from`.
fn linear(from: &Point, here: &Point) -> f64 {
    from.tok_per_s * f64::from(here.concurrency) / f64::from(from.concurrency)
}

/// Rate at `here`'s concurrency on the log–log line from `before` to `after`.
fn between(before: &Point, here: &Point, after: &Point) -> f64 {
    let log = |point: &Point| f64::from(point.concurrency).ln();
    let share = (log(here) - log(before)) / (log(after) - log(before));
    (before.tok_per_s.ln() * (1.0 - share) + after.tok_per_s.ln() * share).exp()
}

/// More requests in flight, and yet clearly less wait for the first token: prompts already cached, for instance.
fn contradicts_load(before: &Point, here: &Point) -> bool {
    matches!((before.ttft_ms, here.ttft_ms), (Some(before), Some(here)) if here < 0.95 * before)
}
