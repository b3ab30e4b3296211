//! A machine as QEMU's command line. Cannot fail, and adds nothing that is not in the machine or true of all machines.

use crate::device::serial::socket_chardev;
use crate::facts::{Accelerator, FdSet};
use crate::machine::Machine;
use crate::memory::Memory;
use crate::props::Props;
use crate::quote::Options;
use crate::units::Fd;
use barevirt_api::settings::Smbios;

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
        .switch("smm", false)
        .switch("vmport", false)
        .switch("dump-guest-core", false);
    if !machine.controllers.chipset_sata {
        board = board.switch("sata", false);
    }
    if !firmware.acpi {
        board = board.switch("acpi", false);
    }
    if firmware.on_serial {
        board = board.switch("graphics", false);
    }
    argv.option("-machine", board.with("memory-backend", Memory::ID).into_string());
    argv.option("-accel", accelerator(&machine.accelerator));
    argv.option("-cpu", machine.cpu.model());
    argv.option("-smp", machine.cpu.smp());
    argv.option("-m", machine.memory.option());
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
    argv.option("-rtc", "base=utc,driftfix=slew");
    // Only what has a place in the boot order is booted from.
    argv.option("-boot", "menu=off,strict=on");
    // The guest's reboot stays inside; its power-off and its panic end QEMU, told apart by the exit code too.
    argv.option("-action", "reboot=reset,shutdown=poweroff,panic=exit-failure");
    // Suspended to memory or disk, a guest would be out of reach of the stop ladder.
    argv.option("-global", "ICH9-LPC.disable_s3=1");
    argv.option("-global", "ICH9-LPC.disable_s4=1");
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
    if let Some(rng) = machine.rng {
        argv.json("-object", &rng.object());
        argv.json("-device", &rng.props());
    }
    argv.json("-device", &machine.panic.props());
}
