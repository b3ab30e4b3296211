//! Who is believed: only the API server's aggregator may speak for users at virt-api, and a handler's stolen token is
//! worth no more than the node it was stolen from.

use anyhow::{Context, Result, ensure};
use barevirt_e2e::command::{cluster_script, kubectl, objects, run, succeed};
use barevirt_e2e::wait::RUNNING;
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
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        // The very name of the real one.
        params.distinguished_name.push(DnType::CommonName, "front-proxy-ca");
        let another = Issuer::new(params, KeyPair::generate()?);
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
        let file = |ending: &str, text: String| -> Result<String> {
            let path: PathBuf = self.folder.path().join(format!("client.{ending}"));
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
        setting("url", &format!("https://{}:8443{path}", pods::host(address))),
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
        // Its own handler's may, and may not give the instance away.
        own.may("PATCH", &vmi, Some(&note))?;
        own.may_not("PATCH", &vmi, Some(&moved), "not allowed to set target node")?;

        let label = |value: Value| json!({ "metadata": { "labels": { "e2e.barevirt/stolen": value } } });
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
            ("GET", format!("{install}/secrets/kubevirt-virt-handler-server-certs"), None),
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
