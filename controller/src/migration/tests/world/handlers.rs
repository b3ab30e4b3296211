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

    /// A handler reports a failure; the target's may know that the guest never ran there.
    pub(super) fn writes_failure(&mut self, never_ran: bool) {
        let now = text(self.now);
        self.handler(|vmi| {
            let state = &mut vmi["status"]["migrationState"];
            if never_ran {
                state["targetState"]["domainDetected"] = json!(false);
            }
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
                let ours = state.migration_uid.as_ref() == Some(&flight.migration);
                if ours && state.start_timestamp.is_none() && self.is_ready(&flight.from) {
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
                if self.alive.contains(&flight.from) && self.is_ready(&flight.from) && ours {
                    self.writes_failure(false);
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
                    self.writes_failure(false);
                }
            }
            Event::TargetArrives => {
                let Some(flight) = &mut self.flight else { return };
                if flight.sent && !flight.arrived && self.alive.contains(&flight.to) {
                    flight.arrived = true;
                    let to = flight.to.clone();
                    self.runs_at(&to);
                }
            }
            Event::TargetReports => {
                let (Some((state, _)), Some(flight)) = (open, self.flight.clone()) else { return };
                let named = self.vmi.as_ref().is_some_and(|vmi| {
                    vmi.status.as_ref().is_some_and(|status| status.active_pods.contains_key(&flight.to))
                });
                // A guest that has ended since has arrived as well.
                let ended = self.reported.contains(&flight.to) && self.ran.contains(&flight.to);
                if state.migration_uid.as_ref() == Some(&flight.migration)
                    && (self.running.contains(&flight.to) || ended)
                    && self.is_ready(&flight.to)
                    && named
                {
                    let now = text(self.now);
                    let node = self.places[&flight.to].clone();
                    self.handler(|vmi| {
                        vmi["status"]["nodeName"] = json!(node);
                        let state = &mut vmi["status"]["migrationState"];
                        (state["completed"], state["endTimestamp"]) = (json!(true), json!(now));
                        state["targetState"]["domainDetected"] = json!(true);
                    });
                    self.flight = None;
                }
            }
            Event::TargetFails => {
                let Some((_, Some(uid))) = open else { return };
                let never_ran = !self.ran.contains(&uid);
                if self.reported.contains(&uid) && never_ran && self.is_ready(&uid) {
                    self.writes_failure(true);
                }
            }
            Event::SourceReads => self.source_reads(),
            _ => {}
        }
    }

    /// A source that has sent everything reads the result.
    fn source_reads(&mut self) {
        let Some(flight) = self.flight.clone().filter(|flight| flight.sent) else { return };
        let Some(state) = self.record() else { return };
        if !self.alive.contains(&flight.from) || !self.is_ready(&flight.from) {
            return;
        }
        let ours = state.migration_uid.as_ref() == Some(&flight.migration);
        let owner = self.vmi.as_ref().and_then(|vmi| vmi.status.as_ref()?.node_name.clone());
        // Where another migration has the record and the guest is still here, its own has failed.
        let failed =
            if ours { state.failed == Some(true) } else { owner.as_ref() == self.places.get(&flight.from) };
        if !failed {
            return;
        }
        let never_ran = ours && state.target_state.and_then(|own| own.domain_detected) == Some(false);
        let ends = !self.alive.contains(&flight.to) || self.missing.contains_key(&flight.to);
        assert!(ends, "the target may still run the guest: {flight:?}");
        if never_ran {
            let ran = self.ran.contains(&flight.to);
            assert!(!ran, "the source's memory is older than its disks: {flight:?}");
            self.runs_at(&flight.from);
        } else {
            (self.lost, self.given_up) = (true, true);
            self.dies(&flight.from);
        }
        self.flight = None;
    }
}
