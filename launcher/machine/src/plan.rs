//! Plans: from manifest and facts to a machine.
//!
//! Everything that can be refused is refused here, before anything is started, with the name of the field.

mod addresses;
mod blocks;
mod boot;
mod clock;
mod cpu;
mod dedicated;
mod disks;
mod enlightenments;
mod filesystems;
mod firmware;
mod host_devices;
pub(crate) mod hot_disk;
pub(crate) mod hot_nic;
mod io_threads;
mod nics;
mod peripherals;
mod ports;
pub(crate) mod tagged;

use self::addresses::Addresses;
use self::boot::BootOrder;
pub use self::dedicated::demand;
use self::enlightenments::Enlightenments;
use self::ports::{DEVICES, Ports, virtio};
use crate::device::balloon::Balloon;
use crate::device::channel::{DownwardMetrics, GuestAgent};
use crate::device::controller::{Controllers, PciBridge, RootPort, UsbController};
use crate::device::disk::Bus;
use crate::device::nic::NicModel;
use crate::device::rng::Rng;
use crate::device::serial::Serial;
use crate::device::virtio::{MOST_TRANSITIONAL, Virtio};
use crate::device::virtio_mem::VirtioMem;
use crate::device::vsock::Vsock;
use crate::error::PlanError;
use crate::facts::Facts;
use crate::layout::{Given, Layout, Port};
use crate::machine::{Identity, Machine, OnReboot};
use crate::memory::Memory;
use crate::units::Bytes;
use barevirt_api::names::{NO_FREE_PAGES_ANNOTATION, NO_PCI_HOLE64_ANNOTATION};
use barevirt_api::v1::{Devices, DomainSpec};
use barevirt_api::valid::ValidVmi;

/// The machine that the manifest describes, with the launcher's facts.
///
/// # Errors
///
/// If the manifest requests something that this version cannot build, or a volume or interface is not
/// prepared.
pub fn plan(vmi: &ValidVmi, facts: &Facts) -> Result<Machine, PlanError> {
    let spec = &vmi.spec().domain;
    let devices = &spec.devices;
    let wants_rng = devices.rng.is_some();
    let memory = memory(vmi)?;
    let room = vmi.max_guest_memory().and_then(|max| VirtioMem::room(memory.size(), Bytes(max)));
    let wants_balloon = devices.autoattach_mem_balloon.unwrap_or(true);

    let enlightenments = Enlightenments::of(spec, &facts.accelerator)?;
    let clock = clock::plan(spec.clock.as_ref(), facts)?;
    let boot_order = BootOrder::of(vmi);
    let addresses = Addresses::of(vmi, facts.layout.as_ref())?;
    let has_hotplug = !devices.disable_hotplug.unwrap_or(false);
    let planned_disks = disks::plan(vmi, facts, &boot_order)?;
    // Nothing is plugged into the root complex, and disks are plugged into this controller.
    let planned_disks =
        if addresses.on_root && has_hotplug { planned_disks.with_scsi() } else { planned_disks };
    let virtio = virtio(devices);
    let planned_nics = nics::plan(vmi, facts, virtio)?;
    let planned_host_devices = host_devices::plan(devices, facts)?;
    let on_usb = peripherals::on_usb(devices) + planned_disks.on_usb() + planned_host_devices.on_usb();
    let wants_vsock = devices.autoattach_vsock.unwrap_or(false);

    // The order decides about the ports on a first start, so it is part of the layout's version.
    let names: Vec<String> = planned_nics
        .iter()
        .map(nics::Planned::id)
        .chain(planned_disks.pci_names())
        .chain([Controllers::SERIAL.to_owned()])
        .chain(wants_balloon.then(|| Balloon::ID.to_owned()))
        .chain(wants_rng.then(|| Rng::ID.to_owned()))
        .chain(peripherals::pci_names(devices, on_usb > 0))
        .chain(room.map(|_| VirtioMem::ID.to_owned()))
        .chain(wants_vsock.then(|| Vsock::ID.to_owned()))
        .chain(planned_host_devices.pci_names())
        .chain(filesystems::pci_names(devices))
        .filter(|name| addresses.is_placed(name))
        .collect();
    let mut layout = place(&names, &addresses, facts.layout.as_ref())?;
    let topology = vmi.topology();
    if layout.sockets().is_none() && topology.max_sockets > topology.sockets {
        layout.note_sockets(topology.sockets);
    }
    let wants_silence = vmi.annotation(NO_FREE_PAGES_ANNOTATION) == Some("true");
    let is_silent = layout.note_silence(wants_silence || !facts.free_page_reporting);
    let is_true = |value: &str| value.eq_ignore_ascii_case("true");
    let is_low = layout.note_low(vmi.annotation(NO_PCI_HOLE64_ANNOTATION).is_some_and(is_true));
    planned_disks.note_blocks(&devices.disks, &mut layout);
    let ports = Ports { layout: &layout, addresses: &addresses };

    let mut controllers = planned_disks.controllers(&ports, virtio)?;
    let usb = |seat| UsbController { seat, devices: on_usb };
    controllers.usb = (on_usb > 0).then(|| ports.seat(Controllers::USB).map(usb)).transpose()?;
    let io_threads = planned_disks.threads();
    let pinning = dedicated::pinning(vmi, facts, io_threads.len())?;
    let cells = dedicated::cells(vmi, facts, pinning.as_ref(), memory)?;
    let disks = planned_disks.finish(&ports, virtio)?;
    let host_devices = planned_host_devices.finish(&ports)?;
    let nics = planned_nics.into_iter().map(|nic| nic.finish(&ports)).collect::<Result<_, _>>()?;
    let machine = Machine {
        identity: identity(vmi, facts),
        firmware: firmware::plan(vmi, facts)?,
        accelerator: facts.accelerator.clone(),
        cpu: cpu::plan(vmi, facts, &enlightenments)?,
        queues: disks::queues_as_started(vmi, facts),
        memory,
        fd_sets: facts.fd_sets.clone(),
        monitors: facts.monitors,
        root_ports: root_ports(&layout, &addresses.given, !has_hotplug),
        bridges: bridges(&addresses.given),
        pci_hole64: !is_low,
        controllers,
        nics,
        disks,
        filesystems: filesystems::plan(devices, facts, &ports)?,
        serial: devices.autoattach_serial_console.unwrap_or(true).then_some(Serial { socket: facts.serial }),
        guest_agent: GuestAgent { socket: facts.guest_agent },
        downward_metrics: downward_metrics(devices, facts)?,
        vsock: wants_vsock.then(|| vsock(facts, &ports)).transpose()?,
        video: peripherals::video(vmi, facts)?,
        watchdog: peripherals::watchdog(devices, &ports)?,
        sound: peripherals::sound(devices, &ports)?,
        inputs: peripherals::inputs(devices, &ports)?,
        usb_slots: peripherals::usb_slots(devices, facts),
        rng: wants_rng.then(|| ports.seat(Rng::ID).map(|seat| Rng { seat, virtio })).transpose()?,
        virtio_mem: room
            .map(|room| ports.seat(VirtioMem::ID).map(|seat| VirtioMem { seat, room }))
            .transpose()?,
        balloon: wants_balloon
            // Memory that a device of the node writes to must stay in place. While there is such a device, QEMU ignores the
            // guest's reports; a guest whose cards come and go reports in any case, because it cannot change the balloon's
            // features while it runs.
            .then(|| {
                let only_cards = host_devices.iter().all(|device| device.card.is_some());
                let free_page_reporting = only_cards && !filesystems::is_touched(vmi) && !is_silent;
                ports.seat(Balloon::ID).map(|seat| Balloon { seat, virtio, free_page_reporting })
            })
            .transpose()?,
        tpm: firmware::tpm(vmi, facts)?,
        panic: peripherals::panic(devices),
        host_devices,
        io_threads,
        pinning,
        cells,
        rtc: clock.rtc,
        timers: clock.timers,
        on_reboot: on_reboot(spec)?,
        left_out: enlightenments.left_out.into_iter().chain(clock.left_out).collect(),
        layout,
    };
    // The root complex has I/O ports for as many as fit there.
    if transitional(&machine) > MOST_TRANSITIONAL && !machine.layout.is_on_root() {
        let (field, value) = (format!("{DEVICES}.useVirtioTransitional"), "true".to_owned());
        let why = "there are I/O ports for twelve such devices; disks on sata or scsi need none of their own";
        return Err(PlanError::Unsupported { field, value, why });
    }
    Ok(machine)
}

/// Number of devices that also support the older virtio.
fn transitional(machine: &Machine) -> usize {
    let older = Virtio::Transitional;
    let Controllers { scsi, virtio, .. } = &machine.controllers;
    let of = |virtio: Virtio| usize::from(virtio == older);
    // The controller for channels always exists.
    let controllers = of(*virtio) * (1 + usize::from(scsi.is_some()));
    let nics = machine.nics.iter().filter(|nic| nic.model == NicModel::Virtio(older)).count();
    let disks = machine.disks.iter();
    let disks =
        disks.filter(|disk| matches!(disk.device.bus, Bus::Virtio(_, virtio) if virtio == older)).count();
    let small =
        machine.rng.map_or(0, |rng| of(rng.virtio)) + machine.balloon.map_or(0, |balloon| of(balloon.virtio));
    controllers + nics + disks + small
}

/// Without hotplug there is only a port for each device, and none to spare, except the first function of a
/// slot, which guests need to find the others.
fn root_ports(layout: &Layout, given: &Given, only_used: bool) -> Vec<RootPort> {
    let last = layout.ports().filter(|port| layout.is_used(*port)).last();
    let needed = |port: &Port| {
        let first_function = port.function() == 0 && last.is_some_and(|last| *port < last);
        !only_used || first_function || layout.is_used(*port)
    };
    let root_port = |port| Some(RootPort { port, slot: given.slot(port)? });
    let is_port = |port: &Port| !given.bridges.contains(port);
    layout.ports().filter(needed).filter(is_port).filter_map(root_port).collect()
}

/// Bridges for conventional cards that the manifest places.
fn bridges(given: &Given) -> Vec<PciBridge> {
    let bridge = |&port: &Port| Some(PciBridge { port, slot: given.slot(port)? });
    given.bridges.iter().filter_map(bridge).collect()
}

/// The guest's memory, in huge pages if they are requested.
fn memory(vmi: &ValidVmi) -> Result<Memory, PlanError> {
    let wanted = Bytes(vmi.guest_memory());
    let Some(page) = vmi.huge_page() else {
        let memory = Memory::new(wanted);
        return Ok(if filesystems::is_touched(vmi) { memory.touched() } else { memory });
    };
    Memory::in_pages(wanted, Bytes(page)).ok_or_else(|| PlanError::Unsupported {
        field: "spec.domain.memory.hugepages.pageSize".to_owned(),
        value: page.to_string(),
        why: "guest memory has to be a whole number of pages",
    })
}

fn on_reboot(domain: &DomainSpec) -> Result<OnReboot, PlanError> {
    match domain.reboot_policy.as_deref().unwrap_or_default() {
        "" | "Reboot" => Ok(OnReboot::Reset),
        "Terminate" => Ok(OnReboot::End),
        other => {
            let (field, value) = ("spec.domain.rebootPolicy".to_owned(), other.to_owned());
            Err(PlanError::Unsupported { field, value, why: "Reboot and Terminate are" })
        }
    }
}

fn downward_metrics(devices: &Devices, facts: &Facts) -> Result<Option<DownwardMetrics>, PlanError> {
    if devices.downward_metrics.is_none() {
        return Ok(None);
    }
    let field = format!("{DEVICES}.downwardMetrics");
    let socket = facts.downward_metrics.ok_or(PlanError::Unprepared { field, what: "channel" })?;
    Ok(Some(DownwardMetrics { socket }))
}

fn vsock(facts: &Facts, ports: &Ports<'_>) -> Result<Vsock, PlanError> {
    let missing = |what| PlanError::Unprepared { field: format!("{DEVICES}.autoattachVSOCK"), what };
    Ok(Vsock {
        context_id: facts.context_id.ok_or_else(|| missing("context id"))?,
        vhost: facts.vhost_vsock.ok_or_else(|| missing("descriptor of /dev/vhost-vsock"))?,
        seat: ports.seat(Vsock::ID)?,
    })
}

fn place(names: &[String], addresses: &Addresses, saved: Option<&Layout>) -> Result<Layout, PlanError> {
    let mut start = saved.cloned().unwrap_or_default();
    addresses.elsewhere().for_each(|device| start.forget(device));
    let names = names.iter().map(String::as_str);
    let (placed, field) = if addresses.on_root {
        (start.place_on_root(names, &addresses.given), addresses::on_root_field())
    } else {
        (start.place(names, &addresses.given), DEVICES.to_owned())
    };
    placed.map_err(|source| PlanError::Layout { field, source })
}

fn identity(vmi: &ValidVmi, facts: &Facts) -> Identity {
    let firmware = vmi.spec().domain.firmware.as_ref();
    Identity {
        name: format!("{}_{}", vmi.namespace(), vmi.name()),
        uuid: vmi.firmware_uuid(),
        serial: firmware.and_then(|firmware| firmware.serial.clone()).filter(|serial| !serial.is_empty()),
        smbios: facts.smbios.clone(),
        chassis: vmi.spec().domain.chassis.clone(),
    }
}

#[cfg(test)]
mod tests;
