//! Length laws with one part. Parameters are checked by [`super::Law`]; here they are right.

use std::sync::Arc;

use statrs::function::gamma::{gamma_lr, gamma_ur, ln_gamma};

use super::score::{ScoreTable, normal_cdf, normal_quantile, root};

/// A law of one part, without truncation. Values are tokens.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Shape {
    Constant(f64),
    Lognormal { mu: f64, sigma: f64 },
    Gamma { shape: f64, scale: f64, scores: Arc<ScoreTable> },
    Weibull { shape: f64, scale: f64 },
    Pareto { minimum: f64, index: f64 },
    Histogram(Arc<Histogram>),
    Empirical(Arc<[f64]>),
    Weighted(Arc<super::seen::Weighted>),
    Above(Arc<super::seen::Above>),
}

/// Bins with mass spread evenly inside each.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Histogram {
    /// Rising edges, one more than there are bins.
    pub(crate) edges: Vec<f64>,
    /// Share below each edge, from 0 to 1.
    pub(crate) cumulative: Vec<f64>,
}

impl Shape {
    pub(crate) fn gamma(shape: f64, scale: f64) -> Shape {
        let scores = Arc::new(ScoreTable::new(|z| unit_gamma_ln_quantile(shape, z) + scale.ln()));
        Shape::Gamma { shape, scale, scores }
    }

    /// The value below which a share `p` in (0, 1) lies.
    #[inline]
    pub(crate) fn quantile(&self, p: f64) -> f64 {
        match self {
            Shape::Constant(value) => *value,
            Shape::Lognormal { mu, sigma } => (mu + sigma * normal_quantile(p)).exp(),
            Shape::Gamma { scores, .. } => scores.at(normal_quantile(p)),
            Shape::Weibull { shape, scale } => scale * (-(-p).ln_1p()).powf(1.0 / shape),
            Shape::Pareto { minimum, index } => minimum * (1.0 - p).powf(-1.0 / index),
            Shape::Histogram(histogram) => histogram.quantile(p),
            Shape::Weighted(weighted) => weighted.quantile(p),
            Shape::Above(above) => above.quantile(p),
            // The inverse of the empirical distribution function (type 1 of Hyndman and Fan 1996): a value that was seen.
            Shape::Empirical(sorted) => {
                let place = (p * sorted.len() as f64).ceil() as usize;
                sorted[place.clamp(1, sorted.len()) - 1]
            }
        }
    }

    /// The quantile at a normal score: exact and cheap for the laws that are built on one.
    pub(crate) fn score_quantile(&self, z: f64) -> f64 {
        match self {
            Shape::Lognormal { mu, sigma } => (mu + sigma * z).exp(),
            Shape::Gamma { scores, .. } => scores.at(z),
            _ => self.quantile(normal_cdf(z)),
        }
    }

    /// The share at or below `x`.
    pub(crate) fn cdf(&self, x: f64) -> f64 {
        match self {
            Shape::Lognormal { mu, sigma } if x > 0.0 => normal_cdf((x.ln() - mu) / sigma),
            Shape::Gamma { shape, scale, .. } if x > 0.0 && x.is_finite() => gamma_lr(*shape, x / scale),
            Shape::Weibull { shape, scale } if x > 0.0 => -(-(x / scale).powf(*shape)).exp_m1(),
            Shape::Histogram(histogram) => histogram.cdf(x),
            _ => 1.0 - self.survival(x),
        }
    }

    /// The share above `x`.
    pub(crate) fn survival(&self, x: f64) -> f64 {
        match self {
            Shape::Constant(value) => f64::from(u8::from(*value > x)),
            Shape::Pareto { minimum, index } => (minimum / x.max(*minimum)).powf(*index),
            Shape::Empirical(sorted) => {
                let above = sorted.len() - sorted.partition_point(|value| *value <= x);
                above as f64 / sorted.len() as f64
            }
            Shape::Histogram(histogram) => 1.0 - histogram.cdf(x),
            Shape::Weighted(weighted) => weighted.survival(x),
            Shape::Above(above) => above.survival(x),
            _ if x <= 0.0 => 1.0,
            _ if x == f64::INFINITY => 0.0,
            Shape::Lognormal { mu, sigma } => normal_cdf((mu - x.ln()) / sigma),
            Shape::Gamma { shape, scale, .. } => gamma_ur(*shape, x / scale),
            Shape::Weibull { shape, scale } => (-(x / scale).powf(*shape)).exp(),
        }
    }

    /// E[min(X, cap)], the integral of the survival function from 0 to `cap`: closed forms. `cap` may be infinite.
    pub(crate) fn mean_capped(&self, cap: f64) -> f64 {
        if cap <= 0.0 {
            return cap;
        }
        let above = |this: &Self| if cap.is_finite() { cap * this.survival(cap) } else { 0.0 };
        match self {
            Shape::Constant(value) => value.min(cap),
            Shape::Lognormal { mu, sigma } => {
                (mu + 0.5 * sigma * sigma).exp() * normal_cdf((cap.ln() - mu) / sigma - sigma) + above(self)
            }
            Shape::Gamma { shape, scale, .. } => {
                let below = if cap.is_finite() { gamma_lr(shape + 1.0, cap / scale) } else { 1.0 };
                shape * scale * below + above(self)
            }
            Shape::Weibull { shape, scale } => {
                let whole = scale * ln_gamma(1.0 + 1.0 / shape).exp();
                let place = (cap / scale).powf(*shape);
                if place.is_finite() && place > 0.0 { whole * gamma_lr(1.0 / shape, place) } else { whole.min(cap) }
            }
            Shape::Pareto { minimum, .. } if cap <= *minimum => cap,
            Shape::Pareto { minimum, index } => {
                // minimum + the integral of (minimum / x)^index from minimum to cap.
                let excess = (index - 1.0) * (cap / minimum).ln();
                let unit = if *index == 1.0 { (cap / minimum).ln() } else { -(-excess).exp_m1() / (index - 1.0) };
                minimum * (1.0 + unit)
            }
            Shape::Histogram(histogram) => histogram.mean_capped(cap),
            Shape::Weighted(weighted) => weighted.mean_capped(cap),
            Shape::Above(above) => above.mean_capped(cap),
            Shape::Empirical(sorted) => sorted.iter().map(|value| value.min(cap)).sum::<f64>() / sorted.len() as f64,
        }
    }
}

impl Histogram {
    fn quantile(&self, p: f64) -> f64 {
        let bin = self.cumulative.partition_point(|share| *share < p).clamp(1, self.edges.len() - 1) - 1;
        let (low, high) = (self.cumulative[bin], self.cumulative[bin + 1]);
        let within = if high > low { ((p - low) / (high - low)).clamp(0.0, 1.0) } else { 0.0 };
        self.edges[bin] + within * (self.edges[bin + 1] - self.edges[bin])
    }

    fn cdf(&self, x: f64) -> f64 {
        let bin = self.edges.partition_point(|edge| *edge <= x);
        if bin == 0 {
            return 0.0;
        }
        if bin == self.edges.len() {
            return 1.0;
        }
        let within = (x - self.edges[bin - 1]) / (self.edges[bin] - self.edges[bin - 1]);
        self.cumulative[bin - 1] + within * (self.cumulative[bin] - self.cumulative[bin - 1])
    }

    fn mean_capped(&self, cap: f64) -> f64 {
        let bins = self.edges.windows(2).zip(self.cumulative.windows(2));
        bins.map(|(edge, share)| {
            let width = edge[1] - edge[0];
            let below = (cap.clamp(edge[0], edge[1]) - edge[0]) / width;
            // Mean of min(X, cap) for X uniform on the bin.
            let mean = edge[0].min(cap) + width * below * (1.0 - 0.5 * below);
            (share[1] - share[0]) * mean
        })
        .sum()
    }
}

/// ln of the quantile at score `z` of a gamma law with scale 1.
fn unit_gamma_ln_quantile(shape: f64, z: f64) -> f64 {
    let share = normal_cdf(z);
    // P(k, x) <= x^k / Γ(k + 1), with equality as x goes to 0: a lower bound that is exact for tiny x.
    let lowest = (share.ln() + ln_gamma(shape + 1.0)) / shape;
    if lowest < -18.0 {
        return lowest;
    }
    let below = |y: f64| gamma_lr(shape, y.exp());
    let above = |y: f64| gamma_ur(shape, y.exp());
    let target = if z < 0.0 { share.ln() } else { normal_cdf(-z).ln() };
    let rising = |y: f64| if z < 0.0 { below(y).ln() - target } else { target - above(y).ln() };
    let mut highest = lowest.max(shape.ln());
    while rising(highest) < 0.0 {
        highest += 0.5;
    }
    root(lowest, highest, rising)
}
