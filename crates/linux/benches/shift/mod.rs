//! Estimates how far paired differences are from zero, for benchmarks whose noise is not normally
//! distributed.

/// Returns the median of the means of all pairs of values, including each value paired with itself (Hodges
/// and Lehmann), with Wilcoxon's 95 % interval in its normal approximation.
pub(crate) fn shift_with_interval(values: &[f64]) -> (f64, f64, f64) {
    let mut means = Vec::with_capacity(values.len() * (values.len() + 1) / 2);
    for (i, value) in values.iter().enumerate() {
        means.extend(values[i..].iter().map(|other| f64::midpoint(*value, *other)));
    }
    means.sort_by(f64::total_cmp);
    let n = values.len();
    // n(n+1)/4 − 1.96·√(n(n+1)(2n+1)/24), in whole numbers.
    let reach = (n * (n + 1) * (2 * n + 1) * 38_416 / 24).isqrt() / 100;
    let cut = (n * (n + 1) / 4).saturating_sub(reach).max(1);
    (means[cut - 1], means[means.len() / 2], means[means.len() - cut])
}
