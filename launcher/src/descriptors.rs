//! Numbers of the descriptors that QEMU inherits.

use std::os::fd::OwnedFd;

use barevirt_machine::Fd;

/// First number given; 0 to 2 are the standard ones.
const FIRST: u32 = 3;

/// Descriptors that QEMU will inherit, each with the number it has there.
#[derive(Debug, Default)]
pub struct Descriptors {
    owned: Vec<OwnedFd>,
}

impl Descriptors {
    /// Takes over a descriptor; the number that QEMU will know it by.
    pub fn add(&mut self, descriptor: OwnedFd) -> Fd {
        let number = FIRST + u32::try_from(self.owned.len()).unwrap_or(u32::MAX - FIRST);
        self.owned.push(descriptor);
        Fd(number)
    }

    /// All of them, with their numbers.
    #[must_use]
    pub fn into_numbered(self) -> Vec<(i32, OwnedFd)> {
        (3..).zip(self.owned).collect()
    }
}
