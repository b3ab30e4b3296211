//! Directories that the guest mounts by virtiofs: a container for each, which serves that volume and sees no other. It runs
//! unprivileged, like the launcher.
//!
//! Guest memory is charged to the container that touches it first. For memory that the guest has not used yet and reads file
//! contents into, that is the virtiofs container. So each may use as much memory as the guest has, plus what virtiofsd
//! needs. Its request is small: the node counts guest memory once, in the launcher's container. In a pod of the class
//! `Guaranteed`, where requests equal limits and it would be counted again, all guest memory is touched before the guest
//! runs.

use super::disks::{Disks, helper_resources};
use super::parts::{SOCKETS_SIZE, empty_dir, mount, unprivileged};
use crate::config::Config;
use barevirt_api::filesystem::{self, CONTAINER_PATH, SOCKETS};
use barevirt_api::names::COMPUTE_CONTAINER;
use barevirt_api::quantity;
use barevirt_api::v1::Volume;
use barevirt_api::valid::ValidVmi;
use k8s_openapi::api::core::v1::{Container, EnvVar, ResourceRequirements, VolumeMount};
use std::path::Path;

/// The volume with the sockets: KubeVirt's name.
const VOLUME: &str = "virtiofs-containers";
/// What virtiofsd may use itself beside guest memory, in bytes: KubeVirt's limit.
const OWN_MEMORY: u64 = 80_000_000;

/// Adds a container for each directory, and the volume with the sockets.
pub(super) fn add(vmi: &ValidVmi, guaranteed: bool, config: &Config, disks: &mut Disks) {
    let resources = resources(vmi, guaranteed, config);
    let containers: Vec<Container> =
        filesystem::of(vmi.spec()).filter_map(|volume| container(volume, &resources, config)).collect();
    if containers.is_empty() {
        return;
    }
    disks.containers.extend(containers);
    disks.volumes.push(empty_dir(VOLUME, SOCKETS_SIZE));
    disks.compute_mounts.push(mount(VOLUME, SOCKETS));
}

/// Whether directories of the container `compute` are shared. They are mounted when the pod is admitted.
pub(super) fn shares_container_paths(vmi: &ValidVmi) -> bool {
    filesystem::of(vmi.spec()).any(|volume| volume.container_path.is_some())
}

/// Whether a directory of the container `compute` is shared that is this one, or below it.
pub(super) fn shares_from_compute(vmi: &ValidVmi, directory: &str) -> bool {
    let mut sources = filesystem::of(vmi.spec()).filter_map(|volume| volume.container_path.as_ref());
    sources.any(|source| Path::new(&source.path).starts_with(directory))
}

/// The name of the container that has a volume.
pub(super) fn holder(vmi: &ValidVmi, volume: &str) -> String {
    if filesystem::is_shared(vmi.spec(), volume) {
        filesystem::container(volume)
    } else {
        COMPUTE_CONTAINER.to_owned()
    }
}

/// Adds a mount to the container that has the volume.
pub(super) fn mount_object(vmi: &ValidVmi, volume: &str, mounted: VolumeMount, disks: &mut Disks) {
    let holder = holder(vmi, volume);
    match disks.containers.iter_mut().find(|container| container.name == holder) {
        Some(container) => container.volume_mounts.get_or_insert_default().push(mounted),
        None => disks.compute_mounts.push(mounted),
    }
}

fn container(volume: &Volume, resources: &ResourceRequirements, config: &Config) -> Option<Container> {
    // Admission accepts no other kind of volume.
    let directory = filesystem::directory(volume)?;
    let mut command: Vec<String> =
        ["/usr/bin/virt-launcher", "filesystem", "--volume", &volume.name, "--directory", &directory]
            .map(str::to_owned)
            .into();
    if filesystem::is_read_only(volume) {
        command.push("--read-only".to_owned());
    }
    // Often only the pod's user can read tokens.
    if volume.service_account.is_some() || volume.container_path.is_some() {
        command.push("--as-root".to_owned());
    }
    let path = volume.container_path.as_ref().map(|source| EnvVar {
        name: CONTAINER_PATH.to_owned(),
        value: Some(source.path.clone()),
        value_from: None,
    });
    Some(Container {
        name: filesystem::container(&volume.name),
        image: Some(config.launcher_image.clone()),
        image_pull_policy: config.pull_policy().map(str::to_owned),
        command: Some(command),
        env: path.map(|path| vec![path]),
        resources: Some(resources.clone()),
        security_context: Some(unprivileged()),
        // The reason why it ended becomes part of the instance's status.
        termination_message_policy: Some("FallbackToLogsOnError".to_owned()),
        volume_mounts: Some(vec![mount(VOLUME, SOCKETS)]),
        ..Container::default()
    })
}

/// KubeVirt's numbers, plus the guest's memory.
fn resources(vmi: &ValidVmi, guaranteed: bool, config: &Config) -> ResourceRequirements {
    let given = &config.settings.pods.virtiofs;
    let mut resources = helper_resources(given, ["10m", "1M"], ["100m", "80M"]);
    if !guaranteed && !given.limits.contains_key("memory") {
        let guest = vmi.max_guest_memory().unwrap_or(vmi.guest_memory());
        let limit = quantity::from_decimal(guest.saturating_add(OWN_MEMORY));
        resources.limits.get_or_insert_default().insert("memory".to_owned(), limit);
    }
    resources
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pod::claims::{self, Mode};
    use barevirt_api::names::CONTAINER_PATHS_LABEL;
    use barevirt_api::settings::Settings;
    use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
    use serde_json::{Value, json};

    fn config() -> Config {
        Config {
            launcher_image: "launcher".to_owned(),
            image_pull_policy: None,
            settings: Settings::default(),
        }
    }

    fn pod(resources: &Value, config: &Config) -> Value {
        let vmi = serde_json::from_value(json!({
            "metadata": {"name": "vm", "namespace": "ns", "uid": "u"},
            "spec": {
                "domain": {
                    "memory": {"guest": "128Mi"}, "resources": resources,
                    "devices": {"filesystems": [{"name": "files", "virtiofs": {}}, {"name": "conf", "virtiofs": {}},
                        {"name": "robot", "virtiofs": {}}]},
                },
                "volumes": [
                    {"name": "conf", "configMap": {"name": "settings"}},
                    {"name": "disk", "configMap": {"name": "settings"}},
                    {"name": "files", "persistentVolumeClaim": {"claimName": "data"}},
                    {"name": "robot", "serviceAccount": {"serviceAccountName": "robot"}},
                ],
            },
        }));
        let vmi = ValidVmi::new(vmi.unwrap()).unwrap_or_else(|causes| panic!("{causes:?}"));
        let mut pod = crate::pod::build(&vmi, config);
        claims::add(&mut pod, &vmi, |_| Mode::Filesystem);
        serde_json::to_value(pod.spec.unwrap()).unwrap()
    }

    #[test]
    fn each_has_a_container_with_its_volume_and_nothing_else() {
        let spec = pod(&json!({}), &config());
        let sockets = json!({"name": VOLUME, "mountPath": "/var/run/kubevirt/virtiofs-containers"});
        let of = |name: &str| {
            let containers = spec["containers"].as_array().unwrap();
            containers.iter().find(|container| container["name"] == name).cloned().unwrap()
        };
        let files = of("virtiofs-files");
        let path = "/var/run/kubevirt-private/vmi-disks/files";
        assert_eq!(
            files["command"],
            json!(["/usr/bin/virt-launcher", "filesystem", "--volume", "files", "--directory", path])
        );
        assert_eq!(files["volumeMounts"], json!([sockets, {"name": "disk-files", "mountPath": path}]));
        assert_eq!(files["securityContext"], of("compute")["securityContext"]);
        let conf = of("virtiofs-conf");
        let path = "/var/run/kubevirt-private/config-map/conf";
        assert_eq!(
            conf["volumeMounts"],
            json!([sockets, {"name": "object-0", "mountPath": path, "readOnly": true}])
        );
        assert!(conf["command"].as_array().unwrap().contains(&json!("--read-only")));
        assert!(of("virtiofs-robot")["command"].as_array().unwrap().contains(&json!("--as-root")));
        let compute = of("compute")["volumeMounts"].to_string();
        assert!(compute.contains("object-1") && compute.contains(VOLUME), "{compute}");
        for other in ["object-0", "object-3", "disk-files"] {
            assert!(!compute.contains(other), "{compute}");
        }
        // These volumes need no container-disk helper.
        assert_eq!(spec["initContainers"], Value::Null);
    }

    #[test]
    fn a_directory_of_compute_is_named_and_not_mounted_yet() {
        let of = |source: Value| {
            let vmi = serde_json::from_value(json!({
                "metadata": {"name": "vm", "namespace": "ns", "uid": "u"},
                "spec": {
                    "domain": {"memory": {"guest": "128Mi"}, "devices": {"filesystems": [{"name": "token", "virtiofs": {}}]}},
                    "volumes": [source],
                },
            }));
            let vmi = ValidVmi::new(vmi.unwrap()).unwrap_or_else(|causes| panic!("{causes:?}"));
            let pod = serde_json::to_value(crate::pod::build(&vmi, &config())).unwrap();
            let label = pod["metadata"]["labels"][CONTAINER_PATHS_LABEL].clone();
            let mut containers = pod["spec"]["containers"].as_array().unwrap().clone();
            (label, containers.remove(1))
        };
        let (label, container) =
            of(json!({"name": "token", "containerPath": {"path": "/var/run/secrets/cloud"}}));
        assert_eq!((label, &container["name"]), (json!(""), &json!("virtiofs-token")));
        assert_eq!(container["env"], json!([{"name": "CONTAINER_PATH", "value": "/var/run/secrets/cloud"}]));
        let sockets = json!({"name": VOLUME, "mountPath": "/var/run/kubevirt/virtiofs-containers"});
        assert_eq!(container["volumeMounts"], json!([sockets]));
        let command: Vec<&str> =
            container["command"].as_array().unwrap().iter().filter_map(Value::as_str).skip(4).collect();
        let place = "/var/run/kubevirt-private/container-paths/token";
        assert_eq!(command, ["--directory", place, "--read-only", "--as-root"]);
        let (label, container) = of(json!({"name": "token", "configMap": {"name": "c"}}));
        assert_eq!((label, &container["env"]), (Value::Null, &Value::Null));
    }

    #[test]
    fn guest_memory_that_it_touches_first_is_within_its_limit() {
        let of = |spec: &Value| spec["containers"][1]["resources"].clone();
        let spec = pod(&json!({}), &config());
        let memory = (128 << 20) + 80_000_000;
        assert_eq!(
            of(&spec),
            json!({"requests": {"cpu": "10m", "memory": "1M"}, "limits": {"cpu": "100m", "memory": memory.to_string()}})
        );
        let limits =
            json!({"limits": {"cpu": "1", "memory": "512Mi"}, "requests": {"cpu": "1", "memory": "512Mi"}});
        let all = json!({"cpu": "100m", "memory": "80M"});
        assert_eq!(of(&pod(&limits, &config())), json!({"requests": all, "limits": all}));
        let mut config = config();
        config.settings.pods.virtiofs.limits.insert("memory".to_owned(), Quantity("90M".to_owned()));
        assert_eq!(of(&pod(&json!({}), &config))["limits"]["memory"], "90M");
    }
}
