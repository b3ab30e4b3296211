//! Settings of the installation: flags of this process, and the `KubeVirt` object as it is at the moment.

use barevirt_api::settings::Settings;
use barevirt_api::v1::KubeVirt;

/// What pods are built with.
#[derive(Clone, Debug, PartialEq)]
pub struct Config {
    /// Image of the launcher and of the container disks' helper.
    pub launcher_image: String,
    /// Pull policy for it, where the `KubeVirt` object names none.
    pub image_pull_policy: Option<String>,
    /// What the `KubeVirt` object says.
    pub settings: Settings,
}

impl Config {
    /// Flags together with the oldest of the `KubeVirt` objects; there should be one. Defaults where there is none.
    pub fn current<'a>(
        launcher_image: &str,
        image_pull_policy: Option<&str>,
        objects: impl Iterator<Item = &'a KubeVirt>,
    ) -> Self {
        Config {
            launcher_image: launcher_image.to_owned(),
            image_pull_policy: image_pull_policy.map(str::to_owned),
            settings: Settings::current(objects),
        }
    }

    /// Pull policy for launchers.
    pub fn pull_policy(&self) -> Option<&str> {
        self.settings.image_pull_policy.as_deref().or(self.image_pull_policy.as_deref())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn kubevirt(name: &str, created: &str, policy: &str) -> KubeVirt {
        serde_json::from_value(json!({
            "metadata": {"name": name, "namespace": "kubevirt", "creationTimestamp": created},
            "spec": {"configuration": {"imagePullPolicy": policy}}
        }))
        .unwrap()
    }

    #[test]
    fn the_object_wins_over_the_flag_and_the_oldest_over_others() {
        let objects =
            [kubevirt("b", "2026-01-02T00:00:00Z", "Never"), kubevirt("a", "2026-01-01T00:00:00Z", "Always")];
        let config = Config::current("launcher", Some("IfNotPresent"), objects.iter());
        assert_eq!(config.pull_policy(), Some("Always"));
        let config = Config::current("launcher", Some("IfNotPresent"), [].iter());
        assert_eq!(config.pull_policy(), Some("IfNotPresent"));
        assert_eq!(config.settings, Settings::default());
    }
}
