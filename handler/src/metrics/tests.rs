//! Tests of scrapes, with launchers in processes of their own.

use std::sync::Arc;

use barevirt_api::v1::VirtualMachineInstance;
use barevirt_component::metrics::Metrics;
use k8s_openapi::api::core::v1::ObjectReference;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::json;
use tokio::sync::watch;

use super::*;
use crate::fake_launcher::FakeLauncher;
use crate::launchers::find;
use crate::launchers::pods_dir::PodsDir;

/// Metrics of a node with one guest; `None` where the machine does not permit it.
async fn node() -> Option<(FakeLauncher, Arc<Metrics>)> {
    let fake = FakeLauncher::start()?;
    let launcher = find(&PodsDir::open(fake.pods.path()).unwrap(), &fake.container).await.unwrap();
    let launchers = Launchers::default();
    let key = ("shop".to_owned(), "web".to_owned());
    let (_, found) = watch::channel(Some(launcher));
    launchers.insert(key.clone(), ObjectReference::default(), found);
    let vmi = json!({
        "metadata": {"namespace": "shop", "name": "web", "labels": {"a": "quote \" and\nline"}},
        "spec": {"domain": {"devices": {}, "memory": {"guest": "64Mi"}}},
    });
    let vmi: VirtualMachineInstance = serde_json::from_value(vmi).unwrap();
    launchers.describe(&key, Subject::of(&vmi));
    let mut metrics = Metrics::default();
    metrics.collect(Guests::new(launchers, Handle::current()));
    Some((fake, Arc::new(metrics)))
}

async fn scrape(metrics: &Arc<Metrics>) -> String {
    let metrics = metrics.clone();
    tokio::task::spawn_blocking(move || metrics.text()).await.unwrap()
}

fn count(text: &str, line: &str) -> usize {
    text.lines().filter(|one| one.starts_with(line)).count()
}

#[tokio::test(flavor = "multi_thread")]
async fn kernel_metrics_are_reported_while_qemus_monitor_hangs() {
    let Some((_fake, metrics)) = node().await else { return };
    let text = scrape(&metrics).await;
    let labels = r#"{node="",namespace="shop",name="web",kubernetes_vmi_label_a="quote \" and\nline"}"#;
    assert!(text.contains(&format!("\nkubevirt_vmi_cpu_usage_seconds_total{labels} 2.0\n")), "{text}");
    assert_eq!(count(&text, "kubevirt_vmi_memory_domain_bytes{"), 1, "{text}");
    assert_eq!(count(&text, "kubevirt_vmi_vcpu"), 0, "{text}");
    assert_eq!(count(&text, r#"barevirt_guest_stats_missed_total{part="monitor"} 1"#), 1, "{text}");
    let names = barevirt_component::metrics::names_in(&text);
    let ours = |name: &str| container::ALL.iter().any(|metric| metric.name == name);
    let known = |name: &str| barevirt_component::metrics::names::is_exported(name) || ours(name);
    assert!(names.iter().all(|name| known(name)), "{names:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn concurrent_scrapes_share_one_bounded_collection() {
    let Some((fake, metrics)) = node().await else { return };
    let pid = Pid::from_raw(fake.process_id().try_into().unwrap());
    kill(pid, Signal::SIGSTOP).unwrap();
    // The signal takes effect on all threads a moment later.
    while !std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap().contains(") T ") {
        tokio::task::yield_now().await;
    }
    let begun = Instant::now();
    let texts = futures::future::join_all((0..8).map(|_| scrape(&metrics))).await;
    let took = begun.elapsed();
    kill(pid, Signal::SIGCONT).unwrap();
    assert!(took < WHOLE + Duration::from_millis(700), "{took:?}");
    for text in texts {
        assert_eq!(count(&text, "kubevirt_vmi_"), 0, "{text}");
        assert_eq!(count(&text, r#"barevirt_guest_stats_missed_total{part="launcher"} 1"#), 1, "{text}");
    }
    // The launcher is queried again, and answers.
    assert_eq!(count(&scrape(&metrics).await, "kubevirt_vmi_cpu_usage_seconds_total{"), 1);
}
