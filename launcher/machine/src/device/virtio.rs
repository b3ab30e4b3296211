//! Which virtio a device speaks.

/// Most transitional devices: each is behind a root port that takes a window of I/O ports for it, and firmware has no room
/// for more of those windows.
pub const MOST_TRANSITIONAL: usize = 12;

/// Which virtio a device speaks. Tablets, memory that is plugged in and vsock have the current one only.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Virtio {
    /// Version 1 and later.
    #[default]
    Current,
    /// Also the one before version 1, with its PCI ids and I/O ports, for guests that know no other.
    Transitional,
}

impl Virtio {
    /// Of the two drivers of a device, the one for it.
    pub(crate) const fn of(self, current: &'static str, transitional: &'static str) -> &'static str {
        match self {
            Virtio::Current => current,
            Virtio::Transitional => transitional,
        }
    }
}
