//! Tests with files as kernels write them, and with control groups of this machine, in which a fake launcher
//! runs.

use std::fs;
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::Instant;

use super::*;
use crate::fake_launcher::FakeLauncher;
use crate::launchers::find;
use crate::launchers::pods_dir::PodsDir;

const WAIT: Duration = Duration::from_secs(20);

/// Counters of a directory with these files. The directory lives as long as the first value.
fn counters(version: Version, files: &[(&str, &str)]) -> (tempfile::TempDir, Counters) {
    let directory = tempfile::tempdir().unwrap();
    for (name, text) in files {
        fs::write(directory.path().join(name), text).unwrap();
    }
    let group = || {
        let directory = open(directory.path(), OFlag::O_PATH | OFlag::O_DIRECTORY, Mode::empty()).unwrap();
        Some(Group { directory, version })
    };
    let counters = Counters { cpu: group(), memory: group() };
    (directory, counters)
}

const STAT_V2: &str = "usage_usec 171003\nuser_usec 88231\nsystem_usec 82772\nnice_usec 0\ncore_sched.force_idle_usec 0\n\
                       nr_periods 40\nnr_throttled 25\nthrottled_usec 2000123\nnr_bursts 0\nburst_usec 0\n";
const EVENTS_V2: &str = "low 1\nhigh 2\nmax 30\noom 4\noom_kill 5\noom_group_kill 0\n";

#[test]
fn files_of_v2() {
    let files = [
        ("cpu.stat", STAT_V2),
        ("memory.events", EVENTS_V2),
        ("memory.max", "536870912\n"),
        ("memory.current", "4096\n"),
        ("memory.peak", "536866816\n"),
    ];
    let (_all, all) = counters(Version::V2, &files);
    let throttled = Duration::from_micros(2_000_123);
    assert_eq!(all.throttling(), Some(Throttling { periods: 40, throttled_periods: 25, throttled }));
    let memory = Memory {
        limit: Some(512 << 20),
        usage: Some(4096),
        peak: Some((512 << 20) - 4096),
        limit_hits: Some(30),
        low: Some(1),
        high: Some(2),
        ooms: Some(4),
        oom_kills: Some(5),
    };
    assert_eq!(all.memory(), Some(memory));
    // Before Linux 5.19 there is no peak, without a limit there is no limit value, and without the controller
    // there is no throttling.
    let stat = "usage_usec 171003\nuser_usec 88231\nsystem_usec 82772\n";
    let files = [("cpu.stat", stat), ("memory.events", EVENTS_V2), ("memory.max", "max\n")];
    let (_few, few) = counters(Version::V2, &files);
    assert_eq!(few.throttling(), None);
    assert_eq!(few.memory(), Some(Memory { limit: None, usage: None, peak: None, ..memory }));
}

#[test]
fn files_of_v1() {
    let files = [
        ("cpu.stat", "nr_periods 3\nnr_throttled 2\nthrottled_time 1500000000\nnr_bursts 0\nburst_time 0\n"),
        ("memory.oom_control", "oom_kill_disable 0\nunder_oom 0\noom_kill 1\n"),
        ("memory.limit_in_bytes", "9223372036854771712\n"),
        ("memory.usage_in_bytes", "8192\n"),
        ("memory.max_usage_in_bytes", "16384\n"),
        ("memory.failcnt", "7\n"),
    ];
    let (_all, all) = counters(Version::V1, &files);
    let throttled = Duration::from_millis(1500);
    assert_eq!(all.throttling(), Some(Throttling { periods: 3, throttled_periods: 2, throttled }));
    let memory = Memory {
        usage: Some(8192),
        peak: Some(16384),
        limit_hits: Some(7),
        oom_kills: Some(1),
        ..Memory::default()
    };
    assert_eq!(all.memory(), Some(memory));
}

#[test]
fn malformed_counters_are_ignored() {
    let long = "9".repeat(100);
    let files = [
        ("cpu.stat", "nr_periods -1\nnr_throttled x\nthrottled_usec\n"),
        ("memory.events", "oom_kill 1 2\nmax 99999999999999999999\noom -3\n\u{0}"),
        ("memory.max", long.as_str()),
        ("memory.current", "-1\n"),
        ("memory.peak", ""),
    ];
    let (_all, all) = counters(Version::V2, &files);
    assert_eq!((all.throttling(), all.memory()), (None, Some(Memory::default())));
    let (_none, none) = counters(Version::V1, &[]);
    assert_eq!((none.throttling(), none.memory()), (None, None));
}

#[test]
fn a_directory_of_another_file_system_is_no_group() {
    let directory = tempfile::tempdir().unwrap();
    let root = open("/", OFlag::O_PATH | OFlag::O_DIRECTORY, Mode::empty()).unwrap();
    let path = directory.path().strip_prefix("/").unwrap();
    for version in [Version::V1, Version::V2] {
        assert!(Group::open(&root, path, version).is_err());
    }
}

/// A shell that moves itself into a control group before it runs the script.
fn shell_in(group: &Path, script: &str) -> Child {
    let script = format!("echo $$ > {}/cgroup.procs && {script}", group.display());
    Command::new("sh").args(["-c", &script]).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap()
}

#[tokio::test]
async fn throttling_and_kills_of_a_real_container_are_counted() {
    let Some(fake) = FakeLauncher::start() else { return };
    let launcher = find(&PodsDir::open(fake.pods.path()).unwrap(), &fake.container).await.unwrap();
    let (Some(cpu), Some(_)) = (fake.group("cpu"), fake.group("memory")) else {
        eprintln!("skipped: no cpu and memory hierarchies of cgroup v1");
        return;
    };
    let before = launcher.counters().memory().unwrap();
    assert_eq!((before.limit, before.oom_kills), (None, Some(0)));

    fs::write(cpu.join("cpu.cfs_quota_us"), "5000").unwrap();
    let mut busy = shell_in(cpu, "while :; do :; done");
    let begun = Instant::now();
    let throttling = loop {
        let throttling = launcher.counters().throttling().unwrap();
        if throttling.throttled_periods > 2 || begun.elapsed() > WAIT {
            break throttling;
        }
        sleep(Duration::from_millis(50));
    };
    busy.kill().unwrap();
    busy.wait().unwrap();
    assert!(throttling.throttled_periods > 2 && !throttling.throttled.is_zero(), "{throttling:?}");
    assert!(throttling.periods >= throttling.throttled_periods, "{throttling:?}");

    fake.run_out_of_memory();
    let after = launcher.counters().memory().unwrap();
    assert_eq!((after.limit, after.oom_kills), (Some(FakeLauncher::LIMIT), Some(1)));
    assert!(after.limit_hits > Some(0) && after.peak > Some(FakeLauncher::LIMIT / 2), "{after:?}");
}

#[tokio::test]
async fn a_container_that_is_gone_has_no_counters() {
    let Some(fake) = FakeLauncher::start() else { return };
    let launcher = find(&PodsDir::open(fake.pods.path()).unwrap(), &fake.container).await.unwrap();
    drop(fake);
    assert_eq!((launcher.counters().throttling(), launcher.counters().memory()), (None, None));
}
