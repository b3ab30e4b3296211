//! The handler's orders about a migration.

use std::collections::BTreeMap;
use std::time::Duration;

use barevirt_protocol::names::MigrationStream;
use barevirt_protocol::v1::migrate_request::Order;
use barevirt_protocol::v1::{
    MigrateRequest, MigrationAbort, MigrationGo, MigrationReceive, MigrationRejoin, MigrationResult,
    MigrationSend, MigrationSourceEnded,
};

use crate::migration::qemu::{Key, Transport};
use crate::migration::{Connections, DowntimeTuning, Limits, Location};
use crate::supervisor::MigrationOrder;

/// Longest UID of a migration, in bytes.
const LONGEST_UID: usize = 128;

/// Why an order is invalid.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum NoOrder {
    /// The UID is invalid.
    #[error("the migration has no valid UID")]
    Uid,
    /// The order is unknown in this version.
    #[error("an unknown order")]
    Unknown,
    /// The key is too short or too long.
    #[error("the key of a migration has 32 to 64 bytes")]
    Key,
}

/// Parses an order, and takes its connections.
///
/// # Errors
/// The fault.
pub fn read(request: MigrateRequest, connections: &Connections) -> Result<(String, MigrationOrder), NoOrder> {
    let MigrateRequest { uid, order } = request;
    if uid.is_empty() || uid.len() > LONGEST_UID || !uid.bytes().all(|byte| byte.is_ascii_graphic()) {
        return Err(NoOrder::Uid);
    }
    let transport = |key: Vec<u8>, compression: bool| -> Result<Option<Transport>, NoOrder> {
        let key = if key.is_empty() { None } else { Some(Key::new(key).ok_or(NoOrder::Key)?) };
        let mut all = connections.take_all(&uid);
        let Some(memory) = all.remove(&MigrationStream::Memory) else { return Ok(None) };
        let (mut channels, mut disks) = (Vec::new(), BTreeMap::new());
        for (stream, connection) in all {
            match stream {
                MigrationStream::Disk(name) => drop(disks.insert(name, connection)),
                MigrationStream::Channel(_) => channels.push(connection),
                MigrationStream::Memory => {}
            }
        }
        Ok(Some(Transport { memory, channels, compression, key, disks }))
    };
    let order = match order.ok_or(NoOrder::Unknown)? {
        Order::Receive(MigrationReceive { key, compression }) => {
            MigrationOrder::Receive { transport: transport(key, compression)? }
        }
        Order::Send(send) => {
            MigrationOrder::Send { limits: limits(&send), transport: transport(send.key, send.compression)? }
        }
        Order::Rejoin(MigrationRejoin {}) => {
            MigrationOrder::Rejoin { connection: connections.take_all(&uid).remove(&MigrationStream::Memory) }
        }
        Order::SourceEnded(MigrationSourceEnded {}) => MigrationOrder::SourceEnded,
        Order::Abort(MigrationAbort {}) => MigrationOrder::Abort,
        Order::Result(MigrationResult { went: true, .. }) => MigrationOrder::Result(Location::Target),
        Order::Result(MigrationResult { lost: true, .. }) => MigrationOrder::Result(Location::Nowhere),
        Order::Result(_) => MigrationOrder::Result(Location::Source),
        Order::Go(MigrationGo { hold }) => MigrationOrder::Go { hold },
    };
    Ok((uid, order))
}

fn limits(send: &MigrationSend) -> Limits {
    let seconds = |seconds: u64| (seconds > 0).then(|| Duration::from_secs(seconds));
    Limits {
        bandwidth: (send.bandwidth > 0).then_some(send.bandwidth),
        downtime: Duration::from_millis(send.downtime_ms),
        auto_converge: send.auto_converge,
        completion: seconds(send.completion_timeout_seconds),
        completion_per_gib: Duration::from_secs(send.completion_timeout_seconds_per_gib),
        progress: seconds(send.progress_timeout_seconds),
        may_pause: send.may_pause,
        post_copy: send.post_copy,
        tuning: send.downtime_tuning.as_ref().map(|tuning| DowntimeTuning {
            initial: Duration::from_millis(tuning.initial_ms),
            steps: tuning.steps,
            start_after: tuning.start_after_iteration,
            cooldown: Duration::from_secs(tuning.cooldown_seconds),
        }),
    }
}

#[cfg(test)]
mod tests {
    use barevirt_protocol::names::MigrationChannel;

    use super::*;

    #[test]
    fn an_invalid_migration_order_is_refused() {
        let read = |uid: &str, order| {
            let request = MigrateRequest { uid: uid.to_owned(), order };
            read(request, &Connections::default()).map(|(_, order)| order)
        };
        let go = Some(Order::Go(MigrationGo { hold: true }));
        assert!(matches!(read("m", go.clone()), Ok(MigrationOrder::Go { hold: true })));
        assert_eq!(read("", go.clone()).unwrap_err(), NoOrder::Uid);
        assert_eq!(read("a b", go).unwrap_err(), NoOrder::Uid);
        assert_eq!(read("m", None).unwrap_err(), NoOrder::Unknown);
        let short = Some(Order::Receive(MigrationReceive { key: vec![1; 31], compression: false }));
        assert_eq!(read("m", short).unwrap_err(), NoOrder::Key);
    }

    #[test]
    fn both_ends_compress_as_they_are_told() {
        let told = |order| {
            let connections = Connections::default();
            let channel = MigrationChannel { uid: "m".into(), stream: MigrationStream::Memory };
            connections.give(channel, vec![tempfile::tempfile().unwrap().into()]).unwrap();
            let request = MigrateRequest { uid: "m".to_owned(), order: Some(order) };
            match read(request, &connections).unwrap().1 {
                MigrationOrder::Receive { transport } | MigrationOrder::Send { transport, .. } => {
                    transport.unwrap().compression
                }
                _ => panic!("another order"),
            }
        };
        for compression in [true, false] {
            let receive = MigrationReceive { key: vec![], compression };
            let send = MigrationSend { compression, ..MigrationSend::default() };
            assert_eq!([told(Order::Receive(receive)), told(Order::Send(send))], [compression; 2]);
        }
    }

    #[test]
    fn a_connection_is_taken_once() {
        let connections = Connections::default();
        let streams = [MigrationStream::Memory, MigrationStream::Disk("root".into())];
        for stream in streams.into_iter().chain([2, 1].map(MigrationStream::Channel)) {
            let channel = MigrationChannel { uid: "m".into(), stream };
            connections.give(channel, vec![tempfile::tempfile().unwrap().into()]).unwrap();
        }
        let request = || MigrateRequest {
            uid: "m".into(),
            order: Some(Order::Send(MigrationSend { downtime_ms: 900, ..MigrationSend::default() })),
        };
        let taken = |order| match order {
            (_, MigrationOrder::Send { transport, limits }) => {
                assert_eq!((limits.downtime_ms(), limits.bytes_per_second()), (900, Limits::UNLIMITED));
                transport.is_some_and(|transport| {
                    assert_eq!((transport.channels.len(), transport.disks.len()), (2, 1));
                    true
                })
            }
            _ => false,
        };
        assert!(taken(read(request(), &connections).unwrap()));
        assert!(!taken(read(request(), &connections).unwrap()));
    }
}
