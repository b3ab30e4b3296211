//! CDI's settings where there is no CDI: the CDIConfig `config`. Pure.
//!
//! ```text
//!   annotations of the KubeVirt object, its pull secrets --first--+
//!   CDIConfig.spec ----------------------------------------else --+--> settings of importers --> CDIConfig.status
//!   config map cdi-insecure-registries ---------------------too --+
//! ```

use super::facts::{Installation, LABEL};
use super::overhead::Overhead;
use super::resources;
use barevirt_api::cdi::{CONFIG, CdiConfig, CdiConfigSpec, CdiConfigStatus, ImportProxy, WAITS_FOR_CONSUMER};
use barevirt_import_job::Network;
use k8s_openapi::api::core::v1::LocalObjectReference;
use std::collections::BTreeMap;

/// A step so that there is an object with its status.
#[derive(Clone, Debug, PartialEq)]
pub enum ConfigStep {
    /// Make it.
    Make(Box<CdiConfig>),
    /// Write its status.
    Write(Box<CdiConfigStatus>),
}

/// The settings with those of a CDIConfig, for what they leave open.
pub fn configured(mut installation: Installation, given: &CdiConfigSpec) -> Installation {
    for secret in &given.image_pull_secrets {
        if !secret.name.is_empty() && !installation.pull_secrets.contains(&secret.name) {
            installation.pull_secrets.push(secret.name.clone());
        }
    }
    let registries = given.insecure_registries.iter().map(|registry| registry.trim().to_owned());
    installation.insecure_registries.extend(registries);
    if let Some(proxy) = &given.import_proxy {
        let text = |text: &Option<String>| text.clone().filter(|text| !text.is_empty());
        let network = &mut installation.network;
        network.http_proxy = network.http_proxy.take().or_else(|| text(&proxy.http_proxy));
        network.https_proxy = network.https_proxy.take().or_else(|| text(&proxy.https_proxy));
        if network.no_proxy.is_empty() {
            network.no_proxy = text(&proxy.no_proxy).unwrap_or_default();
        }
    }
    installation.resources = resources::of(given.pod_resource_requirements.as_ref());
    installation.overhead = Overhead::of(given.filesystem_overhead.as_ref());
    installation.preallocation = given.preallocation == Some(true);
    installation
}

/// The step. `installation` has the settings of the object already; `classes` are the names of all storage classes.
pub fn config_step(
    found: Option<&CdiConfig>,
    installation: &Installation,
    classes: &[String],
) -> Option<ConfigStep> {
    let Some(found) = found else { return Some(ConfigStep::Make(Box::new(new()))) };
    if found.metadata.deletion_timestamp.is_some() {
        return None;
    }
    let status = status(&found.spec, installation, classes);
    (found.status.as_ref() != Some(&status)).then(|| ConfigStep::Write(Box::new(status)))
}

/// The object. Its status is written later.
fn new() -> CdiConfig {
    let spec =
        CdiConfigSpec { feature_gates: vec![WAITS_FOR_CONSUMER.to_owned()], ..CdiConfigSpec::default() };
    let mut config = CdiConfig::new(CONFIG, spec);
    let label = |(label, value): (&str, &str)| (label.to_owned(), value.to_owned());
    config.metadata.labels = Some(BTreeMap::from([LABEL, ("cdi.kubevirt.io", "")].map(label)));
    config
}

fn status(given: &CdiConfigSpec, installation: &Installation, classes: &[String]) -> CdiConfigStatus {
    let secrets = installation.pull_secrets.iter().map(|name| LocalObjectReference { name: name.clone() });
    CdiConfigStatus {
        default_pod_resource_requirements: Some(installation.resources.clone()),
        filesystem_overhead: Some(installation.overhead.shown(classes)),
        image_pull_secrets: secrets.collect(),
        import_proxy: Some(shown(&installation.network)),
        preallocation: Some(true).filter(|_| installation.preallocation),
        scratch_space_storage_class: None,
        upload_proxy_ca: None,
        upload_proxy_url: given.upload_proxy_url_override.clone().filter(|url| !url.is_empty()),
    }
}

/// The proxies, for everybody to read. As with CDI, one that is not given is an empty text.
fn shown(network: &Network) -> ImportProxy {
    let proxy = |proxy: &Option<String>| Some(proxy.as_deref().map(without_login).unwrap_or_default());
    ImportProxy {
        http_proxy: proxy(&network.http_proxy),
        https_proxy: proxy(&network.https_proxy),
        no_proxy: Some(network.no_proxy.clone()),
        trusted_ca_proxy: Some(String::new()),
    }
}

/// The address of a proxy without user name and password.
fn without_login(proxy: &str) -> String {
    match proxy.split_once("://").zip(proxy.rsplit_once('@')) {
        Some(((scheme, _), (_, place))) => format!("{scheme}://{place}"),
        None => proxy.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::installation;
    use super::*;
    use kube::ResourceExt;
    use serde_json::{Value, json};

    fn spec(value: Value) -> CdiConfigSpec {
        serde_json::from_value(value).unwrap()
    }

    fn config(value: Value) -> CdiConfig {
        CdiConfig::new(CONFIG, spec(value))
    }

    #[test]
    fn annotations_of_the_kubevirt_object_come_before_the_settings_of_a_cdi_config() {
        let given = spec(json!({
            "importProxy": { "HTTPProxy": "http://cdi", "HTTPSProxy": "http://cdi", "noProxy": ".svc" },
            "insecureRegistries": [" other.example:5000 "],
            "imagePullSecrets": [{ "name": "pull" }, { "name": "more" }],
            "podResourceRequirements": { "limits": { "cpu": "2" } },
            "filesystemOverhead": { "global": "0.1" },
            "preallocation": true,
        }));
        let mut before = installation();
        before.network.http_proxy = Some("http://kubevirt".to_owned());
        let all = configured(before.clone(), &given);
        assert_eq!(all.network.http_proxy.as_deref(), Some("http://kubevirt"));
        assert_eq!(all.network.https_proxy.as_deref(), Some("http://cdi"));
        assert_eq!(all.network.no_proxy, ".svc");
        assert_eq!(all.insecure_registries.len(), 2);
        assert!(all.insecure_registries.contains("other.example:5000"));
        assert_eq!(all.pull_secrets, ["pull", "more"]);
        assert_eq!(all.resources.limits.as_ref().unwrap()["cpu"].0, "2");
        assert_eq!((all.overhead.of_class(None), all.preallocation), (100, true));
        before.network.no_proxy = "a.example".to_owned();
        assert_eq!(configured(before.clone(), &given).network.no_proxy, "a.example");
        // What a CDIConfig leaves open stays; an empty proxy is none.
        let empty = spec(json!({ "importProxy": { "HTTPProxy": "", "HTTPSProxy": "" } }));
        assert_eq!(configured(before.clone(), &empty), before);
        assert_eq!(configured(before.clone(), &CdiConfigSpec::default()), before);
    }

    #[test]
    fn there_is_one_object_and_its_status_is_written_when_it_changes() {
        let classes = ["fast".to_owned(), "slow".to_owned()];
        let Some(ConfigStep::Make(made)) = config_step(None, &installation(), &classes) else { panic!() };
        let mut found = *made;
        assert_eq!((found.name_any().as_str(), found.spec.feature_gates.len()), ("config", 1));
        assert_eq!(found.labels()[LABEL.0], LABEL.1);
        let Some(ConfigStep::Write(status)) = config_step(Some(&found), &installation(), &classes) else {
            panic!()
        };
        let expected = json!({
            "defaultPodResourceRequirements": {
                "requests": { "cpu": "100m", "memory": "60M" }, "limits": { "cpu": "750m", "memory": "600M" },
            },
            "filesystemOverhead": { "global": "0.06", "storageClass": { "fast": "0.06", "slow": "0.06" } },
            "imagePullSecrets": [{ "name": "pull" }],
            "importProxy": { "HTTPProxy": "", "HTTPSProxy": "", "noProxy": "", "trustedCAProxy": "" },
        });
        assert_eq!(serde_json::to_value(&status).unwrap(), expected);
        // As the API server returns it.
        found.status = Some(serde_json::from_value(expected).unwrap());
        assert_eq!(config_step(Some(&found), &installation(), &classes), None);
        // A class that has gone is no longer named.
        let Some(ConfigStep::Write(status)) = config_step(Some(&found), &installation(), &classes[..1])
        else {
            panic!()
        };
        assert_eq!(status.filesystem_overhead.unwrap().storage_class.len(), 1);
        found.metadata.deletion_timestamp = serde_json::from_value(json!("2026-01-01T00:00:00Z")).unwrap();
        assert_eq!(config_step(Some(&found), &installation(), &[]), None);
    }

    #[test]
    fn the_status_shows_what_counts_and_no_password() {
        let config = config(json!({
            "uploadProxyURLOverride": "https://uploads.example", "preallocation": true,
            "importProxy": { "HTTPProxy": "http://me:p@ss@p.example:3128", "HTTPSProxy": "http://p.example" },
            "filesystemOverhead": { "storageClass": { "fast": "0.01" } },
        }));
        let installation = configured(installation(), &config.spec);
        let Some(ConfigStep::Write(status)) = config_step(Some(&config), &installation, &["fast".to_owned()])
        else {
            panic!()
        };
        let status = serde_json::to_value(&status).unwrap();
        assert_eq!(status["importProxy"]["HTTPProxy"], "http://p.example:3128");
        assert_eq!(status["importProxy"]["HTTPSProxy"], "http://p.example");
        assert_eq!(status["uploadProxyURL"], "https://uploads.example");
        assert_eq!(
            (&status["preallocation"], &status["filesystemOverhead"]["storageClass"]["fast"]),
            (&json!(true), &json!("0.01"))
        );
    }
}
