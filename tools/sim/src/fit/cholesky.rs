//! Solves small systems of linear equations with a symmetric, positive definite matrix.

use crate::math::root;

/// The lower triangle L of a matrix A = L·Lᵀ.
#[derive(Clone, Debug)]
pub(super) struct Cholesky(Vec<Vec<f64>>);

impl Cholesky {
    /// Factors a matrix; only its lower triangle is read.
    pub(super) fn of(mut matrix: Vec<Vec<f64>>) -> Self {
        for i in 0..matrix.len() {
            for j in 0..=i {
                let known: f64 = matrix[i][..j].iter().zip(&matrix[j]).map(|(a, b)| a * b).sum();
                let left = matrix[i][j] - known;
                matrix[i][j] = if i == j { root(left).max(f64::MIN_POSITIVE) } else { left / matrix[j][j] };
            }
        }
        Self(matrix)
    }

    /// Solves A·x = `right` for x.
    pub(super) fn solve(&self, mut right: Vec<f64>) -> Vec<f64> {
        for (i, row) in self.0.iter().enumerate() {
            let known: f64 = row[..i].iter().zip(&right).map(|(a, b)| a * b).sum();
            right[i] = (right[i] - known) / row[i];
        }
        self.rise(right)
    }

    /// Solves Lᵀ·y = `right` for y: if `right` holds normal draws, y has the covariance A⁻¹.
    pub(super) fn rise(&self, mut right: Vec<f64>) -> Vec<f64> {
        for i in (0..right.len()).rev() {
            let known: f64 = (i + 1..right.len()).map(|k| self.0[k][i] * right[k]).sum();
            right[i] = (right[i] - known) / self.0[i][i];
        }
        right
    }
}

#[cfg(test)]
mod test {
    use super::*;

    #[test]
    fn equations_are_solved() {
        let factor = Cholesky::of(vec![vec![4.0, 2.0, 0.6], vec![2.0, 5.0, 1.0], vec![0.6, 1.0, 3.0]]);
        // The first right-hand side, 1.8, is 4·1 + 2·(-2) + 0.6·3; the others are computed likewise.
        let solved = factor.solve(vec![1.8, -5.0, 7.6]);
        for (found, wanted) in solved.iter().zip([1.0, -2.0, 3.0]) {
            assert!((found - wanted).abs() < 1e-12, "{solved:?}");
        }
    }
}
