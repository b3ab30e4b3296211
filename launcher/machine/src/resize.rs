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
use serde_json::{Map, Value, json};
use std::collections::BTreeMap;

/// A place for a processor, as `query-hotpluggable-cpus` gives it.
#[derive(Clone, Debug, PartialEq)]
struct Place {
    socket: u32,
    /// QEMU's type for it.
    kind: String,
    /// Its properties for `device_add`.
    props: Map<String, Value>,
    /// Path of the processor that occupies it.
    there: Option<String>,
}

/// The machine's processors.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Processors(Vec<Place>);

impl Processors {
    /// Parses the answer to `query-hotpluggable-cpus`; `None` if it has another form.
    #[must_use]
    pub fn read(answer: &Value) -> Option<Self> {
        let place = |value: &Value| {
            let props = value["props"].as_object()?.clone();
            Some(Place {
                socket: u32::try_from(props.get("socket-id")?.as_u64()?).ok()?,
                kind: value["type"].as_str()?.to_owned(),
                there: value["qom-path"].as_str().map(str::to_owned),
                props,
            })
        };
        answer.as_array()?.iter().map(place).collect::<Option<Vec<_>>>().map(Self)
    }

    /// Number of sockets that count as plugged in, if `wanted` are wanted: while their number decreases,
    /// those with any processor left, else those that are complete.
    #[must_use]
    pub fn sockets(&self, wanted: u32) -> u32 {
        let mut sockets: BTreeMap<u32, (bool, bool)> = BTreeMap::new();
        for place in &self.0 {
            let (any, all) = sockets.entry(place.socket).or_insert((false, true));
            *any |= place.there.is_some();
            *all &= place.there.is_some();
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
        let wanted = wanted.max(1);
        let mut places: Vec<&Place> = self.0.iter().collect();
        // QEMU lists the last place first.
        places.sort_by_key(|place| (place.socket, number(place, "core-id"), number(place, "thread-id")));
        let missing = places.iter().filter(|place| place.socket < wanted && place.there.is_none());
        let plug = missing.map(|place| {
            let mut arguments = place.props.clone();
            let (socket, core, thread) = (place.socket, number(place, "core-id"), number(place, "thread-id"));
            arguments.insert("driver".to_owned(), json!(place.kind));
            arguments.insert("id".to_owned(), json!(format!("cpu-{socket}-{core}-{thread}")));
            Command { execute: "device_add", arguments: Value::Object(arguments) }
        });
        let unplug = places.iter().rev().filter(|place| place.socket >= wanted).filter_map(|place| {
            let path = place.there.as_ref()?;
            Some(Command { execute: "device_del", arguments: json!({ "id": path }) })
        });
        plug.chain(unplug).collect()
    }
}

fn number(place: &Place, key: &str) -> u64 {
    place.props.get(key).and_then(Value::as_u64).unwrap_or_default()
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
    /// Parses the answer to `query-memory-devices`; `None` if the machine has no pluggable memory.
    #[must_use]
    pub fn read(answer: &Value) -> Option<Self> {
        let device = answer.as_array()?.iter().find(|device| device["data"]["id"] == VirtioMem::ID)?;
        let bytes = |key: &str| device["data"][key].as_u64().map(Bytes);
        Some(Self { size: bytes("size")?, requested: bytes("requested-size")?, room: bytes("max-size")? })
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

    /// An answer like QEMU's: the last place first, each occupied one with its path.
    fn answer(sockets: u32, cores: u32, there: impl Fn(u32, u32) -> bool) -> Value {
        let mut places = Vec::new();
        for socket in (0..sockets).rev() {
            for core in (0..cores).rev() {
                let props = json!({"socket-id": socket, "core-id": core, "thread-id": 0, "node-id": 0});
                let mut place = json!({"props": props, "vcpus-count": 1, "type": "max-x86_64-cpu"});
                if there(socket, core) {
                    place["qom-path"] =
                        json!(format!("/machine/unattached/device[{}]", socket * cores + core));
                }
                places.push(place);
            }
        }
        Value::Array(places)
    }

    #[test]
    fn a_socket_is_plugged_in_as_a_whole() {
        let processors = Processors::read(&answer(4, 2, |socket, _| socket < 1)).unwrap();
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
        let processors =
            Processors::read(&answer(4, 2, |socket, core| socket < 1 || (socket, core) == (1, 0))).unwrap();
        assert_eq!((processors.sockets(2), processors.sockets(1)), (1, 2));
        assert_eq!(processors.steps(2).len(), 1);
        assert_eq!(processors.steps(1)[0].arguments, json!({"id": "/machine/unattached/device[2]"}));
        // The first processor stays.
        assert_eq!(processors.steps(0).len(), 1);
    }

    #[test]
    fn memory_is_requested_in_blocks_and_within_the_room() {
        let answer = json!([{"type": "virtio-mem", "data": {"id": VirtioMem::ID, "size": 0, "requested-size": 0,
            "max-size": 8 << 20, "block-size": 2 << 20}}]);
        let plugged = Plugged::read(&answer).unwrap();
        assert_eq!(plugged.step(Bytes(0)), None);
        for (wanted, request) in [(1, 2 << 20), (4 << 20, 4 << 20), (u64::MAX, 8 << 20)] {
            assert_eq!(plugged.step(Bytes(wanted)).unwrap().arguments["value"], json!(request));
        }
        assert_eq!(Plugged::read(&json!([])), None);
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
            let before = Processors::read(&answer(sockets, cores, |socket, core| there[at(socket, core)])).unwrap();
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
            let after = Processors::read(&answer(sockets, cores, |socket, core| there[at(socket, core)])).unwrap();
            prop_assert_eq!(after.steps(wanted), []);
            prop_assert_eq!(after.sockets(wanted), wanted.clamp(1, sockets));
        }
    }
}
