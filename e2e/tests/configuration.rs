//! Settings of the `KubeVirt` object reach every component while it runs. Wrong settings are refused; if they
//! were stored anyway, the last good settings stay in force and the object says so.
//!
//! The tests change the `KubeVirt` object, and one removes the operator, so they have their own file.

use anyhow::{Context, Result, ensure};
use barevirt_e2e::api_server;
use barevirt_e2e::command::{kubectl, object, objects, try_kubectl, try_virtctl, virtctl};
use barevirt_e2e::installation::{self, Changed, NAMESPACE, ROLLOUT, condition, kubevirt, wait_available};
use barevirt_e2e::wait::{self, BOOT, RUNNING, SOON};
use barevirt_e2e::{Console, Node, alone, guest, in_namespace};
use serde_json::{Value, json};
use std::collections::BTreeMap;

const RUNNING_COMPONENTS: &str = "kubevirt.io in (virt-api, virt-controller, virt-handler)";
const ALL_COMPONENTS: &str = "kubevirt.io in (virt-api, virt-controller, virt-handler, virt-operator)";
const OPERATOR: &str = "deployment/virt-operator";
const WEBHOOK: [&str; 2] = ["validatingwebhookconfiguration", "virt-operator-validator"];

/// Names of pods, with values that change when a process is restarted.
fn lives(selector: &str) -> Result<BTreeMap<String, String>> {
    let pods = objects(&["pod", "-n", NAMESPACE, "-l", selector])?;
    let life = |pod: &Value| {
        let restarts = &pod["status"]["containerStatuses"][0]["restartCount"];
        format!("{} {restarts}", pod["metadata"]["uid"])
    };
    Ok(pods
        .iter()
        .map(|pod| (pod["metadata"]["name"].as_str().unwrap_or_default().to_owned(), life(pod)))
        .collect())
}

fn raw(pod: &str, path: &str) -> Result<String> {
    let path = format!("/api/v1/namespaces/{NAMESPACE}/pods/https:{pod}:8443/proxy/{path}");
    api_server::text(&path)
}

fn health(pod: &str) -> Result<Value> {
    serde_json::from_str(&raw(pod, "healthz")?).with_context(|| format!("healthz of {pod} is not JSON"))
}

fn version() -> Result<Value> {
    Ok(kubevirt()?.context("there is no KubeVirt")?["metadata"]["resourceVersion"].clone())
}

/// Waits until the current object is in force in all of these pods.
fn wait_in_force<'a>(pods: impl Iterator<Item = &'a String> + Clone) -> Result<()> {
    wait::until_true("every component to run with the object as it is", SOON, || {
        let version = version()?;
        for pod in pods.clone() {
            let health = health(pod)?;
            if health["config-resource-version"] != version || !health["config-refused"].is_null() {
                return Ok(false);
            }
        }
        Ok(true)
    })
}

/// Wrong settings that the definition of the kind accepts.
fn bad() -> Value {
    json!({"configuration": {
        "cpuRequest": "0",
        "selinuxLauncherType": "virt",
        "developerConfiguration": {"logVerbosity": {"virtHandler": 10}},
    }})
}

const BAD_FIELDS: [&str; 3] = [
    "spec.configuration.cpuRequest",
    "spec.configuration.selinuxLauncherType",
    "spec.configuration.developerConfiguration.logVerbosity.virtHandler",
];

#[test]
fn a_changed_setting_reaches_every_component_without_a_restart() {
    in_namespace("settings", |namespace| {
        let _alone = alone();
        wait_available()?;
        let before = lives(ALL_COMPONENTS)?;
        ensure!(before.len() >= 7, "{before:?}");
        {
            let _changed = Changed::begin(&json!({"configuration": {
                "smbios": {"manufacturer": "Acme, Inc.", "sku": "7"},
                "cpuRequest": "150m",
                "developerConfiguration": {"logVerbosity": {"virtHandler": 6, "virtLauncher": 4}},
            }}))?;
            wait_in_force(before.keys())?;
            ensure!(lives(ALL_COMPONENTS)? == before, "a component was started anew");

            // Each handler logs that its level has changed.
            for pod in before.keys().filter(|name| name.starts_with("virt-handler-")) {
                wait::until_true("the handler to take its level over", SOON, || {
                    let log = kubectl(&["logs", "-n", NAMESPACE, pod, "--since=5m"])?;
                    Ok(log.lines().any(|line| line.contains("log level") && line.contains("virt_=trace")))
                })?;
            }
            // A new start uses the current settings.
            namespace.apply(&guest::instance("acme"))?;
            let instance = namespace.wait_phase("acme", "Running", RUNNING)?;
            let requests = &instance["spec"]["domain"]["resources"]["requests"];
            ensure!(requests["cpu"] == "150m", "{requests}");
            let pod = namespace.launcher("acme")?;
            let compute = pod["spec"]["containers"]
                .as_array()
                .and_then(|containers| containers.iter().find(|container| container["name"] == "compute"));
            let compute = compute.context("no compute container")?;
            let level = json!({"name": "VIRT_LAUNCHER_LOG_VERBOSITY", "value": "4"});
            ensure!(compute["env"].as_array().is_some_and(|env| env.contains(&level)), "{}", compute["env"]);
            let node = Node::of(&pod)?;
            let qemu = node.processes(&pod, "qemu-system-x86_64")?;
            let qemu = qemu.first().context("no QEMU runs")?;
            let line = node.sh(&format!("tr '\\0' ' ' </proc/{qemu}/cmdline"))?;
            ensure!(line.contains("manufacturer=Acme,, Inc.") && line.contains("sku=7"), "{line}");
        }
        wait_in_force(before.keys())?;
        ensure!(lives(ALL_COMPONENTS)? == before, "a component was started anew");
        Ok(())
    });
}

#[test]
fn virtctl_sets_how_much_components_log_and_forgets_it_again() {
    in_namespace("verbosity", |_| {
        let _alone = alone();
        wait_available()?;
        let levels = |arguments: &[&str]| virtctl(&[&["adm", "log-verbosity"], arguments].concat());
        let _restored = Changed::begin(&json!({"configuration": {"developerConfiguration": {
            "logVerbosity": {"virtController": 4, "nodeVerbosity": {"nowhere": 3}},
        }}}))?;
        let said = levels(&["--virt-handler=6", "--virt-launcher=4"])?;
        ensure!(said.contains("successfully set/reset the log verbosity"), "{said}");
        let shown = levels(&["--all"])?;
        let wanted = "virt-api=2\nvirt-controller=4\nvirt-handler=6\nvirt-launcher=4\nvirt-operator=2\n";
        ensure!(shown == wanted, "{shown}");
        for pod in lives("kubevirt.io=virt-handler")?.keys() {
            wait::until_true("the handler to take its level over", SOON, || {
                let log = kubectl(&["logs", "-n", NAMESPACE, pod, "--since=1m"])?;
                Ok(log.lines().any(|line| line.contains("log level") && line.contains("virt_=trace")))
            })?;
        }
        let refused = try_virtctl(&["adm", "log-verbosity", "--virt-api=10", "--virt-handler=3"])?;
        ensure!(refused.code == 1 && refused.text().contains("only show or set is allowed"), "{refused:?}");
        levels(&["--reset"])?;
        let kubevirt = kubevirt()?.context("there is no KubeVirt")?;
        let left = &kubevirt["spec"]["configuration"]["developerConfiguration"]["logVerbosity"];
        ensure!(left.as_object().is_none_or(serde_json::Map::is_empty), "{left}");
        Ok(())
    });
}

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
fn metrics_are_told_by_every_component() {
    in_namespace("metrics", |namespace| {
        let _alone = alone();
        wait_available()?;
        namespace.apply(&guest::instance("counted"))?;
        namespace.wait_phase("counted", "Running", RUNNING)?;
        let mut all = String::new();
        for pod in lives(ALL_COMPONENTS)?.keys() {
            let text = raw(pod, "metrics")?;
            for name in ["process_resident_memory_bytes ", "kubevirt_rest_client_requests_total{"] {
                ensure!(text.lines().any(|line| line.starts_with(name)), "{pod}: no {name}");
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
        ensure!(all.lines().any(told), "no kubevirt_vmi_info with {labels:?}");
        for line in [
            "kubevirt_virt_controller_leading_status 1",
            "kubevirt_virt_operator_leading_status 1",
            "kubevirt_virt_handler_ready_status 1.0",
            "kubevirt_virt_api_ready_status 1",
            "kubevirt_configuration_emulation_enabled 1.0",
        ] {
            ensure!(all.lines().any(|found| found == line), "no {line}");
        }
        Ok(())
    });
}

#[test]
fn bad_settings_are_refused_with_all_causes() {
    in_namespace("badsettings", |_| {
        let _alone = alone();
        wait_available()?;
        let patch = json!({"spec": bad()}).to_string();
        let refused =
            try_kubectl(&["patch", "kubevirt", "kubevirt", "-n", NAMESPACE, "--type=merge", "-p", &patch])?;
        ensure!(refused.code != 0, "it was taken");
        for field in BAD_FIELDS {
            ensure!(refused.text().contains(field), "{field}: {}", refused.text());
        }
        Ok(())
    });
}

/// Removes the operator and the admission of the object during a test; dropping it restores both, and the
/// object.
struct Unguarded {
    spec: Value,
    operators: String,
    away: bool,
}

impl Unguarded {
    fn begin() -> Result<Self> {
        let spec = kubevirt()?.context("there is no KubeVirt")?["spec"].clone();
        let deployment = object(&["deployment", "virt-operator", "-n", NAMESPACE])?.context("no operator")?;
        let operators = deployment["spec"]["replicas"].to_string();
        let unguarded = Unguarded { spec, operators, away: true };
        kubectl(&["scale", "-n", NAMESPACE, OPERATOR, "--replicas=0"])?;
        wait::until_true("the operator to be gone", ROLLOUT, || {
            Ok(objects(&["pod", "-n", NAMESPACE, "-l", "kubevirt.io=virt-operator"])?.is_empty())
        })?;
        kubectl(&[&["delete"], &WEBHOOK[..]].concat())?;
        Ok(unguarded)
    }

    fn guard(&mut self) -> Result<()> {
        self.away = false;
        kubectl(&["scale", "-n", NAMESPACE, OPERATOR, &format!("--replicas={}", self.operators)]).map(drop)
    }

    fn restore(&self) -> Result<()> {
        let patch = json!([{"op": "replace", "path": "/spec", "value": self.spec}]).to_string();
        kubectl(&["patch", "kubevirt", "kubevirt", "-n", NAMESPACE, "--type=json", "-p", &patch]).map(drop)
    }
}

impl Drop for Unguarded {
    fn drop(&mut self) {
        let restored = self.restore().and_then(|()| if self.away { self.guard() } else { Ok(()) });
        if let Err(error) = restored.and_then(|()| wait_available()) {
            eprintln!("the KubeVirt is not as it was: {error:#}");
        }
    }
}

#[test]
fn settings_that_slip_through_are_reported_and_the_last_good_ones_stay_in_force() {
    in_namespace("slipped", |namespace| {
        let _alone = alone();
        wait_available()?;
        let before = lives(RUNNING_COMPONENTS)?;
        let mut unguarded = Unguarded::begin()?;
        wait_in_force(before.keys())?;
        let good = version()?;

        installation::patch(&bad())?;
        let slipped = version()?;
        ensure!(slipped != good);
        for pod in before.keys() {
            let told = wait::until("the component to say that it does not take it", SOON, || {
                Ok(Some(health(pod)?)
                    .filter(|health| health["config-refused"]["resource-version"] == slipped))
            })?;
            ensure!(told["config-resource-version"] == good, "{pod}: {told}");
            for field in BAD_FIELDS {
                ensure!(told["config-refused"]["causes"].to_string().contains(field), "{pod}: {told}");
            }
        }
        // Guests are made with the good settings, which allow emulation.
        namespace.apply(&guest::instance("good"))?;
        let instance = namespace.wait_phase("good", "Running", RUNNING)?;
        ensure!(instance["spec"]["domain"]["resources"]["requests"]["cpu"].is_null(), "{}", instance["spec"]);

        unguarded.guard()?;
        let told = wait::until("the object to say what is wrong with it", ROLLOUT, || {
            Ok(kubevirt()?.filter(|object| {
                condition(object, "Synchronized")
                    == Some(("False".to_owned(), "InvalidConfiguration".to_owned()))
            }))
        })?;
        for field in BAD_FIELDS {
            ensure!(told["status"]["conditions"].to_string().contains(field), "{}", told["status"]);
        }
        ensure!(condition(&told, "Available").is_some_and(|(status, _)| status == "True"));
        wait::until_true("its admission to be back", ROLLOUT, || Ok(object(&WEBHOOK)?.is_some()))?;
        ensure!(lives(RUNNING_COMPONENTS)? == before, "a component was started anew");

        wait::until_true("the object to be put right", ROLLOUT, || {
            // The webhook may exist a moment before its server answers.
            Ok(unguarded.restore().is_ok())
        })?;
        let right = wait_available()?;
        ensure!(condition(&right, "Synchronized").is_none(), "{}", right["status"]);
        wait_in_force(before.keys())?;
        ensure!(lives(RUNNING_COMPONENTS)? == before, "a component was started anew");
        Ok(())
    });
}

fn node_names() -> Result<Vec<String>> {
    let nodes = objects(&["nodes", "-l", "kubevirt.io/schedulable"])?;
    Ok(nodes.iter().filter_map(|node| node["metadata"]["name"].as_str()).map(str::to_owned).collect())
}

fn has_label(node: &str, label: &str) -> Result<bool> {
    let node = object(&["node", node])?.context("the node is gone")?;
    Ok(node["metadata"]["labels"].get(label).is_some())
}

/// Removes from a node what the test added.
struct Marked<'a>(&'a str);

const IMAGINARY: &str = "cpu-model.node.kubevirt.io/imaginary";
const SKIP: &str = "node-labeller.kubevirt.io/skip-node";

impl Drop for Marked<'_> {
    fn drop(&mut self) {
        kubectl(&["annotate", "node", self.0, &format!("{SKIP}-")]).ok();
        kubectl(&["label", "node", self.0, &format!("{IMAGINARY}-")]).ok();
    }
}

#[test]
fn an_obsolete_model_is_on_no_node_and_a_host_of_it_takes_no_host_model() {
    in_namespace("obsolete", |namespace| {
        let _alone = alone();
        wait_available()?;
        let names = node_names()?;
        let first = names.first().context("no node")?;
        let host = object(&["node", first])?.context("the node is gone")?["metadata"]["labels"].clone();
        let host = host.as_object().and_then(|labels| {
            labels.keys().find_map(|label| label.strip_prefix("host-model-cpu.node.kubevirt.io/"))
        });
        let model = host.context("the node does not tell its model")?.to_owned();
        let offered = format!("cpu-model.node.kubevirt.io/{model}");
        ensure!(has_label(first, &offered)?, "{first} does not offer {model}");

        // Wrong labels are removed, except on a node with the annotation to skip it.
        let _marked: Vec<Marked> = names.iter().map(|name| Marked(name)).collect();
        for name in &names {
            kubectl(&["label", "node", name, &format!("{IMAGINARY}=true"), "--overwrite"])?;
        }
        let left_alone = names.get(1);
        if let Some(name) = left_alone {
            kubectl(&["annotate", "node", name, &format!("{SKIP}=true"), "--overwrite"])?;
        }
        let obsolete = json!({"configuration": {"obsoleteCPUModels": {model.clone(): true}}});
        let changed = Changed::begin(&obsolete)?;
        wait::until_true("the node not to offer the model any more", SOON, || {
            Ok(!has_label(first, &offered)?
                && !has_label(first, IMAGINARY)?
                && has_label(first, "node-labeller.kubevirt.io/obsolete-host-model")?)
        })?;
        if let Some(name) = left_alone {
            ensure!(has_label(name, IMAGINARY)? && has_label(name, &offered)?, "{name} was not left alone");
        }
        let events = ["get", "events", "-A", "--field-selector", "reason=HostModelIsObsolete", "-o", "name"];
        wait::until_true("the event", SOON, || Ok(!kubectl(&events)?.trim().is_empty()))?;

        // A machine rather than an instance: a kubelet that does not know yet that its node offers the model
        // again refuses the pod for good.
        let mut manifest = guest::machine("vm", "Always");
        guest::spec_of(&mut manifest)["nodeSelector"] = json!({"kubernetes.io/hostname": first});
        namespace.apply(&manifest)?;
        namespace.wait("vmi", "vm", "to find no node", SOON, |vmi| {
            let conditions = vmi["status"]["conditions"].as_array().cloned().unwrap_or_default();
            conditions.iter().any(|one| {
                one["type"] == "PodScheduled"
                    && one["status"] == "False"
                    && one["message"]
                        .as_str()
                        .is_some_and(|text| text.contains("didn't match Pod's node affinity/selector"))
            })
        })?;
        drop(changed);
        wait::until_true("the node to offer the model again", SOON, || {
            Ok(has_label(first, &offered)?
                && !has_label(first, "node-labeller.kubevirt.io/obsolete-host-model")?)
        })?;
        namespace.wait_phase("vm", "Running", RUNNING).map(drop)
    });
}

#[test]
fn without_its_gate_an_image_is_a_container_of_the_pod_and_no_volume() {
    in_namespace("imagevolumes", |namespace| {
        let _alone = alone();
        let containers = |name: &str| -> Result<usize> {
            namespace.apply(&guest::instance(name))?;
            namespace.wait_phase(name, "Running", RUNNING)?;
            let launcher = namespace.launcher(name)?;
            Ok(launcher["spec"]["containers"].as_array().map_or(0, Vec::len))
        };
        // The test cluster supports image volumes.
        ensure!(containers("volume")? == 1, "the image is no volume");
        let _changed = Changed::begin(&json!({"configuration": {"developerConfiguration": {
            "disabledFeatureGates": ["ImageVolume"],
        }}}))?;
        wait_in_force(lives(RUNNING_COMPONENTS)?.keys())?;
        ensure!(containers("container")? == 2, "the image is no container");
        Ok(())
    });
}

#[test]
fn a_cluster_that_keeps_no_serial_logs_keeps_those_that_are_asked_for() {
    in_namespace("seriallogs", |namespace| {
        let _alone = alone();
        let _changed = Changed::begin(&json!({"configuration": {"virtualMachineOptions": {
            "disableSerialConsoleLog": {},
        }}}))?;
        wait_in_force(lives(RUNNING_COMPONENTS)?.keys())?;
        let mut asks = guest::instance("asks");
        asks["spec"]["domain"]["devices"]["logSerialConsole"] = json!(true);
        for manifest in [&asks, &guest::instance("silent")] {
            namespace.apply(manifest)?;
        }
        let log = |name: &str| -> Result<String> {
            namespace.wait_phase(name, "Running", RUNNING)?;
            let launcher = namespace.launcher(name)?;
            let pod = launcher["metadata"]["name"].as_str().context("the launcher has no name")?.to_owned();
            let read = ["exec", &pod, "-c", "compute", "--", "/usr/bin/virt-launcher", "serial-log"];
            // The program fails if there is no log.
            Ok(namespace.try_kubectl(&read)?.stdout)
        };
        namespace.wait_phase("asks", "Running", RUNNING)?;
        wait::until_true("a log of the instance that asks for one", BOOT, || {
            Ok(log("asks")?.contains("guest-tiny login"))
        })?;
        // The guest with the silent log also runs, and its console works.
        Console::open(namespace, "silent")?.login(BOOT)?;
        let kept = log("silent")?;
        ensure!(!kept.contains("login"), "kept nevertheless: {kept}");
        Ok(())
    });
}

#[test]
fn a_guest_gets_downward_metrics_and_only_permitted_host_devices() {
    in_namespace("hostdevices", |namespace| {
        let _alone = alone();
        wait_available()?;
        let components = lives(RUNNING_COMPONENTS)?;
        let _changed = Changed::begin(&json!({"configuration": {
            "developerConfiguration": {"featureGates": ["DownwardMetrics", "HostDevices"]},
            "permittedHostDevices": {"pciHostDevices": [
                {"pciVendorSelector": "ffff:ffff", "resourceName": "e2e.test/none"}]},
        }}))?;
        wait_in_force(components.keys())?;

        let mut stranger = guest::instance("stranger");
        stranger["spec"]["domain"]["devices"]["hostDevices"] =
            json!([{"name": "card", "deviceName": "e2e.test/card"}]);
        namespace.apply(&stranger)?;

        let mut manifest = guest::instance("told");
        manifest["spec"]["domain"]["devices"]["downwardMetrics"] = json!({});
        guest::push(
            &mut manifest["spec"]["domain"]["devices"]["disks"],
            json!({"name": "metrics", "disk": {"bus": "virtio"}}),
        );
        guest::push(&mut manifest["spec"]["volumes"], json!({"name": "metrics", "downwardMetrics": {}}));
        namespace.apply(&manifest)?;
        let instance = namespace.wait_phase("told", "Running", RUNNING)?;
        let node = instance["status"]["nodeName"].as_str().context("it is on no node")?;
        let mut console = Console::open(namespace, "told")?;
        console.login(BOOT)?;
        let name = format!("<value>{node}</value>");
        // The disk of metrics begins with a magic number.
        let find = "for d in /sys/block/vd*; do d=/dev/${d##*/}; \
                    [ \"$(dd if=$d bs=4 count=1 2>/dev/null)\" = mvbd ] && echo $d; done";
        let disk = console.ok(find, SOON)?.trim().to_owned();
        ensure!(disk.starts_with("/dev/vd"), "no disk of metrics: {disk:?}");
        wait::until_true("the disk to tell of the node", SOON, || {
            // The guest caches what it has read before.
            let read = format!(
                "echo 3 >/proc/sys/vm/drop_caches; dd if={disk} bs=4096 count=2 2>/dev/null | grep -c '{name}'"
            );
            Ok(console.run(&read, SOON)?.0.trim() == "1")
        })?;
        let ask = "p=/dev/$(basename $(dirname $(grep -l vhostmd /sys/class/virtio-ports/*/name))); \
                   exec 3<>$p; printf 'GET /metrics/XML\\n\\n' >&3; timeout 5 head -n 8 <&3; exec 3>&-";
        let answer = console.ok(ask, SOON)?;
        ensure!(answer.contains("HostName") && answer.contains(&name), "{answer}");

        wait::until_true("the device to be refused by name", SOON, || {
            let vmi = namespace.need("vmi", "stranger")?;
            Ok(vmi["status"]["conditions"].as_array().is_some_and(|conditions| {
                conditions.iter().any(|condition| {
                    let message = condition["message"].as_str().unwrap_or_default();
                    condition["reason"] == "FailedCreate"
                        && message.contains("HostDevice e2e.test/card is not permitted")
                })
            }))
        })
    });
}

/// A guest with a second card by a binding plugin, on the network between the nodes, with that address.
fn by_plugin(name: &str, plugin: &str, node: &str, address: &str) -> Value {
    let mut manifest = guest::instance(name);
    manifest["spec"]["nodeSelector"] = json!({"kubernetes.io/hostname": node});
    let spec = guest::spec_of(&mut manifest);
    guest::push(
        &mut spec["domain"]["devices"]["interfaces"],
        json!({"name": "lan", "binding": {"name": plugin}}),
    );
    guest::push(&mut spec["networks"], json!({"name": "lan", "multus": {"networkName": "lan"}}));
    let mut manifest = guest::with_user_data(manifest, "#!/bin/sh\n");
    manifest["spec"]["volumes"][1]["cloudInitNoCloud"]["networkData"] = json!(format!(
        "version: 2\nethernets:\n  eth0:\n    dhcp4: true\n  eth1:\n    addresses: [{address}/24]\n"
    ));
    manifest
}

#[test]
fn guests_that_a_binding_plugin_joins_to_the_test_beds_network_reach_each_other() {
    in_namespace("plugin", |namespace| {
        let _alone = alone();
        wait_available()?;
        let components = lives(RUNNING_COMPONENTS)?;
        let _changed = Changed::begin(&json!({"configuration": {"network": {"binding": {
            "bare": {"domainAttachmentType": "managedTap", "migration": {"method": "link-refresh"},
                "computeResourceOverhead": {"requests": {"memory": "7Mi"}}},
        }}}}))?;
        wait_in_force(components.keys())?;
        let config = json!({"cniVersion": "1.0.0", "type": "bridge", "bridge": "lan0"});
        namespace.apply(&json!({
            "apiVersion": "k8s.cni.cncf.io/v1", "kind": "NetworkAttachmentDefinition",
            "metadata": {"name": "lan"}, "spec": {"config": config.to_string()},
        }))?;
        namespace.apply(&by_plugin("stranger", "other", "node01", "10.79.0.9"))?;
        namespace.apply(&by_plugin("first", "bare", "node01", "10.79.0.1"))?;
        namespace.apply(&by_plugin("second", "bare", "node02", "10.79.0.2"))?;
        for guest in ["first", "second"] {
            namespace.wait_phase(guest, "Running", RUNNING)?;
        }
        let mut console = Console::open(namespace, "first")?;
        console.login(BOOT)?;
        wait::until_true("the second guest to answer", BOOT, || {
            Ok(console.run("ping -c 1 -W 2 10.79.0.2", SOON)?.1 == 0)
        })?;
        console.leave()?;
        let event = namespace.wait_event("stranger", "FailedCreate")?;
        ensure!(event.contains("unable to find the network binding plugin 'other'"), "{event}");
        Ok(())
    });
}

#[test]
fn a_file_of_the_node_is_a_disk_where_gate_and_namespace_let_it_be() {
    in_namespace("hostdisk", |namespace| {
        let _alone = alone();
        wait_available()?;
        let components = lives(RUNNING_COMPONENTS)?;
        let gates = json!({"developerConfiguration": {"featureGates": ["HostDisk"]}});
        let _changed = Changed::begin(&json!({"configuration": gates}))?;
        wait_in_force(components.keys())?;

        let nodes = objects(&["node"])?;
        let name = nodes.first().and_then(|node| node["metadata"]["name"].as_str()).context("no node")?;
        let (node, directory) = (Node::named(name), format!("/var/tmp/{}", namespace.name()));
        node.sh(&format!("install -d -o 107 -g 107 {directory}"))?;
        let mut manifest = guest::instance("vm");
        manifest["spec"]["nodeSelector"] = json!({"kubernetes.io/hostname": name});
        guest::push(
            &mut manifest["spec"]["domain"]["devices"]["disks"],
            json!({"name": "data", "serial": "DATA", "disk": {"bus": "virtio"}}),
        );
        let source =
            json!({"path": format!("{directory}/data.img"), "type": "DiskOrCreate", "capacity": "16Mi"});
        guest::push(&mut manifest["spec"]["volumes"], json!({"name": "data", "hostDisk": source}));
        namespace.apply(&manifest)?;
        namespace.wait("vmi", "vm", "to be refused by Pod Security", SOON, |vmi| {
            vmi["status"]["conditions"].to_string().contains("hostPath")
        })?;
        namespace.enforce("privileged")?;
        namespace.wait_phase("vm", "Running", RUNNING)?;
        let mut console = Console::open(namespace, "vm")?;
        console.login(BOOT)?;
        let disk = "/dev/$(basename $(dirname $(grep -lx DATA /sys/block/*/serial)))";
        console.ok(&format!("echo kept >{disk} && sync"), SOON)?;
        console.leave()?;
        let found = node.sh(&format!("stat -c %s {directory}/data.img; head -c 4 {directory}/data.img"))?;
        ensure!(found.contains("16777216") && found.contains("kept"), "{found}");
        namespace.kubectl(&["delete", "vmi", "vm"])?;
        node.sh(&format!("rm -r {directory}")).map(drop)
    });
}
