//! How much the launcher of an instance logs. Labels of the instance come before the installation's level, as in KubeVirt.

use crate::config::Config;
use barevirt_api::names::{DEBUG_LOGS_LABEL, LOG_VERBOSITY_LABEL};
use barevirt_api::settings::Component;
use barevirt_api::valid::ValidVmi;
use k8s_openapi::api::core::v1::EnvVar;

/// The level from which on a launcher logs everything.
const EVERYTHING: u32 = 6;

/// The launcher's variable with its level; `None` for the usual one.
pub(super) fn variable(vmi: &ValidVmi, config: &Config) -> Option<EnvVar> {
    level(vmi, config).map(|level| EnvVar {
        name: "VIRT_LAUNCHER_LOG_VERBOSITY".to_owned(),
        value: Some(level.to_string()),
        value_from: None,
    })
}

fn level(vmi: &ValidVmi, config: &Config) -> Option<u32> {
    let labels = vmi.vmi().metadata.labels.as_ref();
    let label = |name: &str| labels.and_then(|labels| labels.get(name)).map(String::as_str);
    let own = label(LOG_VERBOSITY_LABEL).and_then(|level| level.parse().ok());
    // The pod's node, which may have its own level, is not known yet; KubeVirt's launchers get no node's level either.
    let level = own.or_else(|| config.settings.verbosity.of(Component::Launcher, ""));
    if label(DEBUG_LOGS_LABEL).is_some_and(|value| value.eq_ignore_ascii_case("true")) {
        return Some(level.unwrap_or_default().max(EVERYTHING));
    }
    level
}

#[cfg(test)]
mod tests {
    use super::*;
    use barevirt_api::settings::Settings;
    use barevirt_api::v1::KubeVirtSpec;
    use serde_json::{Value, json};

    fn told(labels: Value, installation: Value) -> Option<String> {
        let vmi = serde_json::from_value(json!({
            "metadata": {"name": "vm", "namespace": "ns", "uid": "u", "labels": labels},
            "spec": {"domain": {"memory": {"guest": "128Mi"}, "devices": {}}},
        }));
        let vmi = ValidVmi::new(vmi.unwrap()).unwrap_or_else(|causes| panic!("{causes:?}"));
        let developer = json!({"developerConfiguration": {"logVerbosity": installation}});
        let spec: KubeVirtSpec = serde_json::from_value(json!({"configuration": developer})).unwrap();
        let config = Config {
            launcher_image: "launcher".to_owned(),
            image_pull_policy: None,
            settings: Settings::from_kubevirt(Some(&spec)),
        };
        let variable = variable(&vmi, &config)?;
        assert_eq!(variable.name, "VIRT_LAUNCHER_LOG_VERBOSITY");
        variable.value
    }

    #[test]
    fn labels_of_the_instance_come_before_the_installation() {
        for (labels, installation, level) in [
            (json!({}), json!({}), None),
            (json!({}), json!({"virtLauncher": 4}), Some("4")),
            (json!({"logVerbosity": "3"}), json!({"virtLauncher": 4}), Some("3")),
            (json!({"logVerbosity": "10"}), json!({}), Some("10")),
            (json!({"debugLogs": "True"}), json!({"virtLauncher": 4}), Some("6")),
            (json!({"debugLogs": "true", "logVerbosity": "8"}), json!({}), Some("8")),
            (json!({"debugLogs": "false"}), json!({}), None),
        ] {
            let case = labels.to_string();
            assert_eq!(told(labels, installation).as_deref(), level, "{case}");
        }
    }
}
