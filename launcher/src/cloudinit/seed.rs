//! What goes into the image: user data and network data from the manifest or from mounted secrets, and meta data.

use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use barevirt_api::v1::CloudInitNoCloudSource;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;

/// Most bytes that are taken from a secret; a Kubernetes object cannot hold more.
pub const LARGEST: u64 = 1536 * 1024;

/// Keys of user data in a secret, in the order they are tried.
const USER_KEYS: [&str; 2] = ["userdata", "userData"];

/// Keys of network data in a secret.
const NETWORK_KEYS: [&str; 2] = ["networkdata", "networkData"];

/// Who the guest is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Identity {
    /// Name of the VirtualMachineInstance.
    pub name: String,
    /// Its namespace.
    pub namespace: String,
    /// The guest's host name.
    pub hostname: String,
}

/// The contents of a NoCloud image.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Seed {
    /// YAML with the instance's id and its host name.
    pub meta_data: Vec<u8>,
    /// As the user gave it; empty when there is none.
    pub user_data: Vec<u8>,
    /// As the user gave it.
    pub network_config: Option<Vec<u8>>,
}

/// Why the contents cannot be had.
#[derive(Debug, thiserror::Error)]
pub enum SeedError {
    /// Not base64.
    #[error("{field} is not valid base64: {source}")]
    Base64 {
        /// The field of the source.
        field: &'static str,
        /// Where it goes wrong.
        source: base64::DecodeError,
    },
    /// A secret without the data it was named for.
    #[error("secret of {field} has none of the keys {keys}")]
    NoKey {
        /// The field of the source.
        field: &'static str,
        /// The keys that were tried.
        keys: String,
    },
    /// More data than an object can hold.
    #[error("secret file {0} is larger than {LARGEST} bytes")]
    TooLarge(PathBuf),
    /// The mounted secret cannot be read.
    #[error("read secret file {path}: {source}")]
    Read {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
}

impl Seed {
    /// The contents for a source. `secrets` is the directory of the volume's mounted secrets; it is read only where
    /// the source names one.
    ///
    /// # Errors
    /// When a source that is given cannot be had.
    pub fn new(
        source: &CloudInitNoCloudSource,
        identity: &Identity,
        secrets: &Path,
    ) -> Result<Self, SeedError> {
        let CloudInitNoCloudSource {
            secret_ref,
            user_data,
            user_data_base64,
            network_data_secret_ref,
            network_data,
            network_data_base64,
        } = source;
        let user_data = match (user_data, user_data_base64, secret_ref) {
            (Some(text), _, _) => Some(text.clone().into_bytes()),
            (None, Some(text), _) => Some(decode("userDataBase64", text)?),
            (None, None, Some(_)) => secret(secrets, "secretRef", USER_KEYS)?,
            (None, None, None) => None,
        };
        let network_config = match (network_data, network_data_base64, network_data_secret_ref) {
            (Some(text), _, _) => Some(text.clone().into_bytes()),
            (None, Some(text), _) => Some(decode("networkDataBase64", text)?),
            (None, None, Some(_)) => secret(secrets, "networkDataSecretRef", NETWORK_KEYS)?,
            // A secret of user data may hold network data as well.
            (None, None, None) if secret_ref.is_some() => first_of(secrets, NETWORK_KEYS)?,
            (None, None, None) => None,
        };
        Ok(Self {
            meta_data: meta_data(identity).into_bytes(),
            user_data: user_data.unwrap_or_default(),
            network_config,
        })
    }
}

/// Quoted, because a name such as `1.5` or `null` is valid in Kubernetes and something else in YAML. A JSON string is
/// a YAML string.
fn meta_data(identity: &Identity) -> String {
    let Identity { name, namespace, hostname } = identity;
    let id = serde_json::Value::from(format!("{name}.{namespace}"));
    let hostname = serde_json::Value::from(hostname.as_str());
    format!("instance-id: {id}\nlocal-hostname: {hostname}\n")
}

fn decode(field: &'static str, text: &str) -> Result<Vec<u8>, SeedError> {
    // `base64` of the shell breaks its lines.
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
            // A key that is mounted by itself and missing in the secret is an empty directory.
            Err(error) if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::IsADirectory) => {}
            Err(source) => return Err(SeedError::Read { path, source }),
        }
    }
    Ok(None)
}

/// The file's bytes, `None` when they are too many.
fn read(path: &Path) -> io::Result<Option<Vec<u8>>> {
    let mut bytes = Vec::new();
    File::open(path)?.take(LARGEST + 1).read_to_end(&mut bytes)?;
    Ok((bytes.len() as u64 <= LARGEST).then_some(bytes))
}

#[cfg(test)]
mod tests {
    use barevirt_api::v1::LocalSecret;

    use super::*;

    fn identity() -> Identity {
        Identity { name: "vm1".into(), namespace: "shop".into(), hostname: "vm1".into() }
    }

    fn seed(source: CloudInitNoCloudSource, secrets: &Path) -> Result<Seed, SeedError> {
        Seed::new(&source, &identity(), secrets)
    }

    const NOWHERE: &str = "/nonexistent";

    #[test]
    fn inline_and_base64_are_taken_as_they_are() {
        let inline = CloudInitNoCloudSource {
            user_data: Some("#cloud-config\n".into()),
            network_data: Some("version: 2\n".into()),
            ..Default::default()
        };
        let seed_inline = seed(inline, Path::new(NOWHERE)).unwrap();
        assert_eq!(seed_inline.user_data, b"#cloud-config\n");
        assert_eq!(seed_inline.network_config.as_deref(), Some(&b"version: 2\n"[..]));
        let encoded = CloudInitNoCloudSource {
            user_data_base64: Some("I2Nsb3Vk\nLWNvbmZpZwo=\n".into()),
            network_data_base64: Some("dmVyc2lvbjogMgo=".into()),
            ..Default::default()
        };
        assert_eq!(seed(encoded, Path::new(NOWHERE)).unwrap(), seed_inline);
    }

    #[test]
    fn meta_data_names_the_instance_and_quotes_what_yaml_would_read_otherwise() {
        let nothing = seed(CloudInitNoCloudSource::default(), Path::new(NOWHERE)).unwrap();
        assert_eq!(nothing.meta_data, b"instance-id: \"vm1.shop\"\nlocal-hostname: \"vm1\"\n");
        assert_eq!((nothing.user_data, nothing.network_config), (Vec::new(), None));
        let odd = Identity { name: "1".into(), namespace: "5".into(), hostname: "null".into() };
        assert_eq!(meta_data(&odd), "instance-id: \"1.5\"\nlocal-hostname: \"null\"\n");
    }

    #[test]
    fn bad_base64_names_its_field() {
        let bad = CloudInitNoCloudSource { user_data_base64: Some("***".into()), ..Default::default() };
        let text = seed(bad, Path::new(NOWHERE)).unwrap_err().to_string();
        assert!(text.starts_with("userDataBase64 is not valid base64"), "{text}");
    }

    #[test]
    fn secrets_are_read_under_either_key() {
        let named = || Some(LocalSecret { name: "s".into() });
        let both = || CloudInitNoCloudSource {
            secret_ref: named(),
            network_data_secret_ref: named(),
            ..Default::default()
        };
        let directory = tempfile::tempdir().unwrap();
        // As the kubelet leaves a single key that is not in the secret.
        std::fs::create_dir(directory.path().join("userdata")).unwrap();
        let text = seed(both(), directory.path()).unwrap_err().to_string();
        assert_eq!(text, "secret of secretRef has none of the keys userdata, userData");

        std::fs::write(directory.path().join("userData"), "u").unwrap();
        let text = seed(both(), directory.path()).unwrap_err().to_string();
        assert_eq!(text, "secret of networkDataSecretRef has none of the keys networkdata, networkData");
        let only_user = CloudInitNoCloudSource { secret_ref: named(), ..Default::default() };
        assert_eq!(seed(only_user.clone(), directory.path()).unwrap().network_config, None);

        std::fs::write(directory.path().join("networkdata"), "n").unwrap();
        let complete = seed(both(), directory.path()).unwrap();
        assert_eq!(
            (complete.user_data.as_slice(), complete.network_config.as_deref()),
            (&b"u"[..], Some(&b"n"[..]))
        );
        assert_eq!(seed(only_user, directory.path()).unwrap(), complete);
    }

    #[test]
    fn a_secret_over_the_bound_is_refused() {
        let directory = tempfile::tempdir().unwrap();
        let file = File::create(directory.path().join("userdata")).unwrap();
        file.set_len(LARGEST + 1).unwrap();
        let source =
            CloudInitNoCloudSource { secret_ref: Some(LocalSecret::default()), ..Default::default() };
        assert!(matches!(seed(source, directory.path()), Err(SeedError::TooLarge(_))));
    }
}
