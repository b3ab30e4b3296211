//! StorageProfiles, where their definition is ours: one for each storage class with its status, and the values that a claim
//! takes from it.

use super::again::FAILED;
use crate::cluster::Cluster;
use crate::write::FIELD_MANAGER;
use barevirt_api::cdi::{DataVolume, STORAGE_PROFILE_DEFINITION, StorageProfile, StorageSpec};
use barevirt_api::validate::is_dns_subdomain;
use barevirt_component::changes::{Listener, SELDOM};
use barevirt_component::data_volumes;
use barevirt_component::error::chain;
use barevirt_component::request::{Error, call, call_opt};
use barevirt_plan::imports::{Overhead, Profile, ProfileStep, profile_steps};
use k8s_openapi::api::core::v1::PersistentVolume;
use k8s_openapi::api::storage::v1::StorageClass;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use k8s_openapi::jiff::Timestamp;
use kube::ResourceExt;
use kube::api::{Api, DeleteParams, ListParams, Patch, PatchParams, PostParams, Preconditions};
use serde_json::json;
use tracing::warn;

/// Annotation of the default class of machines: CDI's.
const DEFAULT_FOR_MACHINES: &str = "storageclass.kubevirt.io/is-default-virt-class";
/// Annotation of the default class: Kubernetes'.
const DEFAULT: &str = "storageclass.kubernetes.io/is-default-class";

/// The provisioner of classes whose volumes people make: Kubernetes'.
const NO_PROVISIONER: &str = "kubernetes.io/no-provisioner";

/// Works until the future is dropped.
pub(super) async fn work(cluster: &Cluster, mut changed: Listener) {
    loop {
        let pause = match keep(cluster).await {
            Ok(true) => SELDOM,
            Ok(false) => FAILED,
            Err(error) => {
                warn!(error = %chain(&error), "storage profiles are not kept");
                FAILED
            }
        };
        changed.wait(pause).await;
    }
}

/// Looks once; returns whether all steps were carried out.
async fn keep(cluster: &Cluster) -> Result<bool, Error> {
    if !data_volumes::is_ours(&cluster.client, STORAGE_PROFILE_DEFINITION).await? {
        return Ok(true);
    }
    let classes: Api<StorageClass> = Api::all(cluster.client.clone());
    let profiles: Api<StorageProfile> = Api::all(cluster.client.clone());
    let all = ListParams::default();
    let found = call("list", || "storage profiles".to_owned(), profiles.list(&all)).await?.items;
    let classes = call("list", || "storage classes".to_owned(), classes.list(&all)).await?.items;
    let mut kept = true;
    for step in profile_steps(&found, &classes, &Time(Timestamp::now())) {
        // One that cannot be written keeps none of the others from being so.
        if let Err(error) = carry_out(&profiles, step).await {
            warn!(error = %chain(&error), "a storage profile is not kept");
            kept = false;
        }
    }
    Ok(kept)
}

async fn carry_out(profiles: &Api<StorageProfile>, step: ProfileStep) -> Result<(), Error> {
    let about = |name: &str| format!("storage profile {name}");
    let manager = || Some(FIELD_MANAGER.to_owned());
    match step {
        ProfileStep::Make(profile) => {
            let params = PostParams { field_manager: manager(), ..PostParams::default() };
            let made = profiles.create(&params, &profile);
            call("create", || about(&profile.name_any()), made).await.map(drop)
        }
        ProfileStep::Write { name, status } => {
            let mut body = json!({ "status": status });
            // An empty list is written, too: a merge without it would leave the former one.
            body["status"]["claimPropertySets"] = json!(status.claim_property_sets);
            let params = PatchParams { field_manager: manager(), ..PatchParams::default() };
            let patch = Patch::Merge(&body);
            let written = profiles.patch_status(&name, &params, &patch);
            call("update the status of", || about(&name), written).await.map(drop)
        }
        ProfileStep::Remove { name, uid } => {
            let preconditions = Preconditions { uid: Some(uid), resource_version: None };
            let params = DeleteParams { preconditions: Some(preconditions), ..DeleteParams::default() };
            call_opt("delete", || about(&name), profiles.delete(&name, &params)).await.map(drop)
        }
    }
}

/// What a DataVolume without a claim takes from its class; empty where it gives a whole claim. `of_source` is the class of the
/// claim that it copies: it counts where no class is the default.
pub(super) async fn of(
    cluster: &Cluster,
    data_volume: &DataVolume,
    of_source: Option<&str>,
    overhead: &Overhead,
) -> Result<Profile, Error> {
    let Some(storage) = &data_volume.spec.storage else { return Ok(Profile::default()) };
    let named = storage.storage_class_name.as_deref().filter(|name| !name.is_empty());
    let (class, chosen) = match named {
        Some(name) => (Some(name.to_owned()), None),
        None => {
            let classes: Api<StorageClass> = Api::all(cluster.client.clone());
            let about = || "storage classes".to_owned();
            let classes = call("list", about, classes.list(&ListParams::default())).await?.items;
            let marked = |annotation: &str| {
                let is = |class: &&StorageClass| {
                    class.annotations().get(annotation).is_some_and(|value| value == "true")
                };
                classes.iter().rev().find(is).map(ResourceExt::name_any)
            };
            let (machines, usual) = (marked(DEFAULT_FOR_MACHINES), marked(DEFAULT));
            let last = of_source.filter(|_| usual.is_none()).map(str::to_owned);
            let chosen = machines.or(last);
            (chosen.clone().or(usual), chosen)
        }
    };
    let chosen = chosen.filter(|_| storage.storage_class_name.is_none());
    let Some(class) = looked_up(storage, class) else {
        return Ok(Profile::of(chosen, None, overhead.of_class(None)));
    };
    let profiles: Api<StorageProfile> = Api::all(cluster.client.clone());
    let found = call_opt("get", || format!("storage profile {class}"), profiles.get(&class)).await?;
    let profile = Profile::of(chosen, found, overhead.of_class(Some(&class)));
    if !profile.sets.is_empty() || !storage.access_modes.is_empty() {
        return Ok(profile);
    }
    of_volumes(cluster, &class, profile).await
}

/// Of a class without a provisioner, the volumes say what a claim can be.
async fn of_volumes(cluster: &Cluster, class: &str, profile: Profile) -> Result<Profile, Error> {
    let classes: Api<StorageClass> = Api::all(cluster.client.clone());
    let found = call_opt("get", || format!("storage class {class}"), classes.get(class)).await?;
    if found.is_none_or(|found| found.provisioner != NO_PROVISIONER) {
        return Ok(profile);
    }
    let volumes: Api<PersistentVolume> = Api::all(cluster.client.clone());
    let about = || "persistent volumes".to_owned();
    let listed = call("list", about, volumes.list(&ListParams::default())).await?;
    Ok(profile.of_volumes(class, &listed.items))
}

/// The class whose profile is looked up, if there can be one: users write the name, and it becomes part of a request's path.
fn looked_up(storage: &StorageSpec, class: Option<String>) -> Option<String> {
    // An explicitly empty class name means no class.
    class.filter(|class| storage.storage_class_name.as_deref() != Some("") && is_dns_subdomain(class))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_that_no_class_has_is_not_looked_up() {
        let asked = |name: &str| {
            let storage = StorageSpec { storage_class_name: Some(name.to_owned()), ..StorageSpec::default() };
            looked_up(&storage, Some(name.to_owned()))
        };
        assert_eq!(asked("fast.example"), Some("fast.example".to_owned()));
        for wrong in ["", "/", "fast/status", "../storageprofiles/fast", "fast?x=y", "fast class"] {
            assert_eq!(asked(wrong), None, "{wrong}");
        }
        let none = StorageSpec { storage_class_name: Some(String::new()), ..StorageSpec::default() };
        assert_eq!(looked_up(&none, Some("usual".to_owned())), None);
    }
}
