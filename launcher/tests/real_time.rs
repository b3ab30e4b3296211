//! A guest with realtime virtual CPUs only starts after virt-handler has reported that they are realtime:
//! real QEMU, with a test that acts as the handler.
#![allow(clippy::unwrap_used, clippy::expect_used)]

mod support;

use std::time::Duration;

use barevirt_protocol::grpc;
use barevirt_protocol::names::GRPC_SOCKET;
use barevirt_protocol::v1::launcher_client::LauncherClient;
use barevirt_protocol::v1::{LauncherStatus, Phase, RealTimeRequest, WatchRequest};
use barevirt_qmp::qapi::qmp::{RunState, query_status};
use barevirt_qmp::{Deadline, Options, Qmp};
use support::{Bare, bare};
use tokio::net::UnixStream;
use tokio::sync::{mpsc, watch};
use tokio::task::{JoinHandle, LocalSet, spawn_local};
use tonic::transport::Channel;
use virt_launcher::guest_end::GuestEnd;
use virt_launcher::people::journal::Journal;
use virt_launcher::pod::report::{Circumstances, report};
use virt_launcher::pod::service::Service;
use virt_launcher::real_time::{RealTime, RealTimeReport};
use virt_launcher::stats::Meter;
use virt_launcher::status::Status;
use virt_launcher::supervisor::{Request, supervise};

const SOON: Duration = Duration::from_secs(60);

fn local<F: Future>(test: F) -> F::Output {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    LocalSet::new().block_on(&runtime, test)
}

/// A launcher without a pod.
struct Launcher {
    directory: tempfile::TempDir,
    requests: mpsc::Sender<Request>,
    end: JoinHandle<GuestEnd>,
    people: UnixStream,
}

impl Launcher {
    fn start(within: Duration) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let real_time = watch::Sender::new(RealTimeReport::default());
        let Bare { mut launch, people, serial: _ } = bare(&["-name", "debug-threads=on"]);
        launch.real_time = Some(RealTime { report: real_time.subscribe(), within });
        let (requests, asked) = mpsc::channel(4);
        let status = watch::Sender::new(Status::default());
        let told = watch::Sender::new(LauncherStatus::default());
        let (no_people, no_facts) = (watch::Sender::new(None), watch::Sender::new(None));
        let service = Service {
            pod_uid: String::new(),
            uid: String::new(),
            wanted: watch::Sender::new(None),
            status: told.subscribe(),
            requests: requests.clone(),
            people: no_people.subscribe(),
            agent: mpsc::channel(1).0,
            meter: Meter::new(no_people.subscribe(), status.subscribe(), no_facts.subscribe()),
            process: status.subscribe(),
            journal: Journal::default(),
            real_time,
            connections: Default::default(),
        };
        let listener = grpc::listen_at(&directory.path().join(GRPC_SOCKET)).unwrap();
        let allowed = vec![nix::unistd::getuid().as_raw()];
        spawn_local(grpc::serve(listener, allowed, service, std::future::pending()));
        let mut seen = status.subscribe();
        spawn_local(async move {
            while seen.changed().await.is_ok() {
                told.send_replace(report(&seen.borrow_and_update(), &Circumstances::default(), None));
            }
        });
        let end = async move { supervise(std::future::ready(Ok(launch)), asked, &status).await };
        Self { directory, requests, end: spawn_local(end), people }
    }

    async fn handler(&self) -> LauncherClient<Channel> {
        let stream = UnixStream::connect(self.directory.path().join(GRPC_SOCKET)).await.unwrap();
        grpc::client(stream).await.unwrap()
    }
}

async fn until(
    handler: &mut LauncherClient<Channel>,
    is: impl Fn(&LauncherStatus) -> bool,
) -> LauncherStatus {
    let mut statuses = handler.watch(tonic::Request::new(WatchRequest {})).await.unwrap().into_inner();
    let search = async {
        loop {
            let status = statuses.message().await.unwrap().expect("the watch ended");
            if is(&status) {
                return status;
            }
        }
    };
    tokio::time::timeout(SOON, search).await.expect("that status never came")
}

async fn say(handler: &mut LauncherClient<Channel>, qemu_pid: u32, refusal: &str) {
    let report = RealTimeRequest { qemu_pid, refusal: refusal.to_owned() };
    handler.real_time(grpc::request(report, SOON)).await.unwrap();
}

#[test]
fn the_guest_starts_after_the_handlers_real_time_report() {
    local(async {
        let launcher = Launcher::start(SOON);
        let mut first = launcher.handler().await;
        let waiting = until(&mut first, |status| status.awaits_real_time).await;
        assert_eq!((waiting.phase(), waiting.ready), (Phase::Starting, false));
        let vcpu = |task: std::fs::DirEntry| std::fs::read_to_string(task.path().join("comm")).unwrap();
        let threads = std::fs::read_dir(format!("/proc/{}/task", waiting.qemu_pid)).unwrap();
        assert!(threads.flatten().map(vcpu).any(|name| name == "CPU 0/TCG\n"), "there is what is scheduled");

        // A report about another QEMU, a refusal, or a handler that goes away does not start the guest.
        say(&mut first, waiting.qemu_pid + 1, "").await;
        say(&mut first, waiting.qemu_pid, "not permitted").await;
        drop(first);
        let mut second = launcher.handler().await;
        until(&mut second, |status| status.awaits_real_time).await;
        let deadline = || Deadline::after(SOON);
        let (qmp, _events) = Qmp::open(launcher.people, Options::default(), deadline()).await.unwrap();
        let status = qmp.execute(query_status {}, deadline()).await.unwrap().status;
        assert_eq!(status, RunState::prelaunch);

        say(&mut second, waiting.qemu_pid, "").await;
        let running = until(&mut second, |status| status.phase() == Phase::Running).await;
        assert!(running.ready && !running.awaits_real_time);
        // A repetition is accepted: the next handler reports it, too.
        say(&mut second, waiting.qemu_pid, "").await;
        launcher.requests.send(Request::Stop { grace: Duration::ZERO, why: "test".into() }).await.unwrap();
        assert_eq!(launcher.end.await.unwrap().reason, "Stopped");
    });
}

#[test]
fn a_guest_that_is_not_realtime_in_time_never_runs() {
    local(async {
        let launcher = Launcher::start(Duration::from_secs(2));
        let mut handler = launcher.handler().await;
        let waiting = until(&mut handler, |status| status.awaits_real_time).await;
        say(&mut handler, waiting.qemu_pid, "virtual CPU 0 cannot be scheduled").await;
        let failed = until(&mut handler, |status| status.phase() == Phase::Failed).await;
        assert_eq!((failed.reason.as_str(), failed.running_since_unix_ms), ("RealTimeMissing", 0));
        let message = "spec.domain.cpu.realtime: not within 2 s: virtual CPU 0 cannot be scheduled";
        assert_eq!(
            (failed.message.as_str(), launcher.end.await.unwrap().message.as_str()),
            (message, message)
        );
    });
}
