//! Machines with all their devices on pcie.0, as the annotation
//! [`barevirt_api::pci::ON_ROOT_ANNOTATION`] of an instance asks.
//!
//! ```text
//!   pcie.0  00.0, 01.0  host bridge and display, as in every machine
//!           02.0, 03.0, ... 1a.0  one device each; no root ports, and nothing is plugged in
//!           1b.0 to 1f.3  as in every machine
//! ```
//!
//! A device keeps its slot while the machine has the device. There are few slots, so that of a removed device
//! is free again, unlike a root port. A guest that moves keeps its kind of layout, whatever its annotations
//! say by then.

use super::{Given, Layout, LayoutError, Seat};
use barevirt_api::pci::{self, SLOTS};
use std::collections::{BTreeMap, BTreeSet};

impl Layout {
    /// Whether all devices are on pcie.0.
    #[must_use]
    pub fn is_on_root(&self) -> bool {
        !self.slots.is_empty()
    }

    /// Whether the devices of a machine are on pcie.0 if its annotations say what `wanted` says. A guest that
    /// comes from another machine has them where they are there.
    #[must_use]
    pub(crate) fn goes_on_root(&self, wanted: bool) -> bool {
        if self.arrives { self.is_on_root() } else { wanted }
    }

    /// The same layout with a slot of pcie.0 for every name, and no root ports. Known names keep their slots,
    /// unless the manifest gives a slot to another device.
    ///
    /// # Errors
    ///
    /// If there are more devices than slots, or this layout is a loaded one that is invalid.
    pub fn place_on_root<'a>(
        &self,
        names: impl IntoIterator<Item = &'a str>,
        given: &Given,
    ) -> Result<Self, LayoutError> {
        self.check()?;
        let names: Vec<&str> = names.into_iter().collect();
        let mut next = Self { ports: 0, devices: BTreeMap::new(), ..self.clone() };
        next.slots.retain(|name, slot| {
            let slot = *slot;
            names.contains(&name.as_str()) && !given.slots.contains(&slot)
        });
        let mut taken: BTreeSet<u16> = next.slots.values().chain(&given.slots).copied().collect();
        for name in &names {
            if next.slots.contains_key(*name) {
                continue;
            }
            let full =
                || LayoutError::Full { wanted: names.len() + given.slots.len(), limit: pci::SLOT_COUNT };
            let mut slots = *SLOTS.start()..=*SLOTS.end();
            let slot = slots.find(|slot| !taken.contains(slot)).ok_or_else(full)?;
            taken.insert(slot);
            next.slots.insert((*name).to_owned(), slot);
        }
        Ok(next)
    }

    /// The place of a device.
    #[must_use]
    pub fn seat(&self, name: &str) -> Option<Seat> {
        let slot = self.slots.get(name).copied();
        let on_root = slot.map(|slot| Seat::Root { slot, function: 0, shared: false });
        on_root.or_else(|| self.port(name).map(Seat::Behind))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn place(layout: &Layout, names: &[&str], given: &Given) -> Result<Layout, LayoutError> {
        layout.place_on_root(names.iter().copied(), given)
    }

    fn slots(layout: &Layout, names: &[&str]) -> Vec<Option<u16>> {
        let slot = |name: &&str| match layout.seat(name)? {
            Seat::Root { slot, function: 0, shared: false } => Some(slot),
            other => panic!("{other:?}"),
        };
        names.iter().map(slot).collect()
    }

    #[test]
    fn each_device_has_a_slot_of_its_own_and_keeps_it() {
        let given = Given { slots: [3].into(), ..Given::default() };
        let first = place(&Layout::new(), &["a", "b", "c"], &given).unwrap();
        assert_eq!(slots(&first, &["a", "b", "c"]), [Some(2), Some(4), Some(5)]);
        assert_eq!((first.port_count(), first.free_port(), first.is_on_root()), (0, None, true));
        assert_eq!(
            first.to_saved(),
            r#"{"version":"v1","ports":0,"devices":{},"slots":{"a":2,"b":4,"c":5}}"#
        );
        let saved = Layout::saved(&first.to_saved()).unwrap();
        // The slot of a device that is gone is free, and so is one that nothing claims any more.
        let next = place(&saved, &["new", "c", "a"], &Given::default()).unwrap();
        assert_eq!(slots(&next, &["a", "b", "c", "new"]), [Some(2), None, Some(5), Some(3)]);
        // A slot that the manifest gives to another device.
        let given = Given { slots: [5].into(), ..Given::default() };
        let next = place(&next, &["a", "c"], &given).unwrap();
        assert_eq!(slots(&next, &["a", "c"]), [Some(2), Some(3)]);
    }

    #[test]
    fn a_full_bus_is_an_error() {
        let names: Vec<String> = (0..=pci::SLOT_COUNT).map(|number| format!("d{number}")).collect();
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        let all = usize::from(pci::SLOT_COUNT);
        let layout = place(&Layout::new(), &names[..all], &Given::default()).unwrap();
        assert_eq!(layout.slots.values().copied().max(), Some(*SLOTS.end()));
        let full = LayoutError::Full { wanted: all + 1, limit: pci::SLOT_COUNT };
        assert_eq!(place(&layout, &names, &Given::default()), Err(full));
    }

    #[test]
    fn a_start_follows_the_annotation_and_a_move_the_guest() {
        let none = Given::default();
        let ports = Layout::new().place(["a"], &none).unwrap();
        let root = place(&ports, &["a"], &none).unwrap();
        assert_eq!((root.port_count(), root.port("a")), (0, None));
        assert_eq!([ports.goes_on_root(true), root.clone().for_start().goes_on_root(false)], [true, false]);
        let arrives = [ports.for_arrival(), root.clone().for_arrival()];
        assert_eq!(
            arrives.map(|layout| [layout.goes_on_root(true), layout.goes_on_root(false)]),
            [[false, false], [true, true]]
        );
        let back = root.place(["a"], &none).unwrap();
        assert!(matches!(back.seat("a"), Some(Seat::Behind(_))) && !back.is_on_root());
    }

    #[test]
    fn unsound_slots_are_refused() {
        for slots in [r#"{"a":1}"#, r#"{"a":27}"#, r#"{"a":2,"b":2}"#] {
            let text = format!(r#"{{"version":"v1","ports":0,"devices":{{}},"slots":{slots}}}"#);
            assert!(matches!(Layout::saved(&text), Err(LayoutError::Saved(_))), "{text}");
        }
    }
}
