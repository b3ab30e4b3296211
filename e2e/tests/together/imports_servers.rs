//! DataVolumes without CDI, from Debian's nginx and docker-registry: with certificates of an authority of their own, passwords,
//! a header and a redirect; and while the web server and the importer are killed.

use super::imports::{
    FILLED, condition, data_volume, digest_of_tiny, fails, filled, host_of, publish, tiny, without_cdi,
};
use super::imports_in_a_row::{have_the_image, kill_one};
use anyhow::{Context, Result, ensure};
use barevirt_e2e::cdi::DATA_VOLUMES;
use barevirt_e2e::wait::{self, SOON};
use barevirt_e2e::{Namespace, image, pods};
use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair};
use serde_json::{Value, json};
use std::path::Path;

/// Images of the add-ons `http` and `registry`, which the nodes have.
pub(crate) const NGINX: &str = "localhost/barevirt-cluster/nginx:devel";
pub(crate) const REGISTRY: &str = "localhost/barevirt-cluster/registry:devel";
/// Pods and services of the test.
pub(crate) const WEB: &str = "web";
pub(crate) const IMAGES: &str = "images";
pub(crate) const OBJECTS: &str = "objects";
/// Who may read, by what password, and its hash by bcrypt, the only one that docker-registry takes.
pub(crate) const USER: (&str, &str) = ("reader", "open-sesame");
const HASH: &str = "$2y$05$abcdefghijklmnopqrstuutXu9KzOt.1yBoZUeFWoT/914/JfszCO";
/// A header that the web server wants.
const HEADER: (&str, &str) = ("X-Token", "of-the-test");
/// Bytes in a second from the slow folder, and for an image as a registry serves it: a transfer takes half a minute.
const SLOW: &str = "1m";

/// A config map `authority`, and a secret of each server's name with its certificate, key and configuration.
pub(crate) fn certificates(namespace: &Namespace) -> Result<()> {
    let authority_key = KeyPair::generate()?;
    let mut authority = CertificateParams::default();
    authority.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let pem = authority.self_signed(&authority_key)?.pem();
    let issuer = Issuer::new(authority, authority_key);
    namespace.apply(&json!({
        "apiVersion": "v1", "kind": "ConfigMap", "metadata": { "name": "authority" }, "data": { "ca.crt": pem },
    }))?;
    let web = vec![
        ("nginx.conf", nginx(&host_of(namespace, WEB))),
        ("users", format!("{}:{{PLAIN}}{}\n", USER.0, USER.1)),
    ];
    let images = vec![("config.yml", registry().to_string()), ("users", format!("{}:{HASH}\n", USER.0))];
    for (name, files) in [(WEB, web), (IMAGES, images), (OBJECTS, vec![])] {
        let key = KeyPair::generate()?;
        let certificate = CertificateParams::new(vec![host_of(namespace, name)])?.signed_by(&key, &issuer)?;
        let mut data = json!({ "server.crt": certificate.pem(), "server.key": key.serialize_pem() });
        for (file, text) in files {
            data[file] = json!(text);
        }
        namespace.apply(&json!({
            "apiVersion": "v1", "kind": "Secret", "metadata": { "name": name }, "stringData": data,
        }))?;
    }
    Ok(())
}

fn nginx(host: &str) -> String {
    let (header, value) = (HEADER.0.to_lowercase().replace('-', "_"), HEADER.1);
    format!(
        "daemon off;
        pid /tmp/pid;
        error_log stderr;
        events {{}}
        http {{
            access_log off;
            client_body_temp_path /tmp/body;
            proxy_temp_path /tmp/proxy;
            fastcgi_temp_path /tmp/fastcgi;
            uwsgi_temp_path /tmp/uwsgi;
            scgi_temp_path /tmp/scgi;
            server {{
                listen 8443 ssl;
                ssl_certificate /config/server.crt;
                ssl_certificate_key /config/server.key;
                root /tmp/www;
                location /private/ {{
                    alias /tmp/www/;
                    auth_basic images;
                    auth_basic_user_file /config/users;
                }}
                location /header/ {{
                    if ($http_{header} != {value}) {{ return 403; }}
                    alias /tmp/www/;
                }}
                location /slow/ {{
                    alias /tmp/www/;
                    limit_rate {SLOW};
                }}
                location /v2/ {{
                    limit_rate {SLOW};
                }}
                location /moved {{ return 302 https://{host}/disk; }}
                location /metadata {{ return 302 http://169.254.169.254/latest; }}
            }}
        }}"
    )
}

fn registry() -> Value {
    json!({
        "version": 0.1,
        "storage": { "filesystem": { "rootdirectory": "/data" } },
        "http": { "addr": ":8443", "tls": { "certificate": "/config/server.crt", "key": "/config/server.key" } },
        "auth": { "htpasswd": { "realm": "images", "path": "/config/users" } },
    })
}

/// A pod of that server with a Service on port 443. Its first container has a shell, sees the server's files and may kill it.
pub(crate) fn serve(
    namespace: &Namespace,
    name: &str,
    image: &str,
    args: &[&str],
    files: &str,
) -> Result<()> {
    let mut pod = pods::pod(name, &["sleep", "3600"]);
    let spec = &mut pod["spec"];
    spec["shareProcessNamespace"] = json!(true);
    spec["volumes"] =
        json!([{ "name": "config", "secret": { "secretName": name } }, { "name": "files", "emptyDir": {} }]);
    let mounts =
        json!([{ "name": "config", "mountPath": "/config" }, { "name": "files", "mountPath": files }]);
    let mut server = spec["containers"][0].clone();
    spec["containers"][0]["volumeMounts"] = json!([mounts[1]]);
    server.as_object_mut().context("a container")?.remove("command");
    server["name"] = json!("server");
    server["image"] = json!(image);
    server["imagePullPolicy"] = json!("Never");
    server["args"] = json!(args);
    server["volumeMounts"] = mounts;
    server["readinessProbe"] = json!({ "tcpSocket": { "port": 8443 }, "periodSeconds": 1 });
    spec["containers"].as_array_mut().context("containers")?.push(server);
    namespace.apply(&pod)?;
    namespace.apply(&json!({
        "apiVersion": "v1", "kind": "Service", "metadata": { "name": name },
        "spec": { "selector": { "app": name }, "ports": [{ "port": 443, "targetPort": 8443 }] },
    }))?;
    let ready = format!(
        "the server {name} to be ready; its image comes with an add-on of the test bed, see e2e/long.txt"
    );
    namespace.wait("pod", name, &ready, SOON, |pod| condition(pod, "Ready")["status"] == "True").map(drop)
}

/// Sends an OCI archive to the registry, as `images/NAME:1`.
pub(crate) fn push(namespace: &Namespace, archive: &Path, name: &str) -> Result<()> {
    let pod = namespace.need("pod", IMAGES)?;
    let address = pod["status"]["podIP"].as_str().context("the registry has no address")?;
    let store = tempfile::tempdir()?;
    let pulled =
        image::buildah(store.path(), &["pull", "--quiet", &format!("oci-archive:{}", archive.display())])?;
    let to = format!("docker://{address}:8443/images/{name}:1");
    let user = format!("{}:{}", USER.0, USER.1);
    // The certificate is for the name of the Service, which this machine does not resolve.
    let words = ["push", "--quiet", "--tls-verify=false", "--creds", &user, pulled.trim(), &to];
    image::buildah(store.path(), &words).map(drop)
}

fn restarts(namespace: &Namespace, server: &str) -> Result<u64> {
    let pod = namespace.need("pod", server)?;
    let all = pod["status"]["containerStatuses"].as_array().context("no containers")?;
    let server = all.iter().find(|container| container["name"] == "server").context("no server")?;
    server["restartCount"].as_u64().context("no count of restarts")
}

/// Kills the program of a server, and waits until it is started again.
pub(crate) fn kill_server(namespace: &Namespace, server: &str, program: &str) -> Result<()> {
    let before = restarts(namespace, server)?;
    let kill = format!("kill -KILL $(pidof {program})");
    namespace.kubectl(&["exec", server, "-c", "main", "--", "sh", "-c", &kill])?;
    wait::until_true("the server to be started again", SOON, || Ok(restarts(namespace, server)? > before))
}

/// How much of a DataVolume is filled, in per cent; 0 where that is not known.
pub(crate) fn percent(volume: &Value) -> f64 {
    let progress = volume["status"]["progress"].as_str().unwrap_or_default();
    progress.trim_end_matches('%').parse().unwrap_or_default()
}

/// Waits until a slow import has some part of its disk and not all of it.
pub(crate) fn is_under_way(namespace: &Namespace, name: &str) -> Result<()> {
    namespace
        .wait(DATA_VOLUMES, name, "to have a part of its disk", FILLED, |volume| {
            let percent = percent(volume);
            percent > 5.0 && percent < 90.0
        })
        .map(drop)
}

#[test]
fn servers_with_certificates_and_passwords_fill_disks_or_the_failure_is_reported() {
    without_cdi("importstls", |namespace| {
        certificates(namespace)?;
        serve(namespace, WEB, NGINX, &["-c", "/config/nginx.conf"], "/tmp/www")?;
        serve(namespace, IMAGES, REGISTRY, &["serve", "/config/config.yml"], "/data")?;
        publish(namespace, "disk", &tiny())?;
        push(namespace, &tiny().with_extension("oci.tar"), "tiny")?;
        let secret = |name: &str, data: Value| {
            namespace.apply(&json!({
                "apiVersion": "v1", "kind": "Secret", "metadata": { "name": name }, "stringData": data,
            }))
        };
        secret("reader", json!({ "accessKeyId": USER.0, "secretKey": USER.1 }))?;
        secret("stranger", json!({ "accessKeyId": USER.0, "secretKey": "guessed" }))?;
        secret("token", json!({ "header": format!("{}: {}", HEADER.0, HEADER.1) }))?;
        let web = |path: &str, more: Value| {
            let mut source = json!({
                "url": format!("https://{}/{path}", host_of(namespace, WEB)), "certConfigMap": "authority",
            });
            merge(&mut source, more);
            json!({ "http": source })
        };
        let image = |more: Value| {
            let mut source = json!({
                "url": format!("docker://{}/images/tiny:1", host_of(namespace, IMAGES)), "certConfigMap": "authority",
            });
            merge(&mut source, more);
            json!({ "registry": source })
        };
        let good = [
            ("tls", web("disk", json!({}))),
            ("password", web("private/disk", json!({ "secretRef": "reader" }))),
            ("header", web("header/disk", json!({ "secretExtraHeaders": ["token"] }))),
            ("moved", web("moved", json!({}))),
            ("image", image(json!({ "secretRef": "reader" }))),
        ];
        for (name, source) in &good {
            namespace.apply(&data_volume(name, source, "160Mi"))?;
        }
        for (name, _) in &good {
            filled(namespace, name, FILLED * 2)?;
        }
        have_the_image(namespace, &digest_of_tiny()?)?;

        let bad = [
            ("no-authority", web("disk", json!({ "certConfigMap": null })), "with TLS"),
            ("no-password", web("private/disk", json!({})), "answers 401"),
            ("wrong-password", web("private/disk", json!({ "secretRef": "stranger" })), "answers 401"),
            ("no-header", web("header/disk", json!({})), "answers 403"),
            ("metadata", web("metadata", json!({})), "may not be connected to"),
            ("no-image", image(json!({})), "wants a user name"),
            ("image-authority", image(json!({ "certConfigMap": null })), "with TLS"),
        ];
        for (name, source, _) in &bad {
            namespace.apply(&data_volume(name, source, "160Mi"))?;
        }
        for (name, _, why) in &bad {
            let said = fails(namespace, name, why)?;
            ensure!(!said.contains(USER.1) && !said.contains(HEADER.1), "{name} tells a secret: {said}");
        }
        Ok(())
    });
}

#[test]
fn an_import_goes_on_after_its_server_and_its_importer_were_killed() {
    without_cdi("importskilled", |namespace| {
        certificates(namespace)?;
        serve(namespace, WEB, NGINX, &["-c", "/config/nginx.conf"], "/tmp/www")?;
        publish(namespace, "disk", &tiny())?;
        let url = format!("https://{}/slow/disk", host_of(namespace, WEB));
        let source = json!({ "http": { "url": url, "certConfigMap": "authority" } });
        namespace.apply(&data_volume("disk", &source, "160Mi"))?;
        is_under_way(namespace, "disk")?;
        kill_server(namespace, WEB, "nginx")?;
        let ended = filled(namespace, "disk", FILLED * 2)?;
        ensure!(ended["status"]["restartCount"].as_u64().unwrap_or_default() == 0, "{}", ended["status"]);

        namespace.apply(&data_volume("again", &source, "160Mi"))?;
        is_under_way(namespace, "again")?;
        let pod = namespace.need("pod", "importer-again")?;
        ensure!(kill_one(pod["spec"]["nodeName"].as_str().context("no node")?, 0)?, "no importer was found");
        let ended = filled(namespace, "again", FILLED * 2)?;
        ensure!(ended["status"]["restartCount"].as_u64() >= Some(1), "{}", ended["status"]);

        have_the_image(namespace, &digest_of_tiny()?)
    });
}

fn merge(into: &mut Value, more: Value) {
    if let (Value::Object(into), Value::Object(more)) = (into, more) {
        into.extend(more);
    }
}
