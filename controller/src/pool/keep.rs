//! Detaches a deleted machine from its dependents, so that they stay.

use super::state;
use crate::cluster::Cluster;
use crate::write::FIELD_MANAGER;
use barevirt_api::cdi;
use barevirt_api::firmware::STATE_LABEL;
use barevirt_api::v1::VirtualMachine;
use barevirt_component::request::Error;
use barevirt_component::request::{call, call_opt};
use k8s_openapi::api::core::v1::PersistentVolumeClaim;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::ResourceExt;
use kube::api::{Api, ApiResource, DynamicObject, ListParams, Patch, PatchParams};
use serde_json::json;
use tracing::info;

/// Removes the machine from the owners of its claims and DataVolumes: those of its volumes, and the claim with its UEFI
/// variables and its TPM. Objects that it does not own, or that are gone, are skipped, so this can be repeated.
pub(super) async fn part(cluster: &Cluster, vm: &VirtualMachine) -> Result<(), Error> {
    let claims = ApiResource::erase::<PersistentVolumeClaim>(&());
    let namespace = vm.namespace().unwrap_or_default();
    let api = |resource: &ApiResource| {
        Api::<DynamicObject>::namespaced_with(cluster.client.clone(), &namespace, resource)
    };
    for (noun, objects) in [("claim", api(&claims)), ("data volume", api(&cdi::resource(cdi::DATA_VOLUME)))] {
        for name in state::names(vm) {
            let subject = || format!("{noun} {namespace}/{name}");
            if let Some(found) = call_opt("get", subject, objects.get_metadata(&name)).await? {
                disown(&objects, noun, &found.metadata, vm).await?;
            }
        }
    }
    let claims = api(&claims);
    let labelled = ListParams::default().labels(&format!("{STATE_LABEL}={}", vm.name_any()));
    let subject = || format!("claims of virtual machine {namespace}/{}", vm.name_any());
    for found in call("list", subject, claims.list_metadata(&labelled)).await? {
        disown(&claims, "claim", &found.metadata, vm).await?;
    }
    Ok(())
}

async fn disown(
    objects: &Api<DynamicObject>,
    noun: &'static str,
    found: &ObjectMeta,
    vm: &VirtualMachine,
) -> Result<(), Error> {
    let Some(left) = state::other_owners(found, vm) else { return Ok(()) };
    let (namespace, name) =
        (found.namespace.clone().unwrap_or_default(), found.name.clone().unwrap_or_default());
    let body = json!({"metadata": {
        "resourceVersion": found.resource_version, "uid": found.uid, "ownerReferences": left
    }});
    let params = PatchParams { field_manager: Some(FIELD_MANAGER.to_owned()), ..PatchParams::default() };
    let patch = Patch::Merge(&body);
    let request = objects.patch_metadata(&name, &params, &patch);
    call_opt("patch", || format!("{noun} {namespace}/{name}"), request).await?;
    info!(
        namespace,
        vm = vm.name_any(),
        object = format!("{noun} {name}"),
        "kept an object of a deleted machine"
    );
    Ok(())
}
