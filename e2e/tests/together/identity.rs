//! Who is believed: only the API server's aggregator may speak for users at virt-api, only virt-api is answered by handlers,
//! and a handler's stolen token is worth no more than the node it was stolen from. Stale and wrong certificates are made
//! with the real authorities' keys, which only an administrator can read.

use anyhow::{Context, Result, ensure};
use barevirt_e2e::command::{Output, cluster_script, kubectl, objects, run, succeed};
use barevirt_e2e::wait::{self, RUNNING, SOON};
use barevirt_e2e::{guest, in_namespace, pods};
use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    date_time_ymd,
};
use serde_json::{Value, json};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use tempfile::TempDir;

/// What a server answered.
#[derive(Debug)]
struct Answer {
    code: u16,
    body: String,
}

/// `curl` with these settings, as in its configuration file: they stay out of the process list.
fn curl(settings: &[String]) -> Result<Answer> {
    let mut text =
        String::from("silent\nshow-error\ninsecure\nmax-time = 20\nwrite-out = \"\\n%{http_code}\"\n");
    for setting in settings {
        text.push_str(setting);
        text.push('\n');
    }
    let output = run(Command::new("curl").args(["--config", "-"]), Some(&text))?;
    let (body, code) = output.stdout.rsplit_once('\n').context("curl said nothing")?;
    let code = code.trim().parse().with_context(|| format!("no status code: {}", output.text()))?;
    Ok(Answer { code, body: format!("{body}{}", output.stderr) })
}

/// A setting whose value is a text.
fn setting(name: &str, value: &str) -> String {
    format!("{name} = \"{}\"", value.replace('\\', "\\\\").replace('"', "\\\""))
}

/// Certificates of people who would like to be the aggregator.
struct Forgery {
    folder: TempDir,
    front_proxy: Issuer<'static, KeyPair>,
    another: Issuer<'static, KeyPair>,
}

/// An authority of the very name of a real one, with a key of its own.
fn pretender(name: &str) -> Result<Issuer<'static, KeyPair>> {
    let mut params = CertificateParams::default();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    params.distinguished_name.push(DnType::CommonName, name);
    Ok(Issuer::new(params, KeyPair::generate()?))
}

/// The authority of the installation, with its key.
fn installations_own() -> Result<Issuer<'static, KeyPair>> {
    let path = "/api/v1/namespaces/kubevirt/secrets/kubevirt-ca";
    let secret: Value = serde_json::from_str(&kubectl(&["get", "--raw", path])?)?;
    let part = |name: &str| -> Result<String> {
        let encoded = secret["data"][name].as_str().with_context(|| format!("no {name}"))?;
        succeed(Command::new("base64").arg("--decode"), Some(encoded))
    };
    Ok(Issuer::from_ca_cert_pem(&part("tls.crt")?, KeyPair::from_pem(&part("tls.key")?)?)?)
}

impl Forgery {
    /// With the key of the cluster's own front-proxy authority, which lies beside its kubeconfig.
    fn prepare() -> Result<Self> {
        let kubeconfig = succeed(&mut cluster_script("kubeconfig.sh"), None)?;
        let pki = Path::new(kubeconfig.trim()).with_file_name("pki");
        let certificate = fs::read_to_string(pki.join("front-proxy-ca.crt"))
            .with_context(|| format!("no front-proxy authority in {}", pki.display()))?;
        let mut to_pkcs8 = Command::new("openssl");
        to_pkcs8.args(["pkcs8", "-topk8", "-nocrypt", "-in"]).arg(pki.join("front-proxy-ca.key"));
        let key = KeyPair::from_pem(&succeed(&mut to_pkcs8, None)?)?;
        let front_proxy = Issuer::from_ca_cert_pem(&certificate, key)?;
        let another = pretender("front-proxy-ca")?;
        Ok(Self { folder: tempfile::tempdir()?, front_proxy, another })
    }

    /// A client certificate of that name, and its key: the settings for `curl`.
    fn certificate(
        &self,
        issuer: &Issuer<'static, KeyPair>,
        name: &str,
        change: impl FnOnce(&mut CertificateParams),
    ) -> Result<Vec<String>> {
        let mut params = CertificateParams::default();
        params.distinguished_name.push(DnType::CommonName, name);
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
        change(&mut params);
        let key = KeyPair::generate()?;
        // Each in files of its own: several are in use at a time.
        let number = fs::read_dir(self.folder.path())?.count();
        let file = |ending: &str, text: String| -> Result<String> {
            let path: PathBuf = self.folder.path().join(format!("client-{number}.{ending}"));
            fs::write(&path, text)?;
            Ok(path.to_string_lossy().into_owned())
        };
        Ok(vec![
            setting("cert", &file("crt", params.signed_by(&key, issuer)?.pem())?),
            setting("key", &file("key", key.serialize_pem())?),
        ])
    }
}

/// A request straight at virt-api, with the headers that the aggregator would send for a powerful user.
fn ask_virt_api(address: &str, path: &str, method: &str, certificate: &[String]) -> Result<Answer> {
    let mut settings = vec![
        setting("url", &format!("https://{}:8444{path}", pods::host(address))),
        setting("request", method),
        setting("header", "X-Remote-User: kubernetes-admin"),
        setting("header", "X-Remote-Group: system:masters"),
        setting("header", "X-Remote-Group: system:authenticated"),
    ];
    settings.extend_from_slice(certificate);
    curl(&settings)
}

/// Address of a virt-api that runs.
fn virt_api() -> Result<String> {
    let pods = objects(&["pod", "-n", "kubevirt", "-l", "kubevirt.io=virt-api"])?;
    let ready = |pod: &&Value| pod["status"]["containerStatuses"][0]["ready"] == true;
    let address = pods.iter().find(ready).and_then(|pod| pod["status"]["podIP"].as_str());
    address.map(str::to_owned).context("no virt-api is ready")
}

#[test]
fn only_the_aggregator_speaks_for_users() -> Result<()> {
    let address = virt_api()?;
    let forgery = Forgery::prepare()?;
    let base = "/apis/subresources.kubevirt.io/v1";
    let start = format!("{base}/namespaces/default/virtualmachines/nobody-has-this/start");
    let console = format!("{base}/namespaces/default/virtualmachineinstances/nobody-has-this/console");
    let unknown = format!("{base}/namespaces/default/virtualmachines/nobody-has-this/selfdestruct");
    let calls = [(&start, "PUT"), (&start, "GET"), (&console, "GET"), (&unknown, "GET")];
    let refused = |who: &str, certificate: &[String]| -> Result<()> {
        for (path, method) in calls {
            let answer = ask_virt_api(&address, path, method, certificate)?;
            ensure!(answer.code == 401, "{who}: {method} {path}: {answer:?}");
            let status: Value = serde_json::from_str(&answer.body)?;
            ensure!(status["kind"] == "Status" && status["reason"] == "Unauthorized", "{who}: {status}");
        }
        Ok(())
    };
    let name = "front-proxy-client";
    refused("nobody", &[])?;
    refused("another name", &forgery.certificate(&forgery.front_proxy, "mallory", |_| {})?)?;
    refused("another authority", &forgery.certificate(&forgery.another, name, |_| {})?)?;
    let expired = |params: &mut CertificateParams| {
        params.not_before = date_time_ymd(2020, 1, 1);
        params.not_after = date_time_ymd(2021, 1, 1);
    };
    refused("an expired certificate", &forgery.certificate(&forgery.front_proxy, name, expired)?)?;
    let early = |params: &mut CertificateParams| params.not_before = date_time_ymd(2100, 1, 1);
    refused("a certificate of tomorrow", &forgery.certificate(&forgery.front_proxy, name, early)?)?;
    let serving = |params: &mut CertificateParams| {
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
    };
    refused("a server's certificate", &forgery.certificate(&forgery.front_proxy, name, serving)?)?;

    // The same requests with all in order: what was refused above was refused for the certificate.
    let proper = forgery.certificate(&forgery.front_proxy, name, |_| {})?;
    for ((path, method), wanted) in calls.into_iter().zip([404, 405, 404, 404]) {
        let answer = ask_virt_api(&address, path, method, &proper)?;
        ensure!(answer.code == wanted, "{method} {path}: {answer:?}");
    }
    // What the server says of itself is for everybody.
    let version = ask_virt_api(&address, &format!("{base}/version"), "GET", &[])?;
    ensure!(version.code == 200, "{version:?}");
    Ok(())
}

/// A token of virt-handler's service account, away from where it belongs.
struct Stolen {
    token: String,
    server: String,
}

impl Stolen {
    /// One like that which the kubelet mounts into the pod, or one for no pod at all.
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
        // 403 from a rule, 422 from the policy, which calls the object invalid.
        let refused = matches!(answer.code, 403 | 422);
        ensure!(refused && answer.body.contains(words), "{method} {path} should be refused: {answer:?}");
        Ok(())
    }
}

/// Nodes with the name of the handler's pod on each.
fn handlers() -> Result<Vec<(String, String)>> {
    let pods = objects(&["pod", "-n", "kubevirt", "-l", "kubevirt.io=virt-handler"])?;
    let text = |value: &Value| value.as_str().map(str::to_owned);
    let running = pods.iter().filter(|pod| pod["status"]["phase"] == "Running");
    Ok(running
        .filter_map(|pod| Some((text(&pod["spec"]["nodeName"])?, text(&pod["metadata"]["name"])?)))
        .collect())
}

#[test]
fn a_stolen_token_of_a_handler_changes_nothing_on_another_node() {
    in_namespace("stolen", |namespace| {
        namespace.apply(&guest::instance("vm"))?;
        let vmi = namespace.wait_phase("vm", "Running", RUNNING)?;
        let home = vmi["status"]["nodeName"].as_str().context("the instance is on no node")?;
        let handlers = handlers()?;
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
        // Its own handler's may report, and may not give the instance away.
        let report = json!({ "status": { "guestOSInfo": { "name": "e2e" } } });
        own.may("PATCH", &vmi, Some(&report))?;
        own.may_not("PATCH", &vmi, Some(&moved), "not allowed to set target node")?;
        // Nor may it bring claims to its node, or say whose the instance is and which pod it runs in.
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
        let handlers = handlers()?;
        let (_, pod) = handlers.first().context("no handler runs")?;
        let stolen = Stolen::of(Some(pod))?;
        // The token is good for what a handler does.
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

/// Address of the handler of each node, with the node's name.
fn handler_addresses() -> Result<Vec<(String, String)>> {
    let pods = objects(&["pod", "-n", "kubevirt", "-l", "kubevirt.io=virt-handler"])?;
    let text = |value: &Value| value.as_str().map(str::to_owned);
    let ready = pods.iter().filter(|pod| pod["status"]["containerStatuses"][0]["ready"] == true);
    Ok(ready
        .filter_map(|pod| Some((text(&pod["spec"]["nodeName"])?, text(&pod["status"]["podIP"])?)))
        .collect())
}

/// A handler answers virt-api, and nobody with a stale certificate, with one for something else, or with one of another
/// authority.
#[test]
fn only_virt_api_is_answered_by_a_handler() -> Result<()> {
    let (_, address) = handler_addresses()?.into_iter().next().context("no handler is ready")?;
    let forgery = Forgery::prepare()?;
    let (ours, name) = (installations_own()?, "kubevirt.io:system:client:virt-handler");
    let url = format!(
        "https://{}:8186/v1/namespaces/default/virtualmachineinstances/nobody-has-this/qmp",
        pods::host(&address)
    );
    let ask = |certificate: &[String]| -> Result<u16> {
        let mut settings = vec![
            setting("url", &url),
            setting("request", "POST"),
            setting("data", r#"{"execute": "query-status"}"#),
        ];
        settings.extend_from_slice(certificate);
        // Without a connection there is no code: curl says 000.
        Ok(curl(&settings)?.code)
    };
    let as_server = |params: &mut CertificateParams| {
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
    };
    let expired = |params: &mut CertificateParams| {
        params.not_before = date_time_ymd(2020, 1, 1);
        params.not_after = date_time_ymd(2021, 1, 1);
    };
    let early = |params: &mut CertificateParams| params.not_before = date_time_ymd(2100, 1, 1);
    let pretender = pretender("kubevirt.io")?;
    for (who, code, certificate) in [
        ("nobody", 401, vec![]),
        ("another client", 401, forgery.certificate(&ours, "kubevirt.io:system:client:other", |_| {})?),
        ("a handler", 0, forgery.certificate(&ours, "virt-handler", as_server)?),
        ("a server called virt-api", 0, forgery.certificate(&ours, name, as_server)?),
        ("a stale one", 0, forgery.certificate(&ours, name, expired)?),
        ("one of tomorrow", 0, forgery.certificate(&ours, name, early)?),
        ("another authority's", 0, forgery.certificate(&pretender, name, |_| {})?),
        ("the aggregator", 0, forgery.certificate(&forgery.front_proxy, "front-proxy-client", |_| {})?),
        // All in order: what was refused above was refused for the certificate.
        ("virt-api", 404, forgery.certificate(&ours, name, |_| {})?),
    ] {
        let answered = ask(&certificate)?;
        ensure!(answered == code, "{who}: {answered}, expected {code}");
    }
    Ok(())
}

/// What a server shows: its names, as `openssl` prints them.
fn shown(address: &str) -> Result<String> {
    let mut connect = Command::new("openssl");
    connect.args(["s_client", "-connect", address]);
    // It ends with what it is told, which is nothing.
    let session = run(&mut connect, Some(""))?;
    let mut read = Command::new("openssl");
    read.args(["x509", "-noout", "-subject", "-ext", "subjectAltName,extendedKeyUsage,keyUsage"]);
    succeed(&mut read, Some(&session.stdout))
}

#[test]
fn each_server_shows_a_certificate_of_its_own_for_servers_only() -> Result<()> {
    let mut servers =
        vec![(format!("{}:8444", pods::host(&virt_api()?)), "virt-api.kubevirt.svc".to_owned())];
    for (node, address) in handler_addresses()? {
        servers.push((format!("{}:8186", pods::host(&address)), format!("{node}.virt-handler.kubevirt")));
    }
    ensure!(servers.len() > 2, "this test needs two nodes: {servers:?}");
    for (address, name) in &servers {
        let text = shown(address)?;
        ensure!(text.contains(&format!("DNS:{name}")), "{address}: {text}");
        ensure!(
            text.contains("TLS Web Server Authentication") && !text.contains("Client"),
            "{address}: {text}"
        );
        for (_, other) in servers.iter().filter(|(_, other)| other != name) {
            ensure!(!text.contains(&format!("DNS:{other}")), "{address} is also {other}: {text}");
        }
    }
    Ok(())
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

/// What becomes of a request: the certificate, or the reason of its denial.
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

/// Whoever steals a handler's token can be the handler of that node, and of no other.
#[test]
fn a_stolen_token_gets_no_certificate_of_another_node() -> Result<()> {
    let handlers = handlers()?;
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
    // An administrator is no handler either.
    let created =
        barevirt_e2e::command::try_kubectl_with(&["create", "-o", "json", "-f", "-"], &object.to_string())?;
    ensure!(created.code == 0, "{}", created.text());
    let denied = reason(outcome(&serde_json::from_str(&created.stdout)?)?);
    ensure!(denied == "WrongRequester", "an administrator: {denied}");

    // Its own node's, which is worth nothing as a client's.
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
    let (_, address) = handler_addresses()?
        .into_iter()
        .find(|(node, _)| node == away)
        .context("no handler is ready there")?;
    let mut settings = vec![setting("url", &format!("https://{}:8186/healthz", pods::host(&address)))];
    settings.extend_from_slice(&shown);
    let answer = curl(&settings)?;
    ensure!(answer.code == 0, "a handler's certificate was taken for a client's: {answer:?}");
    // The token may not approve what it asked for, nor ask another signer.
    let approve = json!({"status": {"conditions": [{"type": "Approved", "status": "True", "reason": "x"}]}});
    own.may_not("PATCH", &format!("{path}/virt-handler-any/approval"), Some(&approve), "forbidden")?;
    let (object, _) = certificate_request(home, |object| {
        object["spec"]["signerName"] = json!("kubernetes.io/kube-apiserver-client");
        object["spec"]["usages"] = json!(["client auth", "digital signature"]);
    })?;
    own.may_not("POST", path, Some(&object), "only allowed to ask barevirt.dev/virt-handler")
}

/// The API server calls nobody in virt-api's place: a webhook whose bundle does not know virt-api's authority fails.
#[test]
fn the_api_server_calls_virt_api_by_its_certificate() {
    in_namespace("callers", |namespace| {
        let real = barevirt_e2e::command::object(&["validatingwebhookconfiguration", "virt-api-validator"])?
            .context("no webhooks")?;
        let real = &real["webhooks"][0]["clientConfig"];
        let mut strange = CertificateParams::default();
        strange.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let strange = strange.self_signed(&KeyPair::generate()?)?.pem();
        let strange = succeed(Command::new("base64").arg("-w0"), Some(&strange))?;
        let name = format!("{}.barevirt.dev", namespace.name());
        let ask = |bundle: &Value, what: &str, so: fn(&Output) -> bool| -> Result<()> {
            // Only about config maps of that name, in this namespace.
            let configuration = json!({
                "apiVersion": "admissionregistration.k8s.io/v1", "kind": "ValidatingWebhookConfiguration",
                "metadata": {"name": name},
                "webhooks": [{
                    "name": name, "sideEffects": "None", "admissionReviewVersions": ["v1"], "timeoutSeconds": 5,
                    "failurePolicy": "Fail",
                    "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": namespace.name()}},
                    "rules": [{
                        "apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"],
                        "resources": ["configmaps"],
                    }],
                    "matchConditions": [{"name": "asked", "expression": "object.metadata.name == 'asked'"}],
                    "clientConfig": {
                        "caBundle": bundle,
                        "service": {
                            "namespace": "kubevirt", "name": "virt-api", "port": 443,
                            "path": real["service"]["path"],
                        },
                    },
                }],
            });
            let applied =
                barevirt_e2e::command::try_kubectl_with(&["apply", "-f", "-"], &configuration.to_string())?;
            ensure!(applied.code == 0, "{}", applied.text());
            wait::until_true(what, SOON, || {
                let created = namespace.try_kubectl(&["create", "configmap", "asked"])?;
                namespace.kubectl(&["delete", "configmap", "asked", "--ignore-not-found"])?;
                Ok(so(&created))
            })
        };
        let is_strange = |output: &Output| output.text().contains("certificate signed by unknown authority");
        let result = (|| {
            ask(&json!(strange), "virt-api not to be believed", is_strange)?;
            // By the real bundle it is called, whatever it says to a review of another kind.
            ask(&real["caBundle"], "virt-api to be believed", |output| !output.text().contains("x509"))
        })();
        kubectl(&["delete", "validatingwebhookconfiguration", &name, "--ignore-not-found"])?;
        result
    });
}
