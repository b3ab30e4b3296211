//! Names of the components' images.

/// Where the images are and which version of them is installed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Images {
    /// Registry and path before the names, without a slash at the end: KubeVirt's `imageRegistry`.
    pub registry: String,
    /// Tag of all of them.
    pub tag: String,
    /// When nodes pull them.
    pub pull_policy: String,
}

/// A reference that tells no registry and tag.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0} does not name an image as registry/name:tag")]
pub struct ReferenceError(String);

impl Default for Images {
    /// Images built on this machine.
    fn default() -> Self {
        Images {
            registry: "localhost/barevirt".to_owned(),
            tag: "devel".to_owned(),
            pull_policy: "IfNotPresent".to_owned(),
        }
    }
}

impl Images {
    /// Those that come with the image of that reference: the same registry and tag.
    pub fn beside(reference: &str, pull_policy: &str) -> Result<Images, ReferenceError> {
        let failed = || ReferenceError(reference.to_owned());
        let (registry, name) = reference.rsplit_once('/').ok_or_else(failed)?;
        let (_, tag) = name.split_once(':').filter(|_| !name.contains('@')).ok_or_else(failed)?;
        Ok(Images { registry: registry.to_owned(), tag: tag.to_owned(), pull_policy: pull_policy.to_owned() })
    }

    /// Reference of the image with that name.
    pub fn reference(&self, name: &str) -> String {
        format!("{}/{name}:{}", self.registry, self.tag)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_image_tells_of_the_others() {
        let images = Images::beside("r.example:5000/x/virt-operator:v1", "Always").unwrap();
        assert_eq!(images.reference("virt-api"), "r.example:5000/x/virt-api:v1");
        for bad in ["virt-operator:v1", "r.example:5000/virt-operator", "r/virt-operator@sha256:ab"] {
            assert!(Images::beside(bad, "Always").unwrap_err().to_string().contains(bad));
        }
    }
}
