//! console: the guest's first serial line in this terminal.
//!
//! ```text
//!   wait until it runs -> attached --ctrl-]----------------------------> done
//!                          ^    |  \--another user took it-------------> message, failed
//!                          |    |
//!                          |    +--connection broke (a component restarted)--> the same guest again
//!                          |    +--the guest ended----------------------------> the machine's next run, if it has one
//!                          |    +--the guest moved to another node------------> the same guest there
//!                          +------------------------------------------------------+   else message, failed
//! ```

use std::io::Read;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use barevirt_api::names;
use barevirt_api::v1::VirtualMachineInstance;
use clap::Args;
use futures::{SinkExt, StreamExt};
use hyper::body::Bytes;
use kube::Api;
use tokio::io::AsyncWriteExt;
use tokio::sync::mpsc;
use tokio_tungstenite::tungstenite::Message;

use crate::reconnect::{self, End, Follow, Gone, Place};
use crate::session::{self, INSTANCES, Session};
use crate::stream::{self, Socket};
use crate::terminal::RawTerminal;
use crate::vnc::warn_if_paused;
use crate::waiting;

/// Ctrl-], also sent by ctrl-5: leaves the console.
const ESCAPE: u8 = 0x1d;
const LOOK_EVERY: Duration = Duration::from_millis(500);
/// A reopened connection that breaks sooner than this is not reopened again: another user may have taken the console on a
/// server that does not say so.
const SHORT: Duration = Duration::from_secs(3);

/// Arguments of `virtctl console`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  \
    # Connect to the console of the instance 'myvmi':\n  virtctl console myvmi\n\n  \
    # Wait at most one minute for it to run (default 5 minutes):\n  virtctl console --timeout=1 myvmi")]
pub(crate) struct Console {
    /// Name of the virtual machine instance.
    vmi: String,
    /// The number of minutes to wait for the virtual machine instance to be ready.
    #[arg(long, default_value_t = 5)]
    timeout: u64,
}

/// An open console, and where its guest is.
struct Line {
    socket: Socket,
    place: Place,
}

/// The result of the wait for a console whose connection has ended.
enum Reconnection {
    /// It answers.
    Line(Box<Line>),
    /// The user did not want to wait.
    Left,
    /// There is nothing to wait for.
    No,
}

impl Console {
    pub(crate) async fn run(&self, session: &Session) -> anyhow::Result<()> {
        let waits_for = format!("waiting until {} runs and its console answers", self.vmi);
        let mut line = waiting::during(&waits_for, self.connect(session)).await?;
        eprint!(
            "Successfully connected to {} console. Press Ctrl+] or Ctrl+5 to exit console.\r\n",
            self.vmi
        );
        warn_if_paused(session, &self.vmi).await;
        let raw = RawTerminal::new().context("set up the terminal")?;
        let mut keys = keys();
        let mut before = None;
        let end = loop {
            let began = Instant::now();
            let end = attach(&mut keys, line.socket).await;
            let broke_again = before.is_some() && began.elapsed() < SHORT;
            match end? {
                None => break Ok(()),
                Some(End::Taken) => break Err(self.taken()),
                Some(End::Lost) if broke_again => break Err(self.gone()),
                Some(end @ (End::Ended | End::Lost)) => {
                    let gone = Gone { place: line.place, end, follow: Follow::Runs };
                    match self.reconnect(session, &gone, &mut keys).await {
                        Reconnection::Line(next) => line = *next,
                        Reconnection::Left => break Ok(()),
                        Reconnection::No => break Err(self.gone()),
                    }
                    before = Some(began);
                }
            }
        };
        drop(raw);
        eprintln!();
        end
    }

    fn taken(&self) -> anyhow::Error {
        anyhow::anyhow!(
            "You were disconnected from the console of {}: another user connected to it.",
            self.vmi
        )
    }

    fn gone(&self) -> anyhow::Error {
        anyhow::anyhow!(
            "You were disconnected from the console. This has one of the following reasons:\n \
             - the virtual machine was powered off\n \
             - another user connected to its console\n \
             - network issues"
        )
    }

    /// Waits for the console, while ctrl-] still leaves.
    async fn reconnect(
        &self,
        session: &Session,
        gone: &Gone,
        keys: &mut mpsc::Receiver<Bytes>,
    ) -> Reconnection {
        let name = &self.vmi;
        if gone.end == End::Lost {
            eprint!(
                "\r\nThe connection to the console of {name} broke off: connecting again, Ctrl+] leaves.\r\n"
            );
        }
        let path = path(session, name);
        let next_run = || eprint!("\r\n{name} has ended: waiting for its next run, Ctrl+] leaves.\r\n");
        let open = || async { stream::open(session, &path).await.ok()?.ok() };
        let found = tokio::select! {
            found = reconnect::again(session, name, gone, next_run, open) => found,
            () = escape(keys) => return Reconnection::Left,
        };
        let Some((socket, place)) = found else { return Reconnection::No };
        if gone.has_moved_to(&place) {
            eprint!("\r\n{name} has moved to node {}.\r\n", place.node);
        }
        eprint!("Connected to {name} console again.\r\n");
        Reconnection::Line(Box::new(Line { socket, place }))
    }

    /// Waits until the instance runs and its console answers.
    async fn connect(&self, session: &Session) -> anyhow::Result<Line> {
        let deadline = Instant::now() + Duration::from_secs(self.timeout * 60);
        let vmis: Api<VirtualMachineInstance> = Api::namespaced(session.client.clone(), &session.namespace);
        loop {
            let vmi = match vmis.get(&self.vmi).await {
                Ok(vmi) => vmi,
                Err(error) => {
                    let missing = matches!(&error, kube::Error::Api(status) if status.code == 404);
                    if !missing || Instant::now() > deadline || !reconnect::will_run(session, &self.vmi).await
                    {
                        return Err(session::plain(error));
                    }
                    tokio::time::sleep(LOOK_EVERY).await;
                    continue;
                }
            };
            let place = Place::of(&vmi);
            let phase = vmi.status.and_then(|status| status.phase).unwrap_or_default();
            if names::is_final_phase(&phase) {
                bail!("{} has ended ({phase}): it has no console", self.vmi);
            }
            if phase == names::PHASE_RUNNING {
                match stream::open(session, &path(session, &self.vmi)).await? {
                    Ok(socket) => return Ok(Line { socket, place }),
                    Err(text) if Instant::now() > deadline => bail!("{text}"),
                    Err(_) => {}
                }
            } else if Instant::now() > deadline {
                bail!("{} does not run after {} minutes: it is {phase}", self.vmi, self.timeout);
            }
            tokio::time::sleep(LOOK_EVERY).await;
        }
    }
}

fn path(session: &Session, vmi: &str) -> String {
    session::path(&session.namespace, INSTANCES, vmi, "console")
}

/// Carries keys and output. Returns how the guest's side ended; nothing if the user left.
async fn attach(keys: &mut mpsc::Receiver<Bytes>, mut socket: Socket) -> anyhow::Result<Option<End>> {
    let mut typing = true;
    let mut output = tokio::io::stdout();
    let mut ping = tokio::time::interval(stream::PING_EVERY);
    loop {
        tokio::select! {
            typed = keys.recv(), if typing => match typed {
                Some(bytes) => {
                    let (typed, left) = until_escape(&bytes);
                    if !typed.is_empty() && socket.send(Message::Binary(typed)).await.is_err() {
                        return Ok(Some(End::Lost));
                    }
                    if left {
                        // The other side sees the end of the connection in any case.
                        let _closing = socket.close(None).await;
                        return Ok(None);
                    }
                }
                // Standard input has ended: the guest's further output is shown until the connection ends.
                None => typing = false,
            },
            message = socket.next() => match message {
                Some(Ok(Message::Binary(bytes))) => {
                    output.write_all(&bytes).await?;
                    output.flush().await?;
                }
                Some(Ok(Message::Close(frame))) => return Ok(Some(End::of(frame.as_ref()))),
                Some(Ok(_)) => {}
                Some(Err(_)) | None => return Ok(Some(End::Lost)),
            },
            _ = ping.tick() => {
                if socket.send(Message::Ping(Bytes::new())).await.is_err() {
                    return Ok(Some(End::Lost));
                }
            }
        }
    }
}

/// The input before the escape key, and whether the escape key was pressed.
fn until_escape(bytes: &Bytes) -> (Bytes, bool) {
    match bytes.iter().position(|byte| *byte == ESCAPE) {
        Some(at) => (bytes.slice(..at), true),
        None => (bytes.clone(), false),
    }
}

/// Waits for the escape key; other keys are lost. Without standard input there is none.
async fn escape(keys: &mut mpsc::Receiver<Bytes>) {
    while let Some(typed) = keys.recv().await {
        if until_escape(&typed).1 {
            return;
        }
    }
    std::future::pending::<()>().await;
}

/// Standard input, read by a thread of its own: a read from a terminal cannot be cancelled, and the runtime would wait
/// for it at the end.
fn keys() -> mpsc::Receiver<Bytes> {
    let (sender, receiver) = mpsc::channel(16);
    std::thread::spawn(move || {
        let mut input = std::io::stdin();
        let mut buffer = vec![0; 4096];
        while let Ok(count @ 1..) = input.read(&mut buffer) {
            if sender.blocking_send(Bytes::copy_from_slice(&buffer[..count])).is_err() {
                return;
            }
        }
    });
    receiver
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_escape_is_not_the_guest_s() {
        let keys = Bytes::from_static(b"ls\x1drest");
        assert_eq!(until_escape(&keys), (Bytes::from_static(b"ls"), true));
        assert_eq!(until_escape(&keys.slice(..2)), (Bytes::from_static(b"ls"), false));
    }
}
