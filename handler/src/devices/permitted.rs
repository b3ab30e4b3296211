//! Devices that the `KubeVirt` object permits guests to use (`permittedHostDevices`). There is a plugin for
//! each permitted resource of which this node has devices. Resources with an external provider are left to
//! that provider.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use barevirt_component::installation::Installation;
use tokio::sync::watch;
use tokio::task::{JoinHandle, spawn_blocking};
use tokio::time::sleep;
use tracing::info;

use super::host::{self, HostDevice};
use super::plugin::{self, Offer, Supply};

/// How often devices are searched for: one may be plugged in, or bound to the driver for guests.
const LOOK: Duration = Duration::from_secs(10);

/// The running plugins.
#[derive(Default)]
struct Plugins(BTreeMap<String, (watch::Sender<Vec<HostDevice>>, JoinHandle<()>)>);

/// Searches and offers devices until the process ends.
pub async fn run(installation: Installation, sys: PathBuf, folder: PathBuf) {
    let mut changes = installation.subscribe();
    let mut plugins = Plugins::default();
    loop {
        let (permitted, sys) = (installation.settings().host_devices, sys.clone());
        if let Ok(found) = spawn_blocking(move || host::find(&permitted, &sys)).await {
            plugins.follow(found, &folder);
        }
        tokio::select! {
            changed = changes.changed() => if changed.is_err() { return },
            () = sleep(LOOK) => {}
        }
    }
}

impl Plugins {
    /// Starts, updates and ends plugins. A resource that was offered once keeps its plugin, even with no
    /// device, until it is no longer permitted: a guest may use the last device.
    fn follow(&mut self, found: BTreeMap<String, Vec<HostDevice>>, folder: &Path) {
        self.0.retain(|resource, (_, task)| {
            let stays = found.contains_key(resource);
            if !stays {
                task.abort();
                // The kubelet considers the resource gone once its socket is gone.
                let _ = std::fs::remove_file(folder.join(endpoint(resource)));
                info!(resource, "no longer permitted");
            }
            stays
        });
        for (resource, devices) in found {
            match self.0.get(&resource) {
                Some((sender, _)) => {
                    sender.send_if_modified(|known| {
                        let new = *known != devices;
                        *known = devices;
                        new
                    });
                }
                None if devices.is_empty() => {}
                None => {
                    info!(resource, count = devices.len(), "devices for guests");
                    let (sender, receiver) = watch::channel(devices);
                    let offer = Offer {
                        endpoint: endpoint(&resource),
                        resource: resource.clone(),
                        supply: Supply::Single(receiver),
                    };
                    let (registered, _) = watch::channel(false);
                    let task = tokio::spawn(plugin::run(offer, folder.to_owned(), registered));
                    self.0.insert(resource, (sender, task));
                }
            }
        }
    }
}

fn endpoint(resource: &str) -> String {
    format!("kubevirt-{}.sock", resource.replace('/', "-"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::devices::tests::{SOON, kubelet, plugin};
    use crate::devices::v1beta1::{AllocateRequest, ContainerAllocateRequest, Empty};
    use tokio::time::timeout;

    #[tokio::test]
    async fn a_container_gets_nodes_and_addresses_of_the_devices_that_were_chosen() {
        let folder = tempfile::tempdir().unwrap();
        let (_kubelet, mut asks) = kubelet(folder.path());
        let node = folder.path().join("45");
        std::fs::write(&node, "").unwrap();
        let device = |id: &str, address: &str| HostDevice {
            id: id.to_owned(),
            address: host::Address::Pci(address.to_owned()),
            nodes: vec![node.clone()],
            numa: Some(1),
        };
        let mut plugins = Plugins::default();
        let found = |devices: Vec<HostDevice>| BTreeMap::from([("x.io/card".to_owned(), devices)]);
        plugins
            .follow(found(vec![device("45", "0000:65:00.0"), device("46", "0000:66:00.0")]), folder.path());
        let asked = timeout(SOON, asks.recv()).await.unwrap().unwrap();
        assert_eq!(
            (asked.resource_name.as_str(), asked.endpoint.as_str()),
            ("x.io/card", "kubevirt-x.io-card.sock")
        );
        let mut client = plugin(folder.path(), &asked).await;
        let mut devices = client.list_and_watch(Empty {}).await.unwrap().into_inner();
        let list = timeout(SOON, devices.message()).await.unwrap().unwrap().unwrap().devices;
        assert_eq!(list.iter().map(|device| device.id.as_str()).collect::<Vec<_>>(), ["45", "46"]);
        assert_eq!((list[0].health.as_str(), list[0].topology.as_ref().unwrap().nodes[0].id), ("Healthy", 1));
        let ids = |ids: &[&str]| AllocateRequest {
            container_requests: vec![ContainerAllocateRequest {
                devices_ids: ids.iter().map(|id| (*id).to_owned()).collect(),
            }],
        };
        let given = client.allocate(ids(&["46", "45"])).await.unwrap().into_inner();
        let given = &given.container_responses[0];
        assert_eq!(given.envs["PCI_RESOURCE_X_IO_CARD"], "0000:66:00.0,0000:65:00.0");
        assert_eq!(given.devices.len(), 1, "a node is named once");
        assert!(client.allocate(ids(&["47"])).await.is_err());

        plugins.follow(found(vec![]), folder.path());
        let list = timeout(SOON, devices.message()).await.unwrap().unwrap().unwrap().devices;
        assert!(list.is_empty());
        plugins.follow(BTreeMap::new(), folder.path());
        assert!(!folder.path().join(&asked.endpoint).exists());
    }
}
