//! Tests with a launcher that its guest has taken over, at the other end of a real connection.

use super::*;
use crate::fake_launcher::hostile::Behaviour;
use crate::launchers::{LauncherError, find};

/// How long the handler is exposed to such a launcher.
const LONG: Duration = Duration::from_secs(5);

/// Runs the task of a VM with such a launcher for that time.
async fn exposed(behaviour: Behaviour) -> Option<Node> {
    let node = Node::with(FakeLauncher::start_that(behaviour)?)?;
    let vm = node.start();
    let until = Instant::now() + LONG;
    while Instant::now() < until {
        sleep(Duration::from_millis(20)).await;
        node.tell(&vm);
    }
    Some(node)
}

#[tokio::test]
async fn a_launcher_that_changes_its_mind_makes_few_writes_and_events() {
    let Some(node) = exposed(Behaviour::Floods).await else { return };
    let (writes, events) = (node.writes(), node.events());
    assert!((5..=33).contains(&writes), "{writes} writes");
    assert!((5..=26).contains(&events.len()), "{} events", events.len());
    let machine = node.server.read().status.unwrap().machine.unwrap().type_.unwrap();
    assert!(machine.len() <= 512 && !machine.contains('\u{1b}'), "{machine}");
}

#[tokio::test]
async fn a_launcher_that_always_leaves_is_not_always_connected_to() {
    let Some(node) = exposed(Behaviour::Leaves).await else { return };
    let connections = node.fake.connections();
    assert!((3..=6).contains(&connections), "{connections} connections");
}

#[tokio::test]
async fn a_status_that_swells_takes_no_memory() {
    let Some(fake) = FakeLauncher::start_that(Behaviour::Swells) else { return };
    let pods = PodsDir::open(fake.pods.path()).unwrap();
    let launcher = find(&pods, &fake.container).await.unwrap();
    let before = most_memory();
    for _ in 0..3 {
        let refused = launcher.watch().await.unwrap_err();
        assert!(matches!(&refused, LauncherError::Call { call: "watch", .. }), "{refused}");
    }
    let grown = most_memory() - before;
    assert!(grown < 100 << 20, "{} MiB", grown >> 20);
}

#[tokio::test]
async fn a_launcher_that_is_silent_is_not_waited_for() {
    let Some(fake) = FakeLauncher::start_that(Behaviour::Mute) else { return };
    let pods = PodsDir::open(fake.pods.path()).unwrap();
    let launcher = find(&pods, &fake.container).await.unwrap();
    let refused = timeout(WAIT * 2, launcher.watch()).await.expect("a deadline").unwrap_err();
    assert!(refused.to_string().contains("does not answer in time"), "{refused}");
}

#[tokio::test]
async fn an_answer_without_a_body_is_not_waited_for() {
    let Some(fake) = FakeLauncher::start_that(Behaviour::KeepsBodies) else { return };
    let pods = PodsDir::open(fake.pods.path()).unwrap();
    let launcher = find(&pods, &fake.container).await.unwrap();
    let stats = launcher.stats(Duration::from_millis(200));
    let refused = timeout(WAIT, stats).await.expect("a deadline").unwrap_err();
    assert!(refused.to_string().contains("does not answer in time"), "{refused}");
    launcher.watch().await.unwrap();
}

/// Peak memory use of this process, in bytes.
fn most_memory() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
    line.trim().trim_end_matches(" kB").parse::<u64>().unwrap() << 10
}
