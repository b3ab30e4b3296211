//! Settings that take effect, are refused, or slip through.

use anyhow::{Context, Result, ensure};
use barevirt_e2e::command::{kubectl, object, objects, try_kubectl, try_virtctl, virtctl};
use barevirt_e2e::components::{ALL_COMPONENTS, RUNNING_COMPONENTS, health, lives, version, wait_in_force};
use barevirt_e2e::harm::component_is_ready;
use barevirt_e2e::installation::{self, Changed, NAMESPACE, ROLLOUT, condition, kubevirt, wait_available};
use barevirt_e2e::wait::{self, RUNNING, SOON};
use barevirt_e2e::{Node, alone, guest, in_namespace};
use serde_json::{Value, json};

const OPERATOR: &str = "deployment/virt-operator";
const WEBHOOK: [&str; 2] = ["validatingwebhookconfiguration", "virt-operator-validator"];

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
            ensure!(lives(ALL_COMPONENTS)? == before, "a component was restarted");

            // Each handler logs that its level has changed.
            for pod in before.keys().filter(|name| name.starts_with("virt-handler-")) {
                wait::until_true("the handler to take its level over", SOON, || {
                    let log = kubectl(&["logs", "-n", NAMESPACE, pod, "--since=5m"])?;
                    Ok(log.lines().any(|line| line.contains("log level") && line.contains("virt_=trace")))
                })?;
            }
            // A new start uses the current settings.
            namespace.apply(&guest::without_system(guest::instance("acme")))?;
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
        ensure!(lives(ALL_COMPONENTS)? == before, "a component was restarted");
        Ok(())
    });
}

#[test]
fn virtctl_sets_and_resets_log_levels() {
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
        // Until operators are back, the object's status is that from before.
        let back =
            restored.and_then(|()| component_is_ready("virt-operator")).and_then(|()| wait_available());
        if let Err(error) = back {
            eprintln!("the KubeVirt is not as it was: {error:#}");
        }
    }
}

#[test]
fn stored_invalid_settings_are_reported_and_the_last_good_ones_stay_in_force() {
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
        namespace.apply(&guest::without_system(guest::instance("good")))?;
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
        ensure!(lives(RUNNING_COMPONENTS)? == before, "a component was restarted");

        wait::until_true("the object to be put right", ROLLOUT, || {
            // The webhook may exist a moment before its server answers.
            Ok(unguarded.restore().is_ok())
        })?;
        let right = wait_available()?;
        ensure!(condition(&right, "Synchronized").is_none(), "{}", right["status"]);
        wait_in_force(before.keys())?;
        ensure!(lives(RUNNING_COMPONENTS)? == before, "a component was restarted");
        Ok(())
    });
}
