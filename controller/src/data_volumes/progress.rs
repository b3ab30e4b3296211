//! Asks an importer's pod for its progress. The pod runs in a user's namespace and reads untrusted images: its answer is a
//! number for one DataVolume's status, and bounded.

use barevirt_import_job::{METRICS_PORT, progress_of};
use std::net::IpAddr;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;

/// How long an answer may take: a network policy that forbids the connection drops packets.
const TIMEOUT: Duration = Duration::from_millis(500);
/// Longest answer, in bytes.
const LONGEST: u64 = 4096;

/// Asks the pod at that address; `None` without an answer.
pub(super) async fn ask(address: &str) -> Option<f64> {
    let address: IpAddr = address.parse().ok()?;
    timeout(TIMEOUT, read((address, METRICS_PORT))).await.ok()?.ok().as_deref().and_then(progress_of)
}

async fn read(address: (IpAddr, u16)) -> std::io::Result<String> {
    let mut stream = TcpStream::connect(address).await?;
    stream.write_all(b"GET /metrics HTTP/1.0\r\n\r\n").await?;
    let mut answer = String::new();
    stream.take(LONGEST).read_to_string(&mut answer).await?;
    Ok(answer)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::Ipv4Addr;
    use tokio::net::TcpListener;

    /// Reads from a server that sends `said`, and then, if `endless`, more and more.
    async fn read_from(said: &'static str, endless: bool) -> std::io::Result<String> {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let server = tokio::spawn(async move {
            let (mut stream, _) = listener.accept().await.unwrap();
            // Unread data would reset the connection.
            let _ = stream.read(&mut [0; 64]).await;
            let _ = stream.write_all(said.as_bytes()).await;
            while endless && stream.write_all(&[b'x'; 1024]).await.is_ok() {}
        });
        let read = timeout(Duration::from_secs(5), read((Ipv4Addr::LOCALHOST.into(), port))).await.unwrap();
        server.abort();
        read
    }

    #[tokio::test]
    async fn an_answer_is_a_number_within_bounds() {
        let said = "HTTP/1.1 200 OK\r\n\r\nkubevirt_cdi_import_progress_total{ownerUID=\"u\"} 12.5\n";
        assert_eq!(progress_of(&read_from(said, false).await.unwrap()), Some(12.5));
        let endless = read_from("kubevirt_cdi_import_progress_total 7", true).await.unwrap();
        assert_eq!(endless.len() as u64, LONGEST);
        assert_eq!(progress_of(&endless), None);
        assert_eq!(ask("not an address").await, None);
    }
}
