//! Intervals from independent replications.

use statrs::distribution::{ContinuousCDF, StudentsT};

/// One replication: an estimate, and two averages whose expectations are known to be 0 (controls).
#[derive(Clone, Copy, Debug)]
pub struct Replication {
    pub estimate: f64,
    pub controls: [f64; 2],
}

/// A mean and its 99.9% half width.
#[derive(Clone, Copy, Debug)]
pub struct Interval {
    pub mean: f64,
    pub half: f64,
}

/// The mean over replications, after least squares on the controls: y = β₀ + β₁·c₁ + β₂·c₂ + ε, of which β₀ is the mean
/// sought, because the controls' expectations are 0. Its variance is s²·(XᵀX)⁻¹₀₀ with n − 3 degrees of freedom.
/// Lavenberg and Welch, "A perspective on the use of control variables", Management Science 27 (1981) 322–335.
pub fn controlled(replications: &[Replication]) -> Interval {
    let rows: Vec<[f64; 3]> = replications.iter().map(|r| [1.0, r.controls[0], r.controls[1]]).collect();
    let mut normal = [[0.0; 3]; 3];
    let mut right = [0.0; 3];
    for (row, replication) in rows.iter().zip(replications) {
        for i in 0..3 {
            right[i] += row[i] * replication.estimate;
            for j in 0..3 {
                normal[i][j] += row[i] * row[j];
            }
        }
    }
    // A control that never varies (constant service) carries nothing.
    for (i, row) in normal.iter_mut().enumerate() {
        row[i] = if row[i] == 0.0 { 1.0 } else { row[i] };
    }
    let inverse = inverse(normal);
    let beta: Vec<f64> = inverse.iter().map(|row| row.iter().zip(&right).map(|(a, b)| a * b).sum()).collect();
    let residual = |(row, replication): (&[f64; 3], &Replication)| {
        replication.estimate - row.iter().zip(&beta).map(|(a, b)| a * b).sum::<f64>()
    };
    let free = replications.len() as f64 - 3.0;
    let variance = rows.iter().zip(replications).map(residual).map(|e| e * e).sum::<f64>() / free;
    let t = StudentsT::new(0.0, 1.0, free).unwrap().inverse_cdf(0.9995);
    Interval { mean: beta[0], half: t * (variance * inverse[0][0]).sqrt() }
}

/// Inverse of a symmetric positive matrix by cofactors.
fn inverse(m: [[f64; 3]; 3]) -> [[f64; 3]; 3] {
    let cofactor = |i: usize, j: usize| {
        let (a, b) = ((i + 1) % 3, (i + 2) % 3);
        let (c, d) = ((j + 1) % 3, (j + 2) % 3);
        m[a][c] * m[b][d] - m[a][d] * m[b][c]
    };
    let determinant: f64 = (0..3).map(|j| m[0][j] * cofactor(0, j)).sum();
    std::array::from_fn(|i| std::array::from_fn(|j| cofactor(j, i) / determinant))
}

impl Interval {
    /// The exact value lies inside, and the interval is so narrow that a value 3% off would not (the estimate is then
    /// at least 1.5% of the value away from the far end, five standard errors).
    #[track_caller]
    pub fn must_hold(self, what: &str, exact: f64) {
        assert!(self.half < 0.015 * exact, "{what}: an interval of ± {} says little about {exact}", self.half);
        assert!((self.mean - exact).abs() < self.half, "{what}: {} ± {} against {exact}", self.mean, self.half);
    }
}
