//! A measured table of decode step times by batch and context, which replaces the roofline.

use crate::error::InputError;

/// Decode step times on a grid of batch sizes and total contexts, interpolated linearly in both.
#[derive(Clone, Debug, PartialEq)]
pub struct StepTable {
    /// One row a batch size, ascending.
    rows: Vec<Row>,
}

#[derive(Clone, Debug, PartialEq)]
struct Row {
    batch: f64,
    /// (context tokens per request, step seconds), ascending by context.
    points: Vec<(f64, f64)>,
}

/// A breakpoint of the step time over the total context, with the slope that follows it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Piece {
    /// Total context of the batch, tokens.
    pub context_tokens: f64,
    /// Step time there, seconds.
    pub step_s: f64,
    /// Slope from there on, seconds per token of context.
    pub slope_s_per_token: f64,
}

impl StepTable {
    /// A table from (batch, total context tokens of the batch, step seconds) points.
    ///
    /// # Errors
    /// When it is empty, a value is not positive and finite, or a longer context is faster at the same batch by more
    /// than measuring noise could explain (5%).
    pub fn new(points: &[(f64, f64, f64)]) -> Result<Self, InputError> {
        if points.is_empty() {
            return Err(InputError::new("the step table is empty", "give rows of batch, context and step time"));
        }
        let mut rows: Vec<Row> = Vec::new();
        let mut sorted = points.to_vec();
        sorted.sort_by(|a, b| a.0.total_cmp(&b.0).then(a.1.total_cmp(&b.1)));
        for (batch, context, step_s) in sorted {
            let valid = |value: f64| value.is_finite() && value > 0.0;
            if !(valid(batch) && context.is_finite() && context >= 0.0 && valid(step_s)) {
                return Err(InputError::new(
                    format!("found batch {batch}, context {context}, step {step_s} s"),
                    "batch and step time are positive, the context is not negative",
                ));
            }
            match rows.last_mut() {
                Some(row) if row.batch == batch => {
                    if row.points.last().is_some_and(|last| step_s < 0.95 * last.1) {
                        return Err(InputError::new(
                            format!("batch {batch}: the step at context {context} is faster than at a shorter one"),
                            "a longer context never makes a step faster: check the row",
                        ));
                    }
                    let floor = row.points.last().map_or(0.0, |last| last.1);
                    row.points.push((context / batch, step_s.max(floor)));
                }
                _ => rows.push(Row { batch, points: vec![(context / batch, step_s)] }),
            }
        }
        Ok(StepTable { rows })
    }

    /// Smallest and largest batch of the table: outside of it the nearest row holds.
    pub fn batch_range(&self) -> (f64, f64) {
        (self.rows[0].batch, self.rows[self.rows.len() - 1].batch)
    }

    fn step_s(row: &Row, context_per_request: f64) -> f64 {
        let points = &row.points;
        if points.len() == 1 {
            return points[0].1;
        }
        let at = points.partition_point(|point| point.0 <= context_per_request).clamp(1, points.len() - 1);
        let (low, high) = (points[at - 1], points[at]);
        let slope = (high.1 - low.1) / (high.0 - low.0);
        (low.1 + slope * (context_per_request - low.0)).max(0.0)
    }

    /// The step time of a batch as affine pieces over the total context, from context 0.
    pub fn pieces(&self, batch: f64) -> Vec<Piece> {
        let at = self.rows.partition_point(|row| row.batch < batch).min(self.rows.len() - 1);
        let high = &self.rows[at];
        let low = if at > 0 && batch < high.batch { &self.rows[at - 1] } else { high };
        let weight =
            if high.batch > low.batch { ((batch - low.batch) / (high.batch - low.batch)).clamp(0.0, 1.0) } else { 1.0 };
        let mut contexts: Vec<f64> = low.points.iter().chain(&high.points).map(|point| point.0).collect();
        contexts.push(0.0);
        contexts.sort_by(f64::total_cmp);
        contexts.dedup();
        let value = |context: f64| Self::step_s(low, context) * (1.0 - weight) + Self::step_s(high, context) * weight;
        let last = contexts[contexts.len() - 1];
        let mut pieces: Vec<Piece> = contexts
            .windows(2)
            .map(|pair| Piece {
                context_tokens: pair[0] * batch,
                step_s: value(pair[0]),
                slope_s_per_token: ((value(pair[1]) - value(pair[0])) / (pair[1] - pair[0]) / batch).max(0.0),
            })
            .collect();
        let slope = pieces.last().map_or(0.0, |piece| piece.slope_s_per_token);
        pieces.push(Piece { context_tokens: last * batch, step_s: value(last), slope_s_per_token: slope });
        pieces
    }
}
