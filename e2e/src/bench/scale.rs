//! Memory of virt-controller for each instance, and its writes after a restart.
//!
//! A separate API server without nodes gets instances as the cluster's webhooks would complete them.
//! virt-controller makes a pod for each, which is never scheduled. Then virt-controller is killed and started
//! again, and should have nothing to write. The binary is that of the image.

use super::processor::{self, TICK};
use super::{Figure, Figures};
use crate::command::{cluster_script, kubectl, objects, repository, run, succeed};
use crate::guest;
use crate::namespace::Namespace;
use crate::running::Running;
use anyhow::{Context, Result, bail, ensure};
use serde_json::{Value, json};
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// Number of instances for one call of kubectl.
const BATCH: usize = 500;
/// Budget in kilobytes.
const BUDGET_KB: f64 = 10.0;
const PORT: u16 = 16_443;
const NAMESPACE: &str = "scale";
const START_WITHIN: Duration = Duration::from_secs(60);
const FILLED_WITHIN: Duration = Duration::from_secs(1800);

/// Measures `controller_kb_per_vmi`, `controller_{base,full,after_restart}_mib` and `resync_writes`.
pub fn measure(
    namespace: &Namespace,
    controller: &Path,
    instances: usize,
    figures: &mut Figures,
) -> Result<()> {
    let folder = tempfile::tempdir()?;
    let bare = Bare::start(folder.path())?;
    bare.define()?;
    let instance = defaulted(namespace)?;

    let running = bare.controller(controller, "first")?;
    let base = rss_kb(running.0.id())?;
    for first in (0..instances).step_by(BATCH) {
        let batch = first..instances.min(first + BATCH);
        let items: Vec<Value> = batch.map(|index| named(&instance, &format!("vmi-{index:05}"))).collect();
        bare.create(&json!({ "apiVersion": "v1", "kind": "List", "items": items }))?;
    }
    bare.wait_for_pods(instances)?;
    wait_idle(running.0.id(), FILLED_WITHIN)?;
    let full = rss_kb(running.0.id())?;
    drop(running);

    let before = bare.writes()?;
    let running = bare.controller(controller, "second")?;
    wait_idle(running.0.id(), FILLED_WITHIN)?;
    let again = rss_kb(running.0.id())?;
    let written = bare.writes()? - before;
    drop(running);

    let count = f64::from(u32::try_from(instances)?);
    let each = (full.max(again) - base) / count;
    figures.insert("controller_after_restart_mib".to_owned(), Figure::plain(again / 1024.0, "MiB", 1));
    figures.insert("controller_full_mib".to_owned(), Figure::plain(full / 1024.0, "MiB", 1));
    figures.insert("controller_base_mib".to_owned(), Figure::plain(base / 1024.0, "MiB", 1));
    figures.insert(
        "controller_kb_per_vmi".to_owned(),
        Figure::plain(each * 1.024, "kB", instances)
            .within("under 10 kB beyond its base", |figure| figure.value < BUDGET_KB),
    );
    figures.insert(
        "resync_writes".to_owned(),
        Figure::plain(written, "writes", instances).within("none", |figure| figure.value == 0.0),
    );
    Ok(())
}

/// A small instance as the cluster's webhooks complete it.
fn defaulted(namespace: &Namespace) -> Result<Value> {
    let manifest = guest::instance("pattern").to_string();
    let mut command = cluster_script("kubectl.sh");
    command.args(["-n", namespace.name(), "create", "--dry-run=server", "-o", "json", "-f", "-"]);
    let created: Value = serde_json::from_str(&succeed(&mut command, Some(&manifest))?)?;
    let meta = &created["metadata"];
    Ok(json!({
        "apiVersion": created["apiVersion"], "kind": created["kind"],
        "metadata": { "labels": meta["labels"], "annotations": meta["annotations"], "finalizers": meta["finalizers"] },
        "spec": created["spec"], "status": created["status"],
    }))
}

fn named(instance: &Value, name: &str) -> Value {
    let mut instance = instance.clone();
    instance["metadata"]["name"] = json!(name);
    instance["metadata"]["namespace"] = json!(NAMESPACE);
    instance
}

/// An API server without nodes.
struct Bare {
    kubeconfig: PathBuf,
    folder: PathBuf,
    _server: Running,
}

impl Bare {
    fn start(folder: &Path) -> Result<Self> {
        let kubeconfig = folder.join("kubeconfig");
        let mut command = cluster_script("api-server.sh");
        command.arg(folder).arg(PORT.to_string()).stdin(Stdio::null());
        let server = Running(command.spawn().context("start an API server")?);
        let bare = Self { kubeconfig, folder: folder.to_owned(), _server: server };
        let deadline = Instant::now() + START_WITHIN;
        while bare.kubectl(&["get", "--raw", "/readyz"], None).is_err() {
            ensure!(Instant::now() < deadline, "the API server is not ready after {START_WITHIN:?}");
            std::thread::sleep(Duration::from_millis(500));
        }
        Ok(bare)
    }

    fn kubectl(&self, arguments: &[&str], input: Option<&str>) -> Result<String> {
        // The flag overrides the script's own kubeconfig.
        let mut command = cluster_script("kubectl.sh");
        command.arg("--kubeconfig").arg(&self.kubeconfig).args(arguments);
        let output = run(&mut command, input)?;
        ensure!(output.code == 0, "kubectl {arguments:?}: {}", output.text().trim());
        Ok(output.stdout)
    }

    fn create(&self, object: &Value) -> Result<()> {
        self.kubectl(&["create", "--validate=false", "-f", "-"], Some(&object.to_string())).map(drop)
    }

    /// Copies the cluster's definitions, settings and namespaces.
    fn define(&self) -> Result<()> {
        let definitions = objects(&["crd"])?.into_iter().map(|definition| {
            json!({
                "apiVersion": definition["apiVersion"], "kind": definition["kind"],
                "metadata": { "name": definition["metadata"]["name"] }, "spec": definition["spec"],
            })
        });
        let namespaces = ["kubevirt", NAMESPACE]
            .map(|name| json!({ "apiVersion": "v1", "kind": "Namespace", "metadata": { "name": name } }));
        let items: Vec<Value> = definitions.chain(namespaces).collect();
        self.create(&json!({ "apiVersion": "v1", "kind": "List", "items": items }))?;
        let established = ["wait", "--for=condition=Established", "--timeout=60s", "crd", "--all"];
        self.kubectl(&established, None)?;
        let settings = kubectl(&["-n", "kubevirt", "get", "kubevirt", "kubevirt", "-o", "json"])?;
        let settings: Value = serde_json::from_str(&settings)?;
        self.create(&json!({
            "apiVersion": settings["apiVersion"], "kind": settings["kind"],
            "metadata": { "name": "kubevirt", "namespace": "kubevirt" }, "spec": settings["spec"],
        }))
    }

    /// Starts virt-controller and waits until it has reconciled everything.
    fn controller(&self, binary: &Path, identity: &str) -> Result<Running> {
        let log = self.folder.join(format!("{identity}.log"));
        let mut command = Command::new(repository().join(binary));
        command.args(["--launcher-image=launcher", "--listen=127.0.0.1:0"]);
        command.args(["--identity", identity]).env("KUBECONFIG", &self.kubeconfig).env("RUST_LOG", "info");
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(File::create(&log)?);
        let running = Running(command.spawn().context("start virt-controller")?);
        let deadline = Instant::now() + FILLED_WITHIN;
        while !fs::read_to_string(&log)?.contains("caches filled") {
            ensure!(Instant::now() < deadline, "virt-controller's caches are not filled");
            std::thread::sleep(Duration::from_millis(500));
        }
        wait_idle(running.0.id(), START_WITHIN)?;
        Ok(running)
    }

    fn wait_for_pods(&self, count: usize) -> Result<()> {
        let deadline = Instant::now() + FILLED_WITHIN;
        loop {
            let path = format!("/api/v1/namespaces/{NAMESPACE}/pods?limit=1");
            let page: Value = serde_json::from_str(&self.kubectl(&["get", "--raw", &path], None)?)?;
            let there = page["items"].as_array().map_or(0, Vec::len) as u64
                + page["metadata"]["remainingItemCount"].as_u64().unwrap_or(0);
            if there >= count as u64 {
                return Ok(());
            }
            ensure!(Instant::now() < deadline, "{there} of {count} pods after {FILLED_WITHIN:?}");
            std::thread::sleep(Duration::from_secs(2));
        }
    }

    /// Number of writes so far, without leases and events.
    fn writes(&self) -> Result<f64> {
        let metrics = self.kubectl(&["get", "--raw", "/metrics"], None)?;
        let mut sum = 0.0;
        for line in metrics.lines().filter(|line| line.starts_with("apiserver_request_total{")) {
            let writes = ["POST", "PUT", "PATCH", "DELETE", "APPLY"]
                .iter()
                .any(|verb| line.contains(&format!("verb=\"{verb}\"")));
            let ours = ["virtualmachine", "pods", "controllerrevisions"]
                .iter()
                .any(|resource| line.contains(&format!("resource=\"{resource}")));
            // A dry run is not a write.
            let dry_run = line.contains("dry_run=\"All\"");
            if writes && ours && !dry_run {
                let Some(value) = line.rsplit(' ').next() else { bail!("a metric without a value: {line}") };
                sum += value.parse::<f64>()?;
            }
        }
        Ok(sum)
    }
}

/// Waits until a process has used almost no processor time for five seconds.
fn wait_idle(pid: u32, within: Duration) -> Result<()> {
    let deadline = Instant::now() + within;
    let task = pid.to_string();
    let mut used = processor::used(&task)?;
    loop {
        std::thread::sleep(Duration::from_secs(5));
        let now = processor::used(&task)?;
        if now.saturating_sub(used) <= 5 * TICK {
            return Ok(());
        }
        used = now;
        ensure!(Instant::now() < deadline, "process {pid} is still busy after {within:?}");
    }
}

fn rss_kb(pid: u32) -> Result<f64> {
    let status = fs::read_to_string(format!("/proc/{pid}/status"))?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).context("no VmRSS")?;
    Ok(line.trim().trim_end_matches(" kB").trim().parse()?)
}
