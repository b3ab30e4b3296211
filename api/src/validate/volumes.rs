//! Volumes and their sources.

use super::memory::not_negative;
use super::supported::given;
use super::text::{DNS_LABEL, is_dns_label, is_dns_subdomain, quoted};
use super::{Cause, Path};
use crate::v1::{
    CloudInitNoCloudSource, ContainerDiskSource, LocalSecret, VirtualMachineInstanceSpec, Volume,
};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use std::collections::{HashMap, HashSet};

/// Bytes of inline user data, and of inline network data: KubeVirt's limit, since the object goes to many watchers.
pub const CLOUD_INIT_LIMIT: usize = 2048;
/// Names become parts of container and pod volume names (`volume<name>`, `<name>-udata`), which are DNS labels.
const NAME_LIMIT: usize = 57;
/// Largest empty disk: qcow2 with its usual cluster size ends at 2 PiB.
const EMPTY_DISK_LIMIT: u64 = 1 << 50;

pub(super) fn validate(path: &Path, spec: &VirtualMachineInstanceSpec, causes: &mut Vec<Cause>) {
    let field = path.child("volumes");
    let disks: HashSet<&str> = spec.domain.devices.disks.iter().map(|disk| disk.name.as_str()).collect();
    let mut first: HashMap<&str, usize> = HashMap::new();
    for (index, volume) in spec.volumes.iter().enumerate() {
        let field_volume = field.index(index);
        let field_name = field_volume.child("name");
        match first.get(volume.name.as_str()) {
            Some(earlier) => causes.push(Cause::invalid(
                &field_name,
                format!("{field_volume} and {} must not have the same Name.", field.index(*earlier)),
            )),
            None => {
                first.insert(&volume.name, index);
            }
        }
        if !is_dns_label(&volume.name) || volume.name.len() > NAME_LIMIT {
            causes.push(Cause::invalid(
                &field_name,
                format!(
                    "{field_name} '{}' is not {DNS_LABEL}, or longer than {NAME_LIMIT}",
                    quoted(&volume.name)
                ),
            ));
        }
        if !disks.contains(volume.name.as_str()) {
            causes.push(Cause::invalid(
                &field_name,
                format!(
                    "{field_name} '{}' not found: no disk of this name uses the volume",
                    quoted(&volume.name)
                ),
            ));
        }
        source(&field_volume, volume, causes);
    }
}

fn source(field: &Path, volume: &Volume, causes: &mut Vec<Cause>) {
    let count = given(volume).iter().filter(|name| *name != "name").count();
    if count != 1 {
        causes.push(Cause::invalid(field, format!("{field} must have exactly one source type set")));
    }
    if let Some(source) = &volume.container_disk {
        container(&field.child("containerDisk"), source, causes);
    }
    if let Some(source) = &volume.cloud_init_no_cloud {
        cloud_init(&field.child("cloudInitNoCloud"), source, causes);
    }
    if let Some(source) = &volume.empty_disk {
        let field = field.child("emptyDisk.capacity");
        match not_negative(&field, Some(&source.capacity), causes) {
            Some(0) => causes.push(Cause::invalid(&field, format!("{field} must be greater than 0"))),
            Some(bytes) if bytes > EMPTY_DISK_LIMIT => {
                causes.push(Cause::invalid(
                    &field,
                    format!("{field} '{}' is more than 1Pi", quoted(&source.capacity.0)),
                ));
            }
            _ => {}
        }
    }
}

fn container(field: &Path, source: &ContainerDiskSource, causes: &mut Vec<Cause>) {
    let field_image = field.child("image");
    if source.image.is_empty() {
        causes.push(Cause::required(&field_image, format!("{field_image} is a required field")));
    } else if source.image.len() > 1024 || source.image.chars().any(|c| c.is_whitespace() || c.is_control()) {
        causes.push(Cause::invalid(
            &field_image,
            format!("{field_image} '{}' is not an image reference", quoted(&source.image)),
        ));
    }
    if let Some(path) = source.path.as_deref().filter(|path| !path.is_empty()) {
        if path == "/" {
            causes.push(Cause::invalid(field, format!("{field} must not point to root")));
        } else if path.len() > 4096 || !is_plain_path(path) {
            causes.push(Cause::invalid(
                field,
                format!("{field} must be an absolute path to a file without relative components"),
            ));
        }
    }
    if let Some(policy) = source.image_pull_policy.as_deref()
        && !matches!(policy, "" | "Always" | "IfNotPresent" | "Never")
    {
        let field = field.child("imagePullPolicy");
        causes.push(Cause::invalid(
            &field,
            format!(
                "{field} has invalid value {}, allowed are Always, IfNotPresent and Never",
                quoted(policy)
            ),
        ));
    }
    if let Some(secret) =
        source.image_pull_secret.as_deref().filter(|name| !name.is_empty() && !is_dns_subdomain(name))
    {
        let field = field.child("imagePullSecret");
        causes.push(Cause::invalid(
            &field,
            format!("{field} '{}' is not the name of a secret", quoted(secret)),
        ));
    }
}

/// Absolute, nothing empty, `.` or `..` in it, and no characters that no file name of a disk has.
fn is_plain_path(path: &str) -> bool {
    path.strip_prefix('/').is_some_and(|rest| {
        rest.split('/').all(|part| !part.is_empty() && part != "." && part != "..")
            && !path.contains(char::is_control)
    })
}

fn cloud_init(field: &Path, source: &CloudInitNoCloudSource, causes: &mut Vec<Cause>) {
    let user = Data {
        plain: source.user_data.as_deref(),
        base64: source.user_data_base64.as_deref(),
        secret: source.secret_ref.as_ref(),
        base64_field: field.child("userDataBase64"),
        secret_field: field.child("secretRef"),
        one_source: "userdatasource",
        what: "userdata",
        larger: "UserDataSecretRef",
    };
    let network = Data {
        plain: source.network_data.as_deref(),
        base64: source.network_data_base64.as_deref(),
        secret: source.network_data_secret_ref.as_ref(),
        base64_field: field.child("networkDataBase64"),
        secret_field: field.child("networkDataSecretRef"),
        one_source: "networkdata source",
        what: "networkdata",
        larger: "NetworkDataSecretRef",
    };
    let count = user.validate(field, causes) + network.validate(field, causes);
    if count == 0 {
        causes.push(Cause::invalid(
            field,
            format!("{field} must have at least one userdatasource or one networkdatasource set."),
        ));
    }
}

/// User data or network data: the three ways to give it, and words for messages.
struct Data<'a> {
    plain: Option<&'a str>,
    base64: Option<&'a str>,
    secret: Option<&'a LocalSecret>,
    base64_field: Path,
    secret_field: Path,
    one_source: &'static str,
    what: &'static str,
    larger: &'static str,
}

impl Data<'_> {
    /// How many ways are used; causes where it is more than one, or one is wrong.
    fn validate(&self, field: &Path, causes: &mut Vec<Cause>) -> usize {
        let mut count = 0;
        let mut length = 0;
        if let Some(secret) = self.secret.filter(|secret| !secret.name.is_empty()) {
            count += 1;
            if !is_dns_subdomain(&secret.name) {
                let field = &self.secret_field;
                causes.push(Cause::invalid(
                    field,
                    format!("{field} '{}' is not the name of a secret", quoted(&secret.name)),
                ));
            }
        }
        if let Some(text) = self.base64.filter(|text| !text.is_empty()) {
            count += 1;
            match decode_base64(text) {
                Ok(data) => length = data.len(),
                Err(NotBase64) => causes.push(Cause::invalid(
                    &self.base64_field,
                    format!("{} is not a valid base64 value.", self.base64_field),
                )),
            }
        }
        if let Some(text) = self.plain.filter(|text| !text.is_empty()) {
            count += 1;
            length = length.max(text.len());
        }
        if count > 1 {
            causes
                .push(Cause::invalid(field, format!("{field} must have only one {} set.", self.one_source)));
        }
        if length > CLOUD_INIT_LIMIT {
            causes.push(Cause::invalid(
                field,
                format!(
                    "{field} {} exceeds {CLOUD_INIT_LIMIT} byte limit. Should use {} for larger data.",
                    self.what, self.larger
                ),
            ));
        }
        count
    }
}

/// Not base64.
#[derive(Debug, PartialEq, Eq)]
pub struct NotBase64;

/// Bytes of a base64 field. As in Go's decoder, line ends in it do not count.
pub fn decode_base64(text: &str) -> Result<Vec<u8>, NotBase64> {
    let joined: String = text.chars().filter(|c| !matches!(c, '\r' | '\n')).collect();
    STANDARD.decode(joined).map_err(|_| NotBase64)
}
