//! Launchers that their guest has taken over: they speak the protocol with ill intent.

use std::convert::Infallible;
use std::pin::Pin;
use std::task::{Context, Poll};

use barevirt_protocol::v1::launcher_server::LauncherServer;
use barevirt_protocol::v1::{HotDisk, LauncherStatus, Pause, Phase};
use futures::future::BoxFuture;
use futures::{FutureExt, stream};
use http::{Request, Response, header};
use http_body_util::StreamBody;
use hyper::body::{Bytes, Frame};
use tokio::net::UnixListener;
use tokio_stream::Stream;
use tokio_stream::wrappers::UnixListenerStream;
use tonic::Status;
use tonic::body::Body;
use tonic::transport::Server;
use tower::Service;
use tower::layer::layer_fn;

use super::Fake;

/// How the fake launcher behaves.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Behaviour {
    /// As a launcher should.
    Good,
    /// It changes its status as fast as the handler reads it.
    Floods,
    /// It ends every status stream after a few messages.
    Leaves,
    /// Its statuses are megabytes that decode to a hundred times as much memory.
    Swells,
    /// It never sends its status.
    Mute,
    /// It answers the call for statistics with headers and no body.
    KeepsBodies,
}

impl Behaviour {
    const ALL: [Self; 6] =
        [Self::Good, Self::Floods, Self::Leaves, Self::Swells, Self::Mute, Self::KeepsBodies];

    pub(super) fn as_str(self) -> &'static str {
        match self {
            Self::Good => "good",
            Self::Floods => "floods",
            Self::Leaves => "leaves",
            Self::Swells => "swells",
            Self::Mute => "mute",
            Self::KeepsBodies => "keeps-bodies",
        }
    }

    pub(super) fn of(text: &str) -> Self {
        Self::ALL.into_iter().find(|behaviour| behaviour.as_str() == text).unwrap_or(Self::Good)
    }
}

type Statuses = Pin<Box<dyn Stream<Item = Result<LauncherStatus, Status>> + Send>>;

/// The statuses that it reports; `None` where this behaviour has no special ones.
pub(super) fn statuses(behaviour: Behaviour) -> Option<Statuses> {
    Some(match behaviour {
        Behaviour::Good | Behaviour::KeepsBodies => return None,
        Behaviour::Floods => Box::pin(stream::iter((1..).map(|number| Ok(status(number))))),
        Behaviour::Leaves => Box::pin(stream::iter((1..3).map(|number| Ok(status(number))))),
        Behaviour::Swells => {
            let hot_disks = vec![HotDisk::default(); 2_000_000];
            Box::pin(stream::iter([Ok(LauncherStatus { hot_disks, ..status(1) })]))
        }
        Behaviour::Mute => Box::pin(stream::pending()),
    })
}

/// Alternates between running and a disk error, with another failed ping each time.
fn status(number: u64) -> LauncherStatus {
    let mut status = LauncherStatus {
        ready: true,
        failed_pings: number,
        running_since_unix_ms: 1,
        machine_type: format!("{number}\u{1b}[2J{}", "x".repeat(4096)),
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

/// Serves as usual, but answers one call with headers only.
pub(super) async fn serve_heads(listener: UnixListener, fake: Fake) {
    Server::builder()
        .layer(layer_fn(Heads))
        .add_service(LauncherServer::new(fake))
        .serve_with_incoming(UnixListenerStream::new(listener))
        .await
        .unwrap();
}

#[derive(Clone)]
struct Heads<S>(S);

impl<S> Service<Request<Body>> for Heads<S>
where
    S: Service<Request<Body>, Response = Response<Body>, Error = Infallible>,
    S::Future: Send + 'static,
{
    type Response = Response<Body>;
    type Error = Infallible;
    type Future = BoxFuture<'static, Result<Response<Body>, Infallible>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        self.0.poll_ready(context)
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        if !request.uri().path().ends_with("/Stats") {
            return self.0.call(request).boxed();
        }
        let body = Body::new(StreamBody::new(stream::pending::<Result<Frame<Bytes>, Status>>()));
        let answer = Response::builder().header(header::CONTENT_TYPE, "application/grpc").body(body);
        async { Ok(answer.unwrap()) }.boxed()
    }
}
