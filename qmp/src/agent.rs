//! A session with the guest agent.
//!
//! The agent sends no greeting, may be absent, may be restarted at any time, and shares its channel with
//! earlier clients. So only one command is in flight at a time. Before the first command, and after every
//! wait that ended without an answer, the session is synchronized: [`FLUSH`] discards half a line in the
//! agent, `guest-sync-delimited` with a number of our own makes the agent answer with this number after a
//! flush byte, and everything before that answer is dropped.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};

use qapi::Command;
use qapi::qga::QgaCommand;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use tokio::net::UnixStream;
use tokio::sync::Mutex;

use crate::codec::{FLUSH, encode};
use crate::connection::{Connection, Dialect, Options, Request};
use crate::deadline::Deadline;
use crate::error::Error;
use crate::message::{Band, arguments, command, read, read_list};

/// A session with the guest agent. It is cheap to clone and can be used from any task; commands take turns.
#[derive(Debug, Clone)]
pub struct Agent {
    connection: Connection,
    turn: Arc<Mutex<Turn>>,
    tokens: Arc<AtomicI64>,
}

#[derive(Debug)]
struct Turn {
    /// Whether the agent is known to have no old answers left to send.
    synced: bool,
}

impl Agent {
    /// A session on this stream. Nothing is sent before the first command.
    #[must_use]
    pub fn new(stream: UnixStream, options: Options) -> Self {
        let (connection, _, _) = Connection::start(stream, Dialect::Agent, options);
        // The number only has to differ from those that an earlier session on this channel used.
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let first = i64::from(now.subsec_nanos()) << 20;
        Self {
            connection,
            turn: Arc::new(Mutex::new(Turn { synced: false })),
            tokens: Arc::new(AtomicI64::new(first)),
        }
    }

    /// Waits for the end of the stream.
    pub async fn ended(&self) {
        self.connection.ended().await;
    }

    /// Executes a command.
    ///
    /// # Errors
    /// See [`Error`]. Commands without an answer on success (`guest-shutdown`) end at their deadline.
    pub async fn execute<C: QgaCommand>(&self, command: C, deadline: Deadline) -> Result<C::Ok, Error> {
        let answer = self.execute_raw(C::NAME, arguments(&command)?, deadline).await?;
        read(C::NAME, answer)
    }

    /// Executes a command that answers with a list. Entries that do not fit the schema are left out.
    ///
    /// # Errors
    /// As [`Agent::execute`].
    pub async fn execute_list<C, T>(&self, command: C, deadline: Deadline) -> Result<Vec<T>, Error>
    where
        C: QgaCommand + Command<Ok = Vec<T>>,
        T: DeserializeOwned,
    {
        let answer = self.execute_raw(C::NAME, arguments(&command)?, deadline).await?;
        read_list(C::NAME, answer)
    }

    /// Executes a command by its name.
    ///
    /// # Errors
    /// As [`Agent::execute`].
    pub async fn execute_raw(
        &self,
        name: &str,
        arguments: Value,
        deadline: Deadline,
    ) -> Result<Value, Error> {
        let late = |_| Error::Deadline { command: name.to_owned() };
        let mut turn = tokio::time::timeout_at(deadline.instant(), self.turn.lock()).await.map_err(late)?;
        if !turn.synced {
            self.sync(deadline).await?;
        }
        // Until the answer arrives the session counts as out of step, even if this future is dropped.
        turn.synced = false;
        let line = |id| encode(&command(name, arguments.clone(), id, Band::In));
        let answer =
            self.connection.ask(Request { name, line: &line, fds: Vec::new(), only: None }, deadline).await;
        turn.synced = matches!(answer, Ok(_) | Err(Error::Refused { .. }));
        answer
    }

    async fn sync(&self, deadline: Deadline) -> Result<(), Error> {
        const NAME: &str = "guest-sync-delimited";
        let token = Value::from(self.tokens.fetch_add(1, Ordering::Relaxed));
        let line = |id| {
            let mut line = vec![FLUSH];
            line.extend(encode(&command(NAME, json!({"id": token}), id, Band::In)));
            line
        };
        let request = Request { name: NAME, line: &line, fds: Vec::new(), only: Some(token.clone()) };
        self.connection.ask(request, deadline).await.map(drop)
    }
}
