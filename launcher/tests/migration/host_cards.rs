//! A card of the node, which stays behind when its guest moves. No machine of ours has one: a USB device stands for it, which
//! QEMU takes out at once, and a card behind a root port, which a guest without a system never gives back.

use barevirt_machine::Command;
use barevirt_qmp::qapi::qmp::{qom_list, system_reset};
use serde_json::json;

use super::*;

const CARD: &str = "card";
/// What both ends have: places for either card.
const PLACES: [&str; 4] = ["-device", "qemu-xhci,id=usb", "-device", "pcie-root-port,id=root1,chassis=1"];

fn card(driver: &str, bus: &str) -> Vec<Step> {
    let arguments = json!({ "driver": driver, "id": CARD, "bus": bus });
    vec![Step {
        forward: Command { execute: "device_add", arguments },
        inverse: Command { execute: "device_del", arguments: json!({ "id": CARD }) },
        awaits_device: Some(CARD.to_owned()),
    }]
}

/// Both ends of a guest with that card, with a monitor of each.
async fn start(driver: &str, bus: &str) -> (Pair, [Qmp; 2]) {
    let directory = tempfile::tempdir().unwrap();
    let there = format!("{driver},id={CARD},bus={bus}");
    let at_source = [&PLACES[..], &["-device", &there]].concat();
    let end = |incoming, more: &[&str]| {
        End::start_more(directory.path(), incoming, None, false, (more, card(driver, bus)))
    };
    let (mut source, mut target) = (end(false, &at_source), end(true, &PLACES));
    source.until("running", |status| status.stage == Stage::Running).await;
    target.until("ready", |status| status.ready).await;
    target.reaches(State::Awaited).await;
    source.count().await;
    let monitors = [monitor(&mut source).await, monitor(&mut target).await];
    assert_eq!([has_card(&monitors[0]).await, has_card(&monitors[1]).await], [true, false]);
    (Pair { source, target, _directory: directory }, monitors)
}

async fn monitor(end: &mut End) -> Qmp {
    let people = end.people.take().unwrap();
    Qmp::open(people, Options::default(), Deadline::after(SOON)).await.unwrap().0
}

async fn has_card(monitor: &Qmp) -> bool {
    let list = qom_list { path: "/machine/peripheral".to_owned() };
    let all = monitor.execute(list, Deadline::after(SOON)).await.unwrap();
    all.iter().any(|one| one.name == CARD)
}

async fn gets_card(monitor: &Qmp) {
    let gets = async {
        while !has_card(monitor).await {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    timeout(SOON, gets).await.expect("it never has the card");
}

#[test]
fn a_guest_leaves_its_card_behind_and_gets_another_one() {
    for hold in [false, true] {
        local(async {
            let (mut pair, [source, target]) = start("usb-kbd", "usb.0").await;
            pair.begin(limits(), [7, 7]).await;
            pair.source.reaches(State::Sent).await;
            pair.target.reaches(State::Received).await;
            assert_eq!([has_card(&source).await, has_card(&target).await], [false, false]);
            pair.target.order(MigrationOrder::Go { hold }).await.unwrap();
            gets_card(&target).await;
            assert!(!has_card(&source).await);
            if !hold {
                pair.target.count().await;
            }
        });
    }
}

#[test]
fn a_guest_that_stays_has_its_card_again() {
    local(async {
        let (mut pair, [source, _]) = start("usb-kbd", "usb.0").await;
        pair.begin(slow(), [7, 7]).await;
        let sends = |status: &Status| status.migration.as_ref().is_some_and(|told| told.progress.total > 0);
        pair.source.until("sends", sends).await;
        assert!(!has_card(&source).await);
        pair.source.order(MigrationOrder::Abort).await.unwrap();
        pair.source.reaches(State::Over).await;
        gets_card(&source).await;
        pair.is_at_source().await;
    });
}

#[test]
fn a_guest_that_keeps_its_card_stays_and_has_it_whenever_it_gives_it_back() {
    local(async {
        let (mut pair, [source, _]) = start("virtio-rng-pci", "root1").await;
        pair.begin(limits(), [7, 7]).await;
        let over = pair.source.reaches(State::Over).await;
        assert_eq!(over.reason, "the guest has not given back card within 30 s");
        assert!(has_card(&source).await);
        pair.is_at_source().await;
        // A reset ends what the guest was asked for: QEMU takes the card out.
        source.execute(system_reset {}, Deadline::after(SOON)).await.unwrap();
        gets_card(&source).await;
        tokio::time::sleep(Duration::from_secs(1)).await;
        assert!(has_card(&source).await);
    });
}

#[test]
fn a_card_that_is_given_back_for_the_next_migration_stays_away() {
    local(async {
        let (mut pair, [source, _]) = start("virtio-rng-pci", "root1").await;
        pair.begin(limits(), [7, 7]).await;
        pair.source.reaches(State::Over).await;
        // QEMU waits for the other end of an encrypted connection, and answers nothing meanwhile.
        let (ours, _theirs) = connection();
        let baggage = Some(Baggage { memory: ours, key: None, disks: BTreeMap::new() });
        let order = MigrationOrder::Send { baggage, limits: slow() };
        let (reply, replied) = oneshot::channel();
        pair.source
            .requests
            .send(Request::Migrate { uid: "migration-2".to_owned(), order, reply })
            .await
            .unwrap();
        timeout(SOON, replied).await.expect("no reply").unwrap().unwrap();
        source.execute(system_reset {}, Deadline::after(SOON)).await.unwrap();
        let goes = async {
            while has_card(&source).await {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        };
        timeout(SOON, goes).await.expect("it keeps the card");
        tokio::time::sleep(Duration::from_secs(1)).await;
        assert!(!has_card(&source).await, "it was plugged in for the migration before");
    });
}
