//! What holds at any time, and what holds once nothing happens any more.

use super::*;

impl World {
    pub(super) fn check(&self) {
        assert!(self.running.len() <= 1, "two guests: {:?}", self.running);
        if let Some(vmi) = &self.vmi {
            let status = vmi.status.as_ref().unwrap();
            let phase = status.phase.as_deref().unwrap();
            let ended = ["Failed", "Succeeded"].contains(&phase);
            // A forced deletion of a guest's pod ends the instance at once, as without migrations.
            let mut runs = self.running.iter().filter(|uid| !self.missing.contains_key(*uid));
            let why = &status.reason;
            assert!(!ended || runs.next().is_none(), "{phase} {why:?}, and {:?} runs", self.running);
            for uid in &self.running {
                assert!(
                    ended || status.active_pods.contains_key(uid),
                    "{uid} not in {:?}",
                    status.active_pods
                );
            }
            // Everything is sent: the target may run the guest at any moment.
            if let Some(flight) =
                self.flight.as_ref().filter(|flight| flight.sent && self.alive.contains(&flight.to))
            {
                assert!(status.active_pods.contains_key(&flight.to) || ended, "{flight:?} {status:?}");
            }
        }
        self.check_settings();
        let living = |pod: &&Pod| {
            pod.metadata.deletion_timestamp.is_none() && crate::vmi::InstanceEnd::of(pod).is_none()
        };
        let count = self.pods.values().filter(living).count();
        assert!(count <= 2, "{count} pods");
    }

    /// A guest that could go on goes on.
    fn check_nothing_is_lost_in_vain(&self) {
        let status = self.vmi.as_ref().and_then(|vmi| vmi.status.as_ref());
        let fine = self.vmi.is_none() || !self.running.is_empty() || self.lost;
        assert!(fine, "no guest, and nothing has ended it: {status:?}");
    }

    /// The handlers have the settings that the target pod was made with.
    fn check_settings(&self) {
        let Some((state, _)) = self.open() else { return };
        let pod = state.target_pod.as_ref().and_then(|name| self.pods.get(name));
        let Some(made) = pod.and_then(|pod| pod.annotations().get(POST_COPY)) else { return };
        let told = state.migration_configuration.and_then(|told| told.allow_post_copy);
        assert_eq!(
            told.map(|told| told.to_string()).as_ref(),
            Some(made),
            "post-copy of the record and the pod"
        );
    }

    /// All components act correctly until nothing changes.
    pub(super) fn settle(&mut self) {
        self.lacks = false;
        for node in NODES {
            if !self.node(node).is_known_dead() {
                self.nodes.insert(node, NodeState::Ready);
            }
        }
        for _ in 0..70 {
            if self.unrest().is_none() {
                self.check_nothing_is_lost_in_vain();
                return;
            }
            for event in [
                Event::PodStarts,
                Event::PodsSay,
                Event::TargetPrepares,
                Event::SourceBegins,
                Event::SourceStarts,
                Event::SourceSends,
                Event::TargetArrives,
                Event::TargetReports,
                Event::TargetFails,
                Event::SourceReads,
                Event::TargetRefuses,
            ] {
                self.step(&event);
                self.check();
            }
            // A launcher whose guest's transfer breaks off ends.
            if let Some((_, Some(uid))) = self.open() {
                let broken = self.flight.as_ref().is_some_and(|flight| {
                    flight.to == uid && !flight.sent && !self.alive.contains(&flight.from)
                });
                if broken {
                    self.ends(&uid);
                }
            }
            // A source whose target is gone or whose migration is over aborts an incomplete transfer.
            let hopeless = self.flight.as_ref().is_some_and(|flight| {
                let over = self
                    .open()
                    .is_none_or(|(state, _)| state.migration_uid.as_ref() != Some(&flight.migration));
                !self.alive.contains(&flight.to) || !self.alive.contains(&flight.from) || over
            });
            if hopeless {
                self.step(&Event::SourceGivesUp);
            }
            for event in [Event::PodsSay, Event::PodRemoved, Event::Wait] {
                self.step(&event);
                self.check();
            }
            let mut all: Vec<String> = self.vmims.keys().cloned().collect();
            all.iter().for_each(|name| self.watch(name));
            self.reconcile_vmi(0);
            self.check();
            self.remember();
            for name in all.drain(..) {
                self.reconcile_migration(&name, 0);
                self.check();
                self.remember();
            }
        }
        panic!("{}", self.unrest().unwrap());
    }

    /// Anything that is wrong at the end.
    pub(super) fn unrest(&self) -> Option<String> {
        for (name, one) in &self.vmims {
            let phase = Phase::of(one).unwrap();
            if !phase.is_final() || !one.finalizers().is_empty() {
                let state = self.record().map(|state| serde_json::to_value(state).unwrap());
                return Some(format!("{name} {phase:?}: {state:?}, {:?}", self.flight));
            }
        }
        let Some(vmi) = &self.vmi else {
            let left: Vec<&String> = self.pods.keys().collect();
            return (!left.is_empty() || !self.running.is_empty()).then(|| format!("left: {left:?}"));
        };
        let status = vmi.status.as_ref().unwrap();
        if self.running.is_empty() {
            return (status.phase.as_deref() == Some("Running")).then(|| format!("no guest: {status:?}"));
        }
        let Some(launcher) = self.pods.get(&launcher_name(vmi)).and_then(Pod::uid) else {
            return Some("no launcher".to_owned());
        };
        let active: Vec<&String> = status.active_pods.keys().collect();
        // The ended pod that the last migration left without the guest may stay as its record.
        let record = self
            .record()
            .and_then(|state| if state.failed == Some(true) { state.target_pod } else { state.source_pod });
        let stays = |(name, pod): (&String, &Pod)| {
            let is_record = record.as_ref() == Some(name) && InstanceEnd::of(pod).is_some();
            pod.uid().as_ref() == Some(&launcher) || is_record
        };
        let fine = self.running == BTreeSet::from([launcher.clone()])
            && active == [&launcher]
            && self.pods.iter().all(stays)
            && status.node_name.as_ref() == self.places.get(&launcher)
            && !vmi.labels().contains_key("kubevirt.io/migrationTargetNodeName");
        (!fine).then(|| format!("{:?} runs, {status:?}", self.running))
    }
}
