//! Kubernetes quantities as whole bytes and thousandths of a CPU.
//!
//! A quantity is a decimal number with a suffix: binary (`Ki` .. `Ei`), decimal (`n`, `u`, `m`, `k` .. `E`)
//! or an exponent (`e3`). Kubernetes rounds up digits that it cannot hold, and so does this module.

use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use thiserror::Error;

/// Why a text is not a quantity.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum QuantityError {
    /// Not a number with a suffix.
    #[error("quantity {0:?} is not a number with an optional suffix")]
    Syntax(String),
    /// Too large.
    #[error("quantity {0:?} is out of range")]
    Range(String),
    /// Negative where only positive values are allowed.
    #[error("quantity {0:?} is negative")]
    Negative(String),
}

/// The quantity in bytes, rounded up.
pub fn bytes(quantity: &Quantity) -> Result<u64, QuantityError> {
    unsigned(quantity, scaled(quantity, 0)?)
}

/// The quantity in thousandths, rounded up: 1500 for `1.5` CPUs.
pub fn millis(quantity: &Quantity) -> Result<u64, QuantityError> {
    unsigned(quantity, scaled(quantity, 3)?)
}

/// The quantity in billionths, rounded up. Quantities above nine billion are out of range.
pub fn nanos(quantity: &Quantity) -> Result<u64, QuantityError> {
    unsigned(quantity, scaled(quantity, 9)?)
}

/// Whether the quantity is zero; false for an invalid quantity.
pub fn is_zero(quantity: &Quantity) -> bool {
    millis(quantity) == Ok(0)
}

/// Whether the quantity is below zero; false for an invalid quantity.
pub fn is_negative(quantity: &Quantity) -> bool {
    scaled(quantity, 9).is_ok_and(|value| value < 0)
}

/// Bytes as Kubernetes writes them: with the largest binary suffix that is exact.
pub fn from_bytes(bytes: u64) -> Quantity {
    suffixed(bytes, 1024, ["", "Ki", "Mi", "Gi", "Ti", "Pi", "Ei"])
}

/// A number as Kubernetes writes one without a binary suffix: with the largest decimal suffix that is exact.
pub fn from_decimal(number: u64) -> Quantity {
    suffixed(number, 1000, ["", "k", "M", "G", "T", "P", "E"])
}

fn suffixed(number: u64, base: u64, suffixes: [&str; 7]) -> Quantity {
    let mut value = number;
    let mut suffix = 0;
    while value != 0 && value.is_multiple_of(base) && suffix + 1 < suffixes.len() {
        value /= base;
        suffix += 1;
    }
    Quantity(format!("{value}{}", suffixes[suffix]))
}

/// Thousandths as Kubernetes writes them: whole numbers without a suffix, others with `m`.
pub fn from_millis(millis: u64) -> Quantity {
    if millis.is_multiple_of(1000) {
        Quantity((millis / 1000).to_string())
    } else {
        Quantity(format!("{millis}m"))
    }
}

fn unsigned(quantity: &Quantity, value: i128) -> Result<u64, QuantityError> {
    if value < 0 {
        return Err(QuantityError::Negative(shortened(&quantity.0)));
    }
    // Kubernetes' own limit is that of a signed 64-bit number.
    match u64::try_from(value) {
        Ok(value) if i64::try_from(value).is_ok() => Ok(value),
        _ => Err(QuantityError::Range(shortened(&quantity.0))),
    }
}

/// Limits the length of user text in our messages.
fn shortened(text: &str) -> String {
    text.chars().take(64).collect()
}

/// The quantity times ten to the power of `digits`, rounded away from zero.
fn scaled(quantity: &Quantity, digits: i32) -> Result<i128, QuantityError> {
    let text = quantity.0.as_str();
    let syntax = || QuantityError::Syntax(shortened(text));
    let range = || QuantityError::Range(shortened(text));
    // More digits make no sense, and this bound keeps the arithmetic below in range.
    if text.len() > 40 {
        return Err(range());
    }
    let (negative, rest) = match text.as_bytes().first() {
        Some(b'-') => (true, &text[1..]),
        Some(b'+') => (false, &text[1..]),
        _ => (false, text),
    };
    let number_end = rest.find(|c: char| !(c.is_ascii_digit() || c == '.')).unwrap_or(rest.len());
    let (number, suffix) = rest.split_at(number_end);
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    if (whole.is_empty() && fraction.is_empty()) || fraction.contains('.') {
        return Err(syntax());
    }
    let (binary_shift, exponent) = match suffix {
        "" => (0, 0),
        "n" => (0, -9),
        "u" => (0, -6),
        "m" => (0, -3),
        "k" => (0, 3),
        "M" => (0, 6),
        "G" => (0, 9),
        "T" => (0, 12),
        "P" => (0, 15),
        "E" => (0, 18),
        "Ki" => (10, 0),
        "Mi" => (20, 0),
        "Gi" => (30, 0),
        "Ti" => (40, 0),
        "Pi" => (50, 0),
        "Ei" => (60, 0),
        _ => match suffix.strip_prefix(['e', 'E']).and_then(|digits| digits.parse::<i32>().ok()) {
            Some(exponent) if (-40..=40).contains(&exponent) => (0, exponent),
            Some(_) => return Err(range()),
            None => return Err(syntax()),
        },
    };
    let mantissa: i128 = format!("{whole}{fraction}").parse().map_err(|_| range())?;
    let power = exponent + digits - i32::try_from(fraction.len()).map_err(|_| range())?;
    let shifted = mantissa.checked_mul(1_i128 << binary_shift).ok_or_else(range)?;
    let value = if power >= 0 {
        let factor = 10_i128.checked_pow(power.unsigned_abs()).ok_or_else(range)?;
        shifted.checked_mul(factor).ok_or_else(range)?
    } else {
        match 10_i128.checked_pow(power.unsigned_abs()) {
            Some(divisor) => shifted / divisor + i128::from(shifted % divisor != 0),
            None => i128::from(shifted != 0),
        }
    };
    Ok(if negative { -value } else { value })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn q(text: &str) -> Quantity {
        Quantity(text.to_owned())
    }

    #[test]
    fn reads_bytes() {
        for (text, expected) in [
            ("0", 0),
            ("1", 1),
            ("64M", 64_000_000),
            ("64Mi", 64 << 20),
            ("1.5Gi", 1536 << 20),
            ("0.5", 1),
            ("100m", 1),
            ("1e3", 1000),
            ("1E3", 1000),
            ("2E", 2_000_000_000_000_000_000),
            (".5k", 500),
            ("5.", 5),
            ("+7", 7),
            ("1e-3", 1),
        ] {
            assert_eq!(bytes(&q(text)), Ok(expected), "{text}");
        }
    }

    #[test]
    fn reads_millis() {
        for (text, expected) in
            [("1", 1000), ("100m", 100), ("0.1", 100), ("1.5", 1500), ("1u", 1), ("2k", 2_000_000)]
        {
            assert_eq!(millis(&q(text)), Ok(expected), "{text}");
        }
    }

    #[test]
    fn refuses_what_is_no_quantity() {
        for text in ["", "-", "abc", "1.2.3", "1 Gi", "1gi", "1Kib", "Mi", "1e", "1e1.5", ".", "١"] {
            assert!(matches!(bytes(&q(text)), Err(QuantityError::Syntax(_))), "{text}");
        }
        for text in ["10E", "16Ei", "1e30", "99999999999999999999999999999999999999999999"] {
            assert!(bytes(&q(text)).is_err(), "{text}");
        }
        assert_eq!(bytes(&q("-1")), Err(QuantityError::Negative("-1".into())));
        assert!(is_negative(&q("-1m")));
        assert!(!is_negative(&q("-0")));
    }

    #[test]
    fn writes_the_canonical_form() {
        assert_eq!(from_bytes(0).0, "0");
        assert_eq!(from_bytes(1 << 30).0, "1Gi");
        assert_eq!(from_bytes(1536 << 20).0, "1536Mi");
        assert_eq!(from_bytes(64_000_000).0, "62500Ki");
        assert_eq!(from_bytes(1001).0, "1001");
        assert_eq!(from_millis(2000).0, "2");
        assert_eq!(from_millis(100).0, "100m");
    }

    proptest! {
        #[test]
        fn never_panics(text in "\\PC{0,50}") {
            let _ = bytes(&q(&text));
            let _ = millis(&q(&text));
        }

        #[test]
        fn never_panics_on_near_misses(text in "[-+]?[0-9.]{0,39}(e[0-9-]{0,3}|[numkMGTPE]i?)?") {
            let _ = bytes(&q(&text));
            let _ = is_negative(&q(&text));
        }

        #[test]
        fn a_written_quantity_is_read_back(value in 0..=(i64::MAX as u64)) {
            prop_assert_eq!(bytes(&from_bytes(value)), Ok(value));
        }
    }
}
