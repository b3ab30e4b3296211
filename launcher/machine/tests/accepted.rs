//! Real QEMU accepts every command line of the golden tests, and the same devices by hotplug: it only answers
//! on its monitor after it has made all of them.

#![allow(clippy::unwrap_used, clippy::expect_used)] // A test fails by panicking, helpers of tests too.

mod common;

use barevirt_api::masquerade::IPV4;
use barevirt_machine::*;
use command_fds::{CommandFdExt, FdMapping};
use common::{FILES, MANIFESTS, facts, manifest};
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::fs::File;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

const QEMU: &str = "qemu-system-x86_64";
const MIB: u64 = 1 << 20;

/// A QEMU and our end of its monitor. Dropping it ends QEMU.
struct Qemu {
    child: Child,
    monitor: BufReader<UnixStream>,
    _other_ends: Vec<UnixStream>,
    _files: tempfile::TempDir,
}

impl Qemu {
    /// Starts the machine of these facts, with real files and sockets for those that the facts name.
    fn start(vmi: &barevirt_api::valid::ValidVmi, mut facts: Facts) -> Self {
        let files = tempfile::tempdir().unwrap();
        let mut mappings = Vec::new();
        let mut other_ends = Vec::new();
        let socket = |number: Fd, mappings: &mut Vec<FdMapping>| {
            let (ours, theirs) = UnixStream::pair().unwrap();
            mappings.push(mapping(theirs.into(), number));
            ours
        };
        let monitor = socket(facts.monitors.control, &mut mappings);
        let channels = [facts.monitors.people, facts.serial, facts.guest_agent];
        for number in channels.into_iter().chain(facts.downward_metrics) {
            other_ends.push(socket(number, &mut mappings));
        }
        for member in facts.fd_sets.iter().flat_map(|set| &set.members) {
            let path = files.path().join(format!("fd{}", member.fd));
            File::create(&path).unwrap().set_len(MIB).unwrap();
            mappings.push(mapping(File::open(&path).unwrap().into(), member.fd));
        }
        // A tap needs a privilege that a test does not have; QEMU's own network is a replacement.
        for interface in &mut facts.interfaces {
            if let NetBackend::Stream(number) = interface.backend {
                other_ends.push(socket(number, &mut mappings));
                continue;
            }
            interface.backend = NetBackend::User { ipv4: IPV4, forwards: Vec::new() };
        }
        facts.vnc_socket = files.path().join("vnc,1.sock").to_str().unwrap().to_owned();
        facts.usb_sockets = std::array::from_fn(|slot| {
            files.path().join(format!("usb,{slot}.sock")).to_str().unwrap().to_owned()
        });
        for volume in &mut facts.volumes {
            for source in [Some(&mut volume.source), volume.overlay.as_mut()].into_iter().flatten() {
                if let FileSource::Path(path) = source {
                    *path = path.replace(FILES, files.path().to_str().unwrap());
                    make_image(Path::new(&*path));
                }
            }
        }
        let machine = plan(vmi, &facts).unwrap();
        let mut command = Command::new(QEMU);
        command.args(argv(&machine)).stdin(Stdio::null()).stderr(Stdio::piped());
        command.fd_mappings(mappings).unwrap();
        let child = command.spawn().expect("QEMU is installed");
        // The command holds our copies of QEMU's ends: while they are open, QEMU's end would not be noticed.
        drop(command);
        monitor.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        Self { child, monitor: BufReader::new(monitor), _other_ends: other_ends, _files: files }
    }

    fn line(&mut self) -> Value {
        let mut line = String::new();
        let read = self.monitor.read_line(&mut line);
        if !matches!(read, Ok(length) if length > 0) {
            let mut reason = String::new();
            self.child.kill().unwrap();
            self.child.stderr.take().unwrap().read_to_string(&mut reason).unwrap();
            panic!("QEMU did not answer: {read:?}: {reason}");
        }
        serde_json::from_str(&line).unwrap()
    }

    /// The answer to a command; events are skipped.
    fn execute(&mut self, name: &str, arguments: Value) -> Result<Value, Value> {
        let command = json!({ "execute": name, "arguments": arguments });
        writeln!(self.monitor.get_mut(), "{command}").unwrap();
        loop {
            let answer = self.line();
            if let Some(value) = answer.get("return") {
                return Ok(value.clone());
            }
            if let Some(error) = answer.get("error") {
                return Err(error.clone());
            }
        }
    }

    fn negotiate(&mut self) {
        assert!(self.line().get("QMP").is_some());
        self.execute("qmp_capabilities", json!({})).unwrap();
    }

    /// Undoes the steps in reverse order. No system in the guest can release a device, so a reset does it.
    fn undo(&mut self, steps: &[Step]) {
        for step in steps.iter().rev() {
            self.execute(step.inverse.execute, step.inverse.arguments.clone()).unwrap();
            if let Some(device) = &step.awaits_device {
                let reset = json!({ "execute": "system_reset" });
                writeln!(self.monitor.get_mut(), "{reset}").unwrap();
                let mut gone = false;
                let mut answered = false;
                while !(gone && answered) {
                    let line = self.line();
                    gone |= line["event"] == "DEVICE_DELETED" && line["data"]["device"] == json!(device);
                    answered |= line.get("return").is_some();
                }
            }
        }
    }

    fn node_names(&mut self) -> BTreeSet<String> {
        let nodes = self.execute("query-named-block-nodes", json!({ "flat": true })).unwrap();
        nodes.as_array().unwrap().iter().map(|node| node["node-name"].as_str().unwrap().to_owned()).collect()
    }
}

impl Drop for Qemu {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn mapping(parent_fd: OwnedFd, number: Fd) -> FdMapping {
    FdMapping { parent_fd, child_fd: number.0.try_into().unwrap() }
}

/// An empty image in the format of its name.
fn make_image(path: &Path) {
    let mut file = File::create(path).unwrap();
    if path.extension().unwrap() == "qcow2" {
        file.write_all(&empty_qcow2()).unwrap();
    } else {
        file.set_len(MIB).unwrap();
    }
}

/// A qcow2 image of one mebibyte with nothing in it: header, L1 table, reference count table and its one block, in
/// one cluster of 64 KiB each.
fn empty_qcow2() -> Vec<u8> {
    const CLUSTER: usize = 1 << 16;
    let mut image = vec![0_u8; 4 * CLUSTER];
    let mut put = |at: usize, bytes: &[u8]| image[at..at + bytes.len()].copy_from_slice(bytes);
    put(0, b"QFI\xfb");
    put(4, &3_u32.to_be_bytes()); // version
    put(20, &16_u32.to_be_bytes()); // cluster bits
    put(24, &MIB.to_be_bytes());
    put(36, &1_u32.to_be_bytes()); // L1 entries
    put(40, &(CLUSTER as u64).to_be_bytes()); // L1 table
    put(48, &(2 * CLUSTER as u64).to_be_bytes()); // reference count table
    put(56, &1_u32.to_be_bytes()); // its clusters
    put(96, &4_u32.to_be_bytes()); // 16-bit reference counts
    put(100, &104_u32.to_be_bytes()); // header length
    put(2 * CLUSTER, &(3 * CLUSTER as u64).to_be_bytes());
    for cluster in 0..4 {
        put(3 * CLUSTER + 2 * cluster, &1_u16.to_be_bytes());
    }
    image
}

#[test]
fn qemu_takes_every_machine() {
    for (name, _) in MANIFESTS {
        let vmi = manifest(name);
        let mut qemu = Qemu::start(&vmi, facts(&vmi));
        qemu.negotiate();
        let status = qemu.execute("query-status", json!({})).unwrap();
        assert_eq!(status["status"], "prelaunch", "{name}");
        let names = qemu.execute("query-name", json!({})).unwrap();
        assert_eq!(names["name"], format!("{}_{}", vmi.namespace(), vmi.name()));
    }
}

#[test]
fn block_nodes_have_the_names_that_were_planned() {
    let vmi = manifest("everything");
    let machine = plan(&vmi, &facts(&vmi)).unwrap();
    let images = machine.disks.iter().filter_map(|disk| disk.image.as_ref());
    let planned: BTreeSet<String> = images.flat_map(Image::node_names).collect();
    let mut qemu = Qemu::start(&vmi, facts(&vmi));
    qemu.negotiate();
    assert_eq!(qemu.node_names(), planned);
}

#[test]
fn a_drive_with_an_open_tray_is_empty_and_its_medium_is_at_hand() {
    let vmi = manifest("devices");
    let mut qemu = Qemu::start(&vmi, facts(&vmi));
    qemu.negotiate();
    let medium = |qemu: &mut Qemu| {
        let drives = qemu.execute("query-block", json!({})).unwrap();
        let drive = drives.as_array().unwrap().iter().find(|drive| drive["qdev"] == "disk-tools").cloned();
        drive.unwrap()["inserted"]["node-name"].clone()
    };
    assert_eq!(medium(&mut qemu), Value::Null);
    let arguments = json!({ "id": "disk-tools", "node-name": "disk-tools" });
    qemu.execute("blockdev-open-tray", json!({ "id": "disk-tools" })).unwrap();
    qemu.execute("blockdev-insert-medium", arguments).unwrap();
    assert_eq!(medium(&mut qemu), "disk-tools");
}

#[test]
fn hotplug_takes_the_same_disk_and_undoes_it() {
    let vmi = manifest("tiny");
    let mut qemu = Qemu::start(&vmi, facts(&vmi));
    qemu.negotiate();
    let before = qemu.node_names();

    let machine = plan(&vmi, &facts(&vmi)).unwrap();
    let image = qemu._files.path().join("more.qcow2");
    make_image(&image);
    let (_, port) = machine.layout.occupy("disk-more").unwrap();
    let disk = Disk {
        name: "more".into(),
        image: Some(Image {
            name: "more".into(),
            source: FileSource::Path(image.to_str().unwrap().into()),
            format: ImageFormat::Qcow2,
            overlay: None,
            mode: ReadMode::ReadWrite,
            cache: Cache::WriteBack,
            aio: Aio::Threads,
            is_shared: false,
            thick: false,
        }),
        device: DiskDevice {
            kind: DiskKind::Disk,
            is_empty: false,
            bus: Bus::Virtio(Seat::Behind(port), Virtio::Current),
            boot_index: None,
            serial: None,
            on_error: OnError::Stop,
            blocks: None,
            served: Served::ByOwn("iothread-more".into()),
            queues: None,
        },
    };
    let threads = |qemu: &mut Qemu| qemu.execute("query-iothreads", json!({})).unwrap().to_string();
    let steps = attach_disk(&disk);
    for step in &steps {
        qemu.execute(step.forward.execute, step.forward.arguments.clone()).unwrap();
    }
    assert_eq!(qemu.node_names().difference(&before).count(), 2);
    assert!(threads(&mut qemu).contains("iothread-more"));

    qemu.undo(&steps);
    assert_eq!(qemu.node_names(), before);
    assert_eq!(threads(&mut qemu), "[]");
}

#[test]
fn hotplug_takes_the_same_interface_and_undoes_it() {
    let vmi = manifest("tiny");
    let mut qemu = Qemu::start(&vmi, facts(&vmi));
    qemu.negotiate();
    let (_, port) = plan(&vmi, &facts(&vmi)).unwrap().layout.occupy("nic-more").unwrap();
    let nic = Nic {
        at: 1,
        name: "more".into(),
        model: NicModel::Virtio(Virtio::Current),
        mac: "02:00:00:00:00:09".into(),
        mtu: Some(1400),
        backend: NetBackend::User { ipv4: IPV4, forwards: Vec::new() },
        seat: Seat::Behind(port),
        acpi_index: None,
        boot_index: None,
    };
    let steps = attach_nic(&nic);
    for step in &steps {
        qemu.execute(step.forward.execute, step.forward.arguments.clone()).unwrap();
    }
    assert!(qemu.execute("query-rx-filter", json!({ "name": nic.id() })).is_ok());
    qemu.undo(&steps);
    assert!(qemu.execute("query-rx-filter", json!({ "name": nic.id() })).is_err());
}

#[test]
fn processors_and_memory_come_and_are_asked_to_go() {
    let vmi = manifest("grows");
    let mut qemu = Qemu::start(&vmi, facts(&vmi));
    qemu.negotiate();
    let look = |qemu: &mut Qemu| {
        let processors = qemu.execute("query-hotpluggable-cpus", json!({})).unwrap();
        let memory = qemu.execute("query-memory-devices", json!({})).unwrap();
        let memory: Vec<_> = serde_json::from_value(memory).unwrap();
        (Processors::new(serde_json::from_value(processors).unwrap()), Plugged::find(&memory).unwrap())
    };
    let (processors, plugged) = look(&mut qemu);
    assert_eq!((processors.sockets(1), plugged.size, plugged.room), (1, Bytes(0), Bytes::mib(384)));
    for step in processors.steps(3).into_iter().chain(plugged.step(Bytes::mib(100))) {
        qemu.execute(step.execute, step.arguments).unwrap();
    }
    let (processors, plugged) = look(&mut qemu);
    assert_eq!(processors.sockets(3), 3);
    assert_eq!(processors.steps(3), []);
    // No system in the guest can take the memory.
    assert_eq!((plugged.size, plugged.requested), (Bytes(0), Bytes::mib(100)));
    assert_eq!(plugged.step(Bytes::mib(100)), None);
    // Without a running system with ACPI nothing can be removed, and QEMU says so.
    for step in processors.steps(1) {
        let refused = qemu.execute(step.execute, step.arguments).unwrap_err();
        assert!(refused["desc"].as_str().unwrap().contains("unplug"), "{refused}");
    }
}

/// The firmware has to run for this test: it numbers the buses behind root ports.
#[test]
fn guests_find_their_sound_card() {
    for (model, expected) in [("ich9", 0x293e), ("ac97", 0x2415)] {
        let mut vmi = manifest("tiny").vmi().clone();
        vmi.spec.domain.devices.sound =
            serde_json::from_value(json!({"name": "noise", "model": model})).unwrap();
        let vmi = common::valid(vmi);
        let mut qemu = Qemu::start(&vmi, facts(&vmi));
        qemu.negotiate();
        qemu.execute("cont", json!({})).unwrap();
        let begun = Instant::now();
        loop {
            let buses = qemu.execute("query-pci", json!({})).unwrap();
            if ids(&buses).contains(&(0x8086, expected)) {
                break;
            }
            assert!(begun.elapsed() < Duration::from_secs(60), "no {model} in {buses}");
            std::thread::sleep(Duration::from_millis(100));
        }
    }
}

/// Vendor and device of all entries in an answer to `query-pci`, at any depth.
fn ids(answer: &Value) -> BTreeSet<(u64, u64)> {
    let id = &answer["id"];
    let own = id["vendor"].as_u64().zip(id["device"].as_u64());
    let inside: Vec<&Value> = match answer {
        Value::Array(values) => values.iter().collect(),
        Value::Object(fields) => fields.values().collect(),
        _ => Vec::new(),
    };
    own.into_iter().chain(inside.into_iter().flat_map(ids)).collect()
}
