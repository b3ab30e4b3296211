//! Decides: manifest and facts in, a machine out.
//!
//! All that can be refused is refused here, before anything is started, naming the field.

mod disks;
mod nics;

use crate::cpu::{Cpu, CpuModel};
use crate::device::balloon::Balloon;
use crate::device::channel::GuestAgent;
use crate::device::controller::{Controllers, RootPort};
use crate::device::panic::Panic;
use crate::device::rng::Rng;
use crate::device::serial::Serial;
use crate::device::video::Video;
use crate::error::PlanError;
use crate::facts::{Accelerator, Facts};
use crate::layout::{Layout, Port};
use crate::machine::{Firmware, Identity, Machine};
use crate::memory::Memory;
use crate::units::Bytes;
use barevirt_api::v1::{Bios, Bootloader};
use barevirt_api::valid::ValidVmi;

/// CPUs that a q35 machine takes without an interrupt-remapping IOMMU.
const MAX_CPUS: u32 = 255;

/// The machine that the manifest describes, on what the launcher found.
///
/// # Errors
///
/// When the manifest asks for what this version cannot build, or a volume or interface has not been prepared.
pub fn plan(vmi: &ValidVmi, facts: &Facts) -> Result<Machine, PlanError> {
    let spec = &vmi.spec().domain;
    let devices = &spec.devices;
    let wants_rng = devices.rng.is_some();
    let wants_balloon = devices.autoattach_mem_balloon.unwrap_or(true);

    let boot_order = BootOrder::of(vmi);
    let planned_disks = disks::plan(vmi, facts, &boot_order)?;
    let planned_nics = nics::plan(vmi, facts)?;

    // The order decides who gets which port on a first start, so it is part of the layout's version.
    let names: Vec<String> = planned_nics
        .iter()
        .map(nics::Planned::id)
        .chain(planned_disks.pci_names())
        .chain([Controllers::SERIAL.to_owned()])
        .chain(wants_balloon.then(|| Balloon::ID.to_owned()))
        .chain(wants_rng.then(|| Rng::ID.to_owned()))
        .collect();
    let layout = place(&names, facts.layout.as_ref())?;
    let ports = Ports(&layout);

    let controllers = planned_disks.controllers(&ports)?;
    let disks = planned_disks.finish(&ports)?;
    let nics = planned_nics.into_iter().map(|nic| nic.finish(&ports)).collect::<Result<_, _>>()?;
    Ok(Machine {
        identity: identity(vmi, facts),
        firmware: firmware(vmi, facts),
        accelerator: facts.accelerator.clone(),
        cpu: cpu(vmi, &facts.accelerator)?,
        memory: Memory::new(Bytes(vmi.guest_memory())),
        fd_sets: facts.fd_sets.clone(),
        monitors: facts.monitors,
        root_ports: layout.ports().map(RootPort).collect(),
        controllers,
        nics,
        disks,
        serial: devices.autoattach_serial_console.unwrap_or(true).then_some(Serial { socket: facts.serial }),
        guest_agent: GuestAgent { socket: facts.guest_agent },
        video: devices
            .autoattach_graphics_device
            .unwrap_or(true)
            .then(|| Video { vnc_socket: facts.vnc_socket.clone() }),
        rng: wants_rng.then(|| ports.of(Rng::ID).map(|port| Rng { port })).transpose()?,
        balloon: wants_balloon
            .then(|| ports.of(Balloon::ID).map(|port| Balloon { port, free_page_reporting: true }))
            .transpose()?,
        panic: Panic,
        layout,
    })
}

/// Path of all devices, for what concerns them together.
const DEVICES: &str = "spec.domain.devices";

fn place(names: &[String], saved: Option<&Layout>) -> Result<Layout, PlanError> {
    let start = saved.cloned().unwrap_or_default();
    start
        .place(names.iter().map(String::as_str))
        .map_err(|source| PlanError::Layout { field: DEVICES.to_owned(), source })
}

/// The ports of a finished layout.
struct Ports<'a>(&'a Layout);

impl Ports<'_> {
    /// The port of a device that was placed.
    fn of(&self, name: &str) -> Result<Port, PlanError> {
        self.0.port(name).ok_or_else(|| PlanError::Layout {
            field: DEVICES.to_owned(),
            source: crate::layout::LayoutError::Saved(format!("{name} has no port")),
        })
    }
}

/// Who comes when in the boot order.
enum BootOrder {
    /// Only devices that say so, at the place they say.
    Given,
    /// Nobody says so: disks, in the order of the list.
    ByList,
}

impl BootOrder {
    fn of(vmi: &ValidVmi) -> Self {
        let disks = vmi.disks().iter().any(|disk| disk.disk.boot_order.is_some());
        let interfaces = vmi.interfaces().iter().any(|interface| interface.interface.boot_order.is_some());
        if disks || interfaces { BootOrder::Given } else { BootOrder::ByList }
    }

    fn index(&self, given: Option<i32>, at: usize) -> Option<u32> {
        match self {
            BootOrder::Given => boot_index(given),
            BootOrder::ByList => u32::try_from(at + 1).ok(),
        }
    }
}

/// The API counts from 1, and so does this; QEMU only compares.
fn boot_index(given: Option<i32>) -> Option<u32> {
    given.and_then(|order| u32::try_from(order).ok())
}

fn identity(vmi: &ValidVmi, facts: &Facts) -> Identity {
    let firmware = vmi.spec().domain.firmware.as_ref();
    Identity {
        name: format!("{}_{}", vmi.namespace(), vmi.name()),
        uuid: vmi.firmware_uuid(),
        serial: firmware.and_then(|firmware| firmware.serial.clone()),
        smbios: facts.smbios.clone(),
    }
}

fn firmware(vmi: &ValidVmi, facts: &Facts) -> Firmware {
    let spec = &vmi.spec().domain;
    let bootloader: Option<&Bootloader> =
        spec.firmware.as_ref().and_then(|firmware| firmware.bootloader.as_ref());
    Firmware {
        machine_type: facts.machine_type.clone().unwrap_or_else(|| vmi.machine_type().to_owned()),
        acpi: vmi.acpi(),
        on_serial: bootloader.and_then(|bootloader| bootloader.bios.as_ref()).is_some_and(Bios::uses_serial),
    }
}

fn cpu(vmi: &ValidVmi, accelerator: &Accelerator) -> Result<Cpu, PlanError> {
    let topology = vmi.topology();
    if topology.max_vcpus() > MAX_CPUS {
        let field = "spec.domain.cpu".to_owned();
        return Err(PlanError::TooManyCpus { field, cpus: topology.max_vcpus(), limit: MAX_CPUS });
    }
    let model = match vmi.cpu_model() {
        "host-model" | "host-passthrough" => match accelerator {
            Accelerator::Kvm { .. } => CpuModel::Host,
            Accelerator::Tcg { .. } => CpuModel::Max,
        },
        name => CpuModel::Named(name.to_owned()),
    };
    Ok(Cpu { model, topology })
}

#[cfg(test)]
mod tests;
