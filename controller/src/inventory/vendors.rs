//! Instance types and preferences by the names that metrics show: those with the label of a known vendor, as in KubeVirt.

use super::row::{Key, OTHER, kept, key};
use barevirt_api::instancetype::matcher::{Family, Scope};
use barevirt_api::instancetype::{GROUP, VERSION};
use barevirt_api::names::{
    CLUSTER_INSTANCETYPE_ANNOTATION, CLUSTER_PREFERENCE_ANNOTATION, INSTANCETYPE_ANNOTATION,
    PREFERENCE_ANNOTATION,
};
use barevirt_api::v1::VirtualMachine;
use futures::StreamExt;
use futures::future::join_all;
use kube::core::{ApiResource, GroupVersionKind, PartialObjectMeta};
use kube::runtime::WatchStreamExt;
use kube::runtime::watcher::{self, Event, watcher};
use kube::{Api, Client};
use std::collections::{BTreeMap, HashSet};
use std::pin::pin;
use tracing::warn;

/// Label with the vendor.
const VENDOR_LABEL: &str = "instancetype.kubevirt.io/vendor";
/// Those that KubeVirt knows, and ours.
const VENDORS: [&str; 3] = ["barevirt.dev", "kubevirt.io", "redhat.com"];
/// The kinds of these objects.
const KINDS: [(Family, Scope); 4] = [
    (Family::Instancetype, Scope::Namespaced),
    (Family::Instancetype, Scope::Cluster),
    (Family::Preference, Scope::Namespaced),
    (Family::Preference, Scope::Cluster),
];

/// What a machine or an instance names.
#[derive(Debug)]
pub(super) struct Named {
    kind: (Family, Scope),
    name: Box<str>,
}

impl Named {
    pub(super) fn by_machine(family: Family, machine: &VirtualMachine) -> Option<Self> {
        let matcher = family.matcher(machine)?;
        Some(Named { kind: (family, family.scope(matcher.kind)?), name: kept(matcher.name) })
    }

    pub(super) fn by_instance(family: Family, annotations: &BTreeMap<String, String>) -> Option<Self> {
        let (own, cluster) = match family {
            Family::Instancetype => (INSTANCETYPE_ANNOTATION, CLUSTER_INSTANCETYPE_ANNOTATION),
            Family::Preference => (PREFERENCE_ANNOTATION, CLUSTER_PREFERENCE_ANNOTATION),
        };
        [(Scope::Namespaced, own), (Scope::Cluster, cluster)].into_iter().find_map(|(scope, annotation)| {
            Some(Named { kind: (family, scope), name: annotations.get(annotation)?.as_str().into() })
        })
    }
}

/// The objects of one kind that have a known vendor. Those of the cluster are in no namespace.
#[derive(Debug, Default)]
struct OfKind {
    now: HashSet<Key>,
    /// The objects of an incomplete list.
    listed: HashSet<Key>,
}

/// All objects of known vendors.
#[derive(Debug, Default)]
pub(super) struct Vended([OfKind; KINDS.len()]);

impl Vended {
    /// Notes a change.
    pub(super) fn saw(&mut self, kind: (Family, Scope), event: &Event<PartialObjectMeta>) {
        let OfKind { now, listed } = &mut self.0[index(kind)];
        match event {
            Event::Init => listed.clear(),
            Event::InitApply(object) => {
                listed.insert(place(object));
            }
            Event::InitDone => *now = std::mem::take(listed),
            Event::Apply(object) => {
                now.insert(place(object));
            }
            Event::Delete(object) => {
                now.remove(&place(object));
            }
        }
    }

    /// The label's value for what is named in that namespace.
    pub(super) fn label<'n>(&self, namespace: &str, named: Option<&'n Named>) -> &'n str {
        let Some(Named { kind, name }) = named else { return "" };
        let namespace = match kind.1 {
            Scope::Namespaced => namespace,
            Scope::Cluster => "",
        };
        if self.0[index(*kind)].now.contains(&key(namespace, name)) { name } else { OTHER }
    }
}

/// Where the kind is in [`KINDS`].
fn index(kind: (Family, Scope)) -> usize {
    match kind {
        (Family::Instancetype, Scope::Namespaced) => 0,
        (Family::Instancetype, Scope::Cluster) => 1,
        (Family::Preference, Scope::Namespaced) => 2,
        (Family::Preference, Scope::Cluster) => 3,
    }
}

fn place(object: &PartialObjectMeta) -> Key {
    let meta = &object.metadata;
    key(meta.namespace.as_deref().unwrap_or_default(), meta.name.as_deref().unwrap_or_default())
}

/// Reports each change, until the future is dropped.
pub(super) async fn follow(client: Client, tell: impl Fn((Family, Scope), &Event<PartialObjectMeta>)) {
    join_all(KINDS.map(|kind| follow_kind(client.clone(), kind, &tell))).await;
}

async fn follow_kind(
    client: Client,
    kind: (Family, Scope),
    tell: &impl Fn((Family, Scope), &Event<PartialObjectMeta>),
) {
    let (family, scope) = kind;
    let named = GroupVersionKind::gvk(GROUP, VERSION, family.object_kind(scope));
    let resource = ApiResource::from_gvk_with_plural(&named, &family.plural(scope));
    let objects: Api<PartialObjectMeta> = Api::all_with(client, &resource);
    let vendors = format!("{VENDOR_LABEL} in ({})", VENDORS.join(","));
    let config = watcher::Config::default().labels(&vendors);
    let mut events = pin!(watcher(objects, config).default_backoff());
    while let Some(event) = events.next().await {
        match event {
            Ok(event) => tell(kind, &event),
            Err(error) => warn!(%error, kind = named.kind, "objects of known vendors not watched"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    const CLUSTER: (Family, Scope) = (Family::Instancetype, Scope::Cluster);
    const NAMESPACED: (Family, Scope) = (Family::Instancetype, Scope::Namespaced);

    fn object(metadata: &Value) -> PartialObjectMeta {
        serde_json::from_value(json!({ "metadata": metadata })).unwrap()
    }

    fn named(kind: &str) -> Option<Named> {
        let machine = json!({
            "metadata": {}, "spec": {
                "instancetype": {"name": "small", "kind": kind},
                "template": {"spec": {"domain": {"devices": {}}}},
            },
        });
        Named::by_machine(Family::Instancetype, &serde_json::from_value(machine).unwrap())
    }

    #[test]
    fn each_kind_has_its_own_place() {
        assert_eq!(KINDS.map(index), [0, 1, 2, 3]);
    }

    #[test]
    fn only_objects_of_known_vendors_are_named() {
        let mut vended = Vended::default();
        let (ours, everybodys) =
            (named("VirtualMachineInstancetype"), named("virtualmachineclusterinstancetype"));
        let labels = |vended: &Vended| {
            [("shop", &ours), ("other", &ours), ("shop", &everybodys)]
                .map(|(namespace, named)| vended.label(namespace, named.as_ref()).to_owned())
        };
        assert_eq!(labels(&vended), [OTHER; 3]);
        let small = object(&json!({"name": "small"}));
        for event in [Event::Init, Event::InitApply(small.clone()), Event::InitDone] {
            vended.saw(CLUSTER, &event);
        }
        assert_eq!(labels(&vended), [OTHER, OTHER, "small"]);
        vended.saw(NAMESPACED, &Event::Apply(object(&json!({"name": "small", "namespace": "shop"}))));
        assert_eq!(labels(&vended), ["small", OTHER, "small"]);
        vended.saw(CLUSTER, &Event::Delete(small));
        assert_eq!(labels(&vended), ["small", OTHER, OTHER]);
        assert_eq!(vended.label("shop", None), "");
    }
}
