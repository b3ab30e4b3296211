//! Metrics of the components, and the objects of a machine.

use anyhow::{Context, Result, ensure};
use barevirt_e2e::components::{ALL_COMPONENTS, lives, raw, wait_in_force};
use barevirt_e2e::installation::{Changed, ROLLOUT, wait_available};
use barevirt_e2e::wait::{self, RUNNING, SOON};
use barevirt_e2e::{Namespace, alone, guest, in_namespace};
use serde_json::{Value, json};

/// Kinds and names of the objects directly beneath the root of a graph, in order.
fn children(graph: &str) -> Result<Vec<String>> {
    let graph: Value = serde_json::from_str(graph).with_context(|| format!("no graph: {graph}"))?;
    let line = |child: &Value| {
        let object = &child["objectReference"];
        let word = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        format!("{} {}", word(&object["kind"]), word(&object["name"]))
    };
    Ok(graph["children"].as_array().into_iter().flatten().map(line).collect())
}

#[test]
fn a_machines_objects_are_shown_behind_their_gate() {
    in_namespace("graph", |namespace| {
        let _alone = alone();
        wait_available()?;
        namespace.apply(&json!({
            "apiVersion": "v1", "kind": "Secret", "metadata": {"name": "words"}, "stringData": {"root": "secret"},
        }))?;
        namespace.apply(&json!({
            "apiVersion": "instancetype.kubevirt.io/v1beta1", "kind": "VirtualMachineInstancetype",
            "metadata": {"name": "small"}, "spec": {"cpu": {"guest": 1}, "memory": {"guest": "128Mi"}},
        }))?;
        let mut machine = guest::machine("vm", "Always");
        machine["spec"]["instancetype"] = json!({"name": "small", "kind": "VirtualMachineInstancetype"});
        let spec = guest::spec_of(&mut machine);
        // The instance type sets these fields.
        if let Some(domain) = spec["domain"].as_object_mut() {
            domain.retain(|field, _| !["cpu", "memory", "resources"].contains(&field.as_str()));
        }
        spec["accessCredentials"] = json!([{"userPassword": {
            "source": {"secret": {"secretName": "words"}}, "propagationMethod": {"qemuGuestAgent": {}},
        }}]);
        namespace.apply(&machine)?;
        let refused = namespace.try_virtctl(&["objectgraph", "vm"])?;
        let gate = "ObjectGraph feature gate not enabled: Unable to return object graph.";
        ensure!(refused.code == 1 && refused.text().contains(gate), "{refused:?}");

        let _changed = Changed::begin(&json!({"configuration": {"developerConfiguration": {
            "featureGates": ["ObjectGraph"],
        }}}))?;
        wait_in_force(lives("kubevirt.io=virt-api")?.keys())?;
        namespace.wait_phase("vm", "Running", RUNNING)?;
        // The call uses the machine's status, which has to say that there is an instance.
        namespace.wait("vm", "vm", "to tell of its instance", SOON, |vm| vm["status"]["created"] == true)?;
        let launcher = namespace.launcher("vm")?;
        let launcher = launcher["metadata"]["name"].as_str().context("the pod has no name")?;

        let graph = namespace.virtctl(&["objectgraph", "vm"])?;
        ensure!(graph.contains(launcher), "{graph}");
        let all = children(&graph)?;
        let of = |kind: &str| all.iter().filter(|child| child.starts_with(&format!("{kind} "))).count();
        ensure!(all.first().is_some_and(|child| child == "VirtualMachineInstance vm"), "{all:?}");
        ensure!(all.contains(&"VirtualMachineInstancetype small".to_owned()), "{all:?}");
        ensure!(all.contains(&"Secret words".to_owned()), "{all:?}");
        ensure!(of("ControllerRevision") == 1 && all.len() == 4, "{all:?}");
        let needed = children(&namespace.virtctl(&["objectgraph", "vm", "--exclude-optional"])?)?;
        ensure!(
            needed.len() == 3
                && !needed.iter().any(|child| child.contains("small") && child.starts_with("Virt")),
            "{needed:?}"
        );
        let compute = ["objectgraph", "vm", "--selector", "kubevirt.io/dependency-type=compute"];
        ensure!(children(&namespace.virtctl(&compute)?)? == ["VirtualMachineInstance vm"]);
        let of_instance = children(&namespace.virtctl(&["objectgraph", "--vmi", "vm"])?)?;
        ensure!(of_instance == [format!("Pod {launcher}"), "Secret words".to_owned()], "{of_instance:?}");
        let yaml = namespace.virtctl(&["objectgraph", "vm", "-o", "yaml"])?;
        ensure!(yaml.contains("objectReference:"), "{yaml}");
        let stranger = namespace.try_virtctl(&["objectgraph", "vm", "--as=nobody"])?;
        ensure!(stranger.code == 1 && stranger.text().contains("cannot get resource"), "{stranger:?}");
        Ok(())
    });
}

#[test]
fn every_component_exports_metrics() {
    in_namespace("metrics", |namespace| {
        let _alone = alone();
        wait_available()?;
        namespace.apply(&guest::without_system(guest::instance("counted")))?;
        namespace.wait_phase("counted", "Running", RUNNING)?;
        // An operator that another test has killed or replaced answers after a pause, and one leads once the lease is over.
        let mut missing = String::new();
        let exported = wait::until_true("all metrics", ROLLOUT, || {
            missing = first_missing(namespace)?;
            Ok(missing.is_empty())
        });
        exported.with_context(|| missing)
    });
}

/// The first pod that does not export what each component does, or the first line that none exports; an empty text if there is
/// neither.
fn first_missing(namespace: &Namespace) -> Result<String> {
    let mut all = String::new();
    for pod in lives(ALL_COMPONENTS)?.keys() {
        let text = match raw(pod, "metrics") {
            Ok(text) => text,
            Err(error) => return Ok(format!("{pod}: {error:#}")),
        };
        for name in ["process_resident_memory_bytes ", "kubevirt_rest_client_requests_total{"] {
            if !text.lines().any(|line| line.starts_with(name)) {
                return Ok(format!("{pod}: no {name}"));
            }
        }
        all.push_str(&text);
    }
    let labels = [
        format!("namespace=\"{}\"", namespace.name()),
        "name=\"counted\"".to_owned(),
        "phase=\"running\"".to_owned(),
    ];
    let told = |line: &str| {
        line.starts_with("kubevirt_vmi_info{") && labels.iter().all(|label| line.contains(label.as_str()))
    };
    if !all.lines().any(told) {
        return Ok(format!("no kubevirt_vmi_info with {labels:?}"));
    }
    let lines = [
        "kubevirt_virt_controller_leading_status 1",
        "kubevirt_virt_operator_leading_status 1",
        "kubevirt_virt_handler_ready_status 1.0",
        "kubevirt_virt_api_ready_status 1",
        "kubevirt_configuration_emulation_enabled 1.0",
    ];
    let missing = lines.iter().find(|line| !all.lines().any(|found| found == **line));
    Ok(missing.map(|line| format!("no {line}")).unwrap_or_default())
}
