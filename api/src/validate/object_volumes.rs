//! Rules for volumes made of the cluster's objects. Faults for which Kubernetes would refuse the launcher pod
//! are refused here, where the user sees them.

use super::{Cause, Path};
use crate::names::COMPUTE_CONTAINER;
use crate::object_volume::LABEL_LIMIT;
use crate::quantity;
use crate::syntax::{is_dns_subdomain, is_label_key, is_printable, quoted};
use crate::v1::{SysprepSource, Volume};
use k8s_openapi::api::core::v1::{DownwardAPIVolumeFile, ObjectFieldSelector, ResourceFieldSelector};
use std::collections::BTreeMap;

/// Longest path of a file on a disk, in bytes.
const PATH_LIMIT: usize = 255;
/// Most parts of the path: the limit of ISO 9660.
const PARTS: usize = 8;
/// Longest part, in bytes.
const PART_LIMIT: usize = 128;
/// Fields of the pod that may be shown to the guest.
const FIELDS: [&str; 5] =
    ["metadata.annotations", "metadata.labels", "metadata.name", "metadata.namespace", "metadata.uid"];

pub(super) fn validate(field: &Path, volume: &Volume, causes: &mut Vec<Cause>) {
    if let Some(source) = &volume.config_map {
        let field = field.child("configMap");
        name(&field.child("name"), source.name.as_deref(), "a config map", causes);
        label(&field, source.volume_label.as_deref(), causes);
    }
    if let Some(source) = &volume.secret {
        let field = field.child("secret");
        name(&field.child("secretName"), source.secret_name.as_deref(), "a secret", causes);
        label(&field, source.volume_label.as_deref(), causes);
    }
    if let Some(source) = &volume.service_account {
        let field = field.child("serviceAccount.serviceAccountName");
        name(&field, source.service_account_name.as_deref(), "a service account", causes);
    }
    if let Some(source) = &volume.downward_api {
        let field = field.child("downwardAPI");
        label(&field, source.volume_label.as_deref(), causes);
        files(&field.child("fields"), &source.fields, causes);
    }
    if let Some(source) = &volume.sysprep {
        sysprep(&field.child("sysprep"), source, causes);
    }
}

fn name(field: &Path, name: Option<&str>, what: &str, causes: &mut Vec<Cause>) {
    match name.unwrap_or_default() {
        "" => causes.push(Cause::invalid(field, format!("{field} is a required field"))),
        name if !is_dns_subdomain(name) => {
            causes
                .push(Cause::invalid(field, format!("{field} '{}' is not the name of {what}", quoted(name))));
        }
        _ => {}
    }
}

fn label(field: &Path, label: Option<&str>, causes: &mut Vec<Cause>) {
    if let Some(label) = label.filter(|label| !is_printable(label, LABEL_LIMIT)) {
        let field = field.child("volumeLabel");
        causes.push(Cause::invalid(
            &field,
            format!("{field} '{}' is not printable ASCII of at most {LABEL_LIMIT} characters", quoted(label)),
        ));
    }
}

/// Answer files come from one object.
fn sysprep(field: &Path, source: &SysprepSource, causes: &mut Vec<Cause>) {
    let SysprepSource { config_map, secret } = source;
    if config_map.is_some() == secret.is_some() {
        causes.push(Cause::invalid(
            field,
            format!("{field} must have exactly one of configMap and secret set"),
        ));
        return;
    }
    if let Some(object) = config_map {
        name(&field.child("configMap.name"), Some(&object.name), "a config map", causes);
    }
    if let Some(object) = secret {
        name(&field.child("secret.name"), Some(&object.name), "a secret", causes);
    }
}

fn files(field: &Path, files: &[DownwardAPIVolumeFile], causes: &mut Vec<Cause>) {
    let mut seen: BTreeMap<&str, usize> = BTreeMap::new();
    for (index, file) in files.iter().enumerate() {
        let field_file = field.index(index);
        self::file(&field_file, file, causes);
        if let Some(earlier) = seen.insert(&file.path, index) {
            let field_path = field_file.child("path");
            causes.push(Cause::invalid(
                &field_path,
                format!("{field_path} is that of {} as well", field.index(earlier)),
            ));
        }
    }
    for (path, index) in &seen {
        let above = path.match_indices('/').map(|(at, _)| &path[..at]);
        if let Some(other) = above.filter_map(|above| seen.get(above)).next() {
            let field_path = field.index(*index).child("path");
            causes.push(Cause::invalid(
                &field_path,
                format!("{field_path} is beneath a file, that of {}", field.index(*other)),
            ));
        }
    }
}

fn file(field: &Path, file: &DownwardAPIVolumeFile, causes: &mut Vec<Cause>) {
    let DownwardAPIVolumeFile { field_ref, mode, path, resource_field_ref } = file;
    if !is_path(path) {
        let field = field.child("path");
        causes.push(Cause::invalid(
            &field,
            format!(
                "{field} '{}' is not a relative path without '..', of at most {PATH_LIMIT} bytes and {PARTS} parts of at most {PART_LIMIT}",
                quoted(path)
            ),
        ));
    }
    if let Some(mode) = mode.filter(|mode| !(0..=0o777).contains(mode)) {
        let field = field.child("mode");
        causes.push(Cause::invalid(&field, format!("{field} {mode} must be between 0 and 0777 (octal)")));
    }
    match (field_ref, resource_field_ref) {
        (Some(source), None) => pod_field(&field.child("fieldRef"), source, causes),
        (None, Some(source)) => resource(&field.child("resourceFieldRef"), source, causes),
        _ => causes.push(Cause::invalid(
            field,
            format!("{field} must have exactly one of fieldRef and resourceFieldRef set"),
        )),
    }
}

/// Kubernetes' rule: a relative path without `..` that does not start with two dots, a prefix that the
/// kubelet uses itself.
fn is_path(path: &str) -> bool {
    path.len() <= PATH_LIMIT
        && !path.starts_with("..")
        && !path.contains(char::is_control)
        && path.split('/').count() <= PARTS
        && path.split('/').all(|part| !matches!(part, "" | "." | "..") && part.len() <= PART_LIMIT)
}

fn pod_field(field: &Path, source: &ObjectFieldSelector, causes: &mut Vec<Cause>) {
    if let Some(version) = source.api_version.as_deref().filter(|version| !matches!(*version, "" | "v1")) {
        let field = field.child("apiVersion");
        causes.push(Cause::invalid(&field, format!("{field} '{}' must be v1", quoted(version))));
    }
    if !is_pod_field(&source.field_path) {
        let field = field.child("fieldPath");
        causes.push(Cause::invalid(
            &field,
            format!(
                "{field} '{}' is none of {}, metadata.annotations['KEY'] and metadata.labels['KEY']",
                quoted(&source.field_path),
                FIELDS.join(", ")
            ),
        ));
    }
}

fn is_pod_field(path: &str) -> bool {
    let key = |of: &str| path.strip_prefix(of)?.strip_prefix("['")?.strip_suffix("']");
    FIELDS.contains(&path)
        || key("metadata.labels").is_some_and(is_label_key)
        || key("metadata.annotations").is_some_and(|key| is_label_key(&key.to_ascii_lowercase()))
}

fn resource(field: &Path, source: &ResourceFieldSelector, causes: &mut Vec<Cause>) {
    if source.container_name.as_deref() != Some(COMPUTE_CONTAINER) {
        let field = field.child("containerName");
        causes.push(Cause::invalid(&field, format!("{field} must be {COMPUTE_CONTAINER}")));
    }
    let name = source.resource.strip_prefix("limits.").or_else(|| source.resource.strip_prefix("requests."));
    let known = |name: &str| {
        matches!(name, "cpu" | "memory" | "ephemeral-storage")
            || name.strip_prefix("hugepages-").is_some_and(|size| !size.is_empty())
    };
    let Some(name) = name.filter(|name| known(name)) else {
        let field = field.child("resource");
        causes.push(Cause::invalid(
            &field,
            format!(
                "{field} '{}' is not limits or requests of cpu, memory, ephemeral-storage or hugepages-SIZE",
                quoted(&source.resource)
            ),
        ));
        return;
    };
    let fits = source.divisor.as_ref().is_none_or(|divisor| match name {
        "cpu" => quantity::millis(divisor).is_ok_and(|millis| matches!(millis, 0 | 1 | 1000)),
        _ => quantity::bytes(divisor).is_ok_and(|bytes| bytes == 0 || is_unit(bytes)),
    });
    if !fits {
        let field = field.child("divisor");
        let units = if name == "cpu" { "1 and 1m" } else { "1, 1k, 1Ki, 1M, 1Mi and so on" };
        causes.push(Cause::invalid(&field, format!("{field} must be one of {units}")));
    }
}

/// Whether it is a power of 1000 or of 1024.
fn is_unit(bytes: u64) -> bool {
    (0..=6).any(|power| bytes == 1000_u64.pow(power) || bytes == 1024_u64.pow(power))
}
