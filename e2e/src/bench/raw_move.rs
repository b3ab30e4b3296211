//! The same migration by hand: two QEMUs, with the commands that launchers send.

use super::migrate::{CHANNELS, DOWNTIME, KEY, Serial, Trip, gap};
use super::pod::SOON;
use super::processor;
use super::raw::{Control, Raw};
use crate::command::repository;
use crate::running::Running;
use anyhow::{Context, Result, bail};
use barevirt_qmp::qapi::Enum as _;
use barevirt_qmp::qapi::qmp::{
    self, MigrateSetParameters, MigrationCapability, MigrationCapabilityStatus, MigrationStatus,
    QCryptoTLSCredsEndpoint, QmpCommand, StrOrNull,
};
use barevirt_qmp::{Deadline, Events, Options, Qmp};
use serde_json::json;
use std::fmt::Write;
use std::fs;
use std::net::TcpListener;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::Stdio;
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// The group that the launcher uses for the key exchange.
const GROUP: &str = "launcher/src/migration/ffdhe2048.pem";
/// The value that launchers use for no limit.
const UNLIMITED: u64 = 1 << 50;
const CAPABILITIES: [MigrationCapability; 4] = [
    MigrationCapability::events,
    MigrationCapability::pause_before_switchover,
    MigrationCapability::return_path,
    MigrationCapability::late_block_activate,
];
/// QEMU's name for the object with the key.
const KEY_OBJECT: &str = "migration-key";
/// QEMU's name for the connection; also the source's name in the key file.
const CONNECTION: &str = "migration";

/// A guest that moved, and the processor time that each QEMU used for it, without that of the guest's processors.
pub(super) struct Moved {
    pub(super) trip: Trip,
    pub(super) at_source: Duration,
    pub(super) at_target: Duration,
}

/// The way from one QEMU to the other.
enum Way {
    /// Over these ends of a connection, the source's first.
    Ends(OwnedFd, OwnedFd),
    /// Over connections that QEMU makes: the first one, and so many more for memory.
    Channels(u8),
}

/// Moves the guest from the source to the target, over as many connections as launchers have, encrypted by QEMU.
pub(super) async fn go(source: &Raw, target: &Raw) -> Result<Trip> {
    let keys = keys()?;
    Ok(go_by(source, target, Way::Channels(CHANNELS), Some(keys.path())).await?.trip)
}

/// A folder with the key for both QEMUs.
pub(super) fn keys() -> Result<TempDir> {
    let keys = tempfile::tempdir()?;
    let mut line = format!("{CONNECTION}:");
    for byte in KEY {
        write!(line, "{byte:02x}")?;
    }
    fs::write(keys.path().join("keys.psk"), format!("{line}\n"))?;
    fs::copy(repository().join(GROUP), keys.path().join("dh-params.pem"))?;
    Ok(keys)
}

/// Moves the guest over these ends of a connection, the source's first. Without keys QEMU encrypts nothing.
pub(super) async fn go_over(
    source: &Raw,
    target: &Raw,
    (ours, theirs): (OwnedFd, OwnedFd),
    keys: Option<&Path>,
) -> Result<Moved> {
    go_by(source, target, Way::Ends(ours, theirs), keys).await
}

async fn go_by(source: &Raw, target: &Raw, way: Way, keys: Option<&Path>) -> Result<Moved> {
    let (uri, ours, theirs, multifd_channels) = match way {
        Way::Ends(ours, theirs) => (format!("fd:{CONNECTION}"), Some(ours), Some(theirs), None),
        // QEMU listens at an address that was free.
        Way::Channels(number) => {
            let address = TcpListener::bind("127.0.0.1:0")?.local_addr()?;
            (format!("tcp:{address}"), None, None, Some(number))
        }
    };
    let uri = Some(uri);
    let (mut source, mut target) = (Qemu::start(source).await?, Qemu::start(target).await?);
    source.execute(qmp::cont {}).await?;
    source.serial.filled().await?;
    let parameters = MigrateSetParameters {
        max_bandwidth: Some(UNLIMITED),
        downtime_limit: Some(u64::try_from(DOWNTIME.as_millis())?),
        tls_hostname: keys.map(|_| StrOrNull::s(CONNECTION.to_owned())),
        multifd_channels,
        ..MigrateSetParameters::default()
    };
    let of_target = MigrateSetParameters { multifd_channels, ..MigrateSetParameters::default() };
    target.prepare(keys, QCryptoTLSCredsEndpoint::server, of_target, theirs).await?;
    target.execute(qmp::migrate_incoming { channels: None, exit_on_error: None, uri: uri.clone() }).await?;
    let (source_before, target_before) = (source.used().await?, target.used().await?);
    // An order to a launcher includes these commands.
    let begun = Instant::now();
    source.prepare(keys, QCryptoTLSCredsEndpoint::client, parameters, ours).await?;
    source.execute(qmp::migrate { channels: None, detach: None, resume: None, uri }).await?;
    let sent = async {
        source.migration(MigrationStatus::pre_switchover).await?;
        source.execute(qmp::migrate_continue { state: MigrationStatus::pre_switchover }).await?;
        source.migration(MigrationStatus::completed).await?;
        anyhow::Ok(begun.elapsed())
    };
    let arrived = async {
        target.migration(MigrationStatus::completed).await?;
        target.execute(qmp::cont {}).await?;
        anyhow::Ok(())
    };
    let (sent, ()) = tokio::try_join!(sent, arrived)?;
    let at_source = source.used().await?.saturating_sub(source_before);
    let at_target = target.used().await?.saturating_sub(target_before);
    let trip = Trip { sent, silent: gap(&source.serial, &target.serial).await? };
    Ok(Moved { trip, at_source, at_target })
}

struct Qemu {
    qmp: Qmp,
    events: Events,
    serial: Serial,
    running: Running,
    _others: Vec<UnixStream>,
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
        Ok(Self { qmp, events, serial, running, _others: others })
    }

    async fn execute(&self, command: impl QmpCommand) -> Result<()> {
        self.qmp.execute(command, Deadline::after(SOON)).await?;
        Ok(())
    }

    /// Processor time so far, without that of the guest's processors.
    async fn used(&self) -> Result<Duration> {
        let cpus = self.qmp.execute_raw("query-cpus-fast", json!({}), Deadline::after(SOON)).await?;
        let pid = self.running.id();
        let mut used = processor::used(&pid.to_string())?;
        for cpu in cpus.as_array().context("QEMU lists no processors")? {
            let thread = cpu["thread-id"].as_u64().context("a processor of the guest without a thread")?;
            used = used.saturating_sub(processor::used(&format!("{pid}/task/{thread}"))?);
        }
        Ok(used)
    }

    async fn prepare(
        &self,
        keys: Option<&Path>,
        endpoint: QCryptoTLSCredsEndpoint,
        mut parameters: MigrateSetParameters,
        connection: Option<OwnedFd>,
    ) -> Result<()> {
        let enabled = |capability| MigrationCapabilityStatus { capability, state: true };
        let several = parameters.multifd_channels.map(|_| MigrationCapability::multifd);
        let capabilities = CAPABILITIES.into_iter().chain(several).map(enabled).collect();
        self.execute(qmp::migrate_set_capabilities { capabilities }).await?;
        if let Some(keys) = keys {
            let mut credentials = qmp::TlsCredsPskProperties::from(qmp::TlsCredsProperties {
                dir: Some(keys.display().to_string()),
                endpoint: Some(endpoint),
                // The launcher's: ChaCha20 would be compared with AES otherwise.
                priority: Some("NORMAL:-CHACHA20-POLY1305".to_owned()),
                verify_peer: None,
            });
            credentials.username =
                (endpoint == QCryptoTLSCredsEndpoint::client).then(|| CONNECTION.to_owned());
            self.execute(qmp::object_add((credentials, KEY_OBJECT.to_owned()).into())).await?;
            parameters.tls_creds = Some(StrOrNull::s(KEY_OBJECT.to_owned()));
        }
        self.execute(qmp::migrate_set_parameters(parameters)).await?;
        if let Some(connection) = connection {
            let name = qmp::getfd { fdname: CONNECTION.to_owned() };
            self.qmp.execute_with_fds(name, &[connection.as_fd()], Deadline::after(SOON)).await?;
        }
        Ok(())
    }

    /// Waits until QEMU's migration has that status.
    async fn migration(&mut self, wanted: MigrationStatus) -> Result<()> {
        let search = async {
            while let Some(event) = self.events.next().await {
                match event?.read::<qmp::MIGRATION>().map(|event| event.status) {
                    Some(status @ (MigrationStatus::failed | MigrationStatus::cancelled)) => {
                        bail!("the migration by hand {}", status.name())
                    }
                    Some(status) if status == wanted => return Ok(()),
                    _ => {}
                }
            }
            bail!("QEMU ended, and its migration was never {}", wanted.name())
        };
        tokio::time::timeout(SOON, search).await.with_context(|| format!("never {}", wanted.name()))?
    }
}
