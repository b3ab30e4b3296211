//! Metrics from real QEMU, and from one that hangs.
#![allow(clippy::unwrap_used, clippy::expect_used)]

mod support;

use std::io::{Seek, SeekFrom, Write};
use std::time::{Duration, Instant};

use barevirt_qmp::qapi::qmp::qom_get;
use barevirt_qmp::{Deadline, Options, Qmp};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use support::{bare, eventually};
use tokio::io::AsyncReadExt;
use tokio::sync::{mpsc, watch};
use tokio::task::{LocalSet, spawn_local};
use virt_launcher::guest_agent::Facts;
use virt_launcher::stats::{MEMORY_REPORTS, Meter, QUERY_TIMEOUT};
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
        let people = watch::Sender::new(Some(qmp.clone()));
        let facts = Facts { load: Some([0.5, 0.25, 0.0]), ..Facts::default() };
        let guest = watch::Sender::new(Some(facts));
        let meter = Meter::new(people.subscribe(), status.clone(), guest.subscribe());

        let interval = || {
            let property = "guest-stats-polling-interval".to_owned();
            let get = qom_get { path: "/machine/peripheral/balloon0".to_owned(), property };
            let qmp = qmp.clone();
            async move { qmp.execute(get, Deadline::after(Duration::from_secs(60))).await.unwrap() }
        };
        let silent = Meter::new(people.subscribe(), status.clone(), guest.subscribe()).with_reports(0);
        assert!(silent.read().await.machine.is_some());
        assert_eq!(interval().await, 0);
        let first = meter.read().await;
        assert_eq!(interval().await, MEMORY_REPORTS);
        let machine = first.machine.expect("QEMU does not answer");
        assert_eq!(machine.vcpus.len(), 1);
        assert!(machine.vcpus[0].processors > 0);
        assert_eq!(machine.blocks.iter().map(|one| one.disk.as_str()).collect::<Vec<_>>(), ["root"]);
        assert_eq!(machine.balloon_bytes, Some(64 << 20));
        assert_eq!(machine.memory, None, "there is no guest that could tell");
        assert!(first.process.unwrap().resident_bytes > 1 << 20);
        assert!((first.agent.unwrap().load.unwrap().one_minute - 0.5).abs() < f64::EPSILON);
        // The firmware runs, on the only vCPU thread.
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
            assert!(begun.elapsed() < QUERY_TIMEOUT + Duration::from_secs(2), "{:?}", begun.elapsed());
            assert_eq!(hung.machine, None);
            assert!(hung.process.is_some() && hung.agent.is_some());
        }
        kill(pid, Signal::SIGCONT).unwrap();
        let begun = Instant::now();
        while meter.read().await.machine.is_none() {
            assert!(begun.elapsed() < Duration::from_secs(20), "not asked again once it had answered");
        }
        kill(pid, Signal::SIGKILL).unwrap();
    });
}

/// A boot sector: switches to 32 bits, sends [`BEGUN`] on the serial port, then writes forever one word in
/// each page of the second 16 MiB.
const WRITER: [u8; 94] = [
    0xfa, 0x31, 0xc0, 0x8e, 0xd8, 0x66, 0x0f, 0x01, 0x16, 0x58, 0x7c, 0x0f, 0x20, 0xc0, 0x0c, 0x01, 0x0f,
    0x22, 0xc0, 0x66, 0xea, 0x1b, 0x7c, 0x00, 0x00, 0x08, 0x00, 0x66, 0xb8, 0x10, 0x00, 0x8e, 0xd8, 0x66,
    0xba, 0xf8, 0x03, 0xb0, 0x01, 0xee, 0x40, 0xbf, 0x00, 0x00, 0x00, 0x01, 0x89, 0x07, 0x81, 0xc7, 0x00,
    0x10, 0x00, 0x00, 0x81, 0xff, 0x00, 0x00, 0x00, 0x02, 0x72, 0xf0, 0xeb, 0xe8, 0x00, 0x00, 0x00, 0x00,
    0x00, 0x00, 0x00, 0x00, 0xff, 0xff, 0x00, 0x00, 0x00, 0x9a, 0xcf, 0x00, 0xff, 0xff, 0x00, 0x00, 0x00,
    0x92, 0xcf, 0x00, 0x17, 0x00, 0x40, 0x7c, 0x00, 0x00,
];

/// A byte that the firmware, which also writes there, does not send.
const BEGUN: u8 = 1;

#[test]
fn the_dirty_rate_is_reported_with_the_next_request() {
    local(async {
        let mut disk = tempfile::NamedTempFile::new().unwrap();
        disk.write_all(&WRITER).unwrap();
        disk.seek(SeekFrom::Start(510)).unwrap();
        disk.write_all(&[0x55, 0xaa]).unwrap();
        // Firmware does not boot from a smaller disk.
        disk.as_file().set_len(1 << 20).unwrap();
        let drive = format!("if=none,id=boot,format=raw,file={}", disk.path().display());
        let mut bare = bare(&[
            "-machine",
            "memory-backend=pc.ram",
            "-object",
            "memory-backend-memfd,id=pc.ram,size=64M,share=on",
            "-drive",
            &drive,
            "-device",
            "virtio-blk-pci,drive=boot,bootindex=0",
        ]);
        let sender = watch::Sender::new(Status::default());
        let status = sender.subscribe();
        let (_requests, asked) = mpsc::channel(4);
        spawn_local(async move { supervise(std::future::ready(Ok(bare.launch)), asked, &sender).await });
        let begun = async { while bare.serial.read_u8().await.unwrap() != BEGUN {} };
        tokio::time::timeout(Duration::from_secs(60), begun).await.expect("it does not boot");
        let (people, guest) = (watch::Sender::new(None), watch::Sender::new(None));
        let meter = Meter::new(people.subscribe(), status.clone(), guest.subscribe());
        let before = meter.read().await;
        assert_eq!(before.dirty_bytes_per_second, None, "nothing was measured yet");
        let begun = Instant::now();
        let rate = loop {
            assert!(begun.elapsed() < Duration::from_secs(20), "not measured");
            tokio::time::sleep(Duration::from_millis(100)).await;
            if let Some(rate) = meter.read().await.dirty_bytes_per_second {
                break rate;
            }
        };
        // Each page of 16 MiB, estimated by sampling; a busy machine measures for longer than a second.
        assert!(((2 << 20)..=(22 << 20)).contains(&rate), "{rate}");
        let pid = status.borrow().qemu_pid;
        kill(Pid::from_raw(pid.try_into().unwrap()), Signal::SIGKILL).unwrap();
    });
}
