//! Laws with few parameters fitted to lengths by maximum likelihood, compared by Akaike's criterion.
//!
//! They summarise and extrapolate; for planning, the file itself is the better law. Lengths of 0 are left out.

use serde::Serialize;
use statrs::function::gamma::{digamma, gamma_lr, ln_gamma};

use super::counts::Counts;
use crate::workload::law::normal_cdf;

/// Values above this many are put into as many bins for the search; the likelihood is that of all values.
const MOST_VALUES: usize = 1024;

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

type Values = Vec<(f64, f64)>;

#[derive(Clone, Copy, Debug)]
struct Normal {
    share: f64,
    mu: f64,
    sigma: f64,
}

/// Fits of lognormal, gamma, Weibull and two lognormals, best first; none for fewer than 20 lengths or 3 values.
pub fn fits(counts: &Counts) -> Vec<Fit> {
    let values: Values = counts.iter().filter(|(x, _)| *x > 0).map(|(x, w)| (f64::from(x), w)).collect();
    let n: f64 = values.iter().map(|(_, weight)| weight).sum();
    if n < 20.0 || values.len() < 3 {
        return Vec::new();
    }
    let mean = |f: &dyn Fn(f64) -> f64| values.iter().map(|(x, w)| w * f(*x)).sum::<f64>() / n;
    let (mean_x, mean_ln) = (mean(&|x| x), mean(&f64::ln));
    let sigma = mean(&|x| (x.ln() - mean_ln).powi(2)).sqrt().max(1e-3);
    let one = Normal { share: 1.0, mu: mean_ln, sigma };
    let mut fits = vec![made("lognormal", vec![("median", mean_ln.exp()), ("sigma", sigma)], 2, &values, &|x| {
        (ln_density(x, one), normal_cdf((x.ln() - one.mu) / one.sigma))
    })];
    if let Some(shape) = gamma_shape(mean_x.ln() - mean_ln) {
        let scale = mean_x / shape;
        let parameters = vec![("mean", mean_x), ("cv", shape.powf(-0.5))];
        fits.push(made("gamma", parameters, 2, &values, &|x| {
            let ln = (shape - 1.0) * x.ln() - x / scale - shape * scale.ln() - ln_gamma(shape);
            (ln, gamma_lr(shape, x / scale))
        }));
    }
    if let Some((shape, scale)) = weibull(&values, mean_ln) {
        fits.push(made("weibull", vec![("shape", shape), ("scale", scale)], 2, &values, &|x| {
            let z = x / scale;
            (shape.ln() - scale.ln() + (shape - 1.0) * z.ln() - z.powf(shape), -(-z.powf(shape)).exp_m1())
        }));
    }
    if let Some(parts) = two_lognormals(&binned(&values)) {
        let [a, b] = parts;
        let parameters = vec![
            ("share", a.share),
            ("median", a.mu.exp()),
            ("sigma", a.sigma),
            ("share", b.share),
            ("median", b.mu.exp()),
            ("sigma", b.sigma),
        ];
        fits.push(made("mixture", parameters, 5, &values, &|x| {
            let density: f64 = parts.iter().map(|part| part.share * ln_density(x, *part).exp()).sum();
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
    values: &Values,
    at: &dyn Fn(f64) -> (f64, f64),
) -> Fit {
    let n: f64 = values.iter().map(|(_, weight)| weight).sum();
    let (mut likelihood, mut below, mut ks) = (0.0, 0.0, 0f64);
    for (x, weight) in values {
        let (ln_density, cdf) = at(*x);
        likelihood += weight * ln_density;
        ks = ks.max((cdf - below).abs());
        below += weight / n;
        ks = ks.max((cdf - below).abs());
    }
    let aic = 2.0 * f64::from(free) - 2.0 * likelihood;
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

fn ln_density(x: f64, part: Normal) -> f64 {
    let z = (x.ln() - part.mu) / part.sigma;
    -x.ln() - part.sigma.ln() - 0.5 * (2.0 * std::f64::consts::PI).ln() - 0.5 * z * z
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

/// Shape and scale: the shape solves Σ x^k ln x / Σ x^k - 1/k = mean of ln x.
fn weibull(values: &Values, mean_ln: f64) -> Option<(f64, f64)> {
    let largest = values.last()?.0;
    // x over the largest, so that powers stay below 1.
    let sums = |shape: f64| {
        values.iter().fold((0.0, 0.0), |(plain, with_ln), (x, weight)| {
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
    let n: f64 = values.iter().map(|(_, weight)| weight).sum();
    Some((shape, largest * (sums(shape).0 / n).powf(1.0 / shape)))
}

/// At most [`MOST_VALUES`] values: neighbours are joined at their mean.
fn binned(values: &Values) -> Values {
    if values.len() <= MOST_VALUES {
        return values.clone();
    }
    let (low, high) = (values[0].0.ln(), values[values.len() - 1].0.ln());
    let bin = |x: f64| ((x.ln() - low) / (high - low) * MOST_VALUES as f64) as usize;
    let groups = values.chunk_by(|a, b| bin(a.0) == bin(b.0));
    groups
        .map(|group| {
            let weight: f64 = group.iter().map(|(_, weight)| weight).sum();
            (group.iter().map(|(x, weight)| x * weight).sum::<f64>() / weight, weight)
        })
        .collect()
}

/// Expectation and maximisation from a few starts; the least spread keeps a part from falling onto one value.
fn two_lognormals(values: &Values) -> Option<[Normal; 2]> {
    let n: f64 = values.iter().map(|(_, weight)| weight).sum();
    let quantile = |p: f64| {
        let mut below = 0.0;
        let found = values.iter().find(|(_, weight)| {
            below += weight;
            below >= p * n
        });
        found.or(values.last()).map_or(0.0, |(x, _)| x.ln())
    };
    let starts = [
        (0.25, 0.75, 0.5, 0.5),
        (0.1, 0.6, 0.8, 0.5),
        (0.4, 0.95, 0.5, 0.5),
        (0.4, 0.85, 0.8, 0.1),
        (0.2, 0.5, 0.2, 0.9),
    ];
    let runs = starts.map(|(a, b, sigma_a, sigma_b)| {
        let start = [(a, sigma_a), (b, sigma_b)].map(|(p, sigma)| Normal { share: 0.5, mu: quantile(p), sigma });
        climb(values, n, start)
    });
    let best = runs.into_iter().max_by(|a, b| a.1.total_cmp(&b.1))?;
    let [a, b] = best.0;
    Some(if a.mu <= b.mu { [a, b] } else { [b, a] })
}

fn climb(values: &Values, n: f64, start: [Normal; 2]) -> ([Normal; 2], f64) {
    let logs: Values = values.iter().map(|(x, weight)| (x.ln(), *weight)).collect();
    let mut parts = start;
    let mut before = f64::NEG_INFINITY;
    for _ in 0..500 {
        let mut sums = [[0.0f64; 3]; 2];
        let mut likelihood = 0.0;
        for (y, weight) in &logs {
            let density = parts.map(|part| {
                let z = (y - part.mu) / part.sigma;
                part.share / part.sigma * (-0.5 * z * z).exp()
            });
            let total = (density[0] + density[1]).max(f64::MIN_POSITIVE);
            likelihood += weight * total.ln();
            for (sum, density) in sums.iter_mut().zip(density) {
                let part = weight * density / total;
                sum[0] += part;
                sum[1] += part * y;
                sum[2] += part * y * y;
            }
        }
        for (part, [weight, first, second]) in parts.iter_mut().zip(sums) {
            if weight > 1e-9 * n {
                let mu = first / weight;
                *part = Normal { share: weight / n, mu, sigma: (second / weight - mu * mu).max(0.0).sqrt().max(0.03) };
            }
        }
        if likelihood - before < 1e-9 * n {
            return (parts, likelihood);
        }
        before = likelihood;
    }
    (parts, before)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::workload::Law;

    fn sample(law: &Law, n: u32) -> Counts {
        let mut counts = Counts::default();
        (0..n).for_each(|row| counts.add(law.quantile((f64::from(row) + 0.5) / f64::from(n)).round() as u32, 1.0));
        counts
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

    #[test]
    fn too_little_is_not_fitted() {
        let mut counts = Counts::default();
        counts.add(5, 100.0);
        assert!(fits(&counts).is_empty());
    }
}
