use super::*;
use crate::config::Config;
use crate::vmi::claims::Claims;
use crate::vmi::consumer::Consumer;
use crate::vmi::hotplug::attachments::Attachments;
use barevirt_api::settings::Settings;
use proptest::prelude::*;
use serde_json::Value;

const NOW: i64 = 1_800_000_000;

fn observed(sockets: u32, guest: &str, there: (u32, &str, &str), conditions: Value) -> Observed {
    let vmi = serde_json::from_value(json!({
        "metadata": {"name": "a", "namespace": "ns", "uid": "u1", "resourceVersion": "7"},
        "spec": {"domain": {"devices": {"autoattachGraphicsDevice": false},
            "cpu": {"sockets": sockets, "maxSockets": 4}, "memory": {"guest": guest, "maxGuest": "4Gi"}}},
        "status": {"phase": "Running", "conditions": conditions, "currentCPUTopology": {"sockets": there.0},
            "memory": {"guestAtBoot": "1Gi", "guestRequested": there.1, "guestCurrent": there.2}},
    }))
    .unwrap();
    let settings = Settings::default();
    let config = Config { launcher_image: "launcher".into(), image_pull_policy: None, settings };
    let now = Timestamp::from_second(NOW).unwrap();
    let claims = Claims::default();
    Observed {
        vmi,
        pod: None,
        is_created_here: true,
        strays: vec![],
        others: vec![],
        target: crate::vmi::others::Target::Lives,
        is_asked_to_move: false,
        node: None,
        state: None,
        claims,
        consumer: Consumer::default(),
        reaches: vec![],
        grown: vec![],
        attachments: Attachments::default(),
        goes_first: None,
        definitions: crate::vmi::networks::definitions::Definitions::default(),
        same_addresses: vec![],
        context_id: None,
        config,
        now,
    }
}

fn pod(cpu: &str, memory: &str, real: (&str, &str), conditions: Value) -> Pod {
    let requests = |cpu: &str, memory: &str| json!({"requests": {"cpu": cpu, "memory": memory}});
    serde_json::from_value(json!({
        "metadata": {"name": "p", "uid": "p1"},
        "spec": {"containers": [{"name": "compute", "resources": requests(cpu, memory)}]},
        "status": {"conditions": conditions, "containerStatuses": [{"name": "compute", "image": "", "imageID": "",
            "ready": true, "restartCount": 0, "resources": requests(real.0, real.1)}]},
    }))
    .unwrap()
}

fn condition(type_: &str, status: &str, reason: &str) -> Value {
    let since = Timestamp::from_second(NOW - 1).unwrap().to_string();
    json!([{"type": type_, "status": status, "reason": reason, "lastTransitionTime": since}])
}

/// Type, status and reason of the condition that is patched.
fn patched(plan: &Plan) -> Option<(String, String, String)> {
    let [Action::Patch(body)] = plan.actions.as_slice() else { return None };
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let condition = &body["status"]["conditions"][0];
    Some((text(&condition["type"]), text(&condition["status"]), text(&condition["reason"])))
}

fn of(type_: &str, status: &str, reason: &str) -> Option<(String, String, String)> {
    Some((type_.to_owned(), status.to_owned(), reason.to_owned()))
}

const ONE: (u32, &str, &str) = (1, "1Gi", "1Gi");

/// CPU and memory requests of a new pod for such a guest.
fn size(sockets: u32, guest: &str) -> (String, String) {
    let vmi = observed(sockets, guest, ONE, json!([])).vmi;
    let resources = sizing::pod_resources(&ValidVmi::new(vmi).unwrap(), &Settings::default());
    let requests = resources.requests.unwrap();
    (requests["cpu"].0.clone(), requests["memory"].0.clone())
}

fn small() -> (String, String) {
    size(1, "1Gi")
}

fn two() -> (String, String) {
    size(2, "1Gi")
}

/// A pod that asks for `asks` and has `has`.
fn pod_of(asks: &(String, String), has: &(String, String), conditions: Value) -> Pod {
    pod(&asks.0, &asks.1, (&has.0, &has.1), conditions)
}

fn asked(plan: &Plan) -> Option<(String, String)> {
    let [Action::ResizePod { resources, .. }] = plan.actions.as_slice() else { return None };
    let requests = resources.requests.clone()?;
    Some((requests["cpu"].0.clone(), requests["memory"].0.clone()))
}

#[test]
fn the_pod_grows_before_the_guest() {
    let as_made = pod_of(&small(), &small(), json!([]));
    assert_eq!(plan(&observed(1, "1Gi", ONE, json!([])), &as_made), Plan::default());
    let first = plan(&observed(2, "1Gi", ONE, json!([])), &as_made);
    assert_eq!(patched(&first), of("HotVCPUChange", "True", "PodResizing"));
    let resizing = observed(2, "1Gi", ONE, condition("HotVCPUChange", "True", "PodResizing"));
    assert_eq!(asked(&plan(&resizing, &as_made)), Some(two()));
    // The specification has changed, the kubelet has not confirmed it yet.
    assert_eq!(plan(&resizing, &pod_of(&two(), &small(), json!([]))).actions, []);
    let resized = pod_of(&two(), &two(), json!([]));
    assert_eq!(patched(&plan(&resizing, &resized)), of("HotVCPUChange", "True", "PodResized"));
    let granted = condition("HotVCPUChange", "True", "PodResized");
    assert_eq!(plan(&observed(2, "1Gi", ONE, granted.clone()), &resized).actions, []);
    let done = plan(&observed(2, "1Gi", (2, "1Gi", "1Gi"), granted), &resized);
    assert_eq!(patched(&done), of("", "", ""));
    // Both CPUs count.
    let larger = ValidVmi::new(observed(2, "1Gi", ONE, json!([])).vmi).unwrap();
    let bytes = sizing::overhead_bytes(&larger, &Settings::default());
    let [Action::Patch(body)] = done.actions.as_slice() else { panic!("{done:?}") };
    assert_eq!(body["status"]["memory"], json!({"memoryOverhead": quantity::from_bytes(bytes).0}));
}

#[test]
fn limits_grow_with_the_guest() {
    let limits = json!({"cpu": "1", "memory": "2Gi"});
    let mut pod = pod_of(&small(), &small(), json!([]));
    let compute = &mut pod.spec.as_mut().unwrap().containers[0];
    compute.resources.as_mut().unwrap().limits = serde_json::from_value(limits).unwrap();
    let under_way = |type_: &str| condition(type_, "True", "PodResizing")[0].clone();
    let both = json!([under_way("HotVCPUChange"), under_way("HotMemoryChange")]);
    let mut observed = observed(2, "3Gi", ONE, both);
    assert!(is_due(&observed.vmi));
    let asked = |observed: &Observed| {
        let plan = plan(observed, &pod);
        let [Action::ResizePod { resources, .. }] = plan.actions.as_slice() else { panic!("{plan:?}") };
        let resources = (**resources).clone();
        (resources.requests.unwrap(), resources.limits.unwrap())
    };
    // Without a quota that counts limits, they equal the requests.
    let (requests, limits) = asked(&observed);
    assert_eq!((&limits["cpu"].0[..], &limits["memory"]), ("1", &requests["memory"]));
    // With such a quota, they are those of a new pod.
    let quota = json!({"metadata": {}, "spec": {"hard": {"limits.cpu": "9", "limits.memory": "99Gi"}}});
    observed.config = observed.config.in_namespace(None, &[serde_json::from_value(quota).unwrap()]);
    let new = sizing::pod_resources(&ValidVmi::new(observed.vmi.clone()).unwrap(), &observed.config.settings);
    let (requests, limits) = asked(&observed);
    assert_eq!((Some(requests), Some(limits.clone())), (new.requests, new.limits));
    assert_eq!(limits["cpu"].0, "2");
}

#[test]
fn the_guest_shrinks_before_the_pod() {
    let large = pod_of(&two(), &two(), json!([]));
    let granted = condition("HotVCPUChange", "True", "PodResized");
    let waiting = observed(1, "1Gi", (2, "1Gi", "1Gi"), granted.clone());
    assert_eq!(plan(&waiting, &large).actions, []);
    let given_back = observed(1, "1Gi", ONE, granted);
    assert_eq!(asked(&plan(&given_back, &large)), Some(small()));
    assert_eq!(patched(&plan(&given_back, &pod_of(&small(), &small(), json!([])))), of("", "", ""));
    // Memory is requested at once and released slowly.
    let memory = condition("HotMemoryChange", "True", "PodResized");
    let roomy = pod_of(&size(1, "2Gi"), &size(1, "2Gi"), json!([]));
    assert_eq!(plan(&observed(1, "1Gi", (1, "1Gi", "2Gi"), memory.clone()), &roomy).actions, []);
    assert_eq!(asked(&plan(&observed(1, "1Gi", ONE, memory), &roomy)), Some(small()));
}

#[test]
fn a_resize_that_the_node_cannot_do_is_reported_and_reverted() {
    let resizing = observed(2, "1Gi", ONE, condition("HotVCPUChange", "True", "PodResizing"));
    let pending = |reason: &str| json!([{"type": "PodResizePending", "status": "True", "reason": reason, "message": "no room"}]);
    let infeasible = plan(&resizing, &pod_of(&two(), &small(), pending("Infeasible")));
    assert_eq!(patched(&infeasible), of("HotVCPUChange", "False", "PodResizeInfeasible"));
    assert_eq!(infeasible.notes.len(), 1);
    let deferred = plan(&resizing, &pod_of(&two(), &small(), pending("Deferred")));
    assert_eq!(patched(&deferred), of("HotVCPUChange", "True", "PodResizeDeferred"));
    let mut late = resizing.clone();
    late.now = Timestamp::from_second(NOW + 600).unwrap();
    let late = plan(&late, &pod_of(&two(), &small(), pending("Deferred")));
    assert_eq!(patched(&late), of("HotVCPUChange", "False", "PodResizeTimedOut"));
    let failed = observed(2, "1Gi", ONE, condition("HotVCPUChange", "False", "PodResizeInfeasible"));
    assert_eq!(asked(&plan(&failed, &pod_of(&two(), &small(), pending("Infeasible")))), Some(small()));
    let as_made = pod_of(&small(), &small(), json!([]));
    assert_eq!(plan(&failed, &as_made).actions, []);
    // A user who reverts the change clears the condition.
    let back = observed(1, "1Gi", ONE, condition("HotVCPUChange", "False", "PodResizeInfeasible"));
    assert_eq!(patched(&plan(&back, &as_made)), of("", "", ""));
    assert_eq!(
        patched(&refused(&resizing.vmi, "quota", resizing.now)),
        of("HotVCPUChange", "False", "PodResizeInfeasible")
    );
}

proptest! {
    /// A guest may control its launcher: whatever size it reports, the pod never gets more than the maxima.
    #[test]
    fn no_report_of_a_launcher_makes_the_pod_larger_than_the_maxima(
        wanted in 1_u32..=4, gibibytes in 1_u32..=4, sockets in any::<u32>(), asked in any::<u64>(), current in any::<u64>(),
        condition in 0_usize..3,
    ) {
        let conditions = match condition {
            0 => json!([]),
            1 => condition_of("True"),
            _ => condition_of("False"),
        };
        let (asked, current) = (asked.to_string(), current.to_string());
        let observed = observed(wanted, &format!("{gibibytes}Gi"), (sockets, &asked, &current), conditions);
        let (cpu, memory) = size(4, "4Gi");
        let pod = pod("100m", "1Gi", ("100m", "1Gi"), json!([]));
        let actions = plan(&observed, &pod).actions;
        // Nor does any report prevent the wanted size.
        prop_assert!(condition != 1 || matches!(actions.as_slice(), [Action::ResizePod { .. }]), "{:?}", actions);
        for action in actions {
            let Action::ResizePod { resources, .. } = action else { continue };
            let requests = resources.requests.unwrap();
            let millis = |amount: &Quantity| quantity::millis(amount).unwrap();
            prop_assert!(millis(&requests["cpu"]) <= millis(&Quantity(cpu.clone())));
            prop_assert!(millis(&requests["memory"]) <= millis(&Quantity(memory.clone())));
        }
    }
}

fn condition_of(status: &str) -> Value {
    json!([{"type": "HotVCPUChange", "status": status}, {"type": "HotMemoryChange", "status": status}])
}
