//! A copy of the machine from when its instance was started, and how far the machine differs from it now. Name and content
//! of the copy are KubeVirt's: its snapshots of running machines read them.

use crate::cards;
use crate::live_update::Follows;
use crate::owner::owner;
use crate::volume_migration;
use barevirt_api::hotplug;
use barevirt_api::instancetype::matcher::Family;
use barevirt_api::instancetype::revision as kept;
use barevirt_api::names::{REVISION_OF_LABEL, VM_GENERATION_ANNOTATION, vmi_id};
use barevirt_api::v1::{
    VirtualMachine, VirtualMachineInstance, VirtualMachineInstanceSpec, VirtualMachineSpec,
};
use k8s_openapi::api::apps::v1::ControllerRevision;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use k8s_openapi::apimachinery::pkg::runtime::RawExtension;
use kube::ResourceExt;
use serde_json::{Value, json};

/// Prefix of all names.
pub const PREFIX: &str = "revision-start-vm-";

/// How the machine differs from what its instance was made from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Drift {
    /// Same generation, or nothing to compare.
    #[default]
    None,
    /// It is not known what the instance was made from.
    Unknown,
    /// Another generation with the same template.
    Generation,
    /// Only labels or annotations of the template differ.
    Metadata,
    /// The guest would differ.
    Guest,
}

/// Name of the revision for the machine's next start.
pub fn name(vm: &VirtualMachine) -> String {
    let uid = vm.metadata.uid.as_deref().unwrap_or_default();
    format!("{PREFIX}{uid}-{}", vm.metadata.generation.unwrap_or_default())
}

/// The machine as it is now. Instance type and preference are named with the copies in use; one that was named a moment ago
/// has no copy yet.
pub fn of(vm: &VirtualMachine) -> ControllerRevision {
    let mut spec = vm.spec.clone();
    let copy = |family: Family| {
        let reference = kept::reference(vm, &family.matcher(vm)?);
        reference.controller_revision_ref?.name.filter(|name| !name.is_empty())
    };
    if let (Some(matcher), Some(name)) = (&mut spec.instancetype, copy(Family::Instancetype)) {
        matcher.revision_name = Some(name);
    }
    if let (Some(matcher), Some(name)) = (&mut spec.preference, copy(Family::Preference)) {
        matcher.revision_name = Some(name);
    }
    ControllerRevision {
        metadata: ObjectMeta {
            name: Some(name(vm)),
            namespace: vm.metadata.namespace.clone(),
            labels: Some([(REVISION_OF_LABEL.to_owned(), vmi_id(&vm.name_any()))].into()),
            owner_references: Some(vec![owner(vm)]),
            ..ObjectMeta::default()
        },
        data: Some(RawExtension(json!({ "spec": spec }))),
        revision: vm.metadata.generation.unwrap_or_default(),
    }
}

/// The generation of the machine that an instance was made from.
pub fn generation(vmi: &VirtualMachineInstance) -> Option<i64> {
    vmi.annotations().get(VM_GENERATION_ANNOTATION).and_then(|generation| generation.parse().ok())
}

impl Drift {
    /// Whether a running instance may take over size and placement: where anything else of the guest has changed, they wait
    /// for the restart. Hotpluggable volumes do not wait.
    pub fn leaves_the_guest(self) -> bool {
        matches!(self, Drift::Generation | Drift::Metadata)
    }
}

/// The machine's specification when its instance was started, and now. What is taken over live is the same in both.
#[derive(Clone, Debug, PartialEq)]
pub struct Comparison {
    then: VirtualMachineSpec,
    now: VirtualMachineSpec,
    /// Whether size and placement are taken over. They are made the same last, since an instance type may decide them.
    size: bool,
}

impl Comparison {
    /// Compares the machine, whose instance `vmi` runs, with a revision. `None` where the revision cannot be read.
    pub fn of(
        vm: &VirtualMachine,
        revision: &ControllerRevision,
        vmi: &VirtualMachineInstance,
        follows: &Follows,
    ) -> Option<Self> {
        let spec = |data: Option<&RawExtension>| data.map(|data| data.0["spec"].clone()).unwrap_or_default();
        let mut then: VirtualMachineSpec = serde_json::from_value(spec(revision.data.as_ref())).ok()?;
        let now: VirtualMachineSpec = serde_json::from_value(spec(of(vm).data.as_ref())).ok()?;
        if follows.volumes {
            hotplug::take_over(&mut then.template.spec, &now.template.spec);
        }
        volume_migration::take_over(&mut then, &now, vmi);
        let (was, is) = (&mut then.template.spec, &now.template.spec);
        if follows.cards && !cards::take_a_restart(was, is, vmi) {
            was.networks.clone_from(&is.networks);
            was.domain.devices.interfaces.clone_from(&is.domain.devices.interfaces);
        }
        Some(Comparison { then, now, size: follows.size })
    }

    /// Whether another instance type, another preference or another copy of one is named than at the start. Then only their
    /// contents say whether the guest would differ: [`applied`](Self::applied).
    pub fn names_others(&self) -> bool {
        self.then.instancetype != self.now.instancetype || self.then.preference != self.now.preference
    }

    /// The machine at the start and now. Each names the copies in use itself, not in its status.
    pub fn machines(&self, vm: &VirtualMachine) -> [VirtualMachine; 2] {
        [&self.then, &self.now].map(|spec| VirtualMachine {
            metadata: vm.metadata.clone(),
            spec: spec.clone(),
            status: None,
        })
    }

    /// The same comparison with the templates of [`machines`](Self::machines), to which instance type, preference and
    /// defaults were applied. Their names do not count any more.
    #[must_use]
    pub fn applied(mut self, [then, now]: [VirtualMachineInstanceSpec; 2]) -> Self {
        for (spec, template) in [(&mut self.then, then), (&mut self.now, now)] {
            spec.template.spec = template;
            (spec.instancetype, spec.preference) = (None, None);
        }
        self
    }

    /// How the machine differs.
    pub fn drift(self) -> Drift {
        let (then, now) = self.settled();
        let guest = |spec: &VirtualMachineSpec| {
            (spec.template.spec.clone(), spec.instancetype.clone(), spec.preference.clone())
        };
        if guest(&then) != guest(&now) {
            Drift::Guest
        } else if then.template.metadata != now.template.metadata {
            Drift::Metadata
        } else {
            Drift::Generation
        }
    }

    /// The parts that [`drift`](Self::drift) looks at, as JSON: at the start, and now.
    pub fn guests(self) -> (Value, Value) {
        let guest = |spec: VirtualMachineSpec| {
            let mut guest = json!({ "template": spec.template });
            let members =
                [("instancetype", json!(spec.instancetype)), ("preference", json!(spec.preference))];
            for (name, member) in members.into_iter().filter(|(_, member)| !member.is_null()) {
                guest[name] = member;
            }
            guest
        };
        let (then, now) = self.settled();
        (guest(then), guest(now))
    }

    fn settled(self) -> (VirtualMachineSpec, VirtualMachineSpec) {
        let Comparison { mut then, now, size } = self;
        if size {
            forget_size(&mut then.template.spec, &now.template.spec);
        }
        (then, now)
    }
}

/// Copies the fields that a running instance takes over: `live_update` compares them with the instance itself.
fn forget_size(then: &mut VirtualMachineInstanceSpec, now: &VirtualMachineInstanceSpec) {
    then.node_selector.clone_from(&now.node_selector);
    then.affinity.clone_from(&now.affinity);
    then.tolerations.clone_from(&now.tolerations);
    if let (Some(then), Some(now)) = (&mut then.domain.cpu, &now.domain.cpu) {
        then.sockets = now.sockets;
    }
    if let Some(guest) = now.domain.memory.as_ref().and_then(|memory| memory.guest.as_ref()) {
        then.domain.memory.get_or_insert_default().guest = Some(guest.clone());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use barevirt_api::defaults;
    use barevirt_api::gates::Gates;
    use barevirt_api::instancetype::expand::{self, Chosen};
    use barevirt_api::settings::{Binding, Settings};

    fn vm(generation: i64, change: impl FnOnce(&mut Value)) -> VirtualMachine {
        let mut vm = json!({
            "metadata": {"name": "web", "namespace": "shop", "uid": "m1", "generation": generation},
            "spec": {
                "runStrategy": "Manual", "instancetype": {"name": "small"},
                "template": {"metadata": {"labels": {"a": "b"}}, "spec": {"domain": {"devices": {}}}},
            },
            "status": {"instancetypeRef": {"name": "small", "controllerRevisionRef": {"name": "c1"}}},
        });
        change(&mut vm);
        serde_json::from_value(vm).unwrap()
    }

    fn instance() -> VirtualMachineInstance {
        serde_json::from_value(json!({"metadata": {"name": "web"}, "spec": {"domain": {"devices": {}}}}))
            .unwrap()
    }

    fn follows(size: bool) -> Follows {
        let follows = Follows::of(&Settings::default());
        if size { follows } else { follows.before_a_restart() }
    }

    fn compare(
        vm: &VirtualMachine,
        revision: &ControllerRevision,
        vmi: &VirtualMachineInstance,
        follows: &Follows,
    ) -> Drift {
        Comparison::of(vm, revision, vmi, follows).map_or(Drift::Unknown, Comparison::drift)
    }

    #[test]
    fn a_revision_is_kubevirts() {
        let revision = of(&vm(3, |_| {}));
        assert_eq!(revision.metadata.name.as_deref(), Some("revision-start-vm-m1-3"));
        assert_eq!(revision.revision, 3);
        assert_eq!(revision.metadata.owner_references.unwrap()[0].uid, "m1");
        let data = revision.data.unwrap().0;
        assert_eq!(data["spec"]["runStrategy"], "Manual");
        assert_eq!(data["spec"]["instancetype"]["revisionName"], "c1");
        assert_eq!(data.as_object().unwrap().len(), 1);
        // The status still has the copy of the former instance type.
        let other = of(&vm(4, |vm| vm["spec"]["instancetype"]["name"] = json!("big")));
        assert_eq!(other.data.unwrap().0["spec"]["instancetype"], json!({"name": "big"}));
    }

    #[test]
    fn only_what_the_guest_would_be_makes_a_difference() {
        let then = of(&vm(3, |_| {}));
        for (change, drift) in [
            (("/spec/runStrategy", json!("Halted")), Drift::Generation),
            (("/spec/template/metadata/labels", json!({"a": "c"})), Drift::Metadata),
            (("/spec/template/spec/domain", json!({"devices": {}, "cpu": {"cores": 2}})), Drift::Guest),
            (("/spec/instancetype", json!({"name": "big"})), Drift::Guest),
            (("/status/instancetypeRef/controllerRevisionRef/name", json!("c2")), Drift::Guest),
        ] {
            let (pointer, value) = change;
            let now = vm(4, |vm| *vm.pointer_mut(pointer).unwrap() = value);
            assert_eq!(compare(&now, &then, &instance(), &follows(true)), drift, "{pointer}");
        }
        let garbage = ControllerRevision { data: Some(RawExtension(json!({"spec": 1}))), ..then };
        assert_eq!(compare(&vm(4, |_| {}), &garbage, &instance(), &follows(true)), Drift::Unknown);
    }

    #[test]
    fn live_changes_are_no_difference_if_live_update_is_on() {
        let cores = |sockets: u32| json!({"devices": {}, "cpu": {"sockets": sockets, "cores": 2}});
        let machine = |generation, domain: Value| {
            vm(generation, |vm| *vm.pointer_mut("/spec/template/spec/domain").unwrap() = domain)
        };
        let then = of(&machine(3, cores(1)));
        let mut more = cores(2);
        more["memory"] = json!({"guest": "2Gi"});
        assert_eq!(compare(&machine(4, more.clone()), &then, &instance(), &follows(true)), Drift::Generation);
        assert_eq!(compare(&machine(4, more), &then, &instance(), &follows(false)), Drift::Guest);
    }

    /// An instance type of these CPUs and this memory.
    fn size(cpu: Value, memory: &str) -> Option<Value> {
        Some(json!({"cpu": cpu, "memory": {"guest": memory}}))
    }

    /// The template with this instance type and defaults.
    fn template_of(vm: &VirtualMachine, instancetype: Option<&Value>) -> VirtualMachineInstanceSpec {
        let instancetype = instancetype.map(|spec| serde_json::from_value(spec.clone()).unwrap());
        let chosen = Chosen { instancetype, preference: None };
        let made = VirtualMachineInstance::new("web", vm.spec.template.spec.clone());
        let mut made = expand::instance(vm, &chosen, Binding::default(), made).unwrap();
        defaults::spec(&mut made.spec);
        made.spec
    }

    #[test]
    fn another_instance_type_is_compared_by_what_the_guest_would_be() {
        let own = json!({"devices": {}, "cpu": {"sockets": 1}, "memory": {"guest": "1Gi"}});
        let machine = |generation, domain: Value, named: Value| {
            vm(generation, |vm| {
                vm["spec"]["instancetype"] = named;
                vm["spec"]["template"]["spec"]["domain"] = domain;
            })
        };
        let bare = || json!({"devices": {}});
        let small = || size(json!({"guest": 1}), "1Gi");
        // Instance types at the start and now, and the result with live updates and without.
        for (was, is, live, staged) in [
            (small(), size(json!({"guest": 2}), "2Gi"), Drift::Generation, Drift::Guest),
            (small(), small(), Drift::Generation, Drift::Generation),
            (
                small(),
                size(json!({"guest": 1, "model": "host-passthrough"}), "1Gi"),
                Drift::Guest,
                Drift::Guest,
            ),
            (small(), size(json!({"guest": 1, "maxSockets": 8}), "1Gi"), Drift::Guest, Drift::Guest),
            // The machine's own size instead of an instance type's.
            (None, size(json!({"guest": 2}), "2Gi"), Drift::Generation, Drift::Guest),
            (small(), None, Drift::Generation, Drift::Generation),
        ] {
            let named = |name: &str, size: &Option<Value>| match size {
                Some(_) => (bare(), json!({"name": name})),
                None => (own.clone(), Value::Null),
            };
            let (domain, name) = named("small", &was);
            let then = of(&machine(3, domain, name));
            let (domain, name) = named("big", &is);
            let now = machine(4, domain, name);
            for (drift, takes_size) in [(live, true), (staged, false)] {
                let comparison = Comparison::of(&now, &then, &instance(), &follows(takes_size)).unwrap();
                assert!(comparison.names_others());
                let [before, after] = comparison.machines(&now);
                let templates = [template_of(&before, was.as_ref()), template_of(&after, is.as_ref())];
                assert_eq!(comparison.applied(templates).drift(), drift, "{was:?} {is:?} {takes_size}");
            }
        }
    }

    #[test]
    fn the_machines_to_apply_name_their_own_copies() {
        let copy =
            |name: &str| json!({"name": name, "controllerRevisionRef": {"name": format!("{name}-copy")}});
        let machine = |generation, name: &str| {
            vm(generation, |vm| {
                vm["spec"]["instancetype"] = json!({"name": name});
                vm["status"] = json!({"instancetypeRef": copy(name)});
            })
        };
        let (then, now) = (of(&machine(3, "small")), machine(4, "big"));
        let comparison = Comparison::of(&now, &then, &instance(), &follows(true)).unwrap();
        let copies = comparison.machines(&now).map(|machine| {
            assert!(machine.status.is_none() && machine.metadata == now.metadata);
            machine.spec.instancetype.unwrap().revision_name.unwrap()
        });
        assert_eq!(copies, ["small-copy", "big-copy"]);
        assert!(
            !Comparison::of(&machine(4, "small"), &then, &instance(), &follows(true)).unwrap().names_others()
        );
    }

    #[test]
    fn a_volume_that_comes_is_no_difference_and_one_that_is_changed_is() {
        let machine = |generation, volume: Value| {
            vm(generation, |vm| vm["spec"]["template"]["spec"]["volumes"] = json!([volume]))
        };
        let claim = |hotpluggable: bool| json!({"name": "a", "persistentVolumeClaim": {"claimName": "a", "hotpluggable": hotpluggable}});
        let then = of(&vm(3, |_| {}));
        assert_eq!(compare(&machine(4, claim(true)), &then, &instance(), &follows(false)), Drift::Generation);
        assert_eq!(compare(&machine(4, claim(false)), &then, &instance(), &follows(true)), Drift::Guest);
        let off = Settings {
            gates: Gates::new([], ["DeclarativeHotplugVolumes".to_owned()]),
            ..Settings::default()
        };
        assert_eq!(compare(&machine(4, claim(true)), &then, &instance(), &Follows::of(&off)), Drift::Guest);
    }
}
