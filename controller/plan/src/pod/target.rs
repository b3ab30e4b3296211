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
    CREATED_BY_LABEL, HOST_MODEL_FEATURE_LABEL, HOST_MODEL_LABEL, MIGRATION_JOB_LABEL, USERFAULTFD_RESOURCE,
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
/// SELinux context where there is no SELinux.
const NO_SELINUX: &str = "none";

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

/// The instance's own requirements come before the migration's, and the source's processor is added last.
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

/// `s0:c1,c2` of `system_u:object_r:container_file_t:s0:c1,c2`.
fn selinux_level(context: &str) -> Option<&str> {
    let level = context.splitn(4, ':').nth(3).filter(|level| !level.is_empty());
    level.filter(|_| context != NO_SELINUX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Config;
    use barevirt_api::settings::Settings;
    use serde_json::{Value, json};

    fn valid(spec: &Value, status: &Value) -> ValidVmi {
        let mut spec = spec.clone();
        spec["domain"]["memory"] = json!({"guest": "64Mi"});
        if spec["domain"]["devices"].is_null() {
            spec["domain"]["devices"] = json!({});
        }
        let vmi = json!({"metadata": {"name": "web", "namespace": "ns", "uid": "u1",
            "labels": {"kubevirt.io/nodeName": "a", "kubevirt.io/outdatedLauncherImage": "", "app": "shop"}},
            "spec": spec, "status": status});
        ValidVmi::new(serde_json::from_value(vmi).unwrap()).unwrap_or_else(|causes| panic!("{causes:?}"))
    }

    fn target(vmi: &ValidVmi, source: Value, labels: &[(&str, &str)], added: Value) -> Value {
        target_with(vmi, source, labels, added, false)
    }

    fn target_with(
        vmi: &ValidVmi,
        source: Value,
        labels: &[(&str, &str)],
        added: Value,
        post_copy: bool,
    ) -> Value {
        let config = Config {
            launcher_image: "launcher".to_owned(),
            image_pull_policy: None,
            settings: Settings::default(),
        };
        let mut pod = super::super::build(vmi, &config);
        let migration = serde_json::from_value(json!({
            "metadata": {"name": "move", "namespace": "ns", "uid": "m1"},
            "spec": {"vmiName": "web", "addedNodeSelector": added},
        }))
        .unwrap();
        let source: Pod = serde_json::from_value(source).unwrap();
        let labels = labels.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect();
        let target = Target {
            migration: &migration,
            source: &source,
            node_labels: &labels,
            kernel: "b1",
            same_selinux_level: true,
            post_copy,
        };
        make(&mut pod, vmi, &target);
        serde_json::to_value(pod).unwrap()
    }

    #[test]
    fn it_is_the_launcher_elsewhere() {
        let affinity = json!({"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [
            {"labelSelector": {"matchLabels": {"app": "shop"}}, "topologyKey": "zone"}]}});
        let spec = json!({"domain": {}, "affinity": affinity, "nodeSelector": {"disk": "fast"}});
        let vmi = valid(&spec, &json!({"selinuxContext": "system_u:object_r:container_file_t:s0:c1,c2"}));
        let pod = target(&vmi, json!({}), &[], json!({"disk": "slow", "rack": "7"}));
        assert_eq!(pod["metadata"]["name"], json!(target_name("web", "m1")));
        assert_ne!(target_name("web", "m1"), name("web", "u1"));
        let labels = &pod["metadata"]["labels"];
        assert_eq!((&labels[MIGRATION_JOB_LABEL], &labels[CREATED_BY_LABEL]), (&json!("m1"), &json!("u1")));
        assert_eq!(labels["app"], "shop");
        assert_eq!(
            labels.get("kubevirt.io/nodeName").or(labels.get("kubevirt.io/outdatedLauncherImage")),
            None
        );
        assert_eq!(pod["metadata"]["annotations"][JOB_NAME_ANNOTATION], "move");
        let terms =
            &pod["spec"]["affinity"]["podAntiAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"];
        assert_eq!(terms.as_array().unwrap().len(), 2);
        // The pods that attach its volumes are not excluded.
        let launchers = json!({APP_LABEL: APP_LAUNCHER, CREATED_BY_LABEL: "u1"});
        assert_eq!(terms[1]["labelSelector"]["matchLabels"], launchers);
        assert_eq!(terms[1]["topologyKey"], HOSTNAME);
        // The instance's own requirement comes first.
        let selector = &pod["spec"]["nodeSelector"];
        assert_eq!((&selector["disk"], &selector["rack"]), (&json!("fast"), &json!("7")));
        assert_eq!(pod["spec"]["securityContext"]["seLinuxOptions"]["level"], "s0:c1,c2");
        // The pods that attach its volumes learn from it which kernel the source has.
        let pod: Pod = serde_json::from_value(pod).unwrap();
        assert_eq!(source_kernel(&pod), Some(["--source-kernel".to_owned(), "b1".to_owned()]));
    }

    #[test]
    fn only_a_target_that_may_use_post_copy_gets_userfaultfd() {
        let vmi = valid(&json!({"domain": {}}), &Value::Null);
        let asks = |post_copy: bool| {
            let pod = target_with(&vmi, json!({}), &[], json!({}), post_copy);
            let resources = &pod["spec"]["containers"][0]["resources"];
            ["limits", "requests"].map(|list| resources[list][USERFAULTFD_RESOURCE].clone())
        };
        assert_eq!(asks(false), [Value::Null, Value::Null]);
        assert_eq!(asks(true), [json!("1"), json!("1")]);
    }

    #[test]
    fn it_goes_where_the_processor_is() {
        let node = [
            ("host-model-cpu.node.kubevirt.io/Skylake", "true"),
            ("host-model-required-features.node.kubevirt.io/vmx", "true"),
            ("cpu-vendor.node.kubevirt.io/Intel", "true"),
        ];
        let selector = |model: &str, source: Value, node: &[(&str, &str)]| {
            let vmi = valid(&json!({"domain": {"cpu": {"model": model}}}), &Value::Null);
            let pod = target(&vmi, source, node, json!({}));
            let selector = pod["spec"]["nodeSelector"].as_object().unwrap().clone();
            let of_cpu =
                selector.into_iter().map(|(label, _)| label).filter(|label| label.starts_with("cpu-"));
            of_cpu.collect::<Vec<_>>()
        };
        let from_node = [
            "cpu-feature.node.kubevirt.io/vmx",
            "cpu-model-migration.node.kubevirt.io/Skylake",
            "cpu-vendor.node.kubevirt.io/Intel",
        ];
        for model in OF_THE_HOST {
            assert_eq!(selector(model, json!({}), &node), from_node);
            assert!(selector(model, json!({}), &[]).is_empty());
        }
        // The guest came from an older node, and can go back there.
        let source = json!({"spec": {"containers": [], "nodeSelector": {
            "cpu-model-migration.node.kubevirt.io/Haswell": "true"}}});
        let older = ["cpu-model-migration.node.kubevirt.io/Haswell", "cpu-vendor.node.kubevirt.io/Intel"];
        assert_eq!(selector("host-model", source, &node), older);
        let named = ["cpu-model.node.kubevirt.io/Nehalem", "cpu-vendor.node.kubevirt.io/Intel"];
        assert_eq!(selector("Nehalem", json!({}), &node), named);
    }

    #[test]
    fn passt_is_that_of_this_version() {
        let interfaces = json!([{"name": "default", "passtBinding": {}}]);
        let spec = json!({"domain": {"devices": {"interfaces": interfaces}},
            "networks": [{"name": "default", "pod": {}}]});
        let image = format!("registry:5000/virt-passt@sha256:{}", "a".repeat(64));
        let status =
            json!({"name": "passt", "image": "", "imageID": image, "ready": true, "restartCount": 0});
        let source = json!({"status": {"containerStatuses": [status]}});
        let pod = target(&valid(&spec, &Value::Null), source, &[], json!({}));
        let passt = pod["spec"]["containers"].as_array().unwrap().last().cloned().unwrap();
        assert_eq!((&passt["name"], passt.get("image")), (&json!("passt"), None));
    }

    #[test]
    fn container_disks_are_the_very_images_of_the_source() {
        let spec = json!({"domain": {"devices": {"disks": [{"name": "root", "disk": {}}]}},
            "volumes": [{"name": "root", "containerDisk": {"image": "registry:5000/os/image:latest"}}]});
        let vmi = valid(&spec, &Value::Null);
        let digest = format!("sha256:{}", "a".repeat(64));
        let source = |id: &str| {
            json!({"status": {"containerStatuses": [{"name": "volumeroot", "image": "i", "imageID": id,
                "ready": true, "restartCount": 0}]}})
        };
        let image = |id: &str| {
            let pod = target(&vmi, source(id), &[], json!({}));
            let containers = pod["spec"]["containers"].as_array().unwrap().clone();
            let disk = containers.into_iter().find(|container| container["name"] == "volumeroot").unwrap();
            disk["image"].as_str().unwrap().to_owned()
        };
        let pinned = format!("registry:5000/os/image@{digest}");
        assert_eq!(image(&format!("registry:5000/os/image@{digest}")), pinned);
        assert_eq!(image(&format!("docker-pullable://registry:5000/os/image@{digest}")), pinned);
        for unknown in [digest.as_str(), "", "something@else"] {
            assert_eq!(image(unknown), "registry:5000/os/image:latest");
        }
    }

    #[test]
    fn the_launcher_is_where_the_latest_migration_left_the_guest() {
        let launcher = |state: Value| {
            let vmi = json!({"metadata": {"name": "web", "uid": "u1"}, "spec": {"domain": {"devices": {}}},
                "status": {"migrationState": state}});
            launcher_name(&serde_json::from_value(vmi).unwrap())
        };
        let state = |more: Value| {
            let mut state = json!({"sourcePod": "old", "targetPod": "new"});
            crate::merge::apply(&mut state, &more);
            state
        };
        assert_eq!(launcher(Value::Null), name("web", "u1"));
        assert_eq!(launcher(json!({"migrationUid": "m1"})), name("web", "u1"));
        assert_eq!(launcher(state(json!({}))), "old");
        assert_eq!(launcher(state(json!({"completed": true, "failed": true}))), "old");
        assert_eq!(launcher(state(json!({"failed": true}))), "old");
        assert_eq!(launcher(state(json!({"completed": true}))), "new");
    }
}
