//! Discs that are put into the CD drive of a running guest, change, move with the guest and are ejected; and metrics of the
//! node, which a guest that moves reads from its new one.

use super::moves::{MIGRATION, travel};
use super::*;

/// A guest with a drive, in which is the disc of that claim, and with metrics of its node.
fn with_disc(claim: Option<&str>) -> Value {
    let mut object = vmi();
    let devices = &mut object["spec"]["domain"]["devices"];
    devices["disks"] =
        json!([{"name": "cd", "cdrom": {"bus": "sata"}}, {"name": "metrics", "disk": {"bus": "virtio"}}]);
    devices["downwardMetrics"] = json!({});
    let disc = claim.map(
        |name| json!({"name": "cd", "persistentVolumeClaim": {"claimName": name, "hotpluggable": true}}),
    );
    let metrics = json!({"name": "metrics", "downwardMetrics": {}});
    object["spec"]["volumes"] = disc.into_iter().chain([metrics]).collect();
    object
}

fn of(revision: i64, object: &Value) -> tonic::Request<SyncRequest> {
    let mut request = sync(revision);
    request.get_mut().vmi = object.to_string().into_bytes();
    request
}

async fn offer(pod: &Pod, claim: &str, file: &Path) {
    let file = std::fs::File::open(file).unwrap();
    pod.descriptors().await.give(9, &format!("disk/cd/{claim}"), &[file.as_fd()], SOON).await.unwrap();
}

async fn ask(client: &mut LauncherClient<Channel>, name: &str) -> Value {
    let command = json!({"execute": name}).to_string().into_bytes();
    let request = QmpRequest { command, deadline_ms: 5000 };
    let answer = client.qmp(grpc::request(request, SOON)).await.unwrap().into_inner().answer;
    serde_json::from_slice::<Value>(&answer).unwrap()["return"].take()
}

/// The size of the disc in the drive, which is closed.
async fn disc(client: &mut LauncherClient<Channel>) -> Option<u64> {
    let drives = ask(client, "query-block").await;
    let drive = drives.as_array().unwrap().iter().find(|drive| drive["qdev"] == "disk-cd").unwrap();
    assert_eq!(drive["tray_open"], false, "{drive}");
    drive["inserted"]["image"]["virtual-size"].as_u64()
}

/// Whether exactly the disc of that claim is plugged in.
fn has(status: &LauncherStatus, claim: &str) -> bool {
    status.hot_disks.len() == 1 && status.hot_disks[0].plugged && status.hot_disks[0].claim == claim
}

#[tokio::test]
async fn a_disc_is_inserted_exchanged_brought_along_and_ejected() {
    let shared = tempfile::tempdir().unwrap();
    let file = |name: &str| shared.path().join(name);
    for (name, mib) in [("first", 1), ("second", 2)] {
        std::fs::write(file(name), vec![0; mib << 20]).unwrap();
    }
    let source = Pod::start(&["--node-name", "the-first-node"]).await;
    let mut client = source.handler().await;
    let mut watch = Watch::open(&mut client).await;
    client.sync(of(1, &with_disc(None))).await.unwrap();
    let running = watch.running().await;
    assert_eq!(disc(&mut client).await, None);

    client.sync(of(2, &with_disc(Some("first")))).await.unwrap();
    offer(&source, "first", &file("first")).await;
    let told = watch.until("the first disc", |status| has(status, "first")).await;
    assert_eq!((told.hot_disks[0].target.as_str(), told.hot_disks[0].trouble.as_str()), ("sda", ""));
    assert_eq!(told.pci_layout, running.pci_layout);
    assert_eq!(disc(&mut client).await, Some(1 << 20));
    client.sync(of(3, &with_disc(Some("second")))).await.unwrap();
    offer(&source, "second", &file("second")).await;
    watch.until("the second disc", |status| has(status, "second")).await;
    assert_eq!(disc(&mut client).await, Some(2 << 20));

    let target = Pod::start(&["--node-name", "the-second-node"]).await;
    let mut at_target = target.handler().await;
    let mut target_watch = Watch::open(&mut at_target).await;
    let mut object = with_disc(Some("second"));
    object["status"] = json!({
        "machine": {"type": running.machine_type},
        "volumeStatus": [{"name": "cd", "target": "", "phase": "Ready",
            "persistentVolumeClaimInfo": {"claimName": "second"},
            "hotplugVolume": {"attachPodName": "p", "attachPodUID": "u"}}],
    });
    object["metadata"]["annotations"] = json!({"barevirt.dev/pci-layout": running.pci_layout});
    let mut wanted = of(3, &object);
    wanted.get_mut().incoming_migration = MIGRATION.to_owned();
    at_target.sync(wanted).await.unwrap();
    offer(&target, "second", &file("second")).await;
    travel((&source, &mut watch), (&target, &mut target_watch)).await;
    target_watch.until("it has its disc", |status| has(status, "second")).await;
    assert_eq!(disc(&mut at_target).await, Some(2 << 20));
    let metrics = || std::fs::read(target.at("ephemeral/metrics.vhostmd")).unwrap();
    let tells = || String::from_utf8_lossy(&metrics()).contains("<value>the-second-node</value>");
    eventually("metrics of its new node", SOON, tells).await;

    at_target.sync(of(4, &with_disc(None))).await.unwrap();
    let is_out = |status: &LauncherStatus| status.hot_disks.is_empty() && status.descriptors.is_empty();
    target_watch.until("the disc is out", is_out).await;
    assert_eq!(disc(&mut at_target).await, None);
    let nodes = ask(&mut at_target, "query-named-block-nodes").await;
    assert!(nodes.as_array().unwrap().iter().all(|node| node["node-name"] != "disk-cd"), "{nodes}");
}
