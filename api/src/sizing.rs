//! Sizing: guest memory, CPU arrangement, and the resources that the launcher pod requests from the node.
//!
//! The pod's memory is the guest's plus an overhead, the sum of:
//!
//! | part | amount | why |
//! |---|---|---|
//! | launcher | 8 MiB | its budget; it measures 2 to 3 MiB |
//! | QEMU | 48 MiB | heap, libraries, device state, block layer |
//! | virtual CPUs | 8 MiB each that is there | thread stack, state, KVM's structures |
//! | page tables | guest memory / 512 | 8 bytes for each 4 KiB page |
//! | memory file | guest memory / 448 | the kernel's index of its pages: measured, `docs/memory-overhead.md` |
//! | room to grow | (`maxGuest` - guest memory) / 8192 | bitmaps of memory that may come to be there |
//! | screen | 32 MiB | video memory and a VNC client's copy of it |
//! | disks | 1 MiB each | qcow2 tables |
//! | probes | 12 MiB each by the guest agent | a process of the container for a moment |
//! | UEFI | 8 MiB | its flash, and what QEMU keeps of it |
//! | kernel boot | 32 MiB | the kernel, which QEMU keeps for the next reset |
//! | TPM | 16 MiB | swtpm, which measures 8 MiB |
//! | devices of the node | 16 MiB each, and guest memory / 512 | what QEMU keeps of them; the kernel's tables of what they may reach |
//! | network binding plugins | what the installation says of each | `computeResourceOverhead.requests.memory` |
//! | emulation | 128 MiB + 1/64 of the guest memory | translated code ([`TCG_BUFFER_BYTES`]) and dirty-page bitmaps |
//!
//! The sum is multiplied by `additionalGuestMemoryOverheadRatio`. KubeVirt counts 240 MiB for its helper
//! processes and QEMU; this module counts 56.

use crate::firmware;
use crate::names::EVEN_PARITY_ANNOTATION;
use crate::quantity;
use crate::settings::Settings;
use crate::v1::{Cpu, DomainSpec, VirtualMachineInstanceSpec};
use crate::valid::ValidVmi;
use k8s_openapi::api::core::v1::ResourceRequirements;
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use std::collections::BTreeMap;

/// One mebibyte.
pub const MIB: u64 = 1 << 20;
/// The launcher itself.
pub const LAUNCHER_BYTES: u64 = 8 * MIB;
/// QEMU without guest, CPUs and screen.
pub const QEMU_BYTES: u64 = 48 * MIB;
/// Each virtual CPU.
pub const VCPU_BYTES: u64 = 8 * MIB;
/// The screen.
pub const GRAPHICS_BYTES: u64 = 32 * MIB;
/// Each disk.
pub const DISK_BYTES: u64 = MIB;
/// Each probe by the guest agent: a short-lived process in the container, started by the container runtime.
pub const PROBE_BYTES: u64 = 12 * MIB;
/// UEFI's flash.
pub const UEFI_BYTES: u64 = 8 * MIB;
/// A kernel that is started without a boot loader. Its initial file system is mapped from the image and can be dropped.
pub const KERNEL_BYTES: u64 = 32 * MIB;
/// swtpm.
pub const TPM_BYTES: u64 = 16 * MIB;
/// Each device of the node.
pub const HOST_DEVICE_BYTES: u64 = 16 * MIB;
/// Translated code, with emulation. The machine sets this size (`-accel tcg,tb-size=`), because QEMU's own
/// choice may be 1 GiB.
pub const TCG_BUFFER_BYTES: u64 = 128 * MIB;

/// Arrangement of virtual CPUs; no number is zero.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Topology {
    /// Sockets at boot.
    pub sockets: u32,
    /// Cores in each socket.
    pub cores: u32,
    /// Threads in each core.
    pub threads: u32,
    /// Upper bound for sockets; not below `sockets`.
    pub max_sockets: u32,
}

impl Topology {
    /// The arrangement that a specification requests, with 1 for numbers that are not given.
    pub fn of(cpu: Option<&Cpu>) -> Self {
        let count = |value: Option<u32>| value.unwrap_or(1).max(1);
        let sockets = count(cpu.and_then(|cpu| cpu.sockets));
        Topology {
            sockets,
            cores: count(cpu.and_then(|cpu| cpu.cores)),
            threads: count(cpu.and_then(|cpu| cpu.threads)),
            max_sockets: cpu.and_then(|cpu| cpu.max_sockets).unwrap_or(0).max(sockets),
        }
    }

    /// Virtual CPUs at boot.
    pub fn vcpus(&self) -> u32 {
        self.sockets.saturating_mul(self.cores).saturating_mul(self.threads)
    }

    /// Most virtual CPUs that can be plugged in.
    pub fn max_vcpus(&self) -> u32 {
        self.max_sockets.saturating_mul(self.cores).saturating_mul(self.threads)
    }
}

/// Dedicated host CPUs of a guest with `dedicatedCpuPlacement`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DedicatedCpus {
    /// One for each virtual CPU.
    pub vcpus: u32,
    /// One for each thread of the supplemental pool.
    pub io_threads: u32,
    /// For the other threads of QEMU, with `isolateEmulatorThread`: one, or two if the sum must be even.
    pub emulator: u32,
}

impl DedicatedCpus {
    /// The CPUs that an instance requests; `None` if its CPUs are shared.
    pub fn of(vmi: &ValidVmi) -> Option<Self> {
        let spec = vmi.spec();
        let cpu = spec.domain.cpu.as_ref().filter(|cpu| cpu.dedicated_cpu_placement == Some(true))?;
        let (vcpus, io_threads) = (vmi.topology().vcpus(), supplemental_io_threads(&spec.domain));
        let annotations = vmi.vmi().metadata.annotations.as_ref();
        let even = annotations.is_some_and(|annotations| annotations.contains_key(EVEN_PARITY_ANNOTATION));
        let emulator = match cpu.isolate_emulator_thread {
            Some(true) if even && (vcpus + io_threads).is_multiple_of(2) => 2,
            Some(true) => 1,
            _ => 0,
        };
        Some(DedicatedCpus { vcpus, io_threads, emulator })
    }

    /// The sum.
    pub fn all(&self) -> u32 {
        self.vcpus.saturating_add(self.io_threads).saturating_add(self.emulator)
    }
}

/// Threads of the supplemental pool, which need CPUs in addition to those of the virtual CPUs.
fn supplemental_io_threads(domain: &DomainSpec) -> u32 {
    let count = domain.io_threads.as_ref().and_then(|threads| threads.supplemental_pool_thread_count);
    let pool = domain.io_threads_policy.as_deref() == Some("supplementalPool");
    count.filter(|_| pool).and_then(|count| u32::try_from(count).ok()).unwrap_or(0)
}

/// Whether the pod must be of the QoS class `Guaranteed`, which means that the requests of its containers are
/// their limits, too. It must be for dedicated CPUs, and for instances whose limits equal their requests.
pub fn is_guaranteed(vmi: &ValidVmi) -> bool {
    let Some(given) = vmi.spec().domain.resources.as_ref() else { return DedicatedCpus::of(vmi).is_some() };
    let same = |name: &str| {
        let millis = |quantity: Option<&Quantity>| quantity.and_then(|q| quantity::millis(q).ok());
        let request = millis(given.request(name)).filter(|amount| *amount > 0);
        request.is_some() && request == millis(given.limit(name))
    };
    DedicatedCpus::of(vmi).is_some() || (same("cpu") && same("memory"))
}

/// Guest memory in bytes, rounded up to whole MiB as QEMU's memory backends and page sizes need; `None` if
/// the specification gives no memory that can be read.
pub fn guest_memory_bytes(spec: &VirtualMachineInstanceSpec) -> Option<u64> {
    let resources = spec.domain.resources.as_ref();
    let given = |quantity: Option<&Quantity>| {
        quantity.and_then(|q| quantity::bytes(q).ok()).filter(|bytes| *bytes > 0)
    };
    given(spec.domain.memory.as_ref().and_then(|memory| memory.guest.as_ref()))
        .or_else(|| given(resources.and_then(|resources| resources.request("memory"))))
        .or_else(|| given(resources.and_then(|resources| resources.limit("memory"))))
        .map(whole_mib)
}

/// The most memory that the guest may ever have, in bytes and whole MiB: `maxGuest` if it can grow. `None` if
/// the specification gives no memory that can be read.
pub fn most_guest_memory_bytes(spec: &VirtualMachineInstanceSpec) -> Option<u64> {
    let most = spec.domain.memory.as_ref().and_then(|memory| memory.max_guest.as_ref());
    let most = most.and_then(|most| quantity::bytes(most).ok()).map(whole_mib);
    guest_memory_bytes(spec).map(|bytes| most.unwrap_or(0).max(bytes))
}

/// Bytes rounded up to whole MiB. Amounts of guest memory are compared in this form, because QEMU gets whole
/// MiB.
pub fn whole_mib(bytes: u64) -> u64 {
    bytes.div_ceil(MIB).saturating_mul(MIB)
}

/// Changes the memory that was given for the pod by the same number of bytes as the guest's memory. Values
/// that cannot be read or are not given stay.
pub fn move_given_memory(resources: &mut crate::v1::ResourceRequirements, before: u64, after: u64) {
    for given in [&mut resources.requests, &mut resources.limits].into_iter().flatten() {
        if let Some(amount) = given.get_mut("memory")
            && let Ok(bytes @ 1..) = quantity::bytes(amount)
        {
            *amount = quantity::from_bytes(bytes.saturating_add(after).saturating_sub(before));
        }
    }
}

/// Memory that the launcher and QEMU need beyond the guest's.
pub fn overhead_bytes(vmi: &ValidVmi, settings: &Settings) -> u64 {
    let sum = overhead_parts(vmi, settings).into_iter().map(|(_, bytes)| bytes).sum();
    whole_mib(settings.pods.overhead.times(sum))
}

/// The parts of that sum, before it is multiplied and rounded up, by their names in the table above; only
/// those that apply to this instance.
pub fn overhead_parts(vmi: &ValidVmi, settings: &Settings) -> Vec<(&'static str, u64)> {
    let guest = vmi.guest_memory();
    let devices = &vmi.spec().domain.devices;
    let probes = [&vmi.spec().readiness_probe, &vmi.spec().liveness_probe];
    let by_agent = probes.into_iter().flatten().filter(|probe| probe.is_by_agent()).count();
    let where_it_is = |is_there: bool, bytes: u64| if is_there { bytes } else { 0 };
    let host_devices = match vmi.passed_through() as u64 {
        0 => 0,
        count => HOST_DEVICE_BYTES * count + vmi.max_guest_memory().unwrap_or(guest) / 512,
    };
    let parts = [
        ("launcher", LAUNCHER_BYTES),
        ("QEMU", QEMU_BYTES),
        // A pod grows with its guest: CPUs that are not plugged in have no threads.
        ("virtual CPUs", VCPU_BYTES * u64::from(vmi.topology().vcpus())),
        ("page tables", guest / 512),
        ("memory file", guest / 448),
        ("room to grow", vmi.max_guest_memory().unwrap_or(guest).saturating_sub(guest) / 8192),
        ("screen", where_it_is(devices.autoattach_graphics_device.unwrap_or(true), GRAPHICS_BYTES)),
        ("disks", DISK_BYTES * devices.disks.len() as u64),
        ("probes", PROBE_BYTES * by_agent as u64),
        ("UEFI", where_it_is(firmware::efi(vmi.spec()).is_some(), UEFI_BYTES)),
        ("kernel boot", where_it_is(firmware::kernel_boot(vmi.spec()).is_some(), KERNEL_BYTES)),
        ("TPM", where_it_is(firmware::tpm(vmi.spec()), TPM_BYTES)),
        ("devices of the node", host_devices),
        ("network binding plugins", settings.bindings.memory(vmi.spec())),
        ("emulation", where_it_is(settings.use_emulation, TCG_BUFFER_BYTES + guest / 64)),
    ];
    parts.into_iter().filter(|(_, bytes)| *bytes > 0).collect()
}

/// Requests and limits of the `compute` container.
///
/// CPU: the given request, else virtual CPUs divided by the allocation ratio. Memory: the given request, else
/// the guest's memory divided by the overcommit; the overhead is added to the request (unless
/// `overcommitGuestOverhead`) and to a given limit. A limit is only set if one is given, with two exceptions:
/// one CPU for each virtual CPU if the settings ask for a limit (see `Pods::cpu_limit`: the code that builds
/// a pod removes it if the namespace is not selected), and limits that a quota of the namespace requires (see
/// `Pods::quota`).
///
/// With dedicated CPUs the container has whole CPUs, and for CPU and memory the request is the limit: the
/// kubelet's CPU manager requires both. Neither the guest's memory nor the overhead is overcommitted then,
/// because the container cannot use more than its request.
pub fn pod_resources(vmi: &ValidVmi, settings: &Settings) -> ResourceRequirements {
    let given = vmi.spec().domain.resources.clone().unwrap_or_default();
    let overhead = overhead_bytes(vmi, settings);
    let mut requests: BTreeMap<String, Quantity> = given.requests.clone().unwrap_or_default();
    let mut limits: BTreeMap<String, Quantity> = given.limits.clone().unwrap_or_default();

    let positive = |quantity: Option<&Quantity>| {
        quantity.and_then(|q| quantity::bytes(q).ok()).filter(|bytes| *bytes > 0)
    };
    let dedicated = DedicatedCpus::of(vmi);
    let overcommit = if dedicated.is_some() { 100 } else { settings.memory_overcommit.max(1) };
    let without_overcommit = u128::from(vmi.guest_memory()) * 100 / u128::from(overcommit);
    // Huge pages are a separate resource and not part of the pod's memory.
    let in_pages = huge_pages(vmi).map_or(0, |_| vmi.guest_memory());
    let limit = positive(given.limit("memory")).filter(|_| dedicated.is_some());
    let request = positive(given.request("memory"))
        .or(limit)
        .unwrap_or_else(|| u64::try_from(without_overcommit).unwrap_or(u64::MAX))
        .saturating_sub(in_pages);
    let without = given.overcommit_guest_overhead == Some(true) && dedicated.is_none();
    let added = if without { 0 } else { overhead };
    requests.insert("memory".to_owned(), bounded(request.saturating_add(added)));
    match positive(given.limit("memory")) {
        Some(limit) => {
            let limit = limit.saturating_sub(in_pages).saturating_add(overhead);
            limits.insert("memory".to_owned(), bounded(limit))
        }
        None => match settings.pods.quota.memory {
            Some(factor) => {
                limits.insert("memory".to_owned(), bounded(factor.times(request.saturating_add(added))))
            }
            None => limits.remove("memory"),
        },
    };

    if let Some(pages) = huge_pages(vmi) {
        for list in [&mut requests, &mut limits] {
            list.insert(format!("hugepages-{pages}"), bounded(in_pages));
        }
    }

    if let Some(cpus) = dedicated {
        for list in [&mut requests, &mut limits] {
            list.insert("cpu".to_owned(), Quantity(cpus.all().to_string()));
        }
        limits.extend(requests.get("memory").map(|memory| ("memory".to_owned(), memory.clone())));
        return ResourceRequirements { requests: Some(requests), limits: Some(limits), claims: None };
    }
    let cpus = u64::from(vmi.topology().vcpus()) + u64::from(supplemental_io_threads(&vmi.spec().domain));
    if positive(given.request("cpu")).is_none() {
        let ratio = u64::from(settings.cpu_allocation_ratio.max(1));
        let millis = (cpus * 1000).div_ceil(ratio);
        requests.insert("cpu".to_owned(), quantity::from_millis(millis));
    }
    if positive(given.limit("cpu")).is_none() {
        limits.remove("cpu");
        if settings.pods.cpu_limit.is_some() || settings.pods.quota.cpu {
            // Never below the request.
            let request = requests.get("cpu").and_then(|request| quantity::millis(request).ok()).unwrap_or(0);
            let limit = (cpus * 1000).max(request);
            limits.insert("cpu".to_owned(), quantity::from_millis(limit));
        }
    }
    ResourceRequirements {
        requests: Some(requests),
        limits: (!limits.is_empty()).then_some(limits),
        ..Default::default()
    }
}

/// Page size in the specification, if the guest's memory consists of huge pages.
fn huge_pages(vmi: &ValidVmi) -> Option<&str> {
    let pages = vmi.spec().domain.memory.as_ref()?.hugepages.as_ref()?;
    pages.page_size.as_deref()
}

/// Kubernetes holds quantities in signed 64-bit numbers.
fn bounded(bytes: u64) -> Quantity {
    quantity::from_bytes(bytes.min(i64::MAX.unsigned_abs()))
}

#[cfg(test)]
mod tests;
