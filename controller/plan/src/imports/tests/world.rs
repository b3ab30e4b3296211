//! A DataVolume that is followed step by step.

use super::*;

pub(super) fn phase_of(status: &DataVolumeStatus) -> &str {
    status.phase.as_deref().unwrap_or_default()
}

pub(super) fn condition<'a>(status: &'a DataVolumeStatus, type_: &str) -> (&'a str, &'a str, &'a str) {
    let found = status.conditions.iter().find(|condition| condition.type_ == type_).unwrap();
    (&found.status, found.reason.as_deref().unwrap_or_default(), found.message.as_deref().unwrap_or_default())
}

/// A DataVolume, followed step by step as the cluster would do it.
pub(super) struct World {
    pub(super) observed: Observed,
    pub(super) events: Vec<&'static str>,
}

impl World {
    pub(super) fn new(data_volume: DataVolume) -> Self {
        World { observed: observed(data_volume), events: vec![] }
    }

    /// Plans, and carries the plan out.
    pub(super) fn step(&mut self) -> Plan {
        let plan = plan(&self.observed, &installation());
        self.does(plan.step.clone());
        if let Some(status) = plan.status.clone() {
            self.observed.data_volume.status = Some(status);
        }
        self.does(plan.after.clone());
        self.does(plan.last.clone());
        self.events.extend(plan.events.iter().map(|event| event.reason));
        plan
    }

    /// Plans until nothing is left to be done.
    pub(super) fn settle(&mut self) {
        for _ in 0..5 {
            let plan = self.step();
            if !plan.changes() {
                return;
            }
        }
        panic!("it does not come to rest: {:?}", self.step());
    }

    pub(super) fn does(&mut self, step: Option<Step>) {
        match step {
            None => {}
            Some(Step::MakeClaim(claim)) => {
                assert!(self.observed.claim.is_none());
                self.observed.claim = Some(*claim);
            }
            Some(Step::PatchClaim(patch)) => {
                let mut claim = serde_json::to_value(self.observed.claim.as_ref().unwrap()).unwrap();
                for (part, values) in patch["metadata"].as_object().unwrap() {
                    match values.as_object() {
                        Some(values) => values
                            .iter()
                            .for_each(|(key, value)| claim["metadata"][part][key] = value.clone()),
                        None => claim["metadata"][part] = values.clone(),
                    }
                }
                self.observed.claim = Some(serde_json::from_value(claim).unwrap());
            }
            Some(Step::MakePod(mut pod)) => {
                assert!(self.observed.pod.is_none());
                pod.metadata.uid = Some("p1".to_owned());
                self.observed.pod = Some(*pod);
            }
            Some(Step::RemovePod(uid)) => {
                assert_eq!(self.observed.pod.as_ref().unwrap().metadata.uid, Some(uid));
                self.observed.pod = None;
            }
            Some(Step::MakeSender(mut pod)) => {
                pod.metadata.uid = Some("s1".to_owned());
                let sender = self.sender();
                assert!(sender.pod.is_none());
                sender.pod = Some(*pod);
            }
            Some(Step::Introduce { certificate, .. }) => {
                let sender = self.sender().pod.as_mut().unwrap();
                sender.annotations_mut().insert(RECEIVER_ANNOTATION.to_owned(), certificate);
            }
            Some(Step::RemoveSender { uid, .. }) => {
                let sender = self.sender();
                assert_eq!(sender.pod.as_ref().unwrap().metadata.uid, Some(uid));
                *sender = Sender::default();
            }
        }
    }

    pub(super) fn sender(&mut self) -> &mut Sender {
        match &mut self.observed.copied {
            Copied::Claim(source) => source.sender.as_mut().unwrap(),
            other => panic!("{other:?}"),
        }
    }

    pub(super) fn sender_is(&mut self, status: Value) {
        self.sender().pod.as_mut().unwrap().status = Some(serde_json::from_value(status).unwrap());
    }

    pub(super) fn claim_is(&mut self, phase: &str) {
        let claim = self.observed.claim.as_mut().unwrap();
        claim.status.get_or_insert_default().phase = Some(phase.to_owned());
    }

    pub(super) fn pod_is(&mut self, status: Value) {
        self.observed.pod.as_mut().unwrap().status = Some(serde_json::from_value(status).unwrap());
    }

    pub(super) fn phase(&self) -> &str {
        phase_of(self.status())
    }

    pub(super) fn status(&self) -> &DataVolumeStatus {
        self.observed.data_volume.status.as_ref().unwrap()
    }
}
