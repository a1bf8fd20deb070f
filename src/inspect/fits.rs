//! Laws with few parameters fitted to lengths by maximum likelihood, compared by Akaike's criterion.
//!
//! They summarise and extrapolate; for planning, the file itself is the better law. Lengths of 0 are left out. A length
//! that is only a lower bound (cut by a cap, or still running) counts with the chance of more than it: a fit to cut
//! lengths as if they were whole would put a narrow law onto the cap.

use serde::Serialize;
use statrs::function::gamma::{digamma, gamma_lr, gamma_ur, ln_gamma};

use super::mixture::{Normal, climb, two_lognormals};
use crate::workload::finished::{Seen, Survival};
use crate::workload::law::normal_cdf;

/// Values above this many are put into as many bins for the search; the likelihood is that of all values.
const MOST_VALUES: usize = 1024;

/// Bins of the lower bounds in the search for a gamma law, which has no closed form with them.
const BOUNDS: usize = 48;

/// One fitted law.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Fit {
    /// Its name, as in a scenario.
    pub law: &'static str,
    /// Its parameters, as in a scenario.
    pub parameters: Vec<(&'static str, f64)>,
    /// Akaike's criterion above that of the best.
    pub delta_aic: f64,
    /// Largest distance between its distribution function and that of the data.
    pub ks: f64,
    /// As a scenario writes it.
    pub toml: String,
    #[serde(skip)]
    aic: f64,
}

/// Lengths above 0 with their weights, rising.
pub(super) type Values = Vec<(f64, f64)>;

/// What is fitted.
struct Data {
    /// Whole lengths.
    whole: Values,
    /// Lower bounds.
    bounds: Values,
    /// Kaplan and Meier's estimate: lengths and shares.
    steps: Values,
}

fn total(values: &Values) -> f64 {
    values.iter().map(|(_, weight)| weight).sum()
}

/// Fits of lognormal, gamma, Weibull and two lognormals, best first; none for fewer than 20 whole lengths or 3 values.
pub fn fits(seen: &[Seen]) -> Vec<Fit> {
    let of = |weight: fn(&Seen) -> f64| -> Values {
        let kept = seen.iter().filter(|it| it.tokens > 0 && weight(it) > 0.0);
        kept.map(|it| (f64::from(it.tokens), weight(it))).collect()
    };
    let (whole, mut bounds) = (of(|it| it.complete), of(|it| it.censored));
    bounds.sort_by(|a, b| a.0.total_cmp(&b.0));
    let Ok(survival) = Survival::kaplan_meier(seen.to_vec()) else { return Vec::new() };
    let data = Data { whole, bounds, steps: survival.steps().to_vec() };
    let n = total(&data.whole);
    if n < 20.0 || data.whole.len() < 3 {
        return Vec::new();
    }
    let mean = |f: &dyn Fn(f64) -> f64| data.whole.iter().map(|(x, w)| w * f(*x)).sum::<f64>() / n;
    let mean_ln = mean(&f64::ln);
    let sigma = mean(&|x| (x.ln() - mean_ln).powi(2)).sqrt().max(1e-3);
    let ([one], _) = climb(&data.whole, &data.bounds, [Normal { share: 1.0, mu: mean_ln, sigma }]);
    let mut fits = vec![made("lognormal", vec![("median", one.mu.exp()), ("sigma", one.sigma)], 2, &data, &|x| {
        (one.ln_density(x), normal_cdf((x.ln() - one.mu) / one.sigma))
    })];
    if let Some((shape, scale)) = gamma(&data, mean(&|x| x), mean_ln) {
        let parameters = vec![("mean", shape * scale), ("cv", shape.powf(-0.5))];
        fits.push(made("gamma", parameters, 2, &data, &|x| {
            let ln = (shape - 1.0) * x.ln() - x / scale - shape * scale.ln() - ln_gamma(shape);
            (ln, gamma_lr(shape, x / scale))
        }));
    }
    if let Some((shape, scale)) = weibull(&data, mean_ln) {
        fits.push(made("weibull", vec![("shape", shape), ("scale", scale)], 2, &data, &|x| {
            let z = x / scale;
            (shape.ln() - scale.ln() + (shape - 1.0) * z.ln() - z.powf(shape), -(-z.powf(shape)).exp_m1())
        }));
    }
    let starts = binned(&data.steps, MOST_VALUES);
    if let Some(parts) = two_lognormals(&binned(&data.whole, MOST_VALUES), &binned(&data.bounds, MOST_VALUES), &starts)
    {
        let [a, b] = parts;
        let parameters = vec![
            ("share", a.share),
            ("median", a.mu.exp()),
            ("sigma", a.sigma),
            ("share", b.share),
            ("median", b.mu.exp()),
            ("sigma", b.sigma),
        ];
        fits.push(made("mixture", parameters, 5, &data, &|x| {
            let density: f64 = parts.iter().map(|part| part.share * part.ln_density(x).exp()).sum();
            let below = parts.iter().map(|part| part.share * normal_cdf((x.ln() - part.mu) / part.sigma)).sum();
            (density.max(f64::MIN_POSITIVE).ln(), below)
        }));
    }
    fits.retain(|fit| fit.aic.is_finite());
    fits.sort_by(|a, b| a.aic.total_cmp(&b.aic));
    let best = fits.first().map_or(0.0, |fit| fit.aic);
    fits.iter_mut().for_each(|fit| fit.delta_aic = fit.aic - best);
    fits
}

/// A fit from the log density and the distribution function at a length.
fn made(
    law: &'static str,
    parameters: Vec<(&'static str, f64)>,
    free: u32,
    data: &Data,
    at: &dyn Fn(f64) -> (f64, f64),
) -> Fit {
    let whole: f64 = data.whole.iter().map(|(x, weight)| weight * at(*x).0).sum();
    let above = |x: f64| (1.0 - at(x).1).max(f64::MIN_POSITIVE).ln();
    let bounds: f64 = data.bounds.iter().map(|(x, weight)| weight * above(*x)).sum();
    let (mut below, mut ks) = (0.0, 0f64);
    for (x, share) in &data.steps {
        let cdf = at(*x).1;
        ks = ks.max((cdf - below).abs());
        below += share;
        ks = ks.max((cdf - below).abs());
    }
    let aic = 2.0 * f64::from(free) - 2.0 * (whole + bounds);
    Fit { law, toml: toml(law, &parameters), parameters, delta_aic: 0.0, ks, aic }
}

fn toml(law: &str, parameters: &[(&str, f64)]) -> String {
    let written = |parameters: &[(&str, f64)]| {
        let parts: Vec<String> = parameters
            .iter()
            .map(|(name, value)| {
                format!("{name} = {}", if *value >= 100.0 { format!("{value:.0}") } else { format!("{value:.3}") })
            })
            .collect();
        parts.join(", ")
    };
    if law == "mixture" {
        let parts: Vec<String> =
            parameters.chunks(3).map(|part| format!("{{ law = \"lognormal\", {} }}", written(part))).collect();
        format!("{{ law = \"mixture\", parts = [{}] }}", parts.join(", "))
    } else {
        format!("{{ law = \"{law}\", {} }}", written(parameters))
    }
}

/// The shape k with ln k - ψ(k) = `gap` (Minka 2002: Newton on 1/k).
fn gamma_shape(gap: f64) -> Option<f64> {
    if gap.is_nan() || gap <= 0.0 {
        return None;
    }
    let mut shape = (3.0 - gap + ((gap - 3.0).powi(2) + 24.0 * gap).sqrt()) / (12.0 * gap);
    for _ in 0..50 {
        let step = 1e-5 * shape;
        let trigamma = (digamma(shape + step) - digamma(shape - step)) / (2.0 * step);
        let inverse = 1.0 / shape + (shape.ln() - digamma(shape) - gap) / (shape * shape * (1.0 / shape - trigamma));
        if !(inverse.is_finite() && inverse > 0.0) {
            return None;
        }
        let next = 1.0 / inverse;
        let done = (next / shape - 1.0).abs() < 1e-10;
        shape = next;
        if done {
            break;
        }
    }
    Some(shape)
}

/// Shape and scale. Without lower bounds the likelihood has one equation; with them it is searched for its top.
fn gamma(data: &Data, mean_x: f64, mean_ln: f64) -> Option<(f64, f64)> {
    let start = gamma_shape(mean_x.ln() - mean_ln)?;
    if data.bounds.is_empty() {
        return Some((start, mean_x / start));
    }
    let n = total(&data.whole);
    let bounds = binned(&data.bounds, BOUNDS);
    let likelihood = |shape: f64, scale: f64| {
        let whole = n * ((shape - 1.0) * mean_ln - mean_x / scale - shape * scale.ln() - ln_gamma(shape));
        let above = |x: f64| gamma_ur(shape, x / scale).max(f64::MIN_POSITIVE).ln();
        whole + bounds.iter().map(|(x, weight)| weight * above(*x)).sum::<f64>()
    };
    // Lower bounds only raise the scale of a given shape.
    let scale = |shape: f64| {
        let least = (mean_x / shape).ln();
        highest(least, least + 4.0, &|ln| likelihood(shape, ln.exp())).exp()
    };
    let shape = highest(start.ln() - 3.0, start.ln() + 1.0, &|ln| likelihood(ln.exp(), scale(ln.exp()))).exp();
    Some((shape, scale(shape)))
}

/// Where a function with one top between `low` and `high` is highest (golden section).
fn highest(mut low: f64, mut high: f64, f: &dyn Fn(f64) -> f64) -> f64 {
    let golden = (f64::sqrt(5.0) - 1.0) / 2.0;
    let (mut a, mut b) = (high - golden * (high - low), low + golden * (high - low));
    let (mut at_a, mut at_b) = (f(a), f(b));
    for _ in 0..36 {
        if at_a > at_b {
            (high, b, at_b) = (b, a, at_a);
            a = high - golden * (high - low);
            at_a = f(a);
        } else {
            (low, a, at_a) = (a, b, at_b);
            b = low + golden * (high - low);
            at_b = f(b);
        }
    }
    0.5 * (low + high)
}

/// Shape and scale: the shape solves Σ x^k ln x / Σ x^k - 1/k = mean of ln x, with the sums over all and the mean over
/// whole lengths.
fn weibull(data: &Data, mean_ln: f64) -> Option<(f64, f64)> {
    let all = || data.whole.iter().chain(&data.bounds);
    let largest = all().map(|(x, _)| *x).reduce(f64::max)?;
    // x over the largest, so that powers stay below 1.
    let sums = |shape: f64| {
        all().fold((0.0, 0.0), |(plain, with_ln), (x, weight)| {
            let power = weight * (x / largest).powf(shape);
            (plain + power, with_ln + power * x.ln())
        })
    };
    let (mut low, mut high) = (0.02, 100.0);
    for _ in 0..60 {
        let shape = f64::sqrt(low * high);
        let (plain, with_ln) = sums(shape);
        if with_ln / plain - 1.0 / shape > mean_ln { high = shape } else { low = shape }
    }
    let shape = f64::sqrt(low * high);
    Some((shape, largest * (sums(shape).0 / total(&data.whole)).powf(1.0 / shape)))
}

/// At most `most` values: neighbours are joined at their mean.
fn binned(values: &Values, most: usize) -> Values {
    if values.len() <= most {
        return values.clone();
    }
    let (low, high) = (values[0].0.ln(), values[values.len() - 1].0.ln());
    let bin = |x: f64| ((x.ln() - low) / (high - low) * most as f64) as usize;
    let groups = values.chunk_by(|a, b| bin(a.0) == bin(b.0));
    groups
        .map(|group| {
            let weight: f64 = group.iter().map(|(_, weight)| weight).sum();
            (group.iter().map(|(x, weight)| x * weight).sum::<f64>() / weight, weight)
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::workload::Law;

    /// Quantiles of a law; those above `cap` are cut there.
    fn cut(law: &Law, n: u32, cap: u32) -> Vec<Seen> {
        let quantile = |row: u32| law.quantile((f64::from(row) + 0.5) / f64::from(n)).round() as u32;
        let seen = |tokens: u32| {
            let censored = f64::from(u8::from(tokens > cap));
            Seen { tokens: tokens.min(cap), complete: 1.0 - censored, censored }
        };
        (0..n).map(|row| seen(quantile(row))).collect()
    }

    fn sample(law: &Law, n: u32) -> Vec<Seen> {
        cut(law, n, u32::MAX)
    }

    #[test]
    fn a_law_is_found_again_in_its_own_quantiles() {
        let cases = [
            (Law::lognormal(1000.0, 0.9).unwrap(), "lognormal", vec![1000.0, 0.9]),
            (Law::gamma(800.0, 0.6).unwrap(), "gamma", vec![800.0, 0.6]),
            (Law::weibull(1.5, 700.0).unwrap(), "weibull", vec![1.5, 700.0]),
        ];
        for (law, name, expected) in cases {
            let fits = fits(&sample(&law, 20_000));
            let own = fits.iter().find(|fit| fit.law == name).unwrap();
            for ((parameter, value), expected) in own.parameters.iter().zip(expected) {
                assert!((value / expected - 1.0).abs() < 0.01, "{name} {parameter}: {value}");
            }
            // Two lognormals can take any shape: none of the others may come near.
            assert!(own.delta_aic < 10.0 && own.ks < 0.003, "{name}: {own:?}");
        }
        let parts = [(0.4, 200.0, 0.4), (0.6, 3000.0, 0.5)];
        let law = Law::mixture(parts.map(|(share, m, s)| (share, Law::lognormal(m, s).unwrap())).to_vec()).unwrap();
        let best = &fits(&sample(&law, 20_000))[0];
        assert_eq!(best.law, "mixture");
        let expected = [0.4, 200.0, 0.4, 0.6, 3000.0, 0.5];
        for ((name, value), expected) in best.parameters.iter().zip(expected) {
            assert!((value / expected - 1.0).abs() < 0.02, "{name}: {value}");
        }
        assert!(best.toml.starts_with("{ law = \"mixture\", parts = [{ law = \"lognormal\", share = 0."));
    }

    /// A cap that cuts a tenth and more of the lengths must not bend the law that is found.
    #[test]
    fn a_law_is_found_again_below_a_cap() {
        let cases = [
            (Law::lognormal(1000.0, 0.9).unwrap(), "lognormal", vec![1000.0, 0.9]),
            (Law::gamma(800.0, 0.6).unwrap(), "gamma", vec![800.0, 0.6]),
            (Law::weibull(1.5, 700.0).unwrap(), "weibull", vec![1.5, 700.0]),
        ];
        for (law, name, expected) in cases {
            let fits = fits(&cut(&law, 20_000, 1200));
            let own = fits.iter().find(|fit| fit.law == name).unwrap();
            for ((parameter, value), expected) in own.parameters.iter().zip(expected) {
                assert!((value / expected - 1.0).abs() < 0.01, "{name} {parameter}: {value}");
            }
            assert!(own.delta_aic < 10.0 && own.ks < 0.003, "{name}: {own:?}");
        }
        let parts = [(0.4, 200.0, 0.4), (0.6, 3000.0, 0.5)];
        let law = Law::mixture(parts.map(|(share, m, s)| (share, Law::lognormal(m, s).unwrap())).to_vec()).unwrap();
        let best = &fits(&cut(&law, 20_000, 4096))[0];
        assert_eq!(best.law, "mixture");
        for ((name, value), expected) in best.parameters.iter().zip([0.4, 200.0, 0.4, 0.6, 3000.0, 0.5]) {
            assert!((value / expected - 1.0).abs() < 0.03, "{name}: {value}");
        }
    }

    #[test]
    fn too_little_is_not_fitted() {
        assert!(fits(&[Seen { tokens: 5, complete: 100.0, censored: 0.0 }]).is_empty());
        assert!(fits(&[]).is_empty());
    }
}
