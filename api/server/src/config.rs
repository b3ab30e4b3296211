//! Settings of the installation as they are now: the KubeVirt object, watched, so that settings and feature gates apply
//! without a restart.
//!
//! Before the API server has answered once, nothing is known: virt-api is not ready and answers no webhook. After that
//! the last good reading stays in force, whatever becomes of the watch.

use std::sync::Arc;

use arc_swap::ArcSwapOption;
use barevirt_api::settings::Settings;
use barevirt_api::v1::KubeVirt;
use futures::StreamExt;
use kube::core::DeserializeGuard;
use kube::runtime::reflector::store::Writer;
use kube::runtime::watcher::{self, Event, watcher};
use kube::runtime::{WatchStreamExt, reflector};
use kube::{Api, Client};

/// A reading of the KubeVirt objects.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Config {
    /// What they say. virt-controller reads the same.
    pub settings: Settings,
    /// Whether there is one.
    pub installed: bool,
}

/// The newest good reading; none before the first one.
#[derive(Debug, Default)]
pub struct Current(ArcSwapOption<Config>);

impl Current {
    /// What is in force.
    pub fn get(&self) -> Option<Arc<Config>> {
        self.0.load_full()
    }

    /// Takes in what there is now. An object that cannot be read changes nothing.
    fn take<'a>(&self, objects: impl Iterator<Item = &'a DeserializeGuard<KubeVirt>>) {
        let read: Result<Vec<&KubeVirt>, _> = objects.map(|object| object.0.as_ref()).collect();
        let read = match read {
            Ok(read) => read,
            Err(invalid) => {
                let name = invalid.metadata.name.as_deref().unwrap_or_default();
                return tracing::warn!(name, error = invalid.error, "KubeVirt object not readable");
            }
        };
        let config =
            Config { settings: Settings::current(read.iter().copied()), installed: !read.is_empty() };
        let new = self.get().is_none_or(|before| *before != config);
        if new {
            tracing::info!(settings = ?config.settings, "settings of the installation");
            self.0.store(Some(Arc::new(config)));
        }
    }
}

/// Watches for ever.
pub async fn follow(client: Client, current: Arc<Current>) {
    let objects: Api<DeserializeGuard<KubeVirt>> = Api::all(client);
    let writer = Writer::default();
    let known = writer.as_reader();
    let changes = watcher(objects, watcher::Config::default()).default_backoff();
    let mut changes = reflector(writer, changes).boxed();
    while let Some(change) = changes.next().await {
        match change {
            // While a list comes in, the one before holds.
            Ok(Event::Init | Event::InitApply(_)) => {}
            Ok(Event::InitDone | Event::Apply(_) | Event::Delete(_)) => {
                current.take(known.state().iter().map(AsRef::as_ref));
            }
            Err(error) => tracing::warn!(%error, "KubeVirt objects not watched"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn object(spec: Value) -> DeserializeGuard<KubeVirt> {
        serde_json::from_value(json!({
            "apiVersion": "kubevirt.io/v1", "kind": "KubeVirt",
            "metadata": { "name": "kubevirt", "namespace": "kubevirt" }, "spec": spec,
        }))
        .unwrap()
    }

    fn with_gate(gate: &str) -> DeserializeGuard<KubeVirt> {
        object(json!({ "configuration": { "developerConfiguration": { "featureGates": [gate] } } }))
    }

    #[test]
    fn nothing_is_in_force_before_the_first_answer() {
        let current = Current::default();
        assert_eq!(current.get(), None);
        current.take([].iter());
        assert_eq!(*current.get().unwrap(), Config::default());
    }

    #[test]
    fn the_last_good_reading_stays() {
        let current = Current::default();
        current.take([with_gate("HostDisk")].iter());
        let config = current.get().unwrap();
        assert!(config.installed && config.settings.gates.is_on("HostDisk"));
        current.take([object(json!({ "configuration": 1 }))].iter());
        assert_eq!(current.get().unwrap(), config);
        current.take([with_gate("VSOCK")].iter());
        let config = current.get().unwrap();
        assert!(config.settings.gates.is_on("VSOCK") && !config.settings.gates.is_on("HostDisk"));
        current.take([].iter());
        assert_eq!(*current.get().unwrap(), Config::default());
    }
}
