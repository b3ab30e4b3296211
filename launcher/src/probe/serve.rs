//! The launcher's side of probes.

use std::cell::Cell;
use std::io;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use barevirt_qmp::Agent;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::{Semaphore, watch};
use tokio::time::{Instant, sleep, timeout};

use super::command::Begun;
use super::{Answer, LONGEST_LINE, MOST, Question};
use crate::guest_agent::{Facts, ping};
use crate::migration::MigrationReport;
use crate::status::{Stage, Status};

/// Longest time limit of a probe, whatever it requests.
const LONGEST: Duration = Duration::from_secs(3600);
/// How long a client may take to send its question, and to receive its answer.
const TALK: Duration = Duration::from_secs(5);

/// State that the answers need.
#[derive(Debug, Clone)]
pub struct Guest {
    /// Its agent.
    pub agent: Agent,
    /// The VM's status.
    pub status: watch::Receiver<Status>,
    /// Facts from its agent.
    pub facts: watch::Receiver<Option<Facts>>,
    /// Whether pings succeed without asking the agent, for maintenance of the guest.
    pub pings_paused: watch::Receiver<bool>,
    /// How often pings have started to fail.
    pub failed_pings: watch::Sender<u64>,
}

/// Whether the last ping failed: only the first of several failures in a row is reported.
#[derive(Debug, Default)]
struct Failing(Cell<bool>);

impl Failing {
    fn note(&self, failed: bool, count: &watch::Sender<u64>) {
        let failed_before = self.0.replace(failed);
        if failed && !failed_before {
            count.send_modify(|count| *count += 1);
        }
    }
}

/// State that all probes share.
#[derive(Debug, Default)]
struct Shared {
    begun: Begun,
    failing: Failing,
}

/// Answers probes for as long as the launcher runs. Must run within a `LocalSet`.
pub async fn serve(listener: UnixListener, guest: Guest) {
    let seats = Arc::new(Semaphore::new(MOST));
    let shared = Rc::new(Shared::default());
    loop {
        let stream = match listener.accept().await {
            Ok((stream, _)) => stream,
            Err(error) => {
                tracing::warn!(%error, "cannot accept a probe");
                sleep(Duration::from_millis(200)).await;
                continue;
            }
        };
        // Too many at once: the connection is closed, so the probe fails, like that of a guest that answers
        // too slowly.
        let Ok(seat) = seats.clone().try_acquire_owned() else { continue };
        let (guest, shared) = (guest.clone(), shared.clone());
        tokio::task::spawn_local(async move {
            if let Err(error) = converse(stream, &guest, &shared).await {
                tracing::debug!(%error, "a probe has disconnected");
            }
            drop(seat);
        });
    }
}

async fn converse(stream: UnixStream, guest: &Guest, shared: &Shared) -> io::Result<()> {
    let late = |_| io::Error::from(io::ErrorKind::TimedOut);
    let (reader, mut writer) = stream.into_split();
    let mut line = Vec::new();
    let mut reader = BufReader::new(reader.take(LONGEST_LINE as u64));
    timeout(TALK, reader.read_until(b'\n', &mut line)).await.map_err(late)??;
    let answer = match serde_json::from_slice(&line) {
        Ok(question) => answer(question, guest, shared).await,
        Err(error) => Answer::failure(format!("not a request: {error}")),
    };
    let mut line = serde_json::to_vec(&answer)?;
    line.push(b'\n');
    timeout(TALK, writer.write_all(&line)).await.map_err(late)?
}

async fn answer(question: Question, guest: &Guest, shared: &Shared) -> Answer {
    let pings = question.command.is_empty();
    if pings && *guest.pings_paused.borrow() {
        return Answer::success();
    }
    let runs = {
        let status = guest.status.borrow();
        status.stage == Stage::Running && !stands_still(&status)
    };
    let answer = of_guest(question, guest, &shared.begun).await;
    if pings && runs {
        shared.failing.note(answer.code != 0, &guest.failed_pings);
    }
    answer
}

/// Whether the guest stands still because it moves to another node, or comes from there.
fn stands_still(status: &Status) -> bool {
    status.migration.as_ref().is_some_and(MigrationReport::stands_still)
}

async fn of_guest(question: Question, guest: &Guest, begun: &Begun) -> Answer {
    let Question { command, timeout_ms, alive } = question;
    let within = Duration::from_millis(timeout_ms).min(LONGEST);
    let (connected, stage, moves) = {
        let status = guest.status.borrow();
        (status.agent_connected, status.stage, stands_still(&status))
    };
    // The pod has to stay: the target's would take the migration with it, and the source's the guest, whose memory is there.
    if alive && moves {
        return Answer::success();
    }
    match stage {
        // It has not begun to run: the pod's end would not make it run sooner.
        Stage::Waiting | Stage::Starting if alive => return Answer::success(),
        // A user paused it, or its storage does not answer. Ending the guest would help in neither case.
        Stage::Paused if alive => return Answer::success(),
        Stage::Paused => return Answer::failure("the guest is paused"),
        Stage::Running if !connected => return Answer::failure("the guest agent is not connected"),
        Stage::Running => {}
        Stage::Waiting | Stage::Starting | Stage::Stopping | Stage::Succeeded | Stage::Failed => {
            return Answer::failure("the guest does not run");
        }
    }
    // An agent that keeps file systems frozen runs no commands, although the guest is well.
    let frozen = guest.facts.borrow().as_ref().is_some_and(|facts| facts.frozen);
    if command.is_empty() || frozen {
        return match ping(&guest.agent, within).await {
            Ok(()) => Answer::success(),
            Err(error) => Answer::failure(format!("the guest agent does not answer: {error}")),
        };
    }
    begun.run(&guest.agent, &command, Instant::now() + within).await
}
