//! Manifests, and facts for each of them as a launcher would find them.
#![allow(dead_code)] // Each program of tests uses its part.

use barevirt_api::settings::Smbios;
use barevirt_api::v1::{VirtualMachineInstance, Volume};
use barevirt_api::valid::ValidVmi;
use barevirt_machine::*;

/// The manifests, by name.
pub(crate) const MANIFESTS: [(&str, &str); 11] = [
    ("addresses", include_str!("../manifests/addresses.yaml")),
    ("devices", include_str!("../manifests/devices.yaml")),
    ("features", include_str!("../manifests/features.yaml")),
    ("older", include_str!("../manifests/older.yaml")),
    ("grows", include_str!("../manifests/grows.yaml")),
    ("root-complex", include_str!("../manifests/root-complex.yaml")),
    ("tiny", include_str!("../manifests/tiny.yaml")),
    ("cloud-init", include_str!("../manifests/cloud-init.yaml")),
    ("everything", include_str!("../manifests/everything.yaml")),
    ("many-sata", include_str!("../manifests/many-sata.yaml")),
    ("passt", include_str!("../manifests/passt.yaml")),
];

pub(crate) fn manifest(name: &str) -> ValidVmi {
    let (_, text) = MANIFESTS.iter().find(|(known, _)| *known == name).expect("a manifest of that name");
    valid(serde_saphyr::from_str(text).expect("a readable manifest"))
}

pub(crate) fn valid(vmi: VirtualMachineInstance) -> ValidVmi {
    ValidVmi::new(vmi).unwrap_or_else(|causes| panic!("a valid manifest: {causes:?}"))
}

/// Directory of the files in the facts.
pub(crate) const FILES: &str = "/var/run/kubevirt-ephemeral-disks";

/// Block sizes of the file system below volumes.
const BLOCKS: Blocks = Blocks { logical: 4096, physical: 4096, discard: Some(4096) };

const TCG: Accelerator = Accelerator::Tcg { buffer: Bytes::mib(128) };

/// A host with few features.
pub(crate) fn host_cpu(_: &CpuQuestion) -> HostCpu {
    let props = serde_json::json!({"aes": true, "lahf-lm": true, "sse4.2": true, "vmx": false, "svm": false, "x2apic": true,
        "family": 6, "vendor": "GenuineIntel"});
    let props = props.as_object().cloned().unwrap_or_default();
    HostCpu::new(props.clone(), props, None)
}

/// The facts of a launcher in a pod without KVM: descriptors from 10 on, each volume prepared.
pub(crate) fn facts(vmi: &ValidVmi) -> Facts {
    let mut sets = Vec::new();
    let volumes = vmi.boot_volumes().map(|volume| volume_facts(volume, &mut sets)).collect();
    let emulated = vmi.interfaces().iter().filter(|valid| valid.interface.sriov.is_none());
    let interfaces = emulated.zip(20..).map(|(valid, fd)| {
        let queues = 0..vmi.queues(&valid.interface);
        let (mtu, backend) = match &valid.interface.passt_binding {
            Some(_) => (None, NetBackend::Stream(Fd(fd))),
            None => {
                let taps = queues.map(|queue| TapFd::Number(Fd(fd + 100 * queue)));
                (Some(1480), NetBackend::Tap(taps.collect()))
            }
        };
        let mac = valid.interface.mac_address.clone().unwrap_or_else(|| "02:00:00:00:00:01".to_owned());
        InterfaceFacts { name: valid.interface.name.clone(), mac, mtu, backend }
    });
    Facts {
        accelerator: TCG,
        interfaces: interfaces.collect(),
        volumes,
        fd_sets: sets,
        monitors: Monitors { control: Fd(10), people: Fd(11) },
        serial: Fd(12),
        guest_agent: Fd(13),
        downward_metrics: Some(Fd(14)),
        vhost_vsock: Some(Fd(15)),
        context_id: vmi.context_id(),
        host_devices: host_devices(vmi),
        filesystems: (vmi.spec().domain.devices.filesystems.iter().zip(60..))
            .map(|(shared, fd)| (shared.name.clone(), Fd(fd)))
            .collect(),
        vnc_socket: "/var/run/kubevirt-private/vnc.sock".to_owned(),
        usb_sockets: std::array::from_fn(|slot| format!("/var/run/kubevirt-private/usb{slot}.sock")),
        network_boot: false,
        firmware: FirmwareFacts::default(),
        machine_type: None,
        sockets: None,
        smbios: Smbios::default(),
        free_page_reporting: true,
        rtc_base: vmi.spec().domain.clock.is_some().then(|| "2026-11-22T01:02:03".to_owned()),
        host_cpu: CpuQuestion::of(vmi, &TCG).map(|question| host_cpu(&question)),
        host_cpus: None,
        layout: None,
    }
}

fn volume_facts(volume: &Volume, sets: &mut Vec<FdSet>) -> VolumeFacts {
    let name = volume.name.clone();
    let file = |suffix: &str| FileSource::Path(format!("{FILES}/{name}.{suffix}"));
    if volume.container_disk.is_some() {
        let number = u32::try_from(sets.len()).expect("few sets") + 1;
        let member = FdSetMember { fd: Fd(30 + number), what: format!("volume {name}") };
        sets.push(FdSet { number, members: vec![member] });
        let (source, overlay) = (FileSource::FdSet(number), Some(file("overlay.qcow2")));
        return VolumeFacts {
            name,
            source,
            format: ImageFormat::Raw,
            read_only: true,
            overlay,
            cache: Cache::Disposable,
            thick: false,
            blocks: Some(BLOCKS),
        };
    }
    if volume.downward_metrics.is_some() {
        let (source, format) = (file("vhostmd"), ImageFormat::Raw);
        return VolumeFacts {
            name,
            source,
            format,
            read_only: true,
            overlay: None,
            cache: Cache::Disposable,
            thick: false,
            blocks: None,
        };
    }
    let (source, format) = if volume.empty_disk.is_some() {
        (file("qcow2"), ImageFormat::Qcow2)
    } else {
        (file("iso"), ImageFormat::Raw)
    };
    let cache = Cache::Disposable;
    let blocks = volume.empty_disk.is_some().then_some(BLOCKS);
    VolumeFacts { name, source, format, read_only: false, overlay: None, cache, thick: false, blocks }
}

/// Each entry is a device of the kind that its resource is named after.
fn host_devices(vmi: &ValidVmi) -> Vec<(String, Vec<HostSource>)> {
    let uuid = "8ac6e3e5-1f1e-4c6e-9f8a-3f4a5b6c7d8e";
    let source = |resource: &str, number: u16| match resource {
        "example.com/vgpu" => vec![HostSource::Mediated(uuid.replace("8ac6", &format!("8ac{number}")))],
        "example.com/keys" => [7, 8].map(|device| HostSource::Usb { bus: 3, device }).into(),
        _ => vec![HostSource::Pci(format!("0000:65:00.{number}").parse().unwrap())],
    };
    let entries = vmi.host_devices().chain(vmi.sriov_cards().map(|(field, _)| (field, "example.com/vf")));
    entries.zip(0..).map(|((field, resource), number)| (field, source(resource, number))).collect()
}
