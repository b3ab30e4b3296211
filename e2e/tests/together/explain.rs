//! What a change of a machine does, and what its instance was made from.

use anyhow::{Context, Result, ensure};
use barevirt_e2e::command::{try_virtctl, virtctl};
use barevirt_e2e::wait::RUNNING;
use barevirt_e2e::{Namespace, guest, in_namespace};
use serde_json::{Value, json};

/// `applies` of each field of `virtctl diff vm`.
fn pending(namespace: &Namespace) -> Result<Vec<(String, String)>> {
    let told = virtctl(&["diff", "vm", "-n", namespace.name(), "-o", "json"])?;
    let told: Value = serde_json::from_str(&told)?;
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let fields = told["vm"].as_array().context("a list of fields")?;
    Ok(fields.iter().map(|told| (text(&told["field"]), text(&told["applies"]))).collect())
}

#[test]
fn diff_shows_a_change_before_it_is_made_and_while_it_is_pending() {
    in_namespace("explain", |namespace| {
        let mut machine = guest::without_system(guest::machine("vm", "Always"));
        guest::spec_of(&mut machine)["domain"]["cpu"] = json!({"sockets": 1, "cores": 1});
        namespace.apply(&machine)?;
        namespace.wait_phase("vm", "Running", RUNNING)?;
        ensure!(pending(namespace)?.is_empty(), "{:?}", pending(namespace)?);

        // The running instance is as planned; so is the pod, except for the cluster's additions.
        let explained = virtctl(&["explain", "vm", "-n", namespace.name(), "-o", "json"])?;
        let explained: Value = serde_json::from_str(&explained)?;
        ensure!(explained["podDiffers"] == json!([]), "{}", explained["podDiffers"]);
        ensure!(explained["commandLineDiffers"] == json!([]), "{}", explained["commandLineDiffers"]);
        ensure!(explained["pending"] == json!([]), "{}", explained["pending"]);
        let line = explained["commandLine"].as_array().context("a command line")?;
        ensure!(line.iter().any(|part| part["fields"][0] == "spec.domain.devices.disks[0]"), "{line:?}");

        // Sockets change in place; cores do not, and nothing changes in place while they wait.
        let file = std::env::temp_dir().join(format!("explain-{}.json", std::process::id()));
        let path = file.display().to_string();
        let mut ask = |cpu: Value| -> Result<String> {
            guest::spec_of(&mut machine)["domain"]["cpu"] = cpu;
            std::fs::write(&file, machine.to_string())?;
            virtctl(&["diff", "-f", &path, "-n", namespace.name()])
        };
        let sockets = ask(json!({"sockets": 2, "cores": 1}))?;
        ensure!(sockets.contains("applied while the guest runs:"), "{sockets}");
        ensure!(!sockets.contains("needs a restart"), "{sockets}");
        let cores = ask(json!({"sockets": 1, "cores": 2}))?;
        ensure!(cores.contains("needs a restart:") && cores.contains("cpu.cores: 1 -> 2"), "{cores}");
        ensure!(pending(namespace)?.is_empty(), "diff changed the machine");
        let refused = try_virtctl(&["explain", "-f", "/nowhere.yaml"])?;
        ensure!(refused.code != 0, "a file that is not there was explained");
        std::fs::remove_file(&file)?;

        namespace.merge(
            "vm",
            "vm",
            &json!({"spec": {"template": {"spec": {"domain": {"cpu": {"cores": 2}}}}}}),
        )?;
        let left = pending(namespace)?;
        ensure!(
            left == [("spec.template.spec.domain.cpu.cores".to_owned(), "restart".to_owned())],
            "{left:?}"
        );
        Ok(())
    });
}
