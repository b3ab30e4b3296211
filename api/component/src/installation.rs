//! The current installation: the `KubeVirt` object, watched, so that settings apply without a restart.
//!
//! ```text
//!   KubeVirt objects --watch--> the oldest --good?--> Reading (a watch channel: users read it or wait for changes)
//!                                            \--no--> the last good one stays, and names the refused one
//! ```
//!
//! Before the API server's first answer nothing is known. A process that starts while the object is invalid
//! has no good one. It uses the settings that can be read, because the defaults would be further from the
//! user's intention, and reports no resource version.

use barevirt_api::settings::{Settings, seniority};
use barevirt_api::v1::KubeVirt;
use barevirt_api::validate::kinds::kubevirt::standing;
use futures::StreamExt;
use kube::core::DeserializeGuard;
use kube::runtime::reflector::store::Writer;
use kube::runtime::watcher::{self, Event, watcher};
use kube::runtime::{WatchStreamExt, reflector};
use kube::{Api, Client, Resource};
use serde_json::{Value, json};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;
use tracing::{info, warn};

/// Time limit for the API server's answer about its version.
const VERSION_WITHIN: Duration = Duration::from_secs(10);

/// The settings of the `KubeVirt` object that are in effect.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Reading {
    /// Settings in effect.
    pub settings: Settings,
    /// Whether a `KubeVirt` object exists.
    pub installed: bool,
    /// Resource version of the object that the settings are from; empty without an object or without a valid
    /// one.
    pub resource_version: String,
    /// A later object that was refused.
    pub refused: Option<Refused>,
}

/// An object that was refused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refused {
    /// Its resource version.
    pub resource_version: String,
    /// All that is wrong with it.
    pub causes: Vec<String>,
}

/// State of the API server at the last check.
#[derive(Clone, Debug, PartialEq)]
enum Server {
    Unknown,
    Answers(Value),
    Trouble(String),
}

/// The state of the installation, shared by all clones.
#[derive(Clone, Debug)]
pub struct Installation {
    reading: Arc<watch::Sender<Option<Arc<Reading>>>>,
    server: Arc<watch::Sender<Server>>,
}

impl Default for Installation {
    fn default() -> Self {
        Installation {
            reading: Arc::new(watch::Sender::new(None)),
            server: Arc::new(watch::Sender::new(Server::Unknown)),
        }
    }
}

impl Installation {
    /// The settings in effect; `None` before the first answer.
    pub fn get(&self) -> Option<Arc<Reading>> {
        self.reading.borrow().clone()
    }

    /// Settings in effect; defaults before the first answer.
    pub fn settings(&self) -> Settings {
        self.get().map(|reading| reading.settings.clone()).unwrap_or_default()
    }

    /// A channel with every change.
    pub fn subscribe(&self) -> watch::Receiver<Option<Arc<Reading>>> {
        self.reading.subscribe()
    }

    /// Returns as soon as the settings are known.
    pub async fn ready(&self) {
        // This value holds the sender, so the wait cannot fail.
        let _ = self.reading.subscribe().wait_for(Option::is_some).await;
    }

    /// Calls `apply` with the result of `of`, now and whenever the result changes, until the future is
    /// dropped.
    pub async fn follow<T: PartialEq>(&self, of: impl Fn(&Settings) -> T, mut apply: impl FnMut(&T)) {
        let mut changes = self.subscribe();
        let mut last: Option<T> = None;
        loop {
            let now = changes.borrow_and_update().as_ref().map(|reading| of(&reading.settings));
            if now.is_some() && now != last {
                now.iter().for_each(&mut apply);
                last = now;
            }
            if changes.changed().await.is_err() {
                return;
            }
        }
    }

    /// KubeVirt's members of a health report.
    pub fn health(&self) -> Value {
        let server = match &*self.server.borrow() {
            Server::Answers(version) => json!({"connectivity": "ok", "version": version}),
            Server::Unknown => json!({"connectivity": "failed", "error": "not asked yet"}),
            Server::Trouble(error) => json!({"connectivity": "failed", "error": error}),
        };
        let reading = self.get().unwrap_or_default();
        let mut health = json!({"apiserver": server, "config-resource-version": reading.resource_version});
        if let Some(Refused { resource_version, causes }) = &reading.refused {
            health["config-refused"] = json!({"resource-version": resource_version, "causes": causes});
        }
        health
    }

    /// Stores the current objects.
    fn take<'a>(&self, objects: impl Iterator<Item = &'a DeserializeGuard<KubeVirt>>) {
        let before = self.get();
        let after = read(before.as_deref(), objects.min_by_key(|object| seniority(object.meta())));
        let changed = before.as_ref().is_none_or(|before| {
            (&before.settings, &before.refused, before.installed)
                != (&after.settings, &after.refused, after.installed)
        });
        if changed {
            match &after.refused {
                Some(Refused { resource_version, causes }) => warn!(
                    refused = resource_version,
                    causes = causes.join("; "),
                    in_force = after.resource_version,
                    "the KubeVirt object is not accepted: the last valid one stays active"
                ),
                None => info!(
                    version = after.resource_version,
                    installed = after.installed,
                    settings = ?after.settings,
                    "settings of the installation"
                ),
            }
        }
        if before.as_deref() != Some(&after) {
            self.reading.send_replace(Some(Arc::new(after)));
        }
    }

    /// Watches forever. The client should not be limited by settings: a rate that is too low must be
    /// correctable.
    pub async fn watch(self, client: Client) {
        let objects: Api<DeserializeGuard<KubeVirt>> = Api::all(client.clone());
        let writer = Writer::default();
        let known = writer.as_reader();
        let changes = watcher(objects, watcher::Config::default()).default_backoff();
        let mut changes = reflector(writer, changes).boxed();
        while let Some(change) = changes.next().await {
            match change {
                // While a new list arrives, the former one stays in effect.
                Ok(Event::Init | Event::InitApply(_)) => {}
                Ok(Event::InitDone) => {
                    self.take(known.state().iter().map(AsRef::as_ref));
                    self.server.send_replace(ask(&client).await);
                }
                Ok(Event::Apply(_) | Event::Delete(_)) => {
                    self.take(known.state().iter().map(AsRef::as_ref));
                    if !matches!(*self.server.borrow(), Server::Answers(_)) {
                        self.server.send_replace(ask(&client).await);
                    }
                }
                Err(error) => {
                    warn!(%error, "KubeVirt objects not watched");
                    self.server.send_replace(Server::Trouble(error.to_string()));
                }
            }
        }
    }
}

async fn ask(client: &Client) -> Server {
    match tokio::time::timeout(VERSION_WITHIN, client.apiserver_version()).await {
        Ok(Ok(version)) => Server::Answers(serde_json::to_value(version).unwrap_or_default()),
        Ok(Err(error)) => Server::Trouble(error.to_string()),
        Err(_) => Server::Trouble("the API server does not tell its version in time".to_owned()),
    }
}

/// The settings in effect after the object that decides was read.
fn read(before: Option<&Reading>, object: Option<&DeserializeGuard<KubeVirt>>) -> Reading {
    let Some(object) = object else { return Reading::default() };
    let resource_version = object.meta().resource_version.clone().unwrap_or_default();
    let (settings, causes) = match &object.0 {
        Ok(kubevirt) => {
            let causes = standing(kubevirt);
            let causes: Vec<String> =
                causes.iter().map(|cause| format!("{}: {}", cause.field, cause.message)).collect();
            let settings = Settings::from_kubevirt(Some(&kubevirt.spec));
            (Some(settings.annotated(kubevirt.metadata.annotations.as_ref())), causes)
        }
        Err(invalid) => (None, vec![format!("the object cannot be read: {}", invalid.error)]),
    };
    match (settings, causes.is_empty()) {
        (Some(settings), true) => Reading { settings, installed: true, resource_version, refused: None },
        (settings, _) => {
            let refused = Some(Refused { resource_version, causes });
            // The former object was valid, or was the first that this process could read.
            match before.filter(|before| before.installed) {
                Some(good) => Reading { refused, ..good.clone() },
                None => Reading {
                    settings: settings.unwrap_or_default(),
                    installed: true,
                    resource_version: String::new(),
                    refused,
                },
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn object(version: u32, configuration: &Value) -> DeserializeGuard<KubeVirt> {
        serde_json::from_value(json!({
            "apiVersion": "kubevirt.io/v1", "kind": "KubeVirt",
            "metadata": { "name": "kubevirt", "namespace": "kubevirt", "resourceVersion": version.to_string() },
            "spec": { "configuration": configuration },
        }))
        .unwrap()
    }

    fn with_gate(version: u32, gate: &str) -> DeserializeGuard<KubeVirt> {
        object(version, &json!({ "developerConfiguration": { "featureGates": [gate] } }))
    }

    #[test]
    fn nothing_is_in_force_before_the_first_answer() {
        let installation = Installation::default();
        assert_eq!(installation.get(), None);
        assert_eq!(installation.settings(), Settings::default());
        installation.take([].iter());
        assert_eq!(*installation.get().unwrap(), Reading::default());
    }

    #[test]
    fn the_last_good_reading_stays_and_says_what_was_refused() {
        let installation = Installation::default();
        installation.take([with_gate(1, "HostDisk")].iter());
        let good = installation.get().unwrap();
        assert!(good.installed && good.settings.gates.is_on("HostDisk"));
        let bad = json!({"cpuRequest": "0", "selinuxLauncherType": "virt"});
        for (version, bad) in [(2, bad), (3, json!(1))] {
            installation.take([object(version, &bad)].iter());
            let now = installation.get().unwrap();
            assert_eq!((&now.settings, now.resource_version.as_str()), (&good.settings, "1"));
            assert_eq!(now.refused.as_ref().unwrap().resource_version, version.to_string());
        }
        let health = installation.health();
        assert_eq!(health["config-resource-version"], "1");
        assert_eq!(health["config-refused"]["resource-version"], "3");
        installation.take([with_gate(4, "VSOCK")].iter());
        let now = installation.get().unwrap();
        assert!(now.settings.gates.is_on("VSOCK") && !now.settings.gates.is_on("HostDisk"));
        assert_eq!((now.resource_version.as_str(), &now.refused), ("4", &None));
        assert_eq!(installation.health().get("config-refused"), None);
        installation.take([].iter());
        assert_eq!(*installation.get().unwrap(), Reading::default());
    }

    #[test]
    fn all_causes_are_reported() {
        let installation = Installation::default();
        installation.take([object(2, &json!({"cpuRequest": "0", "selinuxLauncherType": "virt"}))].iter());
        let refused = installation.get().unwrap().refused.clone().unwrap();
        let fields: Vec<_> = refused.causes.iter().map(|cause| cause.split(':').next().unwrap()).collect();
        assert_eq!(fields, ["spec.configuration.cpuRequest", "spec.configuration.selinuxLauncherType"]);
    }

    #[test]
    fn a_process_that_starts_with_a_bad_object_takes_what_can_be_read() {
        let installation = Installation::default();
        let bad = json!({"cpuRequest": "0", "developerConfiguration": {"useEmulation": true}});
        installation.take([object(7, &bad)].iter());
        let now = installation.get().unwrap();
        assert!(now.installed && now.settings.use_emulation);
        assert_eq!(installation.health()["config-resource-version"], "");
    }

    #[test]
    fn a_change_of_anything_else_moves_the_version() {
        let installation = Installation::default();
        let mut changes = installation.subscribe();
        installation.take([with_gate(1, "HostDisk")].iter());
        assert!(changes.has_changed().unwrap());
        changes.mark_unchanged();
        installation.take([with_gate(1, "HostDisk")].iter());
        assert!(!changes.has_changed().unwrap());
        installation.take([with_gate(2, "HostDisk")].iter());
        assert_eq!(installation.health()["config-resource-version"], "2");
    }

    #[tokio::test]
    async fn followers_hear_of_what_concerns_them_only() {
        let installation = Installation::default();
        let (said, mut heard) = tokio::sync::mpsc::unbounded_channel();
        let follower = installation.clone();
        tokio::spawn(async move {
            let of = |settings: &Settings| settings.cpu_allocation_ratio;
            follower.follow(of, |ratio| said.send(*ratio).unwrap()).await;
        });
        let ratio = |version, ratio: u32| {
            object(version, &json!({"developerConfiguration": {"cpuAllocationRatio": ratio}}))
        };
        installation.take([ratio(1, 4)].iter());
        assert_eq!(heard.recv().await, Some(4));
        installation.take([ratio(2, 4)].iter());
        installation.take([ratio(3, 5)].iter());
        assert_eq!(heard.recv().await, Some(5));
        assert!(heard.is_empty());
    }
}
