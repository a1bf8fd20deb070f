//! Closed forms: reading a context back against computing it again.

/// What computing a context of n tokens again costs: `fixed_s + (n · flops_per_token + n²/2 · flops_per_pair) / flops_per_s`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Recompute {
    /// Twice the active parameters of body and head.
    pub flops_per_token: f64,
    /// Attention of one token on one before it, all layers: 4 · layers · heads · head dimension.
    pub flops_per_pair: f64,
    /// What the GPU achieves in prefill.
    pub flops_per_s: f64,
    /// Added to every prefill, seconds.
    pub fixed_s: f64,
}

impl Recompute {
    /// Seconds for a context of `tokens`.
    pub fn time_s(&self, tokens: f64) -> f64 {
        let flops = tokens * self.flops_per_token + tokens * tokens / 2.0 * self.flops_per_pair;
        self.fixed_s + flops / self.flops_per_s
    }
}

/// What moving a context of n tokens costs: `fixed_s + n · s_per_token`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Move {
    /// Bytes over bandwidth, or the time of the copies that a token takes part in if that is longer, seconds.
    pub s_per_token: f64,
    /// Recurrent state over bandwidth, launches, the step that a cached prompt still takes, seconds.
    pub fixed_s: f64,
}

impl Move {
    /// Seconds for a context of `tokens`.
    pub fn time_s(&self, tokens: f64) -> f64 {
        self.fixed_s + tokens * self.s_per_token
    }

    /// There and back: what swapping a running request costs, where restoring costs only the way back.
    #[must_use]
    pub fn both_ways(self) -> Move {
        Move { s_per_token: 2.0 * self.s_per_token, fixed_s: 2.0 * self.fixed_s }
    }
}

/// Context from which on moving is no slower than computing again, tokens. 0 when it always is, `None` when it is never.
///
/// The difference is a parabola that opens upwards: a·n² + b·n + c with a = flops_per_pair / 2 / flops_per_s,
/// b = flops_per_token / flops_per_s − s_per_token, c = the difference of the fixed parts. The answer is its larger root.
pub fn crossover_tokens(recompute: &Recompute, moving: &Move) -> Option<f64> {
    let a = recompute.flops_per_pair / 2.0 / recompute.flops_per_s;
    let b = recompute.flops_per_token / recompute.flops_per_s - moving.s_per_token;
    let c = recompute.fixed_s - moving.fixed_s;
    if a <= 0.0 {
        return match (b > 0.0, c >= 0.0) {
            (true, _) => Some((-c / b).max(0.0)),
            (false, true) if b == 0.0 => Some(0.0),
            (false, _) => None,
        };
    }
    let discriminant = b * b - 4.0 * a * c;
    if discriminant <= 0.0 {
        return Some(0.0);
    }
    // The form without cancellation for either sign of b.
    let root = discriminant.sqrt();
    let larger = if b > 0.0 { -2.0 * c / (b + root) } else { (root - b) / (2.0 * a) };
    Some(larger.max(0.0))
}
