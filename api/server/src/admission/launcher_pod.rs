//! Completes a launcher's pod before it is stored: directories that webhooks have mounted in its container
//! `compute` are also mounted in the containers that serve them to the guest. Pure.
//!
//! Webhooks add tokens of a cloud or secrets of a vault to pods after virt-controller has made them. So this
//! module reads the pod as these webhooks leave it, and the API server asks again if later webhooks change it.
//!
//! ```text
//!   compute          mounts: token at /var/run/secrets/cloud                <── a user's webhook
//!   virtiofs-token   CONTAINER_PATH=/var/run/secrets/cloud
//!                    mounts: token at .../container-paths/token, read-only  <── this webhook
//! ```
//!
//! No path is opened here. A path below a mount becomes a `subPath`, which the kubelet resolves without leaving
//! the volume.

use std::path::{Component, Path};

use barevirt_api::filesystem::{self, CONTAINER_PATH};
use barevirt_api::names::COMPUTE_CONTAINER;
use json_patch::jsonptr::PointerBuf;
use json_patch::{AddOperation, Patch, PatchOperation};
use k8s_openapi::api::core::v1::{Container, Pod, PodSpec, Volume, VolumeMount};
use serde_json::json;

/// Adds the missing mounts. A directory that does not exist or must not be shared gets none: virt-controller
/// reports it.
pub(super) fn complete(pod: &Pod) -> Patch {
    let Some(spec) = &pod.spec else { return Patch::default() };
    let missing = spec.containers.iter().enumerate().filter_map(|(index, container)| {
        let mount = missing(spec, container)?;
        let index = index.to_string();
        let list = ["spec", "containers", index.as_str(), "volumeMounts"];
        Some(match &container.volume_mounts {
            Some(_) => add(list.into_iter().chain(["-"]), json!(mount)),
            None => add(list, json!([mount])),
        })
    });
    Patch(missing.collect())
}

fn add<'a>(path: impl IntoIterator<Item = &'a str>, value: serde_json::Value) -> PatchOperation {
    PatchOperation::Add(AddOperation { path: PointerBuf::from_tokens(path), value })
}

/// The mount that a container needs for the directory that it serves, unless it has this mount.
fn missing(spec: &PodSpec, container: &Container) -> Option<VolumeMount> {
    let place = filesystem::container_path(filesystem::served(&container.name)?);
    let variable = container.env.iter().flatten().find(|variable| variable.name == CONTAINER_PATH)?;
    if container.volume_mounts.iter().flatten().any(|mount| mount.mount_path == place) {
        return None;
    }
    let compute = spec.containers.iter().find(|container| container.name == COMPUTE_CONTAINER)?;
    let path = Path::new(variable.value.as_deref()?);
    let (mount, below) = deepest(compute.volume_mounts.as_deref().unwrap_or_default(), path)?;
    let volume = spec.volumes.iter().flatten().find(|volume| volume.name == mount.name)?;
    // `subPathExpr` uses environment variables of the container `compute`, which this container does not have.
    if filesystem::private_prefix(&mount.mount_path).is_some()
        || !can_be_shared(volume)
        || mount.sub_path_expr.as_deref().is_some_and(|text| !text.is_empty())
    {
        return None;
    }
    let parts = [mount.sub_path.as_deref().unwrap_or_default(), below];
    let parts: Vec<&str> = parts.into_iter().filter(|part| !part.is_empty()).collect();
    Some(VolumeMount {
        name: mount.name.clone(),
        mount_path: place,
        read_only: Some(true),
        sub_path: Some(parts.join("/")).filter(|path| !path.is_empty()),
        ..VolumeMount::default()
    })
}

/// The mount at a path or nearest above it, and the rest of the path.
fn deepest<'a>(mounts: &'a [VolumeMount], path: &'a Path) -> Option<(&'a VolumeMount, &'a str)> {
    let is_plain = |part: Component<'_>| matches!(part, Component::RootDir | Component::Normal(_));
    if !path.is_absolute() || !path.components().all(is_plain) {
        return None;
    }
    let above =
        mounts.iter().filter_map(|mount| Some((mount, path.strip_prefix(&mount.mount_path).ok()?.to_str()?)));
    above.max_by_key(|(mount, _)| Path::new(&mount.mount_path).components().count())
}

/// Volumes that Kubernetes fills, and volumes that exist only in the pod: KubeVirt's list.
fn can_be_shared(volume: &Volume) -> bool {
    volume.config_map.is_some()
        || volume.secret.is_some()
        || volume.projected.is_some()
        || volume.downward_api.is_some()
        || volume.empty_dir.is_some()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::Value;

    const PLACE: &str = "/var/run/kubevirt-private/container-paths/token";

    /// A pod whose guest shares this path, with these mounts in its container `compute`.
    fn pod(path: &str, mounts: Value) -> Pod {
        serde_json::from_value(json!({
            "metadata": {"name": "virt-launcher-vm"},
            "spec": {
                "containers": [
                    {"name": "compute", "volumeMounts": mounts},
                    {"name": "virtiofs-token", "env": [{"name": "CONTAINER_PATH", "value": path}],
                        "volumeMounts": [{"name": "virtiofs-containers", "mountPath": filesystem::SOCKETS}]},
                ],
                "volumes": [
                    {"name": "cloud", "projected": {"sources": [{"serviceAccountToken": {"path": "token"}}]}},
                    {"name": "vault", "emptyDir": {"medium": "Memory"}},
                    {"name": "claim", "persistentVolumeClaim": {"claimName": "c"}},
                    {"name": "host", "hostPath": {"path": "/"}},
                    {"name": "private", "emptyDir": {}},
                ],
            },
        }))
        .unwrap()
    }

    /// The mount that is added; null if there is none.
    fn added(path: &str, mounts: Value) -> Value {
        let mut object = json!(pod(path, mounts));
        let before = object["spec"]["containers"][1]["volumeMounts"].as_array().unwrap().len();
        let patch = complete(&serde_json::from_value(object.clone()).unwrap());
        json_patch::patch(&mut object, &patch).unwrap();
        let after = object["spec"]["containers"][1]["volumeMounts"].as_array().unwrap().clone();
        assert!(after.len() <= before + 1);
        after.get(before).cloned().unwrap_or_default()
    }

    #[test]
    fn mounts_of_compute_are_copied_read_only_to_their_virtiofs_containers() {
        let mounts = json!([
            {"name": "vault", "mountPath": "/vault"},
            {"name": "cloud", "mountPath": "/var/run/secrets/cloud"},
            {"name": "vault", "mountPath": "/deep", "subPath": "a"},
        ]);
        let mount = |name: &str, below: Option<&str>| {
            let mut mount = json!({"name": name, "mountPath": PLACE, "readOnly": true});
            if let Some(below) = below {
                mount["subPath"] = json!(below);
            }
            mount
        };
        for (path, wanted) in [
            ("/var/run/secrets/cloud", mount("cloud", None)),
            ("/var/run/secrets/cloud/", mount("cloud", None)),
            ("/var/run/secrets/cloud/eu/west", mount("cloud", Some("eu/west"))),
            ("/vault", mount("vault", None)),
            ("/deep", mount("vault", Some("a"))),
            ("/deep/b", mount("vault", Some("a/b"))),
        ] {
            assert_eq!(added(path, mounts.clone()), wanted, "{path}");
        }
    }

    #[test]
    fn the_nearest_mount_counts_and_no_other() {
        let nested =
            |inner: &str| json!([{"name": "vault", "mountPath": "/a"}, {"name": inner, "mountPath": "/a/b"}]);
        assert_eq!(added("/a/b/c", nested("cloud"))["name"], "cloud");
        assert_eq!(added("/a/bc", nested("cloud"))["subPath"], "bc");
        // The container does not see the outer volume's files below /a/b: the inner mount hides them.
        assert_eq!(added("/a/b/c", nested("claim")), Value::Null);
    }

    #[test]
    fn nothing_else_is_shared() {
        let all = json!([
            {"name": "cloud", "mountPath": "/cloud"},
            {"name": "claim", "mountPath": "/claim"},
            {"name": "host", "mountPath": "/host"},
            {"name": "gone", "mountPath": "/gone"},
            {"name": "vault", "mountPath": "/expression", "subPathExpr": "$(POD_NAME)"},
            {"name": "private", "mountPath": "/var/run/kubevirt-private"},
            {"name": "private", "mountPath": "/var/run/kubevirt/sockets"},
        ]);
        for path in [
            "/claim",
            "/host/etc",
            "/gone",
            "/expression",
            "/",
            "/proc",
            "/clouds",
            "cloud",
            "",
            "/cloud/../host",
            "/cloud/..",
            "/var/run/kubevirt-private/qemu",
            "/var//run/kubevirt-private",
            "/var/run/./kubevirt/sockets",
        ] {
            assert_eq!(added(path, all.clone()), Value::Null, "{path}");
        }
    }

    #[test]
    fn a_pod_that_was_looked_at_stays_as_it_is() {
        let mounts = json!([{"name": "cloud", "mountPath": "/cloud"}]);
        let mut object = json!(pod("/cloud", mounts));
        let read = |object: &Value| serde_json::from_value::<Pod>(object.clone()).unwrap();
        let patch = complete(&read(&object));
        assert_eq!(patch.len(), 1);
        json_patch::patch(&mut object, &patch).unwrap();
        assert!(complete(&read(&object)).is_empty());
        // A container that serves another volume, and a container that only has the variable.
        let other = json!({"spec": {"containers": [
            {"name": "compute", "volumeMounts": [{"name": "cloud", "mountPath": "/cloud"}]},
            {"name": "virtiofs-conf"},
            {"name": "sidecar", "env": [{"name": "CONTAINER_PATH", "value": "/cloud"}]},
        ]}});
        assert!(complete(&read(&other)).is_empty());
    }
}
