//! The steps of KubeVirt's user guide, with `examples/vm.yaml`.

use anyhow::{Result, ensure};
use barevirt_e2e::command::repository;
use barevirt_e2e::wait::{BOOT, RUNNING, SOON};
use barevirt_e2e::{Console, Namespace, Node, in_namespace, pods};
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
        console.login(BOOT)?;
        drop(console);
        let launcher = namespace.launcher(NAME)?;
        Node::of(&launcher)?.wait_printed(&launcher, "printed from cloud-init userdata", SOON)?;

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
