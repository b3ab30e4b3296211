//! Debian's Prometheus, outside the cluster, scrapes the components, and the tests query it about a running
//! guest.
//!
//! It scrapes through the API server, which trusts its client certificate and passes its requests on to the
//! pods, because the pod network cannot be reached from everywhere.

use std::net::TcpListener;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use barevirt_e2e::command::{kubectl, objects, repository, succeed};
use barevirt_e2e::wait::{self, BOOT, RUNNING, SOON};
use barevirt_e2e::{Console, Namespace, Running, guest, in_namespace};
use serde_json::{Value, json};
use tempfile::TempDir;

/// Time until Prometheus has started, or has scraped again.
const SCRAPED: Duration = Duration::from_secs(60);

/// A Prometheus for this test.
struct Prometheus {
    program: Running,
    address: String,
    _files: TempDir,
}

impl Prometheus {
    /// Starts one that scrapes all pods with metrics.
    fn start() -> Result<Self> {
        let program = succeed(&mut Command::new(repository().join("e2e/prometheus.sh")), None)?;
        let files = tempfile::tempdir()?;
        let config = configuration(files.path())?;
        std::fs::write(files.path().join("prometheus.yml"), config.to_string())?;
        // A port that was free a moment ago.
        let address = TcpListener::bind("127.0.0.1:0")?.local_addr()?.to_string();
        let log = std::fs::File::create(files.path().join("log"))?;
        let child = Command::new(program.trim())
            .arg(format!("--config.file={}", files.path().join("prometheus.yml").display()))
            .arg(format!("--storage.tsdb.path={}", files.path().join("data").display()))
            .arg(format!("--web.listen-address={address}"))
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(log)
            .spawn()
            .with_context(|| format!("start {program}"))?;
        let mut prometheus = Prometheus { program: Running(child), address, _files: files };
        wait::until_true("Prometheus to be ready", SCRAPED, || {
            let ended = prometheus.program.try_wait()?;
            ensure!(ended.is_none(), "Prometheus ended with {ended:?}");
            Ok(prometheus.get("/-/ready").is_ok())
        })?;
        Ok(prometheus)
    }

    fn get(&self, path: &str) -> Result<String> {
        let url = format!("http://{}{path}", self.address);
        succeed(Command::new("curl").args(["-sSf", "--max-time", "10", &url]), None)
    }

    /// The current result of an expression: labels, and the value.
    fn query(&self, expression: &str) -> Result<Vec<(Value, f64)>> {
        let url = format!("http://{}/api/v1/query", self.address);
        let query = format!("query={expression}");
        let arguments = ["-sSf", "--max-time", "10", "--data-urlencode", &query, &url];
        let answer: Value = serde_json::from_str(&succeed(Command::new("curl").args(arguments), None)?)?;
        let result = answer["data"]["result"].as_array().cloned().unwrap_or_default();
        let one = |line: &Value| {
            let value =
                line["value"][1].as_str().unwrap_or_default().parse().context("a value is a number")?;
            Ok((line["metric"].clone(), value))
        };
        result.iter().map(one).collect()
    }

    /// The value of the only result, once it is above `least`.
    fn above(&self, expression: &str, least: f64) -> Result<f64> {
        wait::until(&format!("{expression} above {least}"), SCRAPED, || {
            let lines = self.query(expression)?;
            ensure!(lines.len() <= 1, "{expression} is {lines:?}");
            Ok(lines.first().map(|(_, value)| *value).filter(|value| *value > least))
        })
    }
}

/// Prometheus' configuration, in JSON, which is valid YAML.
fn configuration(files: &Path) -> Result<Value> {
    let config: Value =
        serde_json::from_str(&kubectl(&["config", "view", "--raw", "--minify", "-o", "json"])?)?;
    let (cluster, user) = (&config["clusters"][0]["cluster"], &config["users"][0]["user"]);
    let kept = |holder: &Value, name: &str| -> Result<String> {
        // In the file itself, or in one that it names.
        if let Some(path) = holder[name].as_str() {
            return Ok(path.to_owned());
        }
        let data = holder[format!("{name}-data")].as_str().with_context(|| format!("no {name}"))?;
        let path = files.join(name);
        std::fs::write(&path, succeed(Command::new("base64").arg("-d"), Some(data))?)?;
        Ok(path.display().to_string())
    };
    let tls = json!({
        "ca_file": kept(cluster, "certificate-authority")?,
        "cert_file": kept(user, "client-certificate")?,
        "key_file": kept(user, "client-key")?,
    });
    let server = cluster["server"].as_str().context("no server")?;
    let host = server.strip_prefix("https://").context("no TLS")?.trim_end_matches('/');
    let pods = objects(&["pods", "-n", "kubevirt", "-l", "prometheus.kubevirt.io=true"])?;
    let jobs: Vec<Value> = pods
        .iter()
        .filter_map(|pod| pod["metadata"]["name"].as_str())
        .map(|pod| {
            json!({
                "job_name": pod, "scheme": "https", "tls_config": tls, "honor_labels": true,
                "metrics_path": format!("/api/v1/namespaces/kubevirt/pods/https:{pod}:8443/proxy/metrics"),
                "static_configs": [{"targets": [host], "labels": {"pod": pod, "namespace": "kubevirt"}}],
            })
        })
        .collect();
    ensure!(jobs.len() >= 4, "there are pods of four components, not {}", jobs.len());
    Ok(json!({"global": {"scrape_interval": "2s", "scrape_timeout": "2s"}, "scrape_configs": jobs}))
}

fn of(metric: &str, namespace: &Namespace, more: &str) -> String {
    format!("{metric}{{namespace=\"{}\",name=\"vm\"{more}}}", namespace.name())
}

#[test]
fn prometheus_scrapes_every_component_and_sees_what_a_guest_does() {
    in_namespace("prometheus", |namespace| {
        let mut manifest = guest::instance("vm");
        manifest["metadata"]["labels"]["example.com/tier"] = json!("web-1");
        namespace.apply(&manifest)?;
        let mut machine = guest::machine("idle", "Halted");
        machine["metadata"]["labels"]["example.com/tier"] = json!("web-2");
        namespace.apply(&machine)?;
        namespace.wait_phase("vm", "Running", RUNNING)?;
        let mut console = Console::open(namespace, "vm")?;
        console.login(BOOT)?;
        let prometheus = Prometheus::start()?;
        every_component_is_scraped(&prometheus)?;

        // The metrics that identify it: one from its node, one from the leading controller.
        let label = ",kubernetes_vmi_label_example_com_tier=\"web-1\"";
        let cpu = prometheus.above(&of("kubevirt_vmi_cpu_usage_seconds_total", namespace, label), 0.0)?;
        prometheus.above(&of("kubevirt_vmi_info", namespace, ",phase=\"running\""), 0.0)?;
        let labels = format!(
            "kubevirt_vm_labels{{namespace=\"{}\",label_example_com_tier=\"web-2\"}}",
            namespace.name()
        );
        prometheus.above(&labels, 0.0)?;
        prometheus.above(&of("kubevirt_vmi_launcher_memory_overhead_bytes", namespace, ""), 1e6)?;
        let memory = prometheus.above(&of("kubevirt_vmi_memory_domain_bytes", namespace, ""), 0.0)?;
        ensure!((memory - f64::from(128 << 20)).abs() < 1.0, "the guest was given {memory} bytes");
        let vcpu = of("kubevirt_vmi_vcpu_seconds_total", namespace, ",id=\"0\",state=\"running\"");
        let ran = prometheus.above(&vcpu, 0.0)?;
        // A figure of the balloon driver.
        let unused = of("kubevirt_vmi_memory_unused_bytes", namespace, "");
        prometheus.above(&unused, 0.0)?;
        let resident = of("kubevirt_vmi_memory_resident_bytes", namespace, "");
        let resident = prometheus.above(&resident, 1e7)?;
        // Measured after one scrape and reported at a later one.
        prometheus.above(&of("kubevirt_vmi_dirty_rate_bytes_per_second", namespace, ""), -1.0)?;
        prometheus.above(
            "max(kubevirt_workqueue_work_duration_seconds_count{name=\"virt-controller-vmi\"})",
            0.0,
        )?;
        let written = of("kubevirt_vmi_storage_write_traffic_bytes_total", namespace, ",drive=\"root\"");
        let before = prometheus.above(&written, -1.0)?;
        let sent = of("kubevirt_vmi_network_transmit_bytes_total", namespace, ",interface=\"default\"");
        let received = of("kubevirt_vmi_network_receive_bytes_total", namespace, ",interface=\"default\"");
        let (out, into) = (prometheus.above(&sent, 0.0)?, prometheus.above(&received, 0.0)?);

        // Metrics of its activity.
        console.ok("dd if=/dev/urandom of=/root/load bs=1M count=4 2>/dev/null && sync", SOON)?;
        // The gateway answers, or at least gets an ARP request.
        console.run("ping -c 3 -s 1000 -W 1 10.0.2.1", SOON)?;
        prometheus.above(&written, before + 4e6)?;
        prometheus.above(&sent, out)?;
        prometheus.above(&received, into)?;
        prometheus.above(&vcpu, ran)?;
        prometheus.above(&of("kubevirt_vmi_cpu_usage_seconds_total", namespace, ""), cpu)?;
        ensure!(resident < 1e9, "QEMU with a small guest has {resident} bytes");

        // A deleted instance is no longer reported.
        namespace.delete("vmi", "vm")?;
        wait::until_true("the guest to be told no more", SCRAPED, || {
            Ok(prometheus.query(&of("kubevirt_vmi_info", namespace, ""))?.is_empty()
                && prometheus.query(&of("kubevirt_vmi_cpu_usage_seconds_total", namespace, ""))?.is_empty())
        })
    });
}

fn every_component_is_scraped(prometheus: &Prometheus) -> Result<()> {
    for component in ["virt-api", "virt-controller", "virt-handler", "virt-operator"] {
        prometheus.above(&format!("min(up{{pod=~\"{component}-.*\"}})"), 0.0)?;
    }
    Ok(())
}
