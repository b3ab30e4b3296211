//! A session with a QEMU monitor.

use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::Arc;

use qapi::Command;
use qapi::qmp::QmpCommand;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use tokio::net::UnixStream;

use crate::codec::encode;
use crate::connection::{Connection, Dialect, Options, Request};
use crate::deadline::Deadline;
use crate::error::Error;
use crate::event::Events;
use crate::message::{Band, Greeting, arguments, command, read, read_list};

/// A session with a QEMU monitor. It is cheap to clone and can be used from any task.
#[derive(Debug, Clone)]
pub struct Qmp {
    connection: Connection,
    greeting: Arc<Greeting>,
    oob: bool,
}

impl Qmp {
    /// Opens the session: waits for the greeting and negotiates, with out-of-band execution if it is offered.
    /// The listener receives every event of the stream, even one before the greeting.
    ///
    /// # Errors
    /// If the monitor does not send a greeting and an answer in time, or ends the stream.
    pub async fn open(
        stream: UnixStream,
        options: Options,
        deadline: Deadline,
    ) -> Result<(Self, Events), Error> {
        const STEP: &str = "the greeting";
        let (connection, events, greeted) = Connection::start(stream, Dialect::Monitor, options);
        let greeting = match tokio::time::timeout_at(deadline.instant(), greeted).await {
            Ok(Ok(greeting)) => greeting,
            Ok(Err(_)) => return Err(connection.closed_error(STEP)),
            Err(_) => return Err(Error::Deadline { command: STEP.to_owned() }),
        };
        let oob = greeting.offers_oob();
        let qmp = Self { connection, greeting: Arc::new(greeting), oob };
        let enable = if oob { json!({"enable": ["oob"]}) } else { Value::Null };
        qmp.execute_raw("qmp_capabilities", enable, deadline).await?;
        Ok((qmp, events))
    }

    /// The monitor's greeting.
    #[must_use]
    pub fn greeting(&self) -> &Greeting {
        &self.greeting
    }

    /// Whether commands may be executed out of band.
    #[must_use]
    pub fn has_oob(&self) -> bool {
        self.oob
    }

    /// A listener for the events from now on. Make it before the command whose event is awaited.
    #[must_use]
    pub fn events(&self) -> Events {
        self.connection.events()
    }

    /// Waits for the end of the stream.
    pub async fn ended(&self) {
        self.connection.ended().await;
    }

    /// Executes a command in order with others.
    ///
    /// # Errors
    /// See [`Error`]; after [`Error::Deadline`] the command may still be executed.
    pub async fn execute<C: QmpCommand>(&self, command: C, deadline: Deadline) -> Result<C::Ok, Error> {
        self.typed(command, Band::In, &[], deadline).await
    }

    /// Executes a command that answers with a list. Entries that do not fit the schema are left out.
    ///
    /// # Errors
    /// As [`Qmp::execute`].
    pub async fn execute_list<C, T>(&self, command: C, deadline: Deadline) -> Result<Vec<T>, Error>
    where
        C: QmpCommand + Command<Ok = Vec<T>>,
        T: DeserializeOwned,
    {
        let answer = self.ask(C::NAME, &arguments(&command)?, Band::In, Vec::new(), deadline).await?;
        read_list(C::NAME, answer)
    }

    /// Executes a command out of band. Few commands of QEMU allow this.
    ///
    /// # Errors
    /// [`Error::NoOutOfBand`] if the monitor does not offer it, and as [`Qmp::execute`].
    pub async fn execute_oob<C: QmpCommand>(&self, command: C, deadline: Deadline) -> Result<C::Ok, Error> {
        self.typed(command, Band::Out, &[], deadline).await
    }

    /// Executes a command with descriptors sent along in the same call, e.g. `getfd` and `add-fd`. They are
    /// duplicated, so the caller may close its own at once.
    ///
    /// # Errors
    /// As [`Qmp::execute`].
    pub async fn execute_with_fds<C: QmpCommand>(
        &self,
        command: C,
        fds: &[BorrowedFd<'_>],
        deadline: Deadline,
    ) -> Result<C::Ok, Error> {
        self.typed(command, Band::In, fds, deadline).await
    }

    /// Executes a command by its name, for commands that the `qapi` crate does not have, and for users.
    ///
    /// # Errors
    /// As [`Qmp::execute`].
    pub async fn execute_raw(
        &self,
        name: &str,
        arguments: Value,
        deadline: Deadline,
    ) -> Result<Value, Error> {
        self.ask(name, &arguments, Band::In, Vec::new(), deadline).await
    }

    /// Executes a command by its name, out of band.
    ///
    /// # Errors
    /// As [`Qmp::execute_oob`].
    pub async fn execute_raw_oob(
        &self,
        name: &str,
        arguments: Value,
        deadline: Deadline,
    ) -> Result<Value, Error> {
        self.ask(name, &arguments, Band::Out, Vec::new(), deadline).await
    }

    async fn typed<C: QmpCommand>(
        &self,
        command: C,
        band: Band,
        fds: &[BorrowedFd<'_>],
        deadline: Deadline,
    ) -> Result<C::Ok, Error> {
        let name = C::NAME;
        let arguments = arguments(&command)?;
        let owned = fds
            .iter()
            .map(BorrowedFd::try_clone_to_owned)
            .collect::<io::Result<Vec<OwnedFd>>>()
            .map_err(|source| Error::Stream { command: name.to_owned(), source })?;
        let answer = self.ask(name, &arguments, band, owned, deadline).await?;
        read(name, answer)
    }

    async fn ask(
        &self,
        name: &str,
        arguments: &Value,
        band: Band,
        fds: Vec<OwnedFd>,
        deadline: Deadline,
    ) -> Result<Value, Error> {
        if band == Band::Out && !self.oob {
            return Err(Error::NoOutOfBand { command: name.to_owned() });
        }
        let line = |id| encode(&command(name, arguments.clone(), id, band));
        self.connection.ask(Request { name, line: &line, fds, only: None }, deadline).await
    }
}
