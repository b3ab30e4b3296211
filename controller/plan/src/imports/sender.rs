//! A copy from another namespace: a pod beside the source claim sends its contents to the importer.
//!
//! ```text
//!   no sender --make--> sender --runs, has a key--> importer is made, knows it --has a key--> the sender gets it
//!       ^                  |                                                                        |
//!       +----- ended ------+                                          filled, or given up: both pods are removed; so is
//!                                                                     the sender of a DataVolume that no longer exists
//! ```
//!
//! A claim can only be mounted in its own namespace. Each of the two pods makes a key that never leaves it, and its status
//! has the certificate: only its kubelet writes that status. The sender has no owner in the other namespace; it is deleted
//! with its source claim at the latest.

use super::claim::is_block;
use super::facts::{Installation, LABEL, SourceClaim, Step};
use super::importer::{self, CONTAINER, SOURCE_VOLUME, mount, security};
use super::job;
use super::keys::{self, certificate};
use super::passed;
use super::placement::placed;
use crate::data_volumes::Place;
use crate::pod::unprivileged;
use barevirt_api::cdi::{DATA_VOLUME, DataVolume};
use barevirt_import_job::copy::{RECEIVER, RECEIVER_FILE, SEND, SEND_PORT};
use barevirt_import_job::{JOB, Job, SOURCE, SOURCE_DEVICE, Source};
use k8s_openapi::api::core::v1::{
    Container, ContainerPort, DownwardAPIVolumeFile, DownwardAPIVolumeSource, LocalObjectReference,
    ObjectFieldSelector, PersistentVolumeClaim, PersistentVolumeClaimVolumeSource, Pod, PodSpec, Volume,
    VolumeDevice,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};
use kube::ResourceExt;

/// Selector of senders.
pub const SELECTOR: &str = "cdi.kubevirt.io=cdi-clone-source,app.kubernetes.io/managed-by=virt-controller";
const LABELS: [(&str, &str); 3] =
    [LABEL, ("cdi.kubevirt.io", "cdi-clone-source"), ("app.kubernetes.io/managed-by", "virt-controller")];
/// Annotations on a sender: the DataVolume that is filled.
const FOR_ANNOTATION: &str = "import.barevirt.dev/for";
const UID_ANNOTATION: &str = "import.barevirt.dev/for-uid";
/// Annotation on a sender: the importer's certificate.
pub const RECEIVER_ANNOTATION: &str = "import.barevirt.dev/receiver";
const RECEIVER_VOLUME: &str = "receiver";

/// The next step for the sender.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Next {
    /// Make it.
    Make,
    /// Remove it, so that another can be made.
    Remove(Step),
    /// Wait, for this reason.
    Wait(String),
}

impl Next {
    /// Message for people.
    pub(super) fn message(&self) -> String {
        match self {
            Next::Make | Next::Remove(_) => "the pod that sends the claim is made".to_owned(),
            Next::Wait(why) => why.clone(),
        }
    }
}

/// Name of the sender's pod.
pub fn name(data_volume: &DataVolume) -> String {
    format!("{}-source-pod", data_volume.metadata.uid.as_deref().unwrap_or_default())
}

/// The DataVolume that a sender serves: namespace, name and UID. Users can make a pod that looks like a sender, and the names
/// become part of a request's path.
pub fn asked_by(sender: &Pod) -> Option<(String, String, String)> {
    let annotations = sender.annotations();
    let (namespace, name) = annotations.get(FOR_ANNOTATION)?.split_once('/')?;
    let Place { namespace, name } = Place::new(DATA_VOLUME, namespace, name).ok()?;
    Some((namespace, name, annotations.get(UID_ANNOTATION)?.clone()))
}

fn sends_for(sender: &Pod, data_volume: &DataVolume) -> bool {
    asked_by(sender).is_some_and(|(_, _, uid)| Some(&uid) == data_volume.metadata.uid.as_ref())
}

fn has_ended(pod: &Pod) -> bool {
    let phase = pod.status.as_ref().and_then(|status| status.phase.as_deref());
    pod.metadata.deletion_timestamp.is_some() || matches!(phase, Some("Succeeded" | "Failed"))
}

/// The step before there is an importer; `None` where the importer can be made, or nothing has to be sent.
pub(super) fn next(data_volume: &DataVolume, source: &SourceClaim) -> Option<Next> {
    let sender = source.sender.as_ref()?;
    let Some(pod) = &sender.pod else { return Some(Next::Make) };
    let place = format!("{}/{}", source.place.namespace, pod.name_any());
    if !sends_for(pod, data_volume) {
        return Some(Next::Wait(format!("pod {place} is not of this DataVolume: delete it")));
    }
    if pod.metadata.deletion_timestamp.is_some() {
        return Some(Next::Wait("the former pod that sent the claim is going away".to_owned()));
    }
    if has_ended(pod) {
        return removal(data_volume, Some(source)).map(Next::Remove);
    }
    let running = importer::running(pod);
    if running.address.is_some() && certificate(pod).is_some() {
        return None;
    }
    let why = running.unschedulable.or(running.no_image).or(running.stopped);
    Some(Next::Wait(format!(
        "the pod that sends the claim is not running yet{}",
        why.map(|why| format!(": {why}")).unwrap_or_default()
    )))
}

/// The sender that an importer knows.
fn known(importer: &Pod) -> Option<Source> {
    let container = importer.spec.as_ref()?.containers.first()?;
    let text = container.env.as_ref()?.iter().find(|variable| variable.name == JOB)?.value.as_ref()?;
    serde_json::from_str::<Job>(text).ok().map(|job| job.source)
}

/// The sender as an importer has to know it; `None` while it does not run.
fn as_known(sender: &Pod) -> Option<Source> {
    let (address, certificate) = (importer::address(sender)?, certificate(sender)?.to_owned());
    Some(Source::Sender { address, port: SEND_PORT, certificate })
}

/// Whether an importer waits for a sender that is gone.
pub(super) fn is_lost(importer: &Pod, source: Option<&SourceClaim>) -> bool {
    let Some(sender) = source.and_then(|source| source.sender.as_ref()) else { return false };
    if importer::ended(importer).is_some() {
        return false;
    }
    let Some(pod) = sender.pod.as_ref().filter(|pod| !has_ended(pod)) else { return true };
    as_known(pod).is_some_and(|now| known(importer).as_ref() != Some(&now))
}

/// The step that tells the sender of its importer, where it does not know the importer.
pub(super) fn introduction(importer: Option<&Pod>, source: Option<&SourceClaim>) -> Option<Step> {
    let source = source?;
    let pod = source.sender.as_ref()?.pod.as_ref()?;
    let receiver = certificate(importer?)?;
    let told = pod.annotations().get(RECEIVER_ANNOTATION).is_some_and(|told| told == receiver);
    let certificate = (!told).then(|| receiver.to_owned())?;
    Some(Step::Introduce { namespace: source.place.namespace.clone(), name: pod.name_any(), certificate })
}

/// The step that removes the sender.
pub(super) fn removal(data_volume: &DataVolume, source: Option<&SourceClaim>) -> Option<Step> {
    let source = source?;
    let pod = source.sender.as_ref()?.pod.as_ref()?;
    let goes = !sends_for(pod, data_volume) || pod.metadata.deletion_timestamp.is_some();
    let uid = pod.metadata.uid.clone().filter(|_| !goes)?;
    Some(Step::RemoveSender { namespace: source.place.namespace.clone(), name: pod.name_any(), uid })
}

/// The sender.
pub(super) fn of(data_volume: &DataVolume, source: &SourceClaim, installation: &Installation) -> Pod {
    let claim = source.claim.clone().unwrap_or_default();
    let claimed =
        PersistentVolumeClaimVolumeSource { claim_name: source.place.name.clone(), read_only: None };
    let volume = Volume {
        name: SOURCE_VOLUME.to_owned(),
        persistent_volume_claim: Some(claimed),
        ..Volume::default()
    };
    let mut mounts = vec![mount(RECEIVER_VOLUME, RECEIVER, true)];
    let mut devices = None;
    if is_block(&claim) {
        let device_path = SOURCE_DEVICE.to_owned();
        devices = Some(vec![VolumeDevice { name: SOURCE_VOLUME.to_owned(), device_path }]);
    } else {
        mounts.push(mount(SOURCE_VOLUME, SOURCE, true));
    }
    let container = Container {
        name: CONTAINER.to_owned(),
        image: Some(installation.image.clone()),
        image_pull_policy: installation.pull_policy.clone(),
        args: Some(vec![SEND.to_owned()]),
        ports: Some(vec![ContainerPort {
            name: Some("disk".to_owned()),
            container_port: SEND_PORT.into(),
            protocol: Some("TCP".to_owned()),
            ..ContainerPort::default()
        }]),
        resources: Some(installation.resources.clone()),
        security_context: Some(unprivileged()),
        termination_message_policy: Some("File".to_owned()),
        volume_devices: devices,
        volume_mounts: Some(mounts),
        ..Container::default()
    };
    let name = name(data_volume);
    let secrets = installation.pull_secrets.iter().map(|name| LocalObjectReference { name: name.clone() });
    let spec = PodSpec {
        restart_policy: Some("OnFailure".to_owned()),
        termination_grace_period_seconds: Some(0),
        automount_service_account_token: Some(false),
        enable_service_links: Some(false),
        priority_class_name: data_volume.spec.priority_class_name.clone(),
        image_pull_secrets: Some(secrets.collect::<Vec<_>>()).filter(|all| !all.is_empty()),
        security_context: Some(security()),
        containers: vec![container],
        volumes: Some(vec![volume, receiver_volume()]),
        ..PodSpec::default()
    };
    let mut pod = Pod {
        metadata: metadata(data_volume, (&name, &source.place.namespace), &claim),
        spec: Some(placed(spec, &installation.nodes)),
        status: None,
    };
    keys::give(&mut pod, installation, None);
    pod
}

fn metadata(
    data_volume: &DataVolume,
    (name, namespace): (&str, &str),
    claim: &PersistentVolumeClaim,
) -> ObjectMeta {
    let text = |(name, value): (&str, &str)| (name.to_owned(), value.to_owned());
    let place = format!("{}/{}", data_volume.namespace().unwrap_or_default(), data_volume.name_any());
    let owner = OwnerReference {
        api_version: "v1".to_owned(),
        kind: "PersistentVolumeClaim".to_owned(),
        name: claim.name_any(),
        uid: claim.metadata.uid.clone().unwrap_or_default(),
        controller: None,
        block_owner_deletion: None,
    };
    // Users of another namespace do not choose the networks of a pod in this one.
    let mut annotations = passed::usual();
    annotations.insert(FOR_ANNOTATION.to_owned(), place);
    annotations.insert(UID_ANNOTATION.to_owned(), data_volume.metadata.uid.clone().unwrap_or_default());
    ObjectMeta {
        name: Some(name.to_owned()),
        namespace: Some(namespace.to_owned()),
        labels: Some(LABELS.map(text).into()),
        annotations: Some(annotations),
        owner_references: Some(vec![owner]),
        ..ObjectMeta::default()
    }
}

fn receiver_volume() -> Volume {
    let annotation = ObjectFieldSelector {
        api_version: None,
        field_path: format!("metadata.annotations['{RECEIVER_ANNOTATION}']"),
    };
    let file = DownwardAPIVolumeFile {
        path: RECEIVER_FILE.to_owned(),
        field_ref: Some(annotation),
        ..DownwardAPIVolumeFile::default()
    };
    let source = DownwardAPIVolumeSource { items: Some(vec![file]), default_mode: None };
    Volume { name: RECEIVER_VOLUME.to_owned(), downward_api: Some(source), ..Volume::default() }
}

/// The importer, which receives what the sender sends.
pub(super) fn receiver(
    data_volume: &DataVolume,
    (claim, source): (&PersistentVolumeClaim, &SourceClaim),
    installation: &Installation,
    restarts: Option<i32>,
) -> Pod {
    let sender = source.sender.as_ref().and_then(|sender| sender.pod.as_ref());
    let mut pod = importer::of(data_volume, (claim, None), installation, restarts);
    let job = job::of(data_volume, (claim, source.claim.as_ref()), installation);
    // There is an importer only where the sender is known.
    let job = Job { source: sender.and_then(as_known).unwrap_or(job.source.clone()), ..job };
    for container in &mut pod.spec.get_or_insert_default().containers {
        container.env = Some(vec![importer::variable(JOB, &job)]);
    }
    keys::give(&mut pod, installation, None);
    pod
}
