//! The content of the image: user data and network data from the manifest or from mounted secrets, and meta
//! data.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use barevirt_api::cloud_init::{CloudInit, Given, Layout};
use barevirt_machine::{TaggedDevice, TaggedKind};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde::Serialize;

use crate::credentials::ReadError;

/// Most bytes that are read from a secret; a Kubernetes object cannot hold more.
pub const LARGEST: u64 = 1536 * 1024;

/// Keys of user data in a secret, in the order they are tried.
const USER_KEYS: [&str; 2] = ["userdata", "userData"];

/// Keys of network data in a secret.
const NETWORK_KEYS: [&str; 2] = ["networkdata", "networkData"];

/// The guest's identity, for its meta data.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Identity {
    /// Name of the VirtualMachineInstance.
    pub name: String,
    /// Its namespace.
    pub namespace: String,
    /// The guest's host name.
    pub hostname: String,
    /// UUID of its firmware, which stays the same after restarts.
    pub uuid: String,
    /// Its instance type.
    pub instance_type: Option<String>,
    /// Public keys for logins by SSH.
    pub keys: Vec<String>,
}

/// The contents of an image.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Seed {
    /// The layout.
    pub layout: Layout,
    /// JSON that names the instance and its host name.
    pub meta_data: Vec<u8>,
    /// The user's data, unchanged; empty if there is none.
    pub user_data: Vec<u8>,
    /// The user's network data, unchanged.
    pub network_data: Option<Vec<u8>>,
}

/// A device of the machine of which a config drive tells, with KubeVirt's members in KubeVirt's order.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Device {
    #[serde(rename = "type")]
    kind: &'static str,
    bus: &'static str,
    address: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    mac: Option<String>,
    tags: [String; 1],
}

impl From<TaggedDevice> for Device {
    fn from(TaggedDevice { kind, address, mac, tag }: TaggedDevice) -> Self {
        let kind = match kind {
            TaggedKind::Card => "nic",
            TaggedKind::OfNode => "hostdev",
        };
        Self { kind, bus: "pci", address, mac, tags: [tag] }
    }
}

/// Why the contents cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum SeedError {
    /// A text is not base64.
    #[error("{field} is not valid base64: {source}")]
    Base64 {
        /// The field of the source.
        field: &'static str,
        /// Position of the fault.
        source: base64::DecodeError,
    },
    /// A secret lacks the data that it was named for.
    #[error("secret of {field} has none of the keys {keys}")]
    NoKey {
        /// The field of the source.
        field: &'static str,
        /// The keys that were tried.
        keys: String,
    },
    /// The data are larger than an object can be.
    #[error("secret file {0} is larger than {LARGEST} bytes")]
    TooLarge(PathBuf),
    /// The public keys cannot be read.
    #[error(transparent)]
    Keys(#[from] ReadError),
    /// The mounted secret cannot be read.
    #[error("read secret file {path}: {source}")]
    Read {
        /// The file.
        path: PathBuf,
        /// The error of the system.
        source: io::Error,
    },
}

impl Seed {
    /// The contents from a volume's data. `secrets` is the directory of the volume's mounted secrets; it is
    /// only read if a secret is named.
    ///
    /// # Errors
    /// If a given source cannot be read.
    pub fn new(given: &CloudInit<'_>, identity: &Identity, secrets: &Path) -> Result<Self, SeedError> {
        let CloudInit { layout, user, network } = *given;
        let user_data = match user {
            Given { plain: Some(text), .. } => Some(text.as_bytes().to_vec()),
            Given { base64: Some(text), .. } => Some(decode("userDataBase64", text)?),
            Given { secret: Some(_), .. } => secret(secrets, "secretRef", USER_KEYS)?,
            Given { .. } => None,
        };
        let network_data = match network {
            Given { plain: Some(text), .. } => Some(text.as_bytes().to_vec()),
            Given { base64: Some(text), .. } => Some(decode("networkDataBase64", text)?),
            Given { secret: Some(_), .. } => secret(secrets, "networkDataSecretRef", NETWORK_KEYS)?,
            // A secret for user data may also contain network data.
            Given { .. } if user.secret.is_some() => first_of(secrets, NETWORK_KEYS)?,
            Given { .. } => None,
        };
        Ok(Self {
            layout,
            meta_data: meta_data(layout, identity, &[]),
            user_data: user_data.unwrap_or_default(),
            network_data,
        })
    }

    /// The same contents; those of a config drive also list these devices.
    #[must_use]
    pub fn with_devices(self, identity: &Identity, devices: &[Device]) -> Self {
        Self { meta_data: meta_data(self.layout, identity, devices), ..self }
    }
}

/// Meta data of NoCloud, with KubeVirt's members in KubeVirt's order. cloud-init reads it as YAML, which
/// includes JSON.
#[derive(Serialize)]
#[serde(rename_all = "kebab-case")]
struct NoCloud<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    instance_type: Option<&'a str>,
    instance_id: &'a str,
    local_hostname: &'a str,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    public_keys: BTreeMap<String, &'a str>,
}

/// The same for a config drive.
#[derive(Serialize)]
struct ConfigDrive<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    instance_type: Option<&'a str>,
    instance_id: String,
    hostname: &'a str,
    uuid: &'a str,
    #[serde(skip_serializing_if = "<[Device]>::is_empty")]
    devices: &'a [Device],
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    public_keys: BTreeMap<String, &'a str>,
}

fn meta_data(layout: Layout, identity: &Identity, devices: &[Device]) -> Vec<u8> {
    let Identity { name, namespace, hostname, uuid, instance_type, keys } = identity;
    let public_keys = keys.iter().enumerate().map(|(n, key)| (n.to_string(), key.as_str())).collect();
    let instance_type = instance_type.as_deref();
    let json = match layout {
        Layout::NoCloud => serde_json::to_vec(&NoCloud {
            instance_type,
            instance_id: uuid,
            local_hostname: hostname,
            public_keys,
        }),
        Layout::ConfigDrive => serde_json::to_vec(&ConfigDrive {
            instance_type,
            instance_id: format!("{name}.{namespace}"),
            hostname,
            uuid,
            devices,
            public_keys,
        }),
    };
    // Strings always have a JSON form.
    json.unwrap_or_default()
}

fn decode(field: &'static str, text: &str) -> Result<Vec<u8>, SeedError> {
    // The shell command `base64` breaks its lines.
    let packed: String = text.split_ascii_whitespace().collect();
    STANDARD.decode(packed).map_err(|source| SeedError::Base64 { field, source })
}

fn secret(directory: &Path, field: &'static str, keys: [&str; 2]) -> Result<Option<Vec<u8>>, SeedError> {
    match first_of(directory, keys)? {
        Some(bytes) => Ok(Some(bytes)),
        None => Err(SeedError::NoKey { field, keys: keys.join(", ") }),
    }
}

fn first_of(directory: &Path, keys: [&str; 2]) -> Result<Option<Vec<u8>>, SeedError> {
    for key in keys {
        let path = directory.join(key);
        match read(&path) {
            Ok(Some(bytes)) => return Ok(Some(bytes)),
            Ok(None) => return Err(SeedError::TooLarge(path)),
            // A mounted single key that is missing in the secret appears as an empty directory.
            Err(error) if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::IsADirectory) => {}
            Err(source) => return Err(SeedError::Read { path, source }),
        }
    }
    Ok(None)
}

/// The file's bytes; `None` if there are too many.
fn read(path: &Path) -> io::Result<Option<Vec<u8>>> {
    let mut bytes = Vec::new();
    File::open(path)?.take(LARGEST + 1).read_to_end(&mut bytes)?;
    Ok((bytes.len() as u64 <= LARGEST).then_some(bytes))
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    const NOWHERE: &str = "/nonexistent";
    const LAYOUTS: [&str; 2] = ["cloudInitNoCloud", "cloudInitConfigDrive"];

    fn identity() -> Identity {
        Identity {
            name: "vm1".into(),
            namespace: "shop".into(),
            hostname: "web".into(),
            uuid: "5a9fc181-957e-5c32-9e5a-2de5e9673531".into(),
            ..Identity::default()
        }
    }

    fn seed(layout: &str, source: &Value, secrets: &Path) -> Result<Seed, SeedError> {
        let volume = serde_json::from_value(json!({"name": "seed", layout: source})).unwrap();
        Seed::new(&barevirt_api::cloud_init::of(&volume).unwrap(), &identity(), secrets)
    }

    #[test]
    fn inline_and_base64_are_taken_as_they_are() {
        for layout in LAYOUTS {
            let inline = json!({"userData": "#cloud-config\n", "networkData": "version: 2\n"});
            let inline = seed(layout, &inline, Path::new(NOWHERE)).unwrap();
            assert_eq!(inline.user_data, b"#cloud-config\n");
            assert_eq!(inline.network_data.as_deref(), Some(&b"version: 2\n"[..]));
            let encoded = json!({"userDataBase64": "I2Nsb3Vk\nLWNvbmZpZwo=\n", "networkDataBase64": "dmVyc2lvbjogMgo="});
            assert_eq!(seed(layout, &encoded, Path::new(NOWHERE)).unwrap(), inline);
        }
    }

    #[test]
    fn meta_data_is_kubevirts() {
        let mut identity = identity();
        let told = |layout, identity: &Identity| String::from_utf8(meta_data(layout, identity, &[])).unwrap();
        assert_eq!(
            told(Layout::NoCloud, &identity),
            r#"{"instance-id":"5a9fc181-957e-5c32-9e5a-2de5e9673531","local-hostname":"web"}"#
        );
        identity.instance_type = Some("u1.small".into());
        identity.keys = vec!["ssh-ed25519 A".into(), "ssh-ed25519 B".into()];
        assert_eq!(
            told(Layout::NoCloud, &identity),
            r#"{"instance-type":"u1.small","instance-id":"5a9fc181-957e-5c32-9e5a-2de5e9673531","local-hostname":"web","public-keys":{"0":"ssh-ed25519 A","1":"ssh-ed25519 B"}}"#
        );
        assert_eq!(
            told(Layout::ConfigDrive, &identity),
            r#"{"instance_type":"u1.small","instance_id":"vm1.shop","hostname":"web","uuid":"5a9fc181-957e-5c32-9e5a-2de5e9673531","public_keys":{"0":"ssh-ed25519 A","1":"ssh-ed25519 B"}}"#
        );
    }

    #[test]
    fn a_config_drive_lists_tagged_devices() {
        let device = |kind: TaggedKind, address: &str, mac: Option<&str>, tag: &str| {
            Device::from(TaggedDevice {
                kind,
                address: address.into(),
                mac: mac.map(str::to_owned),
                tag: tag.to_owned(),
            })
        };
        let devices = [
            device(TaggedKind::Card, "0000:01:00.0", Some("02:00:00:00:00:01"), "backup"),
            device(TaggedKind::Card, "0000:0d:00.0", None, "\"fast\""),
            device(TaggedKind::OfNode, "0000:0e:00.0", None, "codec"),
        ];
        let told = |layout: &str| {
            let seed = seed(layout, &json!({"userData": "#"}), Path::new(NOWHERE)).unwrap();
            String::from_utf8(seed.with_devices(&identity(), &devices).meta_data).unwrap()
        };
        assert_eq!(
            told("cloudInitConfigDrive"),
            r#"{"instance_id":"vm1.shop","hostname":"web","uuid":"5a9fc181-957e-5c32-9e5a-2de5e9673531","devices":[{"type":"nic","bus":"pci","address":"0000:01:00.0","mac":"02:00:00:00:00:01","tags":["backup"]},{"type":"nic","bus":"pci","address":"0000:0d:00.0","tags":["\"fast\""]},{"type":"hostdev","bus":"pci","address":"0000:0e:00.0","tags":["codec"]}]}"#
        );
        assert!(!told("cloudInitNoCloud").contains("devices"));
    }

    #[test]
    fn bad_base64_names_its_field() {
        let bad = json!({"userDataBase64": "***"});
        let text = seed(LAYOUTS[0], &bad, Path::new(NOWHERE)).unwrap_err().to_string();
        assert!(text.starts_with("userDataBase64 is not valid base64"), "{text}");
    }

    #[test]
    fn secrets_are_read_under_either_key() {
        let both = json!({"secretRef": {"name": "s"}, "networkDataSecretRef": {"name": "n"}});
        let only_user = json!({"secretRef": {"name": "s"}});
        for layout in LAYOUTS {
            let directory = tempfile::tempdir().unwrap();
            // The kubelet leaves an empty directory for a single key that is not in the secret.
            std::fs::create_dir(directory.path().join("userdata")).unwrap();
            let text = seed(layout, &both, directory.path()).unwrap_err().to_string();
            assert_eq!(text, "secret of secretRef has none of the keys userdata, userData");

            std::fs::write(directory.path().join("userData"), "u").unwrap();
            let text = seed(layout, &both, directory.path()).unwrap_err().to_string();
            assert_eq!(text, "secret of networkDataSecretRef has none of the keys networkdata, networkData");
            assert_eq!(seed(layout, &only_user, directory.path()).unwrap().network_data, None);

            std::fs::write(directory.path().join("networkdata"), "n").unwrap();
            let complete = seed(layout, &both, directory.path()).unwrap();
            assert_eq!(
                (complete.user_data.as_slice(), complete.network_data.as_deref()),
                (&b"u"[..], Some(&b"n"[..]))
            );
            assert_eq!(seed(layout, &only_user, directory.path()).unwrap(), complete);
        }
    }

    #[test]
    fn a_secret_over_the_bound_is_refused() {
        let directory = tempfile::tempdir().unwrap();
        let file = File::create(directory.path().join("userdata")).unwrap();
        file.set_len(LARGEST + 1).unwrap();
        let source = json!({"secretRef": {"name": "s"}});
        assert!(matches!(seed(LAYOUTS[0], &source, directory.path()), Err(SeedError::TooLarge(_))));
    }
}
