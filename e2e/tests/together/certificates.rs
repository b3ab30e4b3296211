//! Certificates are renewed while everything runs: with the shortest useful lives, and a steady stream of
//! requests over every connection, none of which fails.
//!
//! It takes about ten minutes, mostly waiting, since an authority is not used before every pod has it. It
//! changes only these lives in the `KubeVirt` object, so other tests can run at the same time.

use anyhow::{Context, Result, ensure};
use barevirt_e2e::command::{kubectl, objects, run, succeed, try_kubectl, try_kubectl_with};
use barevirt_e2e::installation::{Changed, NAMESPACE, wait_available};
use barevirt_e2e::wait::{self, BOOT, RUNNING};
use barevirt_e2e::{Console, Namespace, guest, in_namespace, pods};
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

/// Secrets with certificates that the authority signs.
const LEAVES: [&str; 4] = [
    "kubevirt-virt-api-certs",
    "kubevirt-controller-certs",
    "kubevirt-operator-certs",
    "kubevirt-virt-handler-certs",
];
const AUTHORITY: &str = "kubevirt-ca";
/// Time until everything was renewed: the new authority waits for three minutes, the former one is removed
/// after four more.
const ROTATED: Duration = Duration::from_secs(14 * 60);

/// Pause between two requests of a kind, since other tests need the processors, too.
const PACE: Duration = Duration::from_secs(3);

/// One kind of request, sent again and again.
struct Stream<'a> {
    what: &'static str,
    ask: Box<dyn Fn() -> Result<()> + Send + Sync + 'a>,
    answered: AtomicUsize,
    failed: Mutex<Vec<String>>,
}

impl<'a> Stream<'a> {
    fn new(what: &'static str, ask: impl Fn() -> Result<()> + Send + Sync + 'a) -> Self {
        Self { what, ask: Box::new(ask), answered: AtomicUsize::new(0), failed: Mutex::default() }
    }

    /// Sends one request per [`PACE`], or slower if the answers take longer.
    fn flow(&self, ended: &AtomicBool) {
        while !ended.load(Ordering::Relaxed) {
            let begun = Instant::now();
            match (self.ask)() {
                Ok(()) => drop(self.answered.fetch_add(1, Ordering::Relaxed)),
                Err(error) => {
                    let line = format!("{} {}: {error:#}", jiff::Timestamp::now(), self.what);
                    self.failed.lock().unwrap_or_else(PoisonError::into_inner).push(line);
                }
            }
            thread::sleep(PACE.saturating_sub(begun.elapsed()));
        }
    }

    fn check(&self, least: usize) -> Result<()> {
        let failed = self.failed.lock().unwrap_or_else(PoisonError::into_inner);
        let answered = self.answered.load(Ordering::Relaxed);
        ensure!(failed.is_empty(), "{answered} were answered, and {} were not: {failed:#?}", failed.len());
        ensure!(answered >= least, "only {answered} of {} were sent", self.what);
        Ok(())
    }
}

/// The requests, over every connection.
fn streams(namespace: &Namespace) -> Vec<Stream<'_>> {
    let calls = "/apis/subresources.kubevirt.io/v1";
    let instance = format!("{calls}/namespaces/{}/virtualmachineinstances/vm", namespace.name());
    let another = guest::instance("never").to_string();
    let accepted = |output: barevirt_e2e::command::Output| {
        ensure!(output.code == 0, "{}", output.text().trim());
        Ok(())
    };
    vec![
        Stream::new("webhooks of virt-api", move || {
            let create = ["create", "--dry-run=server", "-n", namespace.name(), "-f", "-"];
            accepted(try_kubectl_with(&create, &another)?)
        }),
        Stream::new("webhooks of virt-operator", move || {
            let note =
                format!("--overwrite=true e2e.barevirt.dev/note={}", jiff::Timestamp::now().as_second());
            let mut annotate = vec!["annotate", "kubevirt", "kubevirt", "-n", NAMESPACE, "--dry-run=server"];
            annotate.extend(note.split(' '));
            accepted(try_kubectl(&annotate)?)
        }),
        Stream::new("aggregated calls", move || {
            accepted(try_kubectl(&["get", "--raw", &format!("{calls}/version")])?)
        }),
        Stream::new("calls to virt-handler", move || {
            let create = ["create", "--raw", &format!("{instance}/qmp"), "-f", "-"];
            accepted(try_kubectl_with(&create, r#"{"execute": "query-status"}"#)?)
        }),
        Stream::new("consoles", move || {
            let mut console = Console::open(namespace, "vm")?;
            console.expect("tick ", Duration::from_secs(30))?;
            console.leave().map(drop)
        }),
    ]
}

/// The current certificates of the installation, by secret; and the bundle.
fn certificates() -> Result<(BTreeMap<String, String>, String)> {
    let mut found = BTreeMap::new();
    for name in LEAVES.into_iter().chain([AUTHORITY]) {
        let path = ["get", "secret", name, "-n", NAMESPACE, "-o", "jsonpath={.data.tls\\.crt}"];
        let encoded = kubectl(&path)?;
        found.insert(name.to_owned(), succeed(Command::new("base64").arg("--decode"), Some(&encoded))?);
    }
    let bundle =
        kubectl(&["get", "configmap", AUTHORITY, "-n", NAMESPACE, "-o", "jsonpath={.data.ca-bundle}"])?;
    Ok((found, bundle))
}

/// Seconds from the creation of a certificate to its expiry; its validity begins five minutes before its
/// creation.
fn life(certificate: &str) -> Result<i64> {
    let mut read = Command::new("openssl");
    let text = succeed(read.args(["x509", "-noout", "-dates", "-dateopt", "iso_8601"]), Some(certificate))?;
    let time = |name: &str| -> Result<i64> {
        let line = text.lines().find_map(|line| line.strip_prefix(name)).context("no date")?;
        Ok(line.trim().replace(' ', "T").parse::<jiff::Timestamp>()?.as_second())
    };
    Ok(time("notAfter=")? - time("notBefore=")? - 300)
}

/// The certificate that each handler presents, by node.
fn shown() -> Result<BTreeMap<String, String>> {
    let mut shown = BTreeMap::new();
    for pod in objects(&["pod", "-n", NAMESPACE, "-l", "kubevirt.io=virt-handler"])? {
        let (node, address) = (&pod["spec"]["nodeName"], &pod["status"]["podIP"]);
        let (node, address) = node.as_str().zip(address.as_str()).context("a handler without an address")?;
        let mut connect = Command::new("openssl");
        connect.args(["s_client", "-connect", &format!("{}:8186", pods::host(address))]);
        let session = run(&mut connect, Some(""))?;
        let serial =
            succeed(Command::new("openssl").args(["x509", "-noout", "-serial"]), Some(&session.stdout))?;
        shown.insert(node.to_owned(), serial);
    }
    Ok(shown)
}

/// Containers of the installation, with their restart counts.
fn containers() -> Result<BTreeSet<String>> {
    let mut all = BTreeSet::new();
    for pod in objects(&["pod", "-n", NAMESPACE])? {
        for container in pod["status"]["containerStatuses"].as_array().into_iter().flatten() {
            let restarts = &container["restartCount"];
            all.insert(format!("{} {} {restarts}", pod["metadata"]["name"], pod["metadata"]["uid"]));
        }
    }
    Ok(all)
}

/// Waits until the first authority and everything that it signed are replaced.
fn everything_is_renewed(
    first: &BTreeMap<String, String>,
    handlers: &BTreeMap<String, String>,
) -> Result<()> {
    let mut told = BTreeSet::new();
    let mut tell = |what: String| {
        if told.insert(what.clone()) {
            eprintln!("{} {what}", jiff::Timestamp::now());
        }
    };
    wait::until_true("all certificates to be renewed", ROTATED, || {
        let (now, bundle) = certificates()?;
        let mut done = true;
        for (name, before) in first {
            if now.get(name) == Some(before) {
                done = false;
            } else {
                tell(format!("{name} was renewed"));
            }
        }
        if bundle.contains(first[AUTHORITY].trim()) {
            done = false;
        } else {
            tell("the first authority is not believed any more".to_owned());
        }
        // Checked last, since each takes a separate connection.
        if done {
            let shown = shown()?;
            done = handlers.iter().all(|(node, before)| shown.get(node).is_some_and(|now| now != before));
        }
        if !done {
            thread::sleep(Duration::from_secs(5));
        }
        Ok(done)
    })
}

#[test]
fn all_certificates_are_renewed_and_no_request_fails() {
    in_namespace("rotation", |namespace| {
        wait_available()?;
        namespace.apply(&guest::with_user_data(guest::instance("vm"), guest::COUNTING))?;
        namespace.wait_phase("vm", "Running", RUNNING)?;
        Console::open(namespace, "vm")?.expect("tick ", BOOT)?;
        let (before, _) = certificates()?;
        let (handlers, running) = (shown()?, containers()?);
        let streams = streams(namespace);
        let ended = AtomicBool::new(false);
        let result = thread::scope(|scope| {
            for stream in &streams {
                scope.spawn(|| stream.flow(&ended));
            }
            let result: Result<()> = (|| {
                {
                    let _short = Changed::begin(&json!({"certificateRotateStrategy": {"selfSigned": {
                        "ca": {"duration": "10m", "renewBefore": "6m"},
                        "server": {"duration": "5m", "renewBefore": "3m"},
                    }}}))?;
                    everything_is_renewed(&before, &handlers)?;
                }
                // Back to the former lives; certificates with shorter lives are renewed at once.
                wait::until_true("leaves to live for a day again", Duration::from_secs(60), || {
                    let (now, _) = certificates()?;
                    LEAVES.into_iter().try_fold(true, |all, name| Ok(all && life(&now[name])? == 24 * 3600))
                })?;
                // Wait until the pods have them.
                thread::sleep(Duration::from_secs(100));
                Ok(())
            })();
            ended.store(true, Ordering::Relaxed);
            result
        });
        // A failed request explains more than a wait that timed out.
        for stream in &streams {
            stream.check(60)?;
        }
        result?;
        let after = containers()?;
        ensure!(running == after, "before {running:?}, after {after:?}");
        Ok(())
    });
}

/// Lives that are too short for a renewal, or that contradict each other, are refused by name.
#[test]
fn lives_that_are_too_short_are_refused() {
    in_namespace("lives", |_| {
        wait_available()?;
        for (own, words) in [
            (json!({"ca": {"duration": "1h", "renewBefore": "2h"}}), "CA RenewBefore cannot exceed Duration"),
            (json!({"server": {"duration": "200h"}}), "Certificate duration cannot exceed CA"),
            (json!({"server": {"renewBefore": "1m"}}), "server.renewBefore is less than 2 minutes"),
            (
                json!({"ca": {"duration": "5m"}, "server": {"duration": "4m"}}),
                "ca.duration leaves less than 2",
            ),
        ] {
            let spec: Value = json!({"spec": {"certificateRotateStrategy": {"selfSigned": own}}});
            let patch =
                ["patch", "kubevirt", "kubevirt", "-n", NAMESPACE, "--type=merge", "-p", &spec.to_string()];
            let answer = try_kubectl(&patch)?;
            ensure!(answer.code != 0 && answer.text().contains(words), "{own}: {}", answer.text());
        }
        Ok(())
    });
}
