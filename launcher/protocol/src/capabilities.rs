//! Features that guests of a node can have, according to its QEMU. The launcher's `node-capabilities` writes
//! them; the handler's pod runs it before the handler starts, because the handler's image has no QEMU.
//!
//! The file is not trusted: it is read with limits, and names that could not be part of a label's name are
//! ignored.

use std::fs::File;
use std::io::{self, Read as _};
use std::path::Path;

use serde::{Deserialize, Serialize};

/// Name of the file, in a directory that both containers mount.
pub const FILE: &str = "capabilities.json";
/// Longest file that is read.
const FILE_MAX: u64 = 1 << 20;
/// Most names of one kind.
const NAMES_MAX: usize = 2000;
/// Longest name: the part of a label's name after the slash.
const NAME_MAX: usize = 63;

/// Features that guests of a node can have.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Capabilities {
    /// QEMU's name of the accelerator that they are valid for.
    pub accelerator: String,
    /// The CPU's vendor by libvirt's name: `Intel`, `AMD`.
    pub vendor: String,
    /// All named CPU models.
    pub known_models: Vec<String>,
    /// Models that lack no feature here.
    pub usable_models: Vec<String>,
    /// CPU features that a guest can have, by libvirt's names and QEMU's.
    pub features: Vec<String>,
    /// The named model that is closest to the node's own CPU.
    pub host_model: Option<String>,
    /// Features of the node's own CPU in addition to that model.
    pub host_model_features: Vec<String>,
    /// Machine types, including their aliases.
    pub machine_types: Vec<String>,
    /// Those of them that a later QEMU will not have.
    pub deprecated_machine_types: Vec<String>,
    /// Whether AMD's memory encryption is available (SEV).
    pub sev: bool,
    /// Whether AMD's encryption of memory and registers is available (SEV-ES).
    pub sev_es: bool,
    /// Whether AMD's encryption with integrity protection is available (SEV-SNP).
    pub sev_snp: bool,
    /// Whether Intel's trust domains are available (TDX).
    pub tdx: bool,
}

/// Why the file cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// It cannot be read.
    #[error("cannot read {path}")]
    Read {
        /// The file.
        path: String,
        /// The error of the system.
        source: io::Error,
    },
    /// It is too long.
    #[error("{path} is longer than {FILE_MAX} bytes")]
    TooLong {
        /// The file.
        path: String,
    },
    /// Its content is something else.
    #[error("{path} does not hold capabilities")]
    Content {
        /// The file.
        path: String,
        /// Where parsing failed.
        source: serde_json::Error,
    },
}

impl Capabilities {
    /// Reads the file in a directory. Names that cannot be part of a label are left out.
    ///
    /// # Errors
    /// If the file does not exist, or its content is invalid.
    pub fn read(folder: &Path) -> Result<Self, Error> {
        let file = folder.join(FILE);
        let path = file.display().to_string();
        let mut text = Vec::new();
        let read = File::open(&file).and_then(|open| open.take(FILE_MAX + 1).read_to_end(&mut text));
        read.map_err(|source| Error::Read { path: path.clone(), source })?;
        if text.len() as u64 > FILE_MAX {
            return Err(Error::TooLong { path });
        }
        let read: Self = serde_json::from_slice(&text).map_err(|source| Error::Content { path, source })?;
        Ok(read.bounded())
    }

    fn bounded(mut self) -> Self {
        for names in [
            &mut self.known_models,
            &mut self.usable_models,
            &mut self.features,
            &mut self.host_model_features,
            &mut self.machine_types,
            &mut self.deprecated_machine_types,
        ] {
            names.retain(|name| is_name(name));
            names.truncate(NAMES_MAX);
        }
        self.host_model.take_if(|name| !is_name(name));
        if !is_name(&self.vendor) {
            self.vendor.clear();
        }
        self
    }
}

/// Whether the text may be the part of a label's name after the slash.
fn is_name(name: &str) -> bool {
    let ends = |byte: Option<&u8>| byte.is_some_and(u8::is_ascii_alphanumeric);
    let bytes = name.as_bytes();
    bytes.len() <= NAME_MAX
        && ends(bytes.first())
        && ends(bytes.last())
        && bytes.iter().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.'))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn written(text: &[u8]) -> Result<Capabilities, Error> {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join(FILE), text).unwrap();
        Capabilities::read(folder.path())
    }

    #[test]
    fn written_capabilities_are_read_back() {
        let capabilities = Capabilities {
            accelerator: "kvm".to_owned(),
            vendor: "AMD".to_owned(),
            features: vec!["sse4.1".to_owned(), "3dnow".to_owned()],
            host_model: Some("EPYC-Milan".to_owned()),
            sev: true,
            ..Capabilities::default()
        };
        assert_eq!(written(&serde_json::to_vec(&capabilities).unwrap()).unwrap(), capabilities);
        // A later launcher may write more fields, an earlier one fewer.
        assert_eq!(written(br#"{"more": 1}"#).unwrap(), Capabilities::default());
    }

    #[test]
    fn capability_names_that_are_no_labels_are_dropped() {
        let read = written(
            br#"{"vendor": "A M D", "features": ["ok", "", "-x", "y_", "a/b", "a.b"], "hostModel": "a\nb"}"#,
        );
        let read = read.unwrap();
        assert_eq!((read.vendor.as_str(), read.host_model), ("", None));
        assert_eq!(read.features, ["ok", "a.b"]);
        let long = format!(r#"{{"features": ["{}", "{}"]}}"#, "x".repeat(63), "y".repeat(64));
        assert_eq!(written(long.as_bytes()).unwrap().features.len(), 1);
    }

    #[test]
    fn too_long_or_something_else_is_refused() {
        assert!(matches!(written(&vec![b' '; (1 << 20) + 1]), Err(Error::TooLong { .. })));
        assert!(matches!(written(b"<domainCapabilities/>"), Err(Error::Content { .. })));
        assert!(matches!(Capabilities::read(Path::new("/nonexistent")), Err(Error::Read { .. })));
    }
}
