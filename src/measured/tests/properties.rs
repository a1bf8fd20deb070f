//! What must hold for any curve.

use proptest::prelude::*;

use super::super::*;

fn points(rates: impl IntoIterator<Item = (u32, f64)>) -> Vec<Point> {
    let at = |(line, (concurrency, tok_per_s))| Point { line, concurrency, tok_per_s, ttft_ms: None, tpot_ms: None };
    (2..).zip(rates).map(at).collect()
}

#[test]
fn a_plateau_needs_two_flat_points_at_the_end() {
    assert_eq!(plateau(&[]), None);
    assert_eq!(plateau(&points([(8, 100.0)])), None);
    assert_eq!(plateau(&points([(8, 100.0), (16, 150.0)])), None);
    assert_eq!(plateau(&points([(8, 100.0), (16, 60.0)])), None);
    assert_eq!(plateau(&points([(8, 100.0), (8, 100.0)])), None);
    // Flat in the middle only: it rises again.
    assert_eq!(plateau(&points([(8, 100.0), (16, 101.0), (32, 180.0)])), None);
    let flat = plateau(&points([(4, 50.0), (8, 100.0), (16, 100.0)])).unwrap();
    assert_eq!((flat.from_concurrency, flat.to_concurrency, flat.tok_per_s.round()), (8, 16, 100.0));
}

/// Saturating curve: linear at first, level beyond `half`.
fn saturating(grid: &[u32], half: f64, stream: f64) -> Vec<Point> {
    points(grid.iter().map(|&c| (c, stream * f64::from(c) / (1.0 + f64::from(c) / half))))
}

fn grid() -> impl Strategy<Value = Vec<u32>> {
    prop::collection::btree_set(1_u32..5000, 2..10).prop_map(|set| set.into_iter().collect())
}

proptest! {
    #[test]
    fn a_saturating_curve_has_nothing_odd_on_any_grid(grid in grid(), half in 1.0..2000.0, stream in 1.0..200.0) {
        prop_assert_eq!(oddities(&saturating(&grid, half, stream)), []);
    }

    #[test]
    fn one_bad_run_inside_a_saturating_curve_is_the_only_outlier(at in 1_usize..6, half in 1.0..200.0) {
        let mut curve = saturating(&[1, 2, 4, 8, 16, 32, 64], half, 50.0);
        curve[at].tok_per_s *= 0.4;
        let odd = oddities(&curve);
        prop_assert_eq!(odd.len(), 1);
        prop_assert_eq!((odd[0].kind, odd[0].concurrency), (OddityKind::Outlier, curve[at].concurrency));
    }

    #[test]
    fn the_unit_of_the_rate_does_not_move_the_knee(grid in grid(), half in 1.0..2000.0, factor in 0.01..100.0) {
        let curve = saturating(&grid, half, 10.0);
        let scaled = points(curve.iter().map(|point| (point.concurrency, point.tok_per_s * factor)));
        prop_assert_eq!(knee(&curve), knee(&scaled));
        if let (Some(before), Some(after)) = (plateau(&curve), plateau(&scaled)) {
            let error: f64 = after.tok_per_s / before.tok_per_s / factor - 1.0;
            prop_assert!(error.abs() < 1e-9);
        }
    }

    #[test]
    fn the_knee_is_a_measured_concurrency_that_reaches_the_plateau(grid in grid(), half in 1.0..2000.0) {
        let curve = saturating(&grid, half, 10.0);
        if let (Some(knee), Some(plateau)) = (knee(&curve), plateau(&curve)) {
            let point = curve.iter().find(|point| point.concurrency == knee).unwrap();
            prop_assert!(knee == plateau.from_concurrency || point.tok_per_s >= 0.95 * plateau.tok_per_s);
        }
    }
}
