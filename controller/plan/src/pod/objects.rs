//! Volumes made of ConfigMaps, Secrets, the downward API and service accounts: the kubelet mounts them where the launcher
//! makes a disk of each, or into the container that shares them. No other component of ours reads them.

use super::disks::Disks;
use super::filesystems;
use super::parts::mount;
use barevirt_api::object_volume::{self, DIRECTORY};
use barevirt_api::v1;
use barevirt_api::valid::ValidVmi;
use k8s_openapi::api::core::v1::{
    ConfigMapProjection, ConfigMapVolumeSource, DownwardAPIProjection, DownwardAPIVolumeFile,
    DownwardAPIVolumeSource, KeyToPath, ObjectFieldSelector, ProjectedVolumeSource, SecretVolumeSource,
    ServiceAccountTokenProjection, Volume, VolumeMount, VolumeProjection,
};

/// ConfigMap in each namespace with the CA certificate of the cluster's API server.
const ROOT_CERTIFICATE: &str = "kube-root-ca.crt";
/// Requested lifetime of a token, in seconds: the same as Kubernetes' for other pods. API servers in their usual
/// configuration recognise this number and extend such a token to a year; the guest gets a newer one only when it is started
/// again.
const TOKEN_SECONDS: i64 = 3607;

/// Where Kubernetes mounts the token of its account into a container. The launcher's container has it there only if the guest
/// is to have that directory.
const ACCOUNT: &str = "/var/run/secrets/kubernetes.io/serviceaccount";

/// Adds a mount for each such volume. Its volume in the pod is named by its index: the user's name may be that of another
/// volume of the pod.
pub(super) fn add(vmi: &ValidVmi, disks: &mut Disks) {
    for (index, volume) in vmi.volumes().iter().enumerate() {
        let Some(object) = object_volume::of(volume) else { continue };
        let name = format!("object-{index}");
        let mounted =
            VolumeMount { read_only: Some(true), ..mount(&name, &format!("{DIRECTORY}/{}", object.files())) };
        filesystems::mount_object(vmi, &volume.name, mounted, disks);
        if volume.service_account.is_some() && filesystems::shares_from_compute(vmi, ACCOUNT) {
            let usual = VolumeMount { read_only: Some(true), ..mount(&name, ACCOUNT) };
            disks.compute_mounts.push(usual);
        }
        disks.volumes.push(Volume { name, ..source(volume) });
    }
}

/// The source of the pod's volume. Admission accepts exactly one source.
fn source(volume: &v1::Volume) -> Volume {
    let mut mounted = Volume::default();
    if let Some(given) = &volume.config_map {
        mounted.config_map = Some(config_map(given.name.clone().unwrap_or_default(), given.optional));
    }
    if let Some(given) = &volume.secret {
        mounted.secret = Some(secret(given.secret_name.clone(), given.optional));
    }
    if let Some(given) = &volume.downward_api {
        mounted.downward_api = Some(DownwardAPIVolumeSource {
            items: Some(given.fields.clone()),
            ..DownwardAPIVolumeSource::default()
        });
    }
    if volume.service_account.is_some() {
        mounted.projected = Some(service_account());
    }
    if let Some(given) = &volume.sysprep {
        mounted.config_map = given.config_map.as_ref().map(|object| config_map(object.name.clone(), None));
        mounted.secret = given.secret.as_ref().map(|object| secret(Some(object.name.clone()), None));
    }
    mounted
}

fn config_map(name: String, optional: Option<bool>) -> ConfigMapVolumeSource {
    ConfigMapVolumeSource { name, optional, ..ConfigMapVolumeSource::default() }
}

fn secret(secret_name: Option<String>, optional: Option<bool>) -> SecretVolumeSource {
    SecretVolumeSource { secret_name, optional, ..SecretVolumeSource::default() }
}

/// What Kubernetes mounts by itself into all containers of other pods. Here only the launcher's container has it, since the
/// others may be users' images.
fn service_account() -> ProjectedVolumeSource {
    let token = ServiceAccountTokenProjection {
        expiration_seconds: Some(TOKEN_SECONDS),
        path: "token".to_owned(),
        ..ServiceAccountTokenProjection::default()
    };
    let certificate = ConfigMapProjection {
        name: ROOT_CERTIFICATE.to_owned(),
        items: Some(vec![KeyToPath {
            key: "ca.crt".to_owned(),
            path: "ca.crt".to_owned(),
            ..KeyToPath::default()
        }]),
        ..ConfigMapProjection::default()
    };
    let namespace = DownwardAPIProjection {
        items: Some(vec![DownwardAPIVolumeFile {
            path: "namespace".to_owned(),
            field_ref: Some(ObjectFieldSelector {
                api_version: Some("v1".to_owned()),
                field_path: "metadata.namespace".to_owned(),
            }),
            ..DownwardAPIVolumeFile::default()
        }]),
    };
    ProjectedVolumeSource {
        default_mode: None,
        sources: Some(vec![
            VolumeProjection { service_account_token: Some(token), ..VolumeProjection::default() },
            VolumeProjection { config_map: Some(certificate), ..VolumeProjection::default() },
            VolumeProjection { downward_api: Some(namespace), ..VolumeProjection::default() },
        ]),
    }
}

#[cfg(test)]
mod tests {
    use crate::config::Config;
    use barevirt_api::settings::Settings;
    use barevirt_api::valid::ValidVmi;
    use k8s_openapi::api::core::v1::PodSpec;
    use serde_json::{Value, json};

    fn pod(volumes: Value) -> PodSpec {
        pod_with(volumes, json!([]))
    }

    fn pod_with(volumes: Value, filesystems: Value) -> PodSpec {
        let devices = json!({"filesystems": filesystems});
        let vmi = serde_json::from_value(json!({
            "metadata": {"name": "vm", "namespace": "ns", "uid": "u"},
            "spec": {"domain": {"memory": {"guest": "128Mi"}, "devices": devices}, "volumes": volumes},
        }));
        let mut vmi = vmi.unwrap();
        barevirt_api::defaults::vmi(&mut vmi);
        let vmi = ValidVmi::new(vmi).unwrap_or_else(|causes| panic!("{causes:?}"));
        let config = Config {
            launcher_image: "launcher".to_owned(),
            image_pull_policy: None,
            settings: Settings::default(),
        };
        crate::pod::build(&vmi, &config).spec.unwrap()
    }

    #[test]
    fn each_object_is_mounted_for_reading_in_the_launchers_container_alone() {
        let spec = pod(json!([
            {"name": "root", "containerDisk": {"image": "a"}},
            {"name": "private", "configMap": {"name": "settings", "optional": true, "volumeLabel": "l"}},
            {"name": "key-access-cred", "secret": {"secretName": "key"}},
            {"name": "me", "downwardAPI": {"fields": [
                {"path": "labels", "fieldRef": {"fieldPath": "metadata.labels"}}]}},
            {"name": "token", "serviceAccount": {"serviceAccountName": "robot"}},
            {"name": "answers", "sysprep": {"secret": {"name": "unattend"}}},
            {"name": "more", "sysprep": {"configMap": {"name": "unattend"}}},
        ]));
        let value = serde_json::to_value(&spec).unwrap();
        let of = |list: &Value| -> Vec<Value> {
            let list = list.as_array().unwrap().iter().cloned();
            list.filter(|one| one["name"].as_str().unwrap().starts_with("object-")).collect()
        };
        let mounts = [
            (1, "config-map/private"),
            (2, "secret-volume/key-access-cred"),
            (3, "downwardapi/me"),
            (4, "service-account/token"),
            (5, "sysprep/answers"),
            (6, "sysprep/more"),
        ];
        let mounts = mounts.map(|(index, path)| {
            json!({"name": format!("object-{index}"), "mountPath": format!("/var/run/kubevirt-private/{path}"),
                "readOnly": true})
        });
        assert_eq!(of(&value["containers"][0]["volumeMounts"]), mounts);
        for other in [&value["containers"][1], &value["initContainers"][0]] {
            assert_eq!(of(&other["volumeMounts"]), Vec::<Value>::new());
        }
        let token = json!([
            {"serviceAccountToken": {"path": "token", "expirationSeconds": 3607}},
            {"configMap": {"name": "kube-root-ca.crt", "items": [{"key": "ca.crt", "path": "ca.crt"}]}},
            {"downwardAPI": {"items": [
                {"path": "namespace", "fieldRef": {"apiVersion": "v1", "fieldPath": "metadata.namespace"}}]}},
        ]);
        let volumes = [
            json!({"name": "object-1", "configMap": {"name": "settings", "optional": true}}),
            json!({"name": "object-2", "secret": {"secretName": "key"}}),
            json!({"name": "object-3", "downwardAPI": {"items": [
                {"path": "labels", "fieldRef": {"fieldPath": "metadata.labels"}}]}}),
            json!({"name": "object-4", "projected": {"sources": token}}),
            json!({"name": "object-5", "secret": {"secretName": "unattend"}}),
            json!({"name": "object-6", "configMap": {"name": "unattend"}}),
        ];
        assert_eq!(of(&value["volumes"]), volumes);
        assert_eq!(spec.service_account_name.as_deref(), Some("robot"));
        assert_eq!(spec.automount_service_account_token, Some(false));
    }

    #[test]
    fn the_usual_directory_of_the_account_is_there_if_the_guest_is_to_have_it() {
        let account = "/var/run/secrets/kubernetes.io/serviceaccount";
        let robot = json!({"name": "robot", "serviceAccount": {"serviceAccountName": "robot"}});
        let mounts = |path: &str| {
            let cloud = json!({"name": "cloud", "containerPath": {"path": path}});
            let shared = json!([{"name": "cloud", "virtiofs": {}}]);
            let containers = pod_with(json!([robot, cloud]), shared).containers;
            let mounts = containers[0].volume_mounts.clone().unwrap();
            let mounts = mounts.into_iter().filter(|mount| mount.name == "object-0");
            mounts.map(|mount| (mount.mount_path, mount.read_only)).collect::<Vec<_>>()
        };
        let own = ("/var/run/kubevirt-private/service-account/robot".to_owned(), Some(true));
        let usual = (account.to_owned(), Some(true));
        for path in [account.to_owned(), format!("{account}/"), format!("{account}/token")] {
            assert_eq!(mounts(&path), [own.clone(), usual.clone()], "{path}");
        }
        for path in ["/var/run/secrets/kubernetes.io", "/var/run/secrets/kubernetes.io/serviceaccounts"] {
            assert_eq!(mounts(path), std::slice::from_ref(&own), "{path}");
        }
    }

    #[test]
    fn without_such_a_volume_the_pod_has_no_account_of_its_own() {
        let spec = pod(json!([{"name": "settings", "configMap": {"name": "settings"}}]));
        assert_eq!(spec.service_account_name, None);
    }
}
