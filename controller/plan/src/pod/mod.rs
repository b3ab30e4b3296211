//! The launcher pod of an instance. Building it is pure and cannot fail.
//!
//! ```text
//!   init container-disk-binary   copies the static helper to /init
//!   compute                      the launcher, and QEMU as its child
//!   volume<name>                 one per container disk: the user's image, running the helper; one for a kernel boot
//!   virtiofs-<name>              one per shared directory: virtiofsd, with that volume
//!   passt                        passt, if the guest has a card with `passtBinding`
//!
//!   emptyDir sockets             handler <-> launcher           (the handler finds it beneath the kubelet's directory)
//!   emptyDir private             monitor, VNC and serial sockets, serial log
//!   emptyDir ephemeral-disks     overlays, cloud-init image
//!   emptyDir container-disks     launcher.sock, where helpers hand over their disks
//!   emptyDir virt-bin-share-dir  the helper, on its way into the users' images
//!   emptyDir virtiofs-containers sockets of shared directories
//!   emptyDir passt               the socket of passt
//! ```
//!
//! All of them have a size limit: a pod that exceeds one is evicted by the kubelet, which protects the node's disk.
//!
//! Where the cluster supports images as volumes, the users' images are volumes and have no containers.
//!
//! Nothing in it needs privilege: it is admitted under the Pod Security level `restricted`, unless a disk is a file of the
//! node (`hostDisk`). The node's handler opens what needs privilege and hands over its descriptor.

pub mod attachment;
pub mod claims;
mod credentials;
mod disks;
mod ephemeral;
mod filesystems;
pub mod first_consumer;
mod host_disks;
mod kernel;
mod mesh;
pub mod networks;
mod objects;
mod parts;
mod passt;
mod placement;
mod probes;
pub mod reach;
pub mod state;
pub mod target;
#[cfg(test)]
mod tests;
mod verbosity;

pub(crate) use self::parts::unprivileged;
use self::parts::{
    CONTAINER_DISKS, PRIVATE_SIZE, PROGRAM_SIZE, SOCKETS_SIZE, empty_dir, mount, pod_security, pull_secrets,
    some,
};
use crate::config::Config;
use crate::generated;
use crate::owner::owner;
use barevirt_api::names::{
    APP_LABEL, APP_LAUNCHER, COMPUTE_CONTAINER, CONTAINER_PATHS_LABEL, CREATED_BY_LABEL, DOMAIN_ANNOTATION,
    EVICT_ONLY_ANNOTATION, FAIL_FAST_ANNOTATION, MEMORY_OVERHEAD_ANNOTATION, MIGRATION_TARGET_NODE_LABEL,
    NODE_NAME_LABEL, OUTDATED_LAUNCHER_LABEL, VM_NAME_LABEL, VMI_ID_LABEL, vmi_id,
};
use barevirt_api::object_volume;
use barevirt_api::settings::{NodeDisk, Smbios};
use barevirt_api::sizing;
use barevirt_api::valid::ValidVmi;
use k8s_openapi::api::core::v1::{
    Container, ContainerPort, ContainerResizePolicy, EnvVar, EnvVarSource, ObjectFieldSelector, Pod, PodSpec,
    ResourceRequirements, VolumeMount,
};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use std::collections::BTreeMap;

/// Seconds that a pod gets beyond the guest's grace period, for the launcher to end by itself.
const GRACE_MARGIN: u64 = 10;
/// Tells the launcher that images are volumes of its pod.
pub const IMAGE_VOLUMES: &str = "--image-volumes";
/// Prefixes of annotations that concern only the instance's object; the same as KubeVirt's. All others are copied to the
/// pod.
const OWN_ANNOTATIONS: [&str; 3] = [
    "kubectl.kubernetes.io",
    "kubevirt.io/storage-observed-api-version",
    "kubevirt.io/latest-observed-api-version",
];

/// The name of an instance's launcher pod: it looks like a generated one, and is derived from the instance's UID, so that
/// there cannot be two launchers, even if a controller acts on an old observation.
pub fn name(vmi_name: &str, vmi_uid: &str) -> String {
    generated::name(&generate_name(vmi_name), vmi_uid)
}

fn generate_name(vmi_name: &str) -> String {
    format!("virt-launcher-{vmi_name}-")
}

/// How long the pod of an instance has from SIGTERM to SIGKILL, in seconds.
pub fn grace_seconds(vmi_grace: u64) -> u32 {
    match vmi_grace {
        // With zero, the pod object could go while its processes still run.
        0 => 1,
        grace => u32::try_from(grace.saturating_add(GRACE_MARGIN)).unwrap_or(u32::MAX),
    }
}

/// Builds the launcher pod.
pub fn build(vmi: &ValidVmi, config: &Config) -> Pod {
    let spec = vmi.spec();
    let mut disks = disks::of(vmi, config);
    kernel::add(vmi, config, &mut disks);
    // Containers of users' images, each of which runs the helper.
    let helped = !disks.containers.is_empty();
    let guaranteed = sizing::is_guaranteed(vmi);
    filesystems::add(vmi, guaranteed, config, &mut disks);
    passt::add(vmi, guaranteed, config, &mut disks);
    credentials::add(vmi, &mut disks);
    objects::add(vmi, &mut disks);
    host_disks::add(vmi, &mut disks);
    let mut volumes = vec![
        empty_dir("sockets", SOCKETS_SIZE),
        empty_dir("private", PRIVATE_SIZE),
        empty_dir("ephemeral-disks", &ephemeral::limit(vmi, &config.settings.pods.node_disk).0),
    ];
    if !config.settings.pods.image_volumes {
        volumes.extend([
            empty_dir("container-disks", SOCKETS_SIZE),
            empty_dir("virt-bin-share-dir", PROGRAM_SIZE),
        ]);
    }
    volumes.extend(disks.volumes);
    if guaranteed {
        disks.containers.iter_mut().for_each(guarantee);
    }
    let mut containers = vec![compute(vmi, config, disks.compute_mounts)];
    containers.extend(disks.containers);

    Pod {
        metadata: metadata(vmi, config),
        spec: Some(PodSpec {
            restart_policy: Some("Never".to_owned()),
            service_account_name: service_account(vmi).map(str::to_owned),
            automount_service_account_token: Some(false),
            enable_service_links: Some(false),
            termination_grace_period_seconds: Some(i64::from(grace_seconds(vmi.grace_period_seconds()))),
            hostname: Some(vmi.hostname()),
            subdomain: spec.subdomain.clone(),
            security_context: Some(pod_security(config)),
            node_selector: Some(placement::node_selector(vmi, config)),
            runtime_class_name: config.settings.pods.runtime_class.clone(),
            affinity: placement::affinity(vmi),
            tolerations: some(&spec.tolerations),
            topology_spread_constraints: some(&spec.topology_spread_constraints),
            scheduler_name: spec.scheduler_name.clone(),
            priority_class_name: spec.priority_class_name.clone(),
            dns_policy: spec.dns_policy.clone(),
            dns_config: spec.dns_config.clone(),
            image_pull_secrets: some(&pull_secrets(disks.pull_secrets, config)),
            init_containers: helped.then(|| {
                let mut binary = disks::binary(config);
                if guaranteed {
                    guarantee(&mut binary);
                }
                vec![binary]
            }),
            containers,
            volumes: Some(volumes),
            ..PodSpec::default()
        }),
        status: None,
    }
}

/// The pod's account; where the guest is given a service account's token, that account.
fn service_account(vmi: &ValidVmi) -> Option<&str> {
    let own = vmi.spec().service_account_name.as_deref().filter(|name| !name.is_empty());
    own.or_else(|| object_volume::service_account(vmi.spec()))
}

/// In a pod of the class `Guaranteed`, the requests of every container equal its limits.
fn guarantee(container: &mut Container) {
    if let Some(resources) = &mut container.resources {
        resources.requests.get_or_insert_default().extend(resources.limits.clone().unwrap_or_default());
    }
}

fn metadata(vmi: &ValidVmi, config: &Config) -> ObjectMeta {
    let given = &vmi.vmi().metadata;
    let mut labels = given.labels.clone().unwrap_or_default();
    // Users' labels are copied, since services select pods by them, also labels in our domain such as kubevirt.io/vm. These
    // three concern the instance.
    for label in [NODE_NAME_LABEL, MIGRATION_TARGET_NODE_LABEL, OUTDATED_LAUNCHER_LABEL] {
        labels.remove(label);
    }
    labels.extend(
        [
            (APP_LABEL, APP_LAUNCHER.to_owned()),
            (CREATED_BY_LABEL, vmi.uid().to_owned()),
            (VM_NAME_LABEL, vmi_id(vmi.name())),
            (VMI_ID_LABEL, vmi_id(vmi.name())),
        ]
        .map(|(name, value)| (name.to_owned(), value)),
    );
    if filesystems::shares_container_paths(vmi) {
        labels.insert(CONTAINER_PATHS_LABEL.to_owned(), String::new());
    }
    let mut annotations = given.annotations.clone().unwrap_or_default();
    annotations.retain(|name, _| !OWN_ANNOTATIONS.iter().any(|prefix| name.starts_with(prefix)));
    networks::annotate(&mut annotations, vmi.namespace(), vmi.vmi(), &config.settings.bindings);
    mesh::mark(vmi, &mut labels, &mut annotations);
    annotations.extend(
        [
            (DOMAIN_ANNOTATION, vmi.name().to_owned()),
            (MEMORY_OVERHEAD_ANNOTATION, sizing::overhead_bytes(vmi, &config.settings).to_string()),
            ("kubectl.kubernetes.io/default-container", COMPUTE_CONTAINER.to_owned()),
            (EVICT_ONLY_ANNOTATION, String::new()),
        ]
        .map(|(name, value)| (name.to_owned(), value)),
    );
    ObjectMeta {
        name: Some(name(vmi.name(), vmi.uid())),
        generate_name: Some(generate_name(vmi.name())),
        namespace: given.namespace.clone(),
        labels: Some(labels),
        annotations: Some(annotations),
        owner_references: Some(vec![owner(vmi.vmi())]),
        ..ObjectMeta::default()
    }
}

fn compute(vmi: &ValidVmi, config: &Config, disk_mounts: Vec<VolumeMount>) -> Container {
    let mut args: Vec<String> = [
        ("--name", vmi.name().to_owned()),
        ("--namespace", vmi.namespace().to_owned()),
        ("--uid", vmi.uid().to_owned()),
        ("--grace-period-seconds", vmi.grace_period_seconds().to_string()),
    ]
    .into_iter()
    .flat_map(|(flag, value)| [flag.to_owned(), value])
    .collect();
    if config.settings.use_emulation {
        args.push("--allow-emulation".to_owned());
    }
    if config.settings.pods.image_volumes {
        args.push(IMAGE_VOLUMES.to_owned());
    }
    // An instance's own setting is read from its specification.
    if config.settings.pods.without_serial_log {
        args.push("--without-serial-log".to_owned());
    }
    if config.settings.pods.without_free_page_reporting {
        args.push("--without-free-page-reporting".to_owned());
    }
    if let Some(seconds) = config.settings.pods.memory_report_seconds {
        args.extend(["--memory-report-seconds".to_owned(), seconds.to_string()]);
    }
    let annotations = vmi.vmi().metadata.annotations.as_ref();
    if annotations.is_some_and(|annotations| annotations.contains_key(FAIL_FAST_ANNOTATION)) {
        args.push("--simulate-crash".to_owned());
    }
    let settings = &config.settings;
    if settings.smbios != Smbios::default() {
        args.extend(["--smbios".to_owned(), settings.smbios.to_string()]);
    }
    if vmi.boot_volumes().any(|volume| volume.claim().is_some() || volume.host_disk.is_some()) {
        args.extend(claims::room_args(&settings.pods.room));
    }
    let largest = settings.pods.node_disk.largest_image;
    let has_images = vmi.boot_volumes().any(|volume| volume.container_disk.is_some());
    if has_images && largest != NodeDisk::default().largest_image {
        args.extend(["--largest-image".to_owned(), largest.to_string()]);
    }
    let mut env = vec![downward("POD_NAME", "metadata.name"), downward("POD_UID", "metadata.uid")];
    if wants_metrics(vmi) {
        env.push(downward("NODE_NAME", "spec.nodeName"));
    }
    env.extend(verbosity::variable(vmi, config));
    let mut mounts = vec![
        mount("sockets", "/var/run/kubevirt/sockets"),
        mount("private", "/var/run/kubevirt-private"),
        mount("ephemeral-disks", "/var/run/kubevirt-ephemeral-disks"),
    ];
    if !settings.pods.image_volumes {
        mounts.push(mount("container-disks", CONTAINER_DISKS));
    }
    mounts.extend(disk_mounts);
    Container {
        name: COMPUTE_CONTAINER.to_owned(),
        image: Some(config.launcher_image.clone()),
        image_pull_policy: config.pull_policy().map(str::to_owned),
        command: Some(vec!["/usr/bin/virt-launcher".to_owned(), "pod".to_owned()]),
        args: Some(args),
        env: Some(env),
        ports: some(&ports(vmi)),
        readiness_probe: vmi.spec().readiness_probe.as_ref().map(probes::readiness),
        liveness_probe: vmi.spec().liveness_probe.as_ref().map(probes::liveness),
        resources: Some(with_devices(
            with_storage(sizing::pod_resources(vmi, &config.settings)),
            vmi,
            config,
        )),
        resize_policy: Some(resize_policy()),
        security_context: Some(unprivileged()),
        volume_mounts: Some(mounts),
        ..Container::default()
    }
}

/// Whether the guest is given metrics of its node.
fn wants_metrics(vmi: &ValidVmi) -> bool {
    let on_disk = vmi.volumes().iter().any(|volume| volume.downward_metrics.is_some());
    on_disk || vmi.spec().domain.devices.downward_metrics.is_some()
}

/// The guest's ports, so that services and probes can refer to their names.
fn ports(vmi: &ValidVmi) -> Vec<ContainerPort> {
    let ports = vmi.interfaces().iter().flat_map(|interface| interface.interface.ports.iter());
    let port = |port: &barevirt_api::v1::Port| ContainerPort {
        name: port.name.clone().filter(|name| !name.is_empty()),
        container_port: port.port,
        protocol: Some(
            port.protocol.clone().filter(|one| !one.is_empty()).unwrap_or_else(|| "TCP".to_owned()),
        ),
        ..ContainerPort::default()
    };
    ports.map(port).collect()
}

/// Disk space that a launcher uses beside what its guest writes: KubeVirt's number, in bytes.
const STORAGE_OVERHEAD: u64 = 50_000_000;

/// Adds what the launcher writes itself, for the scheduler and the kubelet. An instance's own request or limit is for its
/// guest, so this is added to it.
fn with_storage(mut resources: ResourceRequirements) -> ResourceRequirements {
    let name = "ephemeral-storage";
    let more = |given: Option<&Quantity>| {
        let given = given.map_or(Ok(0), barevirt_api::quantity::bytes).unwrap_or(u64::MAX);
        barevirt_api::quantity::from_decimal(given.saturating_add(STORAGE_OVERHEAD))
    };
    if let Some(limits) = &mut resources.limits
        && let Some(limit) = limits.get(name)
    {
        let limit = more(Some(limit));
        limits.insert(name.to_owned(), limit);
    }
    let requests = resources.requests.get_or_insert_default();
    let request = more(requests.get(name));
    requests.insert(name.to_owned(), request);
    resources
}

/// Resources of devices: a guest is placed where its devices are, and counts in quotas of them. A guest that may not be
/// emulated needs KVM; the handler hands over KVM and vsock.
fn with_devices(
    mut resources: ResourceRequirements,
    vmi: &ValidVmi,
    config: &Config,
) -> ResourceRequirements {
    let devices = &vmi.spec().domain.devices;
    let kvm = (!config.settings.use_emulation).then_some(KVM_RESOURCE);
    let vsock = (devices.autoattach_vsock == Some(true)).then_some(VSOCK_RESOURCE);
    let mut counts: BTreeMap<&str, u32> = kvm.into_iter().chain(vsock).map(|name| (name, 1)).collect();
    for (_, resource) in vmi.host_devices() {
        *counts.entry(resource).or_default() += 1;
    }
    for (name, count) in counts {
        for list in [&mut resources.requests, &mut resources.limits] {
            list.get_or_insert_default().insert(name.to_owned(), Quantity(count.to_string()));
        }
    }
    resources
}

/// Resource that handlers offer to kubelets.
const KVM_RESOURCE: &str = "devices.kubevirt.io/kvm";
const VSOCK_RESOURCE: &str = "devices.kubevirt.io/vhost-vsock";

/// CPU and memory of a running guest grow and shrink without a restart: see `vmi::resize`.
fn resize_policy() -> Vec<ContainerResizePolicy> {
    ["cpu", "memory"]
        .map(|resource| ContainerResizePolicy {
            resource_name: resource.to_owned(),
            restart_policy: "NotRequired".to_owned(),
        })
        .into()
}

fn downward(name: &str, field: &str) -> EnvVar {
    EnvVar {
        name: name.to_owned(),
        value: None,
        value_from: Some(EnvVarSource {
            field_ref: Some(ObjectFieldSelector { api_version: None, field_path: field.to_owned() }),
            ..EnvVarSource::default()
        }),
    }
}
