//! A guest with two cards: behind translation on the pod network, and a station on another network that gives no addresses.

use std::fs::File;
use std::net::UdpSocket;

use barevirt_protocol::v1::{Card, Interface};
use nix::sched::{CloneFlags, unshare};

use super::*;

/// A tap in a network namespace of its own; nothing if this is not root.
#[allow(unsafe_code)]
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

/// A guest whose cards have links of these states.
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

fn card(name: &str, down: bool) -> Card {
    Card { name: name.to_owned(), plugged: true, down, trouble: String::new() }
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
}
