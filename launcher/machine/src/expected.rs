//! The facts that a launcher in a pod would find, for programs without a pod: `virtctl explain` uses them to
//! show the result of a manifest.

use std::collections::BTreeMap;

use barevirt_api::cloud_init::{self, Layout};
use barevirt_api::firmware;
use barevirt_api::names::CLAIM_DEVICES;
use barevirt_api::object_volume;
use barevirt_api::pci::FUNCTIONS;
use barevirt_api::pci_address::PciAddress;
use barevirt_api::settings::Smbios;
use barevirt_api::sizing::DedicatedCpus;
use barevirt_api::v1::Volume;
use barevirt_api::valid::{ValidDisk, ValidVmi};
use serde_json::{Map, Value};

use crate::blocks::Blocks;
use crate::clock::is_shifted;
use crate::device::blockdev::{Cache, FileSource, ImageFormat};
use crate::device::flash::Flash;
use crate::device::host::HostSource;
use crate::device::nic::{NetBackend, TapFd};
use crate::facts::{
    Accelerator, Facts, FdSet, FdSetMember, FirmwareFacts, InterfaceFacts, Monitors, VolumeFacts,
};
use crate::host_cpu::{CpuQuestion, HostCpu, feature_name};
use crate::host_cpus::{HostCell, HostCpus};
use crate::units::Fd;

/// Directory in which the launcher makes files.
const FILES: &str = "/var/run/kubevirt-ephemeral-disks";
/// Directory of its own files.
const PRIVATE: &str = "/var/run/kubevirt-private";
/// The directory below it in which QEMU makes its sockets; it contains nothing else.
pub const QEMU_DIRECTORY: &str = "qemu";
/// Directory of UEFI images.
const OVMF: &str = "/usr/share/OVMF";
/// The sets of descriptors for the variables and the first volume.
const VARIABLES_SET: u32 = 2;
const FIRST_VOLUME_SET: u32 = 10;
/// The block sizes of most file systems.
const BLOCKS: Blocks = Blocks { logical: 4096, physical: 4096, discard: Some(4096) };

/// Facts as a launcher finds them if all named objects exist: images are qcow2, the node's CPU has the
/// requested features, and descriptors are numbered from 3 on.
#[must_use]
pub fn expected(vmi: &ValidVmi, accelerator: Accelerator, smbios: Smbios) -> Facts {
    let mut numbers = Numbers(3);
    let monitors = Monitors { control: numbers.next(), people: numbers.next() };
    let (serial, guest_agent) = (numbers.next(), numbers.next());
    let mut fd_sets = Vec::new();
    let volumes = volumes(vmi, &mut numbers, &mut fd_sets);
    let firmware = firmware_facts(vmi, &mut numbers, &mut fd_sets);
    let interface = |valid: &barevirt_api::valid::ValidInterface| InterfaceFacts {
        name: valid.interface.name.clone(),
        mac: valid.mac.clone(),
        mtu: None,
        backend: if valid.interface.passt_binding.is_some() {
            NetBackend::Stream(numbers.next())
        } else {
            let queues = 0..vmi.queues(&valid.interface);
            NetBackend::Tap(queues.map(|_| TapFd::Number(numbers.next())).collect())
        },
    };
    let emulated = vmi.interfaces().iter().filter(|valid| valid.interface.sriov.is_none());
    let interfaces = emulated.map(interface).collect();
    // Only the node knows the kind and address of a device.
    let fields = vmi.host_devices().map(|(field, _)| field);
    let fields = fields.chain(vmi.sriov_cards().map(|(field, _)| field));
    let host_devices =
        fields.zip(functions()).map(|(field, address)| (field, vec![HostSource::Pci(address)]));
    let host_devices = host_devices.collect();
    let wants_vsock = vmi.spec().domain.devices.autoattach_vsock == Some(true);
    let vhost_vsock = wants_vsock.then(|| numbers.next());
    let downward_metrics = vmi.spec().domain.devices.downward_metrics.is_some().then(|| numbers.next());
    let shared = vmi.spec().domain.devices.filesystems.iter();
    let filesystems = shared.map(|shared| (shared.name.clone(), numbers.next())).collect();
    let host_cpu = CpuQuestion::of(vmi, &accelerator).and_then(|question| host_cpu(vmi, &question));
    Facts {
        accelerator,
        fd_sets,
        monitors,
        serial,
        guest_agent,
        downward_metrics,
        vhost_vsock,
        host_devices,
        filesystems,
        // The lowest address that a guest can have.
        context_id: wants_vsock.then(|| vmi.context_id().unwrap_or(3)),
        vnc_socket: format!("{PRIVATE}/{QEMU_DIRECTORY}/vnc.sock"),
        usb_sockets: std::array::from_fn(|slot| format!("{PRIVATE}/{QEMU_DIRECTORY}/usb{slot}.sock")),
        interfaces,
        volumes,
        network_boot: true,
        firmware,
        machine_type: None,
        sockets: None,
        smbios,
        free_page_reporting: true,
        // Only known when the machine starts.
        rtc_base: vmi.spec().domain.clock.as_ref().is_some_and(is_shifted).then(|| "<start>".to_owned()),
        host_cpu,
        host_cpus: Some(host_cpus(vmi)),
        layout: None,
    }
}

/// Addresses of functions of one bus.
fn functions() -> impl Iterator<Item = PciAddress> {
    let address = |number: u16| format!("0000:65:{:02x}.{}", number / FUNCTIONS, number % FUNCTIONS);
    (0..32 * FUNCTIONS).filter_map(move |number| address(number).parse().ok())
}

struct Numbers(u32);

impl Numbers {
    fn next(&mut self) -> Fd {
        self.0 += 1;
        Fd(self.0 - 1)
    }
}

fn volumes(vmi: &ValidVmi, numbers: &mut Numbers, sets: &mut Vec<FdSet>) -> Vec<VolumeFacts> {
    let mut seeds: BTreeMap<&str, u32> = BTreeMap::new();
    let mut one = |disk: &ValidDisk| {
        let Volume { name, container_disk, empty_disk, .. } = &disk.volume;
        let file = |suffix: &str| FileSource::Path(format!("{FILES}/{name}.{suffix}"));
        let ready = |source, format| VolumeFacts {
            name: name.clone(),
            source,
            format,
            read_only: false,
            overlay: None,
            cache: Cache::Disposable,
            thick: false,
            blocks: None,
        };
        let mut open = || {
            let number = FIRST_VOLUME_SET + u32::try_from(sets.len()).unwrap_or_default();
            let member = FdSetMember { fd: numbers.next(), what: format!("volume {name}") };
            sets.push(FdSet { number, members: vec![member] });
            number
        };
        if let Some(claim) = disk.volume.claim() {
            // A claim is a file on a file system, or a device.
            let source = if disk.disk.is_lun() {
                FileSource::BlockDevice(format!("{CLAIM_DEVICES}/{name}"))
            } else {
                FileSource::FdSet(open())
            };
            let overlay = (claim.is_ephemeral && !disk.disk.is_readonly()).then(|| file("overlay.qcow2"));
            let cache = if overlay.is_some() { Cache::Disposable } else { Cache::None };
            let read_only = claim.is_read_only || claim.is_ephemeral;
            let blocks = Some(BLOCKS);
            return VolumeFacts { read_only, overlay, cache, blocks, ..ready(source, ImageFormat::Raw) };
        }
        if disk.volume.host_disk.is_some() {
            let ready = ready(FileSource::FdSet(open()), ImageFormat::Raw);
            let (read_only, cache, blocks) = (disk.disk.is_readonly(), Cache::None, Some(BLOCKS));
            return VolumeFacts { read_only, cache, blocks, ..ready };
        }
        if container_disk.is_some() {
            let number = open();
            let overlay = (!disk.disk.is_cdrom()).then(|| file("overlay.qcow2"));
            let ready = ready(FileSource::FdSet(number), ImageFormat::Qcow2);
            return VolumeFacts { read_only: true, overlay, blocks: Some(BLOCKS), ..ready };
        }
        if let Some(given) = cloud_init::of(&disk.volume) {
            let iso = match given.layout {
                Layout::NoCloud => "noCloud.iso",
                Layout::ConfigDrive => "configdrive.iso",
            };
            let before = seeds.entry(iso).or_default();
            *before += 1;
            let iso = if *before == 1 { iso.to_owned() } else { format!("{name}-{iso}") };
            let path = format!("{FILES}/cloud-init-data/{}/{}/{iso}", vmi.namespace(), vmi.name());
            return ready(FileSource::Path(path), ImageFormat::Raw);
        }
        if let Some(object) = object_volume::of(&disk.volume) {
            return ready(FileSource::Path(format!("{PRIVATE}/{}", object.disk())), ImageFormat::Raw);
        }
        if empty_disk.is_some() {
            return VolumeFacts { blocks: Some(BLOCKS), ..ready(file("empty.qcow2"), ImageFormat::Qcow2) };
        }
        ready(file("img"), ImageFormat::Raw)
    };
    vmi.boot_disks().map(&mut one).collect()
}

fn firmware_facts(vmi: &ValidVmi, numbers: &mut Numbers, sets: &mut Vec<FdSet>) -> FirmwareFacts {
    let spec = vmi.spec();
    let mut facts = FirmwareFacts::default();
    if firmware::efi(spec).is_some() {
        let code = if firmware::secure_boot(spec) { "OVMF_CODE_4M.secboot.fd" } else { "OVMF_CODE_4M.fd" };
        let member = FdSetMember { fd: numbers.next(), what: "firmware variables".to_owned() };
        sets.push(FdSet { number: VARIABLES_SET, members: vec![member] });
        facts.flash = Some(Flash {
            code: FileSource::Path(format!("{OVMF}/{code}")),
            variables: FileSource::FdSet(VARIABLES_SET),
        });
    }
    if let Some((_, container)) = firmware::kernel_boot(spec) {
        let mut file = |path: Option<&String>| {
            path.filter(|path| !path.is_empty()).map(|_| format!("/proc/self/fd/{}", numbers.next()))
        };
        facts.kernel = file(container.kernel_path.as_ref());
        facts.initrd = file(container.initrd_path.as_ref());
    }
    facts.acpi_tables =
        firmware::acpi_tables(spec).map(|_| format!("/proc/self/fd/{}", numbers.next())).collect();
    facts.ignition = firmware::ignition(vmi.vmi()).map(|_| format!("/proc/self/fd/{}", numbers.next()));
    facts.tpm = firmware::tpm(spec).then(|| numbers.next());
    facts
}

/// A CPU with the features that the manifest requests. `None` if the manifest requests the host's CPU,
/// because its features are unknown before there is a node.
fn host_cpu(vmi: &ValidVmi, question: &CpuQuestion) -> Option<HostCpu> {
    let features = vmi.spec().domain.cpu.as_ref().map(|cpu| cpu.features.as_slice()).unwrap_or_default();
    if features.is_empty() && question.named.is_none() {
        return None;
    }
    let offered = |policy: Option<&String>| policy.is_none_or(|policy| policy != "forbid");
    let offer: Map<String, Value> = features
        .iter()
        .map(|feature| (feature_name(&feature.name), offered(feature.policy.as_ref()).into()))
        .collect();
    Some(HostCpu::new(Map::new(), offer, question.named.as_ref().map(|_| Vec::new())))
}

/// A host with one NUMA node and as many CPUs for the guest as it may request: one for each virtual CPU, and
/// some for QEMU.
fn host_cpus(vmi: &ValidVmi) -> HostCpus {
    let count = DedicatedCpus::of(vmi).map_or(0, |cpus| cpus.all());
    let cell = HostCell { id: 0, cores: (0..count).map(|cpu| vec![cpu]).collect(), distances: vec![(0, 10)] };
    HostCpus { allowed: (0..count).collect(), cells: vec![cell], may_bind: false }
}
