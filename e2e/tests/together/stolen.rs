//! A stolen token of a handler gives rights only for the node that it was stolen from.

use anyhow::{Context, Result, ensure};
use barevirt_e2e::command::{kubectl, succeed};
use barevirt_e2e::curl::{Answer, curl, setting};
use barevirt_e2e::wait::{self, RUNNING, SOON};
use barevirt_e2e::{guest, handlers, in_namespace, pods};
use rcgen::{CertificateParams, DnType, KeyPair};
use serde_json::{Value, json};
use std::fs;
use std::process::Command;

/// A token of virt-handler's service account, used from elsewhere.
struct Stolen {
    token: String,
    server: String,
}

impl Stolen {
    /// A token like the one that the kubelet mounts into the pod, or one without a pod.
    fn of(pod: Option<&str>) -> Result<Self> {
        let mut create = vec!["create", "token", "kubevirt-handler", "-n", "kubevirt"];
        if let Some(name) = pod {
            create.extend(["--bound-object-kind=Pod", "--bound-object-name", name]);
        }
        let config: Value = serde_json::from_str(&kubectl(&["config", "view", "--minify", "-o", "json"])?)?;
        let server =
            config["clusters"][0]["cluster"]["server"].as_str().context("no server in kubeconfig")?;
        Ok(Self { token: kubectl(&create)?.trim().to_owned(), server: server.to_owned() })
    }

    fn request(&self, method: &str, path: &str, body: Option<&Value>) -> Result<Answer> {
        let mut settings = vec![
            setting("url", &format!("{}{path}", self.server)),
            setting("request", method),
            setting("header", &format!("Authorization: Bearer {}", self.token)),
        ];
        if let Some(body) = body {
            let media = if method == "PATCH" { "application/merge-patch+json" } else { "application/json" };
            settings.push(setting("header", &format!("Content-Type: {media}")));
            settings.push(setting("data", &body.to_string()));
        }
        curl(&settings)
    }

    fn may(&self, method: &str, path: &str, body: Option<&Value>) -> Result<()> {
        let answer = self.request(method, path, body)?;
        ensure!(answer.code == 200, "{method} {path} should be allowed: {answer:?}");
        Ok(())
    }

    fn may_not(&self, method: &str, path: &str, body: Option<&Value>, words: &str) -> Result<()> {
        let answer = self.request(method, path, body)?;
        // 403 comes from RBAC, 422 from the policy, which calls the object invalid.
        let refused = matches!(answer.code, 403 | 422);
        ensure!(refused && answer.body.contains(words), "{method} {path} should be refused: {answer:?}");
        Ok(())
    }
}

#[test]
fn a_stolen_token_of_a_handler_changes_nothing_on_another_node() {
    in_namespace("stolen", |namespace| {
        namespace.apply(&guest::without_system(guest::instance("vm")))?;
        let vmi = namespace.wait_phase("vm", "Running", RUNNING)?;
        let home = vmi["status"]["nodeName"].as_str().context("the instance is on no node")?;
        let handlers = handlers::pods()?;
        let (_, pod_at_home) = handlers.iter().find(|(node, _)| node == home).context("no handler there")?;
        let (away, pod_away) =
            handlers.iter().find(|(node, _)| node != home).context("this test needs two nodes")?;
        let own = Stolen::of(Some(pod_at_home))?;
        let stolen = Stolen::of(Some(pod_away))?;
        let of_no_pod = Stolen::of(None)?;

        let vmi = format!("/apis/kubevirt.io/v1/namespaces/{}/virtualmachineinstances/vm", namespace.name());
        let note = json!({ "metadata": { "annotations": { "e2e": "was-here" } } });
        let dead = json!({ "status": { "phase": "Failed" } });
        let moved = json!({ "status": { "nodeName": away } });
        stolen.may_not("PATCH", &vmi, Some(&note), "only allowed to modify VMIs it owns")?;
        stolen.may_not("PATCH", &vmi, Some(&dead), "only allowed to modify VMIs it owns")?;
        stolen.may_not("PATCH", &vmi, Some(&moved), "only allowed to modify VMIs it owns")?;
        of_no_pod.may_not("PATCH", &vmi, Some(&note), "missing node name")?;
        // The token of its own node's handler may report status, but may not hand the instance over.
        let report = json!({ "status": { "guestOSInfo": { "name": "e2e" } } });
        own.may("PATCH", &vmi, Some(&report))?;
        own.may_not("PATCH", &vmi, Some(&moved), "not allowed to set target node")?;
        // Nor may it bring claims to its node, or change the instance's owner or its launcher pod.
        let volumes = json!([{ "name": "loot", "persistentVolumeClaim": { "claimName": "of-another" } }]);
        for (change, words) in [
            (json!({ "spec": { "volumes": volumes } }), "modify spec"),
            (json!({ "spec": { "terminationGracePeriodSeconds": 1 } }), "modify spec"),
            (json!({ "metadata": { "labels": { "guest": "another" } } }), "modify labels"),
            (
                json!({ "metadata": { "labels": { "kubevirt.io/nodeName": away } } }),
                "label VMIs with the node",
            ),
            (note.clone(), "modify annotations"),
            (json!({ "metadata": { "finalizers": null } }), "modify finalizers"),
            (
                json!({ "metadata": { "ownerReferences": [{
                "apiVersion": "v1", "kind": "ConfigMap", "name": "a", "uid": "b",
            }] } }),
                "modify owners",
            ),
            (json!({ "status": { "activePods": { "another": home } } }), "which pod a VMI runs in"),
            (json!({ "status": { "selinuxContext": "a:b:c:s0-s0:c0.c1023" } }), "under which SELinux label"),
            (
                json!({ "status": { "migrationState": { "targetNode": away } } }),
                "not allowed to set target node",
            ),
            (
                json!({ "status": { "migrationState": { "migrationUid": "m" } } }),
                "not allowed to say what is migrated",
            ),
        ] {
            own.may_not("PATCH", &vmi, Some(&change), words)?;
        }

        let label = |value: Value| json!({ "metadata": { "labels": { "e2e.kubevirt.io/stolen": value } } });
        let foreign = json!({ "metadata": { "labels": { "node-role.kubernetes.io/stolen": "" } } });
        let taken = json!({ "metadata": { "labels": { "kubernetes.io/hostname": null } } });
        let node = |name: &str| format!("/api/v1/nodes/{name}");
        stolen.may_not("PATCH", &node(home), Some(&label(json!("yes"))), "cannot modify this node")?;
        of_no_pod.may_not("PATCH", &node(home), Some(&label(json!("yes"))), "missing node name")?;
        let cordon = json!({ "spec": { "unschedulable": true } });
        stolen.may_not("PATCH", &node(away), Some(&cordon), "cannot modify spec of node")?;
        stolen.may_not(
            "PATCH",
            &format!("{}/status", node(away)),
            Some(&label(json!("yes"))),
            "forbidden",
        )?;
        stolen.may_not("PATCH", &node(away), Some(&foreign), "cannot update non kubevirt-owned labels")?;
        stolen.may_not("PATCH", &node(away), Some(&taken), "cannot add/delete non kubevirt-owned labels")?;
        stolen.may("PATCH", &node(away), Some(&label(json!("yes"))))?;
        stolen.may("PATCH", &node(away), Some(&label(Value::Null)))?;

        let vmi = namespace.need("vmi", "vm")?;
        ensure!(
            vmi["status"]["phase"] == "Running" && vmi["status"]["nodeName"] == home,
            "{}",
            vmi["status"]
        );
        Ok(())
    });
}

#[test]
fn a_stolen_token_of_a_handler_reads_no_secret() {
    in_namespace("loot", |namespace| {
        namespace.kubectl(&["create", "secret", "generic", "password", "--from-literal=a=hidden"])?;
        namespace.kubectl(&["create", "configmap", "settings", "--from-literal=a=b"])?;
        let handlers = handlers::pods()?;
        let (_, pod) = handlers.first().context("no handler runs")?;
        let stolen = Stolen::of(Some(pod))?;
        // The token works for the tasks of a handler.
        stolen.may("GET", "/apis/kubevirt.io/v1/virtualmachineinstances", None)?;
        let own = format!("/api/v1/namespaces/{}", namespace.name());
        let install = "/api/v1/namespaces/kubevirt";
        let kubevirt = format!("/apis/kubevirt.io/v1/namespaces/{}", namespace.name());
        let calls = "/apis/subresources.kubevirt.io/v1/namespaces/default/virtualmachines/vm/start";
        let empty = json!({});
        for (method, path, body) in [
            ("GET", format!("{own}/secrets/password"), None),
            ("GET", format!("{own}/secrets"), None),
            ("GET", "/api/v1/secrets".to_owned(), None),
            ("GET", format!("{install}/secrets/kubevirt-ca"), None),
            ("GET", format!("{install}/secrets/kubevirt-virt-handler-certs"), None),
            ("GET", format!("{install}/secrets/kubevirt-virt-api-certs"), None),
            ("GET", "/apis/certificates.k8s.io/v1/certificatesigningrequests".to_owned(), None),
            ("GET", format!("{own}/configmaps/settings"), None),
            ("GET", format!("{own}/configmaps"), None),
            ("GET", format!("{install}/configmaps/kubevirt-ca"), None),
            ("POST", format!("{own}/pods"), Some(&empty)),
            ("POST", format!("{own}/serviceaccounts/default/token"), Some(&empty)),
            ("POST", format!("{kubevirt}/virtualmachineinstances"), Some(&empty)),
            ("DELETE", format!("{kubevirt}/virtualmachineinstances/vm"), None),
            ("PATCH", format!("{kubevirt}/virtualmachines/vm"), Some(&empty)),
            ("PUT", calls.to_owned(), Some(&empty)),
        ] {
            let answer = stolen.request(method, &path, body)?;
            ensure!(answer.code == 403, "{method} {path}: {answer:?}");
            ensure!(!answer.body.contains("hidden") && !answer.body.contains("aGlkZGVu"), "{method} {path}");
        }
        Ok(())
    });
}

/// A request for a certificate like a handler's, for that node.
fn certificate_request(node: &str, change: impl FnOnce(&mut Value)) -> Result<(Value, KeyPair)> {
    let mut params = CertificateParams::new(vec![format!("{node}.virt-handler.kubevirt")])?;
    params.distinguished_name = rcgen::DistinguishedName::new();
    params.distinguished_name.push(DnType::CommonName, "virt-handler");
    let key = KeyPair::generate()?;
    let encoded = succeed(Command::new("base64").arg("-w0"), Some(&params.serialize_request(&key)?.pem()?))?;
    let mut object = json!({
        "apiVersion": "certificates.k8s.io/v1", "kind": "CertificateSigningRequest",
        "metadata": {"generateName": "virt-handler-e2e-"},
        "spec": {
            "signerName": "barevirt.dev/virt-handler", "request": encoded,
            "usages": ["digital signature", "server auth"],
        },
    });
    change(&mut object);
    Ok((object, key))
}

/// The outcome of a request: the certificate, or the reason of its denial.
fn outcome(created: &Value) -> Result<std::result::Result<String, String>> {
    let name = created["metadata"]["name"].as_str().context("a name")?;
    let answered = wait::until(&format!("an answer to {name}"), SOON, || {
        let request = barevirt_e2e::command::object(&["csr", name])?.context("the request is gone")?;
        let denied = request["status"]["conditions"].as_array().into_iter().flatten();
        let denied = denied.into_iter().find(|condition| condition["type"] == "Denied");
        if let Some(denied) = denied {
            return Ok(Some(Err(denied["reason"].as_str().unwrap_or_default().to_owned())));
        }
        Ok(request["status"]["certificate"].as_str().map(|encoded| Ok(encoded.to_owned())))
    })?;
    kubectl(&["delete", "csr", name, "--ignore-not-found"])?;
    match answered {
        Ok(encoded) => Ok(Ok(succeed(Command::new("base64").arg("--decode"), Some(&encoded))?)),
        Err(reason) => Ok(Err(reason)),
    }
}

/// With a stolen token, an attacker can be the handler only of that node.
#[test]
fn a_stolen_token_gets_no_certificate_of_another_node() -> Result<()> {
    let handlers = handlers::pods()?;
    let [(home, pod), (away, _), ..] = handlers.as_slice() else {
        anyhow::bail!("this test needs two nodes")
    };
    let path = "/apis/certificates.k8s.io/v1/certificatesigningrequests";
    let asked = |stolen: &Stolen, object: &Value| -> Result<Value> {
        let answer = stolen.request("POST", path, Some(object))?;
        ensure!(answer.code == 201, "{answer:?}");
        Ok(serde_json::from_str(&answer.body)?)
    };
    let own = Stolen::of(Some(pod))?;
    let reason =
        |result: std::result::Result<String, String>| result.err().unwrap_or_else(|| "signed".to_owned());
    let (object, _) = certificate_request(away, |_| {})?;
    let denied = reason(outcome(&asked(&own, &object)?)?);
    ensure!(denied == "WrongNames", "another node: {denied}");
    let (object, _) = certificate_request(home, |object| {
        object["spec"]["usages"] = json!(["client auth", "digital signature"]);
    })?;
    let denied = reason(outcome(&asked(&own, &object)?)?);
    ensure!(denied == "WrongUsages", "a client's: {denied}");
    let (object, _) = certificate_request(home, |_| {})?;
    let denied = reason(outcome(&asked(&Stolen::of(None)?, &object)?)?);
    ensure!(denied == "UnknownNode", "of no pod: {denied}");
    // An administrator cannot request it either.
    let created =
        barevirt_e2e::command::try_kubectl_with(&["create", "-o", "json", "-f", "-"], &object.to_string())?;
    ensure!(created.code == 0, "{}", created.text());
    let denied = reason(outcome(&serde_json::from_str(&created.stdout)?)?);
    ensure!(denied == "WrongRequester", "an administrator: {denied}");

    // A certificate for its own node, which cannot be used as a client certificate.
    let (object, key) = certificate_request(home, |_| {})?;
    let certificate = match outcome(&asked(&own, &object)?)? {
        Ok(certificate) => certificate,
        Err(reason) => anyhow::bail!("its own is denied: {reason}"),
    };
    let folder = tempfile::tempdir()?;
    let file = |name: &str, text: &str| -> Result<String> {
        let path = folder.path().join(name);
        fs::write(&path, text)?;
        Ok(path.to_string_lossy().into_owned())
    };
    let shown = [
        setting("cert", &file("own.crt", &certificate)?),
        setting("key", &file("own.key", &key.serialize_pem())?),
    ];
    let (_, address) = handlers::addresses()?
        .into_iter()
        .find(|(node, _)| node == away)
        .context("no handler is ready there")?;
    let mut settings = vec![setting("url", &format!("https://{}:8186/healthz", pods::host(&address)))];
    settings.extend_from_slice(&shown);
    let answer = curl(&settings)?;
    ensure!(answer.code == 0, "a handler's certificate was taken for a client's: {answer:?}");
    // The token may not approve its request, nor use another signer.
    let approve = json!({"status": {"conditions": [{"type": "Approved", "status": "True", "reason": "x"}]}});
    own.may_not("PATCH", &format!("{path}/virt-handler-any/approval"), Some(&approve), "forbidden")?;
    let (object, _) = certificate_request(home, |object| {
        object["spec"]["signerName"] = json!("kubernetes.io/kube-apiserver-client");
        object["spec"]["usages"] = json!(["client auth", "digital signature"]);
    })?;
    own.may_not("POST", path, Some(&object), "only allowed to ask barevirt.dev/virt-handler")
}
