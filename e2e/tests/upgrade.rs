//! Updates from one version to another and back, with running machines. The other version is the same images
//! under a second tag.
//!
//! Every test changes the installation, so this file runs alone, and its tests run one after the other.

use anyhow::{Context, Result, ensure};
use barevirt_e2e::command::{kubectl, objects, repository, try_virtctl, virtctl};
use barevirt_e2e::counting::Counting;
use barevirt_e2e::installation::{
    self, Changed, NAMESPACE, ROLLOUT, condition, is_available, kubevirt, wait_available,
};
use barevirt_e2e::wait::{self, RUNNING, SOON};
use barevirt_e2e::{Console, Namespace, Node, alone, guest, in_namespace};
use serde_json::{Value, json};
use std::time::{Duration, Instant};

/// The second tag.
const TAG: &str = "next-version";
/// The images that get the tag.
const IMAGES: [&str; 5] = ["virt-operator", "virt-api", "virt-controller", "virt-handler", "virt-launcher"];
/// Time for an update whose operator is killed repeatedly: each new leader first waits for the lease.
const WITH_KILLS: Duration = Duration::from_secs(600);
/// Time until outdated machines are counted, which happens four times a minute.
const COUNTED: Duration = Duration::from_secs(120);

/// The tag of a version whose launcher has another QEMU; its launcher is an image of its own.
const OTHER_QEMU: &str = "another-qemu";
/// A machine type that both versions of QEMU have.
const MACHINE_TYPE: &str = "pc-q35-10.0";

/// Gives all images the second tag, on every node.
fn tag_images() -> Result<()> {
    tag(TAG, &IMAGES)
}

/// Gives these images another tag, on every node.
fn tag(another: &str, images: &[&str]) -> Result<()> {
    let status = wait_available()?["status"].clone();
    let registry = status["observedKubeVirtRegistry"].as_str().context("no registry")?.to_owned();
    let tag = status["observedKubeVirtVersion"].as_str().context("no version")?.to_owned();
    ensure!(tag != another, "a test before this one has not cleaned up");
    for node in objects(&["node"])? {
        let node = Node::named(node["metadata"]["name"].as_str().context("a node without a name")?);
        for image in images {
            let image = format!("{registry}/{image}");
            node.sh(&format!("ctr -n k8s.io images tag --force {image}:{tag} {image}:{another}"))?;
        }
        // The kubelet uses containerd's CRI plugin, which learns of new names a moment later.
        wait::until_true("the node to know the images", SOON, || {
            let known = node.sh("ctr -n k8s.io images ls -q")?;
            Ok(images.iter().all(|image| known.contains(&format!("{image}:{another}"))))
        })?;
    }
    Ok(())
}

/// The state of one component at one moment.
struct ComponentState {
    new: bool,
    rolled_out: bool,
    object: Value,
}

fn components() -> Result<[ComponentState; 3]> {
    let all = objects(&["daemonset,deployment", "-n", NAMESPACE])?;
    let find = |name: &str| -> Result<ComponentState> {
        let object = all.iter().find(|object| object["metadata"]["name"] == name);
        let object = object.with_context(|| format!("no {name}"))?.clone();
        let image = object["spec"]["template"]["spec"]["containers"][0]["image"].clone();
        let status = &object["status"];
        let seen = status["observedGeneration"] == object["metadata"]["generation"];
        let number = |field: &str| status[field].as_i64().unwrap_or(0);
        let rolled_out = seen
            && if object["kind"] == "DaemonSet" {
                let wanted = number("desiredNumberScheduled");
                number("updatedNumberScheduled") == wanted && number("numberReady") == wanted
            } else {
                let wanted = object["spec"]["replicas"].as_i64().unwrap_or(1);
                number("updatedReplicas") == wanted
                    && number("replicas") == wanted
                    && number("availableReplicas") > 0
            };
        let new = image.as_str().is_some_and(|image| image.ends_with(&format!(":{TAG}")));
        Ok(ComponentState { new, rolled_out, object })
    };
    Ok([find("virt-handler")?, find("virt-controller")?, find("virt-api")?])
}

/// Watches an update to its end: each component begins when the one before it is done, and virt-handler with one pod.
fn follow_update() -> Result<()> {
    let deadline = Instant::now() + ROLLOUT;
    let mut one_first = false;
    loop {
        let [handler, controller, api] = components()?;
        one_first |=
            handler.new && handler.object["spec"]["updateStrategy"]["rollingUpdate"]["maxUnavailable"] == 1;
        ensure!(
            !controller.new || (handler.new && handler.rolled_out),
            "virt-controller before virt-handler"
        );
        ensure!(!api.new || (controller.new && controller.rolled_out), "virt-api before virt-controller");
        if api.new && kubevirt()?.as_ref().is_some_and(is_available) {
            ensure!(one_first, "virt-handler was not replaced on one node first");
            let strategy = &handler.object["spec"]["updateStrategy"]["rollingUpdate"]["maxUnavailable"];
            ensure!(*strategy == "10%", "in the end it is {strategy}");
            return Ok(());
        }
        ensure!(Instant::now() < deadline, "the update is not done: {}", conditions()?);
        std::thread::sleep(Duration::from_millis(200));
    }
}

fn conditions() -> Result<Value> {
    Ok(kubevirt()?.context("there is no KubeVirt")?["status"]["conditions"].clone())
}

fn wait_outdated(what: &str, wanted: impl Fn(i64) -> bool) -> Result<()> {
    wait::until_true(&format!("{what} outdated workloads to be counted"), COUNTED, || {
        let kubevirt = kubevirt()?.context("there is no KubeVirt")?;
        Ok(kubevirt["status"]["outdatedVirtualMachineInstanceWorkloads"].as_i64().is_some_and(&wanted))
    })
}

fn is_labelled(vmi: &Value) -> bool {
    vmi["metadata"]["labels"].get("kubevirt.io/outdatedLauncherImage").is_some()
}

#[test]
fn a_guest_runs_on_through_an_update_and_the_way_back() {
    in_namespace("upgrade", |namespace| {
        let _alone = alone();
        tag_images()?;
        namespace.apply(&guest::with_user_data(guest::machine("vm", "Always"), guest::COUNTING))?;
        let vmi = namespace.wait_phase("vm", "Running", RUNNING)?;
        let counting = Counting::of(namespace, "vm")?;
        {
            let _next = Changed::begin(&json!({"imageTag": TAG}))?;
            follow_update()?;
            counting.goes_on()?;
            wait_outdated("some", |count| count >= 1)?;
            namespace.wait("vmi", "vm", "to be labelled as outdated", SOON, is_labelled)?;
            // A new instance has a launcher of the new version.
            namespace.apply(&guest::instance("new"))?;
            let new = namespace.wait_phase("new", "Running", RUNNING)?;
            let image =
                new["status"]["launcherContainerImageVersion"].as_str().unwrap_or_default().to_owned();
            ensure!(image.ends_with(&format!(":{TAG}")), "{image}");
            namespace.delete("vmi", "new")?;
        }
        // Dropping it goes back, and waits until everything runs again.
        ensure!(components()?.iter().all(|seen| !seen.new && seen.rolled_out));
        namespace.wait("vmi", "vm", "not to be outdated any more", COUNTED, |vmi| !is_labelled(vmi))?;
        wait_outdated("no", |count| count == 0)?;
        counting.goes_on()?;
        let after = namespace.need("vmi", "vm")?;
        ensure!(after["metadata"]["uid"] == vmi["metadata"]["uid"], "it is another instance");
        Console::open(namespace, "vm")?.expect("tick ", SOON).map(drop)
    });
}

#[test]
fn outdated_machines_are_restarted_where_the_kubevirt_object_says_so() {
    in_namespace("evict", |namespace| {
        let _alone = alone();
        tag_images()?;
        namespace.apply(&guest::machine("vm", "Always"))?;
        let before = namespace.wait_phase("vm", "Running", RUNNING)?;
        let _next = Changed::begin(&json!({
            "imageTag": TAG,
            "workloadUpdateStrategy": {"workloadUpdateMethods": ["Evict"], "batchEvictionInterval": "5s"},
        }))?;
        wait_available()?;
        let after = namespace.wait("vmi", "vm", "to be another one that runs", COUNTED, |vmi| {
            vmi["metadata"]["uid"] != before["metadata"]["uid"] && vmi["status"]["phase"] == "Running"
        })?;
        let image = after["status"]["launcherContainerImageVersion"].as_str().unwrap_or_default();
        ensure!(image.ends_with(&format!(":{TAG}")), "{image}");
        wait_outdated("no", |count| count == 0)
    });
}

/// The version of QEMU that runs a machine, such as 10.0.
fn qemu_version(namespace: &Namespace, vmi: &str) -> Result<String> {
    let answer: Value = serde_json::from_str(&namespace.virtctl(&["qmp", vmi, "query-version"])?)?;
    ensure!(answer["qemu"]["major"].is_u64(), "{answer}");
    Ok(format!("{}.{}", answer["qemu"]["major"], answer["qemu"]["minor"]))
}

/// The machine type that QEMU made, such as `pc-q35-10.0-machine`.
fn machine_type(namespace: &Namespace, vmi: &str) -> Result<String> {
    namespace.virtctl(&["qmp", vmi, "qom-get", "path=/machine", "property=type"])
}

/// Checks that the guest counts on and has not booted again.
fn goes_on(namespace: &Namespace, boot: &str) -> Result<()> {
    let counting = Counting::of(namespace, "vm")?;
    ensure!(counting.boot()? == boot, "the guest has booted again");
    counting.goes_on()
}

/// Waits until the machine runs with a launcher of that tag, whose QEMU has another version than `former`.
fn moved_to(namespace: &Namespace, tag: &str, former: &str) -> Result<String> {
    namespace.wait("vmi", "vm", "to run with the other launcher", COUNTED, |vmi| {
        let image = vmi["status"]["launcherContainerImageVersion"].as_str().unwrap_or_default();
        image.ends_with(&format!(":{tag}")) && vmi["status"]["migrationState"]["completed"] == true
    })?;
    let version = qemu_version(namespace, "vm")?;
    ensure!(version != former, "both launchers have QEMU {version}");
    ensure!(machine_type(namespace, "vm")?.contains(MACHINE_TYPE), "the guest's machine type has changed");
    Ok(version)
}

/// It starts with the newer one. What starts with QEMU 10.0.13 cannot move to 11.1: its virtio queues have another size.
#[test]
fn a_guest_moves_to_an_older_qemu_and_with_an_update_to_the_newer_one() {
    in_namespace("another-qemu", |namespace| {
        let _alone = alone();
        let launcher = format!("virt-launcher:{OTHER_QEMU}");
        for node in objects(&["node"])? {
            let node = Node::named(node["metadata"]["name"].as_str().context("a node without a name")?);
            let has = node.sh("ctr -n k8s.io images ls -q")?.contains(&launcher);
            ensure!(has, "{node:?} has no {launcher}: docs/test-bed.md says how to build and load it");
        }
        let status = wait_available()?["status"].clone();
        let usual = status["observedKubeVirtVersion"].as_str().context("no version")?.to_owned();
        tag(OTHER_QEMU, &["virt-operator", "virt-api", "virt-controller", "virt-handler"])?;
        let next = json!({
            "imageTag": OTHER_QEMU,
            "workloadUpdateStrategy": {"workloadUpdateMethods": ["LiveMigrate"]},
        });
        let (boot, newer) = {
            let _next = Changed::begin(&next)?;
            wait_available()?;
            let mut machine = guest::machine("vm", "Always");
            machine["spec"]["template"]["spec"]["domain"]["machine"] = json!({ "type": MACHINE_TYPE });
            namespace.apply(&guest::with_user_data(machine, guest::COUNTING))?;
            namespace.wait_phase("vm", "Running", RUNNING)?;
            (Counting::of(namespace, "vm")?.boot()?, qemu_version(namespace, "vm")?)
        };
        namespace.migrate("vm")?;
        let older = moved_to(namespace, &usual, &newer)?;
        goes_on(namespace, &boot)?;
        {
            let _next = Changed::begin(&next)?;
            wait_available()?;
            ensure!(moved_to(namespace, OTHER_QEMU, &older)? == newer);
            goes_on(namespace, &boot)?;
            wait_outdated("no", |count| count == 0)
        }
    });
}

/// There are no images with this tag.
#[test]
fn a_version_that_does_not_start_stays_on_one_node_and_is_taken_back() {
    in_namespace("canary", |_| {
        let _alone = alone();
        wait_available()?;
        let before = components()?;
        {
            let _broken =
                Changed::begin(&json!({"imageTag": "of-nothing", "imagePullPolicy": "IfNotPresent"}))?;
            let told = wait::until("the trouble to be told", ROLLOUT, || {
                Ok(kubevirt()?.filter(|object| {
                    condition(object, "Degraded").is_some_and(|(_, reason)| reason == "DeploymentFailed")
                }))
            })?;
            let conditions = told["status"]["conditions"].to_string();
            ensure!(conditions.contains("pod virt-handler-") && conditions.contains("Pull"), "{conditions}");
            ensure!(
                condition(&told, "Available").is_some_and(|(status, _)| status == "True"),
                "{conditions}"
            );
            // Nothing else has changed, and nothing else changes.
            std::thread::sleep(Duration::from_secs(5));
            let [handler, controller, api] = components()?;
            for (was, is) in [(&before[1], &controller), (&before[2], &api)] {
                let image = |seen: &ComponentState| {
                    seen.object["spec"]["template"]["spec"]["containers"][0]["image"].clone()
                };
                ensure!(image(was) == image(is), "{} has become {}", image(was), image(is));
            }
            let (wanted, ready) = (
                &handler.object["status"]["desiredNumberScheduled"],
                &handler.object["status"]["numberReady"],
            );
            ensure!(
                ready.as_i64().unwrap_or(0) >= wanted.as_i64().unwrap_or(0) - 1,
                "{ready} of {wanted} handlers are ready"
            );
        }
        let after = kubevirt()?.context("there is no KubeVirt")?;
        ensure!(
            is_available(&after)
                && condition(&after, "Degraded").is_some_and(|(status, _)| status == "False")
        );
        Ok(())
    });
}

#[test]
fn an_operator_that_is_killed_repeatedly_completes_the_update() {
    in_namespace("killupgrade", |_| {
        let _alone = alone();
        tag_images()?;
        {
            let _next = Changed::begin(&json!({"imageTag": TAG}))?;
            for _ in 0..4 {
                installation::replace_leader("virt-operator")?;
                // Enough time for some writes, but not for all.
                std::thread::sleep(Duration::from_millis(1500));
            }
            wait::until("the update to be done", WITH_KILLS, || Ok(kubevirt()?.filter(is_available)))?;
            ensure!(components()?.iter().all(|seen| seen.new && seen.rolled_out));
        }
        ensure!(components()?.iter().all(|seen| !seen.new));
        kubectl(&["rollout", "status", "-n", NAMESPACE, "deployment/virt-operator", "--timeout=90s"])
            .map(drop)
    });
}

/// Applies the operator's manifest of the repository again, however a test ends.
struct FormerOperator(String);

impl FormerOperator {
    fn find() -> Result<Self> {
        let path = repository().join("manifests/barevirt-operator.yaml");
        Ok(Self(path.to_str().context("the path is text")?.to_owned()))
    }
}

impl Drop for FormerOperator {
    fn drop(&mut self) {
        // Fields that virtctl owns are taken over from it.
        let owner = ["apply", "--server-side", "--force-conflicts", "--field-manager=virtctl", "-f", &self.0];
        if let Err(error) = kubectl(&owner).and_then(|_| wait_available()) {
            eprintln!("the operator is not the former one: {error:#}");
        }
    }
}

#[test]
fn virtctl_brings_another_version_and_the_former_one_back() {
    in_namespace("virtctl-upgrade", |namespace| {
        let _alone = alone();
        tag_images()?;
        namespace.apply(&guest::machine("vm", "Always"))?;
        namespace.wait_phase("vm", "Running", RUNNING)?;
        let former = FormerOperator::find()?;
        let tag =
            wait_available()?["status"]["observedKubeVirtVersion"].as_str().context("no version")?.to_owned();
        let manifest = std::fs::read_to_string(&former.0)?;
        let next = tempfile::Builder::new().suffix(".yaml").tempfile()?;
        std::fs::write(
            next.path(),
            manifest.replace(&format!("/virt-operator:{tag}"), &format!("/virt-operator:{TAG}")),
        )?;
        let next = next.path().to_str().context("the path is text")?.to_owned();

        let planned = virtctl(&["upgrade", "--from", &next, "--dry-run"])?;
        ensure!(planned.contains(&format!("{TAG} would be installed")), "{planned}");
        let refused = try_virtctl(&["install", "--from", &next])?;
        ensure!(refused.code != 0, "an installation took the place of another");

        let told = virtctl(&["upgrade", "--from", &next, "--timeout", "5m"])?;
        ensure!(told.contains(&format!("Barevirt {TAG} is available")), "{told}");
        ensure!(wait_available()?["status"]["observedKubeVirtVersion"] == TAG);
        ensure!(virtctl(&["status"])?.contains(TAG));
        // The guest did not notice.
        ensure!(namespace.need("vmi", "vm")?["status"]["phase"] == "Running");

        let told = virtctl(&["upgrade", "--from", &former.0, "--timeout", "5m"])?;
        ensure!(told.contains(&format!("Barevirt {tag} is available")), "{told}");
        ensure!(wait_available()?["status"]["observedKubeVirtVersion"] == tag.as_str());
        Ok(())
    });
}
