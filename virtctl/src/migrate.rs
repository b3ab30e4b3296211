//! migrate, migrate-cancel, evacuate-cancel: a running machine moves to another node, or stays.

use std::collections::BTreeMap;

use anyhow::{Context, bail};
use barevirt_api::names::{MIGRATION_SELECTOR_LABEL, is_final_phase, vmi_id};
use barevirt_api::v1::{
    EvacuateCancelOptions, MigrateOptions, VirtualMachineInstance, VirtualMachineInstanceMigration,
};
use clap::Args;
use http::Method;
use kube::Api;
use kube::api::{DeleteParams, ListParams};

use crate::session::{self, INSTANCES, Kind, Session, dry_run, label};

/// Plural of machines, as in paths.
const MACHINES: &str = "virtualmachines";

/// Arguments of `virtctl migrate`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  \
    # To a node that the scheduler chooses:\n  \
    virtctl migrate myvm\n\n  \
    # To one of the nodes with this label:\n  \
    virtctl migrate myvm --addedNodeSelector=kubernetes.io/hostname=node02")]
pub(crate) struct Migrate {
    /// Name of the virtual machine.
    vm: String,
    /// Additional labels that the other node must have. The machine's own requirements still apply.
    #[arg(
        long = "addedNodeSelector",
        value_name = "KEY=VALUE",
        value_delimiter = ',',
        value_parser = label
    )]
    added_node_selector: Vec<(String, String)>,
    /// Only check whether it could be done.
    #[arg(long)]
    dry_run: bool,
}

impl Migrate {
    pub(crate) async fn run(&self, session: &Session) -> anyhow::Result<()> {
        let vm = &self.vm;
        let added_node_selector: BTreeMap<String, String> =
            self.added_node_selector.iter().cloned().collect();
        let options = MigrateOptions { added_node_selector, dry_run: dry_run(self.dry_run) };
        let path = session::path(&session.namespace, MACHINES, vm, "migrate");
        let called = session.call(Method::PUT, path, &options).await;
        called.map_err(session::plain).context("Error migrating VirtualMachine")?;
        println!("VM {vm} was scheduled to migrate");
        Ok(())
    }
}

/// Arguments of `virtctl migrate-cancel`.
#[derive(Debug, Args)]
pub(crate) struct Cancel {
    /// Name of the virtual machine.
    vm: String,
    /// Only check whether it could be done.
    #[arg(long)]
    dry_run: bool,
}

impl Cancel {
    /// Deletes the migration that is under way: virt-controller ends it, and the guest keeps running where it
    /// is.
    pub(crate) async fn run(&self, session: &Session) -> anyhow::Result<()> {
        let vm = &self.vm;
        let migrations: Api<VirtualMachineInstanceMigration> =
            Api::namespaced(session.client.clone(), &session.namespace);
        let of_vm = ListParams::default().labels(&format!("{MIGRATION_SELECTOR_LABEL}={}", vmi_id(vm)));
        let found = migrations.list(&of_vm).await.map_err(session::plain);
        let found = found.context("Error fetching virtual machine instance migration list")?;
        let Some(name) = active(vm, &found.items) else { bail!("Found no migration to cancel for {vm}") };
        let params = DeleteParams { dry_run: !dry_run(self.dry_run).is_empty(), ..DeleteParams::default() };
        let deleted = migrations.delete(name, &params).await.map_err(session::plain);
        deleted.with_context(|| format!("Error canceling migration {name} of a VirtualMachine {vm}"))?;
        println!("VM {vm} was scheduled to migrate-cancel");
        Ok(())
    }
}

/// Name of the machine's migration that is not over.
fn active<'a>(vm: &str, migrations: &'a [VirtualMachineInstanceMigration]) -> Option<&'a str> {
    let is_over = |migration: &VirtualMachineInstanceMigration| {
        let phase = migration.status.as_ref().and_then(|status| status.phase.as_deref());
        phase.is_some_and(is_final_phase)
    };
    let mut own = migrations.iter().filter(|migration| migration.spec.vmi_name.as_deref() == Some(vm));
    own.find(|migration| !is_over(migration))?.metadata.name.as_deref()
}

/// Arguments of `virtctl evacuate-cancel`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  \
    # A machine whose node is drained stays where it is:\n  \
    virtctl evacuate-cancel vm myvm\n\n  \
    # The same for an instance without a machine:\n  \
    virtctl evacuate-cancel vmi myvmi")]
pub(crate) struct CancelEvacuation {
    /// virtualmachine (vm) or virtualmachineinstance (vmi).
    kind: String,
    /// Name of the object.
    name: String,
    /// Only check whether it could be done.
    #[arg(long)]
    dry_run: bool,
}

impl CancelEvacuation {
    pub(crate) async fn run(&self, session: &Session) -> anyhow::Result<()> {
        let (word, resource) = match Kind::parse(&self.kind) {
            Some(Kind::Machine) => ("VM", MACHINES),
            Some(Kind::Instance) => ("VMI", INSTANCES),
            None => bail!("unsupported resource type {:?}", self.kind),
        };
        let (namespace, name) = (&session.namespace, &self.name);
        let instances: Api<VirtualMachineInstance> = Api::namespaced(session.client.clone(), namespace);
        let found = instances.get(name).await.map_err(session::plain);
        let vmi = found.with_context(|| {
            format!("error retrieving VMI for evacuation cancel for {word} {namespace}/{name}")
        })?;
        let node = vmi.status.and_then(|status| status.node_name).filter(|node| !node.is_empty());
        let Some(evacuation_node_name) = node else {
            bail!("{word} {namespace}/{name} doesn't report Node name");
        };
        let options = EvacuateCancelOptions { dry_run: dry_run(self.dry_run), evacuation_node_name };
        let path = session::path(namespace, resource, name, "evacuate/cancel");
        let called = session.call(Method::PUT, path, &options).await.map_err(session::plain);
        called.with_context(|| format!("error canceling evacuation for {word} {namespace}/{name}"))?;
        println!("{word} {namespace}/{name} was canceled evacuation");
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;
    use serde_json::json;

    #[derive(Parser)]
    struct Wrapped {
        #[command(flatten)]
        inner: Migrate,
    }

    #[test]
    fn labels_come_one_by_one_or_with_commas() {
        let read = |arguments: &[&str]| {
            let words = ["migrate"].into_iter().chain(arguments.iter().copied());
            Wrapped::try_parse_from(words).map(|read| read.inner.added_node_selector)
        };
        let labels = |pairs: &[(&str, &str)]| -> Vec<(String, String)> {
            pairs.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect()
        };
        assert_eq!(read(&["web"]).unwrap(), labels(&[]));
        let both = labels(&[("a", "b"), ("c/d", "e")]);
        assert_eq!(read(&["web", "--addedNodeSelector=a=b,c/d=e"]).unwrap(), both);
        assert_eq!(
            read(&["web", "--addedNodeSelector", "a=b", "--addedNodeSelector", "c/d=e"]).unwrap(),
            both
        );
        assert!(read(&["web", "--addedNodeSelector=a"]).is_err());
        assert!(read(&[]).is_err());
    }

    #[test]
    fn only_a_migration_that_is_not_over_is_cancelled() {
        let migration = |name: &str, vmi: &str, phase: &str| -> VirtualMachineInstanceMigration {
            let object =
                json!({"metadata": {"name": name}, "spec": {"vmiName": vmi}, "status": {"phase": phase}});
            serde_json::from_value(object).unwrap()
        };
        let over = [migration("a", "web", "Succeeded"), migration("b", "web", "Failed")];
        assert_eq!(active("web", &over), None);
        let [a, b] = over;
        let all = [a, b, migration("c", "db", "Running"), migration("d", "web", "Scheduling")];
        assert_eq!(active("web", &all), Some("d"));
        assert_eq!(active("db", &all), Some("c"));
        assert_eq!(active("web", &[migration("new", "web", "")]), Some("new"));
    }
}
