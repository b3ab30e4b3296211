//! `/healthz` and `/leader` over plain HTTP, for the kubelet's probes.
//!
//! A dozen lines of HTTP/1.1 rather than a server: it answers two paths, reads at most one kibibyte and closes.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

const REQUEST_LIMIT: usize = 1024;
const DEADLINE: Duration = Duration::from_secs(5);

/// Answers for ever. `leading` tells whether this process acts.
pub async fn serve(address: SocketAddr, leading: Arc<AtomicBool>) -> std::io::Result<()> {
    let listener = TcpListener::bind(address).await?;
    loop {
        let Ok((stream, _)) = listener.accept().await else {
            // Out of descriptors, most likely: do not spin.
            tokio::time::sleep(Duration::from_millis(100)).await;
            continue;
        };
        let leading = leading.load(Ordering::Relaxed);
        tokio::spawn(async move {
            // A client that goes away is not our concern.
            let _ = tokio::time::timeout(DEADLINE, answer(stream, leading)).await;
        });
    }
}

async fn answer(mut stream: TcpStream, leading: bool) -> std::io::Result<()> {
    let mut request = Vec::with_capacity(REQUEST_LIMIT);
    while request.len() < REQUEST_LIMIT && !request.windows(4).any(|end| end == b"\r\n\r\n") {
        if (&mut stream).take(REQUEST_LIMIT as u64).read_buf(&mut request).await? == 0 {
            break;
        }
    }
    stream.write_all(respond(&request, leading).as_bytes()).await?;
    stream.shutdown().await
}

fn respond(request: &[u8], leading: bool) -> String {
    let line = request.split(|byte| *byte == b'\r').next().unwrap_or_default();
    let (status, body) = match line.split(|byte| *byte == b' ').nth(1) {
        Some(b"/healthz" | b"/leader") => ("200 OK", format!("{{\"leading\":{leading}}}")),
        _ => ("404 Not Found", "{}".to_owned()),
    };
    format!(
        "HTTP/1.1 {status}\r\nContent-Type: application/json\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{body}",
        body.len()
    )
}

#[cfg(test)]
mod tests {
    use super::respond;

    #[test]
    fn two_paths_and_nothing_else() {
        assert!(respond(b"GET /healthz HTTP/1.1\r\n\r\n", false).starts_with("HTTP/1.1 200"));
        assert!(respond(b"GET /leader HTTP/1.1\r\n\r\n", true).ends_with("{\"leading\":true}"));
        assert!(respond(b"GET /other HTTP/1.1\r\n\r\n", true).starts_with("HTTP/1.1 404"));
        assert!(respond(b"", true).starts_with("HTTP/1.1 404"));
    }
}
