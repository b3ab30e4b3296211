//! A machine as QEMU's command line. Cannot fail, and adds nothing that is not in the machine or true of all machines.

use crate::device::flash::Flash;
use crate::device::serial::socket_chardev;
use crate::device::sound::Sound;
use crate::facts::{Accelerator, FdSet};
use crate::machine::{Firmware, Machine, OnReboot};
use crate::memory::Memory;
use crate::props::Props;
use crate::quote::Options;
use crate::units::Fd;
use barevirt_api::settings::Smbios;
use barevirt_api::v1::Chassis;

/// What QEMU is started with, without the program's own name.
#[must_use]
pub fn argv(machine: &Machine) -> Vec<String> {
    let mut argv = Arguments::default();
    process(&mut argv, machine);
    board(&mut argv, machine);
    monitors(&mut argv, machine);
    for set in &machine.fd_sets {
        fd_set(&mut argv, set);
    }
    argv.json("-object", &machine.memory.object());
    devices(&mut argv, machine);
    argv.0
}

#[derive(Default)]
struct Arguments(Vec<String>);

impl Arguments {
    fn flag(&mut self, name: &str) {
        self.0.push(name.to_owned());
    }

    fn option(&mut self, name: &str, value: impl Into<String>) {
        self.0.extend([name.to_owned(), value.into()]);
    }

    fn json(&mut self, name: &str, props: &Props) {
        self.option(name, props.to_text());
    }
}

/// What QEMU is as a process: its name, its sandbox, nothing that we did not ask for.
fn process(argv: &mut Arguments, machine: &Machine) {
    argv.option(
        "-name",
        Options::new().with("guest", &machine.identity.name).switch("debug-threads", true).into_string(),
    );
    argv.flag("-no-user-config");
    argv.flag("-nodefaults");
    // Each one by name: `on` alone still allows all but the obsolete system calls.
    let sandbox = ["obsolete", "elevateprivileges", "spawn", "resourcecontrol"]
        .iter()
        .fold(Options::kind("on"), |options, group| options.with(group, "deny"));
    argv.option("-sandbox", sandbox.into_string());
    argv.option("-msg", "timestamp=on");
    // CPUs start when the launcher says so.
    argv.flag("-S");
    argv.option("-display", "none");
}

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
    argv.option("-machine", board.with("memory-backend", Memory::ID).into_string());
    start(argv, firmware);
    argv.option("-accel", accelerator(&machine.accelerator));
    argv.option("-cpu", machine.cpu.model());
    argv.option("-smp", machine.cpu.smp());
    argv.option("-m", machine.memory.option(machine.virtio_mem.map(|device| device.room)));
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
    argv.option("-rtc", machine.rtc.option());
    if let Some(policy) = machine.timers.pit_policy() {
        argv.option("-global", policy);
    }
    // Only what has a place in the boot order is booted from.
    argv.option("-boot", "menu=off,strict=on");
    // The guest's power-off and its panic end QEMU, told apart by the exit code too; its reboot stays inside.
    let reboot = match machine.on_reboot {
        OnReboot::Reset => "reset",
        OnReboot::End => "shutdown",
    };
    let actions =
        Options::new().with("reboot", reboot).with("shutdown", "poweroff").with("panic", "exit-failure");
    let watchdog = machine.watchdog.map(|watchdog| watchdog.action.name());
    argv.option("-action", actions.maybe("watchdog", watchdog).into_string());
    // Suspended to memory or disk, a guest would be out of reach of the stop ladder.
    argv.option("-global", "ICH9-LPC.disable_s3=1");
    argv.option("-global", "ICH9-LPC.disable_s4=1");
}

/// What the firmware is and starts.
fn start(argv: &mut Arguments, firmware: &Firmware) {
    for node in firmware.flash.iter().flat_map(Flash::nodes) {
        argv.json("-blockdev", &node);
    }
    if firmware.secure_boot {
        argv.option("-global", "driver=cfi.pflash01,property=secure,value=on");
    }
    if let Some(kernel) = &firmware.kernel {
        argv.option("-kernel", &kernel.image);
        for (option, value) in [("-initrd", &kernel.initrd), ("-append", &kernel.arguments)] {
            if let Some(value) = value {
                argv.option(option, value);
            }
        }
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
    // An empty value ends the option for QEMU, and says nothing.
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
    let mut monitor = |id: &str, socket: Fd| {
        argv.option("-chardev", socket_chardev(id, socket));
        argv.option("-mon", Options::new().with("chardev", id).with("mode", "control").into_string());
    };
    monitor("monitor-control", machine.monitors.control);
    monitor("monitor-people", machine.monitors.people);
}

fn fd_set(argv: &mut Arguments, set: &FdSet) {
    for member in &set.members {
        let options =
            Options::new().with("fd", member.fd).with("set", set.number).with("opaque", &member.what);
        argv.option("-add-fd", options.into_string());
    }
}

fn devices(argv: &mut Arguments, machine: &Machine) {
    for thread in &machine.io_threads {
        argv.json("-object", &thread.object());
    }
    for port in &machine.root_ports {
        argv.json("-device", &port.props());
    }
    for controller in machine.controllers.props() {
        argv.json("-device", &controller);
    }
    for disk in &machine.disks {
        for node in disk.image.nodes() {
            argv.json("-blockdev", &node);
        }
        argv.json("-device", &disk.props());
    }
    for nic in &machine.nics {
        argv.json("-netdev", &nic.backend_props());
        argv.json("-device", &nic.props());
    }
    if let Some(serial) = machine.serial {
        argv.option("-chardev", serial.chardev());
        argv.json("-device", &serial.props());
    }
    argv.option("-chardev", machine.guest_agent.chardev());
    argv.json("-device", &machine.guest_agent.props());
    if let Some(video) = &machine.video {
        argv.option("-vnc", video.vnc());
        argv.json("-device", &video.props());
    }
    if let Some(balloon) = machine.balloon {
        argv.json("-device", &balloon.props());
    }
    if let Some(room) = machine.virtio_mem {
        argv.json("-object", &room.object());
        argv.json("-device", &room.props());
    }
    if let Some(rng) = machine.rng {
        argv.json("-object", &rng.object());
        argv.json("-device", &rng.props());
    }
    if let Some(tpm) = machine.tpm {
        argv.option("-chardev", tpm.chardev());
        argv.option("-tpmdev", tpm.backend());
        argv.json("-device", &tpm.props());
    }
    if let Some(watchdog) = machine.watchdog {
        argv.json("-device", &watchdog.props());
    }
    if let Some(sound) = machine.sound {
        argv.option("-audiodev", Sound::backend());
        for device in sound.props() {
            argv.json("-device", &device);
        }
    }
    for input in &machine.inputs {
        argv.json("-device", &input.props());
    }
    for device in machine.panic.props() {
        argv.json("-device", &device);
    }
}
