//! Devices added to a running machine: QMP commands, each with its inverse.
//!
//! Steps are executed in order; if one fails, the inverses of those that succeeded are executed in reverse
//! order. A later removal uses the same inverses, with one difference that QMP imposes: `device_del` only
//! asks the guest, and the earlier steps may be undone after `DEVICE_DELETED` has named the device.

use crate::device::blockdev::Image;
use crate::device::disk::Disk;
use crate::device::host::HostDevice;
use crate::device::io_thread;
use crate::device::nic::Nic;
use crate::props::Props;
use serde_json::{Value, json};

/// One QMP command.
#[derive(Clone, Debug, PartialEq)]
pub struct Command {
    /// Its name.
    pub execute: &'static str,
    /// Its arguments.
    pub arguments: Value,
}

/// A command and its inverse.
#[derive(Clone, Debug, PartialEq)]
pub struct Step {
    /// The command.
    pub forward: Command,
    /// Its inverse.
    pub inverse: Command,
    /// Set if the inverse only asks the guest: it is done when `DEVICE_DELETED` names this device.
    pub awaits_device: Option<String>,
}

/// The steps that add a disk.
#[must_use]
pub fn attach_disk(disk: &Disk) -> Vec<Step> {
    thread(disk).chain(nodes(disk)).chain([device(&disk.props(), disk.id())]).collect()
}

/// The step that makes the thread that comes with a disk.
fn thread(disk: &Disk) -> impl Iterator<Item = Step> {
    disk.own_thread().into_iter().map(|id| Step {
        forward: Command { execute: "object-add", arguments: io_thread::object(id).to_value() },
        inverse: Command { execute: "object-del", arguments: json!({ "id": id }) },
        awaits_device: None,
    })
}

/// The steps that put a disc into the CD drive of its name, which is empty. QEMU exchanges the medium of an open drive only.
#[must_use]
pub fn insert_disc(disc: &Disk) -> Vec<Step> {
    let drive = json!({ "id": disc.id() });
    let node = json!({ "id": disc.id(), "node-name": Image::node_of(&disc.name) });
    let step = |(execute, arguments): (_, &Value), (inverse, drive): (_, &Value)| Step {
        forward: Command { execute, arguments: arguments.clone() },
        inverse: Command { execute: inverse, arguments: drive.clone() },
        awaits_device: None,
    };
    let [open, close] = ["blockdev-open-tray", "blockdev-close-tray"].map(|tray| (tray, &drive));
    let put = step(("blockdev-insert-medium", &node), ("blockdev-remove-medium", &drive));
    nodes(disc).chain([step(open, close), put, step(close, open)]).collect()
}

/// The steps that open the image of a disk.
fn nodes(disk: &Disk) -> impl Iterator<Item = Step> {
    disk.image.iter().flat_map(|image| image.nodes().into_iter().zip(image.node_names())).map(
        |(node, name)| Step {
            forward: Command { execute: "blockdev-add", arguments: node.to_value() },
            inverse: Command { execute: "blockdev-del", arguments: json!({ "node-name": name }) },
            awaits_device: None,
        },
    )
}

/// The steps that add a network interface. A tap's descriptor must be passed to the monitor (`getfd`) before.
#[must_use]
pub fn attach_nic(nic: &Nic) -> Vec<Step> {
    let backend = Step {
        forward: Command { execute: "netdev_add", arguments: nic.backend_props().to_value() },
        inverse: Command { execute: "netdev_del", arguments: json!({ "id": nic.netdev() }) },
        awaits_device: None,
    };
    vec![backend, device(&nic.props(), nic.id())]
}

/// A network card of the node.
#[derive(Clone, Debug, PartialEq)]
pub struct HostCard {
    /// Name of its interface.
    pub name: String,
    /// QEMU's id of it.
    pub id: String,
    /// The step that adds it.
    pub step: Step,
}

/// The network cards among the node's devices, each at the place that it has when the machine starts with it.
#[must_use]
pub fn attach_host_cards(devices: &[HostDevice]) -> Vec<HostCard> {
    let card = |one: &HostDevice| {
        let (name, id) = (one.card.clone()?, one.id.clone());
        Some(HostCard { name, step: device(&one.props(), id.clone()), id })
    };
    devices.iter().filter_map(card).collect()
}

/// The step that adds a device by its properties.
pub(crate) fn attach_device(props: &Props) -> Step {
    let id = props.to_value()["id"].as_str().unwrap_or_default().to_owned();
    device(props, id)
}

fn device(props: &Props, id: String) -> Step {
    Step {
        forward: Command { execute: "device_add", arguments: props.to_value() },
        inverse: Command { execute: "device_del", arguments: json!({ "id": id }) },
        awaits_device: Some(id),
    }
}
