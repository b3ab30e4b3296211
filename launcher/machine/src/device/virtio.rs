//! The version of virtio that a device uses.

/// Most transitional devices: each is behind a root port that needs a window of I/O ports, and firmware has
/// no space for more of these windows.
pub const MOST_TRANSITIONAL: usize = 12;

/// The version of virtio that a device uses. Tablets, pluggable memory and vsock have only the current one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Virtio {
    /// Version 1 and later.
    #[default]
    Current,
    /// Also the version before 1, with its PCI ids and I/O ports, for guests that support no other.
    Transitional,
}

impl Virtio {
    /// The driver for this version.
    pub(crate) const fn of(self, current: &'static str, transitional: &'static str) -> &'static str {
        match self {
            Virtio::Current => current,
            Virtio::Transitional => transitional,
        }
    }
}
