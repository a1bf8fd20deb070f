use super::*;
use crate::random::{Purpose, Streams};
use statrs::distribution::Normal;

/// `rows` rows of `inputs` uniform draws.
fn uniform(seed: u64, rows: usize, inputs: usize) -> Vec<Vec<f64>> {
    let mut blocks = Streams::new(seed, 0).blocks(Purpose::Request);
    (0..rows as u64).map(|row| blocks.draws(row)[..inputs].to_vec()).collect()
}

fn sobol(rows: usize, inputs: usize, f: impl Fn(&[f64]) -> f64) -> Vec<SobolIndex> {
    let (a, b) = (uniform(1, rows, inputs), uniform(2, rows, inputs));
    let swapped = |input: usize| {
        let swap = |(a, b): (&Vec<f64>, &Vec<f64>)| {
            let mut row = a.clone();
            row[input] = b[input];
            f(&row)
        };
        a.iter().zip(&b).map(swap).collect()
    };
    let runs = SobolRuns {
        a: a.iter().map(|row| f(row)).collect(),
        b: b.iter().map(|row| f(row)).collect(),
        swapped: (0..inputs).map(swapped).collect(),
    };
    runs.indices().unwrap()
}

/// Each share lies within four of its own standard errors of the truth, and those errors are small.
fn agrees(found: &[SobolIndex], truth: &[(f64, f64)], most_error: f64) {
    for (index, (first, total)) in found.iter().zip(truth) {
        assert!((index.first - first).abs() < 4.0 * index.first_error, "{index:?} for first {first}");
        assert!((index.total - total).abs() < 4.0 * index.total_error.max(1e-12), "{index:?} for total {total}");
        assert!(index.first_error < most_error && index.total_error < most_error, "{index:?}");
    }
}

#[test]
fn sobol_shares_of_the_ishigami_function() {
    // sin x1 + 7 sin² x2 + 0.1 x3⁴ sin x1 on [-π, π]³: V1 = (1 + bπ⁴/5)²/2, V2 = a²/8, V13 = b²π⁸ (1/18 − 1/50).
    let pi = std::f64::consts::PI;
    let (a, b) = (7.0, 0.1);
    let v1 = 0.5 * (1.0 + b * pi.powi(4) / 5.0).powi(2);
    let v2 = a * a / 8.0;
    let v13 = b * b * pi.powi(8) * (1.0 / 18.0 - 1.0 / 50.0);
    let all = v1 + v2 + v13;
    let found = sobol(1 << 14, 3, |u| {
        let x: Vec<f64> = u.iter().map(|u| pi * (2.0 * u - 1.0)).collect();
        x[0].sin() + a * x[1].sin().powi(2) + b * x[2].powi(4) * x[0].sin()
    });
    agrees(&found, &[(v1 / all, (v1 + v13) / all), (v2 / all, v2 / all), (0.0, v13 / all)], 0.02);
}

#[test]
fn sobol_shares_of_a_sum_of_lognormals() {
    let sigma = [0.2f64, 0.5, 0.1];
    let part = |s: f64| ((s * s).exp() - 1.0) * (s * s).exp();
    let all: f64 = sigma.iter().map(|s| part(*s)).sum();
    let found =
        sobol(1 << 13, 3, |u| u.iter().zip(sigma).map(|(u, s)| (s * Normal::standard().inverse_cdf(*u)).exp()).sum());
    let truth: Vec<(f64, f64)> = sigma.iter().map(|s| (part(*s) / all, part(*s) / all)).collect();
    agrees(&found, &truth, 0.05);
}

#[test]
fn nothing_varies_nothing_is_shared() {
    assert_eq!(SobolRuns { a: vec![1.0; 8], b: vec![1.0; 8], swapped: vec![vec![1.0; 8]] }.indices(), None);
}

#[test]
fn quantiles_of_a_short_sample() {
    let sample = sorted(&[4.0, 1.0, 3.0, 2.0]);
    assert_eq!(quantile(&sample, 0.0), Some(1.0));
    assert_eq!(quantile(&sample, 0.5), Some(2.5));
    assert!((quantile(&sample, 0.9).unwrap() - 3.7).abs() < 1e-12);
    assert_eq!(quantile(&sample, 1.0), Some(4.0));
    assert_eq!(quantile(&[], 0.5), None);
}

#[test]
fn quantile_intervals_use_the_ranks_of_the_binomial() {
    // n = 100, p = 0.5: ranks 40 and 61 (Conover, Practical Nonparametric Statistics).
    let sample: Vec<f64> = (1..=100).map(f64::from).collect();
    assert_eq!(quantile_interval(&sample, 0.5, 0.95), Some((40.0, 61.0)));
    // Five values cannot enclose a median with 95%: 1 − 2/32 = 0.9375.
    assert_eq!(quantile_interval(&sample[..5], 0.5, 0.95), None);
    assert_eq!(quantile_interval(&sample[..6], 0.5, 0.95), Some((1.0, 6.0)));
    assert_eq!(quantile_interval(&sample, 0.01, 0.95), None);
}

#[test]
fn quantile_intervals_cover_what_they_say() {
    let rows = 2000;
    let mut covered = [0u32; 3];
    for row in uniform(5, rows * 8, 8).chunks(8) {
        let sample = sorted(&row.concat());
        for (count, p) in covered.iter_mut().zip([0.2, 0.5, 0.9]) {
            let (low, high) = quantile_interval(&sample, p, 0.9).unwrap();
            *count += u32::from(low <= p && p <= high);
        }
    }
    // At least 90%, and not far above it: ranks are whole numbers. Standard error 0.7%.
    for count in covered {
        let share = f64::from(count) / rows as f64;
        assert!((0.88..0.97).contains(&share), "{share}");
    }
}

#[test]
fn means_and_pairs() {
    let a = [1.0, 2.0, 3.0];
    assert_eq!(mean(&a), Some(2.0));
    assert_eq!(variance(&a), Some(1.0));
    // t(2) at 97.5% is 4.3027.
    assert!((mean_half_width(&a, 0.95).unwrap() - 4.302_65 / 3f64.sqrt()).abs() < 1e-4);
    let pair = paired(&a, &[2.0, 3.0, 4.0], 0.95).unwrap();
    assert_eq!((pair.mean, pair.half_width, pair.below), (-1.0, Some(0.0), 1.0));
    assert_eq!(paired(&[], &[], 0.95), None);
    let (low, high) = share_interval(5, 10).unwrap();
    assert!((low - 0.2366).abs() < 1e-4 && (high - 0.7634).abs() < 1e-4);
}
