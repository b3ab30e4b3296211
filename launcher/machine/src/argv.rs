//! Prints a machine as QEMU's command line. This cannot fail, and adds only options that all machines have.

use crate::device::blockdev::Image;
use crate::device::disk::Disk;
use crate::device::flash::Flash;
use crate::device::io_thread;
use crate::device::serial::socket_chardev;
use crate::device::sound::Sound;
use crate::facts::{Accelerator, FdSet};
use crate::machine::{Firmware, Machine, OnReboot};
use crate::memory::Memory;
use crate::numa::NumaCell;
use crate::props::Props;
use crate::quote::Options;
use crate::units::Fd;
use barevirt_api::settings::Smbios;
use barevirt_api::v1::Chassis;
use serde::Serialize;

/// Options with a common purpose.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Part {
    /// Their purpose, such as `disk root`.
    pub what: String,
    /// Fields of the instance that they come from; empty for options that every machine has.
    pub fields: Vec<String>,
    /// The options, each followed by its value if it has one.
    pub arguments: Vec<String>,
}

/// QEMU's arguments, without the program's own name.
#[must_use]
pub fn argv(machine: &Machine) -> Vec<String> {
    parts(machine).into_iter().flat_map(|part| part.arguments).collect()
}

/// The same, grouped by purpose, in order.
#[must_use]
pub fn parts(machine: &Machine) -> Vec<Part> {
    let mut argv = Arguments::default();
    process(&mut argv, machine);
    board(&mut argv, machine);
    monitors(&mut argv, machine);
    for set in &machine.fd_sets {
        fd_set(&mut argv, set);
    }
    argv.of("memory", &MEMORY);
    memory(&mut argv, machine);
    devices(&mut argv, machine);
    argv.0.retain(|part| !part.arguments.is_empty());
    argv.0
}

/// Name under which Ignition looks for its data.
const IGNITION: &str = "opt/com.coreos/config";
/// Fields that describe the guest's memory.
const MEMORY: [&str; 2] = ["spec.domain.memory", "spec.domain.resources"];

#[derive(Default)]
struct Arguments(Vec<Part>);

impl Arguments {
    /// Starts a group of options for this purpose, from these fields.
    fn of(&mut self, what: impl Into<String>, fields: &[&str]) {
        let fields = fields.iter().map(|field| (*field).to_owned()).collect();
        self.0.push(Part { what: what.into(), fields, arguments: Vec::new() });
    }

    /// A device of a list.
    fn of_list(&mut self, what: &str, name: &str, list: &str, index: usize) {
        self.of(format!("{what} {name}"), &[&format!("spec.domain.devices.{list}[{index}]")]);
    }

    fn push(&mut self, words: impl IntoIterator<Item = String>) {
        if self.0.is_empty() {
            self.of("process", &[]);
        }
        if let Some(part) = self.0.last_mut() {
            part.arguments.extend(words);
        }
    }

    fn flag(&mut self, name: &str) {
        self.push([name.to_owned()]);
    }

    fn option(&mut self, name: &str, value: impl Into<String>) {
        self.push([name.to_owned(), value.into()]);
    }

    fn json(&mut self, name: &str, props: &Props) {
        self.option(name, props.to_text());
    }
}

/// QEMU as a process: its name, its sandbox, no default devices.
fn process(argv: &mut Arguments, machine: &Machine) {
    argv.of("process", &["metadata.name"]);
    argv.option(
        "-name",
        Options::new().with("guest", &machine.identity.name).switch("debug-threads", true).into_string(),
    );
    argv.flag("-no-user-config");
    argv.flag("-nodefaults");
    // Each one by name, because `on` alone only refuses the obsolete system calls.
    let sandbox = ["obsolete", "elevateprivileges", "spawn", "resourcecontrol"]
        .iter()
        .fold(Options::kind("on"), |options, group| options.with(group, "deny"));
    argv.option("-sandbox", sandbox.into_string());
    argv.option("-msg", "timestamp=on");
    // The launcher starts the CPUs.
    argv.flag("-S");
    argv.option("-display", "none");
}

/// Field that describes the firmware.
const FIRMWARE: &str = "spec.domain.firmware";

fn board(argv: &mut Arguments, machine: &Machine) {
    let firmware = &machine.firmware;
    let mut board = Options::kind(&firmware.machine_type)
        .switch("usb", false)
        .switch("smm", firmware.smm)
        .switch("vmport", false)
        .switch("dump-guest-core", false);
    if !machine.controllers.chipset_sata {
        board = board.switch("sata", false);
    }
    for (timer, present) in [("hpet", machine.timers.hpet), ("pit", machine.timers.pit)] {
        if let Some(present) = present {
            board = board.switch(timer, present);
        }
    }
    if !firmware.acpi {
        board = board.switch("acpi", false);
    }
    if firmware.on_serial {
        board = board.switch("graphics", false);
    }
    if firmware.flash.is_some() {
        board = board.with("pflash0", Flash::CODE).with("pflash1", Flash::VARIABLES);
    }
    let sources = ["spec.domain.machine", "spec.domain.features", "spec.domain.clock.timer", FIRMWARE];
    argv.of("board", &sources);
    if machine.cells.is_empty() {
        board = board.with("memory-backend", Memory::ID);
    }
    argv.option("-machine", board.into_string());
    start(argv, firmware);
    argv.of("accelerator", &[]);
    argv.option("-accel", accelerator(&machine.accelerator));
    argv.of("CPU", &["spec.domain.cpu", "spec.domain.features.hyperv", "spec.domain.features.kvm"]);
    argv.option("-cpu", machine.cpu.model());
    argv.option("-smp", machine.cpu.smp());
    argv.of("memory", &MEMORY);
    argv.option("-m", machine.memory.option(machine.virtio_mem.map(|device| device.room)));
    argv.of("identity", &["spec.domain.firmware.uuid", "spec.domain.firmware.serial", "spec.domain.chassis"]);
    argv.option("-uuid", &machine.identity.uuid);
    let Smbios { manufacturer, product, version, sku, family } = &machine.identity.smbios;
    let smbios = Options::new()
        .with("type", 1)
        .with("manufacturer", manufacturer)
        .with("product", product)
        .maybe("version", version.as_ref())
        .with("uuid", &machine.identity.uuid)
        .maybe("serial", machine.identity.serial.as_ref())
        .maybe("sku", sku.as_ref())
        .with("family", family);
    argv.option("-smbios", smbios.into_string());
    if let Some(chassis) = &machine.identity.chassis {
        argv.option("-smbios", self::chassis(chassis));
    }
    argv.of("clock", &["spec.domain.clock"]);
    argv.option("-rtc", machine.rtc.option());
    if let Some(policy) = machine.timers.pit_policy() {
        argv.option("-global", policy);
    }
    argv.of("start and end", &["spec.domain.rebootPolicy", "spec.domain.devices.watchdog"]);
    // Only devices with a place in the boot order are booted from.
    argv.option("-boot", "menu=off,strict=on");
    // The guest's power-off and its panic end QEMU, with different exit codes; its reboot stays inside.
    let reboot = match machine.on_reboot {
        OnReboot::Reset => "reset",
        OnReboot::End => "shutdown",
    };
    let actions =
        Options::new().with("reboot", reboot).with("shutdown", "poweroff").with("panic", "exit-failure");
    let watchdog = machine.watchdog.map(|watchdog| watchdog.action.name());
    argv.option("-action", actions.maybe("watchdog", watchdog).into_string());
    // A guest suspended to memory or disk could not react to a stop.
    argv.option("-global", "ICH9-LPC.disable_s3=1");
    argv.option("-global", "ICH9-LPC.disable_s4=1");
    if !machine.pci_hole64 {
        argv.of("PCI memory", &["metadata.annotations"]);
        argv.option("-global", "q35-pcihost.pci-hole64-size=0");
    }
}

/// The firmware, and what it starts.
fn start(argv: &mut Arguments, firmware: &Firmware) {
    argv.of("firmware", &[FIRMWARE]);
    for node in firmware.flash.iter().flat_map(Flash::nodes) {
        argv.json("-blockdev", &node);
    }
    if firmware.secure_boot {
        argv.option("-global", "driver=cfi.pflash01,property=secure,value=on");
    }
    for table in &firmware.acpi_tables {
        argv.option("-acpitable", Options::new().with("file", table).into_string());
    }
    if let Some(kernel) = &firmware.kernel {
        argv.option("-kernel", &kernel.image);
        for (option, value) in [("-initrd", &kernel.initrd), ("-append", &kernel.arguments)] {
            if let Some(value) = value {
                argv.option(option, value);
            }
        }
    }
    if let Some(file) = &firmware.ignition {
        argv.of("Ignition", &["metadata.annotations"]);
        argv.option("-fw_cfg", Options::new().with("name", IGNITION).with("file", file).into_string());
    }
}

fn chassis(chassis: &Chassis) -> String {
    let Chassis { asset, manufacturer, serial, sku, version } = chassis;
    let fields = [
        ("manufacturer", manufacturer),
        ("version", version),
        ("serial", serial),
        ("asset", asset),
        ("sku", sku),
    ];
    // For QEMU, an empty value would end the option; it carries no information.
    let given = fields.into_iter().filter_map(|(name, value)| Some((name, value.as_ref()?)));
    let given = given.filter(|(_, value)| !value.is_empty());
    given.fold(Options::new().with("type", 3), |option, (name, value)| option.with(name, value)).into_string()
}

fn accelerator(accelerator: &Accelerator) -> String {
    match accelerator {
        Accelerator::Kvm { device } => {
            Options::kind("kvm").maybe("device", device.map(|set| format!("/dev/fdset/{set}"))).into_string()
        }
        Accelerator::Tcg { buffer } => Options::kind("tcg").with("tb-size", buffer.whole_mib()).into_string(),
    }
}

fn monitors(argv: &mut Arguments, machine: &Machine) {
    argv.of("monitors", &[]);
    let mut monitor = |id: &str, socket: Fd| {
        argv.option("-chardev", socket_chardev(id, socket));
        argv.option("-mon", Options::new().with("chardev", id).with("mode", "control").into_string());
    };
    monitor("monitor-control", machine.monitors.control);
    monitor("monitor-people", machine.monitors.people);
}

/// In one piece, or one piece for each NUMA node.
fn memory(argv: &mut Arguments, machine: &Machine) {
    if machine.cells.is_empty() {
        return argv.json("-object", &machine.memory.object());
    }
    for cell in &machine.cells {
        for object in cell.objects() {
            argv.json("-object", &object);
        }
        for option in cell.options(machine.cpu.topology) {
            argv.option("-numa", option);
        }
    }
    for option in machine.cells.iter().flat_map(NumaCell::distance_options) {
        argv.option("-numa", option);
    }
}

fn fd_set(argv: &mut Arguments, set: &FdSet) {
    argv.of("descriptors", &[]);
    for member in &set.members {
        let options =
            Options::new().with("fd", member.fd).with("set", set.number).with("opaque", &member.what);
        argv.option("-add-fd", options.into_string());
    }
}

fn devices(argv: &mut Arguments, machine: &Machine) {
    argv.of(
        "I/O threads",
        &["spec.domain.ioThreadsPolicy", "spec.domain.devices.disks[*].dedicatedIOThread"],
    );
    for thread in &machine.io_threads {
        argv.json("-object", &thread.object());
    }
    for id in machine.disks.iter().filter_map(Disk::own_thread) {
        argv.json("-object", &io_thread::object(id));
    }
    argv.of("PCI root ports", &["spec.domain.devices"]);
    for port in &machine.root_ports {
        argv.json("-device", &port.props());
    }
    for bridge in &machine.bridges {
        argv.json("-device", &bridge.props());
    }
    argv.of("controllers", &["spec.domain.devices"]);
    for controller in machine.controllers.props() {
        argv.json("-device", &controller);
    }
    for (index, disk) in machine.disks.iter().enumerate() {
        argv.of_list("disk", &disk.name, "disks", index);
        for node in disk.image.iter().flat_map(Image::nodes) {
            argv.json("-blockdev", &node);
        }
        argv.json("-device", &disk.props());
    }
    for nic in &machine.nics {
        argv.of_list("interface", &nic.name, "interfaces", nic.at);
        argv.json("-netdev", &nic.backend_props());
        argv.json("-device", &nic.props());
    }
    for (index, filesystem) in machine.filesystems.iter().enumerate() {
        argv.of_list("directory", &filesystem.name, "filesystems", index);
        argv.option("-chardev", filesystem.chardev());
        argv.json("-device", &filesystem.props());
    }
    if let Some(serial) = machine.serial {
        argv.of("serial console", &["spec.domain.devices.autoattachSerialConsole"]);
        argv.option("-chardev", serial.chardev());
        argv.json("-device", &serial.props());
    }
    argv.of("guest agent", &[]);
    argv.option("-chardev", machine.guest_agent.chardev());
    argv.json("-device", &machine.guest_agent.props());
    if let Some(channel) = machine.downward_metrics {
        argv.of("downward metrics", &["spec.domain.devices.downwardMetrics"]);
        argv.option("-chardev", channel.chardev());
        argv.json("-device", &channel.props());
    }
    if let Some(video) = &machine.video {
        argv.of("display", &["spec.domain.devices.autoattachGraphicsDevice", "spec.domain.devices.video"]);
        argv.option("-vnc", video.vnc());
        argv.json("-device", &video.props());
    }
    if let Some(balloon) = machine.balloon {
        argv.of("balloon", &["spec.domain.devices.autoattachMemBalloon"]);
        argv.json("-device", &balloon.props());
    }
    if let Some(room) = machine.virtio_mem {
        argv.of("memory to grow", &["spec.domain.memory.maxGuest"]);
        argv.json("-object", &room.object());
        argv.json("-device", &room.props());
    }
    if let Some(rng) = machine.rng {
        argv.of("random numbers", &["spec.domain.devices.rng"]);
        argv.json("-object", &rng.object());
        argv.json("-device", &rng.props());
    }
    if let Some(tpm) = machine.tpm {
        argv.of("TPM", &["spec.domain.devices.tpm"]);
        argv.option("-chardev", tpm.chardev());
        argv.option("-tpmdev", tpm.backend());
        argv.json("-device", &tpm.props());
    }
    if let Some(watchdog) = machine.watchdog {
        argv.of("watchdog", &["spec.domain.devices.watchdog"]);
        argv.json("-device", &watchdog.props());
    }
    if let Some(sound) = machine.sound {
        argv.of("sound", &["spec.domain.devices.sound"]);
        argv.option("-audiodev", Sound::backend());
        for device in sound.props() {
            argv.json("-device", &device);
        }
    }
    for (index, input) in machine.inputs.iter().enumerate() {
        argv.of_list("input", &input.name, "inputs", index);
        argv.json("-device", &input.props());
    }
    argv.of("USB slots of clients", &["spec.domain.devices.clientPassthrough"]);
    for slot in &machine.usb_slots {
        argv.option("-chardev", slot.chardev());
        argv.json("-device", &slot.props());
    }
    if let Some(vsock) = machine.vsock {
        argv.of("vsock", &["spec.domain.devices.autoattachVSOCK"]);
        argv.json("-device", &vsock.props());
    }
    for device in &machine.host_devices {
        argv.of(format!("device of the node {}", device.id), &[&device.field]);
        argv.json("-device", &device.props());
    }
    argv.of("panic", &["spec.domain.devices.panicDevices"]);
    for device in machine.panic.props() {
        argv.json("-device", &device);
    }
}
