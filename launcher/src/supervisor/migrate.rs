//! Migrations: the handler's orders, and the commands to QEMU for them.

use std::os::fd::OwnedFd;
use std::time::Duration;

use barevirt_qmp::qapi::qmp;
use barevirt_qmp::{Deadline, Error, Qmp};
use futures::future::abortable;

use super::{COMMAND, NotDone, Outcome, Reply, Supervisor};
use crate::lifecycle::{Event, Order, judge_order};
use crate::migration::disks::Copied;
use crate::migration::limits::QEMUS_DOWNTIME;
use crate::migration::qemu::{self, QemuAnswer, Transport};
use crate::migration::{self, Effect, Limits, Location, Moving, QemuState, host_cards, rejoin, yank};
use crate::process::{Offered, Process};

/// An order from the handler about a migration.
#[derive(Debug)]
pub enum MigrationOrder {
    /// Send the guest. A repeated order has no connection.
    Send {
        /// Connection and key.
        transport: Option<Transport>,
        /// Its limits.
        limits: Limits,
    },
    /// Receive the guest.
    Receive {
        /// Connection and key.
        transport: Option<Transport>,
    },
    /// Give up.
    Abort,
    /// Continue post-copy over a new connection. A repeated order has no connection.
    Rejoin {
        /// The connection.
        connection: Option<OwnedFd>,
    },
    /// The source's pod runs nothing any more.
    SourceEnded,
    /// The location of the guest.
    Result(Location),
    /// Let the guest run.
    Go {
        /// Whether it stays paused.
        hold: bool,
    },
}

impl MigrationOrder {
    const fn kind(&self) -> Order {
        match self {
            Self::Send { .. } => Order::Send,
            Self::Receive { .. } => Order::Receive,
            Self::Abort => Order::Abort,
            Self::Result(_) => Order::Result,
            Self::Rejoin { .. } => Order::Rejoin,
            Self::SourceEnded => Order::SourceEnded,
            Self::Go { .. } => Order::Go,
        }
    }
}

impl Supervisor<'_> {
    pub(super) fn ordered(&mut self, uid: String, order: MigrationOrder, reply: Reply) {
        let outcome = self.order(uid, order);
        // This fails if the requester is gone.
        let _ = reply.send(outcome);
    }

    fn order(&mut self, uid: String, order: MigrationOrder) -> Result<(), NotDone> {
        if !judge_order(&self.vm, &uid, order.kind())? {
            return Ok(());
        }
        tracing::info!(uid, ?order, "migration");
        let event = match order {
            MigrationOrder::Send { transport, limits } => {
                self.transport = Some(transport.ok_or(NotDone::NotConnected)?);
                migration::Event::Send { uid, limits }
            }
            MigrationOrder::Receive { transport } => {
                self.transport = Some(transport.ok_or(NotDone::NotConnected)?);
                migration::Event::Receive
            }
            MigrationOrder::Rejoin { connection } => {
                let connection = connection.ok_or(NotDone::NotConnected)?;
                self.give_up_connection();
                self.rejoined = Some(connection);
                migration::Event::Rejoin
            }
            MigrationOrder::SourceEnded => migration::Event::SourceEnded,
            MigrationOrder::Abort => migration::Event::Abort,
            MigrationOrder::Result(location) => migration::Event::Result(location),
            MigrationOrder::Go { hold } => migration::Event::Go { hold },
        };
        self.happened(Event::Migration(event));
        Ok(())
    }

    pub(super) fn migrate(&mut self, effect: Effect) {
        let Some(qmp) = self.qmp.clone() else { return };
        match effect {
            Effect::Send => {
                let (Some(transport), Moving::Goes(source)) = (self.transport.take(), &self.vm.moving) else {
                    return;
                };
                self.disks = self.copyable.outgoing(&transport.disks);
                self.withdraw();
                let offered = self.offered();
                let (limits, keys, disks) = (source.limits, self.keys.clone(), self.disks.clone());
                let cards = self.host_cards.clone();
                if limits.tuning.is_some() {
                    tracing::info!("downtime tuning enabled");
                    tell_downtime(QEMUS_DOWNTIME, limits.first_downtime());
                }
                if let Some(giving) = self.giving.take() {
                    giving.abort();
                }
                self.beside(async move {
                    if let Err(error) = host_cards::take(&qmp, &cards).await {
                        return begun(Err(error));
                    }
                    match qemu::send(&qmp, &keys, &disks, transport, offered.as_ref(), limits).await {
                        Ok(event) => vec![event],
                        Err(error) => begun(Err(error)),
                    }
                });
            }
            Effect::SendMemory => {
                let several = self.offered().is_some_and(|offered| !offered.is_empty());
                self.beside(async move {
                    has_begun(qemu::send_memory(&qmp, several).await, migration::Event::Begun)
                });
            }
            Effect::LookAtDisks => {
                let disks = self.disks.clone();
                self.beside(async move {
                    match disks.look(&qmp).await {
                        Ok(Copied { remaining, total, done }) => {
                            vec![migration::Event::Copied { remaining, total, done }]
                        }
                        Err(error) => begun(Err(error)),
                    }
                });
            }
            Effect::Receive => {
                let Some(transport) = self.transport.take() else { return };
                self.disks = self.copyable.incoming(&transport.disks);
                let (keys, disks) = (self.keys.clone(), self.disks.clone());
                let (offered, socket) = (self.offered(), self.copyable.memory_socket());
                self.beside(async move {
                    begun(qemu::receive(&qmp, &keys, &disks, transport, offered.as_ref(), &socket).await)
                });
            }
            Effect::Look => self.look_at_migration(),
            Effect::Switch => {
                let disks = self.disks.clone();
                self.beside(async move { begun(qemu::switch(&qmp, &disks).await) });
            }
            Effect::AllowDowntime { from, to } => {
                tell_downtime(from, to);
                self.beside(async move {
                    needless(qemu::allow_downtime(&qmp, to).await, "migrate-set-parameters")
                });
            }
            Effect::Cancel => {
                self.beside(async move { needless(yank::cancel(&qmp).await, "migrate_cancel") });
            }
            Effect::CleanUp => {
                let (keys, disks) = (self.keys.clone(), self.disks.clone());
                self.withdraw();
                if matches!(self.vm.moving, Moving::Goes(_)) {
                    // A guest that stays has its cards again.
                    self.give_cards(qmp.clone());
                    self.beside(
                        async move { needless(yank::clean_up(&qmp, &keys, &disks).await, "object-del") },
                    );
                } else {
                    self.beside(
                        async move { needless(qemu::clean_up(&qmp, &keys, &disks).await, "object-del") },
                    );
                }
            }
            Effect::GiveCards => self.give_cards(qmp),
            Effect::Probe => {
                self.probing = true;
                self.work.push(Box::pin(async move { Outcome::Probed(qemu::offers_post_copy(&qmp).await) }));
            }
            Effect::PostCopy => self.beside(async move { begun(qemu::start_post_copy(&qmp).await) }),
            Effect::ReleaseDisks => {
                let disks = self.disks.clone();
                self.beside(async move { needless(disks.forget(&qmp).await, "nbd-server-stop") });
            }
            Effect::BreakOff => {
                tracing::warn!("nothing comes over the connection of the migration, so it is given up");
                self.give_up_connection();
                self.beside(async move { needless(rejoin::break_off(&qmp).await, "migrate-pause") });
            }
            Effect::Rejoin => self.rejoin(qmp),
            Effect::Pause => self.beside(async move {
                let stopped = qmp.execute(qmp::stop {}, Deadline::after(COMMAND)).await;
                needless(stopped.map(drop), "stop")
            }),
        }
    }

    /// QEMU has answered whether the guest may run here before all of its memory has arrived.
    pub(super) fn probed(&mut self, offers: bool) -> Event {
        self.probing = false;
        Event::Migration(migration::Event::Offers(offers))
    }

    /// Where connections are offered to QEMU, if it can get them in that way.
    fn offered(&self) -> Option<Offered> {
        self.process.as_ref().and_then(Process::offered).cloned()
    }

    /// Takes the connections back that QEMU has not taken.
    fn withdraw(&self) {
        if let Some(offered) = self.offered() {
            offered.put([]);
            offered.close();
        }
    }

    fn give_cards(&mut self, qmp: Qmp) {
        let cards = self.host_cards.clone();
        let (work, giving) =
            abortable(async move { needless(host_cards::give(&qmp, &cards).await, "device_add") });
        self.giving = Some(giving);
        self.beside(async move { work.await.unwrap_or_default() });
    }

    /// Gives QEMU the new connection. A copy is kept, with which the connection can be ended.
    fn rejoin(&mut self, qmp: Qmp) {
        let copy = self.rejoined.as_ref().map(OwnedFd::try_clone);
        let Some(Ok(connection)) = copy else {
            tracing::warn!("there is no new connection, or no descriptor is left");
            return;
        };
        if matches!(self.vm.moving, Moving::Goes(_)) {
            self.beside(async move {
                has_begun(rejoin::resume(&qmp, connection).await, migration::Event::Rejoined)
            });
        } else {
            let socket = self.copyable.recovery_socket();
            self.beside(async move {
                needless(rejoin::recover(&qmp, &socket, connection).await, "migrate-recover")
            });
        }
    }

    /// Ends the connection that replaced another one. The first connection belongs to QEMU alone.
    fn give_up_connection(&mut self) {
        if let Some(connection) = self.rejoined.take() {
            rejoin::close(&connection);
        }
    }

    /// Queries the migration: the answer with the figures also shows what a gap in the events may have
    /// hidden.
    pub(super) fn look_at_migration(&mut self) {
        let Some(qmp) = self.qmp.clone() else { return };
        self.beside(look(qmp));
    }

    /// The meaning of a `MIGRATION` event. A failure contains its reason.
    pub(super) fn migration_state(&mut self, status: &str) -> Option<Event> {
        tracing::info!(status, "migration");
        match qemu::state(status, "")? {
            QemuState::Broken => {
                tracing::warn!("the connection broke in post-copy: the guest waits for a new one");
                Some(Event::Migration(migration::Event::QemuState(QemuState::Broken)))
            }
            QemuState::Failed(_) => {
                self.look_at_migration();
                None
            }
            state @ (QemuState::Active
            | QemuState::PreSwitchover
            | QemuState::PostCopy
            | QemuState::Completed
            | QemuState::Cancelled) => Some(Event::Migration(migration::Event::QemuState(state))),
        }
    }

    fn beside(&mut self, work: impl Future<Output = Vec<migration::Event>> + 'static) {
        self.work.push(Box::pin(async move {
            Outcome::Happened(work.await.into_iter().map(Event::Migration).collect())
        }));
    }
}

/// In KubeVirt's words, which its tests look for in the log.
fn tell_downtime(from: Duration, to: Duration) {
    tracing::info!("downtime tuning: max_downtime {}ms -> {}ms", from.as_millis(), to.as_millis());
}

async fn look(qmp: Qmp) -> Vec<migration::Event> {
    match qemu::look(&qmp).await {
        Ok(QemuAnswer { state, progress }) => {
            let state = state.map(migration::Event::QemuState);
            [migration::Event::Progress(progress)].into_iter().chain(state).collect()
        }
        Err(error) => needless::<Error>(Err(error), "query-migrate"),
    }
}

fn has_begun<E: std::error::Error + IsClosed>(
    outcome: Result<(), E>,
    event: migration::Event,
) -> Vec<migration::Event> {
    let event = outcome.is_ok().then_some(event);
    event.into_iter().chain(begun(outcome)).collect()
}

/// The end of the stream means the end of QEMU, which its exit reports.
fn begun<E: std::error::Error + IsClosed>(outcome: Result<(), E>) -> Vec<migration::Event> {
    match outcome {
        Ok(()) => vec![],
        Err(error) if error.is_closed() => vec![],
        Err(error) => {
            tracing::warn!(%error, "the migration cannot go on");
            vec![migration::Event::CannotGoOn(error.to_string())]
        }
    }
}

fn needless<E: std::error::Error + IsClosed>(
    outcome: Result<(), E>,
    name: &'static str,
) -> Vec<migration::Event> {
    if let Err(error) = outcome.as_ref()
        && !error.is_closed()
    {
        tracing::warn!(%error, name, "command failed");
    }
    vec![]
}

/// Errors that may mean the end of QEMU.
trait IsClosed {
    fn is_closed(&self) -> bool;
}

impl IsClosed for Error {
    fn is_closed(&self) -> bool {
        Self::is_closed(self)
    }
}

impl IsClosed for host_cards::HostCardError {
    fn is_closed(&self) -> bool {
        matches!(self, Self::Monitor(error) if error.is_closed())
    }
}

impl IsClosed for qemu::NotBegun {
    fn is_closed(&self) -> bool {
        matches!(self, Self::Monitor(error) if error.is_closed())
    }
}
