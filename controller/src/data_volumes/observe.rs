//! Observes a DataVolume. Everything is read from the API server, so that a stale cache never leads to a second object.

use super::{profiles, progress};
use crate::cluster::Cluster;
use barevirt_api::cdi::{CONFIG, CONFIG_KIND, CdiConfig, DataSource, DataVolume};
use barevirt_api::names::{
    COPIES_BINDING, COPIES_POLICY, INSECURE_REGISTRIES_CONFIG_MAP as INSECURE_REGISTRIES,
};
use barevirt_api::settings::Imports;
use barevirt_component::request::{Error, call, call_opt};
use barevirt_import_job::Network;
use barevirt_plan::data_volumes::Place;
use barevirt_plan::imports::populator::Class;
use barevirt_plan::imports::{
    Copied, Installation, LABEL, Named, Observed, Overhead, Profile, Sender, SourceClaim, address,
    configured, followed, inferred, is_kept_looked_for, is_waiting, kept_volume, named, permitted, pod_name,
    sender_name, uses,
};
use k8s_openapi::api::admissionregistration::v1::{
    ValidatingAdmissionPolicy, ValidatingAdmissionPolicyBinding,
};
use k8s_openapi::api::core::v1::{ConfigMap, PersistentVolume, PersistentVolumeClaim, Pod};
use k8s_openapi::api::storage::v1::StorageClass;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use k8s_openapi::jiff::Timestamp;
use kube::api::{Api, ListParams};
use kube::{Client, ResourceExt};
use std::collections::BTreeMap;

/// Looks; `None` where the DataVolume does not exist.
pub(super) async fn observe(
    cluster: &Cluster,
    namespace: &str,
    name: &str,
    overhead: &Overhead,
) -> Result<Option<Observed>, Error> {
    let client = &cluster.client;
    let all: Api<DataVolume> = Api::namespaced(client.clone(), namespace);
    let about = |kind: &str, name: &str| format!("{kind} {namespace}/{name}");
    let found = call_opt("get", || about("data volume", name), all.get(name)).await?;
    let Some(data_volume) = found else { return Ok(None) };
    let claims: Api<PersistentVolumeClaim> = Api::namespaced(client.clone(), namespace);
    let claim = call_opt("get", || about("claim", name), claims.get(name)).await?;
    let pods: Api<Pod> = Api::namespaced(client.clone(), namespace);
    let copied = copied(cluster, &data_volume, claim.as_ref()).await?;
    let profile = match &claim {
        Some(_) => Profile::default(),
        None => profiles::of(cluster, &data_volume, class_of(&copied), overhead).await?,
    };
    let kept = match &claim {
        Some(_) => None,
        None => kept(client, &data_volume).await?,
    };
    let importer = pod_name(name);
    let pod = call_opt("get", || about("pod", &importer), pods.get(&importer)).await?;
    let waits = match &claim {
        Some(claim) => waits(&cluster.client, claim).await?,
        None => false,
    };
    let progress = match pod.as_ref().and_then(address) {
        Some(address) => progress::ask(&address).await,
        None => None,
    };
    let now = Time(Timestamp::now());
    Ok(Some(Observed { data_volume, claim, kept, profile, copied, pod, waits, progress, now }))
}

/// The class of the claim that is copied.
fn class_of(copied: &Copied) -> Option<&str> {
    let Copied::Claim(source) = copied else { return None };
    source.claim.as_ref()?.spec.as_ref()?.storage_class_name.as_deref()
}

/// A volume that was kept for the claim of a DataVolume.
async fn kept(client: &Client, data_volume: &DataVolume) -> Result<Option<PersistentVolume>, Error> {
    if !is_kept_looked_for(data_volume) {
        return Ok(None);
    }
    let volumes: Api<PersistentVolume> = Api::all(client.clone());
    let all = ListParams::default();
    let listed = call("list", || "persistent volumes".to_owned(), volumes.list(&all)).await?;
    Ok(kept_volume(data_volume, listed.items))
}

/// The source of the copy.
async fn copied(
    cluster: &Cluster,
    data_volume: &DataVolume,
    claim: Option<&PersistentVolumeClaim>,
) -> Result<Copied, Error> {
    // A finished DataVolume needs no source.
    if !is_waiting(data_volume) {
        return Ok(Copied::Nothing);
    }
    let own = data_volume.metadata.namespace.clone().unwrap_or_default();
    let may = async |from: &str| {
        // A copy within its own namespace needs no policy.
        let since = if from == own { None } else { asked_since(cluster).await? };
        Ok::<_, Error>(permitted(data_volume, from, since.as_ref()))
    };
    let mut labels = BTreeMap::new();
    let place = match named(data_volume, claim) {
        Named::Nothing => return Ok(Copied::Nothing),
        Named::Wrong(why) => return Ok(Copied::Refused(why)),
        Named::Claim(place) => place,
        Named::DataSource(place) => {
            if let Err(why) = may(&place.namespace).await? {
                return Ok(Copied::Refused(why));
            }
            let all: Api<DataSource> = Api::namespaced(cluster.client.clone(), &place.namespace);
            let found = call_opt("get", || format!("data source {place}"), all.get(&place.name)).await?;
            labels = found.as_ref().map(|found| inferred(found.labels())).unwrap_or_default();
            match followed(&place, found.as_ref()) {
                Ok(claim) => claim,
                Err(copied) => return Ok(copied),
            }
        }
    };
    if let Err(why) = may(&place.namespace).await? {
        return Ok(Copied::Refused(why));
    }
    let sender =
        if place.namespace == own { None } else { Some(sender(cluster, data_volume, &place).await?) };
    let source = source(cluster, place).await?;
    Ok(Copied::Claim(Box::new(SourceClaim { sender, inferred: labels, ..source })))
}

/// The time since which admission checks copies from other namespaces; `None` where it does not.
async fn asked_since(cluster: &Cluster) -> Result<Option<Time>, Error> {
    let policies: Api<ValidatingAdmissionPolicy> = Api::all(cluster.client.clone());
    let bindings: Api<ValidatingAdmissionPolicyBinding> = Api::all(cluster.client.clone());
    let about = |name: &'static str| move || format!("policy {name}");
    let policy = call_opt("get", about(COPIES_POLICY), policies.get_metadata(COPIES_POLICY)).await?;
    let binding = call_opt("get", about(COPIES_BINDING), bindings.get_metadata(COPIES_BINDING)).await?;
    let since = policy.zip(binding).and_then(|(policy, binding)| {
        policy.metadata.creation_timestamp.zip(binding.metadata.creation_timestamp)
    });
    Ok(since.map(|(policy, binding)| policy.max(binding)))
}

/// The sender's pod.
async fn sender(cluster: &Cluster, data_volume: &DataVolume, place: &Place) -> Result<Sender, Error> {
    let pods: Api<Pod> = Api::namespaced(cluster.client.clone(), &place.namespace);
    let name = sender_name(data_volume);
    let pod = call_opt("get", || format!("pod {}/{name}", place.namespace), pods.get(&name)).await?;
    Ok(Sender { pod })
}

/// The claim that is copied, and a pod that uses it.
async fn source(cluster: &Cluster, place: Place) -> Result<SourceClaim, Error> {
    let claims: Api<PersistentVolumeClaim> = Api::namespaced(cluster.client.clone(), &place.namespace);
    let pods: Api<Pod> = Api::namespaced(cluster.client.clone(), &place.namespace);
    let claim = call_opt("get", || format!("claim {place}"), claims.get(&place.name)).await?;
    // Importers that copy only read it.
    let reads = |pod: &Pod| pod.labels().get(LABEL.0).is_some_and(|value| value == LABEL.1);
    let listed = call("list", || "pods".to_owned(), pods.list(&ListParams::default())).await?;
    let used_by = barevirt_plan::imports::user(listed.items.iter().filter(|pod| !reads(pod)), &place.name);
    Ok(SourceClaim { place, claim, used_by, inferred: BTreeMap::new(), sender: None })
}

/// A pod that has the claim open, or will, among those that `counts` selects.
pub(super) async fn user(
    pods: &Api<Pod>,
    claim: &str,
    counts: impl Fn(&Pod) -> bool,
) -> Result<Option<String>, Error> {
    let listed = call("list", || "pods".to_owned(), pods.list(&ListParams::default())).await?;
    Ok(listed.items.iter().find(|pod| counts(pod) && uses(pod, claim)).map(ResourceExt::name_any))
}

/// Whether the class of an unbound claim waits for a pod.
async fn waits(client: &Client, claim: &PersistentVolumeClaim) -> Result<bool, Error> {
    let bound = claim.status.as_ref().and_then(|status| status.phase.as_deref()) == Some("Bound");
    Ok(!bound && class(client, claim).await? == Class::Waits)
}

/// The class that a claim names.
pub(super) async fn class(client: &Client, claim: &PersistentVolumeClaim) -> Result<Class, Error> {
    let name = claim.spec.as_ref().and_then(|spec| spec.storage_class_name.as_deref());
    let Some(name) = name.filter(|name| !name.is_empty()) else { return Ok(Class::NotNamed) };
    let classes: Api<StorageClass> = Api::all(client.clone());
    let found = call_opt("get", || format!("storage class {name}"), classes.get(name)).await?;
    Ok(match found.map(|class| class.volume_binding_mode) {
        None => Class::Missing,
        Some(mode) if mode.as_deref() == Some("WaitForFirstConsumer") => Class::Waits,
        Some(_) => Class::Immediate,
    })
}

/// The settings in CDI's form, where there are any.
pub(super) async fn config(cluster: &Cluster) -> Result<Option<CdiConfig>, Error> {
    let all: Api<CdiConfig> = Api::all(cluster.client.clone());
    call_opt("get", || format!("{CONFIG_KIND} {CONFIG}"), all.get(CONFIG)).await
}

/// The present settings for importers.
pub(super) async fn installation(cluster: &Cluster) -> Result<Installation, Error> {
    let config = config(cluster).await?;
    let maps: Api<ConfigMap> = Api::namespaced(cluster.client.clone(), cluster.namespace());
    let about = || format!("config map {}/{INSECURE_REGISTRIES}", cluster.namespace());
    let registries = call_opt("get", about, maps.get(INSECURE_REGISTRIES)).await?;
    let registries = registries.and_then(|map| map.data).unwrap_or_default();
    let mut installation = shown(cluster, config.as_ref());
    installation.insecure_registries.extend(registries.into_values().map(|value| value.trim().to_owned()));
    Ok(installation)
}

/// The present settings that a CDIConfig shows; registries without TLS are not among them.
pub(super) fn shown(cluster: &Cluster, given: Option<&CdiConfig>) -> Installation {
    let config = cluster.config();
    let installation = Installation {
        image: cluster.importer_image().unwrap_or_default().to_owned(),
        pull_policy: config.pull_policy().map(str::to_owned),
        pull_secrets: config.settings.image_pull_secrets.clone(),
        image_volumes: config.settings.pods.image_volumes,
        network: network(&config.settings.imports),
        nodes: config.settings.workload_nodes.clone(),
        ..Installation::default()
    };
    // The rest has defaults, which are those of an empty CDIConfig.
    configured(installation, &given.map(|given| given.spec.clone()).unwrap_or_default())
}

fn network(imports: &Imports) -> Network {
    let Imports { http_proxy, https_proxy, no_proxy, authorities, public_only } = imports.clone();
    Network {
        http_proxy,
        https_proxy,
        no_proxy: no_proxy.unwrap_or_default(),
        authorities: authorities.unwrap_or_default(),
        public_only,
    }
}
