//! The definitions of CDI's kinds that we serve without CDI. If a cluster has none, ours are made, and virt-controller fills
//! DataVolumes; a definition of another owner, or one that another owner took over, is never changed. A CDI that is
//! installed later takes them over, once its operator has its config map (docs/data-volumes.md): from then on they are CDI's.
//!
//! ```text
//!   none ---------------------------------> made
//!   ours, of another version -------------> changed
//!   ours, and Barevirt is removed --------> deleted, if no object of the kind is left, since their contents would go, too;
//!                                           profiles of storage classes, and settings, have no contents
//!   another owner's, or CDI exists -------> left alone
//! ```

use super::cache::Cache;
use super::owned::deletion;
use super::target::hash;
use super::{MANAGED_BY_LABEL, NAME, looks};
use crate::objects::definition;
use barevirt_api::cdi::{
    self, CDI_DEFINITION as CDI, CLONE_SOURCE, CLONE_SOURCE_DEFINITION, CONFIG_DEFINITION, CONFIG_KIND,
    DATA_SOURCE, DATA_SOURCE_DEFINITION, DATA_VOLUME, DATA_VOLUME_DEFINITION, IMPORT_CRON,
    IMPORT_CRON_DEFINITION, IMPORT_SOURCE, IMPORT_SOURCE_DEFINITION, STORAGE_PROFILE,
    STORAGE_PROFILE_DEFINITION, UPLOAD_SOURCE, UPLOAD_SOURCE_DEFINITION,
};
use barevirt_component::data_volumes::watch;
use barevirt_component::request::{Error, call, call_opt};
use futures::future::join_all;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::api::{Api, DynamicObject, ListParams, Patch, PatchParams};
use kube::core::PartialObjectMeta;
use kube::{Client, ResourceExt};
use serde_json::{Value, json};
use std::sync::Arc;
use tracing::info;

/// Annotation: hash of our definition.
const HASH_ANNOTATION: &str = "operator.barevirt.dev/definition";

/// A kind whose definition is made where there is none.
struct Kind {
    name: &'static str,
    kind: &'static str,
    definition: fn() -> CustomResourceDefinition,
}

/// In the order in which they are made: settings, and the kinds that a DataVolume names, come before it.
const KINDS: [Kind; 8] = [
    Kind { name: CONFIG_DEFINITION, kind: CONFIG_KIND, definition: cdi::config_definition },
    Kind {
        name: STORAGE_PROFILE_DEFINITION,
        kind: STORAGE_PROFILE,
        definition: cdi::storage_profile_definition,
    },
    Kind { name: DATA_SOURCE_DEFINITION, kind: DATA_SOURCE, definition: cdi::data_source_definition },
    Kind { name: DATA_VOLUME_DEFINITION, kind: DATA_VOLUME, definition: cdi::definition },
    Kind { name: IMPORT_CRON_DEFINITION, kind: IMPORT_CRON, definition: cdi::import_cron_definition },
    Kind { name: IMPORT_SOURCE_DEFINITION, kind: IMPORT_SOURCE, definition: cdi::import_source_definition },
    Kind { name: CLONE_SOURCE_DEFINITION, kind: CLONE_SOURCE, definition: cdi::clone_source_definition },
    Kind { name: UPLOAD_SOURCE_DEFINITION, kind: UPLOAD_SOURCE, definition: cdi::upload_source_definition },
];

/// Keeps the definitions correct while there is an installation.
pub(super) async fn follow(client: Client, cache: Arc<Cache>) {
    let names = KINDS.iter().map(|kind| kind.name).chain([CDI]);
    let watches = names.map(|name| watch(&client, name, cache.looks()));
    tokio::select! {
        () = looks::follow(&cache, "a definition of CDI's", || keep(&client)) => {}
        _ = join_all(watches) => {}
    }
}

/// What to do about a definition.
#[derive(Debug, PartialEq, Eq)]
enum Turn {
    /// Make it.
    Make,
    /// Update it to this version's.
    Change,
    /// Nothing.
    Leave,
}

/// Decides. `found` is the existing definition; `has_cdi`: CDI's own kind exists.
fn turn(found: Option<&PartialObjectMeta<CustomResourceDefinition>>, has_cdi: bool, hash: &str) -> Turn {
    match found {
        _ if has_cdi => Turn::Leave,
        None => Turn::Make,
        Some(found) if !cdi::is_own_definition(found.labels()) => Turn::Leave,
        Some(found) if found.annotations().get(HASH_ANNOTATION).is_some_and(|known| known == hash) => {
            Turn::Leave
        }
        Some(_) => Turn::Change,
    }
}

/// The definition to apply, and its hash.
fn wanted(kind: &Kind) -> (Value, String) {
    let mut wanted = definition(&(kind.definition)());
    let hash = hash(&wanted.to_string());
    wanted["metadata"]["labels"][MANAGED_BY_LABEL] = json!(NAME);
    wanted["metadata"]["annotations"][HASH_ANNOTATION] = json!(hash);
    (wanted, hash)
}

async fn keep(client: &Client) -> Result<(), Error> {
    let mut first = Ok(());
    for kind in &KINDS {
        // A failure does not keep the others from being handled.
        let kept = keep_one(client, kind).await;
        first = first.and(kept);
    }
    first
}

async fn keep_one(client: &Client, kind: &Kind) -> Result<(), Error> {
    let api: Api<CustomResourceDefinition> = Api::all(client.clone());
    let about = || format!("definition {}", kind.name);
    let found = call_opt("get", about, api.get_metadata(kind.name)).await?;
    let cdi = call_opt("get", || format!("definition {CDI}"), api.get_metadata(CDI)).await?.is_some();
    let (wanted, hash) = wanted(kind);
    let params = PatchParams::apply(NAME);
    let (params, done) = match turn(found.as_ref(), cdi, &hash) {
        Turn::Leave => return Ok(()),
        // Without force: if another client made it in the meantime, that one keeps it.
        Turn::Make => (params, "made"),
        Turn::Change => (params.force(), "changed"),
    };
    call("apply", about, api.patch(kind.name, &params, &Patch::Apply(&wanted))).await?;
    info!(definition = kind.name, done, "a definition of CDI's");
    Ok(())
}

/// Deletes ours, unless objects of the kind exist.
pub(super) async fn remove(client: &Client) -> Result<(), Error> {
    for kind in &KINDS {
        remove_one(client, kind).await?;
    }
    Ok(())
}

async fn remove_one(client: &Client, kind: &Kind) -> Result<(), Error> {
    // There is a profile for each storage class, and one object of settings. They have no dependents.
    let holds = ![STORAGE_PROFILE_DEFINITION, CONFIG_DEFINITION].contains(&kind.name);
    let api: Api<CustomResourceDefinition> = Api::all(client.clone());
    let about = || format!("definition {}", kind.name);
    let Some(found) = call_opt("get", about, api.get_metadata(kind.name)).await? else { return Ok(()) };
    let Some(params) = deletion(&found.metadata) else { return Ok(()) };
    let all: Api<DynamicObject> = Api::all_with(client.clone(), &cdi::resource(kind.kind));
    let some = ListParams::default().limit(1);
    let left = call_opt("list", || format!("objects of {}", kind.name), all.list_metadata(&some)).await?;
    if holds && left.is_some_and(|left| !left.items.is_empty()) {
        info!(
            definition = kind.name,
            "stays: there are objects of the kind, and their dependents would be deleted with it"
        );
        return Ok(());
    }
    call_opt("delete", about, api.delete(kind.name, &params)).await.map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(labels: &Value, annotations: &Value) -> PartialObjectMeta<CustomResourceDefinition> {
        let metadata = json!({ "name": "kind", "labels": labels, "annotations": annotations });
        serde_json::from_value(json!({
            "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition", "metadata": metadata,
        }))
        .unwrap()
    }

    #[test]
    fn only_what_is_ours_is_ever_changed() {
        let ours = json!({ MANAGED_BY_LABEL: NAME });
        let same = found(&ours, &json!({ HASH_ANNOTATION: "h" }));
        let other = found(&ours, &json!({ HASH_ANNOTATION: "g" }));
        let theirs = found(&json!({ MANAGED_BY_LABEL: "cdi-operator" }), &json!({ HASH_ANNOTATION: "g" }));
        let nobodys = found(&json!({}), &json!({}));
        for (found, cdi, expected) in [
            (None, false, Turn::Make),
            (None, true, Turn::Leave),
            (Some(&same), false, Turn::Leave),
            (Some(&other), false, Turn::Change),
            (Some(&other), true, Turn::Leave),
            (Some(&theirs), false, Turn::Leave),
            (Some(&nobodys), false, Turn::Leave),
        ] {
            assert_eq!(turn(found, cdi, "h"), expected, "{found:?}");
        }
    }

    #[test]
    fn applied_definitions_have_our_label_and_a_hash() {
        for kind in &KINDS {
            let (wanted, hash) = wanted(kind);
            assert_eq!(wanted["metadata"]["name"], kind.name);
            assert_eq!(wanted["spec"]["names"]["kind"], kind.kind);
            let applied = found(&wanted["metadata"]["labels"], &wanted["metadata"]["annotations"]);
            assert_eq!(turn(Some(&applied), false, &hash), Turn::Leave);
            assert!(
                deletion(&applied.metadata).is_none(),
                "without a UID it is not known which one is meant"
            );
        }
    }
}
