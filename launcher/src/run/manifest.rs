//! Reads a file and returns a valid VirtualMachineInstance.

mod cluster;

use std::io::{self, Read};
use std::path::{Path, PathBuf};

use barevirt_api::v1::{VirtualMachine, VirtualMachineInstance};
use barevirt_api::valid::ValidVmi;
use barevirt_api::validate::Cause;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

/// Largest manifest, in bytes: the limit of an API server.
const LARGEST: u64 = 3 << 20;

/// Why the manifest cannot be run.
#[derive(Debug, thiserror::Error)]
pub enum ManifestError {
    /// It cannot be read.
    #[error("cannot read manifest {path}")]
    Read {
        /// The file.
        path: PathBuf,
        /// The error of the system.
        source: io::Error,
    },
    /// It is larger than any manifest.
    #[error("manifest {path} has more than {LARGEST} bytes")]
    TooLarge {
        /// The file.
        path: PathBuf,
    },
    /// It is not YAML.
    #[error("manifest {path} is not YAML: {text}")]
    Yaml {
        /// The file.
        path: PathBuf,
        /// Where and why.
        text: String,
    },
    /// It is of another kind.
    #[error(
        "manifest {path} has apiVersion {version:?} and kind {kind:?}; what can be run is a VirtualMachineInstance or VirtualMachine of kubevirt.io/v1"
    )]
    Kind {
        /// The file.
        path: PathBuf,
        /// The given version.
        version: String,
        /// The given kind.
        kind: String,
    },
    /// A field has the wrong type.
    #[error("manifest {path} does not parse: {text}")]
    Parse {
        /// The file.
        path: PathBuf,
        /// Where and why.
        text: String,
    },
    /// It has fields that would be ignored.
    #[error("manifest {path} has fields that are not known:{}", .fields.iter().map(|field| format!("\n  {field}")).collect::<String>())]
    Unknown {
        /// The file.
        path: PathBuf,
        /// Their paths.
        fields: Vec<String>,
    },
    /// It needs objects of a cluster, and there is none here.
    #[error("manifest {path} names what only a cluster has:{}", .fields.iter().map(|field| format!("\n  {field}")).collect::<String>())]
    Cluster {
        /// The file.
        path: PathBuf,
        /// Their paths.
        fields: Vec<String>,
    },
    /// Its contents are refused.
    #[error("manifest {path} is not valid:{}", lines(.causes))]
    Invalid {
        /// The file.
        path: PathBuf,
        /// The faults.
        causes: Vec<Cause>,
    },
}

fn lines(causes: &[Cause]) -> String {
    let line = |cause: Cause| format!("\n  {}: {}", cause.field, cause.message);
    causes.iter().map(Cause::advised).map(line).collect()
}

/// Reads the file, fills in defaults and validates. `local` are the volumes whose images are files.
///
/// # Errors
/// Names the file and all its faults.
pub fn load(path: &Path, memory: Option<&str>, local: &[&str]) -> Result<ValidVmi, ManifestError> {
    parse(&read(path)?, path, memory, local)
}

fn read(path: &Path) -> Result<String, ManifestError> {
    let source: Box<dyn Read> = if path == Path::new("-") {
        Box::new(io::stdin())
    } else {
        let file = std::fs::File::open(path);
        Box::new(file.map_err(|source| ManifestError::Read { path: path.to_owned(), source })?)
    };
    let mut text = String::new();
    let read = source.take(LARGEST + 1).read_to_string(&mut text);
    read.map_err(|source| ManifestError::Read { path: path.to_owned(), source })?;
    if text.len() as u64 > LARGEST {
        return Err(ManifestError::TooLarge { path: path.to_owned() });
    }
    Ok(text)
}

/// Converts the text of a manifest. Pure. `path` is for messages.
pub(super) fn parse(
    text: &str,
    path: &Path,
    memory: Option<&str>,
    local: &[&str],
) -> Result<ValidVmi, ManifestError> {
    let path = path.to_owned();
    let options = serde_saphyr::options! { legacy_octal_numbers: true };
    let mut manifest: Value = match serde_saphyr::from_str_with_options(text, options) {
        Ok(manifest) => manifest,
        Err(error) => return Err(ManifestError::Yaml { path, text: error.to_string() }),
    };
    if let Some(memory) = memory {
        override_memory(&mut manifest, memory);
    }
    let said = |field: &str| manifest[field].as_str().unwrap_or_default().to_owned();
    let (version, kind) = (said("apiVersion"), said("kind"));
    let known = matches!(version.as_str(), "kubevirt.io/v1" | "kubevirt.io/v1alpha3");
    if known {
        let fields = cluster::settle(&mut manifest, local);
        if !fields.is_empty() {
            return Err(ManifestError::Cluster { path, fields });
        }
    }
    let vmi = match kind.as_str() {
        "VirtualMachineInstance" if known => read_whole(manifest, &path)?,
        "VirtualMachine" if known => instance_of(read_whole(manifest, &path)?),
        _ => return Err(ManifestError::Kind { path, version, kind }),
    };
    ValidVmi::new(vmi).map_err(|causes| ManifestError::Invalid { path, causes })
}

/// Decodes completely: an unknown field is refused and not ignored.
fn read_whole<T: DeserializeOwned + Serialize>(manifest: Value, path: &Path) -> Result<T, ManifestError> {
    let wrong =
        |error: serde_json::Error| ManifestError::Parse { path: path.to_owned(), text: error.to_string() };
    let object: T = serde_json::from_value(manifest.clone()).map_err(wrong)?;
    let fields = barevirt_api::unknown::fields(&manifest, &serde_json::to_value(&object).map_err(wrong)?);
    if fields.is_empty() { Ok(object) } else { Err(ManifestError::Unknown { path: path.to_owned(), fields }) }
}

/// The instance that a machine would start.
fn instance_of(vm: VirtualMachine) -> VirtualMachineInstance {
    let mut vmi = VirtualMachineInstance { spec: vm.spec.template.spec, ..VirtualMachineInstance::default() };
    vmi.metadata.name = vm.metadata.name;
    vmi.metadata.namespace = vm.metadata.namespace;
    vmi
}

fn override_memory(manifest: &mut Value, memory: &str) {
    let spec = if manifest["kind"] == "VirtualMachine" { "/spec/template/spec" } else { "/spec" };
    let Some(domain) = manifest.pointer_mut(&format!("{spec}/domain")).and_then(Value::as_object_mut) else {
        return;
    };
    domain.insert("memory".to_owned(), json!({"guest": memory}));
    // The pod's resources no longer match, and there is no pod.
    if let Some(resources) = domain.get_mut("resources").and_then(Value::as_object_mut) {
        for list in ["requests", "limits"] {
            if let Some(list) = resources.get_mut(list).and_then(Value::as_object_mut) {
                list.remove("memory");
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const VMI: &str = "
apiVersion: kubevirt.io/v1
kind: VirtualMachineInstance
metadata: {name: tiny}
spec:
  domain:
    memory: {guest: 128Mi}
    devices: {}
";
    const VM: &str = "
apiVersion: kubevirt.io/v1alpha3
kind: VirtualMachine
metadata: {name: old, namespace: there}
spec:
  running: false
  template:
    spec:
      domain:
        resources: {requests: {memory: 64M}}
        devices: {}
";

    fn parsed(text: &str, memory: Option<&str>) -> Result<ValidVmi, ManifestError> {
        parse(text, Path::new("x.yaml"), memory, &[])
    }

    #[test]
    fn instances_and_machines_of_both_versions() {
        assert_eq!(parsed(VMI, None).unwrap().name(), "tiny");
        let vm = parsed(VM, None).unwrap();
        assert_eq!((vm.name(), vm.namespace()), ("old", "there"));
    }

    #[test]
    fn memory_is_taken_from_the_command_line() {
        for text in [VMI, VM] {
            assert_eq!(parsed(text, Some("256Mi")).unwrap().guest_memory(), 256 << 20);
        }
    }

    #[test]
    fn every_mistake_names_the_file() {
        let wrong_kind = VMI.replace("VirtualMachineInstance", "Pod");
        let wrong_shape = VMI.replace("{guest: 128Mi}", "3");
        let invalid = VMI.replace("devices: {}", "devices: {disks: [{name: a}]}");
        let typo = VMI.replace("devices: {}", "devices: {}\n    firmwear: {efi: {}}\n  volumes: [{name: a, emptyDisk: {capacity: 1Mi, size: 1}}]");
        let in_template = VM.replace("running: false", "runing: true");
        let of_cluster = VM.replace("running: false", "instancetype: {name: u1.small}");
        let cases = [
            (of_cluster.as_str(), "names what only a cluster has:\n  spec.instancetype"),
            ("a: [", "is not YAML"),
            (
                typo.as_str(),
                "has fields that are not known:\n  spec.domain.firmwear\n  spec.volumes[0].emptyDisk.size",
            ),
            (in_template.as_str(), "not known:\n  spec.runing"),
            (wrong_kind.as_str(), "kind \"Pod\""),
            (wrong_shape.as_str(), "does not parse"),
            (invalid.as_str(), "spec.domain.devices.disks[0]"),
        ];
        for (text, expected) in cases {
            let message = parsed(text, None).unwrap_err().to_string();
            assert!(message.contains("x.yaml") && message.contains(expected), "{message}");
        }
    }
}
