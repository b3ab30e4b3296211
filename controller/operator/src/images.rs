//! Names of the components' images.

/// Where the images are and which version of them is installed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Images {
    /// Registry and perhaps a path in it, without a slash at the end.
    pub registry: String,
    /// Tag of all of them.
    pub tag: String,
    /// When nodes pull them.
    pub pull_policy: String,
}

impl Default for Images {
    /// Images built on this machine.
    fn default() -> Self {
        Images {
            registry: "localhost".to_owned(),
            tag: "devel".to_owned(),
            pull_policy: "IfNotPresent".to_owned(),
        }
    }
}

impl Images {
    /// Reference of the image with that name.
    pub fn reference(&self, name: &str) -> String {
        format!("{}/barevirt/{name}:{}", self.registry, self.tag)
    }
}
