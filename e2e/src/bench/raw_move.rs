//! The same migration by hand: two QEMUs, with the commands that launchers send.

use super::migrate::{DOWNTIME, KEY, Serial, Trip, connection, gap};
use super::pod::SOON;
use super::raw::{Control, Raw};
use crate::command::repository;
use crate::running::Running;
use anyhow::{Context, Result, bail};
use barevirt_qmp::qapi::qmp::getfd;
use barevirt_qmp::{Deadline, Events, Options, Qmp};
use serde_json::{Map, Value, json};
use std::fmt::Write;
use std::fs;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::Stdio;
use std::time::Instant;

/// The group that the launcher uses for the key exchange.
const GROUP: &str = "launcher/src/migration/ffdhe2048.pem";
/// The value that launchers use for no limit.
const UNLIMITED: u64 = 1 << 50;
const CAPABILITIES: [&str; 4] = ["events", "pause-before-switchover", "return-path", "late-block-activate"];

/// Moves the guest from the source to the target.
pub(super) async fn go(source: &Raw, target: &Raw) -> Result<Trip> {
    let keys = tempfile::tempdir()?;
    let mut line = String::from("migration:");
    for byte in KEY {
        write!(line, "{byte:02x}")?;
    }
    fs::write(keys.path().join("keys.psk"), format!("{line}\n"))?;
    fs::copy(repository().join(GROUP), keys.path().join("dh-params.pem"))?;
    let (mut source, mut target) = (Qemu::start(source).await?, Qemu::start(target).await?);
    source.say("cont", Value::Null).await?;
    source.serial.filled().await?;
    let (ours, theirs) = connection()?;
    let parameters = json!({
        "max-bandwidth": UNLIMITED, "downtime-limit": u64::try_from(DOWNTIME.as_millis())?, "tls-hostname": "migration",
    });
    target.prepare(keys.path(), "server", json!({}), theirs).await?;
    target.say("migrate-incoming", json!({ "uri": "fd:migration" })).await?;
    source.prepare(keys.path(), "client", parameters, ours).await?;
    let begun = Instant::now();
    source.say("migrate", json!({ "uri": "fd:migration" })).await?;
    let sent = async {
        source.migration("pre-switchover").await?;
        let state = json!({ "state": "pre-switchover" });
        source.qmp.execute_raw("migrate-continue", state, Deadline::after(SOON)).await?;
        source.migration("completed").await?;
        anyhow::Ok(begun.elapsed())
    };
    let arrived = async {
        target.migration("completed").await?;
        target.qmp.execute_raw("cont", Value::Null, Deadline::after(SOON)).await?;
        anyhow::Ok(())
    };
    let (sent, ()) = tokio::try_join!(sent, arrived)?;
    Ok(Trip { sent, silent: gap(&source.serial, &target.serial).await? })
}

struct Qemu {
    qmp: Qmp,
    events: Events,
    serial: Serial,
    _others: Vec<UnixStream>,
    _running: Running,
}

impl Qemu {
    async fn start(raw: &Raw) -> Result<Self> {
        let (mut command, control) = raw.command(false)?;
        let running =
            Running(command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().context("start QEMU")?);
        drop(command);
        let Control { stream, serial, others } = control;
        stream.set_nonblocking(true)?;
        let stream = tokio::net::UnixStream::from_std(stream)?;
        let (qmp, events) = Qmp::open(stream, Options::default(), Deadline::after(SOON)).await?;
        let serial = Serial::listen(serial.context("QEMU's command line has no serial port")?.into());
        Ok(Self { qmp, events, serial, _others: others, _running: running })
    }

    async fn say(&self, name: &str, arguments: Value) -> Result<()> {
        self.qmp.execute_raw(name, arguments, Deadline::after(SOON)).await?;
        Ok(())
    }

    async fn prepare(
        &self,
        keys: &Path,
        endpoint: &str,
        mut parameters: Value,
        connection: OwnedFd,
    ) -> Result<()> {
        let capabilities = CAPABILITIES.map(|name| json!({ "capability": name, "state": true }));
        self.say("migrate-set-capabilities", json!({ "capabilities": capabilities })).await?;
        let mut credentials = Map::new();
        for (key, value) in [("qom-type", "tls-creds-psk"), ("id", "migration-key"), ("endpoint", endpoint)] {
            credentials.insert(key.to_owned(), json!(value));
        }
        credentials.insert("dir".to_owned(), json!(keys));
        if endpoint == "client" {
            credentials.insert("username".to_owned(), json!("migration"));
        }
        self.say("object-add", Value::Object(credentials)).await?;
        parameters["tls-creds"] = json!("migration-key");
        self.say("migrate-set-parameters", parameters).await?;
        let name = getfd { fdname: "migration".to_owned() };
        self.qmp.execute_with_fds(name, &[connection.as_fd()], Deadline::after(SOON)).await?;
        Ok(())
    }

    /// Waits until QEMU's migration has that status.
    async fn migration(&mut self, wanted: &str) -> Result<()> {
        let search = async {
            while let Some(event) = self.events.next().await {
                let event = event?;
                let status = event.data("status").as_str().unwrap_or_default();
                match (event.name(), status) {
                    ("MIGRATION", "failed" | "cancelled") => bail!("the migration by hand {status}"),
                    ("MIGRATION", status) if status == wanted => return Ok(()),
                    _ => {}
                }
            }
            bail!("QEMU ended, and its migration was never {wanted}")
        };
        tokio::time::timeout(SOON, search).await.with_context(|| format!("never {wanted}"))?
    }
}
