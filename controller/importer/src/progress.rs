//! The progress of an import, and a server that reports it.

use crate::accept::connections;
use barevirt_import_job::PROGRESS_METRIC;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio::time::timeout;

/// Time limit for a client.
const CLIENT_TIMEOUT: Duration = Duration::from_secs(5);
/// Most concurrent clients.
const MOST_CLIENTS: usize = 8;
/// Longest request, in bytes.
const LONGEST_REQUEST: usize = 4096;
/// 100 per cent, in hundredths of a per cent.
const WHOLE: u64 = 10_000;

/// The progress. It never decreases.
#[derive(Debug, Default)]
pub struct Progress {
    done: AtomicU64,
    /// Share of the transfer in the work, in hundredths of a per cent; 0 means all of it.
    share: AtomicU64,
}

impl Progress {
    /// Declares that the transfer is only `share` per cent of the work.
    pub fn transfer_is(&self, share: u64) {
        self.share.store(share.min(100) * 100, Ordering::Relaxed);
    }

    /// Records transferred bytes.
    pub fn transferred(&self, bytes: u64, of: u64) {
        let share = match self.share.load(Ordering::Relaxed) {
            0 => WHOLE,
            share => share,
        };
        self.advance(part(bytes, of, share));
    }

    /// Records progress after the transfer, in hundredths of a per cent.
    pub fn converted(&self, hundredths: u64) {
        let share = self.share.load(Ordering::Relaxed).min(WHOLE);
        self.advance(share + part(hundredths, WHOLE, WHOLE - share));
    }

    fn advance(&self, to: u64) {
        self.done.fetch_max(to.min(WHOLE), Ordering::Relaxed);
    }

    /// The progress in hundredths of a per cent.
    #[must_use]
    pub fn done(&self) -> u64 {
        self.done.load(Ordering::Relaxed)
    }

    fn text(&self, owner: &str) -> String {
        let done = self.done();
        format!(
            "# TYPE {PROGRESS_METRIC} counter\n{PROGRESS_METRIC}{{ownerUID=\"{owner}\"}} {}.{:02}\n",
            done / 100,
            done % 100
        )
    }
}

fn part(done: u64, of: u64, share: u64) -> u64 {
    if of == 0 {
        return 0;
    }
    let part = u128::from(done.min(of)) * u128::from(share) / u128::from(of);
    u64::try_from(part).unwrap_or(share)
}

/// Answers every request with the progress, until the future is dropped.
pub async fn serve(listener: TcpListener, progress: Arc<Progress>, owner: String) {
    let room = Arc::new(Semaphore::new(MOST_CLIENTS));
    let owner = owner.chars().filter(|c| c.is_ascii_alphanumeric() || *c == '-').collect::<String>();
    let owner: Arc<str> = owner.into();
    connections(&listener, &room, |stream| {
        let (progress, owner) = (progress.clone(), owner.clone());
        async move {
            // An invalid request is not answered.
            let _ = timeout(CLIENT_TIMEOUT, answer(stream, &progress, &owner)).await;
        }
    })
    .await;
}

async fn answer(mut stream: TcpStream, progress: &Progress, owner: &str) -> std::io::Result<()> {
    let mut request = vec![];
    while !request.windows(4).any(|end| end == b"\r\n\r\n") {
        if request.len() > LONGEST_REQUEST || stream.read_buf(&mut request).await? == 0 {
            return Ok(());
        }
    }
    let (status, text) = if request.starts_with(b"GET /metrics ") {
        ("200 OK", progress.text(owner))
    } else {
        ("404 Not Found", String::new())
    };
    let answer = format!(
        "HTTP/1.1 {status}\r\nContent-Type: text/plain; version=0.0.4\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{text}",
        text.len()
    );
    stream.write_all(answer.as_bytes()).await?;
    stream.shutdown().await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn progress_is_of_the_whole_and_never_goes_back() {
        let progress = Progress::default();
        progress.transferred(1, 2);
        assert_eq!(progress.done(), 5000);
        progress.transferred(1, 4);
        progress.transferred(1, 0);
        assert_eq!(progress.done(), 5000);
        progress.transfer_is(80);
        progress.transferred(2, 2);
        assert_eq!(progress.done(), 8000);
        progress.converted(5000);
        assert_eq!(progress.done(), 9000);
        progress.converted(u64::MAX);
        assert_eq!(progress.done(), WHOLE);
    }

    #[tokio::test]
    async fn progress_is_served_over_http() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let progress = Arc::new(Progress::default());
        progress.transferred(1234, 10_000);
        let serving = tokio::spawn(serve(listener, progress, "u-1\"} 5\n".to_owned()));
        for (path, expected) in [("/metrics", Some(12.34)), ("/other", None)] {
            let mut stream = TcpStream::connect(address).await.unwrap();
            stream.write_all(format!("GET {path} HTTP/1.1\r\nHost: x\r\n\r\n").as_bytes()).await.unwrap();
            let mut answer = String::new();
            stream.read_to_string(&mut answer).await.unwrap();
            assert_eq!(barevirt_import_job::progress_of(&answer), expected, "{answer}");
        }
        serving.abort();
    }
}
