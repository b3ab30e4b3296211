//! Disks on claims: those that a guest starts with, and those that are plugged and unplugged while it runs.

use std::os::fd::AsFd;

use barevirt_protocol::grpc;
use barevirt_protocol::v1::QmpRequest;
use serde_json::{Value, json};

use super::{Pod, SOON, Watch, sync, vmi};

/// A guest whose disks are all on claims: one from the start, and another one.
fn on_claims(hot: bool) -> Value {
    let mut object = vmi();
    let disk = |name: &str, bus: &str| json!({"name": name, "disk": {"bus": bus}, "serial": name});
    let volume = |name: &str, hot: bool| json!({"name": name, "persistentVolumeClaim": {"claimName": "c", "hotpluggable": hot}});
    let (mut disks, mut volumes) = (vec![disk("boot", "virtio")], vec![volume("boot", false)]);
    if hot {
        disks.push(disk("data", "scsi"));
        volumes.push(volume("data", true));
    }
    object["spec"]["domain"]["devices"]["disks"] = disks.into();
    object["spec"]["volumes"] = volumes.into();
    let info = json!({"claimName": "c", "requests": {"storage": "2Mi"}, "capacity": {"storage": "5Gi"}, "preallocated": true});
    object["status"] =
        json!({"volumeStatus": [{"name": "boot", "target": "", "persistentVolumeClaimInfo": info}]});
    object
}

#[tokio::test]
async fn a_disk_on_a_claim_is_made_and_another_is_plugged_in_and_taken_out() {
    let claims = tempfile::tempdir().unwrap();
    std::fs::create_dir(claims.path().join("boot")).unwrap();
    let pod = Pod::start(&["--claims", claims.path().to_str().unwrap()]).await;
    let mut client = pod.handler().await;
    let mut watch = Watch::open(&mut client).await;
    let wanted = |revision: i64, hot: bool| {
        let mut request = sync(revision);
        request.get_mut().vmi = on_claims(hot).to_string().into_bytes();
        request
    };
    let ask = |name: &'static str| {
        let command = json!({"execute": name}).to_string().into_bytes();
        let mut client = client.clone();
        async move {
            let request = grpc::request(QmpRequest { command, deadline_ms: 5000 }, SOON);
            let answer = client.qmp(request).await.unwrap().into_inner().answer;
            serde_json::from_slice::<Value>(&answer).unwrap()["return"].take()
        }
    };
    let nodes = |answer: Value| {
        let nodes = answer.as_array().cloned().unwrap_or_default();
        nodes
            .into_iter()
            .map(|node| node["node-name"].as_str().unwrap_or_default().to_owned())
            .collect::<Vec<_>>()
    };
    client.clone().sync(wanted(1, true)).await.unwrap();
    let running = watch.running().await;
    assert!(running.hot_disks.is_empty());
    assert_eq!(std::fs::metadata(claims.path().join("boot/disk.img")).unwrap().len(), 2 << 20);
    // Space that was allocated in advance is not given back.
    let line = std::fs::read_to_string(format!("/proc/{}/cmdline", running.qemu_pid)).unwrap();
    let made: Vec<&str> = line.split('\0').filter(|argument| argument.contains("-boot\"")).collect();
    assert!(made.iter().filter(|node| node.contains(r#""discard":"ignore""#)).count() == 2, "{made:?}");

    let file = pod.at("data.img");
    std::fs::write(&file, vec![0; 3 << 20]).unwrap();
    let file = std::fs::File::options().read(true).write(true).open(&file).unwrap();
    let mut giver = pod.descriptors().await;
    for name in ["disk/data", "disk/data/c/d"] {
        assert!(giver.give(1, name, &[file.as_fd()], SOON).await.is_err(), "{name}");
    }
    for round in 1..=2 {
        // The revision that wants it: one that is given for an earlier one may be dropped.
        giver.give(2 * round - 1, "disk/data/c", &[file.as_fd()], SOON).await.unwrap();
        let told = watch.until("plugged in", |status| status.hot_disks.iter().any(|disk| disk.plugged)).await;
        let disk = &told.hot_disks[0];
        assert_eq!(
            (disk.volume.as_str(), disk.claim.as_str(), disk.target.as_str(), disk.trouble.as_str()),
            ("data", "c", "sda", "")
        );
        assert!(giver.give(1, "disk/data/c", &[file.as_fd()], SOON).await.is_err(), "it is in use");
        let there = nodes(ask("query-named-block-nodes").await);
        assert!(there.contains(&"disk-data".to_owned()), "{there:?}");

        client.clone().sync(wanted(2 * round, false)).await.unwrap();
        watch
            .until("taken out", |status| {
                status.hot_disks.is_empty() && !status.descriptors.contains(&"disk/data/c".to_owned())
            })
            .await;
        let there = nodes(ask("query-named-block-nodes").await);
        assert!(!there.iter().any(|node| node.contains("data")), "{there:?}");
        let sets = ask("query-fdsets").await;
        assert!(!sets.to_string().contains("volume data"), "{sets}");
        client.clone().sync(wanted(2 * round + 1, true)).await.unwrap();
    }

    // A disk that QEMU cannot use is reported, and the guest continues.
    let directory = std::fs::File::open(claims.path()).unwrap();
    giver.give(9, "disk/data/c", &[directory.as_fd()], SOON).await.unwrap();
    let told =
        watch.until("trouble", |status| status.hot_disks.iter().any(|disk| !disk.trouble.is_empty())).await;
    assert_eq!(told.hot_disks[0].trouble, "the disk is neither a regular file nor a block device");
    giver.give(9, "disk/data/c", &[file.as_fd()], SOON).await.unwrap();
    watch.until("plugged in after all", |status| status.hot_disks.iter().any(|disk| disk.plugged)).await;
}
