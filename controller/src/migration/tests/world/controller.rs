//! virt-controller: its reconcilers for the instance and for migrations, with what they saw at some time.

use super::*;

impl World {
    pub(super) fn reconcile_vmi(&mut self, lag: usize) {
        let Some(vmi) = self.vmi_seen(lag) else { return };
        let seen = self.pods_seen(lag);
        let name = launcher_name(&vmi);
        let launcher = seen.get(&name).or_else(|| self.pods.get(&name)).cloned();
        let mut others: BTreeMap<String, Pod> = seen;
        others.remove(&name);
        // From the API server, where a pod may have had the guest.
        let state = vmi.status.as_ref().and_then(|status| status.migration_state.as_ref());
        for pod in state.into_iter().flat_map(|state| [&state.source_pod, &state.target_pod]).flatten() {
            if let (true, Some(found)) = (*pod != name, self.pods.get(pod)) {
                others.entry(pod.clone()).or_insert_with(|| found.clone());
            }
        }
        let target_node = state.and_then(|state| state.target_node.as_deref()).unwrap_or_default();
        let look = Look {
            launcher_node: launcher.as_ref().map(|pod| self.node_of(pod)),
            launcher,
            others: others.into_values().map(|pod| (self.node_of(&pod), pod)).collect(),
            target_node: self.node(target_node),
            migrations: &self.migrations,
            instant: self.instant(),
            now: at(self.now),
            vmi,
        };
        for step in steps(look) {
            match step {
                Step::Patch(body) => {
                    if !self.patch_vmi(&body) {
                        return;
                    }
                    self.vmi_barrier = self.vmi_history.len();
                }
                Step::Delete { uid, grace } => {
                    assert!(self.may_end(&uid), "an instance's plan deletes a pod that runs the guest");
                    self.delete_pod(&uid, grace);
                    self.pod_barrier = self.pod_history.len();
                }
                Step::End { uid } => {
                    assert!(
                        !self.running.contains(&uid),
                        "an instance's plan ends a pod that runs the guest"
                    );
                    self.dies(&uid);
                }
                Step::Create => panic!("an instance that runs gets no first pod again"),
            }
        }
    }

    /// Whether a pod has no guest, or its instance is to end.
    fn may_end(&self, uid: &str) -> bool {
        let ends = self.vmi.as_ref().is_none_or(|vmi| {
            let phase = vmi.status.as_ref().and_then(|status| status.phase.as_deref());
            vmi.metadata.deletion_timestamp.is_some() || matches!(phase, Some("Failed" | "Succeeded"))
        });
        ends || !self.running.contains(uid)
    }

    pub(super) fn watch(&mut self, name: &str) {
        self.unseen.remove(name);
        match self.vmims.get(name) {
            Some(migration) => {
                let vmi = self.vmi.as_ref().and_then(|vmi| vmi.status.as_ref()?.node_name.clone());
                self.migrations.saw("ns", name, Row::of(migration), vmi.as_deref());
            }
            None => drop(self.migrations.gone("ns", name)),
        }
    }

    pub(super) fn look(&mut self, name: &str, lag: usize) -> Option<Observed> {
        if self.unseen.contains(name) {
            self.watch(name);
        }
        let migration = self.vmims.get(name)?.clone();
        let uid = migration.uid().unwrap();
        let reached = Phase::of(&migration).unwrap();
        let mut vmi = self.vmi_seen(lag);
        let apart = vmi
            .as_ref()
            .is_none_or(|vmi| decide::relation(vmi, &migration) == decide::Relation::NotHandedOver);
        if vmi.is_none() || (apart && reached >= Phase::PreparingTarget) {
            vmi = self.vmi.clone();
        }
        let pods = self.pods_seen(lag);
        let name_of_target = target_name("web", &uid);
        let mut target = pods.get(&name_of_target).cloned();
        if target.is_none() && reached >= Phase::Scheduling {
            target = self.pods.get(&name_of_target).cloned();
        }
        let mut observed = super::observed(migration, vmi.clone(), target.clone());
        observed.is_created_here =
            target.as_ref().is_some_and(|pod| self.created_pods.contains(&pod.uid().unwrap()));
        observed.target_node = target.as_ref().map(|pod| self.node_of(pod));
        if observed.effective.is_some() {
            observed.effective = recorded(&observed.migration);
        }
        observed.now = at(self.now);
        let Some(vmi) = vmi else { return Some(observed) };
        let known = self.migrations.of_instance("ns", "web");
        let own = known.iter().find(|(known, _)| **known == *name).map(|(_, row)| row.clone());
        observed.has_rival = own.is_some_and(|own| observe::is_behind(name, &own, &known));
        observed.phase_due = self.migrations.noticed(
            &uid,
            crate::migrations::Matter::Phase(course::reported_phase(&vmi)),
            self.instant(),
        );
        if !reached.is_final() && begin::asks(&observed, &vmi, reached) {
            let limits = Limits { per_cluster: 2, outbound_per_node: 2, drain_taint: String::new() };
            let has_pod = |_: &str, _: &str, uid: &str| pods.contains_key(&target_name("web", uid));
            let instant = self.instant();
            let held = is_held(&observed.migration);
            if !held && !self.migrations.take_turn("ns", name, &limits, has_pod, instant) {
                return Some(observed);
            }
            if self.lacks {
                self.migrations.give_back("ns", name);
                observed.turn = super::now(TargetPod::Waits("it is missing".to_owned()));
            } else if held {
                observed.turn = Turn::Waits;
            } else {
                let mut pod = super::target(json!({"phase": "Pending"}));
                pod.metadata.name = Some(name_of_target);
                pod.labels_mut().insert(MIGRATION_JOB_LABEL.to_owned(), uid);
                let home = vmi.status.as_ref().and_then(|status| status.node_name.clone()).unwrap();
                let index = NODES.iter().position(|node| *node == home).unwrap();
                let next = (1..NODES.len()).map(|step| NODES[(index + step) % NODES.len()]);
                let ready = next.into_iter().find(|node| self.node(node) == NodeState::Ready);
                pod.spec.as_mut().unwrap().node_name = ready.map(str::to_owned);
                pod.annotations_mut().insert(POST_COPY.to_owned(), self.post_copy.to_string());
                let mut chosen = settings();
                chosen.configuration.allow_post_copy = Some(self.post_copy);
                observed.turn = Turn::Now(TargetPod::Pod(Box::new(pod), None), Box::new(chosen));
            }
        }
        Some(observed)
    }

    pub(super) fn reconcile_migration(&mut self, name: &str, lag: usize) {
        let Some(observed) = self.look(name, lag) else { return };
        for action in plan(&observed).actions {
            if !self.act(&observed, name, action) {
                return;
            }
        }
    }

    /// Whether the next action follows.
    pub(super) fn act(&mut self, observed: &Observed, name: &str, action: Action) -> bool {
        match action {
            Action::Create(mut pod) => {
                let version = |vmi: &Option<VirtualMachineInstance>| {
                    vmi.as_ref().and_then(|vmi| vmi.metadata.resource_version.clone())
                };
                if version(&self.vmi) != version(&observed.vmi) || self.pods.contains_key(&pod.name_any()) {
                    return false;
                }
                self.made += 1;
                let uid = format!("t{}", self.made);
                pod.metadata.uid = Some(uid.clone());
                pod.metadata.creation_timestamp = Some(Time(at(self.now)));
                self.created_pods.insert(uid.clone());
                if let Some(node) = pod.spec.as_ref().and_then(|spec| spec.node_name.clone()) {
                    self.places.insert(uid, node);
                }
                self.pods.insert(pod.name_any(), *pod);
                self.pod_barrier = self.pod_history.len();
            }
            Action::Delete { uid, grace, .. } => {
                assert!(!self.running.contains(&uid), "a migration deletes a pod that runs the guest");
                self.delete_pod(&uid, grace);
                self.pod_barrier = self.pod_history.len();
            }
            Action::Vmi(body) => {
                if !self.patch_vmi(&body) {
                    return false;
                }
                self.vmi_barrier = self.vmi_history.len();
            }
            Action::Meta(body) | Action::Status(body) => {
                let version = self.bump();
                let Some(migration) = self.vmims.get(name) else { return false };
                if body["metadata"]["resourceVersion"] != json!(migration.metadata.resource_version) {
                    return false;
                }
                let value = with(serde_json::to_value(migration).unwrap(), body);
                let mut migration: VirtualMachineInstanceMigration = serde_json::from_value(value).unwrap();
                migration.metadata.resource_version = Some(version);
                if migration.metadata.deletion_timestamp.is_some() && migration.finalizers().is_empty() {
                    self.vmims.remove(name);
                } else {
                    self.vmims.insert(name.to_owned(), migration);
                }
                self.unseen.insert(name.to_owned());
            }
            Action::CreateClaim(_) | Action::SettleState(_) => panic!("this instance keeps nothing"),
            // Nor was a claim made.
            Action::DiscardState => {}
            Action::Attach { .. } => panic!("no volume came while it ran"),
            Action::Collect { .. } => panic!("there are not that many"),
        }
        true
    }
}
