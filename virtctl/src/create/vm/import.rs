//! Volumes that a DataVolume fills.

use barevirt_api::cdi::{
    DataVolumeBlankImage, DataVolumeSource, DataVolumeSourceGcs, DataVolumeSourceHttp,
    DataVolumeSourceImageIo, DataVolumeSourcePvc, DataVolumeSourceRef, DataVolumeSourceRegistry,
    DataVolumeSourceS3, DataVolumeSourceSnapshot, DataVolumeSourceVddk, DataVolumeSpec, StorageSpec,
};
use barevirt_api::v1::{DataVolumeSource as DataVolumeOfVolume, DataVolumeTemplateSpec, Volume};
use k8s_openapi::api::core::v1::VolumeResourceRequirements;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

use super::draft::Draft;
use super::volumes;
use crate::create::params::Params;
use crate::random;

const FLAG: &str = "volume-import";

/// Adds a template of a DataVolume, and its volume, for each.
pub(super) fn volumes(draft: &mut Draft, texts: &[String]) -> anyhow::Result<()> {
    for text in texts {
        let params = Params::read(FLAG, text)?;
        let kind = params.required("type")?;
        let (params, mut spec) = spec(&kind, params)?;
        let size = params.size("size")?;
        if size.is_none() && !matches!(kind.as_str(), "pvc" | "snapshot" | "ds") {
            return Err(params.error("size must be specified"));
        }
        let name = params.text("name").unwrap_or_else(|| random::name("imported-volume"));
        let volume = DataVolumeOfVolume { name: name.clone(), ..DataVolumeOfVolume::default() };
        let volume = Volume { name: name.clone(), data_volume: Some(volume), ..Volume::default() };
        volumes::add(draft, FLAG, volume)?;
        spec.storage = Some(StorageSpec {
            resources: size.map(|size| VolumeResourceRequirements {
                requests: Some([("storage".to_owned(), size)].into()),
                ..VolumeResourceRequirements::default()
            }),
            ..StorageSpec::default()
        });
        draft.vm.spec.data_volume_templates.push(DataVolumeTemplateSpec {
            metadata: Some(ObjectMeta { name: Some(name.clone()), ..ObjectMeta::default() }),
            spec,
            ..DataVolumeTemplateSpec::default()
        });
        volumes::boot(draft, FLAG, &name, params.number("bootorder")?)?;
    }
    Ok(())
}

/// Parameters that every type knows, with those of one type.
fn with<'a>(own: &[&'a str]) -> Vec<&'a str> {
    [&["type", "size", "name", "bootorder"], own].concat()
}

/// What fills the volume.
fn spec<'a>(kind: &str, params: Params<'a>) -> anyhow::Result<(Params<'a>, DataVolumeSpec)> {
    let known: &[&str] = match kind {
        "blank" => &[],
        "gcs" => &["secretref", "url"],
        "http" => &["certconfigmap", "extraheaders", "secretextraheaders", "secretref", "url"],
        "imageio" => &["certconfigmap", "diskid", "secretref", "url"],
        "pvc" | "snapshot" | "ds" => &["src"],
        "registry" => &["certconfigmap", "imagestream", "pullmethod", "secretref", "url"],
        "s3" => &["certconfigmap", "secretref", "url"],
        "vddk" => &["backingfile", "initimageurl", "secretref", "thumbprint", "url", "uuid"],
        other => {
            let why = format!("invalid volume import type \"{other}\", see help for supported values");
            return Err(params.error(why));
        }
    };
    let params = params.only(&with(known))?;
    let text = |name: &str| params.text(name);
    let needs = |name: &str| {
        text(name).ok_or_else(|| params.error(format!("{name} is required with {kind} volume source")))
    };
    let mut source = DataVolumeSource::default();
    match kind {
        "gcs" => {
            source.gcs = Some(DataVolumeSourceGcs { url: needs("url")?, secret_ref: text("secretref") });
        }
        "http" => {
            source.http = Some(DataVolumeSourceHttp {
                url: needs("url")?,
                secret_ref: text("secretref"),
                cert_config_map: text("certconfigmap"),
                extra_headers: params.list("extraheaders"),
                secret_extra_headers: params.list("secretextraheaders"),
                ..DataVolumeSourceHttp::default()
            });
        }
        "imageio" => {
            let (Some(url), Some(disk_id)) = (text("url"), text("diskid")) else {
                return Err(params.error("url and diskid are both required with imageio volume source"));
            };
            source.imageio = Some(DataVolumeSourceImageIo {
                url,
                disk_id,
                secret_ref: text("secretref"),
                cert_config_map: text("certconfigmap"),
                ..DataVolumeSourceImageIo::default()
            });
        }
        "pvc" => {
            let (namespace, name) = elsewhere(&params, "pvc")?;
            source.pvc = Some(DataVolumeSourcePvc { name, namespace });
        }
        "snapshot" => {
            let (namespace, name) = elsewhere(&params, "snapshot")?;
            source.snapshot = Some(DataVolumeSourceSnapshot { name, namespace });
        }
        "ds" => {
            let (namespace, name) = params.prefixed("src")?;
            let source = DataVolumeSourceRef { kind: "DataSource".to_owned(), name, namespace };
            let spec = DataVolumeSpec { source_ref: Some(source), ..DataVolumeSpec::default() };
            return Ok((params, spec));
        }
        "registry" => {
            let pull_method = text("pullmethod");
            if pull_method.as_deref().is_some_and(|method| !matches!(method, "pod" | "node")) {
                return Err(params.error("pullmethod must be set to pod or node"));
            }
            if text("url").is_some() == text("imagestream").is_some() {
                return Err(params.error("exactly one of url or imagestream must be defined"));
            }
            source.registry = Some(DataVolumeSourceRegistry {
                url: text("url"),
                image_stream: text("imagestream"),
                pull_method,
                secret_ref: text("secretref"),
                cert_config_map: text("certconfigmap"),
                ..DataVolumeSourceRegistry::default()
            });
        }
        "s3" => {
            source.s3 = Some(DataVolumeSourceS3 {
                url: needs("url")?,
                secret_ref: text("secretref"),
                cert_config_map: text("certconfigmap"),
            });
        }
        "vddk" => {
            source.vddk = Some(DataVolumeSourceVddk {
                url: Some(needs("url")?),
                uuid: Some(needs("uuid")?),
                thumbprint: Some(needs("thumbprint")?),
                secret_ref: Some(needs("secretref")?),
                backing_file: Some(needs("backingfile")?),
                init_image_url: text("initimageurl"),
                ..DataVolumeSourceVddk::default()
            });
        }
        _ => source.blank = Some(DataVolumeBlankImage {}),
    }
    Ok((params, DataVolumeSpec { source: Some(source), ..DataVolumeSpec::default() }))
}

/// Namespace and name of the source of a copy; both are required.
fn elsewhere(params: &Params<'_>, kind: &str) -> anyhow::Result<(String, String)> {
    let (namespace, name) = params.prefixed("src")?;
    let namespace =
        namespace.ok_or_else(|| params.error(format!("namespace of {kind} \"{name}\" must be specified")))?;
    Ok((namespace, name))
}
