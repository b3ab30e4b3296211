//! The pod that brings a volume's claim to the node of a running guest. Building it is pure and cannot fail.
//!
//! ```text
//!   hotplug-disk   opens the disk on the claim, and offers its descriptor to the node's handler
//!
//!   emptyDir sockets   where it offers the descriptor   (the handler finds it beneath the kubelet's directory)
//!   claim    disk      mounted if it is a file system, otherwise a device
//! ```
//!
//! Nothing of the claim is mounted into the launcher's pod: the launcher gets a descriptor. Kubernetes admits this pod by
//! the same rules as any other. There is one pod for each volume: a pod that waits for its claim does not delay other
//! volumes, and no pod is replaced because another volume comes or goes.

use super::claims::{self, Mode};
use super::disks;
use super::parts::{SOCKETS_SIZE, empty_dir, mount, pod_security, pull_secrets, some, unprivileged};
use super::target::source_kernel;
use crate::config::Config;
use crate::generated;
use crate::owner::owner;
use barevirt_api::names::{
    APP_HOTPLUG_DISK, APP_LABEL, CLAIM_ANNOTATION, CLAIM_DEVICES, CLAIMS, DISKS_OF_LABEL, DOMAIN_ANNOTATION,
    MIGRATION_JOB_LABEL, VOLUME_ANNOTATION,
};
use barevirt_api::v1::{Disk, VirtualMachineInstance, VirtualMachineInstanceSpec, VolumeClaim};
use barevirt_api::valid::ValidVmi;
use k8s_openapi::api::core::v1::{
    Affinity, Container, NodeAffinity, NodeSelector, NodeSelectorRequirement, NodeSelectorTerm,
    PersistentVolumeClaimVolumeSource, Pod, PodSpec, Toleration, Volume, VolumeDevice, VolumeMount,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::ResourceExt;

/// Volumes of the pod. The handler looks for the first.
const SOCKETS: &str = "sockets";
const DISK: &str = "disk";
/// How the pod's name begins.
pub(super) const PREFIX: &str = "hp-volume-";
/// Longest part of a volume's name in its pod's name.
const SHOWN: usize = 42;

/// Taints that do not keep the pod from its node, since the guest is there already. The same as KubeVirt's.
const TOLERATED: [&str; 5] = [
    "node.kubernetes.io/unschedulable",
    "node.kubernetes.io/network-unavailable",
    "node.kubernetes.io/disk-pressure",
    "node.kubernetes.io/memory-pressure",
    "node.kubernetes.io/pid-pressure",
];

/// A volume that is to be brought to its guest's node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Wanted<'a> {
    /// Its name.
    pub volume: &'a str,
    /// Its claim.
    pub claim: VolumeClaim<'a>,
    /// How containers see the claim.
    pub mode: Mode,
    /// Size of a new disk in bytes, where it is known.
    pub size: Option<u64>,
    /// Whether a new disk must have all of this size: the contents of another one are copied to it.
    pub exact: bool,
    /// How its disk is opened.
    pub access: Access,
}

/// How the disk of a volume is opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// The guest writes to it, and no other guest has it.
    Writes,
    /// The guest writes to it, and so may others that share it.
    Shares,
    /// The guest only reads it, and no guest that does not share it writes to it.
    Reads,
}

impl Access {
    /// All of them.
    pub const ALL: [Access; 3] = [Access::Writes, Access::Shares, Access::Reads];

    /// By the volume's claim and the guest's drive.
    #[must_use]
    pub fn of(spec: &VirtualMachineInstanceSpec, volume: &str, claim: VolumeClaim<'_>) -> Self {
        let disk = spec.domain.devices.disks.iter().find(|disk| disk.name == volume);
        if claim.is_read_only || claim.is_ephemeral || disk.is_some_and(Disk::is_readonly) {
            Access::Reads
        } else if disk.is_some_and(|disk| disk.shareable == Some(true)) {
            Access::Shares
        } else {
            Access::Writes
        }
    }

    /// The argument of the pod's program.
    fn argument(self) -> Option<&'static str> {
        match self {
            Access::Writes => None,
            Access::Shares => Some("--shareable"),
            Access::Reads => Some("--read-only"),
        }
    }

    /// The part of the seed of a pod's name.
    fn seed(self) -> &'static str {
        match self {
            Access::Writes => "",
            Access::Shares => "/shares",
            Access::Reads => "/reads",
        }
    }
}

/// The name of a volume's pod. It is derived from the instance, the volume, its claim and the launcher, so there cannot be
/// two such pods. Volumes of many instances have the same name, so the derived part is longer than in a launcher's name.
/// `target`: name of the launcher, where a migration made it.
pub fn name(vmi_uid: &str, volume: &str, claim: &str, access: Access, target: Option<&str>) -> String {
    // A disk that is opened in another way needs another pod.
    let mut seed = format!("{vmi_uid}/{volume}/{claim}{}", access.seed());
    if let Some(target) = target {
        seed.extend(["/at/", target]);
    }
    let shown: String = volume.chars().take(SHOWN).collect();
    let half = generated::name("", &seed);
    generated::name(&format!("{PREFIX}{shown}-{half}"), &format!("{half}/{seed}"))
}

/// The name of an instance's launcher, if a migration made it.
pub fn target<'a>(vmi: &VirtualMachineInstance, launcher: &'a str) -> Option<&'a str> {
    let first = super::name(&vmi.name_any(), vmi.metadata.uid.as_deref().unwrap_or_default());
    (launcher != first).then_some(launcher)
}

/// Builds the pod. The launcher's pod owns it, and it runs on the same node.
pub fn build(vmi: &ValidVmi, wanted: &Wanted<'_>, launcher: &Pod, config: &Config) -> Pod {
    let spec = launcher.spec.as_ref();
    let node = spec.and_then(|spec| spec.node_name.as_deref()).unwrap_or_default();
    let tolerations = spec.and_then(|spec| spec.tolerations.clone()).unwrap_or_default();
    let read_only = wanted.claim.is_read_only.then_some(true);
    let source = PersistentVolumeClaimVolumeSource { claim_name: wanted.claim.name.to_owned(), read_only };
    Pod {
        metadata: metadata(vmi, wanted, launcher),
        spec: Some(PodSpec {
            automount_service_account_token: Some(false),
            enable_service_links: Some(false),
            // With zero seconds the object would go before the kubelet has released the claim.
            termination_grace_period_seconds: Some(1),
            security_context: Some(pod_security(config)),
            affinity: Some(on_node(node)),
            tolerations: Some(with_tolerated(tolerations)),
            priority_class_name: vmi.spec().priority_class_name.clone(),
            image_pull_secrets: some(&pull_secrets(vec![], config)),
            containers: vec![container(wanted, launcher, config)],
            volumes: Some(vec![
                empty_dir(SOCKETS, SOCKETS_SIZE),
                Volume { name: DISK.to_owned(), persistent_volume_claim: Some(source), ..Volume::default() },
            ]),
            ..PodSpec::default()
        }),
        status: None,
    }
}

/// It has no label by which services or users select guests, or clients the launcher: the pod would be taken for it.
fn metadata(vmi: &ValidVmi, wanted: &Wanted<'_>, launcher: &Pod) -> ObjectMeta {
    let labels = [(APP_LABEL, APP_HOTPLUG_DISK), (DISKS_OF_LABEL, vmi.uid())];
    let annotations = [
        (DOMAIN_ANNOTATION, vmi.name()),
        (VOLUME_ANNOTATION, wanted.volume),
        (CLAIM_ANNOTATION, wanted.claim.name),
    ];
    let owned = |(key, value): (&str, &str)| (key.to_owned(), value.to_owned());
    let own = launcher.name_any();
    let target = launcher.labels().contains_key(MIGRATION_JOB_LABEL).then_some(own.as_str());
    ObjectMeta {
        name: Some(name(vmi.uid(), wanted.volume, wanted.claim.name, wanted.access, target)),
        namespace: Some(vmi.namespace().to_owned()),
        labels: Some(labels.map(owned).into()),
        annotations: Some(annotations.map(owned).into()),
        owner_references: Some(vec![owner(launcher)]),
        ..ObjectMeta::default()
    }
}

fn container(wanted: &Wanted<'_>, launcher: &Pod, config: &Config) -> Container {
    let mut args = vec!["--volume".to_owned(), wanted.volume.to_owned()];
    args.extend(wanted.access.argument().map(str::to_owned));
    if let Some(size) = wanted.size {
        args.extend(["--size".to_owned(), size.to_string()]);
    }
    let mut room = config.settings.pods.room;
    if wanted.exact {
        room.tolerated_percent = 0;
    }
    args.extend(claims::room_args(&room));
    if let (Mode::Block, Some(kernel)) = (wanted.mode, source_kernel(launcher)) {
        args.extend(kernel);
    }
    let mut mounts = vec![mount(SOCKETS, "/var/run/kubevirt/sockets")];
    let mut devices = vec![];
    match wanted.mode {
        Mode::Filesystem => mounts.push(VolumeMount {
            read_only: wanted.claim.is_read_only.then_some(true),
            ..mount(DISK, &format!("{CLAIMS}/{}", wanted.volume))
        }),
        Mode::Block => devices.push(VolumeDevice {
            name: DISK.to_owned(),
            device_path: format!("{CLAIM_DEVICES}/{}", wanted.volume),
        }),
    }
    Container {
        name: APP_HOTPLUG_DISK.to_owned(),
        image: Some(config.launcher_image.clone()),
        image_pull_policy: config.pull_policy().map(str::to_owned),
        command: Some(vec!["/usr/bin/virt-launcher".to_owned(), "volume".to_owned()]),
        args: Some(args),
        resources: Some(disks::helper_resources(
            &config.settings.pods.hotplug_disk,
            ["10m", "2M"],
            ["100m", "80M"],
        )),
        security_context: Some(unprivileged()),
        volume_mounts: Some(mounts),
        volume_devices: some(&devices),
        ..Container::default()
    }
}

/// Not `nodeName`: the scheduler binds claims that wait for their first consumer.
fn on_node(node: &str) -> Affinity {
    let is_it = NodeSelectorRequirement {
        key: "metadata.name".to_owned(),
        operator: "In".to_owned(),
        values: Some(vec![node.to_owned()]),
    };
    let term = NodeSelectorTerm { match_fields: Some(vec![is_it]), ..NodeSelectorTerm::default() };
    Affinity {
        node_affinity: Some(NodeAffinity {
            required_during_scheduling_ignored_during_execution: Some(NodeSelector {
                node_selector_terms: vec![term],
            }),
            ..NodeAffinity::default()
        }),
        ..Affinity::default()
    }
}

fn with_tolerated(mut tolerations: Vec<Toleration>) -> Vec<Toleration> {
    for key in TOLERATED {
        let toleration = Toleration {
            key: Some(key.to_owned()),
            operator: Some("Exists".to_owned()),
            effect: Some("NoSchedule".to_owned()),
            ..Toleration::default()
        };
        if !tolerations.contains(&toleration) {
            tolerations.push(toleration);
        }
    }
    tolerations
}

#[cfg(test)]
mod tests {
    use super::*;
    use barevirt_api::settings::Settings;
    use serde_json::{Value, json};

    const UID: &str = "4f2a9bd2-5a0c-4d7e-9d4e-0c6b1a2f3e4d";

    fn valid(volume: &Value, disk: &Value) -> ValidVmi {
        let vmi = json!({
            "metadata": {"name": "testvm", "namespace": "ns", "uid": UID, "labels": {"app": "web"}},
            "spec": {
                "domain": {"memory": {"guest": "64Mi"}, "devices": {"disks": [disk]}},
                "volumes": [volume], "priorityClassName": "high",
            },
        });
        ValidVmi::new(serde_json::from_value(vmi).unwrap()).unwrap_or_else(|causes| panic!("{causes:?}"))
    }

    fn pod(volume: &Value, disk: &Value, mode: Mode, size: Option<u64>) -> Pod {
        pod_by(Settings::default(), volume, disk, mode, size)
    }

    fn pod_by(settings: Settings, volume: &Value, disk: &Value, mode: Mode, size: Option<u64>) -> Pod {
        let config = Config {
            launcher_image: "registry/virt-launcher:1".to_owned(),
            image_pull_policy: Some("IfNotPresent".to_owned()),
            settings,
        };
        let launcher = serde_json::from_value(json!({
            "metadata": {"name": "virt-launcher-testvm-x", "uid": "p1", "labels": {"app": "web"}},
            "spec": {"nodeName": "node01", "containers": [], "tolerations": [
                {"key": "node.kubernetes.io/unschedulable", "operator": "Exists", "effect": "NoSchedule"},
                {"key": "vm", "operator": "Exists"}]},
        }));
        let vmi = valid(volume, disk);
        let volume = &vmi.volumes()[0];
        let claim = volume.claim().unwrap();
        let access = Access::of(vmi.spec(), &volume.name, claim);
        let wanted = Wanted { volume: &volume.name, claim, mode, size, exact: false, access };
        build(&vmi, &wanted, &launcher.unwrap(), &config)
    }

    fn files(read_only: bool) -> Value {
        json!({"name": "data", "persistentVolumeClaim":
            {"claimName": "claim", "readOnly": read_only, "hotpluggable": true}})
    }

    #[test]
    fn files_on_a_claim() {
        let pod = pod(
            &files(false),
            &json!({"name": "data", "disk": {"bus": "scsi"}}),
            Mode::Filesystem,
            Some(1 << 30),
        );
        insta::assert_snapshot!(serde_saphyr::to_string(&serde_json::to_value(&pod).unwrap()).unwrap());
    }

    #[test]
    fn a_device_is_no_mount() {
        let volume = json!({"name": "data", "dataVolume": {"name": "filled", "hotpluggable": true}});
        let pod = serde_json::to_value(pod(&volume, &json!({"name": "data", "lun": {}}), Mode::Block, None))
            .unwrap();
        let container = &pod["spec"]["containers"][0];
        assert_eq!(container["args"], json!(["--volume", "data"]));
        assert_eq!(container["volumeDevices"], json!([{"name": "disk", "devicePath": "/dev/data"}]));
        assert_eq!(container["volumeMounts"].as_array().unwrap().len(), 1);
        assert_eq!(
            pod["spec"]["volumes"][1],
            json!({"name": "disk", "persistentVolumeClaim": {"claimName": "filled"}})
        );
    }

    #[test]
    fn the_program_gets_the_installations_settings_for_disk_sizes() {
        let mut settings = Settings::default();
        settings.pods.room.tolerated_percent = 0;
        let disk = json!({"name": "data", "disk": {"bus": "scsi"}});
        let pod = pod_by(settings, &files(false), &disk, Mode::Filesystem, Some(5));
        let pod = serde_json::to_value(pod).unwrap();
        let args = json!(["--volume", "data", "--size", "5", "--claim-tolerance", "0"]);
        assert_eq!(pod["spec"]["containers"][0]["args"], args);
    }

    #[test]
    fn volumes_are_opened_as_their_guests_use_them() {
        let disk = |readonly: bool| json!({"name": "data", "disk": {"bus": "scsi", "readonly": readonly}});
        let shared = json!({"name": "data", "disk": {"bus": "scsi"}, "shareable": true, "cache": "none"});
        for (volume, disk, opened, mounted) in [
            (files(true), disk(false), Some("--read-only"), json!(true)),
            (files(false), disk(true), Some("--read-only"), Value::Null),
            (files(false), disk(false), None, Value::Null),
            (files(false), shared.clone(), Some("--shareable"), Value::Null),
            (files(true), shared, Some("--read-only"), json!(true)),
        ] {
            let pod = serde_json::to_value(pod(&volume, &disk, Mode::Filesystem, None)).unwrap();
            let container = &pod["spec"]["containers"][0];
            let args: Vec<&str> =
                container["args"].as_array().unwrap().iter().filter_map(Value::as_str).collect();
            assert_eq!(args, ["--volume", "data"].into_iter().chain(opened).collect::<Vec<_>>(), "{disk}");
            assert_eq!(container["volumeMounts"][1]["readOnly"], mounted, "{volume} {disk}");
        }
    }

    #[test]
    fn names_follow_and_fit() {
        let data = name(UID, "data", "a", Access::Writes, None);
        assert!(data.starts_with("hp-volume-data-") && data.len() == 25, "{data}");
        assert_eq!(data, name(UID, "data", "a", Access::Writes, None));
        for other in [
            name(UID, "data", "a", Access::Reads, None),
            name(UID, "data", "a", Access::Shares, None),
            name("other", "data", "a", Access::Writes, None),
            name(UID, "data", "b", Access::Writes, None),
            name(UID, "date", "a", Access::Writes, None),
            name(UID, "data", "a", Access::Writes, Some("t")),
        ] {
            assert_ne!(other, data);
        }
        let long =
            ["x", "y"].map(|last| name(UID, &format!("{}{last}", "v".repeat(62)), "a", Access::Writes, None));
        assert!(long.iter().all(|name| name.len() <= 63), "{long:?}");
        assert_ne!(long[0], long[1]);
    }
}
