//! Tests of a launcher from the first connection to its result, with a second handler in between.

use barevirt_api::settings::{NO_BINDINGS, Settings};
use barevirt_protocol::v1::{LauncherStatus, Phase};
use serde_json::json;
use tokio::time::timeout;

use super::*;
use crate::fake_launcher::{FakeLauncher, KILLED};
use crate::network;
use crate::network::tests::bridge::attach_red;
use crate::network::tests::{connect, namespace};
use crate::pods::LauncherPod;

const WAIT: std::time::Duration = std::time::Duration::from_secs(10);

fn vmi() -> VirtualMachineInstance {
    serde_json::from_value(json!({
        "apiVersion": "kubevirt.io/v1", "kind": "VirtualMachineInstance",
        "metadata": {"name": "web", "namespace": "shop", "uid": "u-1", "generation": 4},
        "spec": {
            "domain": {
                "memory": {"guest": "128Mi"},
                "devices": {"interfaces": [{"name": "default", "masquerade": {}, "macAddress": "02:00:00:00:00:07"}]},
            },
            "networks": [{"name": "default", "pod": {}}],
        },
    }))
    .unwrap()
}

fn pod(fake: &FakeLauncher) -> LauncherPod {
    LauncherPod {
        uid: fake.container.pod_uid.clone(),
        name: "virt-launcher-web-x".to_owned(),
        container: Some(fake.container.id.clone()),
        addresses: Vec::new(),
        allow_emulation: true,
        deleted: false,
        readiness: None,
        links: Vec::new(),
    }
}

async fn report_in(session: &mut Session, phase: Phase) -> LauncherStatus {
    let reached = async {
        loop {
            if let Some(status) = session.report().status.filter(|status| status.phase() == phase) {
                return status;
            }
            session.wait_for_report().await;
        }
    };
    timeout(WAIT, reached).await.unwrap()
}

#[tokio::test]
async fn a_session_from_the_first_connection_to_the_end_of_the_guest() {
    let Some(fake) = FakeLauncher::start() else { return };
    let Some(node) = namespace() else { return };
    connect(&node, &fake.network_namespace(), true);
    let pods = PodsDir::open(fake.pods.path()).unwrap();
    let (vmi, pod) = (vmi(), pod(&fake));

    let mut first = Session::open(&pods, &fake.container).await.unwrap();
    report_in(&mut first, Phase::Waiting).await;
    assert!(first.prepare(&vmi, &pod, true, &NO_BINDINGS).await.unwrap() > 10);
    let interfaces = first.interfaces().unwrap().to_vec();
    assert_eq!(interfaces[0].mac, "02:00:00:00:00:07");
    assert_eq!(interfaces[0].addresses, ["10.244.9.7", "fd00:10:244:9::7"]);
    first.sync(&vmi, "hash").await.unwrap();
    let running = report_in(&mut first, Phase::Running).await;
    assert_eq!(running.observed_revision, 4);
    let network: Vec<_> = running.descriptors.iter().filter(|name| name.starts_with("net/")).collect();
    assert_eq!(network, ["net/default/dhcp4", "net/default/dhcp6", "net/default/ra", "net/default/tap"]);

    // The handler is killed. A new one finds everything in place: nothing to create, nothing to hand over.
    drop(first);
    let mut second = Session::open(&pods, &fake.container).await.unwrap();
    report_in(&mut second, Phase::Running).await;
    assert_eq!(second.prepare(&vmi, &pod, true, &NO_BINDINGS).await.unwrap(), 0);
    assert_eq!(second.interfaces().unwrap(), interfaces);
    second.sync(&vmi, "hash").await.unwrap();

    assert!(second.shutdown(30).await.unwrap());
    assert!(!second.shutdown(5).await.unwrap());
    let ended = report_in(&mut second, Phase::Succeeded).await;
    assert_eq!((ended.reason.as_str(), ended.message.as_str()), ("GuestShutdown", "within 5 s"));
}

#[tokio::test]
async fn each_card_of_a_guest_is_on_its_network_and_in_its_status() {
    let Some(fake) = FakeLauncher::start() else { return };
    let Some(node) = namespace() else { return };
    connect(&node, &fake.network_namespace(), true);
    attach_red(&node, &fake.network_namespace(), Vec::new());
    let mut vmi = vmi();
    vmi.spec.domain.devices.interfaces.push(from(json!({"name": "red", "bridge": {}})));
    vmi.spec.networks.push(from(json!({"name": "red", "multus": {"networkName": "red"}})));
    let pods = PodsDir::open(fake.pods.path()).unwrap();
    let mut session = Session::open(&pods, &fake.container).await.unwrap();
    report_in(&mut session, Phase::Waiting).await;
    session.prepare(&vmi, &pod(&fake), true, &NO_BINDINGS).await.unwrap();
    let [first, red] = session.interfaces().unwrap() else { panic!("{:?}", session.interfaces()) };
    assert_eq!((first.pod_interface.as_str(), first.is_primary, first.addresses.len()), ("eth0", true, 2));
    assert_eq!((red.pod_interface.as_str(), red.is_primary), ("podb1f51a511f1", false));
    assert_eq!((red.name.as_str(), red.addresses.len(), red.queues), ("red", 0, 1));
    session.sync(&vmi, "hash").await.unwrap();
    let running = report_in(&mut session, Phase::Running).await;
    let network: Vec<_> = running.descriptors.iter().filter(|name| name.contains("/red/")).collect();
    // No address is given there, so the launcher listens for the guest's.
    assert_eq!(network, ["net/red/ra", "net/red/tap"]);
}

#[tokio::test]
async fn the_launcher_hears_how_many_queues_it_has_got_and_hears_the_same_from_the_next_handler() {
    let Some(fake) = FakeLauncher::start() else { return };
    let Some(node) = namespace() else { return };
    connect(&node, &fake.network_namespace(), true);
    let pods = PodsDir::open(fake.pods.path()).unwrap();
    let (mut vmi, pod) = (vmi(), pod(&fake));
    vmi.spec.domain.devices.network_interface_multiqueue = Some(true);
    vmi.spec.domain.cpu = from(json!({"sockets": 2, "maxSockets": 4}));
    let told = |session: &Session| {
        let facts = session.made.as_ref().unwrap().facts.interfaces[0].queues;
        (facts, session.interfaces().unwrap()[0].queues)
    };
    let mut first = Session::open(&pods, &fake.container).await.unwrap();
    report_in(&mut first, Phase::Waiting).await;
    first.prepare(&vmi, &pod, true, &NO_BINDINGS).await.unwrap();
    assert_eq!(told(&first), (2, 2));
    first.sync(&vmi, "hash").await.unwrap();
    let running = report_in(&mut first, Phase::Running).await;
    let taps: Vec<_> = running.descriptors.iter().filter(|name| name.contains("/tap")).collect();
    assert_eq!(taps, ["net/default/tap", "net/default/tap.1"]);

    // More CPUs have come meanwhile.
    drop(first);
    vmi.spec.domain.cpu = from(json!({"sockets": 4, "maxSockets": 4}));
    let mut second = Session::open(&pods, &fake.container).await.unwrap();
    report_in(&mut second, Phase::Running).await;
    assert_eq!(second.prepare(&vmi, &pod, true, &NO_BINDINGS).await.unwrap(), 0);
    assert_eq!(told(&second), (2, 2));
}

#[tokio::test]
async fn a_running_guest_keeps_a_card_whose_plugin_was_removed_before_its_handler_began() {
    let Some(fake) = FakeLauncher::start() else { return };
    let Some(node) = namespace() else { return };
    connect(&node, &fake.network_namespace(), true);
    attach_red(&node, &fake.network_namespace(), Vec::new());
    let (mut vmi, pod) = (vmi(), pod(&fake));
    vmi.spec.domain.devices.interfaces.push(from(json!({"name": "red", "binding": {"name": "mine"}})));
    vmi.spec.networks.push(from(json!({"name": "red", "multus": {"networkName": "red"}})));
    let plugins = json!({"mine": {"domainAttachmentType": "managedTap"}});
    let spec = from(json!({"configuration": {"network": {"binding": plugins}}}));
    let bindings = Settings::from_kubevirt(Some(&spec)).bindings;
    let pods = PodsDir::open(fake.pods.path()).unwrap();

    let mut first = Session::open(&pods, &fake.container).await.unwrap();
    report_in(&mut first, Phase::Waiting).await;
    let error = first.prepare(&vmi, &pod, true, &NO_BINDINGS).await.unwrap_err();
    assert!(matches!(error, StepError::Interface(InterfaceError::Plugin(..))), "{error}");
    first.prepare(&vmi, &pod, true, &bindings).await.unwrap();
    let interfaces = first.interfaces().unwrap().to_vec();
    first.sync(&vmi, "hash").await.unwrap();
    report_in(&mut first, Phase::Running).await;

    drop(first);
    let mut second = Session::open(&pods, &fake.container).await.unwrap();
    report_in(&mut second, Phase::Running).await;
    assert_eq!(second.prepare(&vmi, &pod, true, &NO_BINDINGS).await.unwrap(), 0);
    assert_eq!((interfaces.len(), second.interfaces().unwrap()), (2, interfaces.as_slice()));
    second.sync(&vmi, "hash").await.unwrap();
}

#[tokio::test]
async fn a_card_of_the_node_waits_until_it_is_seen_on_the_pod() {
    let Some(fake) = FakeLauncher::start() else { return };
    let mut vmi = vmi();
    vmi.spec.domain.devices.interfaces = from(json!([{"name": "red", "sriov": {}}]));
    vmi.spec.networks = from(json!([{"name": "red", "multus": {"networkName": "red"}}]));
    let pods = PodsDir::open(fake.pods.path()).unwrap();
    let mut session = Session::open(&pods, &fake.container).await.unwrap();
    report_in(&mut session, Phase::Waiting).await;
    let error = session.prepare(&vmi, &pod(&fake), true, &NO_BINDINGS).await.unwrap_err();
    assert!(matches!(error, StepError::NotAttached(_)), "{error}");
    assert!(session.interfaces().is_none());
}

fn from<T: serde::de::DeserializeOwned>(value: serde_json::Value) -> T {
    serde_json::from_value(value).unwrap()
}

#[tokio::test]
async fn a_handler_that_was_killed_before_it_handed_anything_over_is_made_good() {
    let Some(fake) = FakeLauncher::start() else { return };
    let Some(node) = namespace() else { return };
    connect(&node, &fake.network_namespace(), true);
    let (vmi, pod) = (vmi(), pod(&fake));
    let cards = guest::wanted(&valid(&vmi).unwrap(), &BTreeSet::new(), true, &NO_BINDINGS).unwrap();
    drop(network::prepare(fake.network_namespace(), cards, BTreeSet::new()).await.unwrap());

    let pods = PodsDir::open(fake.pods.path()).unwrap();
    let mut session = Session::open(&pods, &fake.container).await.unwrap();
    report_in(&mut session, Phase::Waiting).await;
    // Bridge, addresses and rules still exist. The tap went away with its descriptor (it has to be opened, sized,
    // attached, not learned behind, set up, and given two settings), the bridge lost its MTU with its last port, and three
    // sockets are closed.
    assert_eq!(session.prepare(&vmi, &pod, true, &NO_BINDINGS).await.unwrap(), 11);
    session.sync(&vmi, "hash").await.unwrap();
    report_in(&mut session, Phase::Running).await;
}

#[tokio::test]
async fn the_last_words_of_a_launcher_are_kept() {
    let Some(mut fake) = FakeLauncher::start() else { return };
    let pods = PodsDir::open(fake.pods.path()).unwrap();
    let mut session = Session::open(&pods, &fake.container).await.unwrap();
    report_in(&mut session, Phase::Waiting).await;
    session.shutdown(0).await.unwrap();
    report_in(&mut session, Phase::Succeeded).await;
    fake.kill();
    let lost = async {
        while !session.report().lost {
            session.wait_for_report().await;
        }
    };
    timeout(WAIT, lost).await.unwrap();
    assert_eq!(session.report().status.unwrap().phase(), Phase::Succeeded);
}

#[tokio::test]
async fn the_end_of_a_qemu_that_was_killed_says_whether_that_was_for_lack_of_memory() {
    for (short, reason) in [(false, "QemuKilled"), (true, "OOMKilled")] {
        let Some(fake) = FakeLauncher::start() else { return };
        if fake.group("memory").is_none() {
            eprintln!("skipped: no memory hierarchy of cgroup v1");
            return;
        }
        let pods = PodsDir::open(fake.pods.path()).unwrap();
        let mut session = Session::open(&pods, &fake.container).await.unwrap();
        report_in(&mut session, Phase::Waiting).await;
        if short {
            fake.run_out_of_memory();
        }
        session.launcher().qmp(KILLED.to_vec(), WAIT).await.unwrap();
        let ended = report_in(&mut session, Phase::Failed).await;
        assert_eq!(ended.reason, reason, "{}", ended.message);
        assert_eq!(ended.message.contains("and has a limit of 64 MiB"), short, "{}", ended.message);
        assert!(ended.message.contains("signal 9"), "{}", ended.message);
    }
}

#[tokio::test]
async fn an_invalid_instance_is_refused_with_its_causes_and_nothing_is_touched() {
    let Some(fake) = FakeLauncher::start() else { return };
    let pods = PodsDir::open(fake.pods.path()).unwrap();
    let mut session = Session::open(&pods, &fake.container).await.unwrap();
    let mut vmi = vmi();
    vmi.spec.networks.clear();
    let error = session.prepare(&vmi, &pod(&fake), true, &NO_BINDINGS).await.unwrap_err();
    assert!(matches!(&error, StepError::Invalid(causes) if causes.contains("interfaces")), "{error}");
    assert!(session.interfaces().is_none());
}

#[tokio::test]
async fn the_launcher_hears_why_virtual_cpus_are_not_realtime() {
    let Some(fake) = FakeLauncher::start() else { return };
    let pods = PodsDir::open(fake.pods.path()).unwrap();
    let mut session = Session::open(&pods, &fake.container).await.unwrap();
    report_in(&mut session, Phase::Waiting).await;
    // The fake launcher has no QEMU.
    let error = session.make_real_time(&vmi(), 12, fake.pods.path()).await.unwrap_err();
    assert!(matches!(error, StepError::RealTime(RealTimeError::NoQemu { .. })), "{error}");
    let expected = format!("12 is not: {error}");
    let told = async {
        while session.report().status.is_none_or(|status| status.message != expected) {
            session.wait_for_report().await;
        }
    };
    timeout(WAIT, told).await.unwrap();
    assert_eq!(session.view(&session.report(), &vmi(), true, Instant::now()).real_time, None);
}
