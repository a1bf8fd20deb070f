//! What one curve of a table says: requests really running, plateau, knee, cap. Pure functions on points.

use serde::Serialize;

use super::table::{RateKind, Row, Shape, output_tok_per_s};

/// One point of a curve.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Point {
    /// Line in the file, from 1.
    pub line: u64,
    /// Requests in flight at the client.
    pub concurrency: u32,
    /// Tokens per second, of the curve's kind.
    pub tok_per_s: f64,
    /// Time to first token, ms.
    pub ttft_ms: Option<f64>,
    /// Time per output token, ms.
    pub tpot_ms: Option<f64>,
}

/// The rows of one shape.
#[derive(Clone, Debug)]
pub struct Curve<'a> {
    /// Lengths of its requests.
    pub shape: Shape,
    /// Rows, by concurrency.
    pub rows: Vec<&'a Row>,
    /// Kind of the points' rates; none when the rows mix kinds and a length is unknown.
    pub kind: Option<RateKind>,
    /// Points, by concurrency; in output tokens where that is known for every row.
    pub points: Vec<Point>,
}

impl<'a> Curve<'a> {
    /// The curve of `rows`, which share a shape and are not empty.
    pub(super) fn of(mut rows: Vec<&'a Row>) -> Curve<'a> {
        // Stable: rows of one concurrency stay in file order.
        rows.sort_by_key(|row| row.concurrency);
        let outputs: Option<Vec<f64>> = rows.iter().map(|row| output_tok_per_s(row)).collect();
        let same = rows.iter().all(|row| row.kind == rows[0].kind).then_some(rows[0].kind);
        let kind = if outputs.is_some() { Some(RateKind::Output) } else { same };
        let rates = outputs.unwrap_or_else(|| rows.iter().map(|row| row.tok_per_s).collect());
        let points = rows
            .iter()
            .zip(rates)
            .map(|(row, tok_per_s)| Point {
                line: row.line,
                concurrency: row.concurrency,
                tok_per_s,
                ttft_ms: row.ttft_ms,
                tpot_ms: row.tpot_ms,
            })
            .collect();
        Curve { shape: rows[0].shape, rows, kind, points }
    }
}

/// Requests that decode at once, from what the client saw.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct EffectiveBatch {
    /// Line of the point.
    pub line: u64,
    /// Requests in flight at the client.
    pub concurrency: u32,
    /// Requests decoding on average: output rate × tpot, Little's law over the decode phase. Those in prefill are not
    /// counted, so with long prompts more are admitted.
    pub running: f64,
}

/// The effective batch of `point`, whose rate must count output tokens; none without tpot.
pub fn effective_batch(point: &Point) -> Option<EffectiveBatch> {
    let running = point.tok_per_s * point.tpot_ms? / 1e3;
    Some(EffectiveBatch { line: point.line, concurrency: point.concurrency, running })
}

/// Relative noise (one standard deviation) to expect of a point measured with `num_requests`.
///
/// Published sweeps scatter by about 25 % with two requests; it falls with the square root of their number.
pub fn expected_noise(num_requests: u64) -> f64 {
    0.25 * (2.0 / num_requests as f64).sqrt()
}

/// Where a curve has stopped rising.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Plateau {
    /// Smallest concurrency on it.
    pub from_concurrency: u32,
    /// Largest concurrency on it.
    pub to_concurrency: u32,
    /// Its level: geometric mean of its points, tokens per second.
    pub tok_per_s: f64,
}

/// A rate that changes by less than this power of the concurrency is flat: doubling gains under 7 %.
const FLAT_ELASTICITY: f64 = 0.1;

/// Share of the plateau that counts as having reached it.
const REACHED: f64 = 0.95;

/// Largest ratio of tpots that counts as the same tpot.
const SAME_TPOT: f64 = 1.1;

/// ln(rate ratio) ÷ ln(concurrency ratio).
fn elasticity(from: &Point, to: &Point) -> f64 {
    let rise = (to.tok_per_s / from.tok_per_s).ln();
    let run = (f64::from(to.concurrency) / f64::from(from.concurrency)).ln();
    // Repeats of one concurrency have no run: compare the rates themselves.
    if run > 0.0 { rise / run } else { rise }
}

/// The plateau that `points` (by concurrency) end on: the longest end of at least two points in which every rate is
/// flat against the first and against the one before. None when the curve still rises, falls, or has one point.
pub fn plateau(points: &[Point]) -> Option<Plateau> {
    let flat = |from: &Point, to: &Point| elasticity(from, to).abs() < FLAT_ELASTICITY;
    let is_plateau = |end: &[Point]| {
        end.windows(2).all(|pair| flat(&pair[0], &pair[1])) && end.iter().all(|point| flat(&end[0], point))
    };
    let end = (0..points.len().saturating_sub(1)).map(|start| &points[start..]).find(|end| is_plateau(end))?;
    let (first, last) = (end[0].concurrency, end[end.len() - 1].concurrency);
    if first == last {
        return None;
    }
    let log_mean = end.iter().map(|point| point.tok_per_s.ln()).sum::<f64>() / end.len() as f64;
    Some(Plateau { from_concurrency: first, to_concurrency: last, tok_per_s: log_mean.exp() })
}

/// The knee of `points` (by concurrency): the smallest concurrency that reaches 95 % of the plateau, or that is on it.
/// None without a plateau. At the first point it is an upper bound: the true knee lies there or below.
pub fn knee(points: &[Point]) -> Option<u32> {
    let plateau = plateau(points)?;
    points
        .iter()
        .find(|point| point.tok_per_s >= REACHED * plateau.tok_per_s || point.concurrency == plateau.from_concurrency)
        .map(|point| point.concurrency)
}

/// Signs of a cap on running requests at the end of `points` (by concurrency, rates in output tokens): rate and tpot
/// stay flat over two points or more, fewer requests decode than are in flight, and ttft, where known, grows. Gives
/// the effective batch of those points; empty without the signs.
pub fn capped(points: &[Point]) -> Vec<EffectiveBatch> {
    let Some(plateau) = plateau(points) else { return Vec::new() };
    let on_plateau: Vec<&Point> = points.iter().filter(|point| point.concurrency >= plateau.from_concurrency).collect();
    let Some(last_tpot) = on_plateau.last().and_then(|point| point.tpot_ms) else { return Vec::new() };
    let same = |tpot: f64| tpot.max(last_tpot) / tpot.min(last_tpot) <= SAME_TPOT;
    let start = on_plateau.iter().rposition(|point| !point.tpot_ms.is_some_and(same)).map_or(0, |index| index + 1);
    let flat = &on_plateau[start..];
    let batches: Vec<EffectiveBatch> = flat.iter().filter_map(|point| effective_batch(point)).collect();
    let ttft: Vec<f64> = flat.iter().filter_map(|point| point.ttft_ms).collect();
    // A queue that doubles with the clients shows in ttft long before this factor.
    let queue_grows = ttft.len() < 2 || ttft[ttft.len() - 1] > 1.5 * ttft[0];
    let waiting = batches.last().is_some_and(|batch| batch.running < 0.8 * f64::from(batch.concurrency));
    if flat.len() >= 2 && queue_grows && waiting { batches } else { Vec::new() }
}
