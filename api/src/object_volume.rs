//! Volumes made of the cluster's objects: the content of an object becomes files on a small disk.
//!
//! ```text
//!  object ─ kubelet ─► DIRECTORY/<kind>/<volume>/KEY ─ launcher ─► DIRECTORY/<kind>-disks/<volume>.iso ─► guest
//! ```
//!
//! Names and labels are KubeVirt's, except the directory of mounted secrets. KubeVirt mounts the secrets of
//! volumes, of cloud-init and of access credentials in one directory, where their names can collide.

use crate::v1::{VirtualMachineInstanceSpec, Volume};

/// Where the launcher of a pod finds the files and puts the disks.
pub const DIRECTORY: &str = "/var/run/kubevirt-private";
/// Longest label of a disk, in characters; a limit of ISO 9660.
pub const LABEL_LIMIT: usize = 32;

/// The label if none is given.
const LABEL: &str = "cfgdata";
/// The label of a disk with answers.
const SYSPREP_LABEL: &str = "unattendCD";

/// The source of the files.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// A ConfigMap.
    ConfigMap,
    /// A Secret.
    Secret,
    /// The token of a ServiceAccount.
    ServiceAccount,
    /// The launcher pod itself.
    DownwardApi,
    /// A ConfigMap or a Secret with the answers that the setup of Windows asks for.
    Sysprep,
}

/// A volume whose files come from an object.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ObjectVolume<'a> {
    /// The source of its files.
    pub kind: Kind,
    /// Its name.
    pub name: &'a str,
    /// The label of its disk.
    pub label: &'a str,
}

/// The volume, if its files come from an object.
pub fn of(volume: &Volume) -> Option<ObjectVolume<'_>> {
    let (kind, label) = if let Some(source) = &volume.config_map {
        (Kind::ConfigMap, source.volume_label.as_deref())
    } else if let Some(source) = &volume.secret {
        (Kind::Secret, source.volume_label.as_deref())
    } else if let Some(source) = &volume.downward_api {
        (Kind::DownwardApi, source.volume_label.as_deref())
    } else if volume.service_account.is_some() {
        (Kind::ServiceAccount, None)
    } else if volume.sysprep.is_some() {
        (Kind::Sysprep, Some(SYSPREP_LABEL))
    } else {
        return None;
    };
    let label = label.filter(|label| !label.is_empty()).unwrap_or(LABEL);
    Some(ObjectVolume { kind, name: &volume.name, label })
}

/// The service account whose token the guest gets.
pub fn service_account(spec: &VirtualMachineInstanceSpec) -> Option<&str> {
    let source = spec.volumes.iter().find_map(|volume| volume.service_account.as_ref())?;
    source.service_account_name.as_deref().filter(|name| !name.is_empty())
}

impl ObjectVolume<'_> {
    /// Path of its files, relative to the directory.
    pub fn files(&self) -> String {
        let directory = match self.kind {
            Kind::ConfigMap => "config-map",
            Kind::Secret => "secret-volume",
            Kind::ServiceAccount => "service-account",
            Kind::DownwardApi => "downwardapi",
            Kind::Sysprep => "sysprep",
        };
        format!("{directory}/{}", self.name)
    }

    /// Path of its disk, relative to the directory.
    pub fn disk(&self) -> String {
        let directory = match self.kind {
            Kind::ConfigMap => "config-map-disks",
            Kind::Secret => "secret-disks",
            // An instance has at most one service account.
            Kind::ServiceAccount => return "service-account-disk/service-account.iso".to_owned(),
            Kind::DownwardApi => "downwardapi-disks",
            Kind::Sysprep => "sysprep-disks",
        };
        format!("{directory}/{}.iso", self.name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn volume(source: &str, value: Value) -> Volume {
        serde_json::from_value(json!({"name": "v", source: value})).unwrap()
    }

    #[test]
    fn each_kind_has_its_label_and_its_places() {
        let account = json!({"serviceAccountName": "a"});
        for (source, value, label, files, disk) in [
            ("configMap", json!({"name": "a"}), "cfgdata", "config-map/v", "config-map-disks/v.iso"),
            (
                "configMap",
                json!({"name": "a", "volumeLabel": "OEMDRV"}),
                "OEMDRV",
                "config-map/v",
                "config-map-disks/v.iso",
            ),
            (
                "secret",
                json!({"secretName": "a", "volumeLabel": ""}),
                "cfgdata",
                "secret-volume/v",
                "secret-disks/v.iso",
            ),
            ("downwardAPI", json!({"volumeLabel": "me"}), "me", "downwardapi/v", "downwardapi-disks/v.iso"),
            (
                "serviceAccount",
                account,
                "cfgdata",
                "service-account/v",
                "service-account-disk/service-account.iso",
            ),
            ("sysprep", json!({"secret": {"name": "a"}}), "unattendCD", "sysprep/v", "sysprep-disks/v.iso"),
        ] {
            let volume = volume(source, value);
            let found = of(&volume).unwrap();
            assert_eq!((found.label, found.files(), found.disk()), (label, files.into(), disk.into()));
        }
        assert_eq!(of(&volume("emptyDisk", json!({"capacity": "1Gi"}))), None);
    }
}
