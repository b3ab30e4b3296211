//! Migrations whose target does not come up at once: a quota or the nodes have no room for it, no node has the processor, or
//! the node of the guest already sends as many guests as the settings allow. Policies that make no sense are refused.

use anyhow::{Result, bail, ensure};
use barevirt_e2e::moving_guest::{Guest, machine, migration, node, stays};
use barevirt_e2e::wait::{self, MOVED, SOON};
use barevirt_e2e::{condition, guest, in_namespace, in_no_namespace, pods};
use serde_json::{Value, json};
use std::collections::BTreeMap;

/// How many guests may leave a node at the same time, by default.
const OUTBOUND: usize = 2;

/// Labels of a model and of a feature that no processor has.
const NO_MODEL: &str = "cpu-model-migration.node.kubevirt.io/Imaginary-v7";
const NO_FEATURE: &str = "cpu-feature.node.kubevirt.io/imaginary";

#[test]
fn a_policy_that_makes_no_sense_is_refused_by_field() {
    in_no_namespace(|namespace| {
        for (field, value) in [
            ("bandwidthPerMigration", json!("-1Mi")),
            ("completionTimeoutPerGiB", json!(-1)),
            ("maxDowntimeMs", json!(0)),
            ("selectors", json!({ "virtualMachineInstanceSelector": { "no label": "x" } })),
        ] {
            let mut policy = json!({
                "apiVersion": "migrations.kubevirt.io/v1alpha1", "kind": "MigrationPolicy",
                "metadata": { "name": "e2e-bad-policy" }, "spec": { "selectors": {} },
            });
            policy["spec"][field] = value;
            let refusal = namespace.refusal(&policy)?;
            ensure!(refusal.contains(&format!("spec.{field}")), "{refusal}");
        }
        Ok(())
    });
}

#[test]
fn a_guest_stays_while_there_is_no_room_for_its_target() {
    in_namespace("migrateroom", |namespace| {
        let guest = Guest::start(namespace, &machine("vm"), "vm")?;
        let home = node(&guest.vmi()?);
        let before = guest.count()?;
        let [(launcher, _)] = &guest.pods()?[..] else { bail!("one pod was expected") };
        let mut first = migration("first", "vm");
        first["metadata"]["annotations"] =
            json!({ "kubevirt.io/migrationUnschedulablePodTimeoutSeconds": "10" });
        first["spec"]["addedNodeSelector"] =
            json!({ "kubernetes.io/hostname": "nowhere", NO_MODEL: "true", NO_FEATURE: "true" });
        namespace.apply(&first)?;
        let target = wait::until("the target pod to be made", SOON, || {
            Ok(guest.pods()?.into_iter().map(|(pod, _)| pod).find(|pod| pod != launcher))
        })?;
        let denied = pods::evict(namespace, &target)?;
        let words = "Eviction request for target Pod";
        ensure!(denied.code != 0 && denied.text().contains(words), "{}", denied.text());
        guest.wait_migration("Failed")?;
        namespace.wait_event("first", "migrationTargetPodUnschedulable")?;
        let told = namespace.wait_event("vm", "NoSuitableNodesForHostModelMigration")?;
        ensure!(told.contains("no node is suitable to run the required CPU model"), "{told}");
        namespace.delete("vmim", "first")?;
        stays(&guest, &home, before)?;

        // A failed migration delays the next one, so the quota is for another guest.
        namespace.delete("vm", "vm")?;
        namespace.wait_gone("vmi", "vm", SOON)?;
        let guest = Guest::start(namespace, &machine("other"), "other")?;
        let home = node(&guest.vmi()?);
        let before = guest.count()?;
        pods::limit(namespace, "1")?;
        namespace.apply(&migration("second", "other"))?;
        let refused = namespace.wait("vmim", "second", "to be refused by the quota", SOON, |migration| {
            !condition(migration, "migrationRejectedByResourceQuota").is_null()
        })?;
        ensure!(refused["status"]["phase"] == "Pending", "{}", refused["status"]);
        let vmi = guest.vmi()?;
        ensure!(node(&vmi) == home && vmi["status"]["phase"] == "Running", "{}", vmi["status"]);
        pods::limit(namespace, "4")?;
        let moved = guest.wait_migration("Succeeded")?;
        ensure!(condition(&moved, "migrationRejectedByResourceQuota").is_null(), "{}", moved["status"]);
        ensure!(node(&guest.vmi()?) != home, "it is where it was");
        ensure!(guest.count()? > before, "it does not count on");
        Ok(())
    });
}

#[test]
fn no_more_guests_leave_a_node_at_the_same_time_than_allowed() {
    in_namespace("migratequeue", |namespace| {
        // One more than may leave. Nobody looks into them.
        let names: Vec<String> = (0..=OUTBOUND).map(|number| format!("vm-{number}")).collect();
        let mut home = String::new();
        for name in &names {
            let mut manifest = guest::without_system(guest::instance(name));
            if !home.is_empty() {
                // For the first pod only: the target is elsewhere.
                guest::prefer(&mut manifest, &home);
            }
            namespace.apply(&manifest)?;
            let vmi = namespace.wait("vmi", name, "to be migratable", SOON * 2, |vmi| {
                condition(vmi, "LiveMigratable")["status"] == "True"
            })?;
            home = node(&vmi);
        }
        let homes: BTreeMap<&String, String> = names
            .iter()
            .map(|name| Ok((name, node(&namespace.need("vmi", name)?))))
            .collect::<Result<_>>()?;
        ensure!(homes.values().all(|node| *node == home), "the guests are not on one node: {homes:?}");
        for name in &names {
            namespace.apply(&migration(name, name))?;
        }
        let mut most = 0;
        wait::until_true("all guests to have moved", MOVED * 2, || {
            let migrations = namespace.list("vmim")?;
            let is = |migration: &&Value, phases: &[&str]| {
                phases.contains(&migration["status"]["phase"].as_str().unwrap_or("Pending"))
            };
            let failed = migrations.iter().find(|migration| is(migration, &["Failed"]));
            ensure!(failed.is_none(), "{failed:?}");
            let over = migrations.iter().filter(|one| is(one, &["Succeeded"])).count();
            let waiting = migrations.iter().filter(|one| is(one, &["Pending"])).count();
            most = most.max(migrations.len() - over - waiting);
            Ok(over == names.len())
        })?;
        ensure!(most <= OUTBOUND, "{most} guests left the node at the same time");
        ensure!(most > 0, "no migration was seen under way");
        Ok(())
    });
}
