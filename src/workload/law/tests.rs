use super::*;
use crate::random::{Purpose, Streams};
use std::path::Path;

fn named(name: &str) -> Law {
    let value = toml::Value::String(name.into());
    Law::from_description(&LengthLaw::from_toml(&value, "law", Path::new("")).unwrap(), "law").unwrap()
}

fn every_law() -> Vec<(&'static str, Law)> {
    vec![
        ("lognormal", Law::lognormal(1000.0, 0.9).unwrap()),
        ("lognormal by mean", Law::lognormal_with_mean(2500.0, 0.9).unwrap()),
        ("gamma", Law::gamma(2000.0, 0.7).unwrap()),
        ("wide gamma", Law::gamma(2000.0, 3.0).unwrap()),
        ("weibull", Law::weibull(0.8, 900.0).unwrap()),
        ("weibull by mean", Law::weibull_with_mean(1.7, 900.0).unwrap()),
        ("pareto", Law::pareto(100.0, 1.8).unwrap()),
        ("histogram", Law::histogram(&[1.0, 10.0, 50.0, 400.0], &[3.0, 0.0, 5.0]).unwrap()),
        ("light", named("light")),
        ("central", named("central")),
        ("heavy", named("heavy")),
        (
            "nested",
            Law::mixture(vec![
                (1.0, Law::mixture(vec![(2.0, Law::gamma(50.0, 1.0).unwrap()), (1.0, named("light"))]).unwrap()),
                (3.0, Law::weibull(1.2, 4000.0).unwrap()),
            ])
            .unwrap(),
        ),
    ]
}

#[test]
fn priors_have_the_published_quantiles_shares_and_means() {
    // mean, median, p90, p99, >2,048, >4,096, E min 2,048, 4,096, 8,192, CV at 4,096
    let table = [
        ("light", [1773., 785., 4160., 13424., 0.245, 0.102, 1057., 1384., 1617., 0.92]),
        ("central", [2515., 1259., 6099., 16408., 0.339, 0.172, 1317., 1813., 2240., 0.74]),
        ("heavy", [4978., 2733., 12155., 31293., 0.590, 0.376, 1674., 2637., 3722., 0.52]),
    ];
    for (name, expected) in table {
        let law = named(name);
        let cap = 4096.0;
        // E[min(X, c)^2] is the integral of 2 x S(x).
        let square: f64 = (0..40_960).map(|i| (f64::from(i) + 0.5) * 0.1).map(|x| 0.2 * x * law.survival(x)).sum();
        let mean = law.mean_capped(cap);
        let found = [
            law.mean(),
            law.quantile(0.5),
            law.quantile(0.9),
            law.quantile(0.99),
            law.survival(2048.0),
            law.survival(cap),
            law.mean_capped(2048.0),
            mean,
            law.mean_capped(8192.0),
            (square - mean * mean).sqrt() / mean,
        ];
        for (found, expected) in found.iter().zip(expected) {
            assert!((found / expected - 1.0).abs() < 0.01, "{name}: {found} against {expected}");
        }
    }
}

#[test]
fn draws_follow_the_distribution_function() {
    let count = 200_000;
    for (name, law) in every_law() {
        let mut blocks = Streams::new(11, 0).blocks(Purpose::Request);
        for way in ["sample", "quantile"] {
            let mut drawn: Vec<f64> = (0..count)
                .map(|id| blocks.draws(id))
                .map(|draws| if way == "sample" { law.sample(draws[0], draws[1]) } else { law.quantile(draws[1]) })
                .collect();
            drawn.sort_unstable_by(f64::total_cmp);
            let distance = drawn.iter().enumerate().map(|(rank, x)| {
                // Ties (a truncated law) count once, from above.
                let above = drawn.partition_point(|y| y <= x) as f64 / count as f64;
                (above - law.cdf(*x)).abs().min((rank as f64 / count as f64 - law.cdf(*x)).abs())
            });
            // 2.4 / sqrt(n) is passed by a right sampler but once in 100,000 seeds; the seed is fixed.
            let worst = distance.step_by(50).fold(0.0, f64::max);
            assert!(worst < 2.4 / (count as f64).sqrt(), "{name} by {way}: {worst}");
        }
    }
}

#[test]
fn quantiles_invert_the_distribution_function() {
    for (name, law) in every_law() {
        for p in [1e-6, 0.001, 0.02, 0.2, 0.5, 0.77, 0.9, 0.99, 0.998] {
            let x = law.quantile(p);
            // Inside the empty bin and at the cut many values have one share, or one value many shares.
            if name != "histogram" && x < 32_768.0 {
                assert!((law.cdf(x) / p - 1.0).abs() < 2e-6, "{name} at {p}: {x}, {}", law.cdf(x));
            }
            assert!((law.cdf(x) + law.survival(x) - 1.0).abs() < 1e-12, "{name}");
        }
    }
}

#[test]
fn capped_means_are_integrals_of_the_survival_function() {
    for (name, law) in every_law() {
        for cap in [0.5, 20.0, 300.0, 3000.0, 40_000.0] {
            // Midpoints over ln x, where every survival function here is tame.
            let (low, high) = (1e-9f64.ln(), f64::ln(cap));
            let steps = 200_000;
            let width = (high - low) / f64::from(steps);
            let integral: f64 = (0..steps)
                .map(|step| (low + (f64::from(step) + 0.5) * width).exp())
                .map(|x| x * law.survival(x) * width)
                .sum();
            let found = law.mean_capped(cap);
            assert!((found / integral - 1.0).abs() < 2e-5, "{name} capped at {cap}: {found} against {integral}");
        }
    }
    for index in [0.5, 1.0, 1.0 + 1e-9] {
        let law = Law::pareto(10.0, index).unwrap();
        assert!(law.mean() > 1e8, "{index}");
        assert!(law.mean_capped(1e4) < 1e4);
    }
    assert!((Law::pareto(10.0, 3.0).unwrap().mean() - 15.0).abs() < 1e-9);
    assert!((Law::gamma(700.0, 0.4).unwrap().mean() - 700.0).abs() < 1e-9);
    assert!((Law::weibull_with_mean(0.5, 700.0).unwrap().mean() - 700.0).abs() < 1e-6);
}

#[test]
fn discrete_laws_draw_only_values_that_were_seen() {
    let law = Law::empirical(vec![7.0, 3.0, 3.0, 100.0]).unwrap();
    let quantiles = [0.1, 0.25, 0.5, 0.51, 0.75, 0.76, 0.99].map(|p| law.quantile(p));
    assert_eq!(quantiles, [3.0, 3.0, 3.0, 7.0, 7.0, 100.0, 100.0]);
    assert_eq!((law.cdf(2.9), law.cdf(3.0), law.survival(7.0), law.mean()), (0.0, 0.5, 0.25, 28.25));
    assert_eq!(law.mean_capped(5.0), 4.0);
    let constant = Law::constant(133.0).unwrap();
    assert_eq!((constant.sample(0.3, 0.9), constant.mean(), constant.mean_capped(100.0)), (133.0, 133.0, 100.0));
}

#[test]
fn tokens_are_whole_and_at_least_one() {
    assert_eq!([0.0, 0.2, 1.4, 1.6, 1e300].map(tokens), [1, 1, 1, 2, u32::MAX]);
}

#[test]
fn bad_parameters_are_refused_with_key_and_remedy() {
    let cases: Vec<(Checked<Law>, &str)> = vec![
        (Law::constant(0.0), "tokens: 0; a length is between 1 and 1e9 tokens"),
        (Law::constant(f64::NAN), "tokens: NaN; a length"),
        (Law::lognormal(-5.0, 0.5), "median: -5; a length"),
        (Law::lognormal(100.0, 0.0), "sigma: 0; the standard deviation of ln(tokens) is above 0 and at most 5"),
        (Law::lognormal(100.0, f64::INFINITY), "sigma: inf; the standard deviation"),
        (Law::lognormal_with_mean(f64::INFINITY, 1.0), "mean: inf; a length"),
        (Law::gamma(100.0, -1.0), "cv: -1; the coefficient of variation is between 0.01 and 20"),
        (Law::weibull(f64::NAN, 10.0), "shape: NaN; the Weibull shape is between"),
        (Law::weibull(1.0, 0.0), "scale: 0; a length"),
        (Law::pareto(10.0, 0.0), "index: 0; the tail index is between"),
        (Law::histogram(&[1.0], &[]), "counts: no counts; give one count per bin"),
        (Law::histogram(&[1.0, 2.0], &[1.0, 1.0]), "edges: 2 edges for 2 counts; 3 edges are needed"),
        (Law::histogram(&[1.0, 2.0, 2.0], &[1.0, 1.0]), "edges[2]: 2 after 2; edges must rise"),
        (Law::histogram(&[1.0, 2.0], &[0.0]), "counts[0]: the shares add up to 0; one must be above 0"),
        (Law::histogram(&[1.0, 2.0], &[-1.0]), "counts[0]: -1; a share is a finite number"),
        (Law::empirical(vec![]), "values: no values; give at least one"),
        (Law::empirical(vec![5.0, 0.0]), "values[1]: 0; a length"),
        (Law::mixture(vec![]), "parts: no parts; give at least one law"),
        (Law::mixture(vec![(0.0, Law::constant(5.0).unwrap())]), "parts[0].share: the shares add up to 0"),
        (Law::mixture(vec![(f64::NAN, Law::constant(5.0).unwrap())]), "parts[0].share: NaN; a share"),
        (Law::constant(5.0).unwrap().truncated(0.0), "truncate_tokens: 0; a length"),
    ];
    for (law, expected) in cases {
        let error = law.unwrap_err().to_string();
        assert!(error.starts_with(expected), "{error:?} does not start with {expected:?}");
    }
}
