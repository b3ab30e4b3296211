//! The instance's volumes in the pod.

use super::parts::{CONTAINER_DISKS, mount, unprivileged};
use crate::config::Config;
use barevirt_api::cloud_init::{self, CloudInit};
use barevirt_api::names::image_volume;
use barevirt_api::quantity;
use barevirt_api::settings::{HELPER_RESOURCES, HelperResources};
use barevirt_api::v1::ContainerDiskSource;
use barevirt_api::valid::ValidVmi;
use k8s_openapi::api::core::v1::{
    Container, ImageVolumeSource, LocalObjectReference, ProjectedVolumeSource, ResourceRequirements,
    SecretProjection, SecretVolumeSource, Volume, VolumeMount, VolumeProjection,
};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use std::collections::BTreeMap;

/// Where the launcher looks for the secrets of cloud-init volumes and of access credentials.
pub(super) const SECRETS: &str = "/var/run/kubevirt-private/secret";

/// Parts of the pod that come from volumes.
#[derive(Default)]
pub(super) struct Disks {
    pub(super) containers: Vec<Container>,
    pub(super) volumes: Vec<Volume>,
    pub(super) compute_mounts: Vec<VolumeMount>,
    pub(super) pull_secrets: Vec<LocalObjectReference>,
}

/// A user's image, and what the launcher needs of it.
pub(super) struct UserImage<'a, F> {
    /// Name of its volume; a container for it is called `volume` and the name of the disk's volume.
    pub(super) mount: &'a str,
    pub(super) volume: &'a str,
    /// Where it is mounted as a volume.
    pub(super) path: String,
    /// What a container hands over: the launcher's name of each file, and its path in the image.
    pub(super) files: F,
}

impl Disks {
    /// Adds an image: as a volume where the cluster supports that, so that no container runs in it, otherwise as a
    /// container.
    pub(super) fn add<'a>(
        &mut self,
        image: UserImage<'a, impl IntoIterator<Item = (&'a str, &'a str)>>,
        source: &ContainerDiskSource,
        config: &Config,
    ) {
        if config.settings.pods.image_volumes {
            self.compute_mounts
                .push(VolumeMount { read_only: Some(true), ..mount(image.mount, &image.path) });
            self.volumes.push(Volume {
                name: image.mount.to_owned(),
                image: Some(ImageVolumeSource {
                    reference: Some(source.image.clone()),
                    pull_policy: source.image_pull_policy.clone(),
                }),
                ..Volume::default()
            });
        } else {
            self.containers.push(container_disk(image.volume, image.files, source, config));
        }
        if let Some(name) = source.image_pull_secret.as_deref().filter(|name| !name.is_empty()) {
            let secret = LocalObjectReference { name: name.to_owned() };
            if !self.pull_secrets.contains(&secret) {
                self.pull_secrets.push(secret);
            }
        }
    }
}

pub(super) fn of(vmi: &ValidVmi, config: &Config) -> Disks {
    let mut disks = Disks::default();
    for (index, volume) in vmi.boot_volumes().enumerate() {
        if let Some(source) = &volume.container_disk {
            let image = UserImage {
                mount: &format!("image-{index}"),
                volume: &volume.name,
                path: image_volume(index),
                files: [(volume.name.as_str(), source.path.as_deref().unwrap_or_default())],
            };
            disks.add(image, source, config);
        }
        if let Some(secrets) = cloud_init::of(volume).and_then(|given| secrets(&volume.name, &given)) {
            disks.compute_mounts.push(VolumeMount {
                read_only: Some(true),
                ..mount(&secrets.name, &format!("{SECRETS}/{}", volume.name))
            });
            disks.volumes.push(secrets);
        }
        // The launcher makes inline cloud-init data and empty disks in ephemeral-disks.
    }
    disks
}

/// Copies the helper to where containers of users' images can run it.
pub(super) fn binary(config: &Config) -> Container {
    Container {
        name: "container-disk-binary".to_owned(),
        image: Some(config.launcher_image.clone()),
        image_pull_policy: config.pull_policy().map(str::to_owned),
        command: Some(words(["/usr/bin/container-disk", "copy", "/init/container-disk"])),
        resources: Some(container_disk_resources(config)),
        security_context: Some(unprivileged()),
        volume_mounts: Some(vec![mount("virt-bin-share-dir", "/init")]),
        ..Container::default()
    }
}

fn container_disk<'a>(
    volume: &str,
    files: impl IntoIterator<Item = (&'a str, &'a str)>,
    source: &ContainerDiskSource,
    config: &Config,
) -> Container {
    let socket = format!("{CONTAINER_DISKS}/launcher.sock");
    let mut command = words(["/init/container-disk", "serve", "--socket", &socket]);
    for (name, path) in files {
        command.extend(words(["--volume", name]));
        if !path.is_empty() {
            command.extend(words(["--path", path]));
        }
    }
    Container {
        name: format!("volume{volume}"),
        image: Some(source.image.clone()),
        image_pull_policy: source.image_pull_policy.clone(),
        command: Some(command),
        resources: Some(container_disk_resources(config)),
        security_context: Some(unprivileged()),
        volume_mounts: Some(vec![
            mount("container-disks", CONTAINER_DISKS),
            VolumeMount { read_only: Some(true), ..mount("virt-bin-share-dir", "/init") },
        ]),
        ..Container::default()
    }
}

/// The user's secrets, all their keys in one directory; network data in its own secret replaces the other's.
fn secrets(volume: &str, given: &CloudInit<'_>) -> Option<Volume> {
    let secret =
        |name: String| SecretVolumeSource { secret_name: Some(name), ..SecretVolumeSource::default() };
    let projection = |name: String| VolumeProjection {
        secret: Some(SecretProjection { name, ..SecretProjection::default() }),
        ..VolumeProjection::default()
    };
    match (given.user.secret.map(str::to_owned), given.network.secret.map(str::to_owned)) {
        (None, None) => None,
        (Some(user), None) => {
            Some(Volume { name: format!("{volume}-udata"), secret: Some(secret(user)), ..Volume::default() })
        }
        (None, Some(network)) => Some(Volume {
            name: format!("{volume}-ndata"),
            secret: Some(secret(network)),
            ..Volume::default()
        }),
        (Some(user), Some(network)) => Some(Volume {
            name: format!("{volume}-udata"),
            projected: Some(ProjectedVolumeSource {
                sources: Some(vec![projection(user), projection(network)]),
                default_mode: None,
            }),
            ..Volume::default()
        }),
    }
}

/// The helper passes one descriptor and then sleeps.
fn container_disk_resources(config: &Config) -> ResourceRequirements {
    helper_resources(&config.settings.pods.container_disk, ["1m", "4Mi"], ["100m", "40Mi"])
}

/// Resources of a helper: CPU, then memory. The installation's values replace the built-in ones; where request and limit
/// conflict, the value that was not given is adjusted.
pub(super) fn helper_resources(
    given: &HelperResources,
    requests: [&str; 2],
    limits: [&str; 2],
) -> ResourceRequirements {
    let built_in = |amounts: [&str; 2]| -> BTreeMap<String, Quantity> {
        let amounts = amounts.map(|amount| Quantity(amount.to_owned()));
        HELPER_RESOURCES.map(str::to_owned).into_iter().zip(amounts).collect()
    };
    let (mut requests, mut limits) = (built_in(requests), built_in(limits));
    let millis = |amount: &Quantity| quantity::millis(amount).unwrap_or_default();
    for name in HELPER_RESOURCES {
        let (request, limit) = (given.requests.get(name), given.limits.get(name));
        if let Some(request) = request {
            requests.insert(name.to_owned(), request.clone());
        }
        if let Some(limit) = limit {
            limits.insert(name.to_owned(), limit.clone());
        }
        let exceeds = requests.get(name).map(millis) > limits.get(name).map(millis);
        match (request, limit) {
            (Some(request), None) if exceeds => drop(limits.insert(name.to_owned(), request.clone())),
            (None, Some(limit)) if exceeds => drop(requests.insert(name.to_owned(), limit.clone())),
            _ => {}
        }
    }
    ResourceRequirements { requests: Some(requests), limits: Some(limits), ..ResourceRequirements::default() }
}

fn words<const N: usize>(words: [&str; N]) -> Vec<String> {
    words.map(str::to_owned).into()
}
