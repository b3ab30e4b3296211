use super::*;
use crate::imports::tests::installation;
use barevirt_api::cdi::{IMPORT_CRON_CLEANUP_LABEL, LAST_USE_TIME, annotation};
use barevirt_import_job::{Job, LOOK, Outcome, Source};
use k8s_openapi::jiff::SignedDuration;

const URL: &str = "docker://r.example:5000/disks/fedora:latest";

fn digest(of: char) -> String {
    format!("sha256:{}", of.to_string().repeat(64))
}

/// A DataImportCron, followed step by step as the cluster would do it.
struct World {
    observed: Observed,
    events: Vec<&'static str>,
    made: usize,
}

impl World {
    fn new(change: impl FnOnce(&mut Value)) -> Self {
        let mut value = json!({
            "metadata": {
                "name": "fedora", "namespace": "golden", "uid": "c1",
                "labels": { "instancetype.kubevirt.io/default-preference": "fedora", "other": "label" },
            },
            "spec": {
                "schedule": "0 */12 * * *", "managedDataSource": "fedora",
                "template": { "spec": {
                    "source": { "registry": { "url": URL, "secretRef": "login" } },
                    "storage": { "resources": { "requests": { "storage": "5Gi" } } },
                } },
            },
        });
        change(&mut value);
        let observed = Observed {
            cron: serde_json::from_value(value).unwrap(),
            data_source: None,
            rival: None,
            wanted: None,
            imports: vec![],
            poller: None,
            now: serde_json::from_value(json!("2026-01-01T00:30:00Z")).unwrap(),
        };
        World { observed, events: vec![], made: 0 }
    }

    /// Plans, and carries the plan out.
    fn step(&mut self) -> Plan {
        let desired = desired(&self.observed.cron).map(str::to_owned);
        let name = desired.map(|digest| import_name(&self.observed.cron.spec.managed_data_source, &digest));
        self.observed.wanted =
            self.observed.imports.iter().find(|import| Some(import.name_any()) == name).cloned();
        let plan = plan(&self.observed, &installation());
        for step in plan.steps.clone() {
            match step {
                Step::MakePoller(mut pod) => {
                    pod.metadata.uid = Some("p1".to_owned());
                    assert!(self.observed.poller.replace(*pod).is_none(), "one at a time");
                }
                Step::RemovePoller(uid) => {
                    assert_eq!(self.observed.poller.take().and_then(|pod| pod.uid()), Some(uid));
                }
                Step::Annotate(patch) => self.observed.cron = merged(&self.observed.cron, &patch),
                Step::Import(mut import) => {
                    self.made += 1;
                    import.metadata.uid = Some(format!("d{}", self.made));
                    assert!(self.import(&import.name_any()).is_none(), "{import:?}");
                    self.observed.imports.push(*import);
                }
                Step::Mark(name, patch) => {
                    let import = self.import(&name).unwrap();
                    *import = merged(import, &patch);
                }
                Step::RemoveImport(name, uid) => {
                    assert_eq!(self.import(&name).unwrap().uid(), Some(uid));
                    self.observed.imports.retain(|import| import.name_any() != name);
                }
                Step::MakeDataSource(source) => self.observed.data_source = Some(*source),
                Step::Point(patch) => {
                    let source = self.observed.data_source.as_ref().unwrap();
                    self.observed.data_source = Some(merged(source, &patch));
                }
            }
        }
        if let Some(status) = plan.status.clone() {
            self.observed.cron.status = Some(status);
        }
        self.events.extend(plan.events.iter().map(|event| event.reason));
        plan
    }

    fn rest(&mut self) {
        for _ in 0..10 {
            if !self.step().changes() {
                return;
            }
        }
        panic!("it does not come to rest: {:?}", self.observed);
    }

    fn import(&mut self, name: &str) -> Option<&mut DataVolume> {
        self.observed.imports.iter_mut().find(|import| import.name_any() == name)
    }

    fn says(&mut self, outcome: &Outcome) {
        let pod = self.observed.poller.as_mut().unwrap();
        let (phase, code) = match outcome {
            Outcome::Failed { .. } => ("Failed", 2),
            Outcome::Found { .. } | Outcome::Done { .. } => ("Succeeded", 0),
        };
        pod.status = serde_json::from_value(json!({ "phase": phase, "containerStatuses": [{
            "name": "importer", "image": "", "imageID": "", "ready": false, "restartCount": 0,
            "state": { "terminated": { "exitCode": code, "message": outcome.to_message() } },
        }] }))
        .unwrap();
    }

    fn finds(&mut self, of: char) {
        self.rest();
        self.says(&Outcome::Found { digest: digest(of) });
        self.rest();
    }

    fn is(&mut self, name: &str, phase: &str) {
        self.import(name).unwrap().status = serde_json::from_value(json!({ "phase": phase })).unwrap();
        self.rest();
    }

    fn fails(&mut self, name: &str) {
        let failed = json!({ "phase": "Failed", "conditions": [
            { "type": "Running", "status": "False", "reason": "Error", "message": "not an image",
              "lastHeartbeatTime": self.observed.now },
        ] });
        self.import(name).unwrap().status = serde_json::from_value(failed).unwrap();
        self.rest();
    }

    fn later(&mut self, hours: i64) {
        let later = self.observed.now.0.checked_add(SignedDuration::from_hours(hours)).unwrap();
        self.observed.now = Time(later);
    }

    fn status(&self) -> DataImportCronStatus {
        self.observed.cron.status.clone().unwrap()
    }

    fn condition(&self, type_: &str) -> (String, String) {
        let found = self.status().conditions.into_iter().find(|condition| condition.type_ == type_).unwrap();
        (found.status, found.reason.unwrap_or_default())
    }

    fn stands_for(&self) -> Option<String> {
        Some(self.observed.data_source.as_ref()?.spec.source.pvc.as_ref()?.name.clone())
    }

    fn names(&self) -> Vec<String> {
        self.observed.imports.iter().map(ResourceExt::name_any).collect()
    }
}

fn merged<T: serde::Serialize + serde::de::DeserializeOwned>(object: &T, patch: &Value) -> T {
    let mut value = serde_json::to_value(object).unwrap();
    merge(&mut value, patch);
    serde_json::from_value(value).unwrap()
}

fn merge(into: &mut Value, patch: &Value) {
    let Value::Object(patch) = patch else {
        *into = patch.clone();
        return;
    };
    if !into.is_object() {
        *into = json!({});
    }
    for (name, value) in patch {
        match value {
            Value::Null => drop(into.as_object_mut().unwrap().remove(name)),
            value => merge(&mut into[name], value),
        }
    }
}

const TRUE: &str = "True";
const A: &str = "fedora-aaaaaaaaaaaa";
const B: &str = "fedora-bbbbbbbbbbbb";

fn pair(status: &str, reason: &str) -> (String, String) {
    (status.to_owned(), reason.to_owned())
}

#[test]
fn a_source_is_looked_at_and_its_image_imported_and_stood_for() {
    let mut world = World::new(|_| {});
    world.rest();
    let pod = world.observed.poller.clone().unwrap();
    assert_eq!((pod.name_any().as_str(), pod.namespace().as_deref()), ("poller-fedora", Some("golden")));
    let container = &pod.spec.as_ref().unwrap().containers[0];
    assert_eq!(container.args.as_deref(), Some(&[LOOK.to_owned()][..]));
    let job: Job =
        serde_json::from_str(container.env.as_ref().unwrap()[0].value.as_deref().unwrap()).unwrap();
    let expected = Source::Registry { url: URL.to_owned(), architecture: None, insecure: true };
    assert_eq!(job.source, expected);
    let secrets = serde_json::to_value(&pod.spec).unwrap();
    assert_eq!(secrets["volumes"][0]["secret"]["secretName"], "login");
    assert_eq!(secrets["automountServiceAccountToken"], false);
    assert_eq!(world.condition("UpToDate"), pair("False", "NoDigest"));
    assert_eq!(world.observed.data_source.as_ref().unwrap().spec.source, Default::default());

    world.finds('a');
    assert!(world.observed.poller.is_none());
    assert_eq!(world.names(), [A]);
    let import = world.import(A).unwrap().clone();
    let url = import.spec.source.unwrap().registry.unwrap().url.unwrap();
    assert_eq!(url, format!("docker://r.example:5000/disks/fedora@{}", digest('a')));
    assert_eq!(import.metadata.annotations.unwrap()[annotation::BIND], "true");
    let labels = import.metadata.labels.unwrap();
    assert_eq!(labels["instancetype.kubevirt.io/default-preference"], "fedora");
    assert_eq!(labels[IMPORT_CRON_LABEL], "fedora");
    assert!(!labels.contains_key("other") && !labels.contains_key(IMPORT_CRON_CLEANUP_LABEL));
    assert_eq!(import.metadata.owner_references, None, "it stays");
    let annotations = world.observed.cron.annotations();
    assert_eq!(annotations[LAST_CRON_TIME], "2026-01-01T00:30:00Z");
    assert_eq!(annotations[NEXT_CRON_TIME], "2026-01-01T12:00:00Z");

    world.is(A, "ImportInProgress");
    assert_eq!(world.condition("Progressing"), pair(TRUE, "ImportProgressing"));
    assert_eq!(world.condition("UpToDate"), pair("False", "ImportProgressing"));
    assert_eq!(world.stands_for(), None);
    world.is(A, SUCCEEDED);
    assert_eq!(world.condition("Progressing"), pair("False", "NoImport"));
    assert_eq!(world.condition("UpToDate"), pair(TRUE, "UpToDate"));
    assert_eq!(world.stands_for().as_deref(), Some(A));
    let status = world.status();
    assert_eq!(
        status.current_imports,
        [ImportStatus { data_volume_name: A.to_owned(), digest: digest('a') }]
    );
    assert_eq!(status.last_imported_pvc.unwrap().name, A);
    assert_eq!(status.source_format.as_deref(), Some("pvc"));
    assert!(status.last_execution_timestamp.is_some() && status.last_import_timestamp.is_some());
    let plan = world.step();
    assert!(!plan.changes(), "nothing changes before the time");
    assert_eq!(plan.again, Some(LONGEST_PAUSE));
    assert!(world.events.is_empty());
}

#[test]
fn a_newer_image_takes_the_place_of_the_former_once_it_is_filled() {
    let mut world = World::new(|_| {});
    world.finds('a');
    world.is(A, SUCCEEDED);
    world.later(12);
    world.finds('b');
    assert_eq!(world.names(), [A, B]);
    assert_eq!(world.stands_for().as_deref(), Some(A), "while it is imported");
    world.is(B, SUCCEEDED);
    assert_eq!(world.stands_for().as_deref(), Some(B));
    assert_eq!(world.names(), [A, B], "three stay");
    // The same digest again is nothing new.
    world.later(12);
    world.finds('b');
    assert_eq!(world.names(), [A, B]);
    assert_eq!(world.condition("UpToDate"), pair(TRUE, "UpToDate"));
    // The former import still exists.
    world.later(12);
    world.finds('a');
    assert_eq!((world.names().len(), world.stands_for().as_deref()), (2, Some(A)));
}

#[test]
fn the_configured_number_of_former_imports_is_kept() {
    for (collects, keep, expected) in [
        ("Outdated", json!(1), 1),
        ("Outdated", json!(0), 1),
        ("Outdated", Value::Null, 3),
        ("Never", json!(1), 5),
    ] {
        let mut world = World::new(|value| {
            value["spec"]["garbageCollect"] = json!(collects);
            value["spec"]["importsToKeep"] = keep.clone();
        });
        for of in ['a', 'b', 'c', 'd', 'e'] {
            world.finds(of);
            let name = import_name("fedora", &digest(of));
            world.is(&name, SUCCEEDED);
            assert_eq!(world.stands_for(), Some(name));
            world.later(12);
        }
        assert_eq!(world.names().len(), expected, "{collects} {keep}");
        assert_eq!(world.names().last().map(String::as_str), Some("fedora-eeeeeeeeeeee"));
    }
}

#[test]
fn objects_of_a_cron_without_retention_are_owned_by_it() {
    let mut world = World::new(|value| value["spec"]["retentionPolicy"] = json!("None"));
    world.finds('a');
    let import = world.import(A).unwrap();
    assert_eq!(import.owner_references()[0].uid, "c1");
    assert_eq!(import.labels()[IMPORT_CRON_CLEANUP_LABEL], "true");
    assert_eq!(world.observed.data_source.as_ref().unwrap().owner_references()[0].uid, "c1");
}

#[test]
fn an_unreachable_source_is_reported_and_checked_again_on_schedule() {
    let mut world = World::new(|_| {});
    world.rest();
    world.says(&Outcome::failed(true, "answers 404"));
    world.rest();
    assert_eq!(world.events, ["PollFailed"]);
    let said = world.status().conditions.into_iter().find(|said| said.type_ == "UpToDate").unwrap();
    assert_eq!(said.message.as_deref(), Some("No source digest: answers 404"));
    assert!(world.observed.poller.is_none(), "not before it is time");
    world.later(12);
    world.finds('a');
    world.is(A, SUCCEEDED);
    assert_eq!(world.condition("UpToDate"), pair(TRUE, "UpToDate"));
    world.later(12);
    world.rest();
    world.says(&Outcome::failed(true, "answers 404"));
    world.rest();
    assert_eq!(world.condition("UpToDate"), pair("Unknown", "PollFailed"));
    assert_eq!(world.stands_for().as_deref(), Some(A));
    // A pod's text that is not a digest is ignored.
    world.later(12);
    world.rest();
    world.says(&Outcome::Done { size: 1 });
    world.rest();
    assert_eq!(desired(&world.observed.cron), Some(digest('a').as_str()));
}

#[test]
fn a_failed_import_is_replaced_by_a_newer_image() {
    let mut world = World::new(|_| {});
    world.finds('a');
    world.is(A, "Failed");
    assert_eq!(world.condition("UpToDate"), pair("False", "ImportFailed"));
    assert_eq!(world.names(), [A]);
    world.later(12);
    world.finds('b');
    assert_eq!(world.names(), [B]);
    // An import that was deleted is made again.
    world.observed.imports.clear();
    world.rest();
    assert_eq!(world.names(), [B]);
}

#[test]
fn an_import_that_failed_is_tried_again_after_the_next_poll() {
    let mut world = World::new(|_| {});
    world.finds('a');
    world.later(1);
    world.fails(A);
    assert_eq!((world.made, world.condition("UpToDate")), (1, pair("False", "ImportFailed")));
    world.later(12);
    world.finds('a');
    assert_eq!((world.made, world.names()), (2, vec![A.to_owned()]));
    assert_eq!(world.import(A).unwrap().status, None);
    assert_eq!(world.condition("UpToDate"), pair("False", "ImportProgressing"));
    world.rest();
    assert_eq!(world.made, 2);
}

#[test]
fn a_bad_image_is_retried_with_growing_pauses_until_there_is_another_one() {
    let mut world = World::new(|value| value["spec"]["schedule"] = json!("* * * * *"));
    let minute = |world: &mut World, of: char, name: &str| {
        world.finds(of);
        if world.import(name).is_some_and(|import| import.status.is_none()) {
            world.fails(name);
        }
        world.observed.now = Time(world.observed.now.0.checked_add(SignedDuration::from_secs(60)).unwrap());
    };
    let mut made = Vec::new();
    for at in 0..24 * 60 {
        let before = world.made;
        minute(&mut world, 'a', A);
        made.extend((world.made > before).then_some(at));
    }
    assert!((8..=14).contains(&made.len()), "{made:?}");
    assert_eq!(made[..2], [0, 1], "what was wrong for a moment may have passed");
    let pauses: Vec<i32> = made.windows(2).map(|two| two[1] - two[0]).collect();
    assert!(pauses.is_sorted() && pauses.iter().all(|pause| *pause <= 362), "{pauses:?}");
    let said = world.status().conditions.into_iter().find(|said| said.type_ == "UpToDate").unwrap();
    let message = said.message.unwrap();
    assert!(message.starts_with("Import has failed (not an image): it is tried again once"), "{message}");
    // Another image is imported at once, and its first failure is followed by a try at the next poll.
    let before = world.made;
    minute(&mut world, 'b', B);
    assert_eq!((world.made, world.names()), (before + 1, vec![B.to_owned()]));
    minute(&mut world, 'b', B);
    assert_eq!(world.made, before + 2);
    // Once there is an image, the former failures do not count.
    world.later(1);
    world.finds('b');
    world.is(B, SUCCEEDED);
    assert!(world.observed.cron.annotations().keys().all(|name| !name.ends_with("failedImports")));
}

#[test]
fn a_digest_can_be_written_by_people_and_is_used_only_if_it_is_one() {
    let mut world = World::new(|value| value["spec"]["schedule"] = json!(""));
    world.rest();
    assert!(world.observed.poller.is_none());
    for (said, expected) in [("sha256:../../x", 0), (digest('a').as_str(), 1)] {
        let annotations = world.observed.cron.metadata.annotations.get_or_insert_default();
        annotations.insert(DESIRED_DIGEST.to_owned(), said.to_owned());
        world.rest();
        assert_eq!(world.names().len(), expected, "{said}");
    }
}

#[test]
fn objects_of_others_are_not_changed_by_a_cron() {
    let mut world = World::new(|_| {});
    world.observed.rival = Some("other".to_owned());
    let plan = world.step();
    assert!(plan.steps.is_empty());
    assert_eq!(world.events, ["ErrDataSourceAlreadyManaged"]);
    assert!(!world.step().changes(), "the event is written once");

    let mut world = World::new(|_| {});
    let mine = DataSource::new("fedora", Default::default());
    world.observed.data_source = Some(mine.clone());
    world.finds('a');
    world.is(A, SUCCEEDED);
    assert_eq!(world.observed.data_source, Some(mine), "without the label it is not managed");

    let mut world = World::new(|_| {});
    world.rest();
    world.says(&Outcome::Found { digest: digest('a') });
    world.step();
    world.observed.wanted = Some(DataVolume::new(A, Default::default()));
    let plan = super::plan(&world.observed, &installation());
    assert!(plan.steps.iter().all(|step| !matches!(step, Step::Import(_) | Step::Mark(..))), "{plan:?}");
    let said = plan.status.unwrap().conditions;
    assert!(said.iter().any(|said| said.reason.as_deref() == Some("ErrImportNotOwned")), "{said:?}");
}

type Change = fn(&mut Value);

#[test]
fn an_invalid_cron_is_reported_once() {
    let change: [(&str, Change); 6] = [
        ("metadata.name", |value| value["metadata"]["name"] = json!("x".repeat(64))),
        ("spec.template.spec.source", |value| {
            value["spec"]["template"]["spec"]["source"] = json!({ "pvc": { "name": "a", "namespace": "b" } });
        }),
        ("spec.managedDataSource", |value| value["spec"]["managedDataSource"] = json!("fedora/status")),
        ("spec.schedule", |value| value["spec"]["schedule"] = json!("whenever you like it, please")),
        ("spec.schedule: it never comes", |value| value["spec"]["schedule"] = json!("0 0 30 2 *")),
        ("spec.template.spec.contentType", |value| {
            value["spec"]["template"]["spec"]["contentType"] = json!("archive");
        }),
    ];
    for (expected, change) in change {
        let mut world = World::new(change);
        let plan = world.step();
        assert!(plan.steps.is_empty() && plan.events[0].message.contains(expected), "{plan:?}");
        assert!(!world.step().changes());
    }
}

#[test]
fn files_of_web_servers_are_imported_as_they_are() {
    let mut world = World::new(|value| {
        value["spec"]["template"]["spec"]["source"] =
            json!({ "http": { "url": "https://images.example/a.qcow2" } });
        value["spec"]["template"]["metadata"] = json!({ "annotations": { LAST_USE_TIME: "never" } });
    });
    world.finds('a');
    let import = world.import(A).unwrap();
    assert_eq!(
        import.spec.source.as_ref().unwrap().http.as_ref().unwrap().url,
        "https://images.example/a.qcow2"
    );
    assert_ne!(import.annotations()[LAST_USE_TIME], "never");
}
