//! The pod that claims wait for before they are filled. Building it is pure and cannot fail.
//!
//! Storage that is local to nodes waits until a pod that uses it is placed (`WaitForFirstConsumer`). The importer of a claim
//! waits for the storage, and the launcher waits until the claim is filled. So this pod goes first: it is placed as its
//! successor will be, with the same claims and with the same resources of containers, and ends as soon as it runs.
//!
//! ```text
//!   before a launcher          a copy of each container, the claims of its disks and the claim with its state
//!   before an attachment pod   a copy of its container and its claim, on the guest's node
//! ```
//!
//! It is not a launcher: it has none of the labels by which launchers and guests are found, and is never ready.

use super::attachment;
use super::parts::unprivileged;
use crate::config::Config;
use crate::generated;
use barevirt_api::names::{
    APP_FIRST_CONSUMER, APP_LABEL, CLAIM_ANNOTATION, DOMAIN_ANNOTATION, PROVISIONING_ANNOTATION,
    VM_NAME_LABEL, VMI_ID_LABEL, VOLUME_ANNOTATION,
};
use barevirt_api::valid::ValidVmi;
use k8s_openapi::api::core::v1::{Container, Pod, PodReadinessGate, PodSpec, Volume};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

/// A condition that is never set: so a service that selects guests by users' labels never sends anything here.
const GATE: &str = "barevirt.dev/guest";

/// Annotations that say what the pod is for. Users' annotations are not copied: they may ask for networks or containers.
const OWN_ANNOTATIONS: [&str; 3] = [DOMAIN_ANNOTATION, VOLUME_ANNOTATION, CLAIM_ANNOTATION];

/// The name of the pod that goes before an instance's launcher.
pub fn name(vmi_name: &str, vmi_uid: &str) -> String {
    generated::name(&format!("first-consumer-{vmi_name}-"), vmi_uid)
}

/// The name of the pod that goes before an attachment pod, derived from that pod's name alone, and as long.
pub fn name_beside(attachment: &str) -> String {
    let rest = attachment.strip_prefix(attachment::PREFIX).unwrap_or(attachment);
    format!("hp-binder-{rest}")
}

/// The pod that goes before a launcher. It has the same owner.
pub fn before(launcher: &Pod, vmi: &ValidVmi, config: &Config) -> Pod {
    of(launcher, name(vmi.name(), vmi.uid()), config)
}

/// The pod that goes before an attachment pod.
pub fn beside(vmi: &ValidVmi, wanted: &attachment::Wanted<'_>, launcher: &Pod, config: &Config) -> Pod {
    let attachment = attachment::build(vmi, wanted, launcher, config);
    let name = name_beside(attachment.metadata.name.as_deref().unwrap_or_default());
    of(&attachment, name, config)
}

fn of(next: &Pod, name: String, config: &Config) -> Pod {
    let spec = next.spec.clone().unwrap_or_default();
    let on_claim = |volume: &Volume| volume.persistent_volume_claim.is_some();
    let volumes: Vec<Volume> = spec.volumes.into_iter().flatten().filter(on_claim).collect();
    let containers =
        spec.containers.into_iter().map(|container| ends_at_once(container, &volumes, config)).collect();
    Pod {
        metadata: metadata(&next.metadata, name),
        spec: Some(PodSpec {
            restart_policy: Some("Never".to_owned()),
            termination_grace_period_seconds: Some(1),
            readiness_gates: Some(vec![PodReadinessGate { condition_type: GATE.to_owned() }]),
            // Fields that only a guest needs.
            hostname: None,
            subdomain: None,
            dns_policy: None,
            dns_config: None,
            init_containers: None,
            containers,
            volumes: Some(volumes),
            ..spec
        }),
        status: None,
    }
}

/// Users' own labels stay: affinities and topology spreads may use them.
fn metadata(next: &ObjectMeta, name: String) -> ObjectMeta {
    let mut labels = next.labels.clone().unwrap_or_default();
    labels.retain(|label, _| ![VM_NAME_LABEL, VMI_ID_LABEL].contains(&label.as_str()));
    labels.insert(APP_LABEL.to_owned(), APP_FIRST_CONSUMER.to_owned());
    let mut annotations = next.annotations.clone().unwrap_or_default();
    annotations.retain(|annotation, _| OWN_ANNOTATIONS.contains(&annotation.as_str()));
    annotations.insert(PROVISIONING_ANNOTATION.to_owned(), "true".to_owned());
    ObjectMeta {
        name: Some(name),
        namespace: next.namespace.clone(),
        labels: Some(labels),
        annotations: Some(annotations),
        owner_references: next.owner_references.clone(),
        ..ObjectMeta::default()
    }
}

/// A container with the resources and claims of another one, which does nothing and ends.
fn ends_at_once(container: Container, volumes: &[Volume], config: &Config) -> Container {
    let has = |name: &str| volumes.iter().any(|volume| volume.name == name);
    let mounts = container.volume_mounts.map(|mut mounts| {
        mounts.retain(|mount| has(&mount.name));
        mounts
    });
    Container {
        name: container.name,
        image: Some(config.launcher_image.clone()),
        image_pull_policy: config.pull_policy().map(str::to_owned),
        command: Some(vec!["/usr/bin/virt-launcher".to_owned(), "version".to_owned()]),
        resources: container.resources,
        security_context: Some(unprivileged()),
        volume_mounts: mounts.filter(|mounts| !mounts.is_empty()),
        volume_devices: container.volume_devices,
        ..Container::default()
    }
}

#[cfg(test)]
mod tests {
    use super::super::attachment::Access;
    use super::super::claims::{self, Mode};
    use super::*;
    use crate::pod;
    use barevirt_api::settings::Settings;
    use serde_json::{Value, json};

    const UID: &str = "4f2a9bd2-5a0c-4d7e-9d4e-0c6b1a2f3e4d";

    fn config() -> Config {
        Config {
            launcher_image: "registry/virt-launcher:1".to_owned(),
            image_pull_policy: Some("IfNotPresent".to_owned()),
            settings: Settings::default(),
        }
    }

    fn valid() -> ValidVmi {
        let disks =
            ["root", "system", "logs", "later"].map(|name| json!({"name": name, "disk": {"bus": "scsi"}}));
        let vmi = json!({
            "metadata": {"name": "testvm", "namespace": "ns", "uid": UID, "labels": {"app": "web"},
                "annotations": {"k8s.v1.cni.cncf.io/networks": "other"}},
            "spec": {
                "domain": {"cpu": {"cores": 2}, "memory": {"guest": "1Gi"}, "devices": {"disks": disks}},
                "volumes": [
                    {"name": "root", "containerDisk": {"image": "registry/fedora:1", "imagePullSecret": "pull"}},
                    {"name": "system", "dataVolume": {"name": "system"}},
                    {"name": "logs", "persistentVolumeClaim": {"claimName": "logs"}},
                    {"name": "later", "dataVolume": {"name": "later", "hotpluggable": true}},
                ],
                "hostname": "web", "subdomain": "sites", "terminationGracePeriodSeconds": 180,
                "nodeSelector": {"disk": "fast"}, "schedulerName": "mine", "priorityClassName": "high",
                "serviceAccountName": "robot", "tolerations": [{"key": "vm", "operator": "Exists"}],
                "affinity": {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [
                    {"topologyKey": "kubernetes.io/hostname", "labelSelector": {"matchLabels": {"app": "web"}}}]}},
                "topologySpreadConstraints": [{"maxSkew": 1, "topologyKey": "zone",
                    "whenUnsatisfiable": "DoNotSchedule", "labelSelector": {"matchLabels": {"app": "web"}}}],
            },
        });
        ValidVmi::new(serde_json::from_value(vmi).unwrap()).unwrap_or_else(|causes| panic!("{causes:?}"))
    }

    fn launcher(vmi: &ValidVmi) -> Pod {
        let mut launcher = pod::build(vmi, &config());
        claims::add(&mut launcher, vmi, |claim| Mode::of((claim == "logs").then_some("Block")));
        pod::state::add(&mut launcher, "kept");
        launcher
    }

    #[test]
    fn before_a_launcher() {
        let vmi = valid();
        let pod = before(&launcher(&vmi), &vmi, &config());
        insta::assert_snapshot!(serde_saphyr::to_string(&serde_json::to_value(&pod).unwrap()).unwrap());
    }

    #[test]
    fn it_is_placed_as_its_launcher_will_be() {
        let vmi = valid();
        let launcher = launcher(&vmi);
        let pod = before(&launcher, &vmi, &config());
        let (pod, launcher) = (serde_json::to_value(pod).unwrap(), serde_json::to_value(launcher).unwrap());
        for field in [
            "nodeSelector",
            "affinity",
            "tolerations",
            "topologySpreadConstraints",
            "schedulerName",
            "priorityClassName",
            "serviceAccountName",
            "securityContext",
            "imagePullSecrets",
        ] {
            assert_ne!(pod["spec"][field], Value::Null, "{field}");
            assert_eq!(pod["spec"][field], launcher["spec"][field], "{field}");
        }
        let resources = |pod: &Value| -> Vec<Value> {
            let containers = pod["spec"]["containers"].as_array().unwrap();
            containers.iter().map(|container| container["resources"].clone()).collect()
        };
        assert_eq!(resources(&pod), resources(&launcher));
        assert_eq!(pod["metadata"]["ownerReferences"], launcher["metadata"]["ownerReferences"]);
    }

    #[test]
    fn it_is_not_taken_for_a_launcher() {
        let vmi = valid();
        let launcher = launcher(&vmi);
        let pod = before(&launcher, &vmi, &config());
        assert_ne!(pod.metadata.name, launcher.metadata.name);
        let labels = pod.metadata.labels.unwrap();
        assert_eq!(labels[APP_LABEL], APP_FIRST_CONSUMER);
        assert!(!labels.contains_key(VM_NAME_LABEL) && !labels.contains_key(VMI_ID_LABEL), "{labels:?}");
        // Affinities find it by this label.
        assert_eq!(labels["app"], "web");
    }

    #[test]
    fn the_one_before_an_attachment_pod_has_its_claim_and_its_node() {
        let vmi = valid();
        let volume = vmi.volumes().iter().find(|volume| volume.name == "later").unwrap();
        let wanted = attachment::Wanted {
            volume: &volume.name,
            claim: volume.claim().unwrap(),
            mode: Mode::Block,
            size: None,
            exact: false,
            access: Access::Writes,
        };
        let launcher = serde_json::from_value(json!({
            "metadata": {"name": "virt-launcher-testvm-x", "uid": "p1"}, "spec": {"nodeName": "node01", "containers": []},
        }));
        let pod = beside(&vmi, &wanted, &launcher.unwrap(), &config());
        insta::assert_snapshot!(serde_saphyr::to_string(&serde_json::to_value(&pod).unwrap()).unwrap());
    }

    #[test]
    fn names_follow_and_fit() {
        assert_eq!(name("web", UID), name("web", UID));
        assert_ne!(name("web", UID), name("web", "other"));
        assert!(name(&"w".repeat(63), UID).len() <= 63);
        let long = attachment::name(UID, &"v".repeat(63), "a", Access::Writes, None);
        let beside = name_beside(&long);
        assert!(beside != long && beside.len() == long.len(), "{beside}");
        assert_ne!(beside, name_beside(&attachment::name(UID, &"v".repeat(63), "b", Access::Writes, None)));
    }
}
