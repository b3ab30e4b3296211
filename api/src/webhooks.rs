//! The admission webhooks: the writes that the API server sends to virt-api, and to virt-operator for the
//! KubeVirt object, with the name and path of each webhook.
//!
//! One list serves both sides: virt-operator makes the configurations from it, and the servers find the
//! meaning of a review in it. Names and paths are KubeVirt's. Every kind that we define has a webhook that
//! validates new objects (a test checks this), so that no object is stored and then ignored.

use Configuration::{Mutator, Operator, Validator};

/// The subject of a webhook.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Hook {
    /// Defaults of a VirtualMachine.
    MutateMachine,
    /// Defaults and protection of status of a VirtualMachineInstance.
    MutateInstance,
    /// Label and finalizer of a VirtualMachineInstanceMigration.
    MutateMigration,
    /// Mounts of directories of a launcher pod's container `compute` in the containers that serve them.
    MutateLauncher,
    /// The eviction of a launcher pod.
    Eviction,
    /// A VirtualMachineInstance on create.
    InstanceCreate,
    /// A VirtualMachineInstance on update.
    InstanceUpdate,
    /// A VirtualMachine on create and update.
    Machine,
    /// A VirtualMachineInstanceReplicaSet.
    ReplicaSet,
    /// A VirtualMachinePool.
    Pool,
    /// A VirtualMachineInstancePreset.
    Preset,
    /// A VirtualMachineInstanceMigration on create.
    MigrationCreate,
    /// A VirtualMachineInstanceMigration on update.
    MigrationUpdate,
    /// A VirtualMachineSnapshot.
    Snapshot,
    /// A VirtualMachineSnapshotContent. KubeVirt has no webhook for it, because only its controller makes
    /// such objects.
    SnapshotContent,
    /// A VirtualMachineRestore.
    Restore,
    /// A VirtualMachineBackup.
    Backup,
    /// A VirtualMachineBackupTracker.
    BackupTracker,
    /// A VirtualMachineExport.
    Export,
    /// A VirtualMachineInstancetype.
    Instancetype,
    /// A VirtualMachineClusterInstancetype.
    ClusterInstancetype,
    /// A VirtualMachinePreference.
    Preference,
    /// A VirtualMachineClusterPreference.
    ClusterPreference,
    /// The status of a VirtualMachine, a replica set or a migration, written by another client than our
    /// components.
    Status,
    /// A MigrationPolicy.
    MigrationPolicy,
    /// A VirtualMachineClone.
    Clone,
    /// The KubeVirt object on create.
    KubeVirtCreate,
    /// The KubeVirt object on update.
    KubeVirtUpdate,
    /// The KubeVirt object on delete.
    KubeVirtDelete,
}

/// The object that a webhook is listed in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Configuration {
    /// `MutatingWebhookConfiguration` of virt-api.
    Mutator,
    /// `ValidatingWebhookConfiguration` of virt-api.
    Validator,
    /// `ValidatingWebhookConfiguration` for the KubeVirt object, answered by virt-operator.
    Operator,
}

impl Configuration {
    /// All configurations.
    pub const ALL: [Configuration; 3] = [Mutator, Validator, Operator];

    /// Name of the object.
    pub fn name(self) -> &'static str {
        match self {
            Mutator => "virt-api-mutator",
            Validator => "virt-api-validator",
            Operator => "virt-operator-validator",
        }
    }
}

/// One webhook.
#[derive(Clone, Copy, Debug)]
pub struct Webhook {
    /// The subject of the webhook.
    pub hook: Hook,
    /// The configuration that lists it.
    pub configuration: Configuration,
    /// Its full name.
    pub name: &'static str,
    /// Path at virt-api, without the slash.
    pub path: &'static str,
    /// API group, and its version in which virt-api gets the objects; the API server converts others.
    pub api: (&'static str, &'static str),
    /// Plural resources, with a subresource if there is one.
    pub resources: &'static [&'static str],
    /// Operations, in the terms of admission.
    pub operations: &'static [&'static str],
}

const CREATE: &[&str] = &["CREATE"];
const UPDATE: &[&str] = &["UPDATE"];
const DELETE: &[&str] = &["DELETE"];
const BOTH: &[&str] = &["CREATE", "UPDATE"];

const CORE: (&str, &str) = ("kubevirt.io", "v1");
const POOL: (&str, &str) = ("pool.kubevirt.io", "v1beta1");
const SNAPSHOT: (&str, &str) = ("snapshot.kubevirt.io", "v1beta1");
const BACKUP: (&str, &str) = ("backup.kubevirt.io", "v1alpha1");
const EXPORT: (&str, &str) = ("export.kubevirt.io", "v1");
const CLONE: (&str, &str) = ("clone.kubevirt.io", "v1beta1");
const MIGRATIONS: (&str, &str) = ("migrations.kubevirt.io", "v1alpha1");
const INSTANCETYPE: (&str, &str) = ("instancetype.kubevirt.io", "v1beta1");

macro_rules! webhooks {
    ($($hook:ident $configuration:ident $name:literal $path:literal $api:ident [$($resource:literal),*] $operations:ident;)*) => {
        &[$(Webhook {
            hook: Hook::$hook, configuration: $configuration, name: $name, path: $path, api: $api,
            resources: &[$($resource),*], operations: $operations,
        }),*]
    };
}

/// Pods and their subresources.
const PODS: (&str, &str) = ("", "v1");

/// All webhooks, in the order in which they are listed.
#[rustfmt::skip]
pub const WEBHOOKS: &[Webhook] = webhooks![
    MutateMachine Mutator "virtualmachines-mutator.kubevirt.io" "virtualmachines-mutate" CORE ["virtualmachines"] BOTH;
    MutateInstance Mutator "virtualmachineinstances-mutator.kubevirt.io" "virtualmachineinstances-mutate" CORE ["virtualmachineinstances"] BOTH;
    MutateMigration Mutator "migrations-mutator.kubevirt.io" "migration-mutate-create" CORE ["virtualmachineinstancemigrations"] CREATE;
    MutateLauncher Mutator "virt-launcher-pod-mutator.kubevirt.io" "virt-launcher-pod-mutate" PODS ["pods"] CREATE;
    Eviction Validator "virt-launcher-eviction-interceptor.kubevirt.io" "pod-eviction-validate" PODS ["pods/eviction"] CREATE;
    InstanceCreate Validator "virtualmachineinstances-create-validator.kubevirt.io" "virtualmachineinstances-validate-create" CORE ["virtualmachineinstances"] CREATE;
    InstanceUpdate Validator "virtualmachineinstances-update-validator.kubevirt.io" "virtualmachineinstances-validate-update" CORE ["virtualmachineinstances"] UPDATE;
    Machine Validator "virtualmachine-validator.kubevirt.io" "virtualmachines-validate" CORE ["virtualmachines"] BOTH;
    ReplicaSet Validator "virtualmachinereplicaset-validator.kubevirt.io" "virtualmachinereplicaset-validate" CORE ["virtualmachineinstancereplicasets"] BOTH;
    Pool Validator "virtualmachinepool-validator.kubevirt.io" "virtualmachinepool-validate" POOL ["virtualmachinepools"] BOTH;
    Preset Validator "virtualmachinepreset-validator.kubevirt.io" "vmipreset-validate" CORE ["virtualmachineinstancepresets"] BOTH;
    MigrationCreate Validator "migration-create-validator.kubevirt.io" "migration-validate-create" CORE ["virtualmachineinstancemigrations"] CREATE;
    MigrationUpdate Validator "migration-update-validator.kubevirt.io" "migration-validate-update" CORE ["virtualmachineinstancemigrations"] UPDATE;
    Snapshot Validator "virtualmachinesnapshot-validator.snapshot.kubevirt.io" "virtualmachinesnapshots-validate" SNAPSHOT ["virtualmachinesnapshots"] BOTH;
    SnapshotContent Validator "virtualmachinesnapshotcontent-validator.snapshot.kubevirt.io" "virtualmachinesnapshotcontents-validate" SNAPSHOT ["virtualmachinesnapshotcontents"] BOTH;
    Restore Validator "virtualmachinerestore-validator.snapshot.kubevirt.io" "virtualmachinerestores-validate" SNAPSHOT ["virtualmachinerestores"] BOTH;
    Backup Validator "virtualmachinebackup-validator.backup.kubevirt.io" "virtualmachinebackups-validate" BACKUP ["virtualmachinebackups"] BOTH;
    BackupTracker Validator "virtualmachinebackuptracker-validator.backup.kubevirt.io" "virtualmachinebackuptrackers-validate" BACKUP ["virtualmachinebackuptrackers"] BOTH;
    Export Validator "virtualmachineexport-validator.export.kubevirt.io" "virtualmachineexports-validate" EXPORT ["virtualmachineexports"] BOTH;
    Instancetype Validator "virtualmachineinstancetype-validator.instancetype.kubevirt.io" "virtualmachineinstancetypes-validate" INSTANCETYPE ["virtualmachineinstancetypes"] BOTH;
    ClusterInstancetype Validator "virtualmachineclusterinstancetype-validator.instancetype.kubevirt.io" "virtualmachineclusterinstancetypes-validate" INSTANCETYPE ["virtualmachineclusterinstancetypes"] BOTH;
    Preference Validator "virtualmachinepreference-validator.instancetype.kubevirt.io" "virtualmachinepreferences-validate" INSTANCETYPE ["virtualmachinepreferences"] BOTH;
    ClusterPreference Validator "virtualmachineclusterpreference-validator.instancetype.kubevirt.io" "virtualmachineclusterpreferences-validate" INSTANCETYPE ["virtualmachineclusterpreferences"] BOTH;
    Status Validator "kubevirt-crd-status-validator.kubevirt.io" "status-validate" CORE ["virtualmachines/status", "virtualmachineinstancereplicasets/status", "virtualmachineinstancemigrations/status"] BOTH;
    MigrationPolicy Validator "migration-policy-validator.kubevirt.io" "migration-policy-validate-create" MIGRATIONS ["migrationpolicies"] BOTH;
    Clone Validator "vm-clone-validator.kubevirt.io" "vm-clone-validate-create" CLONE ["virtualmachineclones"] BOTH;
    KubeVirtUpdate Operator "kubevirt-update-validator.kubevirt.io" "kubevirt-validate-update" CORE ["kubevirts"] UPDATE;
    KubeVirtCreate Operator "kubevirt-create-validator.kubevirt.io" "kubevirt-validate-create" CORE ["kubevirts"] CREATE;
    KubeVirtDelete Operator "kubevirt-validator.kubevirt.io" "kubevirt-validate-delete" CORE ["kubevirts"] DELETE;
];

impl Hook {
    /// The hook of virt-api at this path, without the leading slash.
    pub fn at(path: &str) -> Option<Hook> {
        Self::find(path, |configuration| configuration != Operator)
    }

    /// The hook of virt-operator at this path.
    pub fn of_operator_at(path: &str) -> Option<Hook> {
        Self::find(path, |configuration| configuration == Operator)
    }

    fn find(path: &str, whose: impl Fn(Configuration) -> bool) -> Option<Hook> {
        let mut webhooks = WEBHOOKS.iter().filter(|webhook| whose(webhook.configuration));
        webhooks.find(|webhook| webhook.path == path).map(|webhook| webhook.hook)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::crd;
    use std::collections::BTreeSet;

    /// Every kind has a webhook for new objects and for changes, in the version that is listed first.
    #[test]
    fn every_kind_has_its_decisions() {
        for definition in crd::all() {
            let (spec, name) = (&definition.spec, &definition.spec.names.plural);
            for operation in ["CREATE", "UPDATE"] {
                let deciding = WEBHOOKS.iter().filter(|webhook| {
                    webhook.configuration != Mutator
                        && webhook.api == (spec.group.as_str(), spec.versions[0].name.as_str())
                        && webhook.resources.contains(&name.as_str())
                        && webhook.operations.contains(&operation)
                });
                assert_eq!(deciding.count(), 1, "{operation} of {name}");
            }
        }
    }

    #[test]
    fn webhooks_name_existing_resources() {
        let known: BTreeSet<(String, String)> =
            crd::all().into_iter().map(|crd| (crd.spec.group, crd.spec.names.plural)).collect();
        for webhook in WEBHOOKS.iter().filter(|webhook| webhook.api != PODS) {
            for resource in webhook.resources {
                let plural = resource.split('/').next().unwrap();
                assert!(known.contains(&(webhook.api.0.to_owned(), plural.to_owned())), "{resource}");
            }
        }
    }

    #[test]
    fn names_and_paths_lead_to_one_hook_each() {
        let names: BTreeSet<&str> = WEBHOOKS.iter().map(|webhook| webhook.name).collect();
        assert_eq!(names.len(), WEBHOOKS.len());
        for webhook in WEBHOOKS {
            let found = [Hook::at(webhook.path), Hook::of_operator_at(webhook.path)];
            let mine = webhook.configuration == Operator;
            assert_eq!(found, if mine { [None, Some(webhook.hook)] } else { [Some(webhook.hook), None] });
        }
        assert_eq!(Hook::at("healthz"), None);
    }
}
