//! Volumes that are there already: container disks, claims, sysprep.

use barevirt_api::v1::{ContainerDiskSource, Disk, PersistentVolumeClaimVolumeSource, SysprepSource, Volume};
use k8s_openapi::api::core::v1::LocalObjectReference;

use super::draft::Draft;
use crate::create::params::{Params, flag_error};

const PARAMS: [&str; 3] = ["name", "src", "bootorder"];
const SYSPREP_DISK: &str = "sysprepdisk";

pub(super) fn container_disks(draft: &mut Draft, texts: &[String]) -> anyhow::Result<()> {
    const FLAG: &str = "volume-containerdisk";
    for (index, text) in texts.iter().enumerate() {
        let params = Params::read(FLAG, text)?.only(&PARAMS)?;
        let image = params.required("src")?;
        let machine = draft.vm.metadata.name.clone().unwrap_or_default();
        let name = params.text("name").unwrap_or_else(|| format!("{machine}-containerdisk-{index}"));
        let source = ContainerDiskSource { image, ..ContainerDiskSource::default() };
        add(draft, FLAG, Volume { name: name.clone(), container_disk: Some(source), ..Volume::default() })?;
        boot(draft, FLAG, &name, params.number("bootorder")?)?;
    }
    Ok(())
}

pub(super) fn claims(draft: &mut Draft, texts: &[String]) -> anyhow::Result<()> {
    const FLAG: &str = "volume-pvc";
    for text in texts {
        let params = Params::read(FLAG, text)?.only(&PARAMS)?;
        let claim_name = params.local("src", "pvc")?;
        let name = params.text("name").unwrap_or_else(|| claim_name.clone());
        let source =
            PersistentVolumeClaimVolumeSource { claim_name, ..PersistentVolumeClaimVolumeSource::default() };
        let volume =
            Volume { name: name.clone(), persistent_volume_claim: Some(source), ..Volume::default() };
        add(draft, FLAG, volume)?;
        boot(draft, FLAG, &name, params.number("bootorder")?)?;
    }
    Ok(())
}

pub(super) fn sysprep(draft: &mut Draft, text: &str) -> anyhow::Result<()> {
    const FLAG: &str = "volume-sysprep";
    let params = Params::read(FLAG, text)?.only(&["src", "type"])?;
    let name = params.local("src", "configmap or secret")?;
    let kind = params.text("type").unwrap_or_else(|| "configmap".to_owned());
    let object = Some(LocalObjectReference { name });
    let source = match kind.to_lowercase().as_str() {
        "configmap" => SysprepSource { config_map: object, secret: None },
        "secret" => SysprepSource { config_map: None, secret: object },
        _ => {
            let why =
                format!("invalid sysprep source type \"{kind}\", supported values are: configmap, secret");
            return Err(params.error(why));
        }
    };
    add(draft, FLAG, Volume { name: SYSPREP_DISK.to_owned(), sysprep: Some(source), ..Volume::default() })
}

/// Adds a volume whose name is a new one.
pub(super) fn add(draft: &mut Draft, flag: &'static str, volume: Volume) -> anyhow::Result<()> {
    let name = &volume.name;
    if !is_label(name) {
        let why = "a lowercase RFC 1123 label must consist of lower case alphanumeric characters or '-', \
                   and must start and end with an alphanumeric character, and have at most 63 of them";
        return Err(flag_error(flag, format!("invalid name \"{name}\": {why}")));
    }
    let volumes = &mut draft.vm.spec.template.spec.volumes;
    if volumes.iter().any(|other| other.name == *name) {
        return Err(flag_error(flag, format!("there is already a volume with name \"{name}\"")));
    }
    volumes.push(volume);
    Ok(())
}

/// Gives the volume a disk with that place in the boot order.
pub(super) fn boot(
    draft: &mut Draft,
    flag: &'static str,
    name: &str,
    order: Option<i32>,
) -> anyhow::Result<()> {
    let Some(order) = order else { return Ok(()) };
    if order == 0 {
        return Err(flag_error(flag, "bootorder must be greater than 0"));
    }
    if draft.boot_orders.contains_key(&order) {
        return Err(flag_error(flag, format!("bootorder {order} was specified multiple times")));
    }
    draft.boot_orders.insert(order, name.to_owned());
    let disk = Disk { name: name.to_owned(), boot_order: Some(order), ..Disk::default() };
    draft.vm.spec.template.spec.domain.devices.disks.push(disk);
    Ok(())
}

/// If one volume has a disk in the manifest, each volume needs one: volumes get default disks only if the
/// manifest lists none.
pub(super) fn disks_for_all(draft: &mut Draft) {
    let spec = &mut draft.vm.spec.template.spec;
    let disks = &mut spec.domain.devices.disks;
    if disks.is_empty() {
        return;
    }
    for volume in &spec.volumes {
        if !disks.iter().any(|disk| disk.name == volume.name) {
            disks.push(Disk { name: volume.name.clone(), ..Disk::default() });
        }
    }
}

fn is_label(text: &str) -> bool {
    let inner = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
    (1..=63).contains(&text.len())
        && text.bytes().all(inner)
        && !text.starts_with('-')
        && !text.ends_with('-')
}
