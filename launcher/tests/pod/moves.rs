//! A guest that moves between two confined launchers, each in its own pod: with a container disk, an empty
//! disk and cloud-init.

use barevirt_protocol::names::{MigrationChannel, MigrationStream};
use barevirt_protocol::v1::migrate_request::Order;
use barevirt_protocol::v1::{
    MigrateRequest, MigrationGo, MigrationReceive, MigrationResult, MigrationSend, MigrationState,
};

use super::*;

pub(crate) const MIGRATION: &str = "0b4f6f0e-9a35-4f3c-8f0e-000000000001";

fn order(order: Order) -> tonic::Request<MigrateRequest> {
    grpc::request(MigrateRequest { uid: MIGRATION.to_owned(), order: Some(order) }, SOON)
}

fn state(status: &LauncherStatus) -> MigrationState {
    status.migration.as_ref().map_or(MigrationState::Unspecified, |told| told.state())
}

/// Gives each launcher one end of a connection for each stream.
async fn connect(source: &Pod, target: &Pod, streams: &[MigrationStream]) {
    let (mut to_source, mut to_target) = (source.descriptors().await, target.descriptors().await);
    for stream in streams {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let ours = std::net::TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let theirs = listener.accept().unwrap().0;
        let name = MigrationChannel { uid: MIGRATION.to_owned(), stream: stream.clone() }.descriptor();
        to_source.give(1, &name, &[ours.as_fd()], SOON).await.unwrap();
        to_target.give(1, &name, &[theirs.as_fd()], SOON).await.unwrap();
    }
}

/// Streams of a guest's disks that come along, and of its memory: the first one and two more.
fn streams(status: &LauncherStatus) -> Vec<MigrationStream> {
    let images = status.made_disks.iter().filter(|disk| disk.read_only).map(|disk| &disk.volume);
    let disks = status.local_disks.iter().chain(images).cloned().map(MigrationStream::Disk);
    let channels = (1..=2).map(MigrationStream::Channel);
    disks.chain(channels).chain([MigrationStream::Memory]).collect()
}

/// Whether a target is ready for its guest.
pub(crate) fn awaits(status: &LauncherStatus) -> bool {
    status.ready && state(status) == MigrationState::Awaited && !status.machine_type.is_empty()
}

/// Orders both ends to start, and waits until everything was sent.
async fn go(
    client: &mut LauncherClient<Channel>,
    at_target: &mut LauncherClient<Channel>,
    watch: &mut Watch,
) {
    let key = vec![9; 32];
    at_target
        .migrate(order(Order::Receive(MigrationReceive { key: key.clone(), compression: false })))
        .await
        .unwrap();
    let send =
        MigrationSend { key, downtime_ms: 900, progress_timeout_seconds: 30, ..MigrationSend::default() };
    client.migrate(order(Order::Send(send))).await.unwrap();
    let over = |status: &LauncherStatus| matches!(state(status), MigrationState::Sent | MigrationState::Over);
    let sent = watch.until("sent", over).await;
    assert_eq!(state(&sent), MigrationState::Sent, "{sent:?}");
}

/// Moves a guest from a running source to a target that was prepared for it, and waits until it runs there.
pub(crate) async fn travel((source, watch): (&Pod, &mut Watch), (target, target_watch): (&Pod, &mut Watch)) {
    let awaited = target_watch.until("awaits it", awaits).await;
    connect(source, target, &streams(&awaited)).await;
    let (mut client, mut at_target) = (source.handler().await, target.handler().await);
    go(&mut client, &mut at_target, watch).await;
    target_watch.until("received", |status| state(status) == MigrationState::Received).await;
    at_target.migrate(order(Order::Go(MigrationGo { hold: false }))).await.unwrap();
}

/// Prepares a target for the guest of this instance.
pub(crate) async fn expects(target: &Pod, object: &Value) -> (Watch, PacketSocket) {
    let mut client = target.handler().await;
    let watch = Watch::open(&mut client).await;
    let mut wanted = of(1, object);
    wanted.get_mut().incoming_migration = MIGRATION.to_owned();
    client.sync(wanted).await.unwrap();
    (watch, target.root_disk().await)
}

#[tokio::test]
async fn a_guest_with_its_disks_goes_from_one_pod_to_another() {
    let (mut source, mut watch, running, _helper) = started(&[]).await;
    let mut client = source.handler().await;
    assert_eq!(running.local_disks, ["root", "seed", "scratch"]);

    let target = Pod::start(&[]).await;
    let mut at_target = target.handler().await;
    let mut target_watch = Watch::open(&mut at_target).await;
    let mut object = vmi();
    object["status"] = json!({"machine": {"type": running.machine_type}});
    object["metadata"]["annotations"] = json!({"barevirt.dev/pci-layout": running.pci_layout});
    let mut wanted = sync(1);
    wanted.get_mut().vmi = object.to_string().into_bytes();
    wanted.get_mut().incoming_migration = MIGRATION.to_owned();
    at_target.sync(wanted).await.unwrap();
    let _target_helper = target.root_disk().await;
    let awaited = target_watch.until("awaits it", awaits).await;
    assert_eq!((awaited.phase(), &awaited.machine_type), (Phase::Starting, &running.machine_type));
    assert_eq!(awaited.local_disks, running.local_disks);

    connect(&source, &target, &streams(&running)).await;
    go(&mut client, &mut at_target, &mut watch).await;
    // Letting it run now would make two running guests.
    let control = ControlRequest { control: Control::Unpause.into(), ..Default::default() };
    let refused = client.control(grpc::request(control, SOON)).await.unwrap_err();
    assert_eq!(refused.message(), "VMI is migrating");
    let request = QmpRequest { command: br#"{"execute": "cont"}"#.to_vec(), deadline_ms: 5000 };
    let refused = client.qmp(grpc::request(request, SOON)).await.unwrap_err();
    assert_eq!(refused.message(), "VMI is migrating");
    target_watch.until("received", |status| state(status) == MigrationState::Received).await;
    let keys = target.at("private/migration");
    eventually("the key is gone", SOON, || std::fs::read_dir(&keys).unwrap().next().is_none()).await;
    at_target.migrate(order(Order::Go(MigrationGo { hold: false }))).await.unwrap();
    let arrived = target_watch.running().await;
    assert_eq!((state(&arrived), arrived.phase()), (MigrationState::Arrived, Phase::Running));

    client.migrate(order(Order::Result(MigrationResult { went: true, lost: false }))).await.unwrap();
    drop((watch, client));
    let (code, word) = source.end().await;
    assert_eq!((code, &word["reason"]), (0, &json!("Migrated")));
    // Its monitor answers, and it can be paused and resumed.
    let command = br#"{"execute": "query-status"}"#.to_vec();
    let mut status = Value::Null;
    for _ in 0..100 {
        let request = QmpRequest { command: command.clone(), deadline_ms: 5000 };
        if let Ok(answer) = at_target.qmp(grpc::request(request, SOON)).await {
            status = serde_json::from_slice(&answer.into_inner().answer).unwrap();
            break;
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    assert_eq!(status["return"]["status"], "running");
}

/// Mounts a config map as the kubelet does.
fn mount(pod: &Pod, version: &str, contents: &str) {
    let files = pod.at("private/config-map/settings");
    std::fs::create_dir_all(files.join(version)).unwrap();
    std::fs::write(files.join(version).join("color"), contents).unwrap();
    std::os::unix::fs::symlink(version, files.join("..data")).unwrap();
}

#[tokio::test]
async fn a_guest_keeps_the_disks_of_objects_that_it_started_with() {
    let mut object = vmi();
    let disk = json!({"name": "settings", "cdrom": {"bus": "sata"}});
    object["spec"]["domain"]["devices"]["disks"].as_array_mut().unwrap().push(disk);
    let volume = json!({"name": "settings", "configMap": {"name": "c"}});
    object["spec"]["volumes"].as_array_mut().unwrap().push(volume);
    let source = Pod::start(&[]).await;
    mount(&source, "..1", "blue");
    let mut client = source.handler().await;
    let mut watch = Watch::open(&mut client).await;
    client.sync(of(1, &object)).await.unwrap();
    let _helper = source.root_disk().await;
    let running = watch.running().await;
    assert_eq!(running.local_disks, ["root", "seed", "scratch"]);
    let made: Vec<_> = running.made_disks.iter().map(|disk| (disk.volume.as_str(), disk.read_only)).collect();
    assert_eq!(made, [("seed", false), ("settings", true)]);

    let target = Pod::start(&[]).await;
    mount(&target, "..2", &"green".repeat(10_000));
    let told: Vec<Value> = running
        .made_disks
        .iter()
        .map(|disk| json!({"name": disk.volume, "target": "", "size": disk.bytes}))
        .collect();
    object["status"] = json!({"machine": {"type": running.machine_type}, "volumeStatus": told});
    object["metadata"]["annotations"] = json!({"barevirt.dev/pci-layout": running.pci_layout});
    let (mut target_watch, _target_helper) = expects(&target, &object).await;
    travel((&source, &mut watch), (&target, &mut target_watch)).await;
    target_watch.running().await;
    client.migrate(order(Order::Result(MigrationResult { went: true, lost: false }))).await.unwrap();
    for image in
        ["private/config-map-disks/settings.iso", "ephemeral/cloud-init-data/default/test/noCloud.iso"]
    {
        let [here, there] = [&source, &target].map(|pod| std::fs::read(pod.at(image)).unwrap());
        assert!(here.iter().any(|byte| *byte != 0) && here == there, "{image}");
    }
}

/// QEMU opens the device: the launcher's filter always refuses the system call `userfaultfd`.
#[tokio::test]
async fn a_confined_target_offers_post_copy_where_its_pod_has_userfaultfd() {
    let there = std::fs::File::options().read(true).write(true).open("/dev/userfaultfd").is_ok();
    let target = Pod::start(&[]).await;
    let mut client = target.handler().await;
    let mut watch = Watch::open(&mut client).await;
    let mut wanted = sync(1);
    wanted.get_mut().incoming_migration = MIGRATION.to_owned();
    client.sync(wanted).await.unwrap();
    let _helper = target.root_disk().await;
    let offers =
        |status: &LauncherStatus| status.migration.as_ref().is_some_and(|told| told.offers_post_copy);
    // The first report decides: the guest may be sent at once.
    let told = watch.until("awaits it", |status| state(status) == MigrationState::Awaited).await;
    assert_eq!(offers(&told), there);
}

#[tokio::test]
async fn a_target_starts_no_guest_by_itself() {
    let target = Pod::start(&[]).await;
    let mut client = target.handler().await;
    let mut watch = Watch::open(&mut client).await;
    let mut wanted = sync(1);
    wanted.get_mut().incoming_migration = MIGRATION.to_owned();
    client.sync(wanted).await.unwrap();
    let _helper = target.root_disk().await;
    watch.until("awaits it", |status| status.ready && state(status) == MigrationState::Awaited).await;
    // Neither another order, nor a control, nor a user at its monitor changes this.
    client.sync(sync(2)).await.unwrap();
    let control = ControlRequest { control: Control::Unpause.into(), ..Default::default() };
    let refused = client.control(grpc::request(control, SOON)).await.unwrap_err();
    assert_eq!(refused.code(), tonic::Code::FailedPrecondition);
    let request = QmpRequest { command: br#"{"execute": "cont"}"#.to_vec(), deadline_ms: 5000 };
    assert!(client.qmp(grpc::request(request, SOON)).await.is_err());
    let first = client
        .migrate(order(Order::Receive(MigrationReceive { key: vec![], compression: false })))
        .await
        .unwrap_err();
    assert!(first.message().contains("no connection"), "{first}");
    tokio::time::sleep(Duration::from_millis(300)).await;
    let mut again = Watch::open(&mut client).await;
    let status = again.until("a status", |_| true).await;
    assert_eq!((status.phase(), state(&status)), (Phase::Starting, MigrationState::Awaited));
}

/// A guest with a plugged disk on each bus that supports hotplug.
fn with_plugged(names: &[&str]) -> Value {
    let mut object = vmi();
    let buses = [("data", "scsi"), ("logs", "virtio"), ("more", "scsi")];
    for (name, bus) in buses.into_iter().filter(|(name, _)| names.contains(name)) {
        let disk = json!({"name": name, "disk": {"bus": bus}, "serial": name});
        object["spec"]["domain"]["devices"]["disks"].as_array_mut().unwrap().push(disk);
        let claim = json!({"claimName": format!("on-{name}"), "hotpluggable": true});
        let volume = json!({"name": name, "persistentVolumeClaim": claim});
        object["spec"]["volumes"].as_array_mut().unwrap().push(volume);
    }
    object
}

fn of(revision: i64, object: &Value) -> tonic::Request<SyncRequest> {
    let mut request = sync(revision);
    request.get_mut().vmi = object.to_string().into_bytes();
    request
}

/// Passes the descriptor of the disk, which both nodes reach.
async fn offer(pod: &Pod, file: &Path, name: &str) {
    let file = std::fs::File::options().read(true).write(true).open(file).unwrap();
    let name = format!("disk/{name}/on-{name}");
    pod.descriptors().await.give(9, &name, &[file.as_fd()], SOON).await.unwrap();
}

/// Places of the guest's disks, from QEMU.
async fn places(client: &mut LauncherClient<Channel>) -> Vec<String> {
    let command = br#"{"execute": "query-block"}"#.to_vec();
    let request = QmpRequest { command, deadline_ms: 5000 };
    let answer = client.qmp(grpc::request(request, SOON)).await.unwrap().into_inner().answer;
    let answer: Value = serde_json::from_slice(&answer).unwrap();
    let mut places: Vec<String> =
        answer["return"].as_array().unwrap().iter().map(|one| one["qdev"].to_string()).collect();
    places.sort();
    places
}

#[tokio::test]
async fn a_guest_brings_the_disks_along_that_it_got_while_it_ran() {
    let shared = tempfile::tempdir().unwrap();
    let file = |name: &str| shared.path().join(name);
    for name in ["data", "logs", "more"] {
        std::fs::write(file(name), vec![0; 1 << 20]).unwrap();
    }
    let plugged = |status: &LauncherStatus| {
        let mut names: Vec<String> =
            status.hot_disks.iter().filter(|disk| disk.plugged).map(|disk| disk.volume.clone()).collect();
        names.sort();
        names.join(" ")
    };
    let (source, mut watch, _running, _helper) = started(&[]).await;
    let mut client = source.handler().await;
    client.sync(of(2, &with_plugged(&["data", "logs", "more"]))).await.unwrap();
    for name in ["data", "logs", "more"] {
        offer(&source, &file(name), name).await;
    }
    watch.until("all are plugged in", |status| plugged(status) == "data logs more").await;
    // The first one is removed: the others keep their places.
    let kept = with_plugged(&["logs", "more"]);
    client.sync(of(3, &kept)).await.unwrap();
    let gone = |status: &LauncherStatus| {
        plugged(status) == "logs more" && !status.descriptors.contains(&"disk/data/on-data".to_owned())
    };
    let running = watch.until("one is taken out", gone).await;
    let before = places(&mut client).await;

    let target = Pod::start(&[]).await;
    let mut at_target = target.handler().await;
    let mut target_watch = Watch::open(&mut at_target).await;
    let told = |name: &str| {
        json!({"name": name, "target": "", "phase": "Ready",
            "persistentVolumeClaimInfo": {"claimName": format!("on-{name}")},
            "hotplugVolume": {"attachPodName": "p", "attachPodUID": "u"}})
    };
    let mut object = kept.clone();
    object["status"] = json!({
        "machine": {"type": running.machine_type}, "volumeStatus": [told("logs"), told("more")],
    });
    object["metadata"]["annotations"] = json!({"barevirt.dev/pci-layout": running.pci_layout});
    let mut wanted = of(3, &object);
    wanted.get_mut().incoming_migration = MIGRATION.to_owned();
    at_target.sync(wanted).await.unwrap();
    let _target_helper = target.root_disk().await;
    target_watch.until("its disks are missing", |status| status.message.contains("disk/logs/on-logs")).await;
    for name in ["logs", "more"] {
        offer(&target, &file(name), name).await;
    }
    travel((&source, &mut watch), (&target, &mut target_watch)).await;
    target_watch.until("it has them", |status| plugged(status) == "logs more").await;
    client.migrate(order(Order::Result(MigrationResult { went: true, lost: false }))).await.unwrap();
    assert_eq!(places(&mut at_target).await, before);
    // They are unplugged and plugged in here as they were there.
    at_target.sync(of(4, &with_plugged(&["more"]))).await.unwrap();
    target_watch.until("one is taken out", |status| plugged(status) == "more").await;
    at_target.sync(of(5, &with_plugged(&["more", "data"]))).await.unwrap();
    offer(&target, &file("data"), "data").await;
    target_watch.until("one is plugged in", |status| plugged(status) == "data more").await;
}

#[tokio::test]
async fn a_guest_moves_that_has_got_processors_and_memory() {
    let machine = |sockets: u32, memory: &str| {
        let mut object = vmi();
        let domain = &mut object["spec"]["domain"];
        domain["cpu"] = json!({"sockets": sockets, "maxSockets": 4});
        domain["memory"] = json!({"guest": memory, "maxGuest": "1Gi"});
        let disk = json!({"name": "more", "disk": {"bus": "scsi"}});
        domain["devices"]["disks"].as_array_mut().unwrap().push(disk);
        let volume = json!({"name": "more", "emptyDisk": {"capacity": "1Mi"}});
        object["spec"]["volumes"].as_array_mut().unwrap().push(volume);
        object
    };
    let source = Pod::start(&[]).await;
    let mut client = source.handler().await;
    let mut watch = Watch::open(&mut client).await;
    client.sync(of(1, &machine(1, "128Mi"))).await.unwrap();
    let _helper = source.root_disk().await;
    watch.running().await;
    client.sync(of(2, &machine(2, "256Mi"))).await.unwrap();
    let has_grown = |status: &LauncherStatus| {
        let size = status.size.clone().unwrap_or_default();
        size.sockets == 2 && size.requested_memory_bytes == 256 << 20
    };
    let running = watch.until("has grown", has_grown).await;

    let target = Pod::start(&[]).await;
    let mut at_target = target.handler().await;
    let mut target_watch = Watch::open(&mut at_target).await;
    let mut object = machine(2, "256Mi");
    object["status"] = json!({
        "machine": {"type": running.machine_type}, "currentCPUTopology": {"sockets": 2},
        "memory": {"guestAtBoot": "128Mi"},
    });
    object["metadata"]["annotations"] = json!({"barevirt.dev/pci-layout": running.pci_layout});
    let mut wanted = of(2, &object);
    wanted.get_mut().incoming_migration = MIGRATION.to_owned();
    at_target.sync(wanted).await.unwrap();
    let _target_helper = target.root_disk().await;
    travel((&source, &mut watch), (&target, &mut target_watch)).await;
    target_watch.running().await;
    target_watch.until("it is as large", has_grown).await;
    // It grows further here.
    at_target.sync(of(3, &machine(3, "256Mi"))).await.unwrap();
    let has_more = |status: &LauncherStatus| status.size.as_ref().is_some_and(|size| size.sockets == 3);
    target_watch.until("has more", has_more).await;
}

#[tokio::test]
async fn persistent_state_on_a_shared_claim_moves_from_pod_to_pod() {
    let shared = tempfile::tempdir().unwrap();
    kept_state_moves(shared.path(), shared.path()).await;
    assert!(std::fs::metadata(shared.path().join("tpm/.lock")).is_ok());
}

#[tokio::test]
async fn persistent_state_moves_to_an_empty_claim() {
    let (here, there) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    kept_state_moves(here.path(), there.path()).await;
    let read = |claim: &tempfile::TempDir, name: &str| std::fs::read(claim.path().join(name)).unwrap();
    // The seeds and proofs of another TPM would be six other random numbers of 64 bytes.
    let tpm = "tpm/tpm2-00.permall";
    let (before, after) = (read(&here, tpm), read(&there, tpm));
    assert_eq!(before.len(), after.len());
    let others = before.iter().zip(&after).filter(|(before, after)| before != after).count();
    assert!(others < 200, "{others} bytes are not those of the source");
}

/// Moves a guest between pods with these claims.
async fn kept_state_moves(here: &std::path::Path, there: &std::path::Path) {
    let mut object = vmi();
    let domain = &mut object["spec"]["domain"];
    domain["firmware"]["bootloader"] = json!({"efi": {"secureBoot": false, "persistent": true}});
    domain["devices"]["tpm"] = json!({"persistent": true});
    domain["memory"]["guest"] = json!("128Mi");
    let source = Pod::start(&["--state", here.to_str().unwrap()]).await;
    let mut client = source.handler().await;
    let mut watch = Watch::open(&mut client).await;
    client.sync(of(1, &object)).await.unwrap();
    let _helper = source.root_disk().await;
    let running = watch.running().await;
    let fresh = std::fs::read("/usr/share/OVMF/OVMF_VARS_4M.fd").unwrap();
    let is_fresh =
        |claim: &std::path::Path| std::fs::read(claim.join("nvram/OVMF_VARS_4M.fd")).unwrap() == fresh;
    eventually("the firmware has written variables", SOON, || !is_fresh(here)).await;
    object["status"] = json!({"machine": {"type": running.machine_type}});
    object["metadata"]["annotations"] = json!({"barevirt.dev/pci-layout": running.pci_layout});
    let target = Pod::start(&["--state", there.to_str().unwrap()]).await;
    let (mut target_watch, _target_helper) = expects(&target, &object).await;
    travel((&source, &mut watch), (&target, &mut target_watch)).await;
    // The source still exists, with its TPM, until it gets the order to end.
    target_watch.running().await;
    eventually("the variables have come", SOON, || !is_fresh(there)).await;
    assert!(std::fs::metadata(there.join("tpm/tpm2-00.permall")).is_ok());
    client.migrate(order(Order::Result(MigrationResult { went: true, lost: false }))).await.unwrap();
}
