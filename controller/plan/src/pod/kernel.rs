//! The container of a kernel boot: the user's image with the helper in it, like a container disk. It hands over the kernel
//! and its initial file system.

use super::disks::{Disks, UserImage};
use crate::config::Config;
use barevirt_api::firmware::{self, INITRD_FILE, KERNEL_FILE};
use barevirt_api::names::kernel_image_volume;
use barevirt_api::v1::ContainerDiskSource;
use barevirt_api::valid::ValidVmi;

/// The container is named as for a volume of this name, as in KubeVirt.
const VOLUME: &str = "kernel-boot-volume";

pub(super) fn add(vmi: &ValidVmi, config: &Config, disks: &mut Disks) {
    let Some((_, given)) = firmware::kernel_boot(vmi.spec()) else { return };
    let source = ContainerDiskSource {
        image: given.image.clone(),
        image_pull_policy: given.image_pull_policy.clone(),
        image_pull_secret: given.image_pull_secret.clone(),
        ..ContainerDiskSource::default()
    };
    let files = [(KERNEL_FILE, &given.kernel_path), (INITRD_FILE, &given.initrd_path)];
    let files = files.into_iter().filter_map(|(name, path)| Some((name, firmware::path(path.as_ref())?)));
    let image = UserImage { mount: VOLUME, volume: VOLUME, path: kernel_image_volume(), files };
    disks.add(image, &source, config);
}

#[cfg(test)]
mod tests {
    use super::*;
    use barevirt_api::settings::Settings;
    use serde_json::json;

    #[test]
    fn the_image_hands_over_both_files_and_the_claim_is_mounted_beside_it() {
        let vmi = serde_json::from_value(json!({
            "metadata": {"name": "vm", "namespace": "ns", "uid": "u"},
            "spec": {"domain": {"memory": {"guest": "128Mi"}, "devices": {}, "firmware": {"kernelBoot": {"container": {
                "image": "registry/kernel:1", "kernelPath": "/boot/vmlinuz", "initrdPath": "/boot/initrd",
                "imagePullSecret": "pull",
            }}}}},
        }));
        let vmi = ValidVmi::new(vmi.unwrap()).unwrap();
        let config = Config {
            launcher_image: "launcher".to_owned(),
            image_pull_policy: None,
            settings: Settings::default(),
        };
        let mut pod = crate::pod::build(&vmi, &config);
        crate::pod::state::add(&mut pod, "kept");
        assert_eq!(crate::pod::state::claim(&pod), Some("kept"));
        let spec = serde_json::to_value(pod.spec.unwrap()).unwrap();
        let kernel = &spec["containers"][1];
        assert_eq!(kernel["name"], "volumekernel-boot-volume");
        let command = ["--volume", "kernel-boot/kernel", "--path", "/boot/vmlinuz"];
        let words: Vec<&str> =
            kernel["command"].as_array().unwrap().iter().filter_map(|word| word.as_str()).collect();
        assert!(words.windows(4).any(|words| words == command), "{words:?}");
        assert!(words.ends_with(&["--volume", "kernel-boot/initrd", "--path", "/boot/initrd"]), "{words:?}");
        assert_eq!(spec["imagePullSecrets"], json!([{"name": "pull"}]));
        let mounts = spec["containers"][0]["volumeMounts"].as_array().unwrap();
        assert!(mounts.contains(&json!({"name": "vm-state", "mountPath": "/var/run/kubevirt-state"})));
    }
}
