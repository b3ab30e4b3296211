//! A guest with two cards: one with masquerade on the pod network, and one bridged to another network that
//! assigns no addresses.

use std::fs::File;
use std::net::UdpSocket;

use barevirt_protocol::v1::{Card, Interface};
use nix::sched::{CloneFlags, unshare};

use super::*;

/// A tap in its own network namespace; `None` without root.
#[allow(unsafe_code)]
#[warn(clippy::undocumented_unsafe_blocks)]
fn tap(name: &'static str) -> Option<OwnedFd> {
    let make = move || {
        unshare(CloneFlags::CLONE_NEWNET).inspect_err(|error| eprintln!("skipped: {error}")).ok()?;
        let tun = File::options().read(true).write(true).open("/dev/net/tun").unwrap();
        // SAFETY: ifreq is plain data; all zeroes is a valid value of it.
        let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
        for (to, from) in request.ifr_name.iter_mut().zip(name.bytes()) {
            *to = libc::c_char::from_ne_bytes([from]);
        }
        let flags = libc::IFF_TAP | libc::IFF_NO_PI | libc::IFF_VNET_HDR;
        request.ifr_ifru.ifru_flags = libc::c_short::try_from(flags).unwrap();
        // SAFETY: the descriptor is open, and `request` is an initialised ifreq, as TUNSETIFF expects.
        assert_eq!(unsafe { libc::ioctl(tun.as_raw_fd(), libc::TUNSETIFF, &raw mut request) }, 0);
        Some(OwnedFd::from(tun))
    };
    std::thread::spawn(make).join().unwrap()
}

/// A guest whose cards have these link states.
fn wanted(revision: i64, states: [&str; 2]) -> tonic::Request<SyncRequest> {
    let mut object = vmi();
    let [first, second] = states;
    object["spec"]["domain"]["devices"]["interfaces"] = json!([
        {"name": "default", "masquerade": {}, "state": first},
        {"name": "red", "bridge": {}, "state": second, "macAddress": "02:00:00:00:00:02"},
    ]);
    object["spec"]["networks"] =
        json!([{"name": "default", "pod": {}}, {"name": "red", "multus": {"networkName": "red"}}]);
    let mut request = sync(revision);
    let sync = request.get_mut();
    sync.vmi = object.to_string().into_bytes();
    let card = |name: &str, last: u8| Interface {
        name: name.to_owned(),
        network: name.to_owned(),
        mac: format!("02:00:00:00:00:{last:02}"),
        mtu: 1400,
        ..Interface::default()
    };
    let default = Interface {
        ipv4: "10.0.2.2".to_owned(),
        ipv4_prefix: 24,
        ipv4_gateway: "10.0.2.1".to_owned(),
        ..card("default", 1)
    };
    sync.facts.get_or_insert_default().interfaces = vec![default, card("red", 2)];
    request
}

/// What a guest with these addresses tells its neighbours.
fn arp(mac: [u8; 6], address: [u8; 4]) -> Vec<u8> {
    let ethernet = [&[0xff; 6][..], &mac, &[8, 6]].concat();
    [&ethernet[..], &[0, 1, 8, 0, 6, 4, 0, 1], &mac, &address, &[0; 6], &[10, 9, 0, 1]].concat()
}

fn card(name: &str, down: bool) -> Card {
    Card { name: name.to_owned(), plugged: true, down, ..Card::default() }
}

#[tokio::test]
async fn a_guest_starts_with_both_of_its_cards_and_their_links_go_up_and_down() {
    let (Some(first), Some(second)) = (tap("tap0"), tap("tap1")) else { return };
    let pod = Pod::start(&[]).await;
    let mut client = pod.handler().await;
    let mut watch = Watch::open(&mut client).await;
    client.sync(wanted(1, ["up", "down"])).await.unwrap();
    let mut giver = pod.descriptors().await;
    giver.give(1, "net/default/tap", &[first.as_fd()], SOON).await.unwrap();
    giver.give(1, "net/red/tap", &[second.as_fd()], SOON).await.unwrap();
    let _helper = pod.root_disk().await;
    watch.until("waits for the socket", |status| status.message.contains("net/default/dhcp4")).await;
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    let [heard, neighbours] = [(); 2].map(|()| UdpSocket::bind("127.0.0.1:0").unwrap());
    giver.give(1, "net/red/ra", &[heard.as_fd()], SOON).await.unwrap();
    giver.give(1, "net/default/dhcp4", &[socket.as_fd()], SOON).await.unwrap();
    let told = [card("default", false), card("red", true)];
    let runs = |status: &LauncherStatus| status.phase() == Phase::Running && status.cards == told;
    watch.until("it runs", runs).await;

    let mac = |id: &str| {
        let path = format!("/machine/peripheral/{id}");
        let get = json!({"execute": "qom-get", "arguments": {"path": path, "property": "mac"}});
        let request = QmpRequest { command: get.to_string().into_bytes(), deadline_ms: 5000 };
        let mut client = client.clone();
        async move {
            let answer = client.qmp(grpc::request(request, SOON)).await.unwrap().into_inner().answer;
            serde_json::from_slice::<Value>(&answer).unwrap()["return"].take()
        }
    };
    assert_eq!(
        (mac("nic-default").await, mac("nic-red").await),
        (json!("02:00:00:00:00:01"), json!("02:00:00:00:00:02"))
    );

    client.clone().sync(wanted(2, ["down", "up"])).await.unwrap();
    let told = [card("default", true), card("red", false)];
    watch.until("the other way round", |status| status.cards == told).await;

    // The guest's neighbours hear its address, and so does the launcher.
    neighbours.send_to(&arp([2, 0, 0, 0, 0, 2], [10, 9, 0, 7]), heard.local_addr().unwrap()).unwrap();
    let red = Card { addresses: vec!["10.9.0.7".to_owned()], ..card("red", false) };
    watch.until("heard", |status| status.cards == [card("default", true), red.clone()]).await;

    // A card from the start is removed like one that was plugged in later.
    client.sync(wanted(3, ["down", "absent"])).await.unwrap();
    watch.until("accepted", |status| status.observed_revision == 3).await;
    release_card(&mut client).await;
    let gone = |status: &LauncherStatus| {
        status.cards == [card("default", true)] && !status.descriptors.contains(&"net/red/tap".to_owned())
    };
    watch.until("taken out", gone).await;
}

/// Addresses of all devices with an id, as the firmware has numbered the buses.
fn addresses(devices: &Value, found: &mut Vec<(String, String)>) {
    for device in devices.as_array().into_iter().flatten() {
        let number = |key: &str| device[key].as_u64().unwrap();
        let address = format!("{:02x}:{:02x}.{}", number("bus"), number("slot"), number("function"));
        found.push((device["qdev_id"].as_str().unwrap().to_owned(), address));
        addresses(&device["pci_bridge"]["devices"], found);
    }
}

#[tokio::test]
async fn cards_of_conventional_pci_have_the_addresses_that_they_are_given() {
    let (Some(first), Some(second)) = (tap("tap0"), tap("tap1")) else { return };
    let pod = Pod::start(&[]).await;
    let mut client = pod.handler().await;
    let mut watch = Watch::open(&mut client).await;
    let mut request = wanted(1, ["up", "up"]);
    let sync = request.get_mut();
    let mut object: Value = serde_json::from_slice(&sync.vmi).unwrap();
    let interfaces = &mut object["spec"]["domain"]["devices"]["interfaces"];
    interfaces[0]["model"] = json!("e1000");
    interfaces[0]["pciAddress"] = json!("0000:02:01.0");
    interfaces[1]["pciAddress"] = json!("0000:03:00.0");
    sync.vmi = object.to_string().into_bytes();
    client.sync(request).await.unwrap();
    let mut giver = pod.descriptors().await;
    giver.give(1, "net/default/tap", &[first.as_fd()], SOON).await.unwrap();
    giver.give(1, "net/red/tap", &[second.as_fd()], SOON).await.unwrap();
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    giver.give(1, "net/default/dhcp4", &[socket.as_fd()], SOON).await.unwrap();
    let _helper = pod.root_disk().await;
    watch.running().await;
    let command = json!({"execute": "query-pci"}).to_string().into_bytes();
    let wanted = [("nic-default", "02:01.0"), ("nic-red", "03:00.0")];
    let begun = std::time::Instant::now();
    loop {
        let request = QmpRequest { command: command.clone(), deadline_ms: 5000 };
        let answer = client.qmp(grpc::request(request, SOON)).await.unwrap().into_inner().answer;
        let answer: Value = serde_json::from_slice(&answer).unwrap();
        let mut found = Vec::new();
        answer["return"].as_array().unwrap().iter().for_each(|bus| addresses(&bus["devices"], &mut found));
        let is_there =
            |(id, address): &(&str, &str)| found.iter().any(|(known, at)| known == id && at == address);
        if wanted.iter().all(is_there) {
            break;
        }
        // The firmware is still numbering.
        assert!(begun.elapsed() < SOON, "{found:?}");
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
}

/// The same guest, started with its first card only; `second` is the state of the other card.
fn plugging(revision: i64, second: Option<&str>) -> tonic::Request<SyncRequest> {
    let mut request = wanted(revision, ["up", second.unwrap_or("up")]);
    let sync = request.get_mut();
    let mut object: Value = serde_json::from_slice(&sync.vmi).unwrap();
    // The handler's facts contain no entry for a card that does not exist or is gone.
    if second.is_none() {
        object["spec"]["domain"]["devices"]["interfaces"].as_array_mut().unwrap().truncate(1);
        object["spec"]["networks"].as_array_mut().unwrap().truncate(1);
        sync.facts.get_or_insert_default().interfaces.truncate(1);
    }
    sync.vmi = object.to_string().into_bytes();
    request
}

/// A guest that was described with its first card only, and has everything for its start.
struct Alone {
    pod: Pod,
    client: LauncherClient<Channel>,
    watch: Watch,
    giver: descriptors::Client,
    socket: UdpSocket,
    _helper: PacketSocket,
}

async fn alone(first: &OwnedFd) -> Alone {
    let pod = Pod::start(&[]).await;
    let mut client = pod.handler().await;
    let watch = Watch::open(&mut client).await;
    client.sync(plugging(1, None)).await.unwrap();
    let mut giver = pod.descriptors().await;
    giver.give(1, "net/default/tap", &[first.as_fd()], SOON).await.unwrap();
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    giver.give(1, "net/default/dhcp4", &[socket.as_fd()], SOON).await.unwrap();
    let _helper = pod.root_disk().await;
    Alone { pod, client, watch, giver, socket, _helper }
}

/// Makes the guest release a card. No system in the guest does this; a reset does, after the request.
async fn release_card(client: &mut LauncherClient<Channel>) {
    tokio::time::sleep(Duration::from_millis(700)).await;
    let reset = ControlRequest { control: Control::Reset.into(), ..ControlRequest::default() };
    client.control(grpc::request(reset, SOON)).await.unwrap();
}

#[tokio::test]
async fn a_card_comes_while_the_guest_runs_and_goes_again_any_number_of_times() {
    let Some(first) = tap("tap0") else { return };
    let Alone { pod: _pod, mut client, mut watch, mut giver, socket: _socket, _helper } = alone(&first).await;
    let alone = [card("default", false)];
    let runs = |status: &LauncherStatus| status.phase() == Phase::Running && status.cards == alone;
    let running = watch.until("it runs", runs).await;
    let (layout, held) = (running.pci_layout, running.descriptors);

    let mut revision = 1;
    for round in 0..3 {
        let second = tap("tap1").unwrap();
        revision += 1;
        let state = if round == 0 { "down" } else { "up" };
        client.sync(plugging(revision, Some(state))).await.unwrap();
        giver.give(revision, "net/red/tap", &[second.as_fd()], SOON).await.unwrap();
        // From now on only QEMU holds it.
        drop(second);
        let both = [card("default", false), card("red", state == "down")];
        let status = watch.until("plugged in", |status| status.cards == both).await;
        assert!(status.descriptors.contains(&"net/red/tap".to_owned()));
        assert!(status.pci_layout.contains("nic-red"), "{}", status.pci_layout);
        revision += 1;
        client.sync(plugging(revision, Some("absent"))).await.unwrap();
        release_card(&mut client).await;
        let status = watch.until("taken out", |status| status.cards == alone).await;
        assert_eq!((status.descriptors, status.pci_layout), (held.clone(), layout.clone()), "{round}");
    }
    let netdev = json!({"execute": "netdev_del", "arguments": {"id": "net-red"}});
    let request = QmpRequest { command: netdev.to_string().into_bytes(), deadline_ms: 5000 };
    let answer = client.qmp(grpc::request(request, SOON)).await;
    assert!(
        answer.is_err() || answer.unwrap().into_inner().answer.starts_with(b"{\"error\""),
        "none is left"
    );
}

#[tokio::test]
async fn a_card_that_cannot_be_plugged_is_reported_and_the_guest_keeps_running() {
    let Some(first) = tap("tap0") else { return };
    let Alone { pod: _pod, mut client, mut watch, mut giver, socket, _helper } = alone(&first).await;
    watch.until("it runs", |status| status.phase() == Phase::Running).await;

    client.sync(plugging(2, Some("up"))).await.unwrap();
    // This descriptor is not a tap.
    giver.give(2, "net/red/tap", &[socket.as_fd()], SOON).await.unwrap();
    let is_told = |status: &LauncherStatus| {
        status.cards.iter().any(|card| card.name == "red" && !card.trouble.is_empty())
    };
    let status = watch.until("trouble", is_told).await;
    let red = status.cards.iter().find(|card| card.name == "red").unwrap();
    assert!(!red.plugged && red.trouble.starts_with("QEMU refuses netdev_add"), "{}", red.trouble);
    assert_eq!(status.phase(), Phase::Running);

    // The card is given up, and its descriptors are closed; descriptors for a later revision are kept.
    client.sync(plugging(3, Some("absent"))).await.unwrap();
    let held = |status: &LauncherStatus| status.descriptors.contains(&"net/red/tap".to_owned());
    let given_up = |status: &LauncherStatus| status.cards == [card("default", false)] && !held(status);
    watch.until("given up", given_up).await;
    let second = tap("tap1").unwrap();
    giver.give(5, "net/red/tap", &[second.as_fd()], SOON).await.unwrap();
    client.sync(plugging(4, Some("absent"))).await.unwrap();
    watch.until("not yet", |status| status.observed_revision == 4 && held(status)).await;
    client.sync(plugging(5, Some("up"))).await.unwrap();
    let both = [card("default", false), card("red", false)];
    watch.until("plugged in", |status| status.cards == both).await;
}

#[tokio::test]
async fn a_card_that_the_guest_has_not_released_moves_with_it() {
    let (Some(first), Some(second)) = (tap("tap0"), tap("tap1")) else { return };
    let Alone { pod: source, mut client, mut watch, mut giver, socket, _helper } = alone(&first).await;
    watch.until("it runs", |status| status.phase() == Phase::Running && status.ready).await;
    giver.give(2, "net/red/tap", &[second.as_fd()], SOON).await.unwrap();
    client.sync(plugging(2, Some("up"))).await.unwrap();
    let both = [card("default", false), card("red", false)];
    watch.until("plugged in", |status| status.cards == both).await;
    client.sync(plugging(3, Some("absent"))).await.unwrap();
    let running = watch.until("asked for it", |status| status.observed_revision == 3).await;

    let target = Pod::start(&[]).await;
    let mut at_target = target.handler().await;
    let mut target_watch = Watch::open(&mut at_target).await;
    let mut wanted = plugging(3, Some("absent"));
    let request = wanted.get_mut();
    let mut object: Value = serde_json::from_slice(&request.vmi).unwrap();
    object["status"] = json!({"machine": {"type": running.machine_type}});
    object["metadata"]["annotations"] = json!({"barevirt.dev/pci-layout": running.pci_layout});
    request.vmi = object.to_string().into_bytes();
    request.incoming_migration = moves::MIGRATION.to_owned();
    at_target.sync(wanted).await.unwrap();
    let (third, fourth) = (tap("tap0").unwrap(), tap("tap1").unwrap());
    let mut giver = target.descriptors().await;
    giver.give(3, "net/default/tap", &[third.as_fd()], SOON).await.unwrap();
    giver.give(3, "net/default/dhcp4", &[socket.as_fd()], SOON).await.unwrap();
    giver.give(3, "net/red/tap", &[fourth.as_fd()], SOON).await.unwrap();
    let _target_helper = target.root_disk().await;
    moves::travel((&source, &mut watch), (&target, &mut target_watch)).await;
    target_watch.running().await;
    target_watch.until("it has both", |status| status.cards == both).await;
    release_card(&mut at_target).await;
    let alone = [card("default", false)];
    target_watch.until("taken out", |status| status.cards == alone).await;
}
