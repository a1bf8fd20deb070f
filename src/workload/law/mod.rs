//! Laws of prompt and output lengths, in tokens: what is drawn, how likely, and the mean under a cap.
//!
//! A draw is a quantile function of uniform numbers, never a rejection loop, so every request uses the same draws and
//! a change of law changes nothing else.

mod score;
mod seen;
mod shape;
#[cfg(test)]
mod tests;

use std::sync::{Arc, OnceLock};

use statrs::function::gamma::ln_gamma;

use crate::error::InputError;
use crate::model::workload::{Centre, LengthLaw};
use score::{LARGEST_SCORE, ScoreTable, root};
pub(crate) use score::{normal_cdf, normal_quantile};
use shape::{Histogram, Shape};

/// Lengths above this are refused: no context is that long, and token sums must stay exact.
pub const LONGEST_TOKENS: f64 = 1e9;

type Checked<T> = Result<T, InputError>;

/// A checked law of lengths, in tokens (real numbers; [`tokens`] rounds).
#[derive(Clone, Debug)]
pub struct Law {
    parts: Vec<Part>,
    /// Longer draws are cut to this, as a context cuts them: min(X, truncate). Infinite when there is no cut.
    truncate: f64,
    /// The whole law over normal scores, for mixtures; made when first asked for.
    scores: Arc<OnceLock<ScoreTable>>,
}

#[derive(Clone, Debug, PartialEq)]
struct Part {
    /// Share of the parts up to and including this one; exactly 1 for the last.
    cumulative: f64,
    share: f64,
    shape: Shape,
    truncate: f64,
}

/// Whole tokens of a drawn length: the nearest, at least 1.
#[inline]
pub fn tokens(length: f64) -> u32 {
    // A float converts with saturation.
    ((length + 0.5) as u32).max(1)
}

impl Law {
    fn single(shape: Shape) -> Law {
        let part = Part { cumulative: 1.0, share: 1.0, shape, truncate: f64::INFINITY };
        Law { parts: vec![part], truncate: f64::INFINITY, scores: Arc::default() }
    }

    /// Always `tokens`.
    ///
    /// # Errors
    ///
    /// When `tokens` is not between 1 and 1e9.
    pub fn constant(tokens: f64) -> Checked<Law> {
        Ok(Law::single(Shape::Constant(length("tokens", tokens)?)))
    }

    /// Lognormal with the given median (tokens) and standard deviation of the natural logarithm.
    ///
    /// # Errors
    ///
    /// When `median` is not between 1 and 1e9 or `sigma` not above 0 and at most 5.
    pub fn lognormal(median: f64, sigma: f64) -> Checked<Law> {
        let sigma = within("sigma", sigma, 0.0, 5.0, "the standard deviation of ln(tokens)")?;
        Ok(Law::single(Shape::Lognormal { mu: length("median", median)?.ln(), sigma }))
    }

    /// Lognormal with the given mean (tokens): its median is mean · exp(-sigma²/2).
    ///
    /// # Errors
    ///
    /// As [`Law::lognormal`].
    pub fn lognormal_with_mean(mean: f64, sigma: f64) -> Checked<Law> {
        let sigma = within("sigma", sigma, 0.0, 5.0, "the standard deviation of ln(tokens)")?;
        Ok(Law::single(Shape::Lognormal { mu: length("mean", mean)?.ln() - 0.5 * sigma * sigma, sigma }))
    }

    /// Gamma with the given mean (tokens) and coefficient of variation.
    ///
    /// # Errors
    ///
    /// When `mean` is not between 1 and 1e9 or `cv` not between 0.01 and 20.
    pub fn gamma(mean: f64, cv: f64) -> Checked<Law> {
        let mean = length("mean", mean)?;
        Ok(Law::single(gamma_shape(mean, cv)?))
    }

    /// Weibull with shape and scale (tokens): survival exp(-(x/scale)^shape).
    ///
    /// # Errors
    ///
    /// When `shape` is not between 0.1 and 100 or `scale` not between 1 and 1e9.
    pub fn weibull(shape: f64, scale: f64) -> Checked<Law> {
        let shape = weibull_shape(shape)?;
        Ok(Law::single(Shape::Weibull { shape, scale: length("scale", scale)? }))
    }

    /// Weibull with shape and mean (tokens): scale = mean / Γ(1 + 1/shape).
    ///
    /// # Errors
    ///
    /// As [`Law::weibull`].
    pub fn weibull_with_mean(shape: f64, mean: f64) -> Checked<Law> {
        let shape = weibull_shape(shape)?;
        let scale = length("mean", mean)? / ln_gamma(1.0 + 1.0 / shape).exp();
        Ok(Law::single(Shape::Weibull { shape, scale }))
    }

    /// Pareto: survival (minimum/x)^index above `minimum` (tokens). The mean is infinite for an index of 1 or less,
    /// unless truncated.
    ///
    /// # Errors
    ///
    /// When `minimum` is not between 1 and 1e9 or `index` not between 0.1 and 100.
    pub fn pareto(minimum: f64, index: f64) -> Checked<Law> {
        let index = within("index", index, 0.1, 100.0, "the tail index")?;
        Ok(Law::single(Shape::Pareto { minimum: length("minimum", minimum)?, index }))
    }

    /// Bins between rising `edges` (tokens) with `counts` in any unit; mass is spread evenly inside a bin.
    ///
    /// # Errors
    ///
    /// When there are no bins, the edges do not rise, there is not one edge more than there are counts, a count is
    /// negative, or all counts are 0.
    pub fn histogram(edges: &[f64], counts: &[f64]) -> Checked<Law> {
        if counts.is_empty() {
            return Err(InputError::new("no counts", "give one count per bin").key("counts"));
        }
        if edges.len() != counts.len() + 1 {
            let found = format!("{} edges for {} counts", edges.len(), counts.len());
            return Err(InputError::new(found, format!("{} edges are needed", counts.len() + 1)).key("edges"));
        }
        for (place, edge) in edges.iter().enumerate() {
            let key = format!("edges[{place}]");
            if !(edge.is_finite() && (0.0..=LONGEST_TOKENS).contains(edge)) {
                return Err(InputError::new(format!("{edge}"), "an edge is between 0 and 1e9 tokens").key(key));
            }
            if place > 0 && *edge <= edges[place - 1] {
                let found = format!("{edge} after {}", edges[place - 1]);
                return Err(InputError::new(found, "edges must rise").key(key));
            }
        }
        let cumulative = cumulative_shares(counts, |place| format!("counts[{place}]"))?;
        let cumulative = std::iter::once(0.0).chain(cumulative).collect();
        Ok(Law::single(Shape::Histogram(Arc::new(Histogram { edges: edges.to_vec(), cumulative }))))
    }

    /// The values that were seen (tokens), each equally likely. The quantile is the inverse of the empirical
    /// distribution function (type 1 of Hyndman and Fan, 1996), so only values that were seen are drawn.
    ///
    /// # Errors
    ///
    /// When there are none, or one is not between 1 and 1e9.
    pub fn empirical(mut values: Vec<f64>) -> Checked<Law> {
        if values.is_empty() {
            return Err(InputError::new("no values", "give at least one length").key("values"));
        }
        for (place, value) in values.iter().enumerate() {
            length("values", *value).map_err(|error| error.key(format!("values[{place}]")))?;
        }
        values.sort_unstable_by(f64::total_cmp);
        Ok(Law::single(Shape::Empirical(values.into())))
    }

    /// A weighted sum of laws. Shares are in any unit: they are divided by their sum.
    ///
    /// # Errors
    ///
    /// When there are no parts, a share is negative or not finite, or all are 0.
    pub fn mixture(parts: Vec<(f64, Law)>) -> Checked<Law> {
        if parts.is_empty() {
            return Err(InputError::new("no parts", "give at least one law with its share").key("parts"));
        }
        let shares: Vec<f64> = parts.iter().map(|(share, _)| *share).collect();
        let cumulative = cumulative_shares(&shares, |place| format!("parts[{place}].share"))?;
        let mut flat = Vec::new();
        let mut before = 0.0;
        for ((_, law), up_to) in parts.into_iter().zip(cumulative) {
            let whole: f64 = up_to - before;
            for part in law.parts {
                let share = whole * part.share;
                let cumulative = before + whole * part.cumulative;
                let truncate = part.truncate.min(law.truncate);
                // A part that can never be drawn would only cost time.
                if share > 0.0 {
                    flat.push(Part { cumulative, share, truncate, ..part });
                }
            }
            before = up_to;
        }
        Ok(Law { parts: flat, truncate: f64::INFINITY, scores: Arc::default() })
    }

    /// Cuts draws above `context` tokens to it: the law of min(X, context).
    ///
    /// # Errors
    ///
    /// When `context` is not between 1 and 1e9.
    pub fn truncated(self, context: f64) -> Checked<Law> {
        let truncate = self.truncate.min(length("truncate_tokens", context)?);
        Ok(Law { truncate, scores: Arc::default(), ..self })
    }

    /// The law that `description` states. Files are read by [`super::trace::read_lengths`].
    ///
    /// # Errors
    ///
    /// What the constructors refuse, with the key below `key`; an unreadable file or one with bad rows.
    pub fn from_description(description: &LengthLaw, key: &str) -> crate::error::Result<Law> {
        let law = match description {
            LengthLaw::Constant { tokens } => Law::constant(*tokens).map_err(|mut error| {
                // A plain number has no key of its own.
                error.key = None;
                error
            }),
            LengthLaw::Lognormal { centre: Centre::Median(median), sigma } => Law::lognormal(*median, *sigma),
            LengthLaw::Lognormal { centre: Centre::Mean(mean), sigma } => Law::lognormal_with_mean(*mean, *sigma),
            LengthLaw::Gamma { mean, cv } => Law::gamma(*mean, *cv),
            LengthLaw::Weibull { shape, centre: Centre::Mean(mean) } => Law::weibull_with_mean(*shape, *mean),
            LengthLaw::Weibull { shape, centre: Centre::Median(median) } => {
                weibull_shape(*shape).and_then(|shape| Law::weibull(shape, median / 2f64.ln().powf(1.0 / shape)))
            }
            LengthLaw::WeibullScale { shape, scale } => Law::weibull(*shape, *scale),
            LengthLaw::Pareto { minimum, index } => Law::pareto(*minimum, *index),
            LengthLaw::Histogram { edges, counts } => Law::histogram(edges, counts),
            LengthLaw::Empirical { values } => Law::empirical(values.clone()),
            LengthLaw::File { file, column, skip_faulty } => {
                Law::empirical(super::trace::read_lengths(file, column, *skip_faulty)?.0)
            }
            LengthLaw::Mixture { parts } => {
                let mut laws = Vec::with_capacity(parts.len());
                for (place, (share, part)) in parts.iter().enumerate() {
                    laws.push((*share, Law::from_description(part, &format!("{key}.parts[{place}]"))?));
                }
                Law::mixture(laws)
            }
            LengthLaw::Finished { file, running, beyond } => {
                Law::of_finished(file, running.as_deref(), beyond.as_deref(), None, key)?
            }
            LengthLaw::Truncated { law, truncate_tokens } => match law.as_ref() {
                LengthLaw::Finished { file, running, beyond } => {
                    let (running, beyond) = (running.as_deref(), beyond.as_deref());
                    Law::of_finished(file, running, beyond, Some(*truncate_tokens), key)?
                        .and_then(|law| law.truncated(*truncate_tokens))
                }
                law => Law::from_description(law, key)?.truncated(*truncate_tokens),
            },
        };
        Ok(law.map_err(|error| {
            let inner = error.key.as_ref().map_or(key.to_owned(), |inner| format!("{key}.{inner}"));
            error.key(inner)
        })?)
    }

    /// A length (tokens, not rounded) from two uniform draws in (0, 1): `pick` chooses the part of a mixture, `u` is
    /// the quantile inside it.
    #[inline]
    pub fn sample(&self, pick: f64, u: f64) -> f64 {
        let mut chosen = 0;
        while pick > self.parts[chosen].cumulative && chosen + 1 < self.parts.len() {
            chosen += 1;
        }
        let part = &self.parts[chosen];
        cut(cut(part.shape.quantile(u), part.truncate), self.truncate)
    }

    /// The length (tokens, not rounded) below which a share `p` in (0, 1) of the whole law lies. For mixtures from a
    /// table, to 1e-6 where the law is smooth.
    pub fn quantile(&self, p: f64) -> f64 {
        match self.parts.as_slice() {
            [part] => part.shape.quantile(p).min(part.truncate).min(self.truncate),
            _ => self.score_quantile(normal_quantile(p)),
        }
    }

    /// [`Law::quantile`] of Φ(z), for a normal score `z`.
    pub fn score_quantile(&self, z: f64) -> f64 {
        match self.parts.as_slice() {
            [part] => part.shape.score_quantile(z).min(part.truncate).min(self.truncate),
            _ => {
                self.scores.get_or_init(|| ScoreTable::new(|z| self.ln_quantile_by_search(z))).at(z).min(self.truncate)
            }
        }
    }

    /// Uncut, so that the table stays smooth at the cut.
    fn ln_quantile_by_search(&self, z: f64) -> f64 {
        // The quantile of a mixture lies between those of its parts.
        let of_parts = || self.parts.iter().map(|part| part.shape.score_quantile(z).min(part.truncate));
        let low = of_parts().fold(f64::INFINITY, f64::min).max(1e-300).ln();
        let high = of_parts().fold(0.0, f64::max).max(1e-300).ln();
        let weigh = |side: &dyn Fn(&Part) -> f64| self.parts.iter().map(|part| part.share * side(part)).sum::<f64>();
        root(low, high, |y| {
            let x = y.exp();
            // The smaller tail keeps its digits.
            if z < 0.0 {
                (weigh(&|part| part.cdf(x)) / normal_cdf(z)).ln()
            } else {
                -(weigh(&|part| part.survival(x)) / normal_cdf(-z)).ln()
            }
        })
    }

    /// The share of lengths at or below `x` tokens.
    pub fn cdf(&self, x: f64) -> f64 {
        if x >= self.truncate {
            return 1.0;
        }
        self.parts.iter().map(|part| part.share * part.cdf(x)).sum()
    }

    /// The share of lengths above `x` tokens.
    pub fn survival(&self, x: f64) -> f64 {
        if x >= self.truncate {
            return 0.0;
        }
        self.parts.iter().map(|part| part.share * part.survival(x)).sum()
    }

    /// Mean length, tokens, after truncation.
    pub fn mean(&self) -> f64 {
        self.mean_capped(f64::INFINITY)
    }

    /// E[min(X, cap)], tokens: the mean length under a cap, in closed form.
    pub fn mean_capped(&self, cap: f64) -> f64 {
        let cap = cap.min(self.truncate);
        self.parts.iter().map(|part| part.share * part.shape.mean_capped(cap.min(part.truncate))).sum()
    }
}

/// The smaller of two numbers: one instruction, where `f64::min` looks for NaN.
#[inline]
fn cut(length: f64, longest: f64) -> f64 {
    if longest < length { longest } else { length }
}

impl Part {
    fn cdf(&self, x: f64) -> f64 {
        if x >= self.truncate { 1.0 } else { self.shape.cdf(x) }
    }

    fn survival(&self, x: f64) -> f64 {
        if x >= self.truncate { 0.0 } else { self.shape.survival(x) }
    }
}

/// A gamma shape with any positive mean, shared with the gaps between arrivals.
fn gamma_shape(mean: f64, cv: f64) -> Checked<Shape> {
    let cv = within("cv", cv, 0.01, 20.0, "the coefficient of variation")?;
    Ok(Shape::gamma(1.0 / (cv * cv), mean * cv * cv))
}

/// Gaps with mean 1 and coefficient of variation `cv`, as a function of a uniform draw.
///
/// # Errors
///
/// When `cv` is not between 0.01 and 20.
pub(crate) fn unit_gamma_gap(cv: f64) -> Checked<impl Fn(f64) -> f64 + Clone> {
    let shape = gamma_shape(1.0, cv)?;
    Ok(move |u| shape.quantile(u))
}

fn weibull_shape(shape: f64) -> Checked<f64> {
    within("shape", shape, 0.1, 100.0, "the Weibull shape")
}

fn length(key: &str, tokens: f64) -> Checked<f64> {
    if tokens.is_finite() && (1.0..=LONGEST_TOKENS).contains(&tokens) {
        return Ok(tokens);
    }
    Err(InputError::new(format!("{tokens}"), "a length is between 1 and 1e9 tokens").key(key))
}

/// `value` in (0, high] when `low` is 0, else in [low, high].
fn within(key: &str, value: f64, low: f64, high: f64, what: &str) -> Checked<f64> {
    if value.is_finite() && value > 0.0 && value >= low && value <= high {
        return Ok(value);
    }
    let range = if low == 0.0 { format!("above 0 and at most {high}") } else { format!("between {low} and {high}") };
    Err(InputError::new(format!("{value}"), format!("{what} is {range}")).key(key))
}

/// Running sums of `weights` over their total, ending at exactly 1.
fn cumulative_shares(weights: &[f64], key: impl Fn(usize) -> String) -> Checked<Vec<f64>> {
    for (place, weight) in weights.iter().enumerate() {
        if !(weight.is_finite() && *weight >= 0.0) {
            return Err(InputError::new(format!("{weight}"), "a share is a finite number, at least 0").key(key(place)));
        }
    }
    let total: f64 = weights.iter().sum();
    if !(total > 0.0 && total.is_finite()) {
        return Err(InputError::new(format!("the shares add up to {total}"), "one must be above 0").key(key(0)));
    }
    let mut sum = 0.0;
    let last = weights.iter().rposition(|weight| *weight > 0.0).unwrap_or(0);
    Ok(weights
        .iter()
        .enumerate()
        .map(|(place, weight)| {
            sum += weight;
            if place >= last { 1.0 } else { sum / total }
        })
        .collect())
}

const _: () = assert!(LARGEST_SCORE > 8.21, "a table must cover every draw");
