//! The pod that fills a claim: admitted under Pod Security `restricted`, without rights, and with no secret except those
//! that its source names.

use super::claim::{device_size, is_block};
use super::facts::{Installation, LABEL};
use super::job;
use super::passed::passed;
use super::placement::placed;
use crate::generated;
use crate::owner::owner;
use crate::pod::unprivileged;
use barevirt_api::cdi::{DataVolume, DataVolumeSpec};
use barevirt_api::names::LAUNCHER_UID;
use barevirt_api::quantity;
use barevirt_import_job::{
    AUTHORITIES, CREDENTIALS, DATA, DEVICE, EXIT_FINAL, HEADERS, JOB, Job, METRICS_PORT, NETWORK, Network,
    Outcome, SCRATCH, SOURCE, SOURCE_DEVICE, Source, longest_staged,
};
use k8s_openapi::api::core::v1::{
    ConfigMapVolumeSource, Container, ContainerPort, ContainerState, ContainerStateTerminated,
    EmptyDirVolumeSource, EnvVar, ImageVolumeSource, LocalObjectReference, PersistentVolumeClaim,
    PersistentVolumeClaimVolumeSource, Pod, PodSecurityContext, PodSpec, SeccompProfile, SecretVolumeSource,
    Volume, VolumeDevice, VolumeMount,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, Time};
use kube::ResourceExt;
use serde::Serialize;

/// Name of its container.
pub(super) const CONTAINER: &str = "importer";
/// Annotation on the pod: how often the import was started before this pod.
pub(super) const RESTARTS_ANNOTATION: &str = "import.barevirt.dev/restarts";
const CLAIM: &str = "claim";
/// Label of nodes: their architecture.
const ARCHITECTURE: &str = "kubernetes.io/arch";
/// Space in the directory for images beside the image itself, in bytes: the importer stops before the kubelet ends its pod.
const BESIDE_IMAGE: u64 = 1 << 20;
pub(super) const SOURCE_VOLUME: &str = "source";

/// A pod that fills a claim.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Running {
    /// Whether it runs at the moment.
    pub runs: bool,
    /// Restarts, with those of earlier pods.
    pub restarts: i32,
    /// Why it stopped, while it waits for its next try.
    pub stopped: Option<String>,
    /// Why it cannot be placed.
    pub unschedulable: Option<String>,
    /// Why its image cannot be pulled.
    pub no_image: Option<String>,
    /// Its address, while it runs.
    pub address: Option<String>,
}

/// How it ended for good.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum End {
    /// The claim is filled.
    Filled,
    /// No retry can help.
    Hopeless(String),
    /// Something ended the pod from outside.
    Lost(String),
}

/// Name of the pod for the DataVolume of that name.
pub fn name(data_volume: &str) -> String {
    let name = format!("importer-{data_volume}");
    if name.len() <= 63 { name } else { generated::name(&format!("{}-", &name[..50]), data_volume) }
}

/// The pod.
pub(super) fn of(
    data_volume: &DataVolume,
    (claim, copy): (&PersistentVolumeClaim, Option<&PersistentVolumeClaim>),
    installation: &Installation,
    restarts: Option<i32>,
) -> Pod {
    let spec = &data_volume.spec;
    let mut volumes = Volumes::of_claim(claim);
    if let Some(copy) = copy {
        let source = PersistentVolumeClaimVolumeSource { claim_name: copy.name_any(), read_only: None };
        let volume = Volume { persistent_volume_claim: Some(source), ..Volume::default() };
        if is_block(copy) {
            volumes.all.push(Volume { name: SOURCE_VOLUME.to_owned(), ..volume });
            let device_path = SOURCE_DEVICE.to_owned();
            volumes.devices.push(VolumeDevice { name: SOURCE_VOLUME.to_owned(), device_path });
        } else {
            volumes.add(SOURCE_VOLUME, SOURCE, volume);
        }
    }
    if let Some(reference) = job::pulled_by_node(spec) {
        let image = ImageVolumeSource { reference: Some(reference.to_owned()), pull_policy: None };
        volumes.add(SOURCE_VOLUME, SOURCE, Volume { image: Some(image), ..Volume::default() });
    }
    volumes.of_source(spec);
    let mut pod = pod(
        spec,
        &job::of(data_volume, (claim, copy), installation),
        volumes,
        ("metrics", METRICS_PORT),
        installation,
    );
    if let Some(architecture) = job::pulling_architecture(spec) {
        let selector = pod.spec.get_or_insert_default().node_selector.get_or_insert_default();
        selector.insert(ARCHITECTURE.to_owned(), architecture.to_owned());
    }
    Pod { metadata: metadata(data_volume, restarts.unwrap_or_default()), ..pod }
}

/// A pod for that job, without its metadata.
pub(super) fn pod(
    spec: &DataVolumeSpec,
    job: &Job,
    volumes: Volumes,
    (port, number): (&str, u16),
    installation: &Installation,
) -> Pod {
    let container = Container {
        name: CONTAINER.to_owned(),
        image: Some(installation.image.clone()),
        image_pull_policy: installation.pull_policy.clone(),
        env: Some(environment(job, &installation.network)),
        ports: Some(vec![ContainerPort {
            name: Some(port.to_owned()),
            container_port: number.into(),
            protocol: Some("TCP".to_owned()),
            ..ContainerPort::default()
        }]),
        resources: Some(installation.resources.clone()),
        security_context: Some(unprivileged()),
        termination_message_policy: Some("File".to_owned()),
        volume_devices: Some(volumes.devices).filter(|devices| !devices.is_empty()),
        volume_mounts: Some(volumes.mounts).filter(|mounts| !mounts.is_empty()),
        ..Container::default()
    };
    let secrets = installation.pull_secrets.iter().map(|name| LocalObjectReference { name: name.clone() });
    let spec = PodSpec {
        restart_policy: Some("OnFailure".to_owned()),
        termination_grace_period_seconds: Some(10),
        automount_service_account_token: Some(false),
        enable_service_links: Some(false),
        service_account_name: spec.service_account_name.clone(),
        priority_class_name: spec.priority_class_name.clone(),
        image_pull_secrets: Some(secrets.collect::<Vec<_>>()).filter(|all| !all.is_empty()),
        security_context: Some(security()),
        containers: vec![container],
        volumes: Some(volumes.all),
        ..PodSpec::default()
    };
    Pod { metadata: ObjectMeta::default(), spec: Some(placed(spec, &installation.nodes)), status: None }
}

/// The job, and how its server is reached.
fn environment(job: &Job, network: &Network) -> Vec<EnvVar> {
    let mut all = vec![variable(JOB, job)];
    // The others reach no server, or only a pod of ours.
    let is_remote = matches!(job.source, Source::Http { .. } | Source::Registry { .. } | Source::S3 { .. });
    if is_remote && *network != Network::default() {
        all.push(variable(NETWORK, network));
    }
    all
}

/// An environment variable with this value. The kubelet replaces what looks like a reference to another variable, and `$$`:
/// users' addresses and headers may have either, so that no `$` is left in the text.
pub(super) fn variable(name: &str, value: &impl Serialize) -> EnvVar {
    // Our own types always have a JSON form, and `$` is only in its strings.
    let text = serde_json::to_string(value).unwrap_or_default().replace('$', r"\u0024");
    EnvVar { name: name.to_owned(), value: Some(text), value_from: None }
}

fn metadata(data_volume: &DataVolume, restarts: i32) -> ObjectMeta {
    let labels =
        [LABEL, ("cdi.kubevirt.io", "importer"), ("app.kubernetes.io/managed-by", "virt-controller")];
    let text = |(name, value): (&str, &str)| (name.to_owned(), value.to_owned());
    let mut annotations = passed(data_volume.annotations());
    annotations.insert(RESTARTS_ANNOTATION.to_owned(), restarts.to_string());
    ObjectMeta {
        name: Some(name(&data_volume.name_any())),
        namespace: data_volume.metadata.namespace.clone(),
        labels: Some(labels.map(text).into()),
        annotations: Some(annotations),
        owner_references: Some(vec![owner(data_volume)]),
        ..ObjectMeta::default()
    }
}

/// The claim's files belong to QEMU's group.
pub(super) fn security() -> PodSecurityContext {
    PodSecurityContext {
        run_as_non_root: Some(true),
        run_as_user: Some(LAUNCHER_UID),
        run_as_group: Some(LAUNCHER_UID),
        fs_group: Some(LAUNCHER_UID),
        seccomp_profile: Some(SeccompProfile { type_: "RuntimeDefault".to_owned(), localhost_profile: None }),
        ..PodSecurityContext::default()
    }
}

pub(super) fn mount(name: &str, path: &str, read_only: bool) -> VolumeMount {
    VolumeMount {
        name: name.to_owned(),
        mount_path: path.to_owned(),
        read_only: read_only.then_some(true),
        ..VolumeMount::default()
    }
}

/// Volumes, and where they are mounted.
#[derive(Default)]
pub(super) struct Volumes {
    all: Vec<Volume>,
    mounts: Vec<VolumeMount>,
    devices: Vec<VolumeDevice>,
}

impl Volumes {
    /// The claim that is filled; beside a device there is a directory for what cannot be streamed.
    pub(super) fn of_claim(claim: &PersistentVolumeClaim) -> Self {
        let mut volumes = Volumes::default();
        let claimed = PersistentVolumeClaimVolumeSource { claim_name: claim.name_any(), read_only: None };
        volumes.all.push(Volume {
            name: CLAIM.to_owned(),
            persistent_volume_claim: Some(claimed),
            ..Volume::default()
        });
        if is_block(claim) {
            volumes.devices.push(VolumeDevice { name: CLAIM.to_owned(), device_path: DEVICE.to_owned() });
            // A limit of the container's ephemeral storage would count as a request: no node could have the largest image.
            let most = longest_staged(device_size(claim)).saturating_add(BESIDE_IMAGE);
            let limit = EmptyDirVolumeSource { size_limit: Some(quantity::from_bytes(most)), medium: None };
            volumes.add("scratch", SCRATCH, Volume { empty_dir: Some(limit), ..Volume::default() });
        } else {
            volumes.mounts.push(mount(CLAIM, DATA, false));
        }
        volumes
    }

    fn add(&mut self, name: &str, path: &str, volume: Volume) {
        let read_only = volume.empty_dir.is_none();
        self.mounts.push(mount(name, path, read_only));
        self.all.push(Volume { name: name.to_owned(), ..volume });
    }

    fn secret(&mut self, name: &str, path: &str, secret: &str) {
        let source =
            SecretVolumeSource { secret_name: Some(secret.to_owned()), ..SecretVolumeSource::default() };
        self.add(name, path, Volume { secret: Some(source), ..Volume::default() });
    }

    /// Adds the objects that the source names.
    pub(super) fn of_source(&mut self, spec: &DataVolumeSpec) {
        let Some(source) = &spec.source else { return };
        let http = source.http.as_ref().map(|http| (&http.secret_ref, &http.cert_config_map));
        let registry =
            source.registry.as_ref().map(|registry| (&registry.secret_ref, &registry.cert_config_map));
        let s3 = source.s3.as_ref().map(|s3| (&s3.secret_ref, &s3.cert_config_map));
        let Some((secret, authorities)) = http.or(registry).or(s3) else { return };
        if let Some(secret) = secret.as_deref().filter(|name| !name.is_empty()) {
            self.secret("credentials", CREDENTIALS, secret);
        }
        if let Some(name) = authorities.as_deref().filter(|name| !name.is_empty()) {
            let source = ConfigMapVolumeSource { name: name.to_owned(), ..ConfigMapVolumeSource::default() };
            self.add("authorities", AUTHORITIES, Volume { config_map: Some(source), ..Volume::default() });
        }
        let headers = source.http.iter().flat_map(|http| &http.secret_extra_headers);
        for (number, secret) in headers.enumerate() {
            self.secret(&format!("headers-{number}"), &format!("{HEADERS}/{number}"), secret);
        }
    }
}

/// How its container ended last.
fn last(pod: &Pod) -> Option<ContainerStateTerminated> {
    let container = container(pod)?;
    let of = |state: &Option<ContainerState>| state.as_ref().and_then(|state| state.terminated.clone());
    of(&container.state).or_else(|| of(&container.last_state))
}

/// When its container ended last.
pub(super) fn finished(pod: &Pod) -> Option<Time> {
    last(pod)?.finished_at
}

/// The outcome that it wrote.
pub(super) fn outcome(pod: &Pod) -> Option<Outcome> {
    Outcome::of_message(last(pod)?.message.as_deref().unwrap_or_default())
}

/// How a pod ended, if it has ended.
pub(super) fn ended(pod: &Pod) -> Option<End> {
    let status = pod.status.as_ref()?;
    let last = last(pod);
    // The kubelet may report the container's end before that of the pod.
    let now = container(pod).and_then(|container| container.state.as_ref()?.terminated.as_ref());
    let is_done = now.is_some_and(|now| now.exit_code == 0);
    if is_done || status.phase.as_deref() == Some("Succeeded") {
        return Some(match last.as_ref().map(|last| last.exit_code) {
            None | Some(0) => End::Filled,
            Some(_) => End::Lost("its pod ended without filling the claim".to_owned()),
        });
    }
    if let Some(last) = &last
        && let Some(reason) = hopeless(last)
    {
        return Some(End::Hopeless(reason));
    }
    if status.phase.as_deref() == Some("Failed") {
        let said = status.message.clone().or_else(|| status.reason.clone());
        let said = said.or_else(|| last.as_ref().map(why));
        return Some(End::Lost(said.unwrap_or_else(|| "its pod has failed".to_owned())));
    }
    None
}

fn hopeless(last: &ContainerStateTerminated) -> Option<String> {
    match Outcome::of_message(last.message.as_deref().unwrap_or_default()) {
        Some(Outcome::Failed { last: true, reason }) => Some(reason),
        Some(Outcome::Failed { last: false, .. } | Outcome::Done { .. } | Outcome::Found { .. }) => None,
        None => (last.exit_code == i32::from(EXIT_FINAL)).then(|| why(last)),
    }
}

/// Why a container ended.
fn why(last: &ContainerStateTerminated) -> String {
    let message = last.message.as_deref().unwrap_or_default();
    match Outcome::of_message(message) {
        Some(Outcome::Failed { reason, .. }) => reason,
        Some(Outcome::Done { .. } | Outcome::Found { .. }) | None => {
            let reason = last.reason.as_deref().unwrap_or("Error");
            let Outcome::Failed { reason: message, .. } = Outcome::failed(false, message) else {
                return reason.to_owned();
            };
            let end = if message.is_empty() { String::new() } else { format!(": {message}") };
            format!("the importer ended with {} ({reason}){end}", last.exit_code)
        }
    }
}

/// The state of a pod that has not ended.
pub(super) fn running(pod: &Pod) -> Running {
    let container = container(pod);
    let state = container.and_then(|container| container.state.as_ref());
    let before = pod.status.as_ref().and_then(|status| status.init_container_statuses.as_deref());
    let before = before.unwrap_or_default().iter().filter_map(|container| container.state.as_ref());
    let mut waiting = before.chain(state).filter_map(|state| state.waiting.as_ref());
    let runs = state.is_some_and(|state| state.running.is_some());
    let last = container.and_then(|container| container.last_state.as_ref()?.terminated.as_ref());
    let now = state.and_then(|state| state.terminated.as_ref());
    let status = pod.status.as_ref();
    let conditions = status.and_then(|status| status.conditions.as_deref()).unwrap_or_default();
    let unplaced = conditions.iter().find(|found| found.type_ == "PodScheduled" && found.status == "False");
    let no_image = waiting.find(|waiting| {
        matches!(waiting.reason.as_deref(), Some("ErrImagePull" | "ImagePullBackOff" | "InvalidImageName"))
    });
    let before = pod.annotations().get(RESTARTS_ANNOTATION).and_then(|text| text.parse::<i32>().ok());
    let own = container.map_or(0, |container| container.restart_count);
    Running {
        runs,
        restarts: before.unwrap_or_default().max(0).saturating_add(own),
        stopped: if runs { None } else { now.or(last).map(why) },
        unschedulable: unplaced.map(|found| found.message.clone().unwrap_or_default()),
        no_image: no_image.map(|waiting| waiting.message.clone().unwrap_or_default()),
        address: status.and_then(|status| status.pod_ip.clone()).filter(|_| runs),
    }
}

/// The address of a pod that fills a claim and can be asked for its progress.
pub fn address(pod: &Pod) -> Option<String> {
    running(pod).address
}

fn container(pod: &Pod) -> Option<&k8s_openapi::api::core::v1::ContainerStatus> {
    pod.status.as_ref()?.container_statuses.as_ref()?.iter().find(|container| container.name == CONTAINER)
}
