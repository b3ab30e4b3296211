//! The objects that a DataImportCron makes: DataVolumes and the DataSource.

use crate::imports::job::{is_archive, pulled_by_node, source_problem};
use crate::imports::origin::inferred;
use crate::owner::owner;
use barevirt_api::cdi::{
    DataImportCron, DataSource, DataSourceSource, DataSourceSpec, DataVolume, DataVolumeSourcePvc,
    DataVolumeSpec, IMPORT_CRON_CLEANUP_LABEL, IMPORT_CRON_LABEL, LAST_USE_TIME, annotation,
};
use barevirt_api::validate::is_dns_subdomain;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference, Time};
use kube::ResourceExt;
use serde_json::{Value, json};
use std::collections::BTreeMap;

/// Digits of a digest in a name.
const DIGITS: usize = 12;
/// Longest name of a DataVolume: it becomes the name of a claim and part of the names of pods.
const LONGEST: usize = 253;
/// Longest value of a label.
const LONGEST_LABEL: usize = 63;

/// Name of the import of a digest.
pub fn import_name(managed: &str, digest: &str) -> String {
    let digits = digest.split_once(':').map_or(digest, |(_, digits)| digits);
    let digits: String = digits.chars().take(DIGITS).collect();
    let managed: String = managed.chars().take(LONGEST - DIGITS - 1).collect();
    format!("{managed}-{digits}")
}

/// Why nothing can be imported for it. The definition's rules refuse such objects, but one that was made under another
/// definition may still exist.
pub(super) fn problem(cron: &DataImportCron) -> Option<String> {
    let spec = &cron.spec;
    let template = &spec.template.spec;
    let served =
        template.source.as_ref().is_some_and(|source| source.http.is_some() != source.registry.is_some());
    if !served || template.source_ref.is_some() {
        let why = "spec.template.spec.source: images of http and registry are imported by schedule; \
            other sources by CDI alone, and this cluster has none";
        return Some(why.to_owned());
    }
    if cron.name_any().len() > LONGEST_LABEL {
        return Some(format!(
            "metadata.name is longer than {LONGEST_LABEL} characters, which a label can have"
        ));
    }
    if spec.managed_data_source.is_empty() {
        return Some("spec.managedDataSource must be given".to_owned());
    }
    if !is_dns_subdomain(&spec.managed_data_source) {
        return Some("spec.managedDataSource is not the name of a DataSource".to_owned());
    }
    let volume = DataVolume::new("", import(template));
    if is_archive(template) {
        let why = "spec.template.spec.contentType: images alone are imported by schedule";
        return Some(why.to_owned());
    }
    source_problem(&volume).map(|problem| format!("spec.template.{problem}"))
}

/// What is imported. Where a node pulls the image, the template's secret and authorities are for looking at the source alone, as
/// in CDI.
fn import(template: &DataVolumeSpec) -> DataVolumeSpec {
    let mut spec = template.clone();
    let by_node = pulled_by_node(&spec).is_some();
    if let Some(registry) =
        spec.source.as_mut().and_then(|source| source.registry.as_mut()).filter(|_| by_node)
    {
        registry.secret_ref = None;
        registry.cert_config_map = None;
    }
    spec
}

fn labels(cron: &DataImportCron) -> BTreeMap<String, String> {
    let mut labels = inferred(cron.labels());
    labels.insert(IMPORT_CRON_LABEL.to_owned(), cron.name_any());
    if goes_along(cron) {
        labels.insert(IMPORT_CRON_CLEANUP_LABEL.to_owned(), "true".to_owned());
    }
    labels
}

fn goes_along(cron: &DataImportCron) -> bool {
    cron.spec.retention_policy.as_deref() == Some("None")
}

/// Its owner reference, where an object is to be deleted with it. CDI uses a label.
fn owners(cron: &DataImportCron) -> Option<Vec<OwnerReference>> {
    let owner = || OwnerReference { block_owner_deletion: None, controller: None, ..owner(cron) };
    goes_along(cron).then(|| vec![owner()])
}

/// The DataVolume of a digest.
pub(super) fn data_volume(cron: &DataImportCron, name: &str, digest: &str, now: &Time) -> DataVolume {
    let template = &cron.spec.template;
    let mut spec = import(&template.spec);
    if let Some(registry) = spec.source.as_mut().and_then(|source| source.registry.as_mut()) {
        registry.url = registry.url.as_deref().map(|url| pinned(url, digest));
    }
    let said = template.metadata.clone().unwrap_or_default();
    let mut all_labels = said.labels.unwrap_or_default();
    all_labels.extend(labels(cron));
    let mut annotations = said.annotations.unwrap_or_default();
    annotations.insert(annotation::BIND.to_owned(), "true".to_owned());
    let stays = cron.annotations().get(annotation::POD_STAYS).cloned();
    annotations.extend(stays.map(|value| (annotation::POD_STAYS.to_owned(), value)));
    annotations.insert(LAST_USE_TIME.to_owned(), now.0.to_string());
    DataVolume {
        metadata: ObjectMeta {
            name: Some(name.to_owned()),
            namespace: cron.metadata.namespace.clone(),
            labels: Some(all_labels),
            annotations: Some(annotations),
            owner_references: owners(cron),
            ..ObjectMeta::default()
        },
        spec,
        status: None,
    }
}

/// The address of one image: by its digest, without the tag.
fn pinned(url: &str, digest: &str) -> String {
    let url = url.split_once('@').map_or(url, |(url, _)| url);
    let (path, last) = url.rsplit_once('/').unwrap_or(("", url));
    let last = last.split_once(':').map_or(last, |(last, _)| last);
    format!("{path}/{last}@{digest}")
}

/// The patch that marks an import as the current one.
pub(super) fn used(now: &Time) -> Value {
    json!({ "metadata": { "annotations": { LAST_USE_TIME: now.0.to_string() } } })
}

/// When an import was last the current one, as text that can be compared.
pub(super) fn last_used(import: &DataVolume) -> String {
    let said = import.annotations().get(LAST_USE_TIME).cloned();
    let made = || import.metadata.creation_timestamp.as_ref().map(|time| time.0.to_string());
    said.or_else(made).unwrap_or_default()
}

/// The claim of an import.
pub(super) fn claim(cron: &DataImportCron, name: &str) -> DataVolumeSourcePvc {
    DataVolumeSourcePvc { name: name.to_owned(), namespace: cron.namespace().unwrap_or_default() }
}

/// The DataSource as it should be.
pub(super) fn data_source(cron: &DataImportCron, last: Option<&DataVolumeSourcePvc>) -> DataSource {
    DataSource {
        metadata: ObjectMeta {
            name: Some(cron.spec.managed_data_source.clone()),
            namespace: cron.metadata.namespace.clone(),
            labels: Some(labels(cron)),
            owner_references: owners(cron),
            ..ObjectMeta::default()
        },
        spec: DataSourceSpec {
            source: DataSourceSource { pvc: last.cloned(), ..DataSourceSource::default() },
        },
        status: None,
    }
}

/// The patch that makes a DataSource as it should be; `None` where it already is.
pub(super) fn pointed(found: &DataSource, wanted: &DataSource) -> Option<Value> {
    let lacks = wanted.labels().iter().any(|(label, value)| found.labels().get(label) != Some(value));
    // Without an import it keeps its former source.
    let source = Some(&wanted.spec.source).filter(|source| source.pvc.is_some());
    let points = source.is_none_or(|source| *source == found.spec.source);
    if !lacks && points {
        return None;
    }
    let mut patch = json!({ "metadata": { "labels": wanted.labels() } });
    if let Some(source) = source.filter(|_| !points) {
        patch["spec"] = json!({ "source": { "pvc": source.pvc, "snapshot": null, "dataSource": null } });
    }
    Some(patch)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_image_is_named_by_its_digest_alone() {
        for (url, expected) in [
            (
                "docker://quay.io/containerdisks/fedora:latest",
                "docker://quay.io/containerdisks/fedora@sha256:0",
            ),
            ("docker://registry.example:5000/a/b", "docker://registry.example:5000/a/b@sha256:0"),
            ("docker://registry.example:5000/b:1@sha256:9", "docker://registry.example:5000/b@sha256:0"),
        ] {
            assert_eq!(pinned(url, "sha256:0"), expected);
        }
    }

    /// An example in CDI's documentation has both.
    #[test]
    fn a_secret_is_for_looking_alone_where_a_node_pulls_the_image() {
        let cron = |method: &str| -> DataImportCron {
            let registry = json!({
                "url": "docker://registry.example/a", "pullMethod": method, "secretRef": "keys", "certConfigMap": "ca",
            });
            let template = json!({ "spec": {
                "source": { "registry": registry },
                "storage": { "resources": { "requests": { "storage": "5Gi" } } },
            } });
            serde_json::from_value(json!({
                "apiVersion": "cdi.kubevirt.io/v1beta1", "kind": "DataImportCron", "metadata": { "name": "fedora" },
                "spec": { "schedule": "", "managedDataSource": "fedora", "template": template },
            }))
            .unwrap()
        };
        let now = Time(k8s_openapi::jiff::Timestamp::UNIX_EPOCH);
        let secret = |method: &str| {
            let cron = cron(method);
            assert_eq!(problem(&cron), None);
            let volume = data_volume(&cron, "fedora-0", "sha256:0", &now);
            let registry = volume.spec.source.unwrap().registry.unwrap();
            assert_eq!(registry.secret_ref.is_some(), registry.cert_config_map.is_some());
            registry.secret_ref
        };
        assert_eq!(secret("node"), None);
        assert_eq!(secret("pod").as_deref(), Some("keys"));
    }

    #[test]
    fn names_are_those_of_cdi() {
        let digest = "sha256:0123456789abcdef";
        assert_eq!(import_name("fedora", digest), "fedora-0123456789ab");
        assert_eq!(import_name(&"x".repeat(253), digest).len(), LONGEST);
    }
}
