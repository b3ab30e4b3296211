//! Names of the components' images: by tag, or by digest where it is known.

use std::collections::BTreeMap;

/// Images that virt-operator installs, without its own.
pub const INSTALLED: [&str; 6] =
    ["virt-api", "virt-controller", "virt-handler", "virt-importer", "virt-launcher", "virt-passt"];

/// The location and version of the installed images.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Images {
    /// Registry and path before the names, without a slash at the end: KubeVirt's `imageRegistry`.
    pub registry: String,
    /// Tag of all images, and the version in the status.
    pub tag: String,
    /// When nodes pull them.
    pub pull_policy: String,
    /// Full references, by name, of images that are not `registry/name:tag`.
    pub pinned: BTreeMap<String, String>,
}

/// A reference without registry and tag.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ReferenceError {
    /// It has no registry, or neither tag nor digest.
    #[error("{0} does not name an image as registry/name:tag or registry/name@sha256:digest")]
    Incomplete(String),
    /// The text after the `@` is not a digest.
    #[error("{0} has a digest that is not sha256: and 64 hexadecimal digits")]
    Digest(String),
}

/// The parts of a reference.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reference<'a> {
    /// Registry and path.
    pub registry: &'a str,
    /// Last part of the path.
    pub name: &'a str,
    /// The tag, if there is one.
    pub tag: Option<&'a str>,
    /// `sha256:...`, if there is a digest.
    pub digest: Option<&'a str>,
}

impl<'a> Reference<'a> {
    /// Parses a reference. With a digest, the tag is ignored; without one, the tag is required.
    ///
    /// # Errors
    /// There is no registry, or neither tag nor digest, or the digest is invalid.
    pub fn read(text: &'a str) -> Result<Self, ReferenceError> {
        let incomplete = || ReferenceError::Incomplete(text.to_owned());
        let (path, digest) = match text.split_once('@') {
            Some((path, digest)) => (path, Some(digest)),
            None => (text, None),
        };
        if digest.is_some_and(|digest| !is_digest(digest)) {
            return Err(ReferenceError::Digest(text.to_owned()));
        }
        let (registry, last) = path.rsplit_once('/').ok_or_else(incomplete)?;
        let (name, tag) = match last.split_once(':') {
            Some((name, tag)) => (name, Some(tag)),
            None => (last, None),
        };
        if registry.is_empty() || name.is_empty() || tag == Some("") || (tag, digest) == (None, None) {
            return Err(incomplete());
        }
        Ok(Reference { registry, name, tag, digest })
    }
}

/// Whether a text is a digest by which an image can be named.
pub fn is_digest(text: &str) -> bool {
    text.strip_prefix("sha256:").is_some_and(|digits| {
        digits.len() == 64 && digits.bytes().all(|digit| matches!(digit, b'0'..=b'9' | b'a'..=b'f'))
    })
}

impl Default for Images {
    /// Images built on this machine.
    fn default() -> Self {
        Images {
            registry: "localhost/barevirt".to_owned(),
            tag: "devel".to_owned(),
            pull_policy: "IfNotPresent".to_owned(),
            pinned: BTreeMap::new(),
        }
    }
}

impl Images {
    /// The images that belong to the image of that reference: with the same registry and tag. If the reference has a digest,
    /// their tag is `version`.
    ///
    /// # Errors
    /// The reference does not name an image.
    pub fn beside(reference: &str, version: &str, pull_policy: &str) -> Result<Images, ReferenceError> {
        let own = Reference::read(reference)?;
        let mut images = Images {
            registry: own.registry.to_owned(),
            tag: own.tag.filter(|_| own.digest.is_none()).unwrap_or(version).to_owned(),
            pull_policy: pull_policy.to_owned(),
            pinned: BTreeMap::new(),
        };
        if own.digest.is_some() {
            images.pinned.insert(own.name.to_owned(), reference.to_owned());
        }
        Ok(images)
    }

    /// Sets the full reference of one image.
    ///
    /// # Errors
    /// The reference does not name an image.
    pub fn pin(&mut self, name: &str, reference: &str) -> Result<(), ReferenceError> {
        Reference::read(reference)?;
        self.pinned.insert(name.to_owned(), reference.to_owned());
        Ok(())
    }

    /// Applies the fields of the `KubeVirt` object. A tag is for all images. A registry without a tag is a mirror, where the
    /// same images have the same digests.
    pub fn overridden(&self, registry: Option<String>, tag: Option<String>) -> Images {
        let pinned = match (&registry, &tag) {
            (_, Some(_)) => BTreeMap::new(),
            (None, None) => self.pinned.clone(),
            (Some(registry), None) => {
                let mirrored = self.pinned.iter().filter_map(|(name, reference)| {
                    let digest = Reference::read(reference).ok()?.digest?;
                    Some((name.clone(), format!("{registry}/{name}@{digest}")))
                });
                mirrored.collect()
            }
        };
        Images {
            registry: registry.unwrap_or_else(|| self.registry.clone()),
            tag: tag.unwrap_or_else(|| self.tag.clone()),
            pull_policy: self.pull_policy.clone(),
            pinned,
        }
    }

    /// Reference of the image with that name.
    pub fn reference(&self, name: &str) -> String {
        let by_tag = || format!("{}/{name}:{}", self.registry, self.tag);
        self.pinned.get(name).cloned().unwrap_or_else(by_tag)
    }
}

/// The environment variable of virt-operator with the full reference of an image: KubeVirt's names.
pub fn variable(name: &str) -> String {
    format!("{}_IMAGE", name.replace('-', "_").to_uppercase())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn digest(digit: char) -> String {
        format!("sha256:{}", digit.to_string().repeat(64))
    }

    #[test]
    fn the_other_images_are_derived_from_the_operators() {
        let images = Images::beside("r.example:5000/x/virt-operator:v1", "v9", "Always").unwrap();
        assert_eq!(images.reference("virt-api"), "r.example:5000/x/virt-api:v1");
        assert_eq!(images.reference("virt-operator"), "r.example:5000/x/virt-operator:v1");
        for bad in [
            "virt-operator:v1",
            "r.example:5000/virt-operator",
            "r/virt-operator:",
            "r/virt-operator@sha256:ab",
            "r/virt-operator@md5:ab",
            "/virt-operator:v1",
            "virt-operator@",
        ] {
            assert!(Images::beside(bad, "v9", "Always").unwrap_err().to_string().contains(bad), "{bad}");
        }
    }

    #[test]
    fn one_by_digest_has_the_version_for_a_tag() {
        for own in [
            format!("r.example:5000/x/virt-operator@{}", digest('a')),
            format!("r.example:5000/x/virt-operator:v1@{}", digest('a')),
        ] {
            let images = Images::beside(&own, "v9", "Always").unwrap();
            assert_eq!((images.registry.as_str(), images.tag.as_str()), ("r.example:5000/x", "v9"));
            assert_eq!(images.reference("virt-operator"), own);
            assert_eq!(images.reference("virt-api"), "r.example:5000/x/virt-api:v9");
        }
    }

    #[test]
    fn a_pinned_image_follows_a_mirror_and_yields_to_a_tag() {
        let mut images = Images::beside("r/x/virt-operator:v1", "v9", "Always").unwrap();
        images.pin("virt-api", &format!("other/y/api@{}", digest('b'))).unwrap();
        images.pin("virt-handler", "other/y/handler:special").unwrap();
        assert!(images.pin("virt-launcher", "nothing").is_err());
        assert_eq!(images.overridden(None, None), images);
        let mirrored = images.overridden(Some("mirror".into()), None);
        assert_eq!(mirrored.reference("virt-api"), format!("mirror/virt-api@{}", digest('b')));
        assert_eq!(mirrored.reference("virt-handler"), "mirror/virt-handler:v1");
        let tagged = images.overridden(None, Some("v2".into()));
        assert_eq!(tagged.reference("virt-api"), "r/x/virt-api:v2");
    }
}
