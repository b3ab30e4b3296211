//! Kills daemons with signal 9, which no guest may notice, and no connection to one, and no claim that is being filled, and no card
//! that comes or goes.

mod held;

use anyhow::{Context, Result, anyhow, ensure};
use barevirt_e2e::cdi::{Absent, DATA_VOLUMES};
use barevirt_e2e::command::{objects, sha256};
use barevirt_e2e::counting::Counting;
use barevirt_e2e::harm::{component_is_ready, kill_daemon, kill_kubernetes_api};
use barevirt_e2e::moving_volume::boot;
use barevirt_e2e::networks::{self, Left};
use barevirt_e2e::slow_moves::SlowMoves;
use barevirt_e2e::upload_proxy::{self, Sender};
use barevirt_e2e::wait::{self, MOVED, RUNNING, SOON};
use barevirt_e2e::{
    Console, Namespace, Node, alone, guest, handlers, in_namespace, installation, local_volume, undisturbed,
};
use serde_json::{Value, json};
use std::fs;
use std::sync::RwLockWriteGuard;
use std::thread;
use std::time::Duration;

fn uid(object: &Value) -> String {
    object["metadata"]["uid"].as_str().unwrap_or_default().to_owned()
}

/// A guest that counts, started while no test disturbs others.
fn counting(namespace: &Namespace, name: &str) -> Result<(Value, Counting)> {
    let _undisturbed = undisturbed();
    namespace.apply(&guest::with_user_data(guest::instance(name), guest::COUNTING))?;
    let vmi = namespace.wait_phase(name, "Running", RUNNING)?;
    Ok((vmi, Counting::of(namespace, name)?))
}

/// Checks that the guest's count goes on without a gap, in one boot, while `disturb` runs.
fn guest_counts_through(namespace: &Namespace, disturb: impl FnOnce() -> Result<()>) -> Result<()> {
    let (vmi, counting) = counting(namespace, "vm")?;
    let _alone = alone();
    disturb()?;
    counting.goes_on()?;
    let after = namespace.need("vmi", "vm")?;
    ensure!(uid(&after) == uid(&vmi) && after["status"]["phase"] == "Running", "{}", after["status"]);
    // The guest is still managed: its console works, and it stops on request.
    Console::open(namespace, "vm")?.expect("tick ", SOON)?;
    namespace.begin_delete("vmi", "vm")?;
    namespace.wait_gone("vmi", "vm", SOON)
}

// One kill for both tests, since the kubelet's pause grows with each restart.
#[test]
fn running_and_paused_guests_survive_the_death_of_the_handler() {
    in_namespace("killhandler", |namespace| {
        let (_, paused) = counting(namespace, "paused")?;
        let is_paused = |vmi: &Value| {
            let conditions = vmi["status"]["conditions"].as_array().cloned().unwrap_or_default();
            conditions.iter().any(|one| one["type"] == "Paused" && one["reason"] == "PausedByUser")
        };
        guest_counts_through(namespace, || {
            namespace.virtctl(&["pause", "vmi", "paused"])?;
            namespace.wait("vmi", "paused", "to be paused", SOON, is_paused)?;
            installation::kill("virt-handler")?;
            component_is_ready("virt-handler")?;
            paused.stands_still()?;
            ensure!(is_paused(&namespace.need("vmi", "paused")?), "it is not said to be paused any more");
            // The new handler can unpause it.
            wait::until_true("the new handler to know the guest", SOON, || {
                Ok(namespace.try_virtctl(&["unpause", "vmi", "paused"])?.code == 0)
            })?;
            paused.goes_on()
        })
    });
}

#[test]
fn a_guest_does_not_notice_the_death_of_controllers_and_apis() {
    in_namespace("killcontrol", |namespace| {
        guest_counts_through(namespace, || {
            installation::kill("virt-controller")?;
            installation::kill("virt-api")?;
            kill_kubernetes_api()?;
            component_is_ready("virt-controller")?;
            component_is_ready("virt-api")
        })
    });
}

/// What the pod's link on the network `red` is called while it is a port of a bridge; the digits are of the name's SHA-256.
/// Other steps come before and after that in which it gets this name or loses it.
const PORT: &str = "b1f51a511f1-nic";
/// MAC address of the card.
const MAC: &str = "02:00:00:81:00:01";

/// Makes a change, and kills the handler in the moment in which the pod's link becomes a port of a bridge, or is none any more.
fn handler_dies_during(pod: &Left, becomes: bool, change: impl FnOnce() -> Result<()>) -> Result<()> {
    let handler = handlers::process(&pod.node)?;
    // The shell starts no program for this, so it sees the link within microseconds.
    let is_there = format!("while read -r line; do case $line in {PORT}:*) return 0 ;; esac; done");
    let (links, until) = (pod.links_file(), if becomes { "is_there" } else { "! is_there" });
    let script = format!(
        "timeout 60 sh -c 'is_there() {{ {is_there} <{links}; return 1; }}; until {until}; do :; done; kill -KILL {handler}'"
    );
    thread::scope(|scope| {
        let killed = scope.spawn(|| pod.node.sh(&script));
        change()?;
        killed.join().map_err(|_| anyhow!("the thread that kills has panicked"))?.map(drop)
    })
}

#[test]
fn a_card_of_the_test_beds_delegate_comes_and_goes_although_the_handler_is_killed_between_the_steps() {
    in_namespace("killcard", |namespace| {
        let guests = undisturbed();
        let range = json!({ "type": "host-local", "ranges": [[{ "subnet": "10.81.0.0/24" }]] });
        networks::define(namespace, "leased", &json!({ "ipam": range }))?;
        let neighbour = networks::neighbour(namespace, "leased")?;
        let mut machine = guest::machine("vm", "Always");
        guest::spec_of(&mut machine)["nodeSelector"] = json!({ "kubernetes.io/hostname": "node01" });
        Console::boot(namespace, &machine)?.leave()?;
        drop(guests);
        let _alone = alone();
        component_is_ready("virt-handler")?;
        let before = uid(&namespace.need("vmi", "vm")?);
        let pod = Left::of(&namespace.launcher("vm")?)?;
        let links = pod.links_of_pod()?.lines().count();
        handler_dies_during(&pod, true, || networks::plug(namespace, "vm", ("red", "leased"), Some(MAC)))?;
        wait::until_true("the guest to have the card", RUNNING * 2, || {
            let card = networks::card_status(namespace, "vm", "red");
            Ok(card.is_ok_and(|card| card["infoSource"] == "domain, multus-status"))
        })?;
        // The console is a stream through the handler.
        let mut console = Console::open(namespace, "vm")?;
        console.login(SOON)?;
        console.ok(&format!("grep -q {MAC} /sys/class/net/eth1/address && ip link set eth1 up"), SOON)?;
        console.ok("udhcpc -i eth1 -q -n -t 10 -T 1 -s /etc/udhcpc.script", SOON)?;
        let answer = console.ok(&format!("timeout 20 wget -qO- http://{neighbour}:8080/"), SOON)?;
        ensure!(answer == "neighbour", "{answer}");
        console.leave()?;

        handler_dies_during(&pod, false, || networks::set_state(namespace, "vm", 1, "absent"))?;
        namespace.wait("vmi", "vm", "to have one card", RUNNING * 2, |vmi| {
            let cards = |list: &Value| list.as_array().map_or(0, Vec::len);
            cards(&vmi["status"]["interfaces"]) == 1
                && cards(&vmi["spec"]["domain"]["devices"]["interfaces"]) == 1
        })?;
        let after = pod.links_of_pod()?;
        ensure!(after.lines().count() == links, "the card has left something in the pod: {after}");
        ensure!(uid(&namespace.need("vmi", "vm")?) == before, "another instance");
        component_is_ready("virt-handler")
    });
}

#[test]
fn a_claim_is_filled_once_while_controllers_die() {
    in_namespace("killfilling", |namespace| {
        let preparing = undisturbed();
        let _absent = Absent::prepare()?;
        let source = json!({ "apiGroup": "cdi.kubevirt.io", "kind": "VolumeImportSource", "name": "empty" });
        namespace.apply(&json!({
            "apiVersion": "cdi.kubevirt.io/v1beta1", "kind": "VolumeImportSource", "metadata": { "name": "empty" },
            "spec": { "source": { "blank": {} } },
        }))?;
        drop(preparing);
        let disturbing = alone();
        namespace.apply(&json!({
            "apiVersion": "v1", "kind": "PersistentVolumeClaim",
            "metadata": {
                "name": "disk", "annotations": { "cdi.kubevirt.io/storage.bind.immediate.requested": "" },
            },
            "spec": {
                "accessModes": ["ReadWriteOnce"], "resources": { "requests": { "storage": "16Mi" } },
                "dataSourceRef": source,
            },
        }))?;
        let claim = namespace.need("pvc", "disk")?;
        let prime = format!("populator-{}", uid(&claim));
        // The first time as soon as it is filled at all, the second time about when its volume becomes the claim's.
        let made = namespace.wait(DATA_VOLUMES, &prime, "to be made", SOON, |_| true)?;
        installation::kill("virt-controller")?;
        component_is_ready("virt-controller")?;
        wait::until_true("the claim to be filled", RUNNING, || {
            let claim = namespace.need("pvc", "disk")?;
            Ok(claim["metadata"]["annotations"]["cdi.kubevirt.io/storage.pod.phase"] == "Succeeded")
        })?;
        let filled = namespace.get(DATA_VOLUMES, &prime)?;
        ensure!(filled.is_none_or(|filled| uid(&filled) == uid(&made)), "it was filled twice");
        installation::kill("virt-controller")?;
        component_is_ready("virt-controller")?;
        // The other tests go on, but kill nothing yet.
        let _undisturbed = RwLockWriteGuard::downgrade(disturbing);
        namespace.wait("pvc", "disk", "to be bound", RUNNING, |claim| claim["status"]["phase"] == "Bound")?;
        namespace.wait_gone(DATA_VOLUMES, &prime, SOON)?;
        wait::until_true("the claim's volume to be the only one", SOON, || {
            let all = objects(&["pv"])?;
            let own = all.iter().filter(|volume| volume["spec"]["claimRef"]["namespace"] == namespace.name());
            Ok(own.count() == 1)
        })
    });
}

/// Length in bytes of an image that is sent within eight seconds.
const IMAGE: usize = 8 << 20;

#[test]
fn an_upload_goes_on_where_it_was_when_virt_api_died() {
    in_namespace("killupload", |namespace| {
        let preparing = undisturbed();
        let _absent = Absent::prepare()?;
        let image = tempfile::NamedTempFile::new()?;
        let mut bytes = vec![0_u8; IMAGE];
        fastrand::fill(&mut bytes);
        fs::write(image.path(), &bytes)?;
        namespace.apply(&upload_proxy::data_volume("disk", "32Mi"))?;
        namespace.wait(DATA_VOLUMES, "disk", "to be ready", RUNNING, |volume| {
            volume["status"]["phase"] == "UploadReady"
        })?;
        drop(preparing);
        let disturbing = alone();
        component_is_ready("virt-api")?;
        let sender = Sender::into_claim(namespace, "disk")?;
        let path = image.path();
        let broken = thread::scope(|scope| {
            let slowly = ["--limit-rate", "1M", "--max-time", "60"];
            let sent = scope.spawn(move || sender.send_named(&slowly, path));
            let moment = Duration::from_millis(fastrand::u64(2000..6000));
            println!("virt-api is killed after {moment:?}");
            thread::sleep(moment);
            let killed = installation::kill("virt-api");
            let sent = sent.join().map_err(|_| anyhow!("the sender panicked"))?;
            killed.and(sent)
        })?;
        ensure!(!broken.text().ends_with("200"), "it has arrived before virt-api died: {broken:?}");
        component_is_ready("virt-api")?;
        // The other tests go on, but kill nothing yet.
        let _undisturbed = RwLockWriteGuard::downgrade(disturbing);
        let sender = Sender::into_claim(namespace, "disk")?;
        let arrived = sender.arrived(IMAGE)?;
        ensure!((1..IMAGE).contains(&arrived), "{arrived} bytes have arrived");
        let rest = sender.send_rest(arrived, path)?;
        ensure!(rest.text().ends_with("200"), "{rest:?}");
        namespace.wait(DATA_VOLUMES, "disk", "to be filled", SOON, |volume| {
            volume["status"]["phase"] == "Succeeded"
        })?;
        let found = local_volume::digest(namespace, "disk", IMAGE as u64)?;
        ensure!(found == sha256(path)?, "the disk has other contents");
        Ok(())
    });
}

#[test]
fn a_guest_does_not_notice_the_death_of_kubelet_and_containerd() {
    in_namespace("killnode", |namespace| {
        guest_counts_through(namespace, || {
            for node in objects(&["node"])? {
                let node = Node::named(node["metadata"]["name"].as_str().context("a node without a name")?);
                kill_daemon(&node, "containerd")?;
                kill_daemon(&node, "kubelet")?;
            }
            component_is_ready("virt-handler")
        })
    });
}

#[test]
fn a_guest_moves_on_while_kubelets_and_containerds_die() {
    in_namespace("killmoving", |namespace| {
        let (vmi, before, slow) = {
            let _undisturbed = undisturbed();
            namespace.apply(&guest::movable(guest::machine("vm", "Always")))?;
            let vmi = namespace.wait_phase("vm", "Running", RUNNING)?;
            // At this rate the guest's memory takes half a minute.
            (vmi, boot(namespace)?, SlowMoves::begin(namespace, "1Mi")?)
        };
        // Other tests are waited for before the move begins, or it would be over by then.
        let disturbing = alone();
        namespace.virtctl(&["migrate", "vm"])?;
        namespace.wait("vmi", "vm", "to be on its way", MOVED, |vmi| {
            vmi["status"]["migrationState"]["startTimestamp"].is_string()
        })?;
        for node in objects(&["node"])? {
            let node = Node::named(node["metadata"]["name"].as_str().context("a node without a name")?);
            kill_daemon(&node, "kubelet")?;
            kill_daemon(&node, "containerd")?;
        }
        let state = &namespace.need("vmi", "vm")?["status"]["migrationState"];
        ensure!(state["completed"].is_null(), "it has moved before the daemons were back: {state}");
        component_is_ready("virt-handler")?;
        // The other tests go on, but kill nothing until it has moved.
        let _undisturbed = RwLockWriteGuard::downgrade(disturbing);
        let moved = namespace.wait("vmi", "vm", "to have moved", MOVED, |vmi| {
            vmi["status"]["migrationState"]["completed"] == true
        })?;
        drop(slow);
        ensure!(uid(&moved) == uid(&vmi) && moved["status"]["phase"] == "Running", "{}", moved["status"]);
        ensure!(moved["status"]["nodeName"] != vmi["status"]["nodeName"], "{}", moved["status"]);
        ensure!(boot(namespace)? == before, "it has booted again");
        Ok(())
    });
}
