//! Guests that migrate to this launcher or away from it.

use std::time::Duration;

use barevirt_api::v1::{VirtualMachineInstance, VirtualMachineInstanceMigrationState};
use barevirt_component::certificates::Client;
use barevirt_component::error::chain;
use barevirt_protocol::names::{MigrationChannel, MigrationStream};
use barevirt_protocol::v1::migrate_request::Order;
use barevirt_protocol::v1::{
    MigrateRequest, MigrationAbort, MigrationGo, MigrationRejoin, MigrationResult, MigrationSourceEnded,
    MigrationStatus,
};
use kube::runtime::events::Event;
use tokio::time::{Instant, timeout};
use tracing::info;

use super::{REPORT_TIMEOUT, Session, StepError, revision, valid};
use crate::migration;
use crate::migration::arrivals::{Arrival, Arrivals};
use crate::migration::call::{Begun, Streams, Target};
use crate::migration::compression::{wants_compression, why_not};
use crate::migration::limits::{Offered, limits, wants_post_copy};
use crate::migration::plan::Move;
use crate::status::events;
use crate::sync::launcher_report::LauncherReport;

/// Most attempts to start a migration.
const TRIES: u32 = 8;

impl Session {
    /// Tells the launcher that the guest arrives by a migration, and admits it.
    pub async fn await_guest(
        &mut self,
        vmi: &VirtualMachineInstance,
        spec_hash: &str,
        uid: &str,
        arrivals: &Arrivals,
    ) -> Result<(), StepError> {
        let state = vmi.status.as_ref().and_then(|status| status.migration_state.as_ref());
        let source = state.and_then(|state| state.source_node.clone()).unwrap_or_default();
        let settings = state.and_then(|state| state.migration_configuration.as_ref());
        let plain = settings.and_then(|settings| settings.disable_tls).unwrap_or_default();
        self.send_sync(vmi, spec_hash, uid.to_owned()).await?;
        let arrival = Arrival { source, launcher: self.launcher.clone(), plain, report: self.report.clone() };
        self.awaits = Some((uid.to_owned(), arrivals.await_one(uid.to_owned(), arrival)));
        Ok(())
    }

    /// How long the guest of that migration has waited for its source, since this was asked first.
    pub fn waited(&mut self, uid: &str) -> Duration {
        match &self.waits {
            Some((of, since)) if of == uid => since.elapsed(),
            Some(_) | None => {
                self.waits = Some((uid.to_owned(), Instant::now()));
                Duration::ZERO
            }
        }
    }

    /// Tells a launcher to give up a guest of which not everything has arrived.
    pub async fn abandon(&self, uid: &str) -> Result<(), StepError> {
        let order = Some(Order::Abort(MigrationAbort {}));
        self.launcher.migrate(MigrateRequest { uid: uid.to_owned(), order }).await?;
        self.wait_until_reported(uid, |told| told.is_none_or(|told| told.aborted)).await;
        Ok(())
    }

    /// Waits for a short time until the launcher reports this about the migration: until then the plan would repeat
    /// the step.
    async fn wait_until_reported(&self, uid: &str, wanted: impl Fn(Option<&MigrationStatus>) -> bool) {
        let tells = |report: &LauncherReport| {
            let told = report.status.as_ref().and_then(|status| migration::plan::reported(status, uid));
            report.lost || wanted(told)
        };
        let _ = timeout(REPORT_TIMEOUT, self.report.clone().wait_for(tells)).await;
    }

    /// Lets a guest run whose source has ended without letting it run.
    pub async fn claim(&self, uid: &str, hold: bool) -> Result<(), StepError> {
        let order = Some(Order::Go(MigrationGo { hold }));
        Ok(self.launcher.migrate(MigrateRequest { uid: uid.to_owned(), order }).await?)
    }

    /// Tells a launcher that waits for the rest of its guest's memory that the source has ended.
    pub async fn source_ended(&self, uid: &str) -> Result<(), StepError> {
        let order = Some(Order::SourceEnded(MigrationSourceEnded {}));
        Ok(self.launcher.migrate(MigrateRequest { uid: uid.to_owned(), order }).await?)
    }

    /// Whether a guest is expected by that migration.
    pub fn awaits(&self, uid: &str) -> bool {
        self.awaits.as_ref().is_some_and(|(awaited, _)| awaited == uid)
    }

    /// Why a migration cannot be started, after some attempts.
    pub fn refused(&self, uid: &str) -> Option<&str> {
        let (of, times, why) = self.refused.as_ref()?;
        (of == uid && *times >= TRIES).then_some(why.as_str())
    }

    /// A step of a guest that leaves. Returns the events to publish.
    pub async fn make_move(
        &mut self,
        vmi: &VirtualMachineInstance,
        step: Move,
        own: &Client,
    ) -> Result<Vec<Event>, StepError> {
        let order = |uid: String, order: Order| MigrateRequest { uid, order: Some(order) };
        match step {
            Move::Send { uid } => {
                let sent = self.send(vmi, &uid, own).await;
                if let Err(error) = &sent {
                    let times = match &self.refused {
                        Some((of, times, _)) if *of == uid => times.saturating_add(1),
                        Some(_) | None => 1,
                    };
                    self.refused = Some((uid, times, chain(error)));
                }
                sent
            }
            Move::Abort { uid } => {
                self.launcher.migrate(order(uid, Order::Abort(MigrationAbort {}))).await?;
                Ok(vec![])
            }
            Move::Rejoin { uid } => {
                self.rejoin(vmi, &uid, own).await?;
                Ok(vec![])
            }
            Move::Result { uid, went, lost } => {
                let result = Order::Result(MigrationResult { went, lost });
                self.launcher.migrate(order(uid, result)).await?;
                Ok(vec![])
            }
            Move::Go { uid, hold } => {
                target(vmi).go(own, &uid, hold).await?;
                self.gone = Some(uid);
                Ok(vec![])
            }
        }
    }

    async fn rejoin(&self, vmi: &VirtualMachineInstance, uid: &str, own: &Client) -> Result<(), StepError> {
        let connection = target(vmi).rejoin(own, uid).await?;
        let channel = MigrationChannel { uid: uid.to_owned(), stream: MigrationStream::Memory };
        self.launcher.give(revision(vmi), &[(channel.descriptor(), connection)]).await?;
        let order = Some(Order::Rejoin(MigrationRejoin {}));
        self.launcher.migrate(MigrateRequest { uid: uid.to_owned(), order }).await?;
        self.wait_until_reported(uid, |told| !told.is_some_and(migration::plan::awaits_connection)).await;
        Ok(())
    }

    async fn send(
        &self,
        vmi: &VirtualMachineInstance,
        uid: &str,
        own: &Client,
    ) -> Result<Vec<Event>, StepError> {
        let state = vmi.status.as_ref().and_then(|status| status.migration_state.as_ref());
        let settings = state.and_then(|state| state.migration_configuration.clone()).unwrap_or_default();
        let report = self.report().status.unwrap_or_default();
        let disks = migration::plan::copied(vmi, &report).map_err(StepError::NotCopied)?;
        let target = target(vmi);
        let images = migration::plan::images(&report);
        let channels = migration::plan::leaving_channels(vmi, &settings, &report);
        let (disks, images, post_copy) = (disks.as_slice(), images.as_slice(), wants_post_copy(&settings));
        let compression = wants_compression(&settings) && report.compresses_memory;
        let streams = Streams { disks, images, channels, post_copy, compression };
        let Begun { connections, key, post_copy, compression } = target.begin(own, uid, streams).await?;
        if wants_compression(&settings) && !compression {
            let why = why_not(&report, channels, post_copy && wants_post_copy(&settings));
            info!(migration = uid, why, "memory is not compressed");
        }
        let named = connections.into_iter().map(|(stream, connection)| {
            (MigrationChannel { uid: uid.to_owned(), stream }.descriptor(), connection)
        });
        self.launcher.give(revision(vmi), &named.collect::<Vec<_>>()).await?;
        let offered = Offered { post_copy, compression };
        let mut send = limits(&settings, valid(vmi)?.guest_memory(), offered);
        send.key = key.map(Vec::from).unwrap_or_default();
        let request = MigrateRequest { uid: uid.to_owned(), order: Some(Order::Send(send)) };
        self.launcher.migrate(request).await?;
        self.wait_until_reported(uid, |told| told.is_some()).await;
        let without = wants_post_copy(&settings) && !post_copy;
        Ok(without.then(|| events::no_post_copy(&target.node)).into_iter().collect())
    }
}

/// The handler of the node to which the guest migrates.
fn target(vmi: &VirtualMachineInstance) -> Target {
    let state = vmi.status.as_ref().and_then(|status| status.migration_state.as_ref());
    let of = |read: fn(&VirtualMachineInstanceMigrationState) -> &Option<String>| {
        state.and_then(|state| read(state).clone()).unwrap_or_default()
    };
    Target { node: of(|state| &state.target_node), address: of(|state| &state.target_node_address) }
}
