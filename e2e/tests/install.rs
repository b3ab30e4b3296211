//! The operator keeps the installation as the KubeVirt object says: deleted or edited objects are restored,
//! changes of the object take effect, and impossible settings are named.

use anyhow::{Context, Result, ensure};
use barevirt_e2e::command::{kubectl, object, objects, repository, try_kubectl, try_kubectl_with, virtctl};
use barevirt_e2e::components::{health, lives, raw, wait_in_force};
use barevirt_e2e::installation::{
    self, CLUSTER_KINDS, Changed, MANAGED, NAMESPACE, ROLLOUT, condition, kubevirt, wait_available,
};
use barevirt_e2e::wait::{self, SOON};
use barevirt_e2e::{alone, in_namespace};
use serde_json::{Value, json};
use std::collections::BTreeMap;

fn uid(object: &Value) -> String {
    object["metadata"]["uid"].as_str().unwrap_or_default().to_owned()
}

fn local<'a>(kind: &'a str, name: &'a str) -> [&'a str; 4] {
    [kind, name, "-n", NAMESPACE]
}

fn need(arguments: &[&str]) -> Result<Value> {
    object(arguments)?.with_context(|| format!("there is no {arguments:?}"))
}

/// Deletes an object, and waits for the new one.
fn comes_back(arguments: &[&str]) -> Result<Value> {
    let before = uid(&need(arguments)?);
    kubectl(&[&["delete", "--wait=false"], arguments].concat())?;
    wait::until(&format!("{arguments:?} to come back"), SOON, || {
        Ok(object(arguments)?
            .filter(|object| uid(object) != before && object["metadata"]["deletionTimestamp"].is_null()))
    })
}

#[test]
fn the_kubevirt_object_reports_that_everything_runs() {
    in_namespace("status", |_| {
        let _alone = alone();
        let kubevirt = wait_available()?;
        let status = &kubevirt["status"];
        ensure!(status["phase"] == "Deployed", "{status}");
        for (type_, expected) in [
            ("Created", ("True", "AllResourcesCreated")),
            ("Available", ("True", "AllComponentsReady")),
            ("Progressing", ("False", "AllComponentsReady")),
            ("Degraded", ("False", "AllComponentsReady")),
        ] {
            let found = condition(&kubevirt, type_).with_context(|| format!("no condition {type_}"))?;
            ensure!((found.0.as_str(), found.1.as_str()) == expected, "{type_}: {found:?}");
        }
        for (one, other) in [
            ("observedDeploymentID", "targetDeploymentID"),
            ("observedKubeVirtVersion", "targetKubeVirtVersion"),
            ("observedKubeVirtRegistry", "targetKubeVirtRegistry"),
        ] {
            ensure!(status[one].is_string() && status[one] == status[other], "{one}: {status}");
        }
        ensure!(
            status["operatorVersion"].is_string() && status["defaultArchitecture"] == "amd64",
            "{status}"
        );
        ensure!(
            kubevirt["metadata"]["finalizers"].to_string().contains("foregroundDeleteKubeVirt"),
            "{}",
            kubevirt["metadata"]
        );
        // KubeVirt's tools find the components' pods, and those that are new, in this way.
        let pods = objects(&["pod", "-n", NAMESPACE, "-l", &format!("kubevirt.io,{MANAGED}")])?;
        ensure!(pods.len() >= 5, "{} pods of components", pods.len());
        // Those of a test before may still be ending.
        for pod in pods.iter().filter(|pod| pod["metadata"]["deletionTimestamp"].is_null()) {
            let annotations = &pod["metadata"]["annotations"];
            let id = &annotations["kubevirt.io/install-strategy-identifier"];
            ensure!(*id == status["observedDeploymentID"], "{}", pod["metadata"]);
            let version = &annotations["kubevirt.io/install-strategy-version"];
            ensure!(*version == status["observedKubeVirtVersion"], "{}", pod["metadata"]);
        }
        Ok(())
    });
}

#[test]
fn deleted_objects_of_the_installation_come_back() {
    in_namespace("deleted", |_| {
        let _alone = alone();
        wait_available()?;
        comes_back(&local("daemonset", "virt-handler"))?;
        comes_back(&["clusterrole", "kubevirt-controller"])?;
        comes_back(&["clusterrolebinding", "kubevirt-controller"])?;
        comes_back(&local("service", "virt-api"))?;
        comes_back(&["apiservice", "v1.subresources.kubevirt.io"])?;
        let webhooks = comes_back(&["validatingwebhookconfiguration", "virt-api-validator"])?;
        let first = &webhooks["webhooks"][0]["clientConfig"];
        ensure!(first["caBundle"].as_str().is_some_and(|bundle| !bundle.is_empty()), "{first}");
        wait_available().map(drop)
    });
}

#[test]
fn edited_objects_of_the_installation_are_restored() {
    in_namespace("edited", |_| {
        let _alone = alone();
        wait_available()?;
        let role = ["clusterrole", "kubevirt-controller"];
        let rules = need(&role)?["rules"].clone();
        kubectl(&["patch", "clusterrole", "kubevirt-controller", "--type=merge", "-p", r#"{"rules": []}"#])?;
        wait::until_true("the rules to be back", SOON, || Ok(need(&role)?["rules"] == rules))?;

        let api = local("deployment", "virt-api");
        kubectl(&["scale", "-n", NAMESPACE, "deployment/virt-api", "--replicas=5"])?;
        wait::until_true("virt-api to be two again", SOON, || Ok(need(&api)?["spec"]["replicas"] == 2))?;
        // Added fields are removed too.
        kubectl(&["set", "env", "-n", NAMESPACE, "deployment/virt-api", "OF_SOMEBODY=1"])?;
        wait::until_true("the variable to be gone", SOON, || {
            Ok(!need(&api)?["spec"].to_string().contains("OF_SOMEBODY"))
        })?;
        secrets_of_certificates_are_restored()?;
        wait_available().map(drop)
    });
}

/// One that is empty, and one that has lost the operator's label.
fn secrets_of_certificates_are_restored() -> Result<()> {
    let secret = local("secret", "kubevirt-controller-certs");
    let empty = r#"{"data": {"tls.crt": "", "tls.key": ""}}"#;
    kubectl(&[&["patch"][..], &secret[..], &["--type=merge", "-p", empty]].concat())?;
    wait::until_true("the certificate to be back", SOON, || {
        let data = need(&secret)?["data"].clone();
        Ok(["tls.crt", "tls.key"].iter().all(|key| data[*key].as_str().is_some_and(|text| !text.is_empty())))
    })?;
    kubectl(&[&["label"][..], &secret[..], &["app.kubernetes.io/managed-by-"]].concat())?;
    wait::until_true("the label to be back", SOON, || {
        Ok(need(&secret)?["metadata"]["labels"]["app.kubernetes.io/managed-by"] == "virt-operator")
    })
}

#[test]
fn replicas_of_the_infrastructure_are_those_of_the_kubevirt() {
    in_namespace("replicas", |_| {
        let _alone = alone();
        wait_available()?;
        {
            let _one = Changed::begin(&json!({"infra": {"replicas": 1}}))?;
            wait_available()?;
            for name in ["virt-api", "virt-controller"] {
                ensure!(need(&local("deployment", name))?["spec"]["replicas"] == 1, "{name}");
            }
            wait::until_true("budgets of single pods to be gone", SOON, || {
                Ok(object(&local("pdb", "virt-api-pdb"))?.is_none())
            })?;
        }
        ensure!(need(&local("deployment", "virt-api"))?["spec"]["replicas"] == 2);
        need(&local("pdb", "virt-api-pdb")).map(drop)
    });
}

#[test]
fn components_are_customized_by_flags_and_patches() {
    in_namespace("customize", |_| {
        let _alone = alone();
        wait_available()?;
        let patch = r#"{"spec": {"template": {"spec": {"containers": [
            {"name": "virt-controller", "env": [{"name": "RUST_LOG", "value": "info"}]}]}}}}"#;
        let _changed = Changed::begin(&json!({"customizeComponents": {
            "flags": {"controller": {"node-grace-seconds": "299"}},
            "patches": [{
                "resourceType": "Deployment", "resourceName": "virt-controller", "type": "strategic", "patch": patch,
            }],
        }}))?;
        let kubevirt = wait_available()?;
        let controller = need(&local("deployment", "virt-controller"))?;
        let written_for = &controller["metadata"]["annotations"]["kubevirt.io/generation"];
        let generation = kubevirt["metadata"]["generation"].to_string();
        ensure!(*written_for == generation.as_str(), "{written_for} and {generation}");
        let container = controller["spec"]["template"]["spec"]["containers"][0].clone();
        ensure!(container["args"].to_string().contains("--node-grace-seconds=299"), "{container}");
        let variables = container["env"].to_string();
        ensure!(variables.contains("RUST_LOG") && variables.contains("POD_NAME"), "{variables}");
        Ok(())
    });
}

/// A patch of an object that does not exist is named: at admission, or in a condition while everything goes
/// on.
#[test]
fn an_impossible_setting_is_named_and_the_installation_goes_on() {
    in_namespace("refused", |_| {
        let _alone = alone();
        let before = wait_available()?;
        let patch = json!({"customizeComponents": {"patches": [{
            "resourceType": "Deployment", "resourceName": "virt-nothing", "type": "merge", "patch": "{}",
        }]}});
        match Changed::begin(&patch) {
            Err(refusal) => ensure!(format!("{refusal:#}").contains("virt-nothing"), "{refusal:#}"),
            Ok(_changed) => {
                let told = wait::until("the condition", SOON, || {
                    Ok(kubevirt()?.filter(|object| {
                        condition(object, "Synchronized").is_some_and(|(status, _)| status == "False")
                    }))
                })?;
                ensure!(told["status"].to_string().contains("virt-nothing"), "{}", told["status"]);
                ensure!(condition(&told, "Available").is_some_and(|(status, _)| status == "True"));
                ensure!(told["status"]["observedGeneration"] == before["status"]["observedGeneration"]);
            }
        }
        wait_available().map(drop)
    });
}

#[test]
fn a_second_kubevirt_has_no_effect() {
    in_namespace("second", |namespace| {
        let _alone = alone();
        wait_available()?;
        let second = json!({
            "apiVersion": "kubevirt.io/v1", "kind": "KubeVirt",
            "metadata": {"name": "second", "namespace": namespace.name()},
            "spec": {"infra": {"replicas": 1}},
        });
        let answer = try_kubectl_with(&["apply", "-f", "-"], &second.to_string())?;
        if answer.code == 0 {
            namespace.wait("kubevirt", "second", "to report that it is ignored", SOON, |object| {
                condition(object, "Synchronized").is_some_and(|(_, reason)| reason == "ExistingDeployment")
            })?;
            ensure!(need(&local("deployment", "virt-api"))?["spec"]["replicas"] == 2);
            namespace.delete("kubevirt", "second")?;
        }
        wait_available().map(drop)
    });
}

/// The operator is killed at a random moment of a change, and the next one goes on.
#[test]
fn an_operator_that_is_killed_while_it_works_goes_on() {
    in_namespace("killoperator", |_| {
        let _alone = alone();
        wait_available()?;
        {
            let _changed = Changed::begin(&json!({"infra": {"replicas": 1}}))?;
            installation::kill("virt-operator")?;
            kubectl(&["delete", "--wait=false", "-n", NAMESPACE, "daemonset", "virt-handler"])?;
            // The status may have been written before the end.
            wait::until_true("all of it to be as asked for", ROLLOUT, || {
                let controller = need(&local("deployment", "virt-controller"))?;
                let handler = object(&local("daemonset", "virt-handler"))?;
                Ok(controller["spec"]["replicas"] == 1
                    && handler.is_some_and(|handler| handler["metadata"]["deletionTimestamp"].is_null()))
            })?;
        }
        wait_available().map(drop)
    });
}

/// The operator's pod is deleted again and again, while there is something to repair.
#[test]
fn an_operator_that_is_replaced_repeatedly_restores_everything() {
    in_namespace("replaceoperator", |_| {
        let _alone = alone();
        wait_available()?;
        for (kind, name) in [
            ("daemonset", "virt-handler"),
            ("validatingwebhookconfiguration", "virt-api-validator"),
            ("clusterrole", "kubevirt-controller"),
        ] {
            let namespace: &[&str] = if kind == "daemonset" { &["-n", NAMESPACE] } else { &[] };
            kubectl(&[&["delete", "--wait=false", kind, name], namespace].concat())?;
            installation::replace_leader("virt-operator")?;
        }
        for arguments in [
            &local("daemonset", "virt-handler")[..],
            &["validatingwebhookconfiguration", "virt-api-validator"],
            &["clusterrole", "kubevirt-controller"],
        ] {
            wait::until_true(&format!("{arguments:?} to be back"), ROLLOUT, || {
                Ok(object(arguments)?.is_some_and(|object| object["metadata"]["deletionTimestamp"].is_null()))
            })?;
        }
        kubectl(&["rollout", "status", "-n", NAMESPACE, "daemonset/virt-handler", "--timeout=180s"])?;
        kubectl(&["rollout", "status", "-n", NAMESPACE, "deployment/virt-operator", "--timeout=90s"])?;
        wait_available().map(drop)
    });
}

/// While virt-api is away, a change that brings it back can be written, and wrong changes are still refused.
#[test]
fn the_kubevirt_can_be_changed_while_virt_api_is_away() {
    in_namespace("withoutapi", |_| {
        let _alone = alone();
        wait_available()?;
        let gone = json!({"customizeComponents": {"patches": [{
            "resourceType": "Deployment", "resourceName": "virt-api", "type": "merge", "patch": r#"{"spec": {"replicas": 0}}"#,
        }]}});
        {
            let _without = Changed::begin(&gone)?;
            wait::until_true("virt-api to be gone", ROLLOUT, || {
                Ok(objects(&["pod", "-n", NAMESPACE, "-l", "kubevirt.io=virt-api"])?.is_empty())
            })?;
            let patch = r#"{"spec": {"synchronizationPort": "1"}}"#;
            let refused = try_kubectl(&[
                "patch",
                "kubevirt",
                "kubevirt",
                "-n",
                NAMESPACE,
                "--type=merge",
                "-p",
                patch,
            ])?;
            ensure!(refused.code != 0, "it was taken");
            ensure!(refused.text().contains("spec.synchronizationPort"), "{}", refused.text());
            installation::patch(&json!({"productName": "without-api"}))?;
        }
        need(&local("deployment", "virt-api")).map(|api| api["spec"]["replicas"] == 2).and_then(|two| {
            ensure!(two, "virt-api is not back");
            Ok(())
        })
    });
}

/// The definitions of Prometheus' operator, without schemas, during a test.
struct PrometheusKinds;

impl PrometheusKinds {
    const NAMES: [(&'static str, &'static str); 2] =
        [("ServiceMonitor", "servicemonitors"), ("PrometheusRule", "prometheusrules")];

    fn define() -> Result<Self> {
        let kinds = PrometheusKinds;
        for (kind, plural) in Self::NAMES {
            let definition = json!({
                "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
                "metadata": {"name": format!("{plural}.monitoring.coreos.com")},
                "spec": {
                    "group": "monitoring.coreos.com", "scope": "Namespaced",
                    "names": {"kind": kind, "plural": plural, "singular": kind.to_lowercase()},
                    "versions": [{
                        "name": "v1", "served": true, "storage": true,
                        "schema": {"openAPIV3Schema": {
                            "type": "object", "x-kubernetes-preserve-unknown-fields": true,
                        }},
                    }],
                },
            });
            let answer = try_kubectl_with(&["apply", "-f", "-"], &definition.to_string())?;
            ensure!(answer.code == 0, "{}", answer.text());
        }
        Ok(kinds)
    }
}

impl Drop for PrometheusKinds {
    fn drop(&mut self) {
        for (_, plural) in Self::NAMES {
            let name = format!("{plural}.monitoring.coreos.com");
            if let Err(error) = kubectl(&["delete", "crd", &name, "--ignore-not-found"]) {
                eprintln!("{name} is left: {error:#}");
            }
        }
    }
}

#[test]
fn monitoring_objects_are_installed_if_prometheus_operator_is_there() {
    in_namespace("monitoring", |namespace| {
        let _alone = alone();
        wait_available()?;
        let service = need(&local("service", "kubevirt-prometheus-metrics"))?;
        ensure!(service["spec"]["selector"]["prometheus.kubevirt.io"] == "true", "{}", service["spec"]);
        let _kinds = PrometheusKinds::define()?;
        namespace.kubectl(&["create", "serviceaccount", "watcher"])?;
        let changed =
            Changed::begin(&json!({"monitorNamespace": namespace.name(), "monitorAccount": "watcher"}))?;
        // The operator looks for the kinds at intervals.
        let monitor =
            namespace.wait("servicemonitor", "prometheus-kubevirt-rules", "to be made", ROLLOUT, |_| true)?;
        ensure!(
            monitor["spec"]["namespaceSelector"]["matchNames"] == json!([NAMESPACE]),
            "{}",
            monitor["spec"]
        );
        let rule =
            wait::until("the rules", SOON, || object(&local("prometheusrule", "prometheus-kubevirt-rules")))?;
        let spec = rule["spec"].to_string();
        ensure!(spec.contains("VirtAPIDown") && spec.contains("runbooks/VirtAPIDown"), "{spec}");
        let binding = need(&local("rolebinding", "kubevirt-monitoring"))?;
        ensure!(binding["subjects"][0]["namespace"] == namespace.name(), "{}", binding["subjects"]);
        wait_available()?;
        // Objects that are no longer wanted are deleted.
        drop(changed);
        wait::until_true("the binding to be gone", ROLLOUT, || {
            Ok(object(&local("rolebinding", "kubevirt-monitoring"))?.is_none())
        })
    });
}

/// Resource versions of objects that only the operator writes.
fn versions() -> Result<BTreeMap<String, String>> {
    let quiet = CLUSTER_KINDS.replace("crd,", "").replace(",apiservice", "");
    let found = objects(&[&quiet, "-l", MANAGED])?;
    Ok(found
        .iter()
        .map(|object| {
            let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
            (
                format!("{} {}", text(&object["kind"]), text(&object["metadata"]["name"])),
                text(&object["metadata"]["resourceVersion"]),
            )
        })
        .collect())
}

#[test]
fn a_new_leader_writes_only_what_has_to_change() {
    in_namespace("quiet", |_| {
        let _alone = alone();
        wait_available()?;
        let before = versions()?;
        ensure!(before.len() > 10, "{before:?}");
        installation::kill("virt-operator")?;
        let killed = jiff::Timestamp::now();
        wait::until_true("one to lead again", ROLLOUT, || {
            let lease = need(&local("lease", "virt-operator"))?;
            let renewed = lease["spec"]["renewTime"].as_str().unwrap_or_default().parse::<jiff::Timestamp>();
            Ok(renewed.is_ok_and(|renewed| renewed > killed))
        })?;
        // When it has restored this object, it has checked all objects.
        comes_back(&["clusterrolebinding", "kubevirt-handler"])?;
        let mut after = versions()?;
        after.insert(
            "ClusterRoleBinding kubevirt-handler".to_owned(),
            before["ClusterRoleBinding kubevirt-handler"].clone(),
        );
        ensure!(before == after, "before {before:?}, after {after:?}");
        Ok(())
    });
}

/// A chart creates the definition and never changes it: the operator updates it to its version.
#[test]
fn a_new_leader_restores_the_definition_of_the_kubevirt_kind() {
    in_namespace("definition", |_| {
        let _alone = alone();
        wait_available()?;
        let definition = ["crd", "kubevirts.kubevirt.io"];
        let field = "/spec/versions/0/schema/openAPIV3Schema/properties/spec/properties/productComponent";
        ensure!(need(&definition)?.pointer(field).is_some(), "the definition has no {field}");
        let patch = json!([{"op": "remove", "path": field}]).to_string();
        kubectl(&[&["patch"], &definition[..], &["--type=json", "-p", &patch]].concat())?;
        ensure!(need(&definition)?.pointer(field).is_none(), "{field} is still there");
        installation::kill("virt-operator")?;
        wait::until_true("the field to be back", ROLLOUT, || {
            Ok(need(&definition)?.pointer(field).is_some())
        })?;
        wait_available().map(drop)
    });
}

#[test]
fn the_operator_reports_its_health() {
    in_namespace("healthz", |_| {
        let _alone = alone();
        // Those that a test before has killed answer after a pause, and one leads once the lease is over.
        let operators = wait::until("two operators to answer, and one to lead", ROLLOUT, || {
            let mut operators = Vec::new();
            for name in lives("kubevirt.io=virt-operator")?.into_keys() {
                let Ok(health) = health(&name) else { return Ok(None) };
                operators.push((name, health));
            }
            let leading = operators.iter().filter(|(_, health)| health["leading"] == true).count();
            Ok((operators.len() == 2 && leading == 1).then_some(operators))
        })?;
        for (name, health) in &operators {
            ensure!(health["apiserver"]["connectivity"] == "ok", "{health}");
            let metrics = raw(name, "metrics")?;
            ensure!(metrics.contains("kubevirt_virt_operator_ready_status 1"), "{metrics}");
        }
        let leading = operators.iter().filter(|(_, health)| health["leading"] == true);
        wait_in_force(leading.map(|(name, _)| name))
    });
}

#[test]
fn virtctl_reports_the_installation_and_applies_it_again_without_a_change() {
    in_namespace("virtctl-install", |_| {
        let _alone = alone();
        let status = wait_available()?["status"].clone();
        let version = status["observedKubeVirtVersion"].as_str().context("no version")?;

        let told = virtctl(&["status"])?;
        for words in
            ["kubevirt/kubevirt: Deployed", version, "virt-handler", "Available       yes", "Machines"]
        {
            ensure!(told.contains(words), "{words:?} is not in {told}");
        }
        let json: Value = serde_json::from_str(&virtctl(&["status", "--output", "json"])?)?;
        ensure!(json["installed"] == true && json["version"] == version, "{json}");
        ensure!(
            json["machines"].is_u64() && json["components"].as_array().is_some_and(|all| all.len() == 4),
            "{json}"
        );

        // It fails if a finding is a problem.
        let findings: Value = serde_json::from_str(&virtctl(&["doctor", "--output", "json"])?)?;
        for area in ["nodes", "components", "versions", "certificates", "admission"] {
            let known = findings.as_array().is_some_and(|all| all.iter().any(|one| one["area"] == area));
            ensure!(known, "doctor says nothing about {area}: {findings}");
        }
        let certificates =
            findings.as_array().into_iter().flatten().find(|one| one["area"] == "certificates");
        ensure!(certificates.is_some_and(|one| one["verdict"] == "ok"), "{findings}");

        // Applying the same manifest again changes nothing.
        let operator = local("deployment", "virt-operator");
        let before = need(&operator)?;
        let manifests = repository().join("manifests");
        let manifests = manifests.to_str().context("the path is text")?;
        let told = virtctl(&["install", "--from", manifests, "--timeout", "3m"])?;
        ensure!(told.contains(&format!("Barevirt {version} is available")), "{told}");
        let after = need(&operator)?;
        ensure!(
            uid(&before) == uid(&after)
                && before["metadata"]["generation"] == after["metadata"]["generation"],
            "virt-operator was changed"
        );
        Ok(())
    });
}
