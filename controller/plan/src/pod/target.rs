//! The pod that a migration moves a guest to: a second launcher of its instance, on another node. Also: which of two pods is
//! an instance's launcher.
//!
//! ```text
//!   the instance's own pod ──┬── a name derived from the migration, and a label with it
//!                            ├── not on a node with another pod of the instance
//!                            ├── on a node that offers the source's processor
//!                            └── container disks of exactly the images that the source has
//! ```

use super::{COMPUTE_CONTAINER, generate_name, name};
use crate::generated;
use barevirt_api::names::{
    APP_LABEL, APP_LAUNCHER, CPU_FEATURE_LABEL, CPU_MODEL_MIGRATION_LABEL, CPU_VENDOR_LABEL,
    CREATED_BY_LABEL, HOST_MODEL_FEATURE_LABEL, HOST_MODEL_LABEL, MACHINE_TYPE_LABEL, MIGRATION_JOB_LABEL,
    USERFAULTFD_RESOURCE,
};
use barevirt_api::passt;
use barevirt_api::v1::{VirtualMachineInstance, VirtualMachineInstanceMigration};
use barevirt_api::valid::ValidVmi;
use k8s_openapi::api::core::v1::{Container, Pod, PodAffinityTerm, PodSpec, SELinuxOptions};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use kube::ResourceExt;
use std::collections::BTreeMap;

/// Annotation on target pods: name of the migration.
pub const JOB_NAME_ANNOTATION: &str = "kubevirt.io/migrationJobName";
/// Label with the node's name.
const HOSTNAME: &str = "kubernetes.io/hostname";
/// CPU models that are the node's own.
const OF_THE_HOST: [&str; 2] = ["host-model", "host-passthrough"];

/// The name of the pod that a migration makes. It is derived from the migration's UID, so that there cannot be two.
#[must_use]
pub fn target_name(vmi_name: &str, migration_uid: &str) -> String {
    generated::name(&generate_name(vmi_name), migration_uid)
}

/// The name of the pod that has an instance's guest, or is to have it: the instance's first launcher, or the one where its
/// latest migration found or brought the guest.
#[must_use]
pub fn launcher_name(vmi: &VirtualMachineInstance) -> String {
    let first = || name(&vmi.name_any(), vmi.metadata.uid.as_deref().unwrap_or_default());
    let state = vmi.status.as_ref().and_then(|status| status.migration_state.as_ref());
    let Some(state) = state else { return first() };
    let switched = state.completed == Some(true) && state.failed != Some(true);
    let known = if switched { &state.target_pod } else { &state.source_pod };
    known.clone().filter(|name| !name.is_empty()).unwrap_or_else(first)
}

/// What a target pod depends on beside its instance.
#[derive(Clone, Copy, Debug)]
pub struct Target<'a> {
    /// The migration.
    pub migration: &'a VirtualMachineInstanceMigration,
    /// The pod that has the guest now.
    pub source: &'a Pod,
    /// Labels of its node.
    pub node_labels: &'a BTreeMap<String, String>,
    /// The boot of its node's kernel (`status.nodeInfo.bootID`); empty if it is not known.
    pub kernel: &'a str,
    /// Whether the target gets the SELinux level of the source.
    pub same_selinux_level: bool,
    /// Whether the guest may be handed over before all of its memory is sent.
    pub post_copy: bool,
}

/// Makes the instance's launcher pod the target of a migration.
pub fn make(pod: &mut Pod, vmi: &ValidVmi, target: &Target<'_>) {
    let migration = target.migration;
    let uid = migration.metadata.uid.as_deref().unwrap_or_default();
    pod.metadata.name = Some(target_name(vmi.name(), uid));
    pod.labels_mut().insert(MIGRATION_JOB_LABEL.to_owned(), uid.to_owned());
    pod.annotations_mut().insert(JOB_NAME_ANNOTATION.to_owned(), migration.name_any());
    let Some(spec) = &mut pod.spec else { return };
    keep_apart(spec, vmi);
    select(spec, vmi, target);
    pin_images(spec, target.source);
    let context = vmi.vmi().status.as_ref().and_then(|status| status.selinux_context.as_deref());
    if let (true, Some(level)) = (target.same_selinux_level, context.and_then(selinux_level)) {
        let options = SELinuxOptions { level: Some(level.to_owned()), ..SELinuxOptions::default() };
        spec.security_context.get_or_insert_default().se_linux_options = Some(options);
    }
    if target.post_copy {
        give_userfaultfd(spec);
    }
    if let (Some(compute), false) = (compute(spec), target.kernel.is_empty()) {
        let told = [SOURCE_KERNEL.to_owned(), target.kernel.to_owned()];
        compute.args.get_or_insert_default().extend(told);
    }
}

/// The argument of a target's launcher, and of the pods that attach its volumes, with the boot of the source's kernel.
const SOURCE_KERNEL: &str = "--source-kernel";

/// That argument of a launcher's pod, with its value, if it has one.
pub(super) fn source_kernel(launcher: &Pod) -> Option<[String; 2]> {
    let containers = launcher.spec.iter().flat_map(|spec| &spec.containers);
    let args = containers.flat_map(|container| container.args.iter().flatten());
    let value = args.skip_while(|arg| *arg != SOURCE_KERNEL).nth(1)?;
    Some([SOURCE_KERNEL.to_owned(), value.clone()])
}

fn compute(spec: &mut PodSpec) -> Option<&mut Container> {
    spec.containers.iter_mut().find(|container| container.name == COMPUTE_CONTAINER)
}

/// QEMU needs `/dev/userfaultfd` to wait for missing memory. Every handler offers the resource, also on a node
/// without the device: to such a node the guest moves without post-copy.
fn give_userfaultfd(spec: &mut PodSpec) {
    let Some(resources) = compute(spec).map(|container| container.resources.get_or_insert_default()) else {
        return;
    };
    for list in [&mut resources.requests, &mut resources.limits] {
        list.get_or_insert_default().insert(USERFAULTFD_RESOURCE.to_owned(), Quantity("1".to_owned()));
    }
}

/// Two launchers of an instance are never on one node. Attachment pods, however, run beside their launcher.
fn keep_apart(spec: &mut PodSpec, vmi: &ValidVmi) {
    let launchers = [(APP_LABEL, APP_LAUNCHER), (CREATED_BY_LABEL, vmi.uid())];
    let labels = launchers.map(|(label, value)| (label.to_owned(), value.to_owned()));
    let term = PodAffinityTerm {
        label_selector: Some(LabelSelector { match_labels: Some(labels.into()), match_expressions: None }),
        topology_key: HOSTNAME.to_owned(),
        ..PodAffinityTerm::default()
    };
    let affinity = spec.affinity.get_or_insert_default().pod_anti_affinity.get_or_insert_default();
    affinity.required_during_scheduling_ignored_during_execution.get_or_insert_default().push(term);
}

/// The instance's own requirements come before the migration's; the source's processor and machine type are added last.
fn select(spec: &mut PodSpec, vmi: &ValidVmi, target: &Target<'_>) {
    let own = spec.node_selector.take().unwrap_or_default();
    let mut selector = target.migration.spec.added_node_selector.clone();
    selector.extend(own);
    if OF_THE_HOST.contains(&vmi.cpu_model()) {
        let former = target.source.spec.as_ref().and_then(|spec| spec.node_selector.as_ref());
        selector.extend(processor(former, target.node_labels));
    }
    if !selector.keys().any(|label| label.starts_with(CPU_VENDOR_LABEL)) {
        let vendor = target.node_labels.keys().find(|label| label.starts_with(CPU_VENDOR_LABEL));
        selector.extend(vendor.map(|label| (label.clone(), "true".to_owned())));
    }
    // The instance may name an alias, which another version of QEMU resolves to another type.
    let machine = vmi.vmi().status.as_ref().and_then(|status| status.machine.as_ref()?.type_.as_ref());
    let machine = machine.filter(|machine| !machine.is_empty());
    selector.extend(machine.map(|machine| (format!("{MACHINE_TYPE_LABEL}{machine}"), "true".to_owned())));
    spec.node_selector = Some(selector);
}

/// The processor that a guest with its node's own model has seen. A pod that a migration made has it in its node selector:
/// its node may have more features, and the guest could not go back.
fn processor(
    former: Option<&BTreeMap<String, String>>,
    node: &BTreeMap<String, String>,
) -> BTreeMap<String, String> {
    let of_pod = former.into_iter().flatten().filter(|(label, _)| {
        label.starts_with(CPU_MODEL_MIGRATION_LABEL) || label.starts_with(CPU_FEATURE_LABEL)
    });
    let of_pod: BTreeMap<_, _> = of_pod.map(|(label, value)| (label.clone(), value.clone())).collect();
    if of_pod.keys().any(|label| label.starts_with(CPU_MODEL_MIGRATION_LABEL)) {
        return of_pod;
    }
    let renamed = |from: &str, to: &str| {
        let found = node.iter().filter_map(|(label, value)| Some((label.strip_prefix(from)?, value)));
        found.map(|(rest, value)| (format!("{to}{rest}"), value.clone())).collect::<Vec<_>>()
    };
    let model = renamed(HOST_MODEL_LABEL, CPU_MODEL_MIGRATION_LABEL);
    if model.is_empty() {
        // The node's processor is not known.
        return BTreeMap::new();
    }
    model.into_iter().chain(renamed(HOST_MODEL_FEATURE_LABEL, CPU_FEATURE_LABEL)).collect()
}

/// A tag may have moved since the source was started. Where the source's status names the image, the target gets the same
/// one.
fn pin_images(spec: &mut PodSpec, source: &Pod) {
    let statuses = source.status.iter().flat_map(|status| status.container_statuses.iter().flatten());
    let ids: BTreeMap<&str, &str> =
        statuses.map(|status| (status.name.as_str(), status.image_id.as_str())).collect();
    // Our own image is this version's, in every container that uses it.
    let ours = spec.containers.iter().find(|container| container.name == COMPUTE_CONTAINER);
    let ours = ours.and_then(|compute| compute.image.clone());
    let theirs = |container: &&mut Container| container.image != ours && container.name != passt::CONTAINER;
    for container in spec.containers.iter_mut().filter(theirs) {
        let image = container.image.as_deref().unwrap_or_default();
        let pinned = ids.get(container.name.as_str()).and_then(|id| pinned(image, id));
        if pinned.is_some() {
            container.image = pinned;
        }
    }
    let former: BTreeMap<&str, &str> = source
        .spec
        .iter()
        .flat_map(|spec| spec.volumes.iter().flatten())
        .filter_map(|volume| Some((volume.name.as_str(), volume.image.as_ref()?.reference.as_deref()?)))
        .filter(|(_, reference)| reference.contains("@sha256:"))
        .collect();
    for volume in spec.volumes.iter_mut().flatten() {
        if let (Some(image), Some(reference)) = (&mut volume.image, former.get(volume.name.as_str())) {
            image.reference = Some((*reference).to_owned());
        }
    }
}

/// The image by its digest; `None` where the identifier has no digest that can be pulled.
fn pinned(image: &str, id: &str) -> Option<String> {
    let (_, digest) = id.rsplit_once('@').filter(|(_, digest)| digest.starts_with("sha256:"))?;
    let without_digest = image.split_once('@').map_or(image, |(repository, _)| repository);
    let tag = without_digest.rfind(':').filter(|colon| !without_digest[*colon..].contains('/'));
    let repository = &without_digest[..tag.unwrap_or(without_digest.len())];
    (!repository.is_empty()).then(|| format!("{repository}@{digest}"))
}

/// `s0:c1,c2` of `system_u:object_r:container_file_t:s0:c1,c2`. Only a level of one container: with a wider one the pod could
/// open the files of others.
fn selinux_level(context: &str) -> Option<&str> {
    let level = context.splitn(4, ':').nth(3)?;
    is_of_one_container(level).then_some(level)
}

/// Whether a level is a sensitivity with two categories, as container runtimes choose it.
fn is_of_one_container(level: &str) -> bool {
    let is = |text: &str, letter: char| {
        let digits = text.strip_prefix(letter).unwrap_or_default();
        (1..=4).contains(&digits.len()) && digits.bytes().all(|digit| digit.is_ascii_digit())
    };
    let parts = level.split_once(':').and_then(|(of, rest)| Some((of, rest.split_once(',')?)));
    parts.is_some_and(|(of, (one, other))| is(of, 's') && is(one, 'c') && is(other, 'c') && one != other)
}

#[cfg(test)]
mod tests;
