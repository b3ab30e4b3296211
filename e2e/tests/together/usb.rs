//! USB devices of clients, as virtctl passes them on: slots, and QEMU's greeting in each.

use anyhow::{Context, Result, ensure};
use barevirt_e2e::command::cluster_script;
use barevirt_e2e::wait::{self, RUNNING, SOON};
use barevirt_e2e::{Namespace, Running, guest, in_namespace};
use serde_json::json;
use std::io::{BufRead, BufReader, Read};
use std::net::TcpStream;
use std::process::{Command, Stdio};

/// `virtctl usbredir --no-launch` and a client at its port, until it is dropped.
struct Slot {
    _program: Running,
    _client: TcpStream,
}

impl Slot {
    /// None if there is no free slot.
    fn take(namespace: &Namespace) -> Result<Option<Self>> {
        let mut command: Command = cluster_script("virtctl.sh");
        command.args(["usbredir", "vm", "--no-launch", "-n", namespace.name()]);
        let mut program = Running(command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn()?);
        let mut line = String::new();
        BufReader::new(program.stdout.take().context("it has no output")?).read_line(&mut line)?;
        if line.is_empty() {
            return Ok(None);
        }
        let address = line.trim().strip_prefix("User can connect usbredir client at: ");
        let mut client = TcpStream::connect(address.with_context(|| format!("it says {line:?}"))?)?;
        client.set_read_timeout(Some(SOON))?;
        // Type 0, 68 bytes, no id; then the name of the peer.
        let mut hello = [0; 80];
        client.read_exact(&mut hello).context("QEMU's greeting")?;
        ensure!(hello[..12] == [0, 0, 0, 0, 68, 0, 0, 0, 0, 0, 0, 0], "{hello:?}");
        ensure!(hello[12..].starts_with(b"qemu usb-redir guest "), "{}", String::from_utf8_lossy(&hello));
        Ok(Some(Self { _program: program, _client: client }))
    }
}

#[test]
fn usb_clients_of_a_guest_get_a_slot_each_until_all_are_taken() {
    in_namespace("usbredir", |namespace| {
        let mut manifest = guest::without_system(guest::instance("without"));
        namespace.apply(&manifest)?;
        manifest["metadata"]["name"] = json!("vm");
        manifest["spec"]["domain"]["devices"]["clientPassthrough"] = json!({});
        namespace.apply(&manifest)?;
        let refused = namespace.try_virtctl(&["usbredir", "without", "--no-launch"])?;
        let words = "Not configured with USB Redirection";
        ensure!(refused.code == 1 && refused.text().contains(words), "{refused:?}");
        namespace.wait_phase("vm", "Running", RUNNING)?;
        let mut slots = Vec::new();
        for _ in 0..4 {
            slots.push(Slot::take(namespace)?.context("there is a slot")?);
        }
        let refused = namespace.try_virtctl(&["usbredir", "vm", "--no-launch"])?;
        let words = "all 4 USB slots of the guest are in use";
        ensure!(refused.code == 1 && refused.text().contains(words), "{refused:?}");
        slots.pop();
        wait::until("the slot to be free again", SOON, || Slot::take(namespace))?;
        Ok(())
    });
}
