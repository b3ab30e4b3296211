//! Disks that are files of a node: the kubelet mounts the directory of each where the launcher looks for it. Kubernetes
//! decides whether the pod may have it: Pod Security allows such volumes only at the level `privileged`.

use super::disks::Disks;
use super::parts::mount;
use barevirt_api::names::CLAIMS;
use barevirt_api::valid::ValidVmi;
use k8s_openapi::api::core::v1::{HostPathVolumeSource, Volume, VolumeMount};

/// Adds a mount for each such disk. Its volume in the pod is named by its index: the user's name may be that of another
/// volume of the pod.
pub(super) fn add(vmi: &ValidVmi, disks: &mut Disks) {
    for (index, volume) in vmi.volumes().iter().enumerate() {
        let Some(source) = &volume.host_disk else { continue };
        // Admission accepts no other path.
        let Some((directory, _)) = source.place() else { continue };
        let name = format!("host-disk-{index}");
        let is_read = vmi.disks().iter().any(|disk| disk.disk.name == volume.name && disk.disk.is_readonly());
        disks.compute_mounts.push(VolumeMount {
            read_only: is_read.then_some(true),
            ..mount(&name, &format!("{CLAIMS}/{}", volume.name))
        });
        let kind = if source.makes() { "DirectoryOrCreate" } else { "Directory" };
        disks.volumes.push(Volume {
            name,
            host_path: Some(HostPathVolumeSource {
                path: directory.to_owned(),
                type_: Some(kind.to_owned()),
            }),
            ..Volume::default()
        });
    }
}

#[cfg(test)]
mod tests {
    use crate::config::Config;
    use barevirt_api::settings::Settings;
    use barevirt_api::valid::ValidVmi;
    use serde_json::{Value, json};

    #[test]
    fn the_directory_of_each_is_mounted_where_the_launcher_looks() {
        let vmi = serde_json::from_value(json!({
            "metadata": {"name": "vm", "namespace": "ns", "uid": "u"},
            "spec": {
                "domain": {"memory": {"guest": "128Mi"}, "devices": {"disks": [
                    {"name": "scratch", "disk": {"bus": "virtio"}},
                    {"name": "sockets", "disk": {"bus": "virtio"}},
                    {"name": "read", "disk": {"bus": "virtio", "readonly": true}},
                ]}},
                "volumes": [
                    {"name": "scratch", "emptyDisk": {"capacity": "1Gi"}},
                    {"name": "sockets", "hostDisk": {"path": "/srv/a/b.img", "type": "DiskOrCreate", "capacity": "1Gi"}},
                    {"name": "read", "hostDisk": {"path": "/c.img", "type": "Disk"}},
                ],
            },
        }));
        let vmi = ValidVmi::new(vmi.unwrap()).unwrap_or_else(|causes| panic!("{causes:?}"));
        let config = Config {
            launcher_image: "launcher".to_owned(),
            image_pull_policy: None,
            settings: Settings::default(),
        };
        let spec = serde_json::to_value(crate::pod::build(&vmi, &config).spec.unwrap()).unwrap();
        let of = |list: &Value| -> Vec<Value> {
            let list = list.as_array().unwrap().iter().cloned();
            list.filter(|one| one["name"].as_str().unwrap().starts_with("host-disk-")).collect()
        };
        assert_eq!(
            of(&spec["containers"][0]["volumeMounts"]),
            [
                json!({"name": "host-disk-1", "mountPath": "/var/run/kubevirt-private/vmi-disks/sockets"}),
                json!({"name": "host-disk-2", "mountPath": "/var/run/kubevirt-private/vmi-disks/read", "readOnly": true}),
            ]
        );
        assert_eq!(
            of(&spec["volumes"]),
            [
                json!({"name": "host-disk-1", "hostPath": {"path": "/srv/a", "type": "DirectoryOrCreate"}}),
                json!({"name": "host-disk-2", "hostPath": {"path": "/", "type": "Directory"}}),
            ]
        );
    }
}
