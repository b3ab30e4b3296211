//! The server: connections, and which module answers a request.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use http::{Method, Request, StatusCode};
use http_body_util::{BodyExt, Limited};
use hyper::body::{Bytes, Incoming};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio::time::{sleep, timeout};

use super::answer::{self, Answer, Failure};
use super::ask::Cluster;
use super::gate::{Gate, Refusal};
use super::route::{self, Route};
use super::{assets, live, machine, manifest, metrics, monitor, streams};

/// Connections at once.
const CONNECTIONS: usize = 128;
/// How long a browser may take for the head of a request, and for its body.
const HEAD: Duration = Duration::from_secs(15);
const BODY: Duration = Duration::from_secs(30);
/// Largest body: the limit of an API server.
const LARGEST: usize = 3 << 20;
/// Pause after a connection could not be accepted.
const PAUSE: Duration = Duration::from_millis(200);

/// Consoles and displays at once.
const STREAMS: usize = 32;

/// The server of one run.
pub(super) struct Server {
    gate: Gate,
    cluster: Arc<Cluster>,
    streams: Arc<Semaphore>,
}

impl Server {
    /// A server for that cluster, for requests that pass the gate.
    pub(super) fn new(gate: Gate, cluster: Cluster) -> Self {
        Self { gate, cluster: Arc::new(cluster), streams: Arc::new(Semaphore::new(STREAMS)) }
    }

    async fn answer(&self, request: Request<Incoming>) -> Answer {
        let (method, uri) = (request.method().clone(), request.uri().clone());
        if let (&Method::GET, Some(asset)) = (&method, assets::find(uri.path())) {
            return match self.gate.show(uri.path(), request.headers()) {
                Ok(()) => answer::asset(asset),
                Err(refusal) => refused(refusal),
            };
        }
        if let Err(refusal) = self.gate.admit(&method, streams::is_upgrade(&request), request.headers()) {
            return refused(refusal);
        }
        let Some(route) = route::route(&method, uri.path()) else {
            return answer::failure(&Failure {
                status: StatusCode::NOT_FOUND,
                message: "there is no such address here".to_owned(),
            });
        };
        self.routed(route, request).await.unwrap_or_else(|failure| answer::failure(&failure))
    }

    async fn routed(&self, route: Route, request: Request<Incoming>) -> Result<Answer, Failure> {
        let cluster = &*self.cluster;
        let told = match route {
            Route::About => about(cluster),
            Route::Live => return Ok(live::answer(self.cluster.clone())),
            Route::Draft => manifest::draft(&object(request).await?, &cluster.namespace)?,
            Route::Ask(question) => manifest::ask(cluster, question, &text(request).await?).await?,
            Route::Show(target) => machine::show(cluster, &target).await?,
            Route::Manifest(target) => manifest::show(cluster, &target).await?,
            Route::Save(target) => manifest::save(cluster, &target, &text(request).await?).await?,
            Route::Act(target, action) => machine::act(cluster, &target, action).await?,
            Route::Monitor(target) => monitor::say(cluster, &target, &text(request).await?).await?,
            Route::Metrics(target) => metrics::of(cluster, &target).await?,
            Route::Open(target, stream) => {
                let Ok(place) = self.streams.clone().try_acquire_owned() else {
                    return Err(Failure {
                        status: StatusCode::SERVICE_UNAVAILABLE,
                        message: format!("{STREAMS} consoles and displays are open: close one"),
                    });
                };
                return streams::open(request, &self.cluster, &target, stream, place);
            }
        };
        Ok(answer::json(&told))
    }
}

/// Serves without end.
pub(super) async fn run(listener: TcpListener, server: Arc<Server>) -> anyhow::Result<()> {
    let places = Arc::new(Semaphore::new(CONNECTIONS));
    loop {
        let place = places.clone().acquire_owned().await?;
        let Ok((connection, _)) = listener.accept().await else {
            // Too many open files: some are closed soon.
            sleep(PAUSE).await;
            continue;
        };
        let server = server.clone();
        tokio::spawn(async move {
            serve(connection, server).await;
            drop(place);
        });
    }
}

async fn serve(connection: TcpStream, server: Arc<Server>) {
    // A failure only costs latency.
    let _ = connection.set_nodelay(true);
    let service = service_fn(|request| {
        let server = server.clone();
        async move { Ok::<_, Infallible>(server.answer(request).await) }
    });
    let mut http = http1::Builder::new();
    http.timer(TokioTimer::new()).header_read_timeout(HEAD);
    // An error means that the browser closed the connection, and is not reported.
    let _ = http.serve_connection(TokioIo::new(connection), service).with_upgrades().await;
}

fn refused(refusal: Refusal) -> Answer {
    answer::text(refusal.status(), refusal.text())
}

fn about(cluster: &Cluster) -> Value {
    json!({
        "server": cluster.server,
        "namespace": cluster.namespace,
        "scope": cluster.scope,
        "version": env!("CARGO_PKG_VERSION"),
    })
}

async fn text(request: Request<Incoming>) -> Result<String, Failure> {
    let body = timeout(BODY, Limited::new(request.into_body(), LARGEST).collect()).await;
    let body = body.map_err(|_| Failure::bad("the request did not come in time"))?;
    let bytes: Bytes = body.map_err(|error| Failure::bad(format!("read the request: {error}")))?.to_bytes();
    String::from_utf8(bytes.to_vec()).map_err(|_| Failure::bad("the request is not text"))
}

async fn object<T: DeserializeOwned>(request: Request<Incoming>) -> Result<T, Failure> {
    serde_json::from_str(&text(request).await?)
        .map_err(|error| Failure::bad(format!("read the request: {error}")))
}

#[cfg(test)]
mod tests {
    use super::*;
    use kube::{Client, Config};
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    /// The answer to these bytes from a server whose cluster does not answer.
    async fn answer_to(request: &str) -> String {
        // No API server listens on this port.
        let config = Config::new("http://127.0.0.1:9".parse().unwrap());
        let cluster = Cluster::new(Client::try_from(config).unwrap(), "home", None);
        let gate = Gate::new(8080, "secret".to_owned());
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let server = tokio::spawn(run(listener, Arc::new(Server::new(gate, cluster))));
        let mut browser = TcpStream::connect(address).await.unwrap();
        browser.write_all(request.as_bytes()).await.unwrap();
        let mut answer = Vec::new();
        timeout(HEAD, browser.read_to_end(&mut answer)).await.unwrap().unwrap();
        server.abort();
        String::from_utf8_lossy(&answer).into_owned()
    }

    const OURS: &str = "host: 127.0.0.1:8080\r\nauthorization: Bearer secret\r\nconnection: close\r\n\r\n";

    #[tokio::test]
    async fn a_stranger_learns_nothing() {
        let nobody = "host: 127.0.0.1:8080\r\nconnection: close\r\n\r\n";
        for path in ["/api/about", "/api/live", "/api/machines/a/b", "/no", "/api/about?token=secret"] {
            let answer = answer_to(&format!("GET {path} HTTP/1.1\r\n{nobody}")).await;
            assert!(answer.starts_with("HTTP/1.1 401"), "{path}: {answer}");
        }
        let elsewhere = OURS.replace("127.0.0.1", "evil.example");
        for path in ["/", "/app.js", "/api/about"] {
            let answer = answer_to(&format!("GET {path} HTTP/1.1\r\n{elsewhere}")).await;
            assert!(answer.starts_with("HTTP/1.1 421"), "{path}: {answer}");
        }
        let answer =
            answer_to(&format!("POST /api/create HTTP/1.1\r\norigin: http://evil.example\r\n{OURS}")).await;
        assert!(answer.starts_with("HTTP/1.1 403"), "{answer}");
    }

    #[tokio::test]
    async fn the_user_gets_in() {
        let answer = answer_to(&format!("GET /api/about HTTP/1.1\r\n{OURS}")).await;
        assert!(answer.starts_with("HTTP/1.1 200") && answer.contains("\"namespace\":\"home\""), "{answer}");
    }

    #[tokio::test]
    async fn no_answer_has_the_token_or_a_cookie() {
        for path in ["/", "/index.html", "/app.js", "/api/about", "/no"] {
            let answer = answer_to(&format!("GET {path} HTTP/1.1\r\n{OURS}")).await;
            let head = answer.split("\r\n\r\n").next().unwrap_or_default().to_lowercase();
            assert!(!head.contains("set-cookie") && !answer.contains("secret"), "{path}: {head}");
        }
    }

    #[tokio::test]
    async fn unknown_files_and_paths_are_not_found() {
        for path in
            ["/../../etc/passwd", "/%2e%2e/Cargo.toml", "/api/machines/a/../metrics", "/api/x", "/nothing"]
        {
            let answer = answer_to(&format!("GET {path} HTTP/1.1\r\n{OURS}")).await;
            assert!(answer.starts_with("HTTP/1.1 404"), "{path}: {answer}");
        }
        // A console is a websocket, and nothing else.
        let answer = answer_to(&format!("GET /api/machines/a/b/console HTTP/1.1\r\n{OURS}")).await;
        assert!(answer.starts_with("HTTP/1.1 400"), "{answer}");
    }

    #[tokio::test]
    async fn an_unreachable_cluster_is_answered_with_a_message() {
        let answer = answer_to(&format!("GET /api/machines/a/b HTTP/1.1\r\n{OURS}")).await;
        assert!(answer.starts_with("HTTP/1.1 502") && answer.contains("\"message\":"), "{answer}");
    }
}
