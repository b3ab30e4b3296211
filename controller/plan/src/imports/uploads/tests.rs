use super::*;
use crate::imports::{self, tests};
use barevirt_import_job::{Job, Outcome, Source};
use serde_json::{Value, json};

fn claim(annotations: &Value, bound: bool) -> PersistentVolumeClaim {
    serde_json::from_value(json!({
        "metadata": { "name": "disk", "namespace": "ns", "uid": "c1", "annotations": annotations },
        "spec": { "resources": { "requests": { "storage": "1Gi" } } },
        "status": { "phase": if bound { "Bound" } else { "Pending" } },
    }))
    .unwrap()
}

fn opened(bound: bool) -> PersistentVolumeClaim {
    claim(&json!({ (annotation::UPLOAD): "" }), bound)
}

/// A claim, followed step by step as the cluster would do it.
struct World {
    target: Target,
    events: Vec<&'static str>,
}

impl World {
    fn new(claim: PersistentVolumeClaim) -> Self {
        let target = Target { claim, data_volume: None, pod: None, used_by: None };
        World { target, events: vec![] }
    }

    /// Plans until nothing is left to be done.
    fn settle(&mut self) {
        for _ in 0..5 {
            let plan = plan(&self.target);
            self.events.extend(plan.event.map(|event| event.reason));
            let made = || pod(&self.target, "A", &tests::installation());
            match plan.step.or_else(|| plan.opens.then(|| Step::MakePod(Box::new(made())))) {
                None => return,
                Some(Step::MakePod(mut pod)) => {
                    assert!(self.target.pod.is_none());
                    pod.metadata.uid = Some("p1".to_owned());
                    self.target.pod = Some(*pod);
                }
                Some(Step::RemovePod(uid)) => {
                    assert_eq!(self.target.pod.take().unwrap().metadata.uid, Some(uid));
                }
                Some(Step::PatchClaim(patch)) => {
                    let all = self.target.claim.metadata.annotations.get_or_insert_default();
                    for (annotation, value) in patch["metadata"]["annotations"].as_object().unwrap() {
                        all.insert(annotation.clone(), value.as_str().unwrap().to_owned());
                    }
                }
                Some(Step::MakeClaim(_)) => panic!("the claim is there"),
                Some(Step::MakeSender(_) | Step::Introduce { .. } | Step::RemoveSender { .. }) => {
                    panic!("nothing is copied")
                }
            }
        }
        panic!("it does not come to rest");
    }

    fn pod_is(&mut self, phase: &str, ready: bool, restarts: i32, state: &Value, last: &Value) {
        let status = json!({
            "phase": phase, "conditions": [{ "type": "Ready", "status": if ready { "True" } else { "False" } }],
            "containerStatuses": tests::container(restarts, state, last),
        });
        self.target.pod.as_mut().unwrap().status = Some(serde_json::from_value(status).unwrap());
    }

    fn says(&self, annotation: &str) -> &str {
        annotated(&self.target.claim, annotation).unwrap_or_default()
    }
}

fn running() -> Value {
    json!({ "running": {} })
}

#[test]
fn a_claim_is_opened_filled_and_marked() {
    let mut world = World::new(opened(false));
    world.settle();
    assert_eq!(world.target.pod, None, "nobody has bound it");
    world.target.claim = opened(true);
    world.settle();
    let pod = world.target.pod.clone().unwrap();
    assert_eq!(pod.name_any(), "cdi-upload-disk");
    assert_eq!((world.says(annotation::PHASE), world.says(annotation::READY)), ("Pending", "false"));
    world.pod_is("Running", false, 0, &running(), &json!({}));
    world.settle();
    assert_eq!((world.says(annotation::PHASE), world.says(annotation::READY)), ("Running", "false"));
    world.pod_is("Running", true, 0, &running(), &json!({}));
    world.settle();
    assert_eq!(world.says(annotation::READY), "true");
    let done = tests::ended(0, &Outcome::Done { size: 1 }.to_message());
    world.pod_is("Succeeded", false, 0, &done, &json!({}));
    let planned = plan(&world.target);
    assert!(matches!(planned.step, Some(Step::PatchClaim(_))), "the claim is marked before the pod goes");
    world.settle();
    assert_eq!((world.says(annotation::PHASE), world.says(annotation::READY)), ("Succeeded", "false"));
    assert_eq!(world.target.pod, None);
    world.settle();
    assert_eq!(world.target.pod, None, "it is not opened again");
}

#[test]
fn the_pod_of_an_upload_that_is_done_stays_where_an_annotation_says_so() {
    let mut world =
        World::new(claim(&json!({ (annotation::UPLOAD): "", (annotation::POD_STAYS): "true" }), true));
    world.settle();
    let done = tests::ended(0, &Outcome::Done { size: 1 }.to_message());
    world.pod_is("Succeeded", false, 0, &done, &json!({}));
    world.settle();
    assert_eq!(world.says(annotation::PHASE), "Succeeded");
    assert!(world.target.pod.is_some());
}

#[test]
fn a_pod_that_was_lost_or_started_again_counts() {
    let mut world = World::new(opened(true));
    world.settle();
    let passing = tests::ended(1, &Outcome::failed(false, "convert the image: corrupt").to_message());
    world.pod_is("Running", true, 1, &running(), &passing);
    world.settle();
    assert_eq!((world.says(annotation::RESTARTS), world.says(annotation::READY)), ("1", "true"));
    world.pod_is("Running", false, 1, &passing, &json!({}));
    world.settle();
    assert_eq!(world.says(annotation::MESSAGE), "convert the image: corrupt");
    world.pod_is("Running", true, 2, &running(), &passing);
    world.settle();
    assert_eq!(
        world.says(annotation::MESSAGE),
        "convert the image: corrupt",
        "who sent it has not read it yet"
    );
    // Evicted: another pod, which continues the count.
    world.pod_is("Failed", false, 2, &json!({}), &json!({}));
    world.settle();
    assert_eq!(world.says(annotation::RESTARTS), "3");
    let again = world.target.pod.clone().unwrap();
    assert_eq!(again.annotations()[RESTARTS_ANNOTATION_OF_PODS], "3");
    assert_eq!(world.says(annotation::PHASE), "Pending");
    // Deleted while it worked.
    world.pod_is("Running", true, 0, &running(), &json!({}));
    world.settle();
    world.target.pod = None;
    world.settle();
    assert_eq!((world.says(annotation::RESTARTS), world.says(annotation::READY)), ("4", "false"));
    assert!(world.target.pod.is_some());
    world.pod_is("Running", false, MOST_RESTARTS, &passing, &json!({}));
    world.settle();
    assert_eq!(world.says(annotation::PHASE), "Failed");
    assert!(world.says(annotation::MESSAGE).starts_with("given up after"));
    assert_eq!((world.target.pod.as_ref(), world.events.as_slice()), (None, &["UploadFailed"][..]));
}

const RESTARTS_ANNOTATION_OF_PODS: &str = importer::RESTARTS_ANNOTATION;

#[test]
fn claims_that_are_no_free_upload_targets_are_ignored() {
    // A claim that is not an upload target.
    let plain = claim(&json!({}), true);
    assert!(!is_target(plain.annotations()));
    let mut world = World::new(plain);
    world.settle();
    assert_eq!(world.target.pod, None);
    // A claim that a guest has open.
    let mut world = World::new(opened(true));
    world.target.used_by = Some("virt-launcher-a".to_owned());
    world.settle();
    assert_eq!((world.target.pod.as_ref(), world.events.as_slice()), (None, &["UploadTargetInUse"][..]));
    assert!(world.says(annotation::MESSAGE).contains("is used by pod virt-launcher-a"));
    world.settle();
    assert_eq!(world.events.len(), 1, "the event is written once");
    world.target.used_by = None;
    world.settle();
    assert!(world.target.pod.is_some());
    // An archive for a block device, and other content.
    let content = |content: &str| json!({ (annotation::UPLOAD): "", (annotation::CONTENT): content });
    let mut device = claim(&content("archive"), true);
    device.spec.as_mut().unwrap().volume_mode = Some("Block".to_owned());
    for (claim, why) in
        [(device, "spec.volumeMode is Block"), (claim(&content("iso"), true), "contentType is iso")]
    {
        let mut world = World::new(claim);
        world.settle();
        assert_eq!((world.target.pod.as_ref(), world.events.as_slice()), (None, &["UploadNotServed"][..]));
        assert!(world.says(annotation::MESSAGE).contains(why), "{}", world.says(annotation::MESSAGE));
    }
    // A pod of another owner.
    let mut world = World::new(opened(true));
    world.settle();
    world.target.pod.as_mut().unwrap().metadata.owner_references = None;
    world.settle();
    assert!(world.target.pod.is_some() && world.says(annotation::MESSAGE).contains("is not of this claim"));
    // A claim that need not wait.
    let bind = json!({ (annotation::UPLOAD): "", (annotation::BIND): "" });
    let mut world = World::new(claim(&bind, false));
    world.settle();
    assert!(world.target.pod.is_some());
}

#[test]
fn the_pod_knows_whether_an_archive_comes() {
    for (content, wanted) in [("", Content::Disk), ("kubevirt", Content::Disk), ("archive", Content::Archive)]
    {
        let annotations = json!({ (annotation::UPLOAD): "", (annotation::CONTENT): content });
        let mut world = World::new(claim(&annotations, true));
        world.settle();
        let pod = world.target.pod.unwrap();
        let job = pod.spec.unwrap().containers[0].env.as_ref().unwrap()[0].value.clone().unwrap();
        assert_eq!(serde_json::from_str::<Job>(&job).unwrap().content, wanted, "{content:?}");
    }
}

#[test]
fn the_upload_pod_is_restricted_knows_its_clients_and_makes_its_key_itself() {
    let mut world = World::new(opened(true));
    world.settle();
    let pod = world.target.pod.unwrap();
    let container = &pod.spec.as_ref().unwrap().containers[0];
    let job = container.env.as_ref().unwrap()[0].value.clone().unwrap();
    let job: Job = serde_json::from_str(&job).unwrap();
    assert_eq!(job.size, 1 << 30);
    // Who may read the pod reads no key.
    assert_eq!(job.source, Source::Upload { authorities: "A".to_owned() });
    let maker = &pod.spec.as_ref().unwrap().init_containers.as_ref().unwrap()[0];
    assert_eq!(maker.args.as_deref().unwrap(), ["keys", "c1.upload.barevirt.dev"]);
    insta::assert_snapshot!(
        "upload_pod",
        serde_saphyr::to_string(&serde_json::to_value(&pod).unwrap()).unwrap()
    );
}

/// Runs both planners, as the cluster would.
#[test]
fn a_data_volume_says_what_its_claim_says() {
    let mut data_volume = tests::data_volume(|value| {
        value["metadata"]["name"] = json!("disk");
        value["spec"]["source"] = json!({ "upload": {} });
    });
    let mut seen = vec![];
    let mut look = |claim: Option<&PersistentVolumeClaim>| {
        let mut observed = tests::observed(data_volume.clone());
        observed.claim = claim.cloned();
        let plan = imports::plan(&observed, &tests::installation());
        seen.extend(plan.events.iter().map(|event| event.reason));
        if let Some(status) = plan.status {
            data_volume.status = Some(status);
        }
        let phase = data_volume.status.as_ref().unwrap().phase.clone().unwrap();
        (plan.step, phase)
    };
    let (step, phase) = look(None);
    let Some(Step::MakeClaim(mut claim)) = step else { panic!("{step:?}") };
    assert_eq!((phase.as_str(), annotated(&claim, annotation::UPLOAD)), ("Pending", Some("")));
    claim.metadata.uid = Some("c1".to_owned());
    claim.status.get_or_insert_default().phase = Some("Bound".to_owned());
    assert_eq!(look(Some(&claim)), (None, "UploadScheduled".to_owned()));
    let mut say = |annotation: &str, value: &str| {
        claim.metadata.annotations.get_or_insert_default().insert(annotation.to_owned(), value.to_owned());
        look(Some(&claim))
    };
    assert_eq!(say(annotation::PHASE, "Running"), (None, "UploadScheduled".to_owned()));
    assert_eq!(say(annotation::READY, "true"), (None, "UploadReady".to_owned()));
    // Not while it restarts.
    say(annotation::RESTARTS, "1");
    assert_eq!(say(annotation::READY, "false"), (None, "UploadScheduled".to_owned()));
    say(annotation::READY, "true");
    let (step, phase) = say(annotation::PHASE, "Succeeded");
    assert!(matches!(step, Some(Step::PatchClaim(patch)) if patch.to_string().contains("populatedFor")));
    assert_eq!(phase, "Succeeded");
    assert_eq!(
        seen,
        [
            "Pending",
            "Bound",
            "UploadScheduled",
            "UploadReady",
            "UploadScheduled",
            "UploadReady",
            "UploadSucceeded",
        ]
    );
}

#[test]
fn a_data_volume_waits_with_its_claim_and_fails_with_it() {
    let data_volume = tests::data_volume(|value| {
        value["metadata"]["name"] = json!("disk");
        value["spec"]["source"] = json!({ "upload": {} });
    });
    let phase = |claim: &Value, waits: bool| {
        let mut observed = tests::observed(data_volume.clone());
        observed.waits = waits;
        let mut claim: PersistentVolumeClaim = serde_json::from_value(claim.clone()).unwrap();
        claim.metadata.owner_references = Some(vec![crate::owner::owner(&data_volume)]);
        observed.claim = Some(claim);
        let status = imports::plan(&observed, &tests::installation()).status.unwrap();
        (status.phase.clone().unwrap(), status)
    };
    let with = |annotations: Value, bound: bool| serde_json::to_value(claim(&annotations, bound)).unwrap();
    let open = || json!({ (annotation::UPLOAD): "" });
    assert_eq!(phase(&with(open(), false), true).0, "WaitForFirstConsumer");
    assert_eq!(phase(&with(open(), false), false).0, "Pending");
    let bind = json!({ (annotation::UPLOAD): "", (annotation::BIND): "" });
    assert_eq!(phase(&with(bind, false), true).0, "UploadScheduled");
    let failed = json!({ (annotation::PHASE): "Failed", (annotation::MESSAGE): "given up" });
    let (phase, status) = phase(&with(failed, true), false);
    assert_eq!(phase, "Failed");
    assert!(serde_json::to_string(&status).unwrap().contains("given up"));
}

#[test]
fn an_import_by_annotations_causes_one_event_and_no_pod() {
    let endpoint = json!({ (annotation::ENDPOINT): "http://images.example/a.img" });
    let mut world = World::new(claim(&endpoint, true));
    world.settle();
    assert_eq!(world.events, [IMPORT_NOT_SERVED]);
    assert_eq!(
        (world.says(annotation::RUNNING), world.says(annotation::REASON)),
        ("false", IMPORT_NOT_SERVED)
    );
    assert!(world.says(annotation::MESSAGE).contains(annotation::ENDPOINT));
    world.settle();
    assert_eq!((world.events.len(), world.target.pod), (1, None));
}
