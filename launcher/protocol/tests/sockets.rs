//! Both sockets as handler and launcher use them: real unix sockets in a real directory.
#![allow(clippy::unwrap_used, clippy::expect_used)]

use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::pin::Pin;
use std::time::{Duration, Instant};

use barevirt_protocol::descriptors::{self, Call, CallError, Client};
use barevirt_protocol::directory::{ConnectError, SocketsDirectory};
use barevirt_protocol::message::Request;
use barevirt_protocol::names::{DESCRIPTOR_SOCKET, GRPC_SOCKET};
use barevirt_protocol::seqpacket::PacketListener;
use barevirt_protocol::v1::launcher_server::Launcher;
use barevirt_protocol::v1::{
    ControlRequest, ControlResponse, DebugRequest, DebugResponse, GuestRequest, GuestResponse, HelloRequest,
    HelloResponse, LauncherStatus, MigrateRequest, MigrateResponse, QmpRequest, QmpResponse, RealTimeRequest,
    RealTimeResponse, ScreenshotRequest, ScreenshotResponse, ShutdownRequest, ShutdownResponse, StatsRequest,
    StatsResponse, SyncRequest, SyncResponse, WatchRequest,
};
use barevirt_protocol::{grpc, v1::Phase};
use tokio::sync::mpsc;
use tokio_stream::{Stream, StreamExt};
use tonic::{Request as GrpcRequest, Response, Status};

const SOON: Duration = Duration::from_secs(5);

fn me() -> u32 {
    nix::unistd::geteuid().as_raw()
}

/// A launcher that knows its caller, counts to three, and never answers QMP.
struct Counter;

#[tonic::async_trait]
impl Launcher for Counter {
    type WatchStream = Pin<Box<dyn Stream<Item = Result<LauncherStatus, Status>> + Send>>;

    async fn hello(&self, request: GrpcRequest<HelloRequest>) -> Result<Response<HelloResponse>, Status> {
        let peer = grpc::peer(&request).expect("peer credentials");
        Ok(Response::new(HelloResponse {
            lowest_version: 1,
            highest_version: 1,
            pod_uid: peer.uid().to_string(),
        }))
    }

    async fn sync(&self, request: GrpcRequest<SyncRequest>) -> Result<Response<SyncResponse>, Status> {
        Ok(Response::new(SyncResponse { accepted_revision: request.into_inner().revision }))
    }

    async fn migrate(&self, _: GrpcRequest<MigrateRequest>) -> Result<Response<MigrateResponse>, Status> {
        Err(Status::unimplemented("sends no guest away"))
    }

    async fn watch(&self, _: GrpcRequest<WatchRequest>) -> Result<Response<Self::WatchStream>, Status> {
        let statuses = (1..=3).map(|observed_revision| {
            Ok(LauncherStatus { observed_revision, phase: Phase::Running.into(), ..Default::default() })
        });
        Ok(Response::new(Box::pin(tokio_stream::iter(statuses))))
    }

    async fn shutdown(&self, _: GrpcRequest<ShutdownRequest>) -> Result<Response<ShutdownResponse>, Status> {
        Ok(Response::new(ShutdownResponse {}))
    }

    async fn control(&self, _: GrpcRequest<ControlRequest>) -> Result<Response<ControlResponse>, Status> {
        Ok(Response::new(ControlResponse {}))
    }

    async fn guest(&self, _: GrpcRequest<GuestRequest>) -> Result<Response<GuestResponse>, Status> {
        Err(Status::failed_precondition("VMI does not have guest agent connected"))
    }

    async fn screenshot(
        &self,
        _: GrpcRequest<ScreenshotRequest>,
    ) -> Result<Response<ScreenshotResponse>, Status> {
        Ok(Response::new(ScreenshotResponse { png: vec![7; 8 << 20] }))
    }

    async fn stats(&self, _: GrpcRequest<StatsRequest>) -> Result<Response<StatsResponse>, Status> {
        Ok(Response::new(StatsResponse::default()))
    }

    async fn qmp(&self, _: GrpcRequest<QmpRequest>) -> Result<Response<QmpResponse>, Status> {
        std::future::pending().await
    }

    async fn real_time(&self, _: GrpcRequest<RealTimeRequest>) -> Result<Response<RealTimeResponse>, Status> {
        Ok(Response::new(RealTimeResponse {}))
    }

    async fn debug(&self, _: GrpcRequest<DebugRequest>) -> Result<Response<DebugResponse>, Status> {
        std::future::pending().await
    }
}

#[tokio::test]
async fn grpc_over_a_verified_connection() {
    let directory = tempfile::tempdir().unwrap();
    let sockets = SocketsDirectory::open(directory.path()).unwrap();
    assert!(matches!(sockets.connect_grpc(SOON).await, Err(ConnectError::NotListening { .. })));

    let listener = grpc::listen_at(&directory.path().join(GRPC_SOCKET)).unwrap();
    let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
    let server =
        tokio::spawn(grpc::serve(listener, vec![me()], Counter, async { stopped.await.unwrap_or(()) }));

    let stream = sockets.connect_grpc(SOON).await.unwrap();
    assert_eq!(stream.peer_cred().unwrap().pid(), Some(i32::try_from(std::process::id()).unwrap()));
    let mut launcher = grpc::client(stream).await.unwrap();
    let hello = launcher.hello(grpc::request(HelloRequest { version: 1 }, SOON)).await.unwrap();
    assert_eq!(hello.into_inner().pod_uid, me().to_string());
    let sync = SyncRequest { revision: 9, vmi: vec![b' '; 1_500_000], ..Default::default() };
    assert_eq!(launcher.sync(sync).await.unwrap().into_inner().accepted_revision, 9);
    let watch = launcher.watch(WatchRequest {}).await.unwrap().into_inner();
    let seen: Vec<_> = watch.map(|status| status.unwrap().observed_revision).collect().await;
    assert_eq!(seen, [1, 2, 3]);
    // Only requests for a screenshot may get a large answer.
    let too_large = launcher.screenshot(ScreenshotRequest::default()).await.unwrap_err();
    assert_eq!(too_large.code(), tonic::Code::OutOfRange);
    let mut for_pictures = launcher.clone().max_decoding_message_size(grpc::LARGEST_PICTURE);
    let picture = for_pictures.screenshot(ScreenshotRequest::default()).await.unwrap().into_inner();
    assert_eq!(picture.png.len(), 8 << 20);
    let refused = launcher.guest(GuestRequest {}).await.unwrap_err();
    assert_eq!(refused.code(), tonic::Code::FailedPrecondition);

    let started = Instant::now();
    let late = launcher.qmp(grpc::request(QmpRequest::default(), Duration::from_millis(100))).await;
    assert!(late.is_err() && started.elapsed() < SOON, "{late:?}");

    drop(stop);
    let mut others = launcher.clone();
    server.await.unwrap().unwrap();
    let gone = tokio::time::timeout(SOON, others.hello(HelloRequest { version: 1 })).await.unwrap();
    assert!(gone.is_err(), "nothing reconnects behind the caller's back");
    assert!(matches!(sockets.connect_grpc(SOON).await, Err(ConnectError::NotListening { .. })));
}

#[tokio::test]
async fn strangers_are_turned_away_on_both_sockets() {
    let directory = tempfile::tempdir().unwrap();
    let sockets = SocketsDirectory::open(directory.path()).unwrap();
    let listener = grpc::listen_at(&directory.path().join(GRPC_SOCKET)).unwrap();
    tokio::spawn(grpc::serve(listener, vec![me() + 1], Counter, std::future::pending()));
    let listener = PacketListener::bind(&directory.path().join(DESCRIPTOR_SOCKET)).unwrap();
    let (calls, _received) = mpsc::channel(1);
    tokio::spawn(descriptors::serve(listener, vec![me() + 1], calls));

    let stream = sockets.connect_grpc(SOON).await.unwrap();
    let answer = async { grpc::client(stream).await.ok()?.hello(HelloRequest { version: 1 }).await.ok() };
    assert!(tokio::time::timeout(SOON, answer).await.unwrap().is_none());
    let mut client = Client::new(sockets.connect_descriptors(SOON).await.unwrap());
    assert!(matches!(client.take("serial0", SOON).await, Err(CallError::Closed | CallError::Socket(_))));
}

#[tokio::test]
async fn links_and_files_under_a_sockets_name_are_not_followed() {
    let elsewhere = tempfile::tempdir().unwrap();
    let _listener = grpc::listen_at(&elsewhere.path().join(GRPC_SOCKET)).unwrap();
    let directory = tempfile::tempdir().unwrap();
    std::os::unix::fs::symlink(elsewhere.path().join(GRPC_SOCKET), directory.path().join(GRPC_SOCKET))
        .unwrap();
    File::create(directory.path().join(DESCRIPTOR_SOCKET)).unwrap();
    let sockets = SocketsDirectory::open(directory.path()).unwrap();
    assert!(matches!(sockets.connect_grpc(SOON).await, Err(ConnectError::NotASocket { .. })));
    assert!(matches!(sockets.connect_descriptors(SOON).await, Err(ConnectError::NotASocket { .. })));

    let link = elsewhere.path().join("link");
    std::os::unix::fs::symlink(directory.path(), &link).unwrap();
    assert!(matches!(SocketsDirectory::open(&link), Err(ConnectError::Directory { .. })));
}

/// A listener with a full backlog does not block its client forever.
#[tokio::test]
async fn a_listener_that_never_accepts_is_given_up() {
    let directory = tempfile::tempdir().unwrap();
    let _listener = PacketListener::bind(&directory.path().join(DESCRIPTOR_SOCKET)).unwrap();
    let sockets = SocketsDirectory::open(directory.path()).unwrap();
    let mut waiting = Vec::new();
    let refused = loop {
        match sockets.connect_descriptors(Duration::from_millis(200)).await {
            Ok(socket) => waiting.push(socket),
            Err(error) => break error,
        }
        assert!(waiting.len() < 1000);
    };
    assert!(matches!(refused, ConnectError::Deadline { .. }), "{refused}");
    let mut client = Client::new(waiting.pop().unwrap());
    let unanswered = client.take("serial0", Duration::from_millis(100)).await;
    assert!(matches!(unanswered, Err(CallError::Deadline { .. })));
}

/// Serves calls at `path`, like the launcher's task.
fn serve(path: &Path) -> mpsc::Receiver<Call> {
    let listener = PacketListener::bind(path).unwrap();
    let (calls, received) = mpsc::channel(8);
    tokio::spawn(descriptors::serve(listener, vec![me()], calls));
    received
}

fn text_of(descriptor: OwnedFd) -> String {
    let mut text = String::new();
    File::from(descriptor).read_to_string(&mut text).unwrap();
    text
}

#[tokio::test]
async fn descriptors_are_given_and_streams_taken() {
    let directory = tempfile::tempdir().unwrap();
    let mut calls = serve(&directory.path().join(DESCRIPTOR_SOCKET));
    let machine = tokio::spawn(async move {
        let mut held = Vec::new();
        while let Some(Call { request, descriptors, reply }) = calls.recv().await {
            let answer = match request {
                Request::Give(give) if give.revision < 5 => Err("revision is too old".to_owned()),
                Request::Give(give) => {
                    held.push((give.name, descriptors));
                    Ok(Vec::new())
                }
                Request::Take(take) if take.stream == "serial0" => {
                    let (reader, mut writer) = std::io::pipe().unwrap();
                    writer.write_all(b"login: ").unwrap();
                    Ok(vec![reader.into()])
                }
                // This one is never answered.
                Request::Take(_) => continue,
            };
            reply.send(answer).unwrap();
        }
        held
    });

    let sockets = SocketsDirectory::open(directory.path()).unwrap();
    let mut client = Client::new(sockets.connect_descriptors(SOON).await.unwrap());
    let (reader, mut writer) = std::io::pipe().unwrap();
    writer.write_all(b"a tap").unwrap();
    drop(writer);
    let refused = client.give(4, "net/default/tap", &[reader.as_fd()], SOON).await;
    assert!(
        matches!(&refused, Err(CallError::Refused { error, .. }) if error == "revision is too old"),
        "{refused:?}"
    );
    client.give(5, "net/default/tap", &[reader.as_fd()], SOON).await.unwrap();
    assert_eq!(text_of(client.take("serial0", SOON).await.unwrap()), "login: ");

    // Invalid requests never reach the machine, and the connection stays open.
    for (name, with) in [("", 1), ("kvm", 0)] {
        let refused = client.give(5, name, &vec![reader.as_fd(); with], SOON).await;
        assert!(matches!(refused, Err(CallError::Refused { .. })), "{name:?} with {with}: {refused:?}");
    }
    let unanswered = client.take("vnc", SOON).await;
    assert!(matches!(unanswered, Err(CallError::Refused { .. })), "{unanswered:?}");
    drop(client);
    drop(sockets);
    machine.abort();
}

#[tokio::test]
async fn nonsense_is_answered_and_costs_one_connection_at_most() {
    let directory = tempfile::tempdir().unwrap();
    let _calls = serve(&directory.path().join(DESCRIPTOR_SOCKET));
    let sockets = SocketsDirectory::open(directory.path()).unwrap();
    let socket = sockets.connect_descriptors(SOON).await.unwrap();
    for nonsense in [&b"garbage"[..], b"{\"steal\":{}}", b"\xff\xfe", b"{\"take\":{\"stream\":3}}"] {
        socket.send(nonsense, &[]).await.unwrap();
        let answer = socket.receive().await.unwrap().unwrap();
        assert!(
            answer.bytes.starts_with(br#"{"ok":false,"error":"#),
            "{:?}",
            String::from_utf8_lossy(&answer.bytes)
        );
    }
}
