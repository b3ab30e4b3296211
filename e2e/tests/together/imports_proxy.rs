//! DataVolumes without CDI through a proxy that the `KubeVirt` object names, Debian's tinyproxy.

use super::imports::{FILLED, data_volume, digest_of_tiny, filled, host_of, publish, tiny};
use super::imports_in_a_row::have_the_image;
use super::imports_servers::{NGINX, WEB, certificates, is_under_way, kill_server, serve};
use anyhow::{Result, ensure};
use barevirt_e2e::cdi::Absent;
use barevirt_e2e::command::kubectl;
use barevirt_e2e::components::{lives, wait_in_force};
use barevirt_e2e::installation::NAMESPACE;
use barevirt_e2e::{Namespace, in_namespace};
use serde_json::json;

/// Image of the add-on `proxy`, which the nodes have.
const TINYPROXY: &str = "localhost/barevirt-cluster/tinyproxy:devel";
/// The proxy's pod and service.
const PROXY: &str = "proxy";
/// Who may use it.
const USER: (&str, &str) = ("importer", "open-sesame");
/// The setting.
const ANNOTATION: &str = "barevirt.dev/import-https-proxy";

/// All imports of the cluster take a proxy, until this is dropped.
struct Proxied;

impl Proxied {
    fn begin(proxy: &str) -> Result<Self> {
        let proxied = Self;
        annotate(&format!("{ANNOTATION}={proxy}"))?;
        Ok(proxied)
    }
}

impl Drop for Proxied {
    fn drop(&mut self) {
        if let Err(error) = annotate(&format!("{ANNOTATION}-")) {
            eprintln!("imports still take the test's proxy: {error:#}");
        }
    }
}

/// Changes an annotation of the `KubeVirt` object, and waits until virt-controller goes by it.
fn annotate(annotation: &str) -> Result<()> {
    kubectl(&["annotate", "kubevirt", "kubevirt", "-n", NAMESPACE, "--overwrite", annotation])?;
    wait_in_force(lives("kubevirt.io=virt-controller")?.keys())
}

/// Whether the proxy, since it was started last, has connected a client to the web server.
fn has_connected(namespace: &Namespace) -> Result<bool> {
    let log = namespace.kubectl(&["logs", PROXY, "-c", "server"])?;
    Ok(log.contains(&format!("CONNECT {}:443", host_of(namespace, WEB))))
}

#[test]
fn an_import_through_a_proxy_goes_on_after_the_proxy_was_killed() {
    in_namespace("importsproxy", |namespace| {
        // The proxy is that of all imports.
        let _alone = Absent::alone()?;
        certificates(namespace)?;
        serve(namespace, WEB, NGINX, &["-c", "/config/nginx.conf"], "/tmp/www")?;
        publish(namespace, "disk", &tiny())?;
        let (user, password) = USER;
        let settings =
            format!("Port 8443\nTimeout 600\nMaxClients 100\nLogLevel Info\nBasicAuth {user} {password}\n");
        namespace.apply(&json!({
            "apiVersion": "v1", "kind": "Secret", "metadata": { "name": PROXY },
            "stringData": { "tinyproxy.conf": settings },
        }))?;
        serve(namespace, PROXY, TINYPROXY, &["-d", "-c", "/config/tinyproxy.conf"], "/tmp/files")?;
        let proxy = format!("http://{user}:{password}@{}:443", host_of(namespace, PROXY));
        let _proxied = Proxied::begin(&proxy)?;

        let url = format!("https://{}/slow/disk", host_of(namespace, WEB));
        let source = json!({ "http": { "url": url, "certConfigMap": "authority" } });
        namespace.apply(&data_volume("disk", &source, "160Mi"))?;
        is_under_way(namespace, "disk")?;
        ensure!(has_connected(namespace)?, "the import has not taken the proxy");
        kill_server(namespace, PROXY, "tinyproxy")?;
        let ended = filled(namespace, "disk", FILLED * 2)?;
        ensure!(ended["status"]["restartCount"].as_u64().unwrap_or_default() == 0, "{}", ended["status"]);
        ensure!(has_connected(namespace)?, "the import has gone on without the proxy");
        have_the_image(namespace, &digest_of_tiny()?)
    });
}
