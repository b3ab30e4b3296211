//! A node loses power: its instances are reported, and run elsewhere once the node is known to be gone. What a
//! guest has synced is still there.

mod fills;
mod synced;

use anyhow::{Context, Result, ensure};
use barevirt_e2e::cdi::{Absent, DATA_VOLUMES};
use barevirt_e2e::command::{kubectl, object, objects};
use barevirt_e2e::harm::component_is_ready;
use barevirt_e2e::installation::{Changed, wait_available};
use barevirt_e2e::moving_guest::{self, Guest};
use barevirt_e2e::slow_moves::SlowMoves;
use barevirt_e2e::wait::{self, MOVED, RUNNING, SOON};
use barevirt_e2e::{Namespace, Node, alone, condition, guest, in_namespace, local_volume, pods};
use serde_json::{Value, json};
use std::time::Duration;

/// Starts the node again, however the test ends.
struct PowerCut<'a>(&'a Node);

impl<'a> PowerCut<'a> {
    fn of(node: &'a Node) -> Result<Self> {
        let cut = Self(node);
        node.cut_power()?;
        Ok(cut)
    }

    fn end(&self) -> Result<()> {
        self.0.start()?;
        kubectl(&["taint", "node", self.0.name(), "node.kubernetes.io/out-of-service-", "--overwrite"]).ok();
        wait::until_true("the node to be ready again", SOON, || Ok(is_ready(self.0.name())? == Some(true)))
    }
}

impl Drop for PowerCut<'_> {
    fn drop(&mut self) {
        if let Err(error) = self.end() {
            eprintln!("node {} does not come back: {error:#}", self.0.name());
        }
    }
}

/// Makes the controller treat a silent node as lost after seconds, not minutes, until the value is dropped.
fn short_grace() -> Result<Changed> {
    let flags = json!({"customizeComponents": {"flags": {"controller": {"node-grace-seconds": "20"}}}});
    let changed = Changed::begin(&flags)?;
    wait_available()?;
    Ok(changed)
}

/// The node that virt-api is on. Without virt-api our objects cannot be written, so another node is switched
/// off.
fn node_of_api() -> Result<String> {
    let pods = objects(&["pod", "-n", "kubevirt", "-l", "kubevirt.io=virt-api"])?;
    let node = pods.iter().find_map(|pod| pod["spec"]["nodeName"].as_str());
    Ok(node.context("virt-api is on no node")?.to_owned())
}

/// A guest that does not start on that node, if there is another one.
fn away_from_api(manifest: Value) -> Result<Value> {
    placed(manifest, "NotIn")
}

/// A guest that starts on that node, so that others are switched off.
fn beside_api(manifest: Value) -> Result<Value> {
    placed(manifest, "In")
}

fn placed(mut manifest: Value, operator: &str) -> Result<Value> {
    guest::spec_of(&mut manifest)["affinity"] = json!({ "nodeAffinity": {
        "preferredDuringSchedulingIgnoredDuringExecution": [{ "weight": 100, "preference": { "matchExpressions": [{
            "key": "kubernetes.io/hostname", "operator": operator, "values": [node_of_api()?],
        }] } }],
    } });
    Ok(manifest)
}

fn is_ready(node: &str) -> Result<Option<bool>> {
    let Some(node) = object(&["node", node])? else { return Ok(None) };
    let conditions = node["status"]["conditions"].as_array().cloned().unwrap_or_default();
    let ready = conditions.iter().find(|condition| condition["type"] == "Ready").cloned();
    Ok(ready.map(|condition| condition["status"] == "True"))
}

/// Replicas are useful only if they are not on the same node.
fn a_controller_is_elsewhere(node: &Node) -> Result<()> {
    let controllers = objects(&["pod", "-n", "kubevirt", "-l", "kubevirt.io=virt-controller"])?;
    let elsewhere = controllers.iter().filter(|pod| pod["spec"]["nodeName"] != node.name()).count();
    ensure!(elsewhere > 0, "all of virt-controller is on {}, nobody would be left to notice", node.name());
    Ok(())
}

/// Whether the cluster has the two nodes that these tests take; says so if it has not.
fn has_two_nodes() -> bool {
    let nodes = objects(&["nodes"]).map(|nodes| nodes.len()).unwrap_or_default();
    if nodes < 2 {
        eprintln!("not run: the cluster has {nodes} node, this takes two");
    }
    nodes >= 2
}

fn uid(object: &Value) -> String {
    object["metadata"]["uid"].as_str().unwrap_or_default().to_owned()
}

#[test]
fn a_machine_runs_elsewhere_once_its_node_is_known_to_be_off() {
    if !has_two_nodes() {
        return;
    }
    in_namespace("nodeloss", |namespace| {
        let _alone = alone();
        let mut manifest = away_from_api(guest::machine("vm", "Always"))?;
        guest::spec_of(&mut manifest)["tolerations"] = json!([{
            "key": "node.kubernetes.io/unreachable", "operator": "Exists",
            "effect": "NoExecute", "tolerationSeconds": 5,
        }]);
        let _short = short_grace()?;
        namespace.apply(&manifest)?;
        let before = namespace.wait_phase("vm", "Running", RUNNING)?;
        let launcher = namespace.launcher("vm")?;
        let node = Node::of(&launcher)?;

        a_controller_is_elsewhere(&node)?;

        let cut = PowerCut::of(&node)?;
        wait::until_true("the node to be not ready", SOON, || Ok(is_ready(node.name())? == Some(false)))?;
        let vmi = namespace.wait("vmi", "vm", "to be reported as lost", Duration::from_secs(180), |vmi| {
            vmi["status"]["reason"] == "NodeUnresponsive"
        })?;
        ensure!(uid(&vmi) == uid(&before), "nothing starts while the old guest may still run");
        ensure!(vmi["status"]["phase"] == "Failed", "{}", vmi["status"]);

        // Only an administrator can confirm that the node is off.
        let taint = "node.kubernetes.io/out-of-service=nodeshutdown:NoExecute";
        kubectl(&["taint", "node", node.name(), taint, "--overwrite"])?;
        let after = namespace.wait("vmi", "vm", "to run elsewhere", Duration::from_secs(180), |vmi| {
            uid(vmi) != uid(&before) && vmi["status"]["phase"] == "Running"
        })?;
        let elsewhere = after["status"]["nodeName"].as_str().context("it is on no node")?;
        ensure!(elsewhere != node.name(), "it runs on the node that is off");

        cut.end()?;
        // Nothing is left of the old instance: no pod object and no process.
        let pods = namespace.list("pod")?;
        ensure!(pods.iter().all(|pod| uid(pod) != uid(&launcher)), "the old pod is still there");
        ensure!(node.processes(&launcher, "qemu-system-x86_64")?.is_empty(), "the old QEMU runs");
        Ok(())
    });
}

/// Waits until the guest is on its way, and returns what is recorded of that.
fn on_its_way(namespace: &Namespace) -> Result<Value> {
    let state = |vmi: &Value| vmi["status"]["migrationState"].clone();
    let moving = |vmi: &Value| state(vmi)["startTimestamp"].is_string();
    let vmi = namespace.wait("vmi", "vm", "to be on its way", MOVED, moving)?;
    ensure!(state(&vmi)["completed"].is_null(), "it has moved already: {}", vmi["status"]);
    Ok(state(&vmi))
}

#[test]
fn a_migration_ends_when_the_node_of_its_source_is_off() {
    if !has_two_nodes() {
        return;
    }
    in_namespace("lostsource", |namespace| {
        let _alone = alone();
        let _short = short_grace()?;
        namespace.apply(&away_from_api(guest::movable(guest::instance("vm")))?)?;
        namespace.wait_phase("vm", "Running", RUNNING)?;
        let node = Node::of(&namespace.launcher("vm")?)?;
        a_controller_is_elsewhere(&node)?;
        let _slow = SlowMoves::begin(namespace, "256Ki")?;
        namespace.apply(&json!({
            "apiVersion": "kubevirt.io/v1", "kind": "VirtualMachineInstanceMigration",
            "metadata": { "name": "away" }, "spec": { "vmiName": "vm" },
        }))?;
        on_its_way(namespace)?;

        let cut = PowerCut::of(&node)?;
        let within = Duration::from_secs(300);
        let failed = |vmim: &Value| vmim["status"]["phase"] == "Failed";
        namespace.wait("vmim", "away", "to fail", within, failed)?;
        let vmi = namespace.wait("vmi", "vm", "to be reported as lost", within, |vmi| {
            vmi["status"]["reason"] == "NodeUnresponsive"
        })?;
        ensure!(vmi["status"]["phase"] == "Failed" && vmi["status"]["nodeName"] == node.name(), "{vmi}");
        cut.end()
    });
}

#[test]
fn a_guest_stays_when_the_node_of_its_target_is_off_and_moves_once_it_is_back() {
    if !has_two_nodes() {
        return;
    }
    in_namespace("losttarget", |namespace| {
        let _alone = alone();
        let _short = short_grace()?;
        let guest = Guest::start(namespace, &beside_api(moving_guest::machine("vm"))?, "vm")?;
        let home = moving_guest::node(&guest.vmi()?);
        ensure!(home == node_of_api()?, "virt-api is not on {home}, which stays");
        let slow = SlowMoves::begin(namespace, "256Ki")?;
        namespace.apply(&moving_guest::migration("away", "vm"))?;
        let state = on_its_way(namespace)?;
        let node = Node::named(state["targetNode"].as_str().context("it moves to no node")?);
        a_controller_is_elsewhere(&node)?;
        let before = guest.count()?;

        let cut = PowerCut::of(&node)?;
        let failed = |vmim: &Value| vmim["status"]["phase"] == "Failed";
        let ended = namespace.wait("vmim", "away", "to fail", Duration::from_secs(300), failed)?;
        let why = ended["status"]["migrationState"]["failureReason"].as_str().unwrap_or_default();
        ensure!(!why.is_empty(), "it does not say why: {}", ended["status"]);
        let vmi = guest.vmi()?;
        ensure!(moving_guest::node(&vmi) == home && vmi["status"]["phase"] == "Running", "{}", vmi["status"]);
        guest.goes_on(before)?;

        cut.end()?;
        drop(slow);
        component_is_ready("virt-handler")?;
        namespace.delete("vmim", "away")?;
        let before = guest.count()?;
        namespace.apply(&moving_guest::migration("later", "vm"))?;
        guest.wait_migration("Succeeded")?;
        ensure!(moving_guest::node(&guest.vmi()?) != home, "it is still on {home}");
        guest.goes_on(before)
    });
}

/// Makes something while no pod is placed on that node.
fn away_from<T>(node: &str, make: impl FnOnce() -> Result<T>) -> Result<T> {
    kubectl(&["cordon", node])?;
    let made = make();
    kubectl(&["uncordon", node])?;
    made
}

/// Waits for the end of what fills a DataVolume, which has to succeed.
fn filled(namespace: &Namespace, name: &str) -> Result<()> {
    let ended = namespace.wait(DATA_VOLUMES, name, "to end", RUNNING * 2, |volume| {
        ["Succeeded", "Failed"].iter().any(|phase| volume["status"]["phase"] == *phase)
    })?;
    ensure!(ended["status"]["phase"] == "Succeeded", "{name}: {}", ended["status"]);
    Ok(())
}

/// Bytes of the disk that is imported: enough for some seconds.
const IMPORTED: u64 = 600 << 20;

#[test]
fn an_import_whose_node_was_off_is_completed_there() {
    if !has_two_nodes() {
        return;
    }
    in_namespace("importloss", |namespace| {
        let _alone = alone();
        let _absent = Absent::prepare()?;
        let stays = node_of_api()?;
        let mut server = pods::pod(
            "web",
            &[
                "sh",
                "-c",
                &format!(
                    "mkdir /tmp/www; head -c {IMPORTED} /dev/urandom >/tmp/www/disk; exec httpd -f -p 8080 -h /tmp/www"
                ),
            ],
        );
        server["spec"]["nodeName"] = json!(stays);
        server["spec"]["containers"][0]["readinessProbe"] =
            json!({ "tcpSocket": { "port": 8080 }, "periodSeconds": 1 });
        namespace.apply(&server)?;
        namespace.apply(&json!({
            "apiVersion": "v1", "kind": "Service", "metadata": { "name": "web" },
            "spec": { "selector": { "app": "web" }, "ports": [{ "port": 80, "targetPort": 8080 }] },
        }))?;
        namespace
            .wait("pod", "web", "to be ready", RUNNING, |pod| condition(pod, "Ready")["status"] == "True")?;
        let digest = namespace.kubectl(&["exec", "web", "--", "sha256sum", "/tmp/www/disk"])?;
        let digest = digest.split(' ').next().unwrap_or_default().to_owned();

        let volume = json!({
            "apiVersion": "cdi.kubevirt.io/v1beta1", "kind": "DataVolume",
            "metadata": {
                "name": "disk", "annotations": { "cdi.kubevirt.io/storage.bind.immediate.requested": "true" },
            },
            "spec": {
                "source": { "http": { "url": format!("http://web.{}.svc/disk", namespace.name()) } },
                "storage": { "resources": { "requests": { "storage": "1Gi" } } },
            },
        });
        let importer = away_from(&stays, || {
            namespace.apply(&volume)?;
            namespace
                .wait("pod", "importer-disk", "to run", RUNNING, |pod| pod["status"]["phase"] == "Running")
        })?;
        let node = Node::of(&importer)?;
        ensure!(node.name() != stays, "the importer is on the node that stays");
        namespace.wait(DATA_VOLUMES, "disk", "to have a part of its disk", SOON, |volume| {
            let progress = volume["status"]["progress"].as_str().unwrap_or_default();
            progress.trim_end_matches('%').parse::<f64>().is_ok_and(|percent| percent > 1.0 && percent < 95.0)
        })?;
        let cut = PowerCut::of(&node)?;
        wait::until_true("the node to be not ready", SOON, || Ok(is_ready(node.name())? == Some(false)))?;
        let volume = namespace.need(DATA_VOLUMES, "disk")?;
        ensure!(volume["status"]["phase"] == "ImportInProgress", "{}", volume["status"]);
        cut.end()?;
        filled(namespace, "disk")?;
        ensure!(local_volume::digest(namespace, "disk", IMPORTED)? == digest, "the disk has other contents");
        Ok(())
    });
}
