//! create clone.

use anyhow::{bail, ensure};
use barevirt_api::clone::{VirtualMachineClone, VirtualMachineCloneSpec, VirtualMachineCloneTemplateFilters};
use clap::Args;
use k8s_openapi::api::core::v1::TypedLocalObjectReference;
use std::collections::BTreeMap;

use crate::{random, yaml};

/// Arguments of `virtctl create clone`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  \
    # A clone of the machine 'source' as 'target':\n  \
    virtctl create clone --source-name source --target-name target\n\n  \
    # A machine from a snapshot:\n  \
    virtctl create clone --source-name before --source-type snapshot --target-name target\n\n  \
    # All labels but one:\n  \
    virtctl create clone --source-name source --label-filter '*' --label-filter '!some/key'\n\n  \
    # With new addresses:\n  \
    virtctl create clone --source-name source --new-mac-address default:02-00-00-00-00-01\n\n  \
    # Created at once:\n  \
    virtctl create clone --source-name source | kubectl create -f -")]
pub(super) struct Clone {
    /// Name of the clone object; random when not given.
    #[arg(long)]
    name: Option<String>,
    /// Name of the source.
    #[arg(long)]
    source_name: String,
    /// Name of the target; random when not given.
    #[arg(long, default_value = "")]
    target_name: String,
    /// Type of the source: vm or vmsnapshot.
    #[arg(long, default_value = "vm")]
    source_type: String,
    /// Type of the target: vm.
    #[arg(long, default_value = "vm")]
    target_type: String,
    /// A filter of labels; can be repeated.
    #[arg(long)]
    label_filter: Vec<String>,
    /// A filter of annotations; can be repeated.
    #[arg(long)]
    annotation_filter: Vec<String>,
    /// A filter of the template's labels; can be repeated.
    #[arg(long)]
    template_label_filter: Vec<String>,
    /// A filter of the template's annotations; can be repeated.
    #[arg(long)]
    template_annotation_filter: Vec<String>,
    /// A new MAC address, interface:address, the address with hyphens; can be repeated.
    #[arg(long)]
    new_mac_address: Vec<String>,
    /// The new SMBIOS serial.
    #[arg(long)]
    new_smbios_serial: Option<String>,
}

impl Clone {
    pub(super) fn manifest(&self, namespace: Option<&str>) -> anyhow::Result<String> {
        let name = self.name.clone().filter(|name| !name.is_empty());
        let name = name.unwrap_or_else(|| random::name("clone"));
        let mut object = VirtualMachineClone::new(&name, self.spec()?);
        object.metadata.namespace = namespace.map(str::to_owned);
        yaml::text(&object)
    }

    fn spec(&self) -> anyhow::Result<VirtualMachineCloneSpec> {
        ensure!(!self.source_name.is_empty(), "source name must not be empty");
        let mut new_mac_addresses = BTreeMap::new();
        for text in &self.new_mac_address {
            let (interface, address) = mac_address(text)?;
            new_mac_addresses.insert(interface, address);
        }
        let template = VirtualMachineCloneTemplateFilters {
            annotation_filters: self.template_annotation_filter.clone(),
            label_filters: self.template_label_filter.clone(),
        };
        let is_empty = self.template_annotation_filter.is_empty() && self.template_label_filter.is_empty();
        Ok(VirtualMachineCloneSpec {
            source: reference(&self.source_type, &self.source_name, true)?,
            target: Some(reference(&self.target_type, &self.target_name, false)?),
            annotation_filters: self.annotation_filter.clone(),
            label_filters: self.label_filter.clone(),
            template: (!is_empty).then_some(template),
            new_mac_addresses,
            new_sm_bios_serial: self.new_smbios_serial.clone().filter(|serial| !serial.is_empty()),
            ..VirtualMachineCloneSpec::default()
        })
    }
}

/// Interface and address: one colon parts them.
fn mac_address(text: &str) -> anyhow::Result<(String, String)> {
    let [interface, address] = text.split(':').collect::<Vec<_>>()[..] else {
        bail!(
            "newMacAddress parameter {text} is invalid: exactly one ':' is expected. \
             For example: 'interface0:address0'"
        )
    };
    ensure!(!interface.is_empty(), "newMacAddress parameter {text} has empty interface name");
    ensure!(!address.is_empty(), "newMacAddress parameter {text} has empty address name");
    Ok((interface.to_owned(), address.to_owned()))
}

fn reference(kind: &str, name: &str, is_source: bool) -> anyhow::Result<TypedLocalObjectReference> {
    let (kind, group) = match kind {
        "vm" | "VM" | "VirtualMachine" | "virtualmachine" => ("VirtualMachine", "kubevirt.io"),
        "snapshot" | "VirtualMachineSnapshot" | "vmsnapshot" | "VMSnapshot" if is_source => {
            ("VirtualMachineSnapshot", "snapshot.kubevirt.io")
        }
        other => {
            let (what, types) = if is_source { ("source", "vm, vmsnapshot") } else { ("target", "vm") };
            bail!("{what} type {other} is not supported. Supported types: {types}")
        }
    };
    Ok(TypedLocalObjectReference {
        api_group: Some(group.to_owned()),
        kind: kind.to_owned(),
        name: name.to_owned(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;
    use serde_json::{Value, json};

    #[derive(Parser)]
    struct Wrapped {
        #[command(flatten)]
        inner: Clone,
    }

    fn spec(arguments: &[&str]) -> anyhow::Result<Value> {
        let inner = Wrapped::try_parse_from([&["x", "--source-name=a"], arguments].concat())?.inner;
        let object: Value = serde_saphyr::from_str(&inner.manifest(None)?)?;
        assert_eq!(object["kind"], "VirtualMachineClone");
        Ok(object["spec"].clone())
    }

    #[test]
    fn a_clone_of_a_machine_and_of_a_snapshot() {
        let machine = |name: &str| json!({"apiGroup": "kubevirt.io", "kind": "VirtualMachine", "name": name});
        assert_eq!(
            spec(&["--target-name=b"]).unwrap(),
            json!({"source": machine("a"), "target": machine("b")})
        );
        let spec_of_snapshot = spec(&["--source-type=snapshot"]).unwrap();
        assert_eq!(spec_of_snapshot["source"]["apiGroup"], "snapshot.kubevirt.io");
        let error = spec(&["--target-type=snapshot"]).unwrap_err().to_string();
        assert_eq!(error, "target type snapshot is not supported. Supported types: vm");
    }

    #[test]
    fn filters_and_new_identities() {
        let spec = spec(&[
            "--label-filter=*",
            "--label-filter=!a/*",
            "--template-annotation-filter=b",
            "--new-mac-address=default:02-00",
            "--new-smbios-serial=s",
        ])
        .unwrap();
        assert_eq!(spec["labelFilters"], json!(["*", "!a/*"]));
        assert_eq!(spec["template"], json!({"annotationFilters": ["b"]}));
        assert_eq!(spec["newMacAddresses"], json!({"default": "02-00"}));
        assert_eq!(spec["newSMBiosSerial"], "s");
        for wrong in ["default", "a:b:c", ":b", "a:"] {
            assert!(mac_address(wrong).is_err(), "{wrong}");
        }
    }
}
