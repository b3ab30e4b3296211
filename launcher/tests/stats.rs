//! Numbers for monitoring: from a real QEMU, and from one that hangs.
#![allow(clippy::unwrap_used, clippy::expect_used)]

mod support;

use std::time::{Duration, Instant};

use barevirt_qmp::{Deadline, Options, Qmp};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use support::{bare, eventually};
use tokio::sync::{mpsc, watch};
use tokio::task::{LocalSet, spawn_local};
use virt_launcher::guest_agent::Facts;
use virt_launcher::stats::{Meter, PATIENCE};
use virt_launcher::status::{Stage, Status};
use virt_launcher::supervisor::supervise;

fn local<F: Future>(test: F) -> F::Output {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    LocalSet::new().block_on(&runtime, test)
}

#[test]
fn of_a_qemu_that_runs_and_of_one_that_hangs() {
    local(async {
        let disk = [
            "-blockdev",
            r#"{"driver":"null-co","node-name":"n","size":1048576,"read-zeroes":true}"#,
            "-device",
            r#"{"driver":"virtio-blk-pci","id":"disk-root","drive":"n"}"#,
            "-device",
            r#"{"driver":"virtio-balloon-pci","id":"balloon0"}"#,
        ];
        let bare = bare(&disk);
        let (people, launch) = (bare.people, bare.launch);
        let sender = watch::Sender::new(Status::default());
        let status = sender.subscribe();
        let (_requests, asked) = mpsc::channel(4);
        spawn_local(async move { supervise(std::future::ready(Ok(launch)), asked, &sender).await });
        let (qmp, _) =
            Qmp::open(people, Options::default(), Deadline::after(Duration::from_secs(60))).await.unwrap();
        eventually("running", Duration::from_secs(60), || status.borrow().stage == Stage::Running).await;
        let people = watch::Sender::new(Some(qmp));
        let facts = Facts { load: Some([0.5, 0.25, 0.0]), ..Facts::default() };
        let guest = watch::Sender::new(Some(facts));
        let meter = Meter::new(people.subscribe(), status.clone(), guest.subscribe());

        let first = meter.read().await;
        let machine = first.machine.expect("QEMU does not answer");
        assert_eq!(machine.vcpus.len(), 1);
        assert!(machine.vcpus[0].processors > 0);
        assert_eq!(machine.blocks.iter().map(|one| one.disk.as_str()).collect::<Vec<_>>(), ["root"]);
        assert_eq!(machine.balloon_bytes, Some(64 << 20));
        assert_eq!(machine.memory, None, "there is no guest that could tell");
        assert!(first.process.unwrap().resident_bytes > 1 << 20);
        assert!((first.agent.unwrap().load.unwrap().one_minute - 0.5).abs() < f64::EPSILON);
        // The firmware runs, on the one thread.
        let run = machine.vcpus[0].run_ns;
        let mut now = run;
        let begun = Instant::now();
        while now <= run && begun.elapsed() < Duration::from_secs(20) {
            now = meter.read().await.machine.unwrap().vcpus[0].run_ns;
        }
        assert!(now > run, "the virtual CPU does not use time: {now}");

        let pid = Pid::from_raw(status.borrow().qemu_pid.try_into().unwrap());
        kill(pid, Signal::SIGSTOP).unwrap();
        for _ in 0..2 {
            let begun = Instant::now();
            let hung = meter.read().await;
            assert!(begun.elapsed() < PATIENCE + Duration::from_millis(500), "{:?}", begun.elapsed());
            assert_eq!(hung.machine, None);
            assert!(hung.process.is_some() && hung.agent.is_some());
        }
        kill(pid, Signal::SIGCONT).unwrap();
        assert!(meter.read().await.machine.is_some(), "not asked again once it had answered");
        kill(pid, Signal::SIGKILL).unwrap();
    });
}
