//! Access credentials: public keys and passwords from secrets that the kubelet mounts, for the guest.
//!
//! ```text
//!  secret ─ kubelet ─► SECRETS/NAME-access-cred/KEY ─┬─ noCloud, configDrive ─► cloud-init's meta data, at the start
//!                                                    └─ qemuGuestAgent ─► serve ─► guest agent, again when a file changes
//! ```
//!
//! The names in a secret of public keys do not matter; each line of a value is a key. In a secret of
//! passwords each name is a user of the guest. The rules are KubeVirt's.

pub mod serve;

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use barevirt_api::cloud_init::Layout;
use barevirt_api::names::ACCESS_CREDENTIAL_SUFFIX;
use barevirt_api::v1::{AccessCredential, AccessCredentialSecretSource, VirtualMachineInstanceSpec};
use sha2::{Digest, Sha256};

/// Largest value in bytes; a Kubernetes object cannot hold more.
const LARGEST: u64 = 1536 * 1024;

/// A mounted secret cannot be read.
#[derive(Debug, thiserror::Error)]
#[error("read access credential secret {path}: {source}")]
pub struct ReadError {
    path: PathBuf,
    source: io::Error,
}

/// Credentials that the guest agent should set.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct WantedCredentials {
    /// All authorized keys of each user.
    pub keys: BTreeMap<String, Vec<String>>,
    /// Passwords by user.
    pub passwords: BTreeMap<String, String>,
}

/// Kinds of credentials that the guest agent should set.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Kinds {
    /// Public keys.
    pub keys: bool,
    /// Passwords.
    pub passwords: bool,
}

impl Kinds {
    /// The kinds of a specification.
    #[must_use]
    pub fn of(credentials: &[AccessCredential]) -> Self {
        Self {
            keys: credentials.iter().any(|one| keys_by_agent(one).is_some()),
            passwords: credentials.iter().any(|one| passwords_by_agent(one).is_some()),
        }
    }

    /// Whether there are any.
    #[must_use]
    pub fn any(self) -> bool {
        self.keys || self.passwords
    }
}

impl WantedCredentials {
    /// The current content of the secrets below `secrets`.
    ///
    /// # Errors
    /// Names the first file that cannot be read.
    pub fn read(credentials: &[AccessCredential], secrets: &Path) -> Result<Self, ReadError> {
        let mut wanted = Self::default();
        // Two credentials may name the same secret for the same user.
        let mut taken = BTreeSet::new();
        for credential in credentials {
            if let Some((secret, users)) = keys_by_agent(credential) {
                let keys = lines(&values(secrets, secret)?);
                for user in users {
                    if taken.insert((user, secret)) {
                        wanted.keys.entry(user.clone()).or_default().extend(keys.iter().cloned());
                    }
                }
            }
            if let Some(secret) = passwords_by_agent(credential) {
                let passwords = values(secrets, secret)?;
                let passwords = passwords.iter().map(|(user, value)| (user.clone(), value.trim().to_owned()));
                wanted.passwords.extend(passwords.filter(|(_, password)| !password.is_empty()));
            }
        }
        Ok(wanted)
    }

    /// Distinguishes credentials without storing them.
    #[must_use]
    pub fn digest(&self) -> [u8; 32] {
        let mut hash = Sha256::new();
        let mut add = |text: &str| {
            hash.update((text.len() as u64).to_le_bytes());
            hash.update(text);
        };
        for (user, keys) in &self.keys {
            add(user);
            keys.iter().for_each(|key| add(key));
            add("");
        }
        add("passwords");
        for (user, password) in &self.passwords {
            add(user);
            add(password);
        }
        hash.finalize().into()
    }
}

/// Omits the passwords, which must not appear in logs.
impl std::fmt::Debug for WantedCredentials {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { keys, passwords } = self;
        f.debug_struct("WantedCredentials").field("keys", keys).field("passwords", &passwords.keys()).finish()
    }
}

/// Public keys for cloud-init's meta data in this layout: each value of each secret, unchanged.
///
/// # Errors
/// Names the first file that cannot be read.
pub fn cloud_init_keys(
    spec: &VirtualMachineInstanceSpec,
    layout: Layout,
    secrets: &Path,
) -> Result<Vec<String>, ReadError> {
    let mut keys = Vec::new();
    for key in spec.access_credentials.iter().filter_map(|one| one.ssh_public_key.as_ref()) {
        let method = &key.propagation_method;
        let meant = match layout {
            Layout::NoCloud => method.no_cloud.is_some(),
            Layout::ConfigDrive => method.config_drive.is_some(),
        };
        if let Some(secret) = secret_name(key.source.secret.as_ref()).filter(|_| meant) {
            let values = values(secrets, secret)?.into_values();
            keys.extend(values.map(|value| value.trim_end().to_owned()).filter(|value| !value.is_empty()));
        }
    }
    Ok(keys)
}

fn keys_by_agent(credential: &AccessCredential) -> Option<(&str, &[String])> {
    let key = credential.ssh_public_key.as_ref()?;
    let agent = key.propagation_method.qemu_guest_agent.as_ref()?;
    Some((secret_name(key.source.secret.as_ref())?, &agent.users))
}

fn passwords_by_agent(credential: &AccessCredential) -> Option<&str> {
    let password = credential.user_password.as_ref()?;
    password.propagation_method.qemu_guest_agent.as_ref()?;
    secret_name(password.source.secret.as_ref())
}

fn secret_name(source: Option<&AccessCredentialSecretSource>) -> Option<&str> {
    source.map(|source| source.secret_name.as_str()).filter(|name| !name.is_empty())
}

fn lines(values: &BTreeMap<String, String>) -> Vec<String> {
    let lines = values.values().flat_map(|value| value.lines()).map(str::trim);
    lines.filter(|line| !line.is_empty()).map(str::to_owned).collect()
}

/// The values of a mounted secret by their names.
fn values(secrets: &Path, secret: &str) -> Result<BTreeMap<String, String>, ReadError> {
    let directory = secrets.join(format!("{secret}{ACCESS_CREDENTIAL_SUFFIX}"));
    let failed = |path: &Path| {
        let path = path.to_owned();
        move |source| ReadError { path, source }
    };
    let mut values = BTreeMap::new();
    for entry in std::fs::read_dir(&directory).map_err(failed(&directory))? {
        let name = entry.map_err(failed(&directory))?.file_name();
        // Names with two dots in front belong to the kubelet, which swaps all files at once with them.
        let Some(name) = name.to_str().filter(|name| !name.starts_with("..")) else { continue };
        let path = directory.join(name);
        if !path.is_dir() {
            values.insert(name.to_owned(), read(&path).map_err(failed(&path))?);
        }
    }
    Ok(values)
}

fn read(path: &Path) -> io::Result<String> {
    let mut bytes = Vec::new();
    File::open(path)?.take(LARGEST + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > LARGEST {
        return Err(io::Error::other(format!("it is larger than {LARGEST} bytes")));
    }
    String::from_utf8(bytes).map_err(|_| io::Error::new(io::ErrorKind::InvalidData, "it is not UTF-8"))
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn spec(credentials: Value) -> VirtualMachineInstanceSpec {
        serde_json::from_value(json!({"domain": {"devices": {}}, "accessCredentials": credentials})).unwrap()
    }

    fn keys(secret: &str, method: Value) -> Value {
        json!({"sshPublicKey": {"source": {"secret": {"secretName": secret}}, "propagationMethod": method}})
    }

    fn passwords(secret: &str) -> Value {
        json!({"userPassword": {"source": {"secret": {"secretName": secret}},
            "propagationMethod": {"qemuGuestAgent": {}}}})
    }

    /// Mounts a secret like the kubelet: links into a directory that is swapped atomically.
    fn mount(secrets: &Path, secret: &str, values: &[(&str, &str)]) {
        let directory = secrets.join(format!("{secret}-access-cred"));
        std::fs::create_dir_all(directory.join("..2026")).unwrap();
        std::os::unix::fs::symlink("..2026", directory.join("..data")).unwrap();
        for (name, value) in values {
            std::fs::write(directory.join("..2026").join(name), value).unwrap();
            std::os::unix::fs::symlink(format!("..data/{name}"), directory.join(name)).unwrap();
        }
    }

    #[test]
    fn keys_of_several_secrets_come_together_by_user() {
        let directory = tempfile::tempdir().unwrap();
        mount(directory.path(), "a", &[("one", "key1\n\n  key2 \n"), ("two", "key3")]);
        mount(directory.path(), "b", &[("one", "key4")]);
        let agent = |users: &[&str]| json!({"qemuGuestAgent": {"users": users}});
        let spec = spec(json!([
            keys("a", agent(&["debian", "root"])),
            keys("b", agent(&["root"])),
            keys("a", agent(&["root"])),
        ]));
        assert_eq!(Kinds::of(&spec.access_credentials), Kinds { keys: true, passwords: false });
        let wanted = WantedCredentials::read(&spec.access_credentials, directory.path()).unwrap();
        assert_eq!(wanted.keys["debian"], ["key1", "key2", "key3"]);
        assert_eq!(wanted.keys["root"], ["key1", "key2", "key3", "key4"]);
        assert!(wanted.passwords.is_empty());
    }

    #[test]
    fn passwords_are_by_user_and_in_no_log() {
        let directory = tempfile::tempdir().unwrap();
        mount(directory.path(), "p", &[("debian", "sesame\n"), ("nobody", "\n")]);
        let spec = spec(json!([passwords("p")]));
        let wanted = WantedCredentials::read(&spec.access_credentials, directory.path()).unwrap();
        assert_eq!(wanted.passwords, BTreeMap::from([("debian".to_owned(), "sesame".to_owned())]));
        assert!(!format!("{wanted:?}").contains("sesame"), "{wanted:?}");
        let digest = wanted.digest();
        std::fs::write(directory.path().join("p-access-cred/..2026/debian"), "open").unwrap();
        assert_ne!(
            WantedCredentials::read(&spec.access_credentials, directory.path()).unwrap().digest(),
            digest
        );
    }

    #[test]
    fn cloud_init_has_the_keys_of_its_own_layout() {
        let directory = tempfile::tempdir().unwrap();
        mount(directory.path(), "a", &[("one", "key1\n"), ("two", ""), ("three", "key3\nkey4\n")]);
        mount(directory.path(), "b", &[("one", "key5")]);
        let spec = spec(json!([
            keys("a", json!({"noCloud": {}})),
            keys("b", json!({"configDrive": {}})),
            keys("missing", json!({"qemuGuestAgent": {"users": ["a"]}})),
        ]));
        let of = |layout| cloud_init_keys(&spec, layout, directory.path()).unwrap();
        assert_eq!(of(Layout::NoCloud), ["key1", "key3\nkey4"]);
        assert_eq!(of(Layout::ConfigDrive), ["key5"]);
    }

    #[test]
    fn a_secret_that_is_not_there_is_named() {
        let directory = tempfile::tempdir().unwrap();
        let spec = spec(json!([passwords("p")]));
        let error =
            WantedCredentials::read(&spec.access_credentials, directory.path()).unwrap_err().to_string();
        assert!(error.contains("/p-access-cred: "), "{error}");
    }
}
