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
    /// Size of its pages, where they are huge.
    page: Option<Bytes>,
    /// All of it is touched before the guest runs.
    touched: bool,
}

impl Memory {
    /// The id of the backend is in every migration stream and snapshot: it stays for ever.
    pub(crate) const ID: &'static str = "pc.ram";

    /// Memory of at least that size: whole mebibytes, as guests and firmware expect them.
    #[must_use]
    pub fn new(wanted: Bytes) -> Self {
        Self { size: wanted.round_up(Bytes::MIB), page: None, touched: false }
    }

    /// The same in huge pages; none where they do not come out even.
    #[must_use]
    pub fn in_pages(wanted: Bytes, page: Bytes) -> Option<Self> {
        let size = Self::new(wanted).size;
        let even = page.0 > 0 && size.0.is_multiple_of(page.0);
        // All of them at once: a page that is missing later would end the guest.
        even.then_some(Self { size, page: Some(page), touched: true })
    }

    /// The same, all of it touched before the guest runs, so that it counts to QEMU's container and to no other.
    #[must_use]
    pub fn touched(self) -> Self {
        Self { touched: true, ..self }
    }

    /// What the guest sees.
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

    /// The argument of `-m`, with room for memory that comes later; a plain number would be mebibytes.
    pub(crate) fn option(self, room: Option<Bytes>) -> String {
        let mib = |bytes: Bytes| format!("{}M", bytes.whole_mib());
        let most = room.map(|room| mib(Bytes(self.size.0.saturating_add(room.0))));
        Options::new().with("size", mib(self.size)).maybe("maxmem", most).into_string()
    }
}
