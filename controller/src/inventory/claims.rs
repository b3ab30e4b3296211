//! Claims of the cluster: only their sizes are kept, for metrics, and to see which have grown.

use super::row::{Key, kept, key};
use barevirt_api::quantity;
use barevirt_api::v1::{PersistentVolumeClaimInfo, VirtualMachine};
use futures::StreamExt;
use k8s_openapi::api::core::v1::{PersistentVolumeClaim, VolumeResourceRequirements};
use kube::runtime::WatchStreamExt;
use kube::runtime::watcher::{self, Event, watcher};
use kube::{Api, Client};
use std::collections::HashMap;
use std::pin::pin;
use tracing::warn;

/// What metrics need of a claim.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct ClaimRow {
    /// Requested bytes.
    size: f64,
    /// Bytes for a new disk; 0 if unknown.
    bytes: u64,
    pub(super) mode: Box<str>,
}

impl ClaimRow {
    fn of(claim: &PersistentVolumeClaim) -> Self {
        let spec = claim.spec.as_ref();
        ClaimRow {
            size: spec.and_then(|spec| size(spec.resources.as_ref())).unwrap_or_default(),
            bytes: disk_bytes(claim).unwrap_or_default(),
            mode: kept(spec.and_then(|spec| spec.volume_mode.as_deref())),
        }
    }

    /// Bytes for a new disk.
    pub(super) fn bytes(&self) -> Option<u64> {
        Some(self.bytes).filter(|bytes| *bytes > 0)
    }
}

/// All claims, by namespace and name.
#[derive(Debug, Default)]
pub(super) struct Claims {
    now: HashMap<Key, ClaimRow>,
    /// The claims of an incomplete list.
    listed: HashMap<Key, ClaimRow>,
}

impl Claims {
    /// Notes a change; returns which claims may have grown by it.
    pub(super) fn saw(&mut self, event: &Event<PersistentVolumeClaim>) -> Option<Grown> {
        match event {
            Event::Init => self.listed.clear(),
            Event::InitApply(claim) => drop(self.listed.insert(place(claim), ClaimRow::of(claim))),
            Event::InitDone => {
                self.now = std::mem::take(&mut self.listed);
                return Some(Grown::Anywhere);
            }
            Event::Apply(claim) => {
                let (key, row) = (place(claim), ClaimRow::of(claim));
                let (namespace, bytes) = (key.0.clone(), row.bytes);
                // No guest runs with a claim that was unknown or had no size.
                let former = self.now.insert(key, row).map_or(0, |former| former.bytes);
                return (former > 0 && bytes > former).then_some(Grown::In(namespace));
            }
            Event::Delete(claim) => drop(self.now.remove(&place(claim))),
        }
        None
    }

    pub(super) fn get(&self, namespace: &str, name: &str) -> Option<&ClaimRow> {
        self.now.get(&key(namespace, name))
    }
}

/// Where claims may have grown.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Grown {
    /// In this namespace.
    In(Box<str>),
    /// Changes may have been missed.
    Anywhere,
}

impl Grown {
    /// Whether claims of that namespace may have grown.
    pub fn concerns(&self, namespace: &str) -> bool {
        match self {
            Grown::In(one) => **one == *namespace,
            Grown::Anywhere => true,
        }
    }
}

fn place(claim: &PersistentVolumeClaim) -> Key {
    let meta = &claim.metadata;
    key(meta.namespace.as_deref().unwrap_or_default(), meta.name.as_deref().unwrap_or_default())
}

fn disk_bytes(claim: &PersistentVolumeClaim) -> Option<u64> {
    let requests = claim.spec.as_ref().and_then(|spec| spec.resources.as_ref()?.requests.clone());
    let capacity = claim.status.as_ref().and_then(|status| status.capacity.clone());
    let (requests, capacity) = (requests.unwrap_or_default(), capacity.unwrap_or_default());
    PersistentVolumeClaimInfo { requests, capacity, ..PersistentVolumeClaimInfo::default() }.disk_bytes()
}

/// Exact as a float: far below 2^53.
#[allow(clippy::cast_precision_loss)]
fn size(resources: Option<&VolumeResourceRequirements>) -> Option<f64> {
    let asked = resources?.requests.as_ref()?.get("storage")?;
    quantity::bytes(asked).ok().map(|bytes| bytes as f64)
}

/// A volume of a machine that is on a claim.
#[derive(Debug)]
pub(super) struct DiskRow {
    pub(super) name: Box<str>,
    pub(super) claim: Box<str>,
    /// The size that the machine itself asks for, by a template.
    asked: Option<f64>,
}

impl DiskRow {
    /// As in KubeVirt: the volumes that outlive the guest.
    pub(super) fn all(machine: &VirtualMachine) -> Box<[DiskRow]> {
        let volumes = machine.spec.template.spec.volumes.iter();
        let claims = volumes.filter_map(|volume| {
            let claim = volume.claim().filter(|claim| !claim.is_ephemeral)?;
            let asked = if claim.is_filled { asked(machine, claim.name) } else { None };
            Some(DiskRow { name: volume.name.as_str().into(), claim: claim.name.into(), asked })
        });
        claims.collect()
    }

    /// Its size on that claim. A claim may be larger than the template asked for.
    pub(super) fn size(&self, claim: &ClaimRow) -> f64 {
        self.asked.unwrap_or(claim.size)
    }
}

/// The size that a machine's template of that name asks for.
fn asked(machine: &VirtualMachine, name: &str) -> Option<f64> {
    let spec = &machine.spec.data_volume_templates.iter().find(|template| template.name() == name)?.spec;
    let claim = spec.pvc.as_ref().and_then(|claim| claim.resources.as_ref());
    size(claim.or_else(|| spec.storage.as_ref()?.resources.as_ref()))
}

/// Reports each change of claims, until the future is dropped.
pub(super) async fn follow(client: Client, mut tell: impl FnMut(&Event<PersistentVolumeClaim>)) {
    let claims: Api<PersistentVolumeClaim> = Api::all(client);
    let mut events = pin!(watcher(claims, watcher::Config::default()).default_backoff());
    while let Some(event) = events.next().await {
        match event {
            Ok(event) => tell(&event),
            Err(error) => warn!(%error, "claims not watched"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn claim(name: &str, size: &str) -> PersistentVolumeClaim {
        serde_json::from_value(json!({
            "metadata": {"name": name, "namespace": "ns"},
            "spec": {"volumeMode": "Block", "resources": {"requests": {"storage": size}}},
        }))
        .unwrap()
    }

    #[test]
    fn a_list_replaces_what_was_known_once_it_is_whole() {
        let mut claims = Claims::default();
        let size = |claims: &Claims, name: &str| claims.get("ns", name).map(|claim| claim.size);
        for event in [Event::Init, Event::InitApply(claim("a", "1Ki")), Event::InitDone] {
            claims.saw(&event);
        }
        claims.saw(&Event::Apply(claim("b", "2Ki")));
        assert_eq!((size(&claims, "a"), size(&claims, "b")), (Some(1024.0), Some(2048.0)));
        // An interrupted list leaves nothing behind.
        for event in [Event::Init, Event::InitApply(claim("c", "1")), Event::Init] {
            claims.saw(&event);
        }
        claims.saw(&Event::InitApply(claim("b", "3Ki")));
        assert_eq!((size(&claims, "a"), size(&claims, "b")), (Some(1024.0), Some(2048.0)));
        claims.saw(&Event::InitDone);
        assert_eq!(["a", "b", "c"].map(|name| size(&claims, name)), [None, Some(3072.0), None]);
        claims.saw(&Event::Delete(claim("b", "3Ki")));
        assert_eq!(size(&claims, "b"), None);
    }

    #[test]
    fn a_claim_grows_when_its_storage_has_grown() {
        let sized = |request: &str, capacity: &str| -> PersistentVolumeClaim {
            let mut claim = claim("a", request);
            let status = json!({"capacity": {"storage": capacity}});
            claim.status = serde_json::from_value(status).unwrap();
            claim
        };
        let mut claims = Claims::default();
        let mut saw = |claim| claims.saw(&Event::Apply(claim));
        assert_eq!(saw(sized("1Ki", "1Ki")), None, "it is new");
        assert_eq!(saw(sized("2Ki", "1Ki")), None, "it is only asked for");
        assert_eq!(saw(sized("2Ki", "2Ki")), Some(Grown::In("ns".into())));
        assert_eq!(saw(sized("2Ki", "2Ki")), None);
        assert_eq!(saw(sized("2Ki", "1Ki")), None);
        assert_eq!(claims.get("ns", "a").unwrap().bytes(), Some(1024));
        assert_eq!(claims.saw(&Event::Init), None);
        assert_eq!(claims.saw(&Event::InitDone), Some(Grown::Anywhere));
        assert_eq!(claims.get("ns", "a"), None);
        let grown = Grown::In("ns".into());
        assert!(grown.concerns("ns") && !grown.concerns("other") && Grown::Anywhere.concerns("other"));
    }

    #[test]
    fn disks_of_a_machine_and_what_it_asks_for_them() {
        let resources = |size: &str| json!({"resources": {"requests": {"storage": size}}});
        let machine: VirtualMachine = serde_json::from_value(json!({
            "metadata": {"name": "vm"},
            "spec": {
                "dataVolumeTemplates": [
                    {"metadata": {"name": "a"}, "spec": {"pvc": resources("1Ki")}},
                    {"metadata": {"name": "b"}, "spec": {"storage": resources("2Ki")}},
                    {"metadata": {"name": "c"}, "spec": {"storage": {}}},
                ],
                "template": {"spec": {"domain": {"devices": {}}, "volumes": [
                    {"name": "one", "dataVolume": {"name": "a"}}, {"name": "two", "dataVolume": {"name": "b"}},
                    {"name": "three", "dataVolume": {"name": "c"}},
                    {"name": "four", "persistentVolumeClaim": {"claimName": "a"}},
                    {"name": "lost", "ephemeral": {"persistentVolumeClaim": {"claimName": "a"}}},
                    {"name": "none", "emptyDisk": {"capacity": "1Gi"}},
                ]}},
            },
        }))
        .unwrap();
        let row = ClaimRow::of(&claim("x", "4Ki"));
        let disks = DiskRow::all(&machine);
        let told: Vec<(&str, &str, f64)> =
            disks.iter().map(|disk| (&*disk.name, &*disk.claim, disk.size(&row))).collect();
        assert_eq!(
            told,
            [("one", "a", 1024.0), ("two", "b", 2048.0), ("three", "c", 4096.0), ("four", "a", 4096.0)]
        );
        assert_eq!(
            ClaimRow::of(&PersistentVolumeClaim::default()),
            ClaimRow { size: 0.0, bytes: 0, mode: "".into() }
        );
    }
}
