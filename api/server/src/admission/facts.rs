//! Facts about other objects that some rules need. All other rules need no request of our own.

use barevirt_api::backup::VirtualMachineBackup;
use barevirt_api::instancetype::expand::Lookups;
use barevirt_api::restore::VirtualMachineRestore;
use barevirt_api::v1::{VirtualMachineInstance, VirtualMachineInstanceMigration};
use barevirt_api::webhooks::Hook;
use barevirt_component::installation::Reading;
use k8s_openapi::NamespaceResourceScope;
use kube::api::ListParams;
use kube::core::admission::Operation;
use kube::{Api, Client, Resource};
use serde::de::DeserializeOwned;

use super::request::Request;
use crate::answer::Refusal;
use crate::expand;
use crate::front_proxy::User;
use crate::infer::{self, Inferred};

/// Facts about other objects.
#[derive(Clone, Debug, Default)]
pub struct Facts {
    /// The instance that a migration names.
    pub instance: Option<VirtualMachineInstance>,
    /// The migrations in the namespace of a new one.
    pub migrations: Vec<VirtualMachineInstanceMigration>,
    /// The restores in the namespace of a new one.
    pub restores: Vec<VirtualMachineRestore>,
    /// The backups in the namespace of a new one.
    pub backups: Vec<VirtualMachineBackup>,
    /// Whether there is a KubeVirt object.
    pub installed: bool,
    /// Workloads that would be lost with the installation, if there are any.
    pub workloads: Option<String>,
    /// The instance type and the preference that a machine names.
    pub named: Lookups,
    /// The instance type and the preference that the labels of a volume name.
    pub inferred: Inferred,
}

/// Reads the objects that the hook's rules need. `user` sends the request; `None` is one of our components.
pub(super) async fn observe(
    client: &Client,
    config: &Reading,
    hook: Hook,
    request: &Request,
    user: Option<&User>,
) -> Result<Facts, Refusal> {
    let mut facts = Facts { installed: config.installed, ..Facts::default() };
    if matches!(hook, Hook::MutateMachine | Hook::Machine)
        && let Some(mut vm) = expand::reviewed(request)
    {
        if hook == Hook::MutateMachine {
            facts.inferred = infer::inferred(client, user, &vm).await;
            infer::apply(&facts.inferred, &mut vm);
        }
        facts.named = expand::lookups(client, &vm).await;
    }
    if request.operation != Operation::Create {
        return Ok(facts);
    }
    let namespace = request.namespace.as_deref().unwrap_or_default();
    match hook {
        Hook::MigrationCreate => {
            let object = request.object.as_ref();
            if let Some(name) = object.and_then(|object| object.data["spec"]["vmiName"].as_str())
                && !name.is_empty()
            {
                let instances: Api<VirtualMachineInstance> = Api::namespaced(client.clone(), namespace);
                let found = instances.get_opt(name).await;
                facts.instance = found.map_err(|error| Refusal::from_kube("read the instance", error))?;
            }
            facts.migrations = list(client, namespace).await?;
        }
        Hook::Restore => facts.restores = list(client, namespace).await?,
        Hook::Backup => facts.backups = list(client, namespace).await?,
        _ => {}
    }
    Ok(facts)
}

async fn list<K>(client: &Client, namespace: &str) -> Result<Vec<K>, Refusal>
where
    K: Resource<DynamicType = (), Scope = NamespaceResourceScope>
        + Clone
        + DeserializeOwned
        + std::fmt::Debug,
{
    let objects: Api<K> = Api::namespaced(client.clone(), namespace);
    let what = || format!("list {}", K::plural(&()));
    let found = objects.list(&ListParams::default()).await;
    Ok(found.map_err(|error| Refusal::from_kube(&what(), error))?.items)
}
