//! The serial console: one guest, one log, at most one client.
//!
//! QEMU's end is always read, with or without a client: a guest never waits for a reader. Output goes to the
//! log and to the current client; a client that does not read fast enough is disconnected when [`BACKLOG`]
//! bytes wait for it. A new client replaces the former one.
//!
//! A client's input is passed on as fast as the guest takes it, one chunk at a time, so a guest that does not
//! read costs no memory either.

use std::io;
use std::time::Duration;

use tokio::net::UnixStream;
use tokio::sync::mpsc;

use crate::serial_log::SerialLog;

/// Bytes of output that may wait for a slow client.
pub const BACKLOG: usize = 256 << 10;

/// Bytes read at a time.
const CHUNK: usize = 4096;

/// How long a client may read nothing while it gets the guest's last output.
const LAST_WORDS: Duration = Duration::from_secs(2);

/// The channel to take over the console: send one end of a connection.
pub type Seats = mpsc::Sender<UnixStream>;

/// Serves the console until QEMU closes its end; then delivers the output that still waits for the client.
pub async fn serve(serial: UnixStream, mut log: Option<SerialLog>, mut seats: mpsc::Receiver<UnixStream>) {
    let mut client: Option<UnixStream> = None;
    // Bytes that wait for the client, and for the guest.
    let mut output: Vec<u8> = Vec::new();
    let mut input: Vec<u8> = Vec::new();
    let mut chunk = vec![0; CHUNK];
    let mut seats_open = true;
    loop {
        let wants_input = input.is_empty();
        tokio::select! {
            ready = serial.readable() => match ready.and_then(|()| serial.try_read(&mut chunk)) {
                Ok(0) => break,
                Ok(count) => {
                    if let Some(log) = &mut log {
                        log.write(&chunk[..count]);
                    }
                    if client.is_some() {
                        output.extend_from_slice(&chunk[..count]);
                    }
                    if output.len() > BACKLOG {
                        tracing::info!("console client does not read: disconnected");
                        client = None;
                    }
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(_) => break,
            },
            ready = serial.writable(), if !wants_input => {
                match ready.and_then(|()| serial.try_write(&input)) {
                    Ok(count) => drop(input.drain(..count)),
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                    // If this is the end, the reading side sees it.
                    Err(_) => input.clear(),
                }
            }
            typed = typed(client.as_ref(), wants_input) => match typed {
                Some(typed) => input = typed,
                None => {
                    tracing::debug!("console client has disconnected");
                    client = None;
                }
            },
            done = deliver(client.as_ref(), &output) => match done {
                Ok(count) => drop(output.drain(..count)),
                Err(_) => client = None,
            },
            seat = seats.recv(), if seats_open => match seat {
                Some(stream) => {
                    tracing::info!(displaced = client.is_some(), "console client");
                    // The former client sees the end of its stream. Its pending input is dropped.
                    client = Some(stream);
                    input.clear();
                    output.clear();
                }
                None => seats_open = false,
            },
        }
        if client.is_none() && !output.is_empty() {
            output = Vec::new();
        }
    }
    while client.is_some() && !output.is_empty() {
        match tokio::time::timeout(LAST_WORDS, deliver(client.as_ref(), &output)).await {
            Ok(Ok(count)) => drop(output.drain(..count)),
            Ok(Err(_)) | Err(_) => break,
        }
    }
}

/// The client's next input; `None` at its end. Waits forever if there is no client or no input is wanted.
async fn typed(client: Option<&UnixStream>, wanted: bool) -> Option<Vec<u8>> {
    let Some(client) = client.filter(|_| wanted) else { return std::future::pending().await };
    loop {
        client.readable().await.ok()?;
        let mut chunk = vec![0; 1024];
        match client.try_read(&mut chunk) {
            Ok(0) => return None,
            Ok(count) => {
                chunk.truncate(count);
                return Some(chunk);
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(_) => return None,
        }
    }
}

/// Writes some of the client's pending output; returns how much. Waits forever if there is none.
async fn deliver(client: Option<&UnixStream>, output: &[u8]) -> io::Result<usize> {
    let Some(client) = client.filter(|_| !output.is_empty()) else { return std::future::pending().await };
    loop {
        client.writable().await?;
        match client.try_write(output) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            done => return done,
        }
    }
}

#[cfg(test)]
mod tests;
