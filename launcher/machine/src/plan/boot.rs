//! The order in which the firmware tries devices.

use barevirt_api::valid::ValidVmi;

/// How the boot order is determined.
pub(super) enum BootOrder {
    /// Only devices with a given place, in that order.
    Given,
    /// No device has a given place: disks, in the order of the list.
    ByList,
}

impl BootOrder {
    pub(super) fn of(vmi: &ValidVmi) -> Self {
        let mut disks = vmi.spec().domain.devices.disks.iter();
        let disks = disks.any(|disk| disk.boot_order.is_some());
        let interfaces = vmi.interfaces().iter().any(|interface| interface.interface.boot_order.is_some());
        if disks || interfaces { BootOrder::Given } else { BootOrder::ByList }
    }

    pub(super) fn index(&self, given: Option<i32>, at: usize) -> Option<u32> {
        match self {
            BootOrder::Given => boot_index(given),
            BootOrder::ByList => u32::try_from(at + 1).ok(),
        }
    }
}

/// The API counts from 1, and this function keeps its number; QEMU only compares.
pub(super) fn boot_index(given: Option<i32>) -> Option<u32> {
    given.and_then(|order| u32::try_from(order).ok())
}
