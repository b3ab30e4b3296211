//! Handlers and launchers of both nodes, and the guest that they transfer.

use super::*;

/// The guest during its transfer.
#[derive(Clone, Debug)]
pub(super) struct Flight {
    pub(super) migration: String,
    pub(super) from: String,
    pub(super) to: String,
    pub(super) sent: bool,
    pub(super) arrived: bool,
}

impl World {
    pub(super) fn record(&self) -> Option<barevirt_api::v1::VirtualMachineInstanceMigrationState> {
        self.vmi.as_ref()?.status.as_ref()?.migration_state.clone()
    }

    /// The record of an unfinished migration, and the UID of its target.
    pub(super) fn open(
        &self,
    ) -> Option<(barevirt_api::v1::VirtualMachineInstanceMigrationState, Option<String>)> {
        let state = self.record().filter(|state| !is_over(state))?;
        let pod = self.pods.get(state.target_pod.as_deref()?);
        let active = self.vmi.as_ref()?.status.as_ref()?.active_pods.clone();
        let uid = pod.and_then(Pod::uid).filter(|uid| active.contains_key(uid));
        Some((state, uid))
    }

    pub(super) fn writes_failure(&mut self) {
        let now = text(self.now);
        self.handler(|vmi| {
            let state = &mut vmi["status"]["migrationState"];
            (state["failed"], state["completed"], state["endTimestamp"]) =
                (json!(true), json!(true), json!(now));
        });
    }

    pub(super) fn handlers(&mut self, event: &Event) {
        let open = self.open();
        match event {
            Event::TargetPrepares => {
                let Some((state, Some(uid))) = open else { return };
                if state.target_node_address.is_none() && self.alive.contains(&uid) && self.is_ready(&uid) {
                    self.handler(|vmi| {
                        vmi["status"]["migrationState"]["targetNodeAddress"] = json!("10.0.0.9");
                    });
                }
            }
            Event::SourceBegins => {
                let Some((state, Some(to))) = open else { return };
                let source = self.pods.get(state.source_pod.as_deref().unwrap_or_default());
                let Some(from) = source.and_then(Pod::uid).filter(|uid| self.running.contains(uid)) else {
                    return;
                };
                if state.target_node_address.is_some()
                    && state.abort_requested != Some(true)
                    && self.flight.is_none()
                    && self.is_ready(&from)
                {
                    let migration = state.migration_uid.unwrap();
                    self.flight = Some(Flight { migration, from, to, sent: false, arrived: false });
                }
            }
            Event::SourceStarts => {
                let (Some((state, _)), Some(flight)) = (open, &self.flight) else { return };
                if state.migration_uid.as_ref() == Some(&flight.migration) && state.start_timestamp.is_none()
                {
                    let now = text(self.now);
                    self.handler(|vmi| vmi["status"]["migrationState"]["startTimestamp"] = json!(now));
                }
            }
            Event::SourceSends => {
                let Some(mut flight) = self.flight.clone().filter(|flight| !flight.sent) else { return };
                // A source reads that its record has ended before everything is sent.
                let ours =
                    open.is_some_and(|(state, _)| state.migration_uid.as_ref() == Some(&flight.migration));
                if ours
                    && self.running.contains(&flight.from)
                    && self.alive.contains(&flight.to)
                    && self.is_ready(&flight.to)
                {
                    self.running.remove(&flight.from);
                    flight.sent = true;
                    self.flight = Some(flight);
                }
            }
            Event::SourceGivesUp => {
                let Some(flight) = self.flight.clone().filter(|flight| !flight.sent) else { return };
                let ours =
                    open.is_some_and(|(state, _)| state.migration_uid.as_ref() == Some(&flight.migration));
                if self.alive.contains(&flight.from) && ours {
                    self.writes_failure();
                }
                self.flight = None;
            }
            // The guest has not arrived, and the target accepts it no more.
            Event::TargetRefuses => {
                let Some((state, Some(uid))) = open else { return };
                if self.flight.is_none()
                    && state.abort_requested == Some(true)
                    && self.alive.contains(&uid)
                    && self.is_ready(&uid)
                {
                    self.writes_failure();
                }
            }
            Event::TargetArrives => {
                let Some(flight) = &mut self.flight else { return };
                if flight.sent && !flight.arrived && self.alive.contains(&flight.to) {
                    flight.arrived = true;
                    let to = flight.to.clone();
                    self.running.insert(to);
                }
            }
            Event::TargetReports => {
                let (Some((state, _)), Some(flight)) = (open, self.flight.clone()) else { return };
                let named = self.vmi.as_ref().is_some_and(|vmi| {
                    vmi.status.as_ref().is_some_and(|status| status.active_pods.contains_key(&flight.to))
                });
                if state.migration_uid.as_ref() == Some(&flight.migration)
                    && self.running.contains(&flight.to)
                    && self.is_ready(&flight.to)
                    && named
                {
                    let now = text(self.now);
                    let node = self.places[&flight.to].clone();
                    self.handler(|vmi| {
                        vmi["status"]["nodeName"] = json!(node);
                        let state = &mut vmi["status"]["migrationState"];
                        (state["completed"], state["endTimestamp"]) = (json!(true), json!(now));
                    });
                    self.flight = None;
                }
            }
            Event::TargetFails => {
                let Some((_, Some(uid))) = open else { return };
                if self.started.contains(&uid) && !self.alive.contains(&uid) && self.is_ready(&uid) {
                    self.writes_failure();
                }
            }
            Event::SourceReads => {
                let Some(flight) = self.flight.clone().filter(|flight| flight.sent) else { return };
                let state = self.record();
                let failed = state.is_some_and(|state| {
                    state.migration_uid.as_ref() == Some(&flight.migration) && state.failed == Some(true)
                });
                if failed && self.alive.contains(&flight.from) {
                    self.running.insert(flight.from);
                    self.flight = None;
                }
            }
            _ => {}
        }
    }
}
