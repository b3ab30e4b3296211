//! Types for units and identities, so that they are not mixed up with plain integers.

use serde::{Deserialize, Serialize};
use std::fmt;

/// A number of bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Bytes(pub u64);

impl Bytes {
    /// One mebibyte.
    pub const MIB: Bytes = Bytes(1 << 20);

    /// This many mebibytes.
    #[must_use]
    pub const fn mib(count: u64) -> Self {
        Bytes(count << 20)
    }

    /// The next multiple of `unit`; the largest possible one if that would overflow.
    #[must_use]
    pub fn round_up(self, unit: Bytes) -> Self {
        match self.0.checked_next_multiple_of(unit.0.max(1)) {
            Some(bytes) => Bytes(bytes),
            None => Bytes(u64::MAX - u64::MAX % unit.0.max(1)),
        }
    }

    /// Whole mebibytes, rounded down.
    #[must_use]
    pub const fn whole_mib(self) -> u64 {
        self.0 >> 20
    }
}

impl fmt::Display for Bytes {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{} bytes", self.0)
    }
}

/// Number of a descriptor in QEMU's own table, where the launcher has put it. It is only a name here and is
/// never used to read or write.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Fd(pub u32);

impl fmt::Display for Fd {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(formatter)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rounding_goes_up_and_never_overflows() {
        assert_eq!(Bytes(64_000_000).round_up(Bytes::MIB), Bytes::mib(62));
        assert_eq!(Bytes::mib(3).round_up(Bytes::MIB), Bytes::mib(3));
        assert_eq!(Bytes(u64::MAX).round_up(Bytes::MIB).0 % Bytes::MIB.0, 0);
    }
}
