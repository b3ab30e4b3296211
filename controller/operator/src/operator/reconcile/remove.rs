//! Removes an installation: first its objects, then the finalizer.

use super::status::is_ours;
use super::{IDLE, PassError, Reconciler, scopes};
use crate::operator::cache::selector;
use crate::operator::kind::Identity;
use crate::operator::report::{self, Outcome};
use crate::operator::target::Target;
use crate::operator::{APPLIED_ANNOTATION, data_volumes, existing, owned, removal, upload_service, versions};
use barevirt_api::v1::{Condition, KubeVirt};
use barevirt_component::request::Error;
use barevirt_component::request::call_opt;
use k8s_openapi::api::coordination::v1::Lease;
use kube::ResourceExt;
use kube::api::{Api, DeleteParams, ListParams};
use std::collections::BTreeMap;
use std::time::Duration;
use tracing::info;

/// Pause before the next look during a removal.
const REMOVING: Duration = Duration::from_secs(2);
/// Objects that our components make themselves.
const LEASES: [&str; 1] = ["virt-controller"];

impl Reconciler {
    pub(super) async fn remove(&mut self, kubevirt: &KubeVirt) -> Result<Duration, PassError> {
        if !kubevirt.finalizers().iter().any(|finalizer| is_ours(finalizer)) {
            return Ok(IDLE);
        }
        let begun = kubevirt.status.as_ref().is_some_and(|status| {
            Condition::find(&status.conditions, report::AVAILABLE)
                .is_some_and(|condition| condition.reason.as_deref() == Some("DeletionInProgress"))
        });
        let blocks = kubevirt.spec.uninstall_strategy.as_deref() == Some("BlockUninstallIfWorkloadsExist");
        if blocks
            && !begun
            && let Some(workloads) = existing::workloads(&self.client).await?
        {
            let why =
                format!("spec.uninstallStrategy is BlockUninstallIfWorkloadsExist and there are {workloads}");
            self.report(kubevirt, &Outcome::RemovalFailed(why), None).await?;
            // Until the machines are gone, the installation is kept as it was. Earlier refusals were reported; now the
            // condition names the machines.
            if self.cache.is_filled()
                && let Ok(target) = Target::of(&kubevirt.spec, &self.own)
            {
                let status = kubevirt.status.clone().unwrap_or_default();
                let order = versions::order(&status, &target.deployment(&self.own));
                self.put_right(&target, order, kubevirt.metadata.generation).await?.ok();
            }
            return Ok(REMOVING);
        }
        self.left.clear();
        self.certificates.forget();
        // While virt-api still answers.
        upload_service::remove(&self.client).await?;
        let (mut found, mut uids) = (vec![], BTreeMap::new());
        for scope in scopes(&self.own) {
            let api = scope.metadata(self.client.clone());
            let params = ListParams::default().labels(&selector());
            let listed = call_opt("list", || scope.kind.plural().to_owned(), api.list(&params)).await?;
            for object in listed.into_iter().flat_map(|list| list.items) {
                // Applied by us, not merely labelled as ours.
                if object.annotations().contains_key(APPLIED_ANNOTATION) {
                    let identity =
                        Identity { kind: scope.kind, namespace: object.namespace(), name: object.name_any() };
                    uids.insert(identity.clone(), object.uid().unwrap_or_default());
                    found.push((identity, object.metadata.deletion_timestamp.is_some()));
                }
            }
        }
        let removal = removal::plan(&found);
        if removal.is_done() {
            data_volumes::remove(&self.client).await?;
            self.certificates.remove().await?;
            self.remove_leases().await?;
            self.report(kubevirt, &Outcome::Removed, None).await?;
            self.set_finalizer(kubevirt, false).await?;
            info!("removed");
            return Ok(IDLE);
        }
        let waiting: Vec<String> =
            removal.delete.iter().chain(&removal.wait).map(ToString::to_string).collect();
        // Reported before it begins: from then on, new workloads do not stop it half-way.
        if self.report(kubevirt, &Outcome::Removing { waiting }, None).await? {
            return Ok(Duration::ZERO);
        }
        for identity in &removal.delete {
            let Some(uid) = uids.get(identity) else { continue };
            self.delete(identity, uid).await?;
            info!(object = %identity, "removing");
        }
        Ok(REMOVING)
    }

    async fn remove_leases(&self) -> Result<(), Error> {
        let leases: Api<Lease> = Api::namespaced(self.client.clone(), &self.own.namespace);
        for name in LEASES {
            // It has no labels; it is ours by its name in our namespace.
            let found = call_opt("get", || format!("lease {name}"), leases.get_metadata(name)).await?;
            let Some(uid) = found.and_then(|lease| lease.metadata.uid) else { continue };
            let params = owned::of(&uid, DeleteParams::default());
            let deleted = leases.delete(name, &params);
            call_opt("delete", || format!("lease {name}"), deleted).await?;
        }
        Ok(())
    }
}
