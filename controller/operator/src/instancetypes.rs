//! Cluster-wide instance types and preferences of the installation. Names and sizes are KubeVirt's, so that a manifest with
//! one of its common names gets a machine of the same size; everything else is ours.
//!
//! Preferences for Linux ask only for features that are served: they boot with BIOS, where some of KubeVirt's prefer UEFI.
//! Preferences for Windows ask for what Windows needs; a machine with one is refused, and the message names what is missing.
//! The same holds for series with dedicated CPUs and huge pages: they can be used once nodes offer these.

use serde_json::{Value, json};

const VERSION: &str = "instancetype.kubevirt.io/v1beta1";
const VENDOR: &str = "barevirt.dev";

pub(crate) fn objects() -> Vec<Value> {
    SERIES
        .iter()
        .flat_map(|series| series.sizes.iter().map(move |size| instancetype(series, size)))
        .chain(LINUX.iter().map(linux))
        .chain(WINDOWS.iter().map(windows))
        .collect()
}

/// Instance types of one use.
struct Series {
    name: &'static str,
    class: &'static str,
    display: &'static str,
    description: &'static str,
    /// Every vCPU has a dedicated host CPU.
    dedicated: bool,
    /// The guest sees the NUMA nodes of its CPUs.
    numa: bool,
    realtime: bool,
    /// No sockets can be added later, since each needs a host CPU.
    fixed: bool,
    shares_io_threads: bool,
    overcommit: Option<i32>,
    sizes: &'static [Size],
}

struct Size {
    name: &'static str,
    cpu: u32,
    memory: &'static str,
    hugepages: Option<&'static str>,
}

const fn size(name: &'static str, cpu: u32, memory: &'static str) -> Size {
    Size { name, cpu, memory, hugepages: None }
}

const fn huge(name: &'static str, cpu: u32, memory: &'static str, hugepages: &'static str) -> Size {
    Size { name, cpu, memory, hugepages: Some(hugepages) }
}

const PLAIN: Series = Series {
    name: "u1",
    class: "general.purpose",
    display: "General Purpose",
    description: "For anything: 4 GiB of memory for each vCPU from medium on. Machines share the CPUs of their node.",
    dedicated: false,
    numa: false,
    realtime: false,
    fixed: false,
    shares_io_threads: false,
    overcommit: None,
    sizes: &[
        size("nano", 1, "512Mi"),
        size("micro", 1, "1Gi"),
        size("small", 1, "2Gi"),
        size("medium", 1, "4Gi"),
        size("2xmedium", 2, "4Gi"),
        size("large", 2, "8Gi"),
        size("xlarge", 4, "16Gi"),
        size("2xlarge", 8, "32Gi"),
        size("4xlarge", 16, "64Gi"),
        size("8xlarge", 32, "128Gi"),
    ],
};

const SERIES: &[Series] = &[
    PLAIN,
    Series {
        name: "o1",
        class: "overcommitted",
        display: "Overcommitted",
        description: "As u1, but the pod asks for half of the guest's memory only: more machines on a node, and some of them \
            are ended when all use what they have.",
        overcommit: Some(50),
        sizes: &[
            size("nano", 1, "512Mi"),
            size("micro", 1, "1Gi"),
            size("small", 1, "2Gi"),
            size("medium", 1, "4Gi"),
            size("large", 2, "8Gi"),
            size("xlarge", 4, "16Gi"),
            size("2xlarge", 8, "32Gi"),
            size("4xlarge", 16, "64Gi"),
            size("8xlarge", 32, "128Gi"),
        ],
        ..PLAIN
    },
    Series {
        name: "d1",
        class: "dedicated",
        display: "Dedicated",
        description: "As u1, with a host CPU for each vCPU and one more for QEMU's own threads.",
        dedicated: true,
        shares_io_threads: true,
        ..PLAIN
    },
    Series {
        name: "cx1",
        class: "compute.exclusive",
        display: "Compute Exclusive",
        description: "For computing: 2 GiB for each vCPU in huge pages, host CPUs of its own, and their NUMA nodes seen by the \
            guest.",
        dedicated: true,
        numa: true,
        fixed: true,
        shares_io_threads: true,
        sizes: &[
            huge("medium", 1, "2Gi", "2Mi"),
            huge("large", 2, "4Gi", "2Mi"),
            huge("xlarge", 4, "8Gi", "2Mi"),
            huge("2xlarge", 8, "16Gi", "2Mi"),
            huge("4xlarge", 16, "32Gi", "2Mi"),
            huge("8xlarge", 32, "64Gi", "2Mi"),
            huge("medium1gi", 1, "2Gi", "1Gi"),
            huge("large1gi", 2, "4Gi", "1Gi"),
            huge("xlarge1gi", 4, "8Gi", "1Gi"),
            huge("2xlarge1gi", 8, "16Gi", "1Gi"),
            huge("4xlarge1gi", 16, "32Gi", "1Gi"),
            huge("8xlarge1gi", 32, "64Gi", "1Gi"),
        ],
        ..PLAIN
    },
    Series {
        name: "m1",
        class: "memory.intensive",
        display: "Memory Intensive",
        description: "For much memory: 8 GiB for each vCPU, in huge pages.",
        sizes: &[
            huge("large", 2, "16Gi", "2Mi"),
            huge("xlarge", 4, "32Gi", "2Mi"),
            huge("2xlarge", 8, "64Gi", "2Mi"),
            huge("4xlarge", 16, "128Gi", "2Mi"),
            huge("8xlarge", 32, "256Gi", "2Mi"),
            huge("large1gi", 2, "16Gi", "1Gi"),
            huge("xlarge1gi", 4, "32Gi", "1Gi"),
            huge("2xlarge1gi", 8, "64Gi", "1Gi"),
            huge("4xlarge1gi", 16, "128Gi", "1Gi"),
            huge("8xlarge1gi", 32, "256Gi", "1Gi"),
        ],
        ..PLAIN
    },
    Series {
        name: "n1",
        class: "network",
        display: "Network",
        description: "For network functions such as DPDK: host CPUs of its own, memory in huge pages of 1 GiB.",
        dedicated: true,
        sizes: &[
            huge("medium", 4, "4Gi", "1Gi"),
            huge("large", 4, "8Gi", "1Gi"),
            huge("xlarge", 8, "16Gi", "1Gi"),
            huge("2xlarge", 16, "32Gi", "1Gi"),
            huge("4xlarge", 32, "64Gi", "1Gi"),
            huge("8xlarge", 64, "128Gi", "1Gi"),
        ],
        ..PLAIN
    },
    Series {
        name: "rt1",
        class: "realtime",
        display: "Realtime",
        description: "For real time: vCPUs under the real-time scheduler on host CPUs of their own, memory in huge pages of \
            1 GiB.",
        dedicated: true,
        numa: true,
        realtime: true,
        sizes: &[
            huge("micro", 1, "1Gi", "1Gi"),
            huge("small", 1, "2Gi", "1Gi"),
            huge("medium", 1, "4Gi", "1Gi"),
            huge("large", 2, "8Gi", "1Gi"),
            huge("xlarge", 4, "16Gi", "1Gi"),
            huge("2xlarge", 8, "32Gi", "1Gi"),
            huge("4xlarge", 16, "64Gi", "1Gi"),
            huge("8xlarge", 32, "128Gi", "1Gi"),
        ],
        ..PLAIN
    },
];

fn instancetype(series: &Series, size: &Size) -> Value {
    let mut labels = vec![
        ("class", series.class.to_owned()),
        ("cpu", size.cpu.to_string()),
        ("memory", size.memory.to_owned()),
        ("size", size.name.to_owned()),
        ("version", "1".to_owned()),
    ];
    let mut cpu = json!({"guest": size.cpu});
    let mut memory = json!({"guest": size.memory});
    if series.dedicated {
        cpu["dedicatedCPUPlacement"] = json!(true);
        cpu["isolateEmulatorThread"] = json!(true);
        labels.push(("dedicatedCPUPlacement", "true".to_owned()));
        labels.push(("isolateEmulatorThread", "true".to_owned()));
    }
    if series.numa {
        cpu["numa"] = json!({"guestMappingPassthrough": {}});
        labels.push(("numa", "true".to_owned()));
    }
    if series.realtime {
        cpu["realtime"] = json!({});
        labels.push(("realtime", "true".to_owned()));
    }
    if series.fixed {
        cpu["maxSockets"] = json!(size.cpu);
    }
    if let Some(page) = size.hugepages {
        memory["hugepages"] = json!({"pageSize": page});
        labels.push(("hugepages", page.to_owned()));
    }
    if let Some(percent) = series.overcommit {
        memory["overcommitPercent"] = json!(percent);
    }
    let mut spec = json!({"cpu": cpu, "memory": memory});
    if series.shares_io_threads {
        spec["ioThreadsPolicy"] = json!("auto");
    }
    let name = format!("{}.{}", series.name, size.name);
    object(
        "VirtualMachineClusterInstancetype",
        &name,
        series.display,
        Some(series.description),
        &labels,
        spec,
    )
}

/// The requirements of a guest, and its display name.
struct Guest {
    name: &'static str,
    display: &'static str,
    cpu: u32,
    memory: &'static str,
    /// Whether it exists only for amd64 under this name.
    amd64_only: bool,
    /// Whether it keeps secrets in a TPM and in the firmware's variables.
    tpm: bool,
}

const fn guest(name: &'static str, display: &'static str, memory: &'static str) -> Guest {
    Guest { name, display, cpu: 1, memory, amd64_only: false, tpm: false }
}

const LINUX: &[Guest] = &[
    guest("alpine", "Alpine", "512Mi"),
    guest("centos.stream10", "CentOS Stream 10", "1.5Gi"),
    guest("centos.stream9", "CentOS Stream 9", "1.5Gi"),
    guest("debian", "Debian", "512Mi"),
    Guest { amd64_only: true, ..guest("fedora", "Fedora", "2Gi") },
    guest("opensuse.leap", "openSUSE Leap", "2Gi"),
    guest("opensuse.tumbleweed", "openSUSE Tumbleweed", "2Gi"),
    Guest { amd64_only: true, ..guest("rhel.10", "Red Hat Enterprise Linux 10", "1.5Gi") },
    Guest { amd64_only: true, ..guest("rhel.9", "Red Hat Enterprise Linux 9", "1.5Gi") },
    guest("ubuntu", "Ubuntu", "2Gi"),
];

const WINDOWS: &[Guest] = &[
    guest("windows.10", "Microsoft Windows 10", "2Gi"),
    Guest { cpu: 2, tpm: true, ..guest("windows.11", "Microsoft Windows 11", "4Gi") },
    guest("windows.2k19", "Microsoft Windows Server 2019", "2Gi"),
    Guest { tpm: true, ..guest("windows.2k22", "Microsoft Windows Server 2022", "2Gi") },
    Guest { tpm: true, ..guest("windows.2k25", "Microsoft Windows Server 2025", "2Gi") },
];

fn linux(guest: &Guest) -> Value {
    let spec = json!({
        "annotations": {"vm.kubevirt.io/os": "linux"},
        "devices": {"preferredDiskBus": "virtio", "preferredInterfaceModel": "virtio", "preferredRng": {}},
    });
    preference(guest, "linux", spec)
}

fn windows(guest: &Guest) -> Value {
    let mut spec = json!({
        "annotations": {"vm.kubevirt.io/os": "windows"},
        "clock": {
            "preferredClockOffset": {"utc": {}},
            "preferredTimer": {
                "hpet": {"present": false}, "hyperv": {}, "pit": {"tickPolicy": "delay"},
                "rtc": {"tickPolicy": "catchup"},
            },
        },
        "cpu": {"preferredCPUTopology": "sockets"},
        // Devices that Windows has drivers for from the start.
        "devices": {
            "preferredAutoattachInputDevice": true, "preferredDiskBus": "sata", "preferredInterfaceModel": "e1000e",
        },
        "features": {
            "preferredAcpi": {}, "preferredApic": {}, "preferredSmm": {},
            "preferredHyperv": {
                "frequencies": {}, "ipi": {}, "reenlightenment": {}, "relaxed": {}, "reset": {}, "runtime": {},
                "spinlocks": {"spinlocks": 8191}, "synic": {}, "synictimer": {"direct": {}}, "tlbflush": {},
                "vapic": {}, "vpindex": {},
            },
        },
        "firmware": {"preferredEfi": {"secureBoot": true}},
        // Windows installs updates while it shuts down.
        "preferredTerminationGracePeriodSeconds": 3600,
    });
    if guest.tpm {
        spec["devices"]["preferredTPM"] = json!({"persistent": true});
        spec["firmware"]["preferredEfi"]["persistent"] = json!(true);
    }
    preference(guest, "windows", spec)
}

fn preference(guest: &Guest, os: &str, mut spec: Value) -> Value {
    let mut labels = vec![
        ("os-type", os.to_owned()),
        ("required-cpu", guest.cpu.to_string()),
        ("required-memory", guest.memory.to_owned()),
    ];
    spec["requirements"] = json!({"cpu": {"guest": guest.cpu}, "memory": {"guest": guest.memory}});
    if guest.amd64_only {
        spec["preferredArchitecture"] = json!("amd64");
        spec["requirements"]["architecture"] = json!("amd64");
        labels.push(("preferred-architecture", "amd64".to_owned()));
        labels.push(("required-architecture", "amd64".to_owned()));
    }
    object("VirtualMachineClusterPreference", guest.name, guest.display, None, &labels, spec)
}

fn object(
    kind: &str,
    name: &str,
    display: &str,
    description: Option<&str>,
    labels: &[(&str, String)],
    spec: Value,
) -> Value {
    let mut metadata = crate::objects::metadata(name, "");
    metadata["labels"]["instancetype.kubevirt.io/vendor"] = json!(VENDOR);
    for (label, value) in labels {
        metadata["labels"][format!("instancetype.kubevirt.io/{label}")] = json!(value);
    }
    metadata["annotations"]["instancetype.kubevirt.io/displayName"] = json!(display);
    if let Some(description) = description {
        metadata["annotations"]["instancetype.kubevirt.io/description"] = json!(description);
    }
    json!({"apiVersion": VERSION, "kind": kind, "metadata": metadata, "spec": spec})
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use barevirt_api::gates::Gates;
    use barevirt_api::instancetype::expand::{self, Lookup, Lookups};
    use barevirt_api::instancetype::matcher::Family;
    use barevirt_api::settings::GuestDefaults;
    use barevirt_api::v1::VirtualMachine;
    use barevirt_api::validate::{self, Cause, Requester};
    use barevirt_api::{defaults, instancetype::revision};
    use serde::de::DeserializeOwned;
    use std::collections::BTreeMap;

    fn lookup<T: DeserializeOwned>(vm: &VirtualMachine, family: Family) -> Lookup<T> {
        let Some(matcher) = family.matcher(vm) else { return Lookup::None };
        let kind = family.object_kind(matcher.scope().unwrap());
        let object = objects()
            .into_iter()
            .find(|object| object["kind"] == kind && object["metadata"]["name"].as_str() == matcher.name)
            .unwrap_or_else(|| panic!("no {kind} {:?}", matcher.name));
        Lookup::Found(revision::object(family, &object).unwrap())
    }

    /// Admission's causes for a machine that uses what is installed.
    pub(crate) fn causes(mut vm: VirtualMachine) -> Vec<Cause> {
        let lookups = Lookups {
            instancetype: lookup(&vm, Family::Instancetype),
            preference: lookup(&vm, Family::Preference),
        };
        expand::prefer(&mut vm, &lookups);
        defaults::admit_vm(&mut vm, &GuestDefaults::default());
        match expand::admit(None, vm, &lookups, GuestDefaults::default().binding) {
            Ok(vm) => validate::vm(&vm, Requester::User, &Gates::default()),
            Err(causes) => causes,
        }
    }

    fn names(kind: &str) -> Vec<String> {
        let of_kind = objects().into_iter().filter(|object| object["kind"] == kind);
        of_kind.map(|object| object["metadata"]["name"].as_str().unwrap().to_owned()).collect()
    }

    fn machine(instancetype: &str, preference: &str) -> VirtualMachine {
        serde_json::from_value(json!({
            "metadata": {"name": "vm", "namespace": "ns"},
            "spec": {
                "runStrategy": "Always",
                "instancetype": {"name": instancetype}, "preference": {"name": preference},
                "template": {"spec": {
                    "domain": {"devices": {}},
                    "volumes": [{"name": "disk", "containerDisk": {"image": "registry.example/disk:1"}}],
                }},
            },
        }))
        .unwrap()
    }

    #[test]
    fn each_is_what_admission_accepts() {
        for object in objects() {
            let causes = match object["kind"].as_str().unwrap() {
                "VirtualMachineClusterInstancetype" => validate::kinds::instancetype::validate(
                    &revision::object(Family::Instancetype, &object).unwrap(),
                ),
                _ => validate::kinds::preference::validate(
                    &revision::object(Family::Preference, &object).unwrap(),
                ),
            };
            assert_eq!(causes, [], "{}", object["metadata"]["name"]);
        }
    }

    #[test]
    fn linux_runs_on_general_purpose_machines_that_are_big_enough() {
        for preference in ["alpine", "debian", "ubuntu", "fedora"] {
            for size in ["small", "medium", "2xmedium", "large", "xlarge", "2xlarge", "4xlarge", "8xlarge"] {
                let instancetype = format!("u1.{size}");
                assert_eq!(causes(machine(&instancetype, preference)), [], "{instancetype} {preference}");
            }
        }
        assert_eq!(causes(machine("u1.nano", "alpine")), []);
        assert_eq!(causes(machine("u1.nano", "debian")), []);
    }

    /// What is missing or wrong, on one line.
    fn reason(causes: &[Cause]) -> String {
        let missing: Vec<&str> =
            causes.iter().filter_map(|cause| cause.message.strip_suffix(" is not supported yet")).collect();
        if missing.len() < causes.len() {
            return causes.iter().map(ToString::to_string).collect::<Vec<_>>().join("; ");
        }
        let fields: Vec<&str> =
            missing.iter().map(|field| field.trim_start_matches("spec.template.spec.domain.")).collect();
        if fields.is_empty() { "works".to_owned() } else { format!("not yet: {}", fields.join(" ")) }
    }

    /// For each preference, the instance types that are refused and the reason. A new feature makes this list shorter.
    #[test]
    fn preferences_and_instance_types_that_fit() {
        let mut text = String::new();
        for preference in names("VirtualMachineClusterPreference") {
            let mut by_reason: BTreeMap<String, Vec<String>> = BTreeMap::new();
            for instancetype in names("VirtualMachineClusterInstancetype") {
                let reason = reason(&causes(machine(&instancetype, &preference)));
                by_reason.entry(reason).or_default().push(instancetype);
            }
            text.push_str(&format!("{preference}\n"));
            for (reason, instancetypes) in by_reason {
                text.push_str(&format!("  {reason}\n    {}\n", instancetypes.join(" ")));
            }
        }
        insta::assert_snapshot!("pairs", text);
    }
}
