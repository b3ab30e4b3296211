//! QEMU's commands for a migration.

use std::io;
use std::os::fd::{AsFd as _, OwnedFd};
use std::path::Path;
use std::time::Duration;

use barevirt_qmp::qapi::Enum as _;
use barevirt_qmp::qapi::qmp::{
    self, MigrateSetParameters, MigrationCapability, MigrationCapabilityStatus, MigrationStatus,
    MultiFDCompression, QCryptoTLSCredsEndpoint, StrOrNull,
};
use barevirt_qmp::{Deadline, Error, Qmp};

pub use super::key::Key;

use super::channels;
use super::disks::{DiskConnections, LocalDisks, unless_refused};
use super::event::{Event, Progress, QemuState};
use super::key::{self, KEY};
use super::limits::{Limits, milliseconds};
use crate::process::Offered;

/// Time limit for a command of QEMU.
pub(super) const COMMAND: Duration = Duration::from_secs(10);
/// QEMU's name for the connection.
pub(super) const CONNECTION: &str = "migration";

/// The device that QEMU opens so that a guest can wait for missing memory. A pod has it if post-copy is allowed
/// and the node has the device.
pub const USERFAULTFD: &str = "/dev/userfaultfd";
/// The capability that lets a guest run before all of its memory is there.
const POST_COPY: MigrationCapability = MigrationCapability::postcopy_ram;

/// The connections and the key of a migration, which the handler provides.
#[derive(Debug)]
pub struct Transport {
    /// The connection between both QEMUs, or the first one.
    pub memory: OwnedFd,
    /// Further connections for memory, in the order of their numbers.
    pub channels: Vec<OwnedFd>,
    /// Whether memory on these is compressed.
    pub compression: bool,
    /// The key that both sides have; `None` means without encryption.
    pub key: Option<Key>,
    /// Connections of disks.
    pub disks: DiskConnections,
}

/// Why a migration cannot be started or cleaned up.
#[derive(Debug, thiserror::Error)]
pub enum NotBegun {
    /// QEMU refuses, or does not answer.
    #[error(transparent)]
    Monitor(#[from] Error),
    /// The key file cannot be written or removed.
    #[error("cannot write or remove the key of the migration: {0}")]
    Key(#[from] io::Error),
    /// A disk has no connection.
    #[error("disk {0} has no connection: virt-handler of one of the nodes may be of an older version")]
    NoConnection(String),
    /// A connection for a disk, for memory or a new one does not reach QEMU.
    #[error("cannot lead a connection to QEMU: {0}")]
    Connect(io::Error),
    /// A disk is not copied.
    #[error("{0}")]
    Copy(String),
    /// QEMU takes one connection for memory, and there are more.
    #[error("QEMU cannot be given several connections for memory here")]
    NoChannels,
}

/// QEMU's answer about a migration.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct QemuAnswer {
    /// Its state; `None` if it has not begun, or is between two states.
    pub state: Option<QemuState>,
    /// Figures.
    pub progress: Progress,
}

/// Makes QEMU receive a guest. If it comes over several connections, QEMU listens, the connections are offered to it, and this takes
/// until the source has written to each.
///
/// # Errors
/// If QEMU refuses, or the key cannot be written.
pub async fn receive(
    qmp: &Qmp,
    keys: &Path,
    disks: &LocalDisks,
    transport: Transport,
    offered: Option<&Offered>,
    socket: &Path,
) -> Result<(), NotBegun> {
    let Transport { memory, channels, compression, key, disks: connections } = transport;
    let (tls, number) = (key.is_some(), channels::number(&channels));
    let mut wanted = vec![(channels::CAPABILITY, number.is_some())];
    // QEMU may be prepared for post-copy, and has either.
    wanted.extend(number.map(|_| (POST_COPY, false)));
    set_capabilities(qmp, &wanted).await?;
    let parameters = channels::parameters(number, compression);
    prepare(qmp, keys, key, QCryptoTLSCredsEndpoint::server, parameters).await?;
    disks.export(qmp, connections, tls).await?;
    if number.is_none() {
        give(qmp, &memory).await?;
        return listen(qmp, uri()).await;
    }
    let door = offered.ok_or(NotBegun::NoChannels)?;
    door.open().map_err(NotBegun::Connect)?;
    let listens = listen(qmp, channels::uri(socket)).await;
    // Its socket has another in its place, to which the file does not lead.
    let _ = std::fs::remove_file(socket);
    listens.inspect_err(|_| door.close())?;
    channels::take_in(door, [memory].into_iter().chain(channels)).await.map_err(NotBegun::Connect)
}

async fn listen(qmp: &Qmp, uri: String) -> Result<(), NotBegun> {
    let from = qmp::migrate_incoming { channels: None, exit_on_error: None, uri: Some(uri) };
    qmp.execute(from, Deadline::after(COMMAND)).await?;
    Ok(())
}

/// Makes QEMU send its guest: its disks, if there are any to copy, else its memory. Returns which of them has begun. After
/// disks, [`send_memory`] sends the memory. Several connections for memory are offered to QEMU, which then connects by itself.
///
/// # Errors
/// If QEMU refuses, or the key cannot be written.
pub async fn send(
    qmp: &Qmp,
    keys: &Path,
    disks: &LocalDisks,
    transport: Transport,
    offered: Option<&Offered>,
    limits: Limits,
) -> Result<Event, NotBegun> {
    let Transport { memory, channels, compression, key, disks: connections } = transport;
    let (tls, number) = (key.is_some(), channels::number(&channels));
    let of_channels = channels::parameters(number, compression);
    let compresses = of_channels.multifd_compression == Some(MultiFDCompression::zstd);
    let parameters = MigrateSetParameters {
        max_bandwidth: Some(limits.bytes_per_second()),
        downtime_limit: Some(milliseconds(limits.first_downtime())),
        // QEMU requires a name for every kind of credentials, but does not check it for ours.
        tls_hostname: Some(StrOrNull::s("migration".to_owned())),
        max_postcopy_bandwidth: Some(limits.bytes_per_second()),
        ..of_channels
    };
    let wanted = [
        (MigrationCapability::auto_converge, limits.auto_converge),
        (POST_COPY, limits.post_copy),
        (channels::CAPABILITY, number.is_some()),
    ];
    set_capabilities(qmp, &wanted).await?;
    prepare(qmp, keys, key, QCryptoTLSCredsEndpoint::client, parameters).await?;
    if compresses {
        // KubeVirt's sentence.
        tracing::info!("Migration compression enabled: method=zstd");
    }
    match number {
        None => give(qmp, &memory).await?,
        Some(_) => offered.ok_or(NotBegun::NoChannels)?.put([memory].into_iter().chain(channels)),
    }
    if disks.all.is_empty() {
        send_memory(qmp, number.is_some()).await?;
        return Ok(Event::Begun);
    }
    let bytes = disks.copy(qmp, connections, tls, limits).await?;
    Ok(Event::Copies { bytes })
}

/// Makes QEMU send the guest's memory, over one connection or several.
///
/// # Errors
/// If QEMU refuses.
pub async fn send_memory(qmp: &Qmp, several: bool) -> Result<(), NotBegun> {
    let uri = if several { channels::OFFERED.to_owned() } else { uri() };
    let to = qmp::migrate { channels: None, detach: None, resume: None, uri: Some(uri) };
    qmp.execute(to, Deadline::after(COMMAND)).await?;
    Ok(())
}

/// The connection, as the argument of QEMU's commands.
pub(super) fn uri() -> String {
    format!("fd:{CONNECTION}")
}

async fn set_capabilities(qmp: &Qmp, wanted: &[(MigrationCapability, bool)]) -> Result<(), Error> {
    let status = |&(capability, state)| MigrationCapabilityStatus { capability, state };
    let set = qmp::migrate_set_capabilities { capabilities: wanted.iter().map(status).collect() };
    qmp.execute(set, Deadline::after(COMMAND)).await.map(drop)
}

/// Asks QEMU whether it can run a guest before all of its memory has arrived. If it can, this also prepares it.
pub async fn offers_post_copy(qmp: &Qmp) -> bool {
    if !Path::new(USERFAULTFD).exists() {
        return false;
    }
    match set_capabilities(qmp, &[(POST_COPY, true)]).await {
        Ok(()) => true,
        Err(error) => {
            tracing::warn!(%error, "post-copy is not possible here");
            false
        }
    }
}

/// Pauses the guest, and hands it over as soon as the device state is sent. The rest of the memory follows.
///
/// If the connection breaks after the last byte was written, QEMU 10.0 resumes a guest that ran until the switch, although
/// it runs on the target. So it must not run until the switch.
///
/// # Errors
/// When QEMU refuses.
pub async fn start_post_copy(qmp: &Qmp) -> Result<(), Error> {
    qmp.execute(qmp::stop {}, Deadline::after(COMMAND)).await?;
    qmp.execute(qmp::migrate_start_postcopy {}, Deadline::after(COMMAND)).await.map(drop)
}

/// Gives QEMU its only connection for memory.
async fn give(qmp: &Qmp, memory: &OwnedFd) -> Result<(), Error> {
    let name = qmp::getfd { fdname: CONNECTION.to_owned() };
    qmp.execute_with_fds(name, &[memory.as_fd()], Deadline::after(COMMAND)).await.map(drop)
}

async fn prepare(
    qmp: &Qmp,
    keys: &Path,
    key: Option<Key>,
    endpoint: QCryptoTLSCredsEndpoint,
    mut parameters: MigrateSetParameters,
) -> Result<(), NotBegun> {
    // The target's QEMU does not let the guest run by itself, and takes over no disk before the guest runs.
    let capabilities = [
        MigrationCapability::events,
        MigrationCapability::pause_before_switchover,
        MigrationCapability::return_path,
        MigrationCapability::late_block_activate,
    ];
    set_capabilities(qmp, &capabilities.map(|capability| (capability, true))).await?;
    // Removes the key of an earlier migration.
    forget_key(qmp).await?;
    let credentials = match key {
        None => "",
        Some(key) => {
            // The target only reads the file when the source connects.
            key::write(keys, &key)?;
            qmp.execute(key::credentials(keys, endpoint), Deadline::after(COMMAND)).await?;
            KEY
        }
    };
    parameters.tls_creds = Some(StrOrNull::s(credentials.to_owned()));
    qmp.execute(qmp::migrate_set_parameters(parameters), Deadline::after(COMMAND)).await?;
    Ok(())
}

async fn forget_key(qmp: &Qmp) -> Result<(), Error> {
    // QEMU refuses if the object does not exist.
    let delete = qmp::object_del { id: KEY.to_owned() };
    unless_refused(qmp.execute(delete, Deadline::after(COMMAND)).await)
}

/// Sends the rest of the guest.
///
/// # Errors
/// If QEMU refuses, or a disk is not identical on both sides.
pub async fn switch(qmp: &Qmp, disks: &LocalDisks) -> Result<(), NotBegun> {
    disks.finish(qmp).await?;
    let go_on = qmp::migrate_continue { state: MigrationStatus::pre_switchover };
    qmp.execute(go_on, Deadline::after(COMMAND)).await?;
    Ok(())
}

/// Allows another downtime, also while the migration is under way.
///
/// # Errors
/// If QEMU refuses, or does not answer.
pub async fn allow_downtime(qmp: &Qmp, downtime: Duration) -> Result<(), Error> {
    let parameters = MigrateSetParameters {
        downtime_limit: Some(milliseconds(downtime)),
        ..MigrateSetParameters::default()
    };
    qmp.execute(qmp::migrate_set_parameters(parameters), Deadline::after(COMMAND)).await.map(drop)
}

/// Cancels the migration.
///
/// # Errors
/// If QEMU does not answer.
pub async fn cancel(qmp: &Qmp) -> Result<(), Error> {
    qmp.execute(qmp::migrate_cancel {}, Deadline::after(COMMAND)).await.map(drop)
}

/// Undoes the preparations.
///
/// # Errors
/// If QEMU does not answer, or the key file cannot be removed.
pub async fn clean_up(qmp: &Qmp, keys: &Path, disks: &LocalDisks) -> Result<(), NotBegun> {
    disks.forget(qmp).await?;
    key::remove(keys)?;
    Ok(forget_key(qmp).await?)
}

/// Queries the migration.
///
/// # Errors
/// If QEMU does not answer.
pub async fn look(qmp: &Qmp) -> Result<QemuAnswer, Error> {
    Ok(understood(&qmp.execute(qmp::query_migrate {}, Deadline::after(COMMAND)).await?))
}

/// The meaning of QEMU's answer. Pure.
fn understood(answer: &qmp::MigrationInfo) -> QemuAnswer {
    let number = |value: i64| u64::try_from(value).unwrap_or_default();
    let time = |value: Option<i64>| Duration::from_millis(number(value.unwrap_or_default()));
    let why = answer.error_desc.as_deref().unwrap_or("QEMU gives no reason");
    let memory = answer.ram.as_ref().map(|ram| Progress {
        transferred: number(ram.transferred),
        remaining: number(ram.remaining),
        total: number(ram.total),
        rate: bytes_per_second(ram.mbps),
        dirty_rate: number(ram.dirty_pages_rate).saturating_mul(number(ram.page_size)),
        iteration: number(ram.dirty_sync_count),
        ..Progress::default()
    });
    QemuAnswer {
        state: answer.status.and_then(|status| state(status.name(), why)),
        progress: Progress {
            downtime: time(answer.downtime),
            expected_downtime: time(answer.expected_downtime),
            ..memory.unwrap_or_default()
        },
    }
}

/// Bytes per second from QEMU's megabits per second.
#[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "bounded before")]
fn bytes_per_second(mbps: f64) -> u64 {
    if mbps.is_finite() { (mbps.clamp(0.0, 1e9) * 125_000.0) as u64 } else { 0 }
}

/// The meaning of a migration status of QEMU. `why` is the reason of a failure.
#[must_use]
pub fn state(status: &str, why: &str) -> Option<QemuState> {
    Some(match status {
        "active" => QemuState::Active,
        "pre-switchover" => QemuState::PreSwitchover,
        "postcopy-active" => QemuState::PostCopy,
        "postcopy-paused" => QemuState::Broken,
        "completed" => QemuState::Completed,
        "failed" => QemuState::Failed(why.to_owned()),
        "cancelled" => QemuState::Cancelled,
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use barevirt_qmp::Options;
    use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader};
    use tokio::net::UnixStream;

    use super::*;
    use serde_json::{Value, json};

    const GREETING: &[u8] =
        b"{\"QMP\": {\"version\": {\"qemu\": {\"micro\": 0, \"minor\": 0, \"major\": 10}, \"package\": \"\"}, \"capabilities\": []}}\n";

    #[tokio::test]
    async fn a_guest_is_paused_before_its_switch_to_post_copy() {
        let (ours, theirs) = UnixStream::pair().unwrap();
        let monitor = async {
            let mut peer = BufReader::new(theirs);
            peer.write_all(GREETING).await.unwrap();
            let mut commands = Vec::new();
            while commands.last().is_none_or(|last| last != "migrate-start-postcopy") {
                let mut line = String::new();
                peer.read_line(&mut line).await.unwrap();
                let command: Value = serde_json::from_str(&line).unwrap();
                commands.push(command["execute"].as_str().unwrap().to_owned());
                let answer = json!({"return": {}, "id": command["id"]}).to_string();
                peer.write_all(format!("{answer}\n").as_bytes()).await.unwrap();
            }
            commands
        };
        let order = async {
            let opened = Qmp::open(ours, Options::default(), Deadline::after(COMMAND)).await;
            start_post_copy(&opened.unwrap().0).await.unwrap();
        };
        let (commands, ()) = tokio::join!(monitor, order);
        assert_eq!(commands, ["qmp_capabilities", "stop", "migrate-start-postcopy"]);
    }

    #[test]
    fn qemus_migration_answer_is_understood() {
        let understood = |answer: Value| understood(&serde_json::from_value(answer).unwrap());
        let seen = understood(json!({
            "status": "active", "total-time": 5, "downtime": 31, "expected-downtime": 300,
            "ram": {"transferred": 7, "remaining": 8, "total": 9, "mbps": 8.5, "dirty-pages-rate": 3, "page-size": 4096,
                "duplicate": 0, "normal": 0, "normal-bytes": 0, "dirty-sync-count": 1, "postcopy-requests": 0,
                "multifd-bytes": 0, "pages-per-second": 0, "precopy-bytes": 7, "downtime-bytes": 0,
                "postcopy-bytes": 0, "dirty-sync-missed-zero-copy": 0},
        }));
        assert_eq!(seen.state, Some(QemuState::Active));
        let expected = Progress {
            transferred: 7,
            remaining: 8,
            total: 9,
            downtime: Duration::from_millis(31),
            rate: 1_062_500,
            dirty_rate: 12_288,
            expected_downtime: Duration::from_millis(300),
            iteration: 1,
        };
        assert_eq!(seen.progress, expected);
        assert_eq!((bytes_per_second(f64::NAN), bytes_per_second(-1.0)), (0, 0));
        assert_eq!(understood(json!({})).state, None);
        let failed = understood(json!({"status": "failed", "error-desc": "reset"}));
        assert_eq!(failed.state, Some(QemuState::Failed("reset".into())));
    }
}
