//! Plays a launcher that its guest has taken over, for `make bench`: it listens on the launcher's socket in a
//! pod's folder, and changes its status as fast as it is read. It ends with its standard input.
//!
//!     hostile-launcher SOCKET      prints a line for each conversation

use anyhow::{Context, Result};
use barevirt_protocol::grpc;
use barevirt_protocol::v1::launcher_server::Launcher;
use barevirt_protocol::v1::{
    ControlRequest, ControlResponse, DebugRequest, DebugResponse, GuestRequest, GuestResponse, HelloRequest,
    HelloResponse, LauncherStatus, MigrateRequest, MigrateResponse, Pause, Phase, QmpRequest, QmpResponse,
    RealTimeRequest, RealTimeResponse, ScreenshotRequest, ScreenshotResponse, ShutdownRequest,
    ShutdownResponse, StatsRequest, StatsResponse, SyncRequest, SyncResponse, WatchRequest,
};
use futures::stream::{self, Stream};
use std::io::Read;
use std::path::Path;
use std::pin::Pin;
use tonic::{Request, Response, Status};

struct HostileLauncher;

/// A status that alternates between running and a failed disk, with long texts and another failed ping each
/// time.
fn status(number: u64) -> LauncherStatus {
    let words = format!("{number}\u{1b}[2J{}", "x".repeat(16 << 10));
    let mut status = LauncherStatus {
        ready: true,
        failed_pings: number,
        running_since_unix_ms: 1,
        machine_type: words.clone(),
        qemu_version: words.clone(),
        message: words,
        ..LauncherStatus::default()
    };
    if number.is_multiple_of(2) {
        status.set_phase(Phase::Paused);
        status.set_pause(Pause::IoError);
    } else {
        status.set_phase(Phase::Running);
    }
    status
}

/// The answer of a call that it does not support.
type Refused<T> = Result<Response<T>, Status>;

fn refused<T>() -> Refused<T> {
    Err(Status::internal("x".repeat(8 << 10)))
}

#[tonic::async_trait]
impl Launcher for HostileLauncher {
    type WatchStream = Pin<Box<dyn Stream<Item = Result<LauncherStatus, Status>> + Send>>;

    async fn hello(&self, _: Request<HelloRequest>) -> Refused<HelloResponse> {
        println!("hello");
        let response = HelloResponse { lowest_version: 1, highest_version: 1, pod_uid: "a lie".to_owned() };
        Ok(Response::new(response))
    }

    async fn sync(&self, request: Request<SyncRequest>) -> Refused<SyncResponse> {
        Ok(Response::new(SyncResponse { accepted_revision: request.into_inner().revision }))
    }

    async fn watch(&self, _: Request<WatchRequest>) -> Refused<Self::WatchStream> {
        println!("watch");
        // Then the stream ends, so that the handler connects again.
        let statuses = (1..10_000).map(|number| Ok(status(number)));
        Ok(Response::new(Box::pin(stream::iter(statuses))))
    }

    async fn shutdown(&self, _: Request<ShutdownRequest>) -> Refused<ShutdownResponse> {
        refused()
    }

    async fn qmp(&self, _: Request<QmpRequest>) -> Refused<QmpResponse> {
        refused()
    }

    async fn control(&self, _: Request<ControlRequest>) -> Refused<ControlResponse> {
        refused()
    }

    async fn guest(&self, _: Request<GuestRequest>) -> Refused<GuestResponse> {
        refused()
    }

    async fn screenshot(&self, _: Request<ScreenshotRequest>) -> Refused<ScreenshotResponse> {
        refused()
    }

    async fn stats(&self, _: Request<StatsRequest>) -> Refused<StatsResponse> {
        refused()
    }

    async fn debug(&self, _: Request<DebugRequest>) -> Refused<DebugResponse> {
        refused()
    }

    async fn real_time(&self, _: Request<RealTimeRequest>) -> Refused<RealTimeResponse> {
        refused()
    }

    async fn migrate(&self, _: Request<MigrateRequest>) -> Refused<MigrateResponse> {
        refused()
    }
}

#[tokio::main]
async fn main() -> Result<()> {
    let socket = std::env::args_os().nth(1).context("usage: hostile-launcher SOCKET")?;
    let (ended, end) = tokio::sync::oneshot::channel::<()>();
    std::thread::spawn(move || {
        // Only the end of the input matters.
        let mut byte = [0];
        while std::io::stdin().read(&mut byte).is_ok_and(|count| count > 0) {}
        drop(ended);
    });
    let listener = grpc::listen_at(Path::new(&socket))?;
    println!("listens");
    tokio::select! {
        served = grpc::serve(listener, vec![0], HostileLauncher, std::future::pending()) => Ok(served?),
        _ = end => Ok(()),
    }
}
