//! Processors and memory of a running machine: QEMU's answers about them, and the commands that bring them to
//! a wanted size.
//!
//! Both are queried and planned again each time, so no state has to be kept: a command that was lost is sent
//! again, and one that was carried out is not. To remove a processor, the guest is only asked (`device_del`),
//! and the same holds for memory (`requested-size`); the next query shows the result.
//!
//! Sockets are counted from 0, plugged from the lowest number and unplugged from the highest. The first
//! processor of a PC cannot be removed.

use crate::device::virtio_mem::VirtioMem;
use crate::hotplug::Command;
use crate::units::Bytes;
use qapi::qmp::{HotpluggableCPU, MemoryDeviceInfo};
use serde_json::json;
use std::collections::BTreeMap;

/// The places for the machine's processors, sorted by their numbers.
#[derive(Clone, Debug)]
pub struct Processors(Vec<HotpluggableCPU>);

impl Processors {
    /// The processors by the answer to `query-hotpluggable-cpus`, which lists the last place first. A place
    /// outside of all sockets cannot be changed.
    #[must_use]
    pub fn new(mut places: Vec<HotpluggableCPU>) -> Self {
        places.retain(|place| place.props.socket_id.is_some());
        places.sort_by_key(numbers);
        Self(places)
    }

    /// Number of sockets that count as plugged in, if `wanted` are wanted: while their number decreases,
    /// those with any processor left, else those that are complete.
    #[must_use]
    pub fn sockets(&self, wanted: u32) -> u32 {
        let mut sockets: BTreeMap<_, (bool, bool)> = BTreeMap::new();
        for place in &self.0 {
            let (any, all) = sockets.entry(place.props.socket_id).or_insert((false, true));
            *any |= place.qom_path.is_some();
            *all &= place.qom_path.is_some();
        }
        let count = |of: fn(&(bool, bool)) -> bool| {
            u32::try_from(sockets.values().filter(|socket| of(socket)).count()).unwrap_or(u32::MAX)
        };
        let (any, all) = (count(|socket| socket.0), count(|socket| socket.1));
        if any > wanted { any } else { all }
    }

    /// The commands that plug in missing sockets and request the removal of surplus ones. Empty if nothing is
    /// to be done.
    #[must_use]
    pub fn steps(&self, wanted: u32) -> Vec<Command> {
        let is_wanted = |place: &&HotpluggableCPU| numbers(place).0 < i64::from(wanted.max(1));
        let missing = self.0.iter().filter(is_wanted).filter(|place| place.qom_path.is_none());
        let plug = missing.map(|place| {
            let mut arguments = json!(place.props);
            let (socket, core, thread) = numbers(place);
            arguments["driver"] = json!(place.type_);
            arguments["id"] = json!(format!("cpu-{socket}-{core}-{thread}"));
            Command { execute: "device_add", arguments }
        });
        let unplug = self.0.iter().rev().filter(|place| !is_wanted(place)).filter_map(|place| {
            let path = place.qom_path.as_ref()?;
            Some(Command { execute: "device_del", arguments: json!({ "id": path }) })
        });
        plug.chain(unplug).collect()
    }
}

/// The numbers of a place's socket, core, and thread.
fn numbers(place: &HotpluggableCPU) -> (i64, i64, i64) {
    let of = |number: Option<i64>| number.unwrap_or_default();
    (of(place.props.socket_id), of(place.props.core_id), of(place.props.thread_id))
}

/// The plugged memory, in addition to the memory at the start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Plugged {
    /// Size that the guest has plugged.
    pub size: Bytes,
    /// Size that the guest should plug.
    pub requested: Bytes,
    /// The largest size.
    pub room: Bytes,
}

impl Plugged {
    /// Finds it in the answer to `query-memory-devices`; `None` if the machine has no pluggable memory.
    #[must_use]
    pub fn find(devices: &[MemoryDeviceInfo]) -> Option<Self> {
        devices.iter().find_map(|device| match device {
            MemoryDeviceInfo::virtio_mem(device) if device.id.as_deref() == Some(VirtioMem::ID) => {
                Some(Self {
                    size: Bytes(device.size),
                    requested: Bytes(device.requested_size),
                    room: Bytes(device.max_size),
                })
            }
            _ => None,
        })
    }

    /// The size to request for a wanted size: whole blocks, and not more than the largest size.
    #[must_use]
    pub fn request(&self, wanted: Bytes) -> Bytes {
        Bytes(wanted.0.div_ceil(VirtioMem::BLOCK.0).saturating_mul(VirtioMem::BLOCK.0).min(self.room.0))
    }

    /// The command that requests the size. `None` if it is already requested.
    #[must_use]
    pub fn step(&self, wanted: Bytes) -> Option<Command> {
        let request = self.request(wanted);
        (request != self.requested).then(|| Command {
            execute: "qom-set",
            arguments: json!({
                "path": format!("/machine/peripheral/{}", VirtioMem::ID),
                "property": "requested-size",
                "value": request.0,
            }),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use serde_json::from_value;

    /// Processors by an answer like QEMU's: the last place first, each occupied one with its path.
    fn processors(sockets: u32, cores: u32, there: impl Fn(u32, u32) -> bool) -> Processors {
        let mut places = Vec::new();
        for socket in (0..sockets).rev() {
            for core in (0..cores).rev() {
                let props = json!({"socket-id": socket, "core-id": core, "thread-id": 0, "node-id": 0});
                let mut place = json!({"props": props, "vcpus-count": 1, "type": "max-x86_64-cpu"});
                if there(socket, core) {
                    place["qom-path"] =
                        json!(format!("/machine/unattached/device[{}]", socket * cores + core));
                }
                places.push(from_value(place).unwrap());
            }
        }
        Processors::new(places)
    }

    #[test]
    fn a_socket_is_plugged_in_as_a_whole() {
        let processors = processors(4, 2, |socket, _| socket < 1);
        assert_eq!(processors.sockets(2), 1);
        let steps = processors.steps(2);
        assert_eq!(steps.len(), 2);
        assert_eq!(steps[0].execute, "device_add");
        assert_eq!(
            steps[0].arguments,
            json!({"driver": "max-x86_64-cpu", "id": "cpu-1-0-0", "socket-id": 1, "core-id": 0, "thread-id": 0, "node-id": 0})
        );
        assert_eq!(steps[1].arguments["id"], "cpu-1-1-0");
        assert_eq!(processors.steps(1), []);
    }

    #[test]
    fn a_half_plugged_socket_counts_as_absent_and_a_half_unplugged_one_as_present() {
        let processors = processors(4, 2, |socket, core| socket < 1 || (socket, core) == (1, 0));
        assert_eq!((processors.sockets(2), processors.sockets(1)), (1, 2));
        assert_eq!(processors.steps(2).len(), 1);
        assert_eq!(processors.steps(1)[0].arguments, json!({"id": "/machine/unattached/device[2]"}));
        // The first processor stays.
        assert_eq!(processors.steps(0).len(), 1);
    }

    #[test]
    fn memory_is_requested_in_blocks_and_within_the_room() {
        let device = json!({"type": "virtio-mem", "data": {"id": VirtioMem::ID, "size": 0, "requested-size": 0,
            "max-size": 8 << 20, "block-size": 2 << 20, "memaddr": 1_u64 << 32, "memdev": "/objects/x", "node": 0}});
        let plugged = Plugged::find(&[from_value(device).unwrap()]).unwrap();
        assert_eq!(plugged.step(Bytes(0)), None);
        for (wanted, request) in [(1, 2 << 20), (4 << 20, 4 << 20), (u64::MAX, 8 << 20)] {
            assert_eq!(plugged.step(Bytes(wanted)).unwrap().arguments["value"], json!(request));
        }
        assert_eq!(Plugged::find(&[]), None);
    }

    proptest! {
        #[test]
        fn resize_steps_reach_the_goal_and_end(
            sockets in 1..6_u32, cores in 1..4_u32, wanted in 0..8_u32,
            there in proptest::collection::vec(any::<bool>(), 24),
        ) {
            let mut there: Vec<bool> = there;
            there[0] = true;
            let at = |socket: u32, core: u32| usize::try_from(socket * cores + core).unwrap();
            let before = processors(sockets, cores, |socket, core| there[at(socket, core)]);
            for step in before.steps(wanted) {
                if step.execute == "device_add" {
                    let id = |key: &str| u32::try_from(step.arguments[key].as_u64().unwrap()).unwrap();
                    let place = at(id("socket-id"), id("core-id"));
                    prop_assert!(!there[place]);
                    there[place] = true;
                } else {
                    let path = step.arguments["id"].as_str().unwrap();
                    let place: usize = path.split(['[', ']']).nth(1).unwrap().parse().unwrap();
                    prop_assert!(there[place] && place > 0);
                    there[place] = false;
                }
            }
            let after = processors(sockets, cores, |socket, core| there[at(socket, core)]);
            prop_assert_eq!(after.steps(wanted), []);
            prop_assert_eq!(after.sockets(wanted), wanted.clamp(1, sockets));
        }
    }
}
