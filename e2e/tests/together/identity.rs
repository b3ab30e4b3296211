//! Authentication: only the API server's aggregator may act for users at virt-api, and handlers answer only
//! virt-api. The tests make expired and wrong certificates with the real authorities' keys, which only an
//! administrator can read.

use anyhow::{Context, Result, ensure};
use barevirt_e2e::command::{Output, cluster_script, kubectl, objects, run, succeed};
use barevirt_e2e::curl::{Answer, curl, setting};
use barevirt_e2e::wait::{self, SOON};
use barevirt_e2e::{changes, handlers, in_namespace, pods};
use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    date_time_ymd,
};
use serde_json::{Value, json};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use tempfile::TempDir;

/// Certificates of clients that pose as the aggregator.
struct Forgery {
    folder: TempDir,
    front_proxy: Issuer<'static, KeyPair>,
    another: Issuer<'static, KeyPair>,
}

/// An authority with the name of a real one, but another key.
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
    /// With the key of the cluster's front-proxy authority, which is in the folder of its kubeconfig.
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
        // Each has its own files, since several are in use at a time.
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

/// Sends a request directly to virt-api, with the headers that the aggregator would send for a powerful user.
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

/// Address of a running virt-api.
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

    // The same requests with a valid certificate, which proves that the refusals above were because of the
    // certificate.
    let proper = forgery.certificate(&forgery.front_proxy, name, |_| {})?;
    for ((path, method), wanted) in calls.into_iter().zip([404, 405, 404, 404]) {
        let answer = ask_virt_api(&address, path, method, &proper)?;
        ensure!(answer.code == wanted, "{method} {path}: {answer:?}");
    }
    // The server's version needs no authentication.
    let version = ask_virt_api(&address, &format!("{base}/version"), "GET", &[])?;
    ensure!(version.code == 200, "{version:?}");
    Ok(())
}

/// A handler answers virt-api, but no client whose certificate is expired, has another purpose, or is of
/// another authority.
#[test]
fn only_virt_api_is_answered_by_a_handler() -> Result<()> {
    let (_, address) = handlers::addresses()?.into_iter().next().context("no handler is ready")?;
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
        // A valid certificate, which proves that the refusals above were because of the certificate.
        ("virt-api", 404, forgery.certificate(&ours, name, |_| {})?),
    ] {
        let answered = ask(&certificate)?;
        ensure!(answered == code, "{who}: {answered}, expected {code}");
    }
    Ok(())
}

/// The names in a server's certificate, as `openssl` prints them.
fn shown(address: &str) -> Result<String> {
    let mut connect = Command::new("openssl");
    connect.args(["s_client", "-connect", address]);
    // `openssl` ends with its empty input.
    let session = run(&mut connect, Some(""))?;
    let mut read = Command::new("openssl");
    read.args(["x509", "-noout", "-subject", "-ext", "subjectAltName,extendedKeyUsage,keyUsage"]);
    succeed(&mut read, Some(&session.stdout))
}

#[test]
fn each_server_shows_a_certificate_of_its_own_for_servers_only() -> Result<()> {
    let mut servers =
        vec![(format!("{}:8444", pods::host(&virt_api()?)), "virt-api.kubevirt.svc".to_owned())];
    for (node, address) in handlers::addresses()? {
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

/// The API server calls no other server in place of virt-api: a webhook whose bundle does not contain
/// virt-api's authority fails.
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
                let asked = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "asked"}});
                let created = namespace.try_apply(&asked)?;
                changes::begin_delete_if_there(&["configmap", "asked", "-n", namespace.name()])?;
                Ok(so(&created))
            })
        };
        let is_strange = |output: &Output| output.text().contains("certificate signed by unknown authority");
        let result = (|| {
            ask(&json!(strange), "virt-api not to be believed", is_strange)?;
            // With the real bundle it is called; its answer to a review of this kind does not matter.
            ask(&real["caBundle"], "virt-api to be believed", |output| !output.text().contains("x509"))
        })();
        kubectl(&["delete", "validatingwebhookconfiguration", &name, "--ignore-not-found"])?;
        result
    });
}
