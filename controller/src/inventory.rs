//! Machines and instances as metrics: one line each, made from the caches when somebody asks. Only the leader knows any.

use crate::cluster::Cluster;
use crate::pod;
use crate::workloads::OUTDATED;
use barevirt_api::names::{
    CLUSTER_INSTANCETYPE_ANNOTATION, CLUSTER_PREFERENCE_ANNOTATION, CONDITION_LIVE_MIGRATABLE,
    INSTANCETYPE_ANNOTATION, OUTDATED_LAUNCHER_LABEL, PHASE_RUNNING, PREFERENCE_ANNOTATION,
};
use barevirt_api::v1::{Condition, VirtualMachine, VirtualMachineInstance};
use barevirt_component::metrics::names::{Metric, VM_INFO, VMI_INFO, VMI_OUTDATED};
use kube::ResourceExt;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric, MetricEncoder};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::gauge::ConstGauge;
use std::collections::BTreeMap;
use std::fmt;
use std::sync::atomic::Ordering;
use std::sync::{Arc, OnceLock};

type Labels<'a> = Vec<(&'static str, &'a str)>;

/// What an instance type or preference is called here: who made it is not known, and names of people's own are without
/// bound.
const OTHER: &str = "<other>";

/// The caches, once this process leads.
#[derive(Clone, Default)]
pub struct Inventory(Arc<OnceLock<Arc<Cluster>>>);

impl fmt::Debug for Inventory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Inventory").field("leading", &self.0.get().is_some()).finish()
    }
}

impl Inventory {
    /// Tells of these caches from now on.
    pub fn of(&self, cluster: Arc<Cluster>) {
        // A process leads once.
        let _ = self.0.set(cluster);
    }
}

impl Collector for Inventory {
    fn encode(&self, mut encoder: DescriptorEncoder) -> Result<(), fmt::Error> {
        let Some(cluster) = self.0.get() else { return Ok(()) };
        let mut family = begin(&mut encoder, &VM_INFO)?;
        // What cannot be read is told of in the log.
        for machine in cluster.vms.state().iter().filter_map(|vm| vm.unpack().ok()) {
            line(&mut family, &of_machine(&machine))?;
        }
        let strategy = cluster.config().settings.eviction_strategy;
        let mut family = begin(&mut encoder, &VMI_INFO)?;
        for instance in cluster.vmis.state().iter().filter_map(|vmi| vmi.unpack().ok()) {
            with_instance(&instance, strategy.as_deref(), |labels| line(&mut family, &labels))?;
        }
        let outdated = u32::try_from(OUTDATED.load(Ordering::Relaxed)).unwrap_or(u32::MAX);
        ConstGauge::new(f64::from(outdated)).encode(begin(&mut encoder, &VMI_OUTDATED)?)
    }
}

fn begin<'a>(
    encoder: &'a mut DescriptorEncoder<'_>,
    metric: &'static Metric,
) -> Result<MetricEncoder<'a>, fmt::Error> {
    encoder.encode_descriptor(metric.name, metric.help.trim_end_matches('.'), None, MetricType::Gauge)
}

fn line(family: &mut MetricEncoder<'_>, labels: &Labels<'_>) -> Result<(), fmt::Error> {
    // An empty label is none.
    let given: Labels<'_> = labels.iter().filter(|(_, value)| !value.is_empty()).copied().collect();
    ConstGauge::new(1_i64).encode(family.encode_family(&given)?)
}

/// Annotations that people describe a system with.
fn described<'a>(annotations: Option<&'a BTreeMap<String, String>>) -> Labels<'a> {
    [
        ("os", "vm.kubevirt.io/os"),
        ("workload", "vm.kubevirt.io/workload"),
        ("flavor", "vm.kubevirt.io/flavor"),
    ]
    .map(|(label, name)| (label, annotations.and_then(|all| all.get(name)).map_or("", String::as_str)))
    .into()
}

fn of_machine(machine: &VirtualMachine) -> Labels<'_> {
    let template = &machine.spec.template;
    let status = machine.status.as_ref().and_then(|status| status.printable_status.as_deref());
    let (status, group) = status_words(status.unwrap_or_default());
    let named = |given: bool| if given { OTHER } else { "" };
    let mut labels = vec![
        ("name", machine.metadata.name.as_deref().unwrap_or_default()),
        ("namespace", machine.metadata.namespace.as_deref().unwrap_or_default()),
    ];
    labels.extend(described(template.metadata.as_ref().and_then(|metadata| metadata.annotations.as_ref())));
    let machine_type = template.spec.domain.machine.as_ref().and_then(|machine| machine.type_.as_deref());
    labels.extend([
        ("machine_type", machine_type.unwrap_or_default()),
        ("instance_type", named(machine.spec.instancetype.is_some())),
        ("preference", named(machine.spec.preference.is_some())),
        ("status", status),
        ("status_group", group),
    ]);
    labels
}

/// A printable status in lower case, and the group that KubeVirt counts it to.
fn status_words(status: &str) -> (&'static str, &'static str) {
    match status {
        "Provisioning" => ("provisioning", "starting"),
        "Starting" => ("starting", "starting"),
        "WaitingForVolumeBinding" => ("waitingforvolumebinding", "starting"),
        "Running" => ("running", "running"),
        "Migrating" => ("migrating", "migrating"),
        "Stopped" => ("stopped", "non_running"),
        "Paused" => ("paused", "non_running"),
        "Stopping" => ("stopping", "non_running"),
        "Terminating" => ("terminating", "non_running"),
        "CrashLoopBackOff" => ("crashloopbackoff", "error"),
        "Unknown" => ("unknown", "error"),
        "ErrorUnschedulable" => ("errorunschedulable", "error"),
        "ErrImagePull" => ("errimagepull", "error"),
        "ImagePullBackOff" => ("imagepullbackoff", "error"),
        "ErrorPvcNotFound" => ("errorpvcnotfound", "error"),
        "DataVolumeError" => ("datavolumeerror", "error"),
        _ => ("", "<unknown>"),
    }
}

fn with_instance<T>(
    instance: &VirtualMachineInstance,
    strategy: Option<&str>,
    then: impl FnOnce(Labels<'_>) -> T,
) -> T {
    let status = instance.status.clone().unwrap_or_default();
    let phase = status.phase.as_deref().unwrap_or_default();
    let (name, annotations) = (instance.name_any(), instance.annotations());
    let named = |names: [&str; 2]| {
        if names.iter().any(|name| annotations.contains_key(*name)) { OTHER } else { "" }
    };
    let guest = status.guest_os_info.clone().unwrap_or_default();
    let movable = Condition::is_set(&status.conditions, CONDITION_LIVE_MIGRATABLE);
    let evictable = match instance.spec.eviction_strategy.as_deref().or(strategy) {
        Some("LiveMigrate") => movable,
        _ => true,
    };
    let launcher = pod::name(&name, instance.metadata.uid.as_deref().unwrap_or_default());
    let lower = phase.to_lowercase();
    let word = |yes: bool| if yes { "true" } else { "false" };
    let text = |text: &'static str, value: &Option<String>| (text, value.clone().unwrap_or_default());
    let told = [
        text("guest_os_kernel_release", &guest.kernel_release),
        ("guest_os_machine", status.machine.and_then(|machine| machine.type_).unwrap_or_default()),
        text("guest_os_arch", &guest.machine),
        text("guest_os_name", &guest.name),
        text("guest_os_version_id", &guest.version_id),
    ];
    let mut labels: Labels<'_> = vec![
        ("node", status.node_name.as_deref().unwrap_or_default()),
        ("namespace", instance.metadata.namespace.as_deref().unwrap_or_default()),
        ("name", &name),
        ("phase", &lower),
    ];
    labels.extend(described(Some(annotations)));
    labels.extend([
        ("instance_type", named([INSTANCETYPE_ANNOTATION, CLUSTER_INSTANCETYPE_ANNOTATION])),
        ("preference", named([PREFERENCE_ANNOTATION, CLUSTER_PREFERENCE_ANNOTATION])),
    ]);
    labels.extend(told.iter().map(|(label, value)| (*label, value.as_str())));
    labels.extend([
        ("evictable", word(evictable)),
        ("outdated", word(instance.labels().contains_key(OUTDATED_LAUNCHER_LABEL))),
        ("vmi_pod", if phase == PHASE_RUNNING { &launcher } else { "" }),
    ]);
    then(labels)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn given(labels: Labels<'_>) -> String {
        let given = labels.into_iter().filter(|(_, value)| !value.is_empty());
        given.map(|(name, value)| format!("{name}={value}")).collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn a_machine() {
        let machine: VirtualMachine = serde_json::from_value(json!({
            "metadata": {"name": "web", "namespace": "shop"},
            "spec": {"instancetype": {"name": "small"}, "template": {
                "metadata": {"annotations": {"vm.kubevirt.io/os": "debian13"}},
                "spec": {"domain": {"devices": {}, "machine": {"type": "q35"}}}}},
            "status": {"printableStatus": "Paused"},
        }))
        .unwrap();
        assert_eq!(
            given(of_machine(&machine)),
            "name=web namespace=shop os=debian13 machine_type=q35 instance_type=<other> status=paused status_group=non_running"
        );
        assert_eq!(given(of_machine(&VirtualMachine::default())), "status_group=<unknown>");
    }

    #[test]
    fn an_instance() {
        let mut instance: VirtualMachineInstance = serde_json::from_value(json!({
            "metadata": {"name": "web", "namespace": "shop", "uid": "u"},
            "spec": {"domain": {"devices": {}}},
            "status": {"phase": "Running", "nodeName": "one", "guestOSInfo": {"name": "Debian"}},
        }))
        .unwrap();
        let pod = pod::name("web", "u");
        let labels = |instance: &VirtualMachineInstance, strategy| with_instance(instance, strategy, given);
        assert_eq!(
            labels(&instance, None),
            format!(
                "node=one namespace=shop name=web phase=running guest_os_name=Debian evictable=true outdated=false vmi_pod={pod}"
            )
        );
        assert!(labels(&instance, Some("LiveMigrate")).contains("evictable=false"));
        instance.status.as_mut().unwrap().phase = Some("Pending".into());
        assert!(!labels(&instance, None).contains("vmi_pod"));
    }
}
