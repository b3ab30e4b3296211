//! A guest that floods its launcher with requests, in network namespaces: it gets few answers, and a guest of another pod gets
//! its address meanwhile. Both launchers have one thread here, and processes of their own on a node.

use std::net::UdpSocket;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use super::guest::tests::interface;
use super::netns_tests::{GUEST_MAC, pod, run, script, side, udhcpc};
use super::v4::tests::discover;
use super::*;

const NEIGHBOUR_MAC: &str = "02:12:34:56:78:9b";
/// How long the flood has lasted when the other guest asks.
const BEFORE: Duration = Duration::from_secs(1);
/// The flood ends then in any case.
const LONGEST: Duration = Duration::from_secs(60);

/// What a guest sent, and how many answers came back.
struct Flood {
    sent: usize,
    answers: usize,
    lasted: Duration,
}

/// The request again, with options that nobody knows, as long as one packet allows.
fn long() -> Vec<u8> {
    const OPTION: [u8; 2] = [250, 255];
    let mut request = discover();
    let end = request.pop().unwrap();
    while request.len() + OPTION.len() + 255 < 1472 {
        request.extend(OPTION);
        request.extend([7; 255]);
    }
    request.push(end);
    request
}

/// The request again, with an option that is longer than what follows.
fn lying() -> Vec<u8> {
    let mut request = discover();
    request.pop();
    request.extend([61, 255, 1]);
    request
}

fn flood(is_over: &AtomicBool) -> Flood {
    run("ip link set lo up");
    run(&format!("ip link set guest-end address {GUEST_MAC}"));
    run("ip addr add 10.0.2.2/24 dev guest-end");
    run("ip link set guest-end up");
    let socket = UdpSocket::bind("0.0.0.0:68").unwrap();
    socket.set_nonblocking(true).unwrap();
    let requests = [discover(), long(), lying(), vec![0xff; 4000]];
    let (mut sent, mut answers) = (0, 0);
    let begun = Instant::now();
    let mut answer = [0; 2048];
    while !is_over.load(Ordering::Relaxed) && begun.elapsed() < LONGEST {
        // What finds no room is not sent.
        sent += requests.iter().filter(|request| socket.send_to(request, "10.0.2.1:67").is_ok()).count();
        while socket.recv(&mut answer).is_ok() {
            answers += 1;
        }
    }
    Flood { sent, answers, lasted: begun.elapsed() }
}

/// Whether the other guest gets its address.
fn asks(directory: &Path) -> bool {
    run("ip link set lo up");
    run(&format!("ip link set guest-end address {NEIGHBOUR_MAC}"));
    run("ip link set guest-end up");
    udhcpc(&script(directory, "bound").0)
}

#[tokio::test]
async fn a_guest_that_floods_its_launcher_gets_few_answers_and_another_guest_gets_its_address() {
    if !nix::unistd::geteuid().is_root() {
        eprintln!("skipped: network namespaces need root");
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().to_owned();
    let is_over = Arc::new(AtomicBool::new(false));
    let until = Arc::clone(&is_over);
    let hostile = side(move || flood(&until));
    let neighbour = side(move || asks(&path));
    let servers = [(hostile.number, GUEST_MAC), (neighbour.number, NEIGHBOUR_MAC)].map(|(number, mac)| {
        let sockets = thread::spawn(move || pod(number)).join().unwrap();
        let mut facts = interface();
        facts.mac = mac.into();
        tokio::spawn(serve(Guest::new(&facts, Some("vm1"), None).unwrap(), sockets, |_| ()))
    });
    hostile.go.send(()).unwrap();
    tokio::time::sleep(BEFORE).await;
    neighbour.go.send(()).unwrap();
    let is_served = tokio::task::spawn_blocking(move || neighbour.thread.join()).await.unwrap().unwrap();
    is_over.store(true, Ordering::Relaxed);
    let hostile = tokio::task::spawn_blocking(move || hostile.thread.join()).await.unwrap().unwrap();
    for server in &servers {
        assert!(!server.is_finished());
        server.abort();
    }

    let Flood { sent, answers, lasted } = hostile;
    println!("{sent} requests, {answers} answers in {lasted:?}");
    // Twenty at once, then ten in a second; the last ones may still be on their way.
    let most = 20 + lasted.as_millis() / 100 + 1;
    assert!((20..=most).contains(&(answers as u128)), "{answers} answers in {lasted:?}");
    assert!(sent > 10 * answers, "no flood: {sent} requests, {answers} answers");
    assert!(is_served, "the other guest got no address");
}
