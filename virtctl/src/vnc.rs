//! vnc: the display of a guest in a viewer of this machine.
//!
//! A port of this machine leads to the guest's display, for one viewer: an installed viewer, or with
//! `--proxy-only` the first one that connects.
//!
//! When the guest moves to another node, its display begins there with a new handshake and new pixels, which no viewer expects in
//! the middle of a connection. So the viewer's connection ends, and the same port leads to the display on the new node: an
//! installed viewer is started again, another one has to connect again.

mod screenshot;
mod viewer;

use std::net::{IpAddr, Ipv4Addr};
use std::time::Duration;

use anyhow::{Context, bail};
use barevirt_api::names::CONDITION_PAUSED;
use barevirt_api::v1::{Condition, VirtualMachineInstance};
use clap::{Args, Subcommand};
use kube::Api;
use tokio::net::{TcpListener, lookup_host};

use self::viewer::{Search, Viewer};
use crate::port_forward;
use crate::reconnect::{self, End, Follow, Gone, Place};
use crate::session::Session;
use crate::stream::{Socket, StreamEnd};
use crate::visitor::{self, until_interrupted};

/// How long a viewer may take to connect to the port.
const VIEWER_TIMEOUT: Duration = Duration::from_secs(60);
/// The name of the stream's target in errors.
const DISPLAY: &str = "the display";

/// Arguments of `virtctl vnc`.
#[derive(Debug, Args)]
#[command(
    subcommand_precedence_over_arg = true,
    subcommand_negates_reqs = true,
    after_help = "Examples:\n  \
    # Connect to the display of 'testvmi' with a viewer of this machine:\n  virtctl vnc testvmi\n\n  \
    # Only open a port for a viewer:\n  virtctl vnc testvmi --proxy-only --port 5901"
)]
pub(crate) struct Vnc {
    /// Name of the virtual machine instance.
    #[arg(required = true)]
    vmi: Option<String>,
    /// The address that the port is opened on, with --proxy-only.
    #[arg(long, default_value = "127.0.0.1")]
    address: String,
    /// Run only the proxy, and print the port for a viewer.
    #[arg(long)]
    proxy_only: bool,
    /// Do not disconnect the user who has the display now.
    #[arg(long)]
    preserve_session: bool,
    /// The port; 0 takes a free one.
    #[arg(long, default_value_t = 0)]
    port: u16,
    /// The viewer to use: tiger, remote-viewer, and on a Mac chicken or real.
    #[arg(long)]
    vnc_type: Option<String>,
    /// Path to the viewer's program; with --vnc-type.
    #[arg(long)]
    vnc_path: Option<std::path::PathBuf>,
    #[command(subcommand)]
    command: Option<Command>,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Create a VNC screenshot of a virtual machine instance.
    Screenshot(screenshot::Screenshot),
}

impl Vnc {
    pub(crate) async fn run(&self, session: &Session) -> anyhow::Result<()> {
        match (&self.command, &self.vmi) {
            (Some(Command::Screenshot(screenshot)), _) => screenshot.run(session).await,
            (None, Some(vmi)) => self.show(session, vmi).await,
            (None, None) => bail!("the name of a virtual machine instance is missing"),
        }
    }

    async fn show(&self, session: &Session, vmi: &str) -> anyhow::Result<()> {
        // Before anything is opened, check that there is a viewer.
        let viewer = match self.proxy_only {
            true => None,
            false => Some(Viewer::find(self.vnc_type.as_deref(), self.vnc_path.as_deref(), &Search::here())?),
        };
        let subresource = format!("vnc?preserveSession={}", self.preserve_session);
        let mut place = Place::find(session, vmi).await;
        let mut socket = visitor::open(session, vmi, &subresource).await?;
        let address =
            if self.proxy_only { resolve(&self.address).await? } else { Ipv4Addr::LOCALHOST.into() };
        let listener = visitor::listen(address, self.port).await?;
        let port = listener.local_addr()?.port();
        warn_if_paused(session, vmi).await;
        if viewer.is_none() {
            println!("{}", serde_json::json!({ "port": port }));
        }
        until_interrupted(async {
            loop {
                let visit = match &viewer {
                    None => visit(socket, &listener, None).await?,
                    Some(viewer) => {
                        // It is killed when this value is dropped.
                        let mut child = viewer.start(port)?;
                        tokio::select! {
                            done = visit(socket, &listener, Some(VIEWER_TIMEOUT)) => done?,
                            ended = viewer::ended(&mut child, viewer) => return ended,
                        }
                    }
                };
                let (Visit::Unused(stream_end) | Visit::Over(stream_end)) = &visit else { return Ok(()) };
                let Some(end) = End::of_stream(stream_end) else { return Ok(()) };
                let gone = Gone { place, end, follow: Follow::Moves };
                let open = || async { visitor::open(session, vmi, &subresource).await.ok() };
                let Some((next, there)) = reconnect::again(session, vmi, &gone, || {}, open).await else {
                    return visit.ended();
                };
                let what = if viewer.is_some() {
                    "the viewer starts again".to_owned()
                } else {
                    format!("connect the viewer to port {port} again")
                };
                eprintln!("{vmi} has moved to node {}: {what}.", there.node);
                (socket, place) = (next, there);
            }
        })
        .await
    }
}

/// How one viewer's time at the display ended.
enum Visit {
    /// The viewer left.
    Left,
    /// The display's side ended before a viewer came.
    Unused(StreamEnd),
    /// The display's side ended.
    Over(StreamEnd),
}

impl Visit {
    /// The result of the command.
    fn ended(self) -> anyhow::Result<()> {
        match self {
            Self::Left => Ok(()),
            Self::Unused(stream_end) => Err(stream_end.unused(DISPLAY)),
            Self::Over(stream_end) => {
                if let Some(reason) = stream_end.reason()? {
                    eprintln!("{DISPLAY} was closed: {reason}");
                }
                Ok(())
            }
        }
    }
}

/// Serves one viewer, which has to connect in time.
async fn visit(socket: Socket, listener: &TcpListener, within: Option<Duration>) -> anyhow::Result<Visit> {
    let came = visitor::wait(socket, listener, DISPLAY);
    let came = match within {
        None => came.await?,
        Some(within) => tokio::time::timeout(within, came)
            .await
            .context("the viewer did not connect within a minute")??,
    };
    let (socket, client) = match came {
        Ok(came) => came,
        Err(stream_end) => return Ok(Visit::Unused(stream_end)),
    };
    Ok(match port_forward::carry(socket, client).await? {
        StreamEnd::Local => Visit::Left,
        stream_end @ (StreamEnd::Closed(_) | StreamEnd::Broken(_)) => Visit::Over(stream_end),
    })
}

async fn resolve(address: &str) -> anyhow::Result<IpAddr> {
    let mut found =
        lookup_host((address, 0)).await.with_context(|| format!("can't resolve the address {address}"))?;
    Ok(found.next().with_context(|| format!("{address} has no address"))?.ip())
}

/// Warns that the guest is paused, so that a still picture is not taken for a failure.
pub(crate) async fn warn_if_paused(session: &Session, vmi: &str) {
    let vmis: Api<VirtualMachineInstance> = Api::namespaced(session.client.clone(), &session.namespace);
    // A failure of this check is no error.
    let Ok(found) = vmis.get(vmi).await else { return };
    let conditions = found.status.map(|status| status.conditions).unwrap_or_default();
    if Condition::find(&conditions, CONDITION_PAUSED).is_some() {
        eprint!("\rWarning: {vmi} is paused. Console will be active after unpause.\r\n");
    }
}
