//! Logarithm and exponential built only from the four basic operations.
//!
//! IEEE 754 defines the results of `+ - * /` to the last bit, but not those of a mathematical library. With
//! these two functions, the same seed gives identical results on every machine.

const LN_2: f64 = std::f64::consts::LN_2;
const MANTISSA_BITS: u32 = 52;
const EXPONENT_BIAS: i64 = 1023;

/// The natural logarithm of a positive, normal number, accurate to about 1e-13.
#[inline]
#[expect(clippy::cast_precision_loss, reason = "an exponent is a small whole number")]
#[expect(clippy::cast_possible_wrap, reason = "eleven bits of exponent")]
pub fn ln(x: f64) -> f64 {
    let bits = x.to_bits();
    let mut exponent = ((bits >> MANTISSA_BITS) & 0x7ff) as i64 - EXPONENT_BIAS;
    let mut mantissa = f64::from_bits((bits & 0x000f_ffff_ffff_ffff) | 0x3ff0_0000_0000_0000);
    if mantissa > std::f64::consts::SQRT_2 {
        mantissa *= 0.5;
        exponent += 1;
    }
    // ln m = 2 artanh((m - 1) / (m + 1)), with |s| <= 0.172.
    let s = (mantissa - 1.0) / (mantissa + 1.0);
    let z = s * s;
    let series = 1.0
        + z * (1.0 / 3.0
            + z * (1.0 / 5.0
                + z * (1.0 / 7.0
                    + z * (1.0 / 9.0 + z * (1.0 / 11.0 + z * (1.0 / 13.0 + z * (1.0 / 15.0)))))));
    2.0 * s * series + exponent as f64 * LN_2
}

/// e to the power of `x`, for `x` in -700..=700, with a relative accuracy of about 1e-13.
#[inline]
#[expect(clippy::cast_possible_truncation, reason = "bounded to -700..=700 before")]
#[expect(clippy::cast_sign_loss, reason = "a biased exponent is positive")]
pub fn exp(x: f64) -> f64 {
    let x = x.clamp(-700.0, 700.0);
    let power = (x / LN_2 + if x < 0.0 { -0.5 } else { 0.5 }) as i64;
    #[expect(clippy::cast_precision_loss, reason = "at most 1010")]
    let r = x - power as f64 * LN_2;
    let mut term = 1.0;
    let terms = TAYLOR_DIVISORS.map(|n| {
        term = term * r / n;
        term
    });
    let sum = terms.iter().fold(1.0, |sum, term| sum + term);
    sum * f64::from_bits(((power + EXPONENT_BIAS) as u64) << MANTISSA_BITS)
}

/// With r from -0.35 to 0.35, the thirteenth term is below 1e-15. The divisors are literals, so that the loop
/// is unrolled and no division by a power of two remains.
const TAYLOR_DIVISORS: [f64; 13] = [1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0, 9.0, 10.0, 11.0, 12.0, 13.0];

/// The square root, which IEEE 754 defines to the last bit.
pub(crate) fn root(x: f64) -> f64 {
    x.max(0.0).sqrt()
}

#[cfg(test)]
#[expect(clippy::disallowed_methods, reason = "compared with the machine's own mathematics")]
mod test {
    use super::*;

    #[test]
    fn they_agree_with_the_machines_own_mathematics() {
        for i in 1..20_000_u32 {
            let x = f64::from(i) * 0.000_37;
            assert!((ln(x) - x.ln()).abs() < 1e-11 * x.ln().abs().max(1.0), "ln {x}");
            let y = f64::from(i) * 0.003 - 30.0;
            assert!((exp(y) / y.exp() - 1.0).abs() < 1e-11, "exp {y}");
        }
    }
}
