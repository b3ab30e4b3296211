//! Claims in the pod: mounted if they are file systems, otherwise devices; in the launcher's container, or in the container
//! that shares them.

use super::filesystems;
use super::parts::mount;
use barevirt_api::names::{CLAIM_DEVICES, CLAIMS};
use barevirt_api::settings::Room;
use barevirt_api::v1::VirtualMachineInstance;
use barevirt_api::valid::ValidVmi;
use k8s_openapi::api::core::v1::{PersistentVolumeClaimVolumeSource, Pod, Volume, VolumeDevice, VolumeMount};

/// How a pod's containers see a claim.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// Files.
    Filesystem,
    /// A device.
    Block,
}

impl Mode {
    /// The mode of a claim, by its `volumeMode`.
    #[must_use]
    pub fn of(volume_mode: Option<&str>) -> Self {
        if volume_mode == Some("Block") { Mode::Block } else { Mode::Filesystem }
    }
}

/// Arguments about the free space on claims, for a program that makes disks on them, where the installation sets any.
pub(super) fn room_args(room: &Room) -> Vec<String> {
    let (Room { reserve, tolerated_percent }, usual) = (room, Room::default());
    let reserve = (*reserve != usual.reserve).then(|| ["--claim-reserve".to_owned(), reserve.to_string()]);
    let tolerance = (*tolerated_percent != usual.tolerated_percent)
        .then(|| ["--claim-tolerance".to_owned(), tolerated_percent.to_string()]);
    [reserve, tolerance].into_iter().flatten().flatten().collect()
}

/// Puts the claims of an instance where the launcher looks for them. `mode` returns a claim's mode by its name.
pub fn add(pod: &mut Pod, vmi: &ValidVmi, mode: impl Fn(&str) -> Mode) {
    let Some(spec) = &mut pod.spec else { return };
    for volume in vmi.boot_volumes() {
        let Some(claim) = volume.claim() else { continue };
        let name = pod_volume(&volume.name);
        let read_only = claim.is_read_only.then_some(true);
        spec.volumes.get_or_insert_default().push(Volume {
            name: name.clone(),
            persistent_volume_claim: Some(PersistentVolumeClaimVolumeSource {
                claim_name: claim.name.to_owned(),
                read_only,
            }),
            ..Volume::default()
        });
        let holder = filesystems::holder(vmi, &volume.name);
        for container in spec.containers.iter_mut().filter(|container| container.name == holder) {
            match mode(claim.name) {
                Mode::Filesystem => {
                    let path = format!("{CLAIMS}/{}", volume.name);
                    let mounted = VolumeMount { read_only, ..mount(&name, &path) };
                    container.volume_mounts.get_or_insert_default().push(mounted);
                }
                Mode::Block => {
                    let device_path = format!("{CLAIM_DEVICES}/{}", volume.name);
                    let device = VolumeDevice { name: name.clone(), device_path };
                    container.volume_devices.get_or_insert_default().push(device);
                }
            }
        }
    }
}

/// Whether a launcher's pod has all claims of its instance's volumes.
#[must_use]
pub fn are_of(pod: &Pod, vmi: &VirtualMachineInstance) -> bool {
    let volumes = || pod.spec.iter().flat_map(|spec| spec.volumes.iter().flatten());
    let mut wanted = vmi
        .spec
        .volumes
        .iter()
        .filter(|volume| !volume.is_hotpluggable())
        .filter_map(|volume| volume.claim().map(|claim| (pod_volume(&volume.name), claim.name)));
    wanted.all(|(name, claim)| {
        let found = volumes().find(|volume| volume.name == name);
        let source = found.and_then(|volume| volume.persistent_volume_claim.as_ref());
        source.is_some_and(|source| source.claim_name == claim)
    })
}

/// The name of the pod's volume: a prefix avoids conflicts with the pod's other volumes.
fn pod_volume(volume: &str) -> String {
    format!("disk-{volume}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn only_disk_size_settings_other_than_the_defaults_become_arguments() {
        let told = |reserve, tolerated_percent| room_args(&Room { reserve, tolerated_percent }).join(" ");
        assert_eq!(told(131_072, 10), "");
        assert_eq!(told(0, 10), "--claim-reserve 0");
        assert_eq!(told(131_072, 0), "--claim-tolerance 0");
        assert_eq!(told(1 << 20, 25), "--claim-reserve 1048576 --claim-tolerance 25");
    }

    #[test]
    fn a_claim_is_mounted_or_a_device_and_a_hotplugged_claim_is_neither() {
        let disks = ["files", "device", "kept", "later"].map(|name| json!({"name": name, "disk": {}}));
        let vmi = json!({
            "metadata": {"name": "vm", "namespace": "ns", "uid": "u"},
            "spec": {
                "domain": {"memory": {"guest": "64Mi"}, "devices": {"disks": disks}},
                "volumes": [
                    {"name": "files", "persistentVolumeClaim": {"claimName": "a"}},
                    {"name": "device", "dataVolume": {"name": "b"}},
                    {"name": "kept", "ephemeral": {"persistentVolumeClaim": {"claimName": "c", "readOnly": true}}},
                    {"name": "later", "persistentVolumeClaim": {"claimName": "d", "hotpluggable": true}},
                ],
            },
        });
        let vmi = ValidVmi::new(serde_json::from_value(vmi).unwrap()).unwrap();
        let pod = json!({"spec": {"containers": [{"name": "compute"}, {"name": "other"}]}});
        let mut pod: Pod = serde_json::from_value(pod).unwrap();
        add(&mut pod, &vmi, |claim| Mode::of((claim == "b").then_some("Block")));
        let mut moved = vmi.vmi().clone();
        assert!(are_of(&pod, &moved));
        moved.spec.volumes[1].data_volume.as_mut().unwrap().name = "other".to_owned();
        assert!(!are_of(&pod, &moved) && !are_of(&Pod::default(), &moved));
        let found = serde_json::to_value(pod).unwrap();
        assert_eq!(
            found["spec"],
            json!({
                "containers": [{
                    "name": "compute",
                    "volumeMounts": [
                        {"name": "disk-files", "mountPath": "/var/run/kubevirt-private/vmi-disks/files"},
                        {"name": "disk-kept", "mountPath": "/var/run/kubevirt-private/vmi-disks/kept", "readOnly": true},
                    ],
                    "volumeDevices": [{"name": "disk-device", "devicePath": "/dev/device"}],
                }, {"name": "other"}],
                "volumes": [
                    {"name": "disk-files", "persistentVolumeClaim": {"claimName": "a"}},
                    {"name": "disk-device", "persistentVolumeClaim": {"claimName": "b"}},
                    {"name": "disk-kept", "persistentVolumeClaim": {"claimName": "c", "readOnly": true}},
                ],
            })
        );
    }
}
