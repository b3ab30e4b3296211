//! The guest's memory.

use crate::props::Props;
use crate::quote::Options;
use crate::units::Bytes;

/// Memory in a memfd.
///
/// The memfd is mapped shared: with a private mapping, each page that the guest writes would exist twice, and
/// pages that the guest returns through the balloon would stay in the file. In both cases the kernel charges
/// the memory to the pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Memory {
    size: Bytes,
    /// Size of its pages, if they are huge.
    page: Option<Bytes>,
    /// Whether all pages are touched before the guest runs.
    touched: bool,
}

impl Memory {
    /// The id of the backend. Migration streams and snapshots contain it, so it must never change.
    pub(crate) const ID: &'static str = "pc.ram";

    /// Memory of at least this size, in whole mebibytes as guests and firmware expect.
    #[must_use]
    pub fn new(wanted: Bytes) -> Self {
        Self { size: wanted.round_up(Bytes::MIB), page: None, touched: false }
    }

    /// The same in huge pages; `None` if the size is not a multiple of the page size.
    #[must_use]
    pub fn in_pages(wanted: Bytes, page: Bytes) -> Option<Self> {
        let size = Self::new(wanted).size;
        let even = page.0 > 0 && size.0.is_multiple_of(page.0);
        // All pages are allocated at once, because a missing page would end the guest later.
        even.then_some(Self { size, page: Some(page), touched: true })
    }

    /// The same, with all pages touched before the guest runs, so that they are charged to QEMU's container
    /// and to no other.
    #[must_use]
    pub fn touched(self) -> Self {
        Self { touched: true, ..self }
    }

    /// The size that the guest sees.
    #[must_use]
    pub const fn size(self) -> Bytes {
        self.size
    }

    pub(crate) fn object(self) -> Props {
        let object = Props::new("qom-type", "memory-backend-memfd")
            .with("id", Self::ID)
            .with("size", self.size.0)
            .with("share", true);
        let object = match self.page {
            None => object,
            Some(page) => object.with("hugetlb", true).with("hugetlbsize", page.0),
        };
        object.maybe("prealloc", self.touched.then_some(true))
    }

    /// The argument of `-m`, with a range for memory that is plugged later. A plain number would mean
    /// mebibytes.
    pub(crate) fn option(self, room: Option<Bytes>) -> String {
        let mib = |bytes: Bytes| format!("{}M", bytes.whole_mib());
        let most = room.map(|room| mib(Bytes(self.size.0.saturating_add(room.0))));
        Options::new().with("size", mib(self.size)).maybe("maxmem", most).into_string()
    }
}
