//! Carries out one step: with a claim, or with a pod that fills or sends it.

use super::senders;
use crate::cluster::Cluster;
use crate::write::FIELD_MANAGER;
use barevirt_component::request::{Error, call, call_opt};
use barevirt_plan::imports::Step;
use k8s_openapi::api::core::v1::{PersistentVolumeClaim, Pod};
use kube::api::{Api, DeleteParams, Patch, PatchParams, PostParams, Preconditions};

/// A claim and the pod that fills it, by their names.
pub(super) struct Place<'a> {
    pub(super) namespace: &'a str,
    pub(super) claim: &'a str,
    pub(super) pod: &'a str,
}

pub(super) async fn perform(cluster: &Cluster, place: &Place<'_>, step: Step) -> Result<(), Error> {
    let (client, Place { namespace, claim, pod }) = (&cluster.client, place);
    let manager = || Some(FIELD_MANAGER.to_owned());
    let params = PostParams { field_manager: manager(), ..PostParams::default() };
    let claims: Api<PersistentVolumeClaim> = Api::namespaced(client.clone(), namespace);
    let pods: Api<Pod> = Api::namespaced(client.clone(), namespace);
    let (of_claim, of_pod) = (format!("claim {namespace}/{claim}"), format!("pod {namespace}/{pod}"));
    match step {
        Step::MakeClaim(wanted) => {
            call("create", || of_claim, claims.create(&params, &wanted)).await.map(drop)
        }
        Step::MakePod(wanted) => call("create", || of_pod, pods.create(&params, &wanted)).await.map(drop),
        Step::PatchClaim(patch) => {
            let params = PatchParams { field_manager: manager(), ..PatchParams::default() };
            let patch = Patch::Merge(&patch);
            call("patch", || of_claim, claims.patch_metadata(claim, &params, &patch)).await.map(drop)
        }
        Step::MakeSender(wanted) => senders::make(cluster, &wanted).await,
        Step::Introduce { namespace, name, certificate } => {
            senders::introduce(cluster, (&namespace, &name), &certificate).await
        }
        Step::RemoveSender { namespace, name, uid } => {
            senders::remove(client, (&namespace, &name), &uid).await
        }
        Step::RemovePod(uid) => {
            let preconditions = Preconditions { uid: Some(uid), resource_version: None };
            let params = DeleteParams { preconditions: Some(preconditions), ..DeleteParams::default() };
            call_opt("delete", || of_pod, pods.delete(pod, &params)).await.map(drop)
        }
    }
}
