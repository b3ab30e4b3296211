//! addvolume, removevolume: hotplug of volumes.
//!
//! The call goes to the virtual machine of that name; if there is none, to the instance.

use std::time::Duration;

use anyhow::{Context, bail};
use barevirt_api::cdi;
use barevirt_api::v1::{
    AddVolumeOptions, DataVolumeSource, Disk, DiskTarget, HotplugVolumeSource, LunTarget,
    PersistentVolumeClaimVolumeSource, RemoveVolumeOptions,
};
use clap::Args;
use http::Method;
use k8s_openapi::api::core::v1::PersistentVolumeClaim;
use kube::Api;
use kube::api::DynamicObject;
use serde::Serialize;

use crate::session::{self, INSTANCES, Session, dry_run};

/// Attempts of a call when others change the volumes of the same machine.
const CALLS: u64 = 15;
/// The API server's message for a change that was made for an older state of the object. The call may be repeated.
const OUTDATED: &str = "the server rejected our request due to an error in our request";
/// Longest name of a volume, a DNS label.
const NAME_LIMIT: usize = 63;

/// Arguments of `virtctl addvolume`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  \
    # A volume with a serial number that the guest finds it by:\n  \
    virtctl addvolume myvm --volume-name=data --serial=1234567890\n\n  \
    # The same under another name in the machine's specification:\n  \
    virtctl addvolume myvm --volume-name=data --disk-name=scratch\n\n  \
    # Without the node's page cache, on virtio instead of SCSI:\n  \
    virtctl addvolume myvm --volume-name=data --cache=none --bus=virtio")]
pub(crate) struct AddVolume {
    /// Name of the virtual machine, or of an instance without one.
    vmi: String,
    /// Name of the volume's source: a DataVolume or a PersistentVolumeClaim.
    #[arg(long)]
    volume_name: String,
    /// Name of disk and volume in the specification. Default: the name of the source.
    #[arg(long, default_value = "", hide_default_value = true)]
    disk_name: String,
    /// Serial number of the disk. Default: its name. A lun has the serial number of its device.
    #[arg(long, default_value = "", hide_default_value = true)]
    serial: String,
    /// none, writethrough or writeback.
    #[arg(long, default_value = "", hide_default_value = true)]
    cache: String,
    /// disk or lun.
    #[arg(long, default_value = "disk")]
    disk_type: String,
    /// scsi or virtio; a lun is on scsi.
    #[arg(long, default_value = "scsi")]
    bus: String,
    /// Has no effect: a volume that is added to a machine is always kept. Deprecated.
    #[arg(long)]
    persist: bool,
    /// Only check whether the change is possible.
    #[arg(long)]
    dry_run: bool,
}

/// Arguments of `virtctl removevolume`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  \
    # A volume that was added:\n  virtctl removevolume myvm --volume-name=data")]
pub(crate) struct RemoveVolume {
    /// Name of the virtual machine, or of an instance without one.
    vmi: String,
    /// Name of the volume in the specification.
    #[arg(long)]
    volume_name: String,
    /// Has no effect: a volume that is removed from a machine stays removed. Deprecated.
    #[arg(long)]
    persist: bool,
    /// Only check whether the change is possible.
    #[arg(long)]
    dry_run: bool,
}

impl AddVolume {
    pub(crate) async fn run(&self, session: &Session) -> anyhow::Result<()> {
        let dry_run = dry_run(self.dry_run);
        let source = source(session, &self.volume_name).await;
        let source = source.map_err(|error| anyhow::anyhow!("error adding volume, {error:#}"))?;
        let options = self.options(source, dry_run)?;
        put(session, &self.vmi, "addvolume", &options, "adding").await?;
        println!(
            "Successfully submitted add volume request to VM {} for volume {}",
            self.vmi, self.volume_name
        );
        Ok(())
    }

    fn options(
        &self,
        volume_source: HotplugVolumeSource,
        dry_run: Vec<String>,
    ) -> anyhow::Result<AddVolumeOptions> {
        let Self { volume_name, disk_name, serial, cache, disk_type, bus, .. } = self;
        let name = if disk_name.is_empty() { volume_name } else { disk_name };
        if name.len() > NAME_LIMIT {
            match disk_name.as_str() {
                "" => bail!(
                    "Invalid volume name {volume_name}, must not exceed {NAME_LIMIT} characters. Use in conjunction with --disk-name to specify a shorter name"
                ),
                name => bail!("Invalid disk name {name}, must not exceed {NAME_LIMIT} characters"),
            }
        }
        let mut disk = Disk { name: name.clone(), ..Disk::default() };
        match (disk_type.as_str(), bus.as_str()) {
            ("disk", "scsi" | "virtio") => {
                disk.disk = Some(DiskTarget { bus: Some(bus.clone()), ..DiskTarget::default() });
            }
            ("disk", bus) => {
                bail!("Invalid bus type '{bus}' for disk. Only 'scsi' and 'virtio' are supported.");
            }
            ("lun", "scsi") => {
                disk.lun = Some(LunTarget { bus: Some(bus.clone()), ..LunTarget::default() });
            }
            ("lun", bus) => bail!("Invalid bus type '{bus}' for LUN disk. Only 'scsi' bus is supported."),
            (other, _) => bail!("Invalid disk type '{other}'. Only LUN and Disk are supported."),
        }
        disk.serial = match serial.as_str() {
            // The device of the node has its own serial number.
            "" if disk.is_lun() => None,
            "" => Some(name.clone()),
            given => Some(given.to_owned()),
        };
        if !matches!(cache.as_str(), "" | "none" | "writethrough" | "writeback") {
            bail!("error adding volume, invalid cache value {cache}");
        }
        disk.cache = Some(cache.clone()).filter(|cache| !cache.is_empty());
        Ok(AddVolumeOptions { name: name.clone(), disk, volume_source, dry_run })
    }
}

impl RemoveVolume {
    pub(crate) async fn run(&self, session: &Session) -> anyhow::Result<()> {
        let options = RemoveVolumeOptions { name: self.volume_name.clone(), dry_run: dry_run(self.dry_run) };
        put(session, &self.vmi, "removevolume", &options, "removing").await?;
        println!(
            "Successfully submitted remove volume request to VM {} for volume {}",
            self.vmi, self.volume_name
        );
        Ok(())
    }
}

/// The DataVolume of that name, else the claim.
async fn source(session: &Session, name: &str) -> anyhow::Result<HotplugVolumeSource> {
    let kind = cdi::resource(cdi::DATA_VOLUME);
    let (client, namespace) = (&session.client, &session.namespace);
    let data_volumes: Api<DynamicObject> = Api::namespaced_with(client.clone(), namespace, &kind);
    let claims: Api<PersistentVolumeClaim> = Api::namespaced(client.clone(), namespace);
    // Without CDI, or without the right to read DataVolumes, the claim is used.
    if data_volumes.get_metadata_opt(name).await.is_ok_and(|found| found.is_some()) {
        let source = DataVolumeSource { name: name.to_owned(), hotpluggable: Some(true) };
        return Ok(HotplugVolumeSource { data_volume: Some(source), ..HotplugVolumeSource::default() });
    }
    let found = claims.get_metadata_opt(name).await.map_err(session::plain);
    if found.with_context(|| format!("get PersistentVolumeClaim {name}"))?.is_none() {
        bail!("Volume {name} is not a DataVolume or PersistentVolumeClaim");
    }
    let source = PersistentVolumeClaimVolumeSource {
        claim_name: name.to_owned(),
        hotpluggable: Some(true),
        ..PersistentVolumeClaimVolumeSource::default()
    };
    Ok(HotplugVolumeSource { persistent_volume_claim: Some(source), ..HotplugVolumeSource::default() })
}

/// Makes the call, and repeats it when the object changed meanwhile.
async fn put(
    session: &Session,
    name: &str,
    subresource: &str,
    options: &impl Serialize,
    doing: &str,
) -> anyhow::Result<()> {
    let path = |resource| session::path(&session.namespace, resource, name, subresource);
    for call in 1..=CALLS {
        let mut answer = session.call(Method::PUT, path("virtualmachines"), options).await;
        if matches!(&answer, Err(kube::Error::Api(status)) if status.code == 404) {
            answer = session.call(Method::PUT, path(INSTANCES), options).await;
        }
        match answer {
            Ok(_) => return Ok(()),
            Err(kube::Error::Api(status)) if status.message == OUTDATED => {
                tokio::time::sleep(Duration::from_millis(5 * call)).await;
            }
            Err(error) => bail!("error {doing} volume, {:#}", session::plain(error)),
        }
    }
    bail!("error {doing} volume after {CALLS} retries")
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;
    use serde_json::{Value, json};

    #[derive(Parser)]
    struct Wrapped {
        #[command(flatten)]
        inner: AddVolume,
    }

    fn options(arguments: &[&str]) -> Result<Value, String> {
        let all = [&["addvolume", "vm", "--volume-name=data"], arguments].concat();
        let source = HotplugVolumeSource {
            data_volume: Some(DataVolumeSource { name: "data".to_owned(), hotpluggable: Some(true) }),
            persistent_volume_claim: None,
        };
        let options = Wrapped::parse_from(all).inner.options(source, Vec::new());
        options.map(|options| json!(options)).map_err(|error| error.to_string())
    }

    #[test]
    fn flags_become_options() {
        let source = json!({"dataVolume": {"name": "data", "hotpluggable": true}});
        for (arguments, name, disk) in [
            (&[][..], "data", json!({"name": "data", "serial": "data", "disk": {"bus": "scsi"}})),
            (
                &["--disk-name=d", "--bus=virtio", "--cache=none"],
                "d",
                json!({"name": "d", "serial": "d", "cache": "none", "disk": {"bus": "virtio"}}),
            ),
            (
                &["--serial=S1", "--persist"],
                "data",
                json!({"name": "data", "serial": "S1", "disk": {"bus": "scsi"}}),
            ),
            (&["--disk-type=lun"], "data", json!({"name": "data", "lun": {"bus": "scsi"}})),
        ] {
            let wanted = json!({"name": name, "disk": disk, "volumeSource": source});
            assert_eq!(options(arguments), Ok(wanted), "{arguments:?}");
        }
        assert!(Wrapped::try_parse_from(["addvolume", "vm"]).is_err());
    }

    #[test]
    fn refusals_are_kubevirts() {
        let long = "a".repeat(64);
        for (argument, words) in [
            (
                "--bus=sata",
                "Invalid bus type 'sata' for disk. Only 'scsi' and 'virtio' are supported.".to_owned(),
            ),
            ("--disk-type=cdrom", "Invalid disk type 'cdrom'. Only LUN and Disk are supported.".to_owned()),
            ("--cache=unsafe", "error adding volume, invalid cache value unsafe".to_owned()),
            (
                &format!("--disk-name={long}"),
                format!("Invalid disk name {long}, must not exceed 63 characters"),
            ),
        ] {
            assert_eq!(options(&[argument]), Err(words));
        }
        let words = "Invalid bus type 'virtio' for LUN disk. Only 'scsi' bus is supported.";
        assert_eq!(options(&["--disk-type=lun", "--bus=virtio"]), Err(words.to_owned()));
    }
}
