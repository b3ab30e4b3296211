//! Disks on claims that grow: at the start, and while the guest runs.

use std::os::unix::fs::MetadataExt as _;
use std::os::unix::fs::PermissionsExt as _;

use super::moves::MIGRATION;
use super::*;

const MIB: u64 = 1 << 20;

/// A guest with a disk on a claim of that capacity, and with another one that is plugged in.
fn request(revision: i64, capacity: &str, hot: bool) -> tonic::Request<SyncRequest> {
    let mut object = vmi();
    let disk = |name: &str, bus: &str| json!({"name": name, "disk": {"bus": bus}});
    let volume = |name: &str, hot: bool| json!({"name": name, "persistentVolumeClaim": {"claimName": name, "hotpluggable": hot}});
    let info = |name: &str| {
        let sizes =
            json!({"claimName": name, "requests": {"storage": "1Gi"}, "capacity": {"storage": capacity}});
        json!({"name": name, "target": "", "persistentVolumeClaimInfo": sizes})
    };
    let (mut disks, mut volumes) = (vec![disk("boot", "virtio")], vec![volume("boot", false)]);
    if hot {
        disks.push(disk("data", "scsi"));
        volumes.push(volume("data", true));
    }
    object["spec"]["domain"]["devices"]["disks"] = disks.into();
    object["spec"]["volumes"] = volumes.into();
    object["status"] = json!({"volumeStatus": [info("boot"), info("data")]});
    let mut request = sync(revision);
    request.get_mut().vmi = object.to_string().into_bytes();
    request
}

/// A directory of claims with a disk of one MiB, which begins with a line.
fn claims() -> (tempfile::TempDir, PathBuf) {
    let claims = tempfile::tempdir().unwrap();
    std::fs::create_dir(claims.path().join("boot")).unwrap();
    let disk = claims.path().join("boot/disk.img");
    std::fs::write(&disk, b"kept\n").unwrap();
    std::fs::File::options().write(true).open(&disk).unwrap().set_len(MIB).unwrap();
    (claims, disk)
}

/// The size of a disk as the guest sees it.
async fn seen(client: &LauncherClient<Channel>, node: &str) -> u64 {
    let command = br#"{"execute": "query-named-block-nodes"}"#.to_vec();
    let request = grpc::request(QmpRequest { command, deadline_ms: 5000 }, SOON);
    let answer = client.clone().qmp(request).await.unwrap().into_inner().answer;
    let answer = serde_json::from_slice::<Value>(&answer).unwrap();
    let node = answer["return"].as_array().unwrap().iter().find(|one| one["node-name"] == node).unwrap();
    node["image"]["virtual-size"].as_u64().unwrap()
}

fn told(status: &LauncherStatus) -> Vec<u64> {
    status.claim_disks.iter().map(|disk| disk.bytes / MIB).collect()
}

#[tokio::test]
async fn a_disk_grows_with_its_claim_at_the_start_and_while_the_guest_runs() {
    let (claims, disk) = claims();
    let pod = Pod::start(&["--claims", claims.path().to_str().unwrap()]).await;
    let mut client = pod.handler().await;
    let mut watch = Watch::open(&mut client).await;
    client.sync(request(1, "4Mi", false)).await.unwrap();
    let running = watch.running().await;
    assert_eq!(told(&running), [3], "less the share of the file system");
    let length = || std::fs::metadata(&disk).unwrap().len() / MIB;
    assert_eq!((length(), seen(&client, "disk-boot").await), (3, 3 * MIB));

    client.sync(request(2, "8Mi", false)).await.unwrap();
    watch.until("grown", |status| told(status) == [7]).await;
    assert_eq!((length(), seen(&client, "disk-boot").await), (7, 7 * MIB));

    // A claim that is smaller now changes nothing, and the next one that is larger does.
    client.sync(request(3, "2Mi", false)).await.unwrap();
    client.sync(request(4, "16Mi", true)).await.unwrap();
    watch.until("grown again", |status| told(status) == [15]).await;
    assert_eq!((length(), seen(&client, "disk-boot").await), (15, 15 * MIB));
    assert!(std::fs::read(&disk).unwrap().starts_with(b"kept\n"));
    assert!(std::fs::metadata(&disk).unwrap().blocks() * 512 < 2 * MIB, "something was written");

    // A disk that is plugged in.
    let path = pod.at("data.img");
    std::fs::write(&path, vec![7; 2 << 20]).unwrap();
    let file = std::fs::File::options().read(true).write(true).open(&path).unwrap();
    pod.descriptors().await.give(4, "disk/data/data", &[file.as_fd()], SOON).await.unwrap();
    watch.until("plugged in", |status| status.hot_disks.iter().any(|disk| disk.plugged)).await;
    let length = || file.metadata().unwrap().len() / MIB;
    eventually("the plugged disk grows", SOON, || length() == 15).await;
    client.sync(request(5, "32Mi", true)).await.unwrap();
    let last = watch.until("grown with it", |status| told(status) == [30, 30]).await;
    eventually("it grows with its claim", SOON, || length() == 30).await;
    assert_eq!(seen(&client, "disk-data").await, 30 * MIB);
    assert!(std::fs::read(&path).unwrap().starts_with(&[7; 4096]));
    assert!(last.not_grown.is_empty(), "{last:?}");

    // Once it is taken out, it stays as it is.
    client.sync(request(6, "32Mi", false)).await.unwrap();
    watch.until("taken out", |status| status.hot_disks.is_empty()).await;
    client.sync(request(7, "64Mi", false)).await.unwrap();
    watch.until("the other has grown", |status| told(status) == [60]).await;
    assert_eq!(length(), 30);
}

#[tokio::test]
async fn a_refusal_is_reported_until_the_claim_changes() {
    let (claims, disk) = claims();
    let script = claims.path().join("qemu");
    // No file of QEMU may have more than 128 MiB; one is the memory of its guest.
    let text = "#!/bin/sh\ntrap '' XFSZ\nulimit -f 262144\nexec qemu-system-x86_64 \"$@\"\n";
    std::fs::write(&script, text).unwrap();
    std::fs::set_permissions(&script, std::fs::Permissions::from_mode(0o755)).unwrap();
    let arguments = ["--claims", claims.path().to_str().unwrap(), "--qemu", script.to_str().unwrap()];
    let pod = Pod::start(&arguments).await;
    let mut client = pod.handler().await;
    let mut watch = Watch::open(&mut client).await;
    client.sync(request(1, "4Mi", false)).await.unwrap();
    watch.running().await;
    client.sync(request(2, "256Mi", false)).await.unwrap();
    let refused = watch.until("refused", |status| !status.not_grown.is_empty()).await;
    let trouble = &refused.not_grown[0];
    assert_eq!(trouble.volume, "boot");
    assert!(trouble.text.starts_with("QEMU refuses block_resize to 251658240 bytes: "), "{}", trouble.text);
    assert_eq!(told(&refused), [3]);
    assert_eq!(std::fs::metadata(&disk).unwrap().len(), 3 * MIB);
    client.sync(request(3, "4Mi", false)).await.unwrap();
    let after = watch.until("forgotten", |status| status.not_grown.is_empty()).await;
    assert_eq!(after.phase(), Phase::Running);
}

#[tokio::test]
async fn the_disk_of_a_guest_that_comes_from_elsewhere_stays_as_it_is() {
    let (claims, disk) = claims();
    let pod = Pod::start(&["--claims", claims.path().to_str().unwrap()]).await;
    let mut client = pod.handler().await;
    let mut watch = Watch::open(&mut client).await;
    let mut wanted = request(1, "4Mi", false);
    wanted.get_mut().incoming_migration = MIGRATION.to_owned();
    client.sync(wanted).await.unwrap();
    let awaits = |status: &LauncherStatus| status.ready && !status.machine_type.is_empty();
    let awaited = watch.until("awaits its guest", awaits).await;
    assert_eq!((awaited.phase(), told(&awaited)), (Phase::Starting, vec![1]));
    assert_eq!(std::fs::metadata(&disk).unwrap().len(), MIB);
}
