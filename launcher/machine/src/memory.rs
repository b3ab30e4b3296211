//! The guest's memory.

use crate::props::Props;
use crate::quote::Options;
use crate::units::Bytes;

/// Memory in a memfd.
///
/// The memfd is mapped shared: a private mapping of it would hold each page that the guest writes twice, and pages
/// that the guest gives back through the balloon would stay in the file. The kernel counts it to the pod either way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Memory {
    size: Bytes,
}

impl Memory {
    /// The id of the backend is in every migration stream and snapshot: it stays for ever.
    pub(crate) const ID: &'static str = "pc.ram";

    /// Memory of at least that size: whole mebibytes, as guests and firmware expect them.
    #[must_use]
    pub fn new(wanted: Bytes) -> Self {
        Self { size: wanted.round_up(Bytes::MIB) }
    }

    /// What the guest sees.
    #[must_use]
    pub const fn size(self) -> Bytes {
        self.size
    }

    pub(crate) fn object(self) -> Props {
        Props::new("qom-type", "memory-backend-memfd")
            .with("id", Self::ID)
            .with("size", self.size.0)
            .with("share", true)
    }

    /// The argument of `-m`; a plain number would be mebibytes.
    pub(crate) fn option(self) -> String {
        Options::new().with("size", format!("{}M", self.size.whole_mib())).into_string()
    }
}
