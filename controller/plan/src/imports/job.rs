//! The job that the importer is given.

use super::claim::{class, disk_size};
use super::facts::Installation;
use super::origin::copies;
use barevirt_api::cdi::{DataVolume, DataVolumeSource, DataVolumeSpec};
use barevirt_import_job::{Content, Job, Source};
use k8s_openapi::api::core::v1::PersistentVolumeClaim;
use std::collections::BTreeSet;

/// `contentType` of an image, and of an archive.
pub(super) const IMAGE: &str = "kubevirt";
pub(super) const ARCHIVE: &str = "archive";
/// Pull method: the node pulls the image.
const NODE: &str = "node";

/// Why a DataVolume cannot be filled. The definition's rules refuse such objects, but one that was made under another
/// definition may still exist.
pub(super) fn source_problem(data_volume: &DataVolume) -> Option<String> {
    let spec = &data_volume.spec;
    let source = match (&spec.source, &spec.source_ref) {
        (Some(source), None) => source,
        (None, Some(_)) => return content_problem(spec),
        _ => return Some("exactly one of spec.source and spec.sourceRef must be given".to_owned()),
    };
    let DataVolumeSource { blank, gcs, http, imageio, pvc, registry, s3, snapshot, upload, vddk } = source;
    let others = [
        ("gcs", gcs.is_some()),
        ("imageio", imageio.is_some()),
        ("snapshot", snapshot.is_some()),
        ("vddk", vddk.is_some()),
    ];
    if let Some((name, _)) = others.iter().find(|(_, given)| *given) {
        return Some(format!("spec.source.{name} is served by CDI alone, and this cluster has none"));
    }
    if [blank.is_some(), http.is_some(), pvc.is_some(), registry.is_some(), s3.is_some(), upload.is_some()]
        .iter()
        .filter(|given| **given)
        .count()
        != 1
    {
        return Some("exactly one source must be given in spec.source".to_owned());
    }
    if let Some(problem) = content_problem(spec) {
        return Some(problem);
    }
    if let Some(registry) = registry {
        if registry.url.is_none() {
            return Some("spec.source.registry.url must be given".to_owned());
        }
        if !matches!(registry.pull_method.as_deref(), None | Some("pod" | NODE)) {
            return Some("spec.source.registry.pullMethod is neither pod nor node".to_owned());
        }
        let names = |object: &Option<String>| object.as_deref().is_some_and(|name| !name.is_empty());
        if pulled_by_node(spec).is_some() && (names(&registry.secret_ref) || names(&registry.cert_config_map))
        {
            return Some(
                "spec.source.registry.pullMethod node takes neither secretRef nor certConfigMap: nodes have their own"
                    .to_owned(),
            );
        }
    }
    if http.as_ref().is_some_and(|http| http.insecure_skip_verify == Some(true)) {
        return Some("spec.source.http.insecureSkipVerify is served by CDI alone".to_owned());
    }
    None
}

/// Whether a client sends the image.
pub(super) fn is_upload(spec: &DataVolumeSpec) -> bool {
    spec.source.as_ref().is_some_and(|source| source.upload.is_some())
}

/// Whether the contents are an archive.
pub(super) fn is_archive(spec: &DataVolumeSpec) -> bool {
    spec.content_type.as_deref() == Some(ARCHIVE)
}

fn content_problem(spec: &DataVolumeSpec) -> Option<String> {
    if !matches!(spec.content_type.as_deref(), None | Some("" | IMAGE | ARCHIVE)) {
        return Some(format!("spec.contentType is neither {IMAGE} nor {ARCHIVE}"));
    }
    let source = spec.source.as_ref();
    let takes_archives =
        source.is_some_and(|source| source.http.is_some() || source.s3.is_some() || source.upload.is_some());
    if is_archive(spec) && !takes_archives {
        return Some(format!(
            "spec.contentType is {ARCHIVE}, which only the sources http, s3 and upload have"
        ));
    }
    if is_archive(spec) && asks_for_block(spec) {
        return Some(
            "an archive needs a claim with a file system: volumeMode of the claim is Block".to_owned(),
        );
    }
    let warm = !spec.checkpoints.is_empty();
    warm.then(|| "spec.checkpoints are served by CDI alone, and this cluster has none".to_owned())
}

fn asks_for_block(spec: &DataVolumeSpec) -> bool {
    let pvc = spec.pvc.as_ref().and_then(|claim| claim.volume_mode.as_deref());
    let storage = spec.storage.as_ref().and_then(|claim| claim.volume_mode.as_deref());
    pvc.or(storage) == Some("Block")
}

/// The image that the node pulls.
pub(super) fn pulled_by_node(spec: &DataVolumeSpec) -> Option<&str> {
    let registry = spec.source.as_ref()?.registry.as_ref()?;
    let url = registry.url.as_deref().filter(|_| registry.pull_method.as_deref() == Some(NODE))?;
    Some(url.strip_prefix("docker://").unwrap_or(url))
}

/// The architecture of the nodes that may pull the image, if the source names one: a node pulls that of its own.
pub(super) fn pulling_architecture(spec: &DataVolumeSpec) -> Option<&str> {
    pulled_by_node(spec)?;
    let platform = spec.source.as_ref()?.registry.as_ref()?.platform.as_ref()?;
    platform.architecture.as_deref().filter(|architecture| !architecture.is_empty())
}

/// The job; it is a blank disk where the source has a [`source_problem`]. `copy` is the claim that is copied.
pub(super) fn of(
    data_volume: &DataVolume,
    (claim, copy): (&PersistentVolumeClaim, Option<&PersistentVolumeClaim>),
    installation: &Installation,
) -> Job {
    let spec = &data_volume.spec;
    Job {
        source: match (copies(spec), pulled_by_node(spec)) {
            (true, _) => Source::Claim {},
            (false, Some(_)) => Source::Image {},
            (false, None) => source(spec.source.as_ref(), &installation.insecure_registries),
        },
        content: if is_archive(spec) { Content::Archive } else { Content::Disk },
        size: disk_size(spec, copy),
        // The space that the other claim had for its disk is enough.
        overhead: if copies(spec) { 0 } else { installation.overhead.of_class(class(claim)) },
        preallocation: installation.preallocates(spec),
        owner: data_volume.metadata.uid.clone().unwrap_or_default(),
    }
}

/// Where the contents come from; `insecure` are registries without TLS.
pub(super) fn source(source: Option<&DataVolumeSource>, insecure: &BTreeSet<String>) -> Source {
    let Some(source) = source else { return Source::Blank {} };
    if let Some(s3) = &source.s3 {
        return Source::S3 { url: s3.url.clone() };
    }
    match (&source.http, &source.registry) {
        (Some(http), _) => Source::Http {
            url: http.url.clone(),
            headers: http.extra_headers.clone(),
            checksum: http.checksum.clone().filter(|checksum| !checksum.is_empty()),
        },
        (None, Some(registry)) => {
            let url = registry.url.clone().unwrap_or_default();
            let host = url.strip_prefix("docker://").and_then(|rest| rest.split('/').next());
            Source::Registry {
                architecture: registry.platform.as_ref().and_then(|platform| platform.architecture.clone()),
                insecure: host.is_some_and(|host| insecure.contains(host)),
                url,
            }
        }
        (None, None) => Source::Blank {},
    }
}
