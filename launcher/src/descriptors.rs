//! Numbers of the descriptors that QEMU inherits.

use std::os::fd::OwnedFd;

use barevirt_machine::Fd;

/// First number used; 0 to 2 are the standard streams.
const FIRST: u32 = 3;

/// Descriptors that QEMU will inherit, each with its number there.
#[derive(Debug, Default)]
pub struct Descriptors {
    owned: Vec<OwnedFd>,
}

impl Descriptors {
    /// Takes over a descriptor; returns its number in QEMU.
    pub fn add(&mut self, descriptor: OwnedFd) -> Fd {
        let number = FIRST + u32::try_from(self.owned.len()).unwrap_or(u32::MAX - FIRST);
        self.owned.push(descriptor);
        Fd(number)
    }

    /// All descriptors with their numbers.
    #[must_use]
    pub fn into_numbered(self) -> Vec<(i32, OwnedFd)> {
        (3..).zip(self.owned).collect()
    }
}
