//! The steps of KubeVirt's user guide, with `examples/vm.yaml`.

use anyhow::{Result, ensure};
use barevirt_e2e::command::repository;
use barevirt_e2e::wait::{BOOT, RUNNING, SOON};
use barevirt_e2e::{Console, Namespace, in_namespace, pods};
use serde_json::Value;

const NAME: &str = "vm-cirros";

fn create(namespace: &Namespace) -> Result<()> {
    let example = repository().join("examples/vm.yaml");
    namespace.kubectl(&["create", "-f", &example.to_string_lossy()]).map(drop)
}

fn uid(object: &Value) -> String {
    object["metadata"]["uid"].as_str().unwrap_or_default().to_owned()
}

fn wait_for_another(namespace: &Namespace, before: &str) -> Result<Value> {
    namespace.wait("vmi", NAME, "to be another, and Running", RUNNING, |vmi| {
        uid(vmi) != before && vmi["status"]["phase"] == "Running"
    })
}

#[test]
fn the_walk_through_works_as_written() {
    in_namespace("guide", |namespace| {
        create(namespace)?;
        namespace.wait_status(NAME, "Stopped", SOON)?;
        ensure!(namespace.get("vmi", NAME)?.is_none(), "running is false, so there is no instance yet");

        // Exposed before it runs: the service exists, and has no endpoints.
        namespace.virtctl(&[
            "expose",
            "vm",
            NAME,
            "--name",
            "web",
            "--port",
            "8000",
            "--target-port",
            "80",
        ])?;

        namespace.virtctl(&["start", NAME])?;
        let first = uid(&namespace.wait_phase(NAME, "Running", RUNNING)?);
        let mut console = Console::open(namespace, NAME)?;
        console.expect("printed from cloud-init userdata", BOOT)?;
        console.login(BOOT)?;
        drop(console);

        namespace.wait_status(NAME, "Running", SOON)?;
        let description = namespace.kubectl(&["describe", "vm", NAME])?;
        let squeezed = description.split_whitespace().collect::<Vec<_>>().join(" ");
        for words in ["Created: true", "Ready: true", "SuccessfulCreate"] {
            ensure!(squeezed.contains(words), "`kubectl describe vm` does not show {words:?}: {description}");
        }

        let client = pods::client(namespace, "client")?;
        client.wait_answer("http://web:8000/hostname", None, BOOT)?;

        // Restart by deleting the instance.
        namespace.kubectl(&["delete", "vmi", NAME, "--wait=false"])?;
        let second = uid(&wait_for_another(namespace, &first)?);

        // Restart by force.
        namespace.virtctl(&["restart", NAME, "--force", "--grace-period=0"])?;
        let third = uid(&wait_for_another(namespace, &second)?);
        ensure!(third != first);

        // Stop and start by patching.
        let patch = |running: bool| {
            let patch = format!(r#"{{"spec":{{"running":{running}}}}}"#);
            namespace.kubectl(&["patch", "virtualmachine", NAME, "--type", "merge", "-p", &patch])
        };
        patch(false)?;
        namespace.wait_gone("vmi", NAME, SOON)?;
        namespace.wait_status(NAME, "Stopped", SOON)?;
        patch(true)?;
        namespace.wait_phase(NAME, "Running", RUNNING)?;

        // Deleting the machine deletes its instance.
        namespace.kubectl(&["delete", "vm", NAME])?;
        namespace.wait_gone("vmi", NAME, SOON)
    });
}

#[test]
fn an_orphaned_instance_goes_on_and_is_adopted() {
    in_namespace("orphan", |namespace| {
        create(namespace)?;
        namespace.virtctl(&["start", NAME])?;
        let before = uid(&namespace.wait_phase(NAME, "Running", RUNNING)?);

        namespace.kubectl(&["delete", "vm", NAME, "--cascade=orphan"])?;
        namespace.wait_gone("vm", NAME, SOON)?;
        let vmi = namespace.wait("vmi", NAME, "to have no owner", SOON, |vmi| {
            vmi["metadata"]["ownerReferences"].as_array().is_none_or(Vec::is_empty)
        })?;
        ensure!(vmi["status"]["phase"] == "Running" && uid(&vmi) == before);

        // The machine that is applied again has to be a running one: it adopts the instance, while a halted
        // machine would end it.
        let example = std::fs::read_to_string(repository().join("examples/vm.yaml"))?;
        let mut manifest: Value = serde_saphyr::from_str(&example)?;
        manifest["spec"]["running"] = true.into();
        namespace.apply(&manifest)?;
        let vm = namespace.need("vm", NAME)?;
        let vmi = namespace.wait("vmi", NAME, "to be adopted", SOON, |vmi| {
            vmi["metadata"]["ownerReferences"][0]["uid"] == vm["metadata"]["uid"]
        })?;
        ensure!(uid(&vmi) == before && vmi["status"]["phase"] == "Running", "{}", vmi["status"]);
        namespace.wait_status(NAME, "Running", SOON).map(drop)
    });
}
