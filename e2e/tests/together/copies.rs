//! Copies without CDI: within a namespace, and from another one, where only users with the right can make them. Nothing is left
//! of them afterwards.

use crate::imports::{SERVER, SMALL, condition, data_source, data_volume, host, publish, small, without_cdi};
use crate::imports_in_a_row::{have_contents, volumes};
use anyhow::{Result, ensure};
use barevirt_e2e::cdi::{Absent, DATA_SOURCES, DATA_VOLUMES};
use barevirt_e2e::command::{Output, try_kubectl_with};
use barevirt_e2e::wait::{self, BOOT, RUNNING, SOON};
use barevirt_e2e::{Console, Namespace, guest, in_namespace, pods};
use serde_json::{Value, json};
use std::time::Duration;

/// Time until the pods of an import have run, one after the other.
const FILLED: Duration = Duration::from_secs(RUNNING.as_secs() + 120);

/// Creates an object as a user who may edit only this namespace.
pub(crate) fn create_as(namespace: &Namespace, user: &str, manifest: &Value) -> Result<Output> {
    let user = format!("--as={user}");
    let words = ["-n", namespace.name(), &user, "--as-group=system:authenticated", "create", "-f", "-"];
    try_kubectl_with(&words, &manifest.to_string())
}

/// A DataVolume without a size.
fn copy(name: &str, of: &str, source: &Value) -> Value {
    let mut copy = data_volume(name, &json!({}), "1Mi");
    copy["spec"] = json!({ of: source, "storage": {} });
    copy
}

/// A machine that takes its instance type from a DataSource of that namespace.
fn inferring(namespace: &Namespace, source: &str) -> Value {
    let mut machine = guest::machine("curious", "Halted");
    machine["spec"]["instancetype"] = json!({ "inferFromVolume": "root" });
    let source = json!({ "kind": "DataSource", "name": source, "namespace": namespace.name() });
    machine["spec"]["dataVolumeTemplates"] =
        json!([{ "metadata": { "name": "curious" }, "spec": { "sourceRef": source, "storage": {} } }]);
    let spec = guest::spec_of(&mut machine);
    spec["volumes"] = json!([{ "name": "root", "dataVolume": { "name": "curious" } }]);
    spec["domain"].as_object_mut().and_then(|domain| domain.remove("memory"));
    machine
}

fn is_filled(volume: &Value) -> bool {
    ["Succeeded", "Failed"].iter().any(|phase| volume["status"]["phase"] == *phase)
}

/// Names of the temporary pods of copies.
pub(crate) fn traces(namespace: &Namespace) -> Result<Vec<String>> {
    let name = |object: &Value| object["metadata"]["name"].as_str().unwrap_or_default().to_owned();
    let app = |pod: &&Value| pod["metadata"]["labels"]["app"] == "containerized-data-importer";
    Ok(namespace.list("pod")?.iter().filter(app).map(name).collect())
}

#[test]
fn a_machine_boots_from_a_permitted_copy_of_another_namespace() {
    in_namespace("images", |golden| {
        let golden = golden.clone();
        in_namespace("copies", move |namespace| {
            let _absent = Absent::prepare()?;
            let image = json!({ "registry": { "url": format!("docker://{}", guest::tiny_image()), "pullMethod": "node" } });
            golden.apply(&data_volume("tiny-1", &image, "160Mi"))?;
            let mut tiny =
                data_source("tiny", &json!({ "pvc": { "name": "tiny-1", "namespace": golden.name() } }));
            tiny["metadata"]["labels"] =
                json!({ "instancetype.kubevirt.io/default-instancetype": "u1.nano" });
            golden.apply(&tiny)?;

            let user = format!("tenant-of-{}", namespace.name());
            let binding = format!("--user={user}");
            namespace.kubectl(&["create", "rolebinding", "tenant", "--clusterrole=edit", &binding])?;
            let claim = json!({ "name": "tiny-1", "namespace": golden.name() });
            let by_claim = copy("stolen", "source", &json!({ "pvc": claim }));
            let by_name = json!({ "kind": "DataSource", "name": "tiny", "namespace": golden.name() });
            let by_name = copy("root", "sourceRef", &by_name);
            let why = format!(
                "User {user} has insufficient permissions in clone source namespace {}",
                golden.name()
            );
            wait::until_true("the tenant to be refused for the namespace", SOON, || {
                // The role does not take effect at once.
                let refused = create_as(namespace, &user, &by_claim)?;
                ensure!(refused.code != 0, "a copy was made without leave");
                Ok(refused.text().contains(&why))
            })?;
            let refused = create_as(namespace, &user, &by_name)?;
            ensure!(refused.code != 0 && refused.text().contains(&why), "{}", refused.text());
            // The tenant does not learn what is there either: the answer is the same for what does not exist.
            for name in ["tiny", "none"] {
                let refused = create_as(namespace, &user, &inferring(&golden, name))?;
                let why = format!("may read DataSource {}/{name}", golden.name());
                ensure!(refused.code != 0 && refused.text().contains(&why), "{}", refused.text());
            }

            golden.kubectl(&[
                "create",
                "role",
                "copy",
                "--verb=create",
                "--resource=datavolumes.cdi.kubevirt.io/source",
            ])?;
            golden.kubectl(&["create", "rolebinding", "copy", "--role=copy", &binding])?;
            wait::until_true("the tenant to be allowed to copy", SOON, || {
                Ok(create_as(namespace, &user, &by_name)?.code == 0)
            })?;
            // A checked source cannot be changed.
            let other = json!({ "spec": { "sourceRef": { "namespace": "kube-system" } } }).to_string();
            let changed =
                namespace.try_kubectl(&["patch", DATA_VOLUMES, "root", "--type=merge", "-p", &other])?;
            ensure!(changed.text().contains("Cannot update DataVolume Spec"), "{}", changed.text());

            let filled = namespace.wait(DATA_VOLUMES, "root", "to be filled", FILLED, is_filled)?;
            ensure!(filled["status"]["phase"] == "Succeeded", "{}", filled["status"]);
            let mut machine = guest::machine("vm", "Always");
            guest::spec_of(&mut machine)["volumes"] =
                json!([{ "name": "root", "dataVolume": { "name": "root" } }]);
            let mut inferred = machine.clone();
            guest::spec_of(&mut inferred)["domain"]
                .as_object_mut()
                .and_then(|domain| domain.remove("memory"));
            inferred["spec"]["instancetype"] = json!({ "inferFromVolume": "root" });
            let words = ["-n", namespace.name(), "create", "--dry-run=server", "-o", "json", "-f", "-"];
            let inferred = try_kubectl_with(&words, &inferred.to_string())?;
            ensure!(inferred.stdout.contains("u1.nano"), "{}", inferred.text());
            namespace.apply(&machine)?;
            // A copy that is deleted while it runs. What sends next is its own.
            wait::until_true("nothing of the former copy to be left", SOON, || {
                Ok(traces(&golden)?.is_empty())
            })?;
            namespace.apply(&copy("gone", "source", &json!({ "pvc": claim })))?;
            wait::until_true("a pod that sends", SOON, || Ok(!traces(&golden)?.is_empty()))?;
            namespace.delete(DATA_VOLUMES, "gone")?;

            namespace.wait_phase("vm", "Running", FILLED)?;
            let mut console = Console::open(namespace, "vm")?;
            console.login(BOOT)?;
            console.leave()?;
            for namespace in [namespace, &golden] {
                wait::until_true("nothing of the copies to be left", SOON, || {
                    Ok(traces(namespace)?.is_empty())
                })?;
            }
            Ok(())
        });
        Ok(())
    });
}

#[test]
fn a_claim_is_copied_within_its_namespace() {
    without_cdi("importscopy", |namespace| {
        pods::server(namespace, SERVER, "images")?;
        let work = tempfile::tempdir()?;
        let (image, digest) = small(work.path())?;
        publish(namespace, "small.qcow2", &image)?;
        let source = json!({ "http": { "url": format!("http://{}/small.qcow2", host(namespace)) } });
        namespace.apply(&data_volume("golden", &source, "16Mi"))?;
        // It waits until the source exists and is filled.
        let mut copy = data_volume("root", &json!({}), "16Mi");
        copy["spec"] = json!({ "sourceRef": { "kind": "DataSource", "name": "outer" }, "storage": {} });
        namespace.apply(&copy)?;
        let other = json!({ "dataSource": { "name": "tiny", "namespace": namespace.name() } });
        namespace.apply(&data_source("outer", &other))?;
        let golden = json!({ "pvc": { "name": "golden", "namespace": namespace.name() } });
        namespace.apply(&data_source("tiny", &golden))?;
        namespace.wait(DATA_VOLUMES, "root", "to be filled", FILLED, |volume| {
            volume["status"]["phase"] == "Succeeded"
        })?;
        let ready = namespace.wait(DATA_SOURCES, "outer", "to be ready", SOON, |source| {
            condition(source, "Ready")["status"] == "True"
        })?;
        ensure!(ready["status"]["source"] == golden, "{}", ready["status"]);
        ensure!(volumes(namespace)?.len() == 2, "each of the two claims has a volume");
        have_contents(namespace, SMALL, &digest)
    });
}
