//! console: the guest's first serial line in this terminal.

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

use crate::session::{self, Session};
use crate::stream::{self, Socket};
use crate::terminal::RawTerminal;

/// Ctrl-], also sent by ctrl-5: leaves the console.
const ESCAPE: u8 = 0x1d;
const LOOK_EVERY: Duration = Duration::from_millis(500);

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

/// How a console ended.
enum End {
    /// The person left it.
    Left,
    /// The other side closed it.
    Closed,
}

impl Console {
    pub(crate) async fn run(&self, session: &Session) -> anyhow::Result<()> {
        let socket = self.connect(session).await?;
        eprint!(
            "Successfully connected to {} console. Press Ctrl+] or Ctrl+5 to exit console.\r\n",
            self.vmi
        );
        let raw = RawTerminal::new().context("set up the terminal")?;
        let end = attach(socket).await;
        drop(raw);
        eprintln!();
        match end? {
            End::Left => Ok(()),
            End::Closed => {
                bail!(
                    "You were disconnected from the console. This has one of the following reasons:\n \
                     - the virtual machine was powered off\n \
                     - another user connected to its console\n \
                     - network issues"
                )
            }
        }
    }

    /// Waits until the instance runs and its console answers.
    async fn connect(&self, session: &Session) -> anyhow::Result<Socket> {
        let deadline = Instant::now() + Duration::from_secs(self.timeout * 60);
        let vmis: Api<VirtualMachineInstance> = Api::namespaced(session.client.clone(), &session.namespace);
        let path = session::path(&session.namespace, "virtualmachineinstances", &self.vmi, "console");
        loop {
            let vmi = vmis.get(&self.vmi).await.map_err(session::plain)?;
            let phase = vmi.status.and_then(|status| status.phase).unwrap_or_default();
            if names::is_final_phase(&phase) {
                bail!("{} has ended ({phase}): it has no console", self.vmi);
            }
            if phase == names::PHASE_RUNNING {
                match stream::open(session, &path).await? {
                    Ok(socket) => return Ok(socket),
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

async fn attach(mut socket: Socket) -> anyhow::Result<End> {
    let mut keys = keys();
    let mut typing = true;
    let mut output = tokio::io::stdout();
    let mut ping = tokio::time::interval(stream::PING_EVERY);
    loop {
        tokio::select! {
            typed = keys.recv(), if typing => match typed {
                Some(bytes) => match bytes.iter().position(|byte| *byte == ESCAPE) {
                    None => socket.send(Message::Binary(bytes)).await.context("send to the console")?,
                    Some(at) => {
                        if at > 0 {
                            socket.send(Message::Binary(bytes.slice(..at))).await.context("send to the console")?;
                        }
                        // The other side sees the end of the connection in any case.
                        let _closing = socket.close(None).await;
                        return Ok(End::Left);
                    }
                },
                // Standard input has ended: what the guest still says is shown until the connection ends.
                None => typing = false,
            },
            message = socket.next() => match message {
                Some(Ok(Message::Binary(bytes))) => {
                    output.write_all(&bytes).await?;
                    output.flush().await?;
                }
                Some(Ok(Message::Close(_))) | None => return Ok(End::Closed),
                Some(Ok(_)) => {}
                Some(Err(_)) => return Ok(End::Closed),
            },
            _ = ping.tick() => {
                socket.send(Message::Ping(Bytes::new())).await.context("send to the console")?;
            }
        }
    }
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
