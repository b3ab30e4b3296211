//! Ends a migration that is given up, although QEMU's main loop does not answer.
//!
//! QEMU writes the guest's device state, and waits for the rest of a disk's copy, while it holds the lock that its main loop
//! needs. If the connection carries nothing then, or so little that the kernel sees no silence, QEMU does not carry out
//! `migrate_cancel`. It takes `yank` out of band: that ends the connections, so the write fails, and the main loop goes on.

use std::path::Path;

use barevirt_qmp::qapi::qmp::{self, YankInstance};
use barevirt_qmp::{Deadline, Error, Qmp};

use super::disks::{LocalDisks, unless_refused};
use super::qemu::{self, COMMAND, NotBegun};

/// Cancels the migration. If QEMU does not answer, its connections are ended.
///
/// # Errors
/// If QEMU refuses, or does not answer out of band either.
pub async fn cancel(qmp: &Qmp) -> Result<(), Error> {
    cancelled(qmp, qemu::cancel(qmp).await).await
}

/// What follows the answer to `migrate_cancel`. QEMU carries the command out later, if anything is left to cancel.
async fn cancelled(qmp: &Qmp, answer: Result<(), Error>) -> Result<(), Error> {
    match answer {
        Err(error @ Error::Deadline { .. }) => end_connections(qmp, &error).await,
        answer => answer,
    }
}

/// Undoes the preparations of a source. If QEMU does not answer, its connections are ended first.
///
/// # Errors
/// If QEMU does not answer after that either, or the key file cannot be removed.
pub async fn clean_up(qmp: &Qmp, keys: &Path, disks: &LocalDisks) -> Result<(), NotBegun> {
    match qemu::clean_up(qmp, keys, disks).await {
        Err(NotBegun::Monitor(error @ Error::Deadline { .. })) => {
            end_connections(qmp, &error).await?;
            qemu::clean_up(qmp, keys, disks).await
        }
        done => done,
    }
}

async fn end_connections(qmp: &Qmp, error: &Error) -> Result<(), Error> {
    let by = Deadline::after(COMMAND);
    let ended = of_migration(qmp.execute_oob(qmp::query_yank {}, by).await?);
    tracing::warn!(%error, ?ended, "QEMU does not answer, so the connections of the migration are ended");
    for instance in ended {
        // One by one, because QEMU ends none if one of them does not exist any more.
        let end = qmp::yank { instances: vec![instance] };
        unless_refused(qmp.execute_oob(end, by).await)?;
    }
    Ok(())
}

/// The connections of the migration, out of all that QEMU can end: those of memory and of the disks' copies. Only copies
/// are block nodes with connections, and some of these nodes have names that QEMU made. The monitors and the guest's serial
/// ports are chardevs.
fn of_migration(registered: Vec<YankInstance>) -> Vec<YankInstance> {
    let ends = |instance: &YankInstance| match instance {
        YankInstance::migration | YankInstance::block_node(_) => true,
        YankInstance::chardev(_) => false,
    };
    registered.into_iter().filter(ends).collect()
}

#[cfg(test)]
mod tests {
    use barevirt_qmp::Options;
    use serde_json::{Value, json};
    use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader};
    use tokio::net::UnixStream;

    use super::*;

    const GREETING: &[u8] =
        b"{\"QMP\": {\"version\": {\"qemu\": {\"micro\": 0, \"minor\": 0, \"major\": 10}, \"package\": \"\"}, \"capabilities\": [\"oob\"]}}\n";

    /// What QEMU is asked after this answer to `migrate_cancel`, and whether that is still an error. One connection ends by
    /// itself before QEMU is told to end it.
    async fn asked_after(answer: Result<(), Error>) -> (Vec<Value>, bool) {
        let (ours, theirs) = UnixStream::pair().unwrap();
        let monitor = async {
            let mut peer = BufReader::new(theirs);
            peer.write_all(GREETING).await.unwrap();
            let mut asked = Vec::new();
            let mut line = String::new();
            while peer.read_line(&mut line).await.unwrap() > 0 {
                let mut command: Value = serde_json::from_str(&line).unwrap();
                line.clear();
                let id = command["id"].take();
                let answer = if command["exec-oob"] == "query-yank" {
                    json!({"id": id, "return": [{"type": "chardev", "id": "control"}, {"type": "block-node", "node-name": "#block123"},
                        {"type": "migration"}]})
                } else if command["arguments"]["instances"][0]["type"] == "block-node" {
                    json!({"id": id, "error": {"class": "DeviceNotFound", "desc": "Instance not found"}})
                } else {
                    json!({"id": id, "return": {}})
                };
                peer.write_all(format!("{answer}\n").as_bytes()).await.unwrap();
                asked.push(command);
            }
            asked
        };
        let order = async {
            let (qmp, _events) = Qmp::open(ours, Options::default(), Deadline::after(COMMAND)).await.unwrap();
            cancelled(&qmp, answer).await.is_err()
        };
        let (asked, failed) = tokio::join!(monitor, order);
        (asked.into_iter().filter(|command| !command["exec-oob"].is_null()).collect(), failed)
    }

    #[tokio::test]
    async fn the_connections_of_a_migration_end_where_qemu_does_not_answer_its_cancellation() {
        let command = || "migrate_cancel".to_owned();
        let (asked, failed) = asked_after(Err(Error::Deadline { command: command() })).await;
        let said = asked.iter().map(|command| (&command["exec-oob"], &command["arguments"]["instances"]));
        let [nodes, memory] =
            [json!([{"type": "block-node", "node-name": "#block123"}]), json!([{"type": "migration"}])];
        let [query, yank] = [json!("query-yank"), json!("yank")];
        let expected = [(&query, &Value::Null), (&yank, &nodes), (&yank, &memory)];
        assert_eq!(said.collect::<Vec<_>>(), expected);
        assert!(!failed);

        let (class, desc) = (String::new(), String::new());
        let (asked, failed) = asked_after(Err(Error::Refused { command: command(), class, desc })).await;
        assert!(asked.is_empty() && failed);
        let (asked, failed) = asked_after(Ok(())).await;
        assert!(asked.is_empty() && !failed);
    }
}
