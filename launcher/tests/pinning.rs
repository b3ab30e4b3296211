//! Threads of real QEMU, each on its planned CPU of the host.
#![allow(clippy::unwrap_used, clippy::expect_used)]

mod support;

use std::collections::BTreeMap;
use std::fs;
use std::time::Duration;

use barevirt_machine::{CpuSet, Pinning};
use barevirt_qmp::{Deadline, Options, Qmp};
use nix::unistd::Pid;
use serde_json::json;
use support::bare;
use tokio::sync::{mpsc, watch};
use tokio::task::{LocalSet, spawn_local};
use virt_launcher::host_cpus::affinity;
use virt_launcher::pins::{Pins, place};
use virt_launcher::status::{Stage, Status};
use virt_launcher::supervisor::{Request, supervise};

fn local<F: Future>(test: F) -> F::Output {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    LocalSet::new().block_on(&runtime, test)
}

fn one(cpu: u32) -> CpuSet {
    [cpu].into_iter().collect()
}

/// Names and CPUs of all threads of a process.
fn threads(pid: u32) -> BTreeMap<String, CpuSet> {
    let tasks = fs::read_dir(format!("/proc/{pid}/task")).unwrap().flatten();
    let named = tasks.filter_map(|task| {
        let id = task.file_name().to_str()?.parse().ok()?;
        let name = fs::read_to_string(task.path().join("comm")).ok()?;
        Some((format!("{} {id}", name.trim()), affinity(Pid::from_raw(id)).ok()?))
    });
    named.collect()
}

fn of<'a>(threads: &'a BTreeMap<String, CpuSet>, name: &'a str) -> Vec<&'a CpuSet> {
    threads.iter().filter(|(thread, _)| thread.starts_with(name)).map(|(_, cpus)| cpus).collect()
}

#[test]
fn each_thread_runs_where_it_was_planned_also_one_that_is_plugged_in() {
    local(async {
        let all = affinity(Pid::from_raw(0)).unwrap();
        let (first, last) = (all.iter().next().unwrap(), all.iter().last().unwrap());
        assert_ne!(first, last, "two CPUs at least");
        let machine = bare(&[
            "-name",
            "debug-threads=on",
            "-sandbox",
            "on,obsolete=deny,elevateprivileges=deny,spawn=deny,resourcecontrol=deny",
            "-smp",
            "1,maxcpus=2,sockets=2,cores=1,threads=1",
            "-object",
            "iothread,id=iothread1",
        ]);
        let mut launch = machine.launch;
        let pinning = Pinning { vcpus: vec![last], io_threads: vec![one(last)], emulator: Some(one(first)) };
        launch.pins = Some(Pins { pinning: pinning.clone(), cells: Vec::new() });
        let (requests, asked) = mpsc::channel(4);
        let sender = watch::Sender::new(Status::default());
        let mut status = sender.subscribe();
        let end = spawn_local(async move { supervise(std::future::ready(Ok(launch)), asked, &sender).await });
        let running = status.wait_for(|status| matches!(status.stage, Stage::Running | Stage::Failed));
        let running = tokio::time::timeout(Duration::from_secs(60), running).await.unwrap().unwrap().clone();
        assert_eq!(running.stage, Stage::Running, "{running:?}");

        let found = threads(running.qemu_pid);
        assert_eq!(of(&found, "CPU 0/TCG"), [&one(last)], "{found:?}");
        assert_eq!(of(&found, "IO iothread1"), [&one(last)], "{found:?}");
        let others: Vec<_> =
            found.iter().filter(|(name, _)| !name.starts_with("CPU") && !name.starts_with("IO")).collect();
        assert!(others.len() > 1 && others.iter().all(|(_, cpus)| **cpus == one(first)), "{found:?}");
        // The launcher is on the same CPU.
        assert_eq!(affinity(Pid::from_raw(0)).unwrap(), one(first));

        let (qmp, _events) =
            Qmp::open(machine.people, Options::default(), Deadline::after(Duration::from_secs(10)))
                .await
                .unwrap();
        let plug = json!({"driver": "qemu64-x86_64-cpu", "id": "cpu-1", "socket-id": 1, "core-id": 0, "thread-id": 0});
        qmp.execute_raw("device_add", plug, Deadline::after(Duration::from_secs(10))).await.unwrap();
        let two = Pinning { vcpus: vec![first, last], ..pinning };
        place(&qmp, &two).await.unwrap();
        let found = threads(running.qemu_pid);
        assert_eq!(of(&found, "CPU 0/TCG"), [&one(first)], "{found:?}");
        assert_eq!(of(&found, "CPU 1/TCG"), [&one(last)], "{found:?}");

        requests.send(Request::Stop { grace: Duration::ZERO, why: "test".into() }).await.unwrap();
        end.await.unwrap();
    });
}

#[test]
fn a_guest_does_not_run_without_its_cpus() {
    local(async {
        let mut launch = bare(&[]).launch;
        // No machine that runs these tests has this CPU.
        let pinning = Pinning { vcpus: vec![1000], io_threads: vec![], emulator: None };
        launch.pins = Some(Pins { pinning, cells: Vec::new() });
        let (_requests, asked) = mpsc::channel(4);
        let sender = watch::Sender::new(Status::default());
        let supervised = supervise(std::future::ready(Ok(launch)), asked, &sender);
        let end = tokio::time::timeout(Duration::from_secs(60), supervised).await.unwrap();
        assert_eq!(end.reason, "StartFailed", "{end:?}");
        assert!(end.message.contains("virtual CPU 0 cannot be put on host CPUs 1000"), "{}", end.message);
        assert!(sender.borrow().running_since.is_none());
    });
}
