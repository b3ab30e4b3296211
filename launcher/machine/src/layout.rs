//! Places of devices on the PCI bus: layout version 1.
//!
//! The guest names its network interfaces and finds its disks by PCI address, so an assigned address must
//! stay. Every pluggable PCI device is alone behind its own root port:
//!
//! ```text
//!   pcie.0  00.0  host bridge (QEMU's)
//!           01.0  display
//!           02.0-02.7, 03.0-03.7, ...  root ports rp0, rp1, ...: one device each, or free for hotplug
//!           (any of them may be a bridge to conventional PCI instead)
//!           1a.0-1a.7  root ports, if the manifest has assigned other slots
//!           1b.0  panic device
//!           1e.0, 1d.0, 1c.0  further SATA controllers, if six ports are not enough
//!           1f.0, 1f.2, 1f.3           ISA bridge, SATA controller, SMBus (QEMU's)
//! ```
//!
//! A device's port is found by its name. The launcher saves the [`Layout`] with the VMI and loads it for the
//! next start: known devices keep their ports, new ones take the lowest free port, and the port of a removed
//! device stays reserved until [`Layout::forget`] is called. The number of ports never decreases, and ports
//! are only added at the end, so that bus numbers stay as well.
//!
//! A first start leaves [`SPARE_PORTS`] to [`SPARE_PORTS`] + 7 ports free for hotplug (whole slots of eight).
//! A manifest may choose the place of a device ([`Given`]). A device that it places on pcie.0 takes a whole
//! slot from the root ports, which move to the next one; a port that it names is taken away from its former
//! device.
//!
//! A machine with all its devices on pcie.0 has no root ports; its slots are in `on_root`.
//!
//! Any change of this needs a new version, and the old code must stay as well.

mod on_root;
mod recorded;
mod saved;

use crate::blocks::Blocks;
use barevirt_api::pci::{self, FUNCTIONS, Place, SLOTS};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use thiserror::Error;

/// Smallest number of free root ports in a new layout.
pub const SPARE_PORTS: u16 = 8;

/// Most root ports that fit.
pub const MAX_PORTS: u16 = (*SLOTS.end() - *SLOTS.start()) * FUNCTIONS;

/// Number of a root port, counted from 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Port(u16);

impl Port {
    /// Its number.
    #[must_use]
    pub const fn number(self) -> u16 {
        self.0
    }

    /// The root port's id, which is also the name of its bus.
    #[must_use]
    pub fn bus(self) -> String {
        format!("rp{}", self.0)
    }

    /// The id of the bridge that replaces it, which is also the name of the bridge's bus.
    pub(crate) fn bridge(self) -> String {
        format!("bridge{}", self.0)
    }

    /// The port of a bus of the machine, counted from 1.
    pub(crate) const fn of_bus(bus: u16) -> Self {
        Self(bus.saturating_sub(1))
    }

    /// The number of its bus, as firmware counts.
    const fn bus_number(self) -> u16 {
        self.0 + 1
    }

    /// Its function in its slot on pcie.0.
    pub(crate) const fn function(self) -> u16 {
        self.0 % FUNCTIONS
    }
}

/// The place of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Seat {
    /// Alone behind a root port.
    Behind(Port),
    /// On pcie.0: at the manifest's address, or because all devices are there.
    Root {
        /// Its slot.
        slot: u16,
        /// Its function of the slot.
        function: u16,
        /// Whether other devices have other functions of the slot.
        shared: bool,
    },
    /// Behind a bridge to conventional PCI, at the manifest's address.
    Bridged {
        /// The root port that the bridge replaces.
        port: Port,
        /// Its slot.
        slot: u16,
        /// Its function of the slot.
        function: u16,
        /// Whether other devices have other functions of the slot.
        shared: bool,
    },
}

impl Seat {
    /// The address at which the guest finds the device, as `0000:01:00.0`.
    #[must_use]
    pub fn address(self) -> String {
        let place = match self {
            Seat::Behind(port) => Place { bus: port.bus_number(), slot: 0, function: 0 },
            Seat::Root { slot, function, .. } => Place { bus: 0, slot, function },
            Seat::Bridged { port, slot, function, .. } => Place { bus: port.bus_number(), slot, function },
        };
        // The machine has one PCI domain.
        format!("0000:{place}")
    }
}

/// Places that a manifest chooses.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Given {
    /// Slots of pcie.0 with devices on them.
    pub(crate) slots: BTreeSet<u16>,
    /// Devices by name, with the ports that they must be behind.
    pub(crate) ports: BTreeMap<String, Port>,
    /// Root ports that are replaced by bridges to conventional PCI.
    pub(crate) bridges: BTreeSet<Port>,
}

impl Given {
    /// The slot of a root port.
    pub(crate) fn slot(&self, port: Port) -> Option<u16> {
        pci::port_slots(&self.slots).nth(usize::from(port.0 / FUNCTIONS))
    }
}

/// Why a layout cannot be made.
#[derive(Debug, Error, PartialEq, Eq)]
pub enum LayoutError {
    /// More devices than root ports that fit.
    #[error("{wanted} PCI devices do not fit, at most {limit} do")]
    Full {
        /// Number of devices, including reserved ports of removed devices.
        wanted: usize,
        /// Number of root ports that fit.
        limit: u16,
    },
    /// A saved layout contradicts itself, or has an unknown version.
    #[error("the saved PCI layout is not usable: {0}")]
    Saved(String),
}

/// The places of devices behind root ports.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Layout {
    version: String,
    /// Number of root ports, used or not.
    ports: u16,
    devices: BTreeMap<String, Port>,
    /// Units of disks on the SCSI controller that were plugged in while the machine ran.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    units: BTreeMap<String, u16>,
    /// Whether the SCSI controller was plugged in while the machine ran. A guest that moves keeps it even if
    /// it has no disk any more.
    #[serde(default, skip_serializing_if = "is_false")]
    scsi_came: bool,
    /// Sockets with processors when the machine started, if it can get more: the number of queues of devices
    /// depends on it.
    #[serde(default, skip_serializing_if = "is_none_yet")]
    sockets: u32,
    /// Whether the balloon has no free page reporting because an annotation or the cluster's settings said so when the machine
    /// started.
    #[serde(default, skip_serializing_if = "is_false")]
    silent: bool,
    /// Whether PCI devices have no memory above the guest's because an annotation said so when the machine started.
    #[serde(default, skip_serializing_if = "is_false")]
    low: bool,
    /// Slots of devices on pcie.0, if all devices are there.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    slots: BTreeMap<String, u16>,
    /// Block sizes of disks that got them from their volumes.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    blocks: BTreeMap<String, Blocks>,
    /// Whether the guest comes from another machine, which has so many root ports.
    #[serde(skip)]
    arrives: bool,
}

fn is_none_yet(sockets: &u32) -> bool {
    *sockets == 0
}

fn is_false(value: &bool) -> bool {
    !*value
}

impl Default for Layout {
    fn default() -> Self {
        Self::new()
    }
}

impl Layout {
    /// Name of the only version so far.
    pub const VERSION: &'static str = "v1";

    /// The layout of a machine that was never started.
    #[must_use]
    pub fn new() -> Self {
        Self {
            version: Self::VERSION.to_owned(),
            ports: 0,
            devices: BTreeMap::new(),
            units: BTreeMap::new(),
            scsi_came: false,
            sockets: 0,
            silent: false,
            low: false,
            slots: BTreeMap::new(),
            blocks: BTreeMap::new(),
            arrives: false,
        }
    }

    /// The same layout with a port for every name. Known names keep their ports, unless the manifest gives a
    /// port to another device.
    ///
    /// # Errors
    ///
    /// If there are more devices than root ports that fit, or than an arriving guest has, or this layout is a loaded one that is
    /// invalid.
    pub fn place<'a>(
        &self,
        names: impl IntoIterator<Item = &'a str>,
        given: &Given,
    ) -> Result<Self, LayoutError> {
        self.check()?;
        let limit = pci::most_ports(&given.slots);
        let mut next = Self { slots: BTreeMap::new(), ..self.clone() };
        for (name, port) in &given.ports {
            next.devices.retain(|_, held| held != port);
            next.devices.insert(name.clone(), *port);
        }
        let mut taken: Vec<Port> = next.devices.values().copied().collect();
        taken.sort_unstable();
        for name in names {
            if next.devices.contains_key(name) {
                continue;
            }
            let port = lowest_free(&taken);
            let at = taken.partition_point(|other| *other < port);
            taken.insert(at, port);
            next.devices.insert(name.to_owned(), port);
        }
        // The number of ports follows from the highest used port, which may exceed the number of devices if
        // some were removed.
        let end = taken.last().map_or(0, |port| port.0.saturating_add(1));
        if end > limit {
            return Err(LayoutError::Full { wanted: taken.len().max(usize::from(end)), limit });
        }
        if self.arrives && end > self.ports {
            return Err(LayoutError::Full { wanted: usize::from(end), limit: self.ports });
        }
        if self.arrives {
            return Ok(next);
        }
        let wanted = (end + SPARE_PORTS).next_multiple_of(FUNCTIONS);
        next.ports = next.ports.max(wanted).min(limit);
        Ok(next)
    }

    /// The port of a device.
    #[must_use]
    pub fn port(&self, name: &str) -> Option<Port> {
        self.devices.get(name).copied()
    }

    /// Whether a device is behind the port, or a removed device has reserved it.
    #[must_use]
    pub fn is_used(&self, port: Port) -> bool {
        self.devices.values().any(|used| *used == port)
    }

    /// Number of root ports.
    #[must_use]
    pub const fn port_count(&self) -> u16 {
        self.ports
    }

    /// Every root port, used or free.
    pub fn ports(&self) -> impl Iterator<Item = Port> + use<> {
        (0..self.ports).map(Port)
    }

    /// The lowest free port, for the next hotplugged device.
    #[must_use]
    pub fn free_port(&self) -> Option<Port> {
        let mut taken: Vec<Port> = self.devices.values().copied().collect();
        taken.sort_unstable();
        Some(lowest_free(&taken)).filter(|port| port.0 < self.ports)
    }

    /// Assigns the lowest free port to a name, without adding ports. For hotplug.
    #[must_use]
    pub fn occupy(&self, name: &str) -> Option<(Self, Port)> {
        if let Some(port) = self.port(name) {
            return Some((self.clone(), port));
        }
        let port = self.free_port()?;
        let mut next = self.clone();
        next.devices.insert(name.to_owned(), port);
        Some((next, port))
    }

    /// Frees the port and the unit of a device that was removed from the manifest.
    pub fn forget(&mut self, name: &str) {
        self.devices.remove(name);
        self.units.remove(name);
        self.slots.remove(name);
        self.blocks.remove(name);
    }

    /// Whether it is that of a guest that comes from another machine.
    pub(crate) const fn is_arriving(&self) -> bool {
        self.arrives
    }

    /// The same layout for a new start: devices that were plugged in while it ran must be plugged in again, and disks get
    /// the block sizes that their volumes have by then.
    #[must_use]
    pub fn for_start(mut self) -> Self {
        (self.scsi_came, self.sockets) = (false, 0);
        self.blocks.clear();
        self
    }

    /// The same layout for a guest that comes from another machine: it has the root ports that it has there.
    #[must_use]
    pub fn for_arrival(self) -> Self {
        Self { arrives: true, ..self }
    }
}

/// The first number that is not in the sorted list.
fn lowest_free(taken: &[Port]) -> Port {
    let free = (0..).zip(taken).find(|(number, port)| port.0 != *number).map(|(number, _)| number);
    Port(free.unwrap_or_else(|| u16::try_from(taken.len()).unwrap_or(u16::MAX)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::collection::{btree_set, vec};
    use proptest::prelude::*;

    #[test]
    fn a_saved_layout_is_read_back_and_nonsense_refused() {
        let layout = Layout::new().place(["disk-a", "net-b"], &Given::default()).unwrap();
        assert_eq!(Layout::saved(&layout.to_saved()), Ok(layout.clone()));
        for text in ["", "{}", &layout.to_saved().replace("v1", "v9"), &layout.to_saved().replace(":1", ":0")]
        {
            assert!(matches!(Layout::saved(text), Err(LayoutError::Saved(_))), "{text}");
        }
    }

    #[test]
    fn a_guest_that_arrives_has_the_ports_that_it_had() {
        let names: Vec<String> = (0..8).map(|number| format!("disk-{number}")).collect();
        let names = |more: &[&'static str]| {
            let mut all: Vec<&str> = names.iter().map(String::as_str).collect();
            all.extend(more);
            all.into_iter().map(str::to_owned).collect::<Vec<_>>()
        };
        let place = |layout: &Layout, names: Vec<String>| {
            layout.place(names.iter().map(String::as_str), &Given::default())
        };
        let there = place(&Layout::new(), names(&[])).unwrap();
        let starts = place(&there, names(&["nic-fast"])).unwrap();
        let arrives = place(&there.clone().for_arrival(), names(&["nic-fast"])).unwrap();
        assert_eq!((there.port_count(), starts.port_count(), arrives.port_count()), (16, 24, 16));
        assert_eq!(arrives.port("nic-fast"), Some(Port(8)));
        assert_eq!(Layout::saved(&arrives.to_saved()).unwrap().port_count(), 16);
        // A port that its machine does not have is no place for a card.
        let full = ["a", "b", "c", "d", "e", "f", "g", "h", "nic-fast"];
        let error = place(&there.for_arrival(), names(&full)).unwrap_err();
        assert_eq!(error, LayoutError::Full { wanted: 17, limit: 16 });
    }

    #[test]
    fn a_first_layout_follows_the_order_given_and_leaves_spare_ports() {
        let layout = Layout::new().place(["nic-default", "disk-a", "disk-b"], &Given::default()).unwrap();
        assert_eq!(layout.port("nic-default"), Some(Port(0)));
        assert_eq!(layout.port("disk-b"), Some(Port(2)));
        assert_eq!(layout.ports().count(), 16);
        assert_eq!(layout.free_port(), Some(Port(3)));
    }

    #[test]
    fn ports_fill_slots_of_eight_functions() {
        let place = |given: &Given, port: Port| (given.slot(port), port.function());
        let free = Given::default();
        assert_eq!(place(&free, Port(0)), (Some(2), 0));
        assert_eq!(place(&free, Port(9)), (Some(3), 1));
        assert_eq!(place(&free, Port(MAX_PORTS - 1)), (Some(0x19), 7));
        assert_eq!(place(&free, Port(MAX_PORTS)), (None, 0));
        assert_eq!(pci::most_ports(&free.slots), MAX_PORTS);
        let taken = Given { slots: [2, 4].into(), ..Given::default() };
        assert_eq!(place(&taken, Port(0)), (Some(3), 0));
        assert_eq!(place(&taken, Port(9)), (Some(5), 1));
        assert_eq!(taken.slot(Port(pci::most_ports(&taken.slots) - 1)), Some(0x1a));
    }

    #[test]
    fn a_port_that_is_asked_for_goes_before_one_that_was_given() {
        let first = Layout::new().place(["a", "b"], &Given::default()).unwrap();
        let given = Given { ports: [("b".to_owned(), Port(0))].into(), ..Given::default() };
        let next = first.place(["a", "b"], &given).unwrap();
        assert_eq!((next.port("b"), next.port("a")), (Some(Port(0)), Some(Port(1))));
        // The device keeps its port without being listed.
        assert_eq!(next.place(["a", "b"], &Given::default()), Ok(next.clone()));
    }

    #[test]
    fn the_ports_fit_in_the_slots_that_are_left() {
        let all_but_one = Given { slots: (2..0x1a).collect(), ..Given::default() };
        let names: Vec<String> = (0..9).map(|number| format!("d{number}")).collect();
        let place = |count| Layout::new().place(names.iter().map(String::as_str).take(count), &all_but_one);
        assert_eq!(place(8).unwrap().port_count(), 8);
        assert_eq!(place(9), Err(LayoutError::Full { wanted: 9, limit: 8 }));
    }

    #[test]
    fn a_forgotten_port_is_used_again_and_others_stay() {
        let mut layout = Layout::new().place(["a", "b", "c"], &Given::default()).unwrap();
        layout.forget("b");
        let layout = layout.place(["a", "c", "d"], &Given::default()).unwrap();
        assert_eq!(layout.port("c"), Some(Port(2)));
        assert_eq!(layout.port("d"), Some(Port(1)));
    }

    #[test]
    fn too_many_devices_are_refused() {
        let names: Vec<String> = (0..=MAX_PORTS).map(|number| format!("d{number}")).collect();
        let error = Layout::new().place(names.iter().map(String::as_str), &Given::default()).unwrap_err();
        assert_eq!(error, LayoutError::Full { wanted: usize::from(MAX_PORTS) + 1, limit: MAX_PORTS });
    }

    #[test]
    fn an_unsound_saved_layout_is_refused() {
        for saved in [
            r#"{"version":"v2","ports":16,"devices":{}}"#,
            r#"{"version":"v1","ports":16,"devices":{"a":1,"b":1}}"#,
            r#"{"version":"v1","ports":16,"devices":{"a":16}}"#,
            r#"{"version":"v1","ports":6000,"devices":{}}"#,
            r#"{"version":"v1","ports":16,"devices":{},"blocks":{"a":[4096,512,null]}}"#,
        ] {
            let layout: Layout = serde_json::from_str(saved).unwrap();
            assert!(matches!(layout.place(["a"], &Given::default()), Err(LayoutError::Saved(_))), "{saved}");
        }
    }

    #[test]
    fn the_saved_form_is_this() {
        let layout = Layout::new().place(["disk-a"], &Given::default()).unwrap();
        let text = serde_json::to_string(&layout).unwrap();
        assert_eq!(text, r#"{"version":"v1","ports":16,"devices":{"disk-a":0}}"#);
        assert_eq!(serde_json::from_str::<Layout>(&text).unwrap(), layout);
        let mut grown = layout.clone();
        grown.note_unit("disk-b", 3);
        grown.note_scsi(true);
        grown.note_sockets(2);
        grown.note_blocks("disk-a", Blocks { logical: 512, physical: 4096, discard: Some(512) });
        let text = grown.to_saved();
        assert_eq!(
            text,
            r#"{"version":"v1","ports":16,"devices":{"disk-a":0},"units":{"disk-b":3},"scsi_came":true,"sockets":2,"blocks":{"disk-a":[512,4096,512]}}"#
        );
        assert_eq!(Layout::saved(&text), Ok(grown.clone()));
        grown.forget("disk-b");
        assert_eq!(grown.for_start(), layout);
    }

    proptest! {
        #[test]
        fn addresses_are_unique_and_never_move(rounds in vec((btree_set("[a-f]{1,2}", 0..12), btree_set("[a-f]{1,2}", 0..4)), 1..6)) {
            let mut layout = Layout::new();
            for (names, gone) in rounds {
                for name in &gone {
                    layout.forget(name);
                }
                let before = layout.clone();
                layout = layout.place(names.iter().map(String::as_str), &Given::default()).unwrap();
                let mut ports: Vec<Port> = layout.devices.values().copied().collect();
                ports.sort_unstable();
                ports.dedup();
                prop_assert_eq!(ports.len(), layout.devices.len());
                prop_assert!(before.devices.iter().all(|(name, port)| layout.port(name) == Some(*port)));
                prop_assert!(names.iter().all(|name| layout.port(name).is_some()));
                prop_assert!(layout.ports >= before.ports && layout.check().is_ok());
                prop_assert!(usize::from(layout.ports) >= layout.devices.len() + usize::from(SPARE_PORTS));
                // A second call changes nothing.
                prop_assert_eq!(&layout.place(names.iter().map(String::as_str), &Given::default()).unwrap(), &layout);
            }
        }
    }
}
