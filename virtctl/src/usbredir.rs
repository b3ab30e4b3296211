//! usbredir: a USB device of this machine in a guest.
//!
//! A port of the loopback leads to a USB slot of the guest, for one client: `usbredirect`, which virtctl
//! starts with the device, or with `--no-launch` the first client that connects. The guest has the device
//! until the client ends.

use std::net::Ipv4Addr;
use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context, bail, ensure};
use clap::Args;
use tokio::process::{Child, Command};

use crate::port_forward;
use crate::session::Session;
use crate::visitor::{self, until_interrupted};

/// The program that reads and writes the device.
const CLIENT: &str = "usbredirect";
/// How long the client may take to connect to the port.
const CLIENT_TIMEOUT: Duration = Duration::from_secs(60);
/// The name of the stream's target in errors.
const SLOT: &str = "the USB slot";

/// Arguments of `virtctl usbredir`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  \
    # Find the device:\n  lsusb\n\n  \
    # Redirect it by vendor and product to 'testvmi':\n  virtctl usbredir 0951:1666 testvmi\n\n  \
    # Redirect it by bus and device:\n  virtctl usbredir 02-03 testvmi\n\n  \
    # Only open a port for a client that you start yourself:\n  virtctl usbredir testvmi --no-launch")]
pub(crate) struct UsbRedir {
    /// The device, as vendor:product or bus-device, and the virtual machine instance; with --no-launch only the latter.
    #[arg(value_names = ["DEVICE", "VMI"], required = true, num_args = 1..=2)]
    arguments: Vec<String>,
    /// Only open the port; you start the client of the device yourself.
    #[arg(long)]
    no_launch: bool,
}

impl UsbRedir {
    pub(crate) async fn run(&self, session: &Session) -> anyhow::Result<()> {
        let (device, vmi) = self.read()?;
        let socket = visitor::open(session, vmi, "usbredir").await?;
        let listener = visitor::listen(Ipv4Addr::LOCALHOST.into(), 0).await?;
        let address = listener.local_addr()?.to_string();
        let carried = async {
            let came = visitor::wait(socket, &listener, SLOT);
            let came = match device {
                None => came.await?,
                Some(_) => {
                    let came = tokio::time::timeout(CLIENT_TIMEOUT, came).await;
                    came.with_context(|| format!("{CLIENT} did not connect within a minute"))??
                }
            };
            let (socket, client) = came.map_err(|ended| ended.unused(SLOT))?;
            // A guest with USB slots does not move, so there is nothing to connect to again.
            port_forward::carry(socket, client).await?.reason().map(drop)
        };
        let Some(device) = device else {
            println!("User can connect usbredir client at: {address}");
            return until_interrupted(carried).await;
        };
        let mut child = start(device, &address)?;
        until_interrupted(async {
            tokio::select! {
                // The stream's own error says more than the connection's.
                biased;
                ended = ended(&mut child) => ended,
                done = carried => {
                    done?;
                    // A client that closed the connection ends by itself at once; any other client has lost
                    // the guest.
                    match tokio::time::timeout(Duration::from_secs(2), ended(&mut child)).await {
                        Ok(ended) => ended,
                        Err(_) => bail!("{SLOT} was closed"),
                    }
                }
            }
        })
        .await
    }

    /// The device, if there is to be a client, and the instance.
    fn read(&self) -> anyhow::Result<(Option<&str>, &str)> {
        match self.arguments.as_slice() {
            [vmi] if self.no_launch => Ok((None, vmi)),
            [device, vmi] if !self.no_launch => Ok((Some(device), vmi)),
            [_, _] => bail!("with --no-launch the only argument is the virtual machine instance"),
            _ => bail!("a device and a virtual machine instance are needed, or --no-launch"),
        }
    }
}

/// Starts the client; it ends with this program.
fn start(device: &str, address: &str) -> anyhow::Result<Child> {
    let mut command = Command::new(CLIENT);
    command.args(["--device", device, "--to", address]).stdin(Stdio::null()).kill_on_drop(true);
    let started = command.spawn();
    started
        .with_context(|| format!("start {CLIENT}; install it, or use --no-launch and a client of your own"))
}

/// Waits until the client ends. The command succeeds when the client succeeded.
async fn ended(child: &mut Child) -> anyhow::Result<()> {
    let status = child.wait().await.with_context(|| format!("wait for {CLIENT}"))?;
    ensure!(status.success(), "{CLIENT} ended: {status}");
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_device_is_named_unless_the_client_is_the_users_own() {
        let read = |arguments: &[&str], no_launch| {
            let arguments = arguments.iter().map(|word| (*word).to_owned()).collect();
            let command = UsbRedir { arguments, no_launch };
            let (device, vmi) = command.read().map_err(|error| error.to_string())?;
            Ok::<_, String>((device.map(str::to_owned), vmi.to_owned()))
        };
        let vmi = || "testvmi".to_owned();
        assert_eq!(read(&["0951:1666", "testvmi"], false), Ok((Some("0951:1666".to_owned()), vmi())));
        assert_eq!(read(&["testvmi"], true), Ok((None, vmi())));
        assert!(read(&["testvmi"], false).unwrap_err().contains("--no-launch"));
        assert!(read(&["0951:1666", "testvmi"], true).unwrap_err().contains("only argument"));
    }
}
