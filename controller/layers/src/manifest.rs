//! Manifests: the layers of an image, and the images of an index by architecture (OCI image specification 1.1, Docker's
//! version 2).

use barevirt_import_job::is_digest;
use serde::Deserialize;

/// Media types that are understood, as `Accept` of a request for a manifest.
pub const ACCEPTED: &str = "application/vnd.oci.image.index.v1+json, application/vnd.oci.image.manifest.v1+json, \
    application/vnd.docker.distribution.manifest.list.v2+json, application/vnd.docker.distribution.manifest.v2+json";
/// Longest manifest, in bytes: the limit of registries.
pub const LONGEST_MANIFEST: usize = 4 << 20;
/// Most layers of an image; container runtimes know 127.
pub const MOST_LAYERS: usize = 127;
/// Most images of an index.
const MOST_IMAGES: usize = 1024;

/// What is wrong with an image. The text follows the image's name.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ManifestError {
    /// It is not a manifest, or leads elsewhere.
    #[error("has a manifest that cannot be used: {0}")]
    Unusable(String),
    /// The index has nothing for the architecture.
    #[error("does not exist for {architecture}, only for {others}")]
    Architecture {
        /// The architecture.
        architecture: String,
        /// What the index has, `system/architecture`.
        others: String,
    },
}

/// A reference by digest.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Descriptor {
    /// `sha256:...`
    pub digest: String,
    /// Length in bytes.
    pub size: u64,
    /// The platform of an image in an index.
    #[serde(default)]
    pub platform: Option<Platform>,
}

/// A platform of images.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
pub struct Platform {
    /// The architecture by Go's name.
    #[serde(default)]
    pub architecture: String,
    /// The system by Go's name.
    #[serde(default)]
    pub os: String,
}

#[derive(Deserialize)]
struct Written {
    #[serde(default)]
    manifests: Option<Vec<Descriptor>>,
    #[serde(default)]
    layers: Option<Vec<Descriptor>>,
}

/// A manifest.
#[derive(Debug, PartialEq, Eq)]
pub enum Manifest {
    /// Images for several architectures.
    Index(Index),
    /// An image: its layers, the lowest first.
    Image(Vec<Descriptor>),
}

/// Images for several architectures.
#[derive(Debug, PartialEq, Eq)]
pub struct Index(Vec<Descriptor>);

impl Descriptor {
    /// Whether it is an image for Linux on an architecture.
    #[must_use]
    pub fn is_for(&self, architecture: &str) -> bool {
        self.platform.as_ref().is_some_and(|platform| {
            platform.architecture == architecture && (platform.os.is_empty() || platform.os == "linux")
        })
    }
}

impl Manifest {
    /// Parses a manifest.
    ///
    /// # Errors
    /// It is not a manifest, or not usable.
    pub fn parse(body: &[u8]) -> Result<Self, ManifestError> {
        let wrong = ManifestError::Unusable;
        let written: Written = serde_json::from_slice(body).map_err(|error| wrong(error.to_string()))?;
        let (manifest, all) = match written {
            Written { manifests: Some(images), .. } => (Manifest::Index(Index(images.clone())), images),
            Written { layers: Some(layers), .. } => (Manifest::Image(layers.clone()), layers),
            Written { .. } => return Err(wrong("it has neither layers nor manifests".to_owned())),
        };
        let most = if matches!(manifest, Manifest::Index(_)) { MOST_IMAGES } else { MOST_LAYERS };
        if all.len() > most {
            return Err(wrong(format!("it has {} entries, more than {most}", all.len())));
        }
        if let Some(bad) = all.iter().find(|entry| !is_digest(&entry.digest)) {
            let digest: String = bad.digest.chars().take(80).collect();
            return Err(wrong(format!("digest {digest:?} is not sha256: and 64 hexadecimal digits")));
        }
        Ok(manifest)
    }
}

impl Index {
    /// All its images.
    #[must_use]
    pub fn images(&self) -> &[Descriptor] {
        &self.0
    }

    /// The image for Linux on an architecture.
    ///
    /// # Errors
    /// There is none.
    pub fn choose(&self, architecture: &str) -> Result<&Descriptor, ManifestError> {
        self.0.iter().find(|entry| entry.is_for(architecture)).ok_or_else(|| {
            let there = self.0.iter().filter_map(|entry| entry.platform.as_ref()).take(16);
            // Without what would control a terminal.
            let shown = |found: &Platform| {
                format!("{}/{}", found.os.escape_debug(), found.architecture.escape_debug())
            };
            let there: Vec<_> = there.map(shown).collect();
            ManifestError::Architecture { architecture: architecture.to_owned(), others: there.join(", ") }
        })
    }
}

/// The architecture of this machine, by Go's name.
#[must_use]
pub fn own_architecture() -> &'static str {
    match std::env::consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_index_is_chosen_from_by_architecture() {
        let (a, b) = (format!("sha256:{}", "a".repeat(64)), format!("sha256:{}", "b".repeat(64)));
        let text = format!(
            r#"{{"manifests":[{{"digest":"{a}","size":1,"platform":{{"os":"linux","architecture":"arm64"}}}},
                {{"digest":"{b}","size":1,"platform":{{"os":"linux","architecture":"amd64"}}}}]}}"#
        );
        let Manifest::Index(index) = Manifest::parse(text.as_bytes()).unwrap() else { panic!() };
        assert_eq!(index.choose("amd64").unwrap().digest, b);
        let missing = index.choose("s390x").unwrap_err().to_string();
        assert!(missing.contains("only for linux/arm64, linux/amd64"), "{missing}");
    }

    #[test]
    fn a_manifest_that_leads_elsewhere_is_refused() {
        for bad in [
            r#"{"layers":[{"digest":"../../x","size":1}]}"#,
            r#"{"layers":[{"digest":"sha256:00","size":1}]}"#,
            r#"{"layers":[{"digest":"sha256:00","size":-1}]}"#,
            r#"{"schemaVersion":1,"fsLayers":[]}"#,
            "[]",
        ] {
            let error = Manifest::parse(bad.as_bytes()).unwrap_err();
            assert!(matches!(error, ManifestError::Unusable(_)), "{bad}");
        }
    }
}
