//! Metrics of an instance.

use super::resources::Resources;
use super::row::{Described, Labels, Vnic, kept};
use super::vendors::{Named, Vended};
use barevirt_api::instancetype::matcher::Family;
use barevirt_api::names::{CONDITION_LIVE_MIGRATABLE, OUTDATED_LAUNCHER_LABEL, PHASE_RUNNING};
use barevirt_api::quantity;
use barevirt_api::settings::Settings;
use barevirt_api::sizing;
use barevirt_api::v1::{Condition, VirtualMachineInstance, VirtualMachineInstanceMigrationState};
use barevirt_api::valid::ValidVmi;
use barevirt_plan::pod::target::launcher_name;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::ResourceExt;

/// Most interfaces whose addresses are exported: a guest can have any number.
const MOST_INTERFACES: usize = 64;

/// What metrics need of an instance.
#[derive(Debug)]
pub(super) struct InstanceRow {
    uid: Box<str>,
    phase: Box<str>,
    /// The same in lower case.
    lower: Box<str>,
    node: Box<str>,
    described: Described,
    /// What its machine's template does not show; `None` where no instance type was applied.
    pub(super) resources: Option<Resources>,
    instancetype: Option<Named>,
    preference: Option<Named>,
    /// Kernel release, machine type, architecture, name and version of the guest.
    guest: [Box<str>; 5],
    strategy: Box<str>,
    movable: bool,
    outdated: bool,
    launcher: Box<str>,
    /// Name, name in the guest, address.
    interfaces: Box<[[Box<str>; 3]]>,
    pub(super) vnics: Box<[Vnic]>,
    pub(super) overhead: Option<f64>,
    pub(super) moved: Option<Moved>,
}

/// The last migration of an instance.
#[derive(Debug)]
pub(super) struct Moved {
    /// UID of the migration object.
    pub(super) uid: Box<str>,
    /// When it began, in seconds since 1970.
    pub(super) begun: Option<f64>,
    /// When it ended.
    pub(super) ended: Option<f64>,
    /// `succeeded` or `failed`; empty before.
    pub(super) outcome: &'static str,
}

impl Moved {
    fn of(state: &VirtualMachineInstanceMigrationState) -> Self {
        let seconds = |time: &Time| time.0.as_duration().as_secs_f64();
        Moved {
            uid: kept(state.migration_uid.as_deref()),
            begun: state.start_timestamp.as_ref().map(seconds),
            ended: state.end_timestamp.as_ref().map(seconds),
            outcome: match (state.completed, state.failed) {
                (Some(true), Some(true)) => "failed",
                (Some(true), _) => "succeeded",
                _ => "",
            },
        }
    }
}

impl InstanceRow {
    pub(super) fn of(instance: &VirtualMachineInstance, settings: &Settings) -> Self {
        let status = instance.status.clone().unwrap_or_default();
        let annotations = instance.annotations();
        let instancetype = Named::by_instance(Family::Instancetype, annotations);
        let guest = status.guest_os_info.clone().unwrap_or_default();
        let machine = status.machine.as_ref().and_then(|machine| machine.type_.as_deref());
        let phase = status.phase.as_deref().unwrap_or_default();
        let uid = instance.metadata.uid.as_deref().unwrap_or_default();
        let launcher = if phase == PHASE_RUNNING { launcher_name(instance) } else { String::new() };
        // A line without all three would be a duplicate.
        let interfaces = status
            .interfaces
            .iter()
            .map(|one| [&one.name, &one.interface_name, &one.ip_address].map(|text| kept(text.as_deref())))
            .filter(|texts| texts.iter().any(|text| !text.is_empty()))
            .take(MOST_INTERFACES);
        let mut interfaces: Vec<_> = interfaces.collect();
        interfaces.sort_unstable();
        interfaces.dedup();
        let written = status.memory.as_ref().and_then(|memory| memory.memory_overhead.as_ref());
        let overhead = written.and_then(|written| quantity::bytes(written).ok()).or_else(|| {
            let valid = ValidVmi::new(instance.clone()).ok()?;
            Some(sizing::overhead_bytes(&valid, settings))
        });
        // Exact as a float: far below 2^53.
        #[allow(clippy::cast_precision_loss)]
        let overhead = overhead.map(|bytes| bytes as f64);
        InstanceRow {
            uid: uid.into(),
            phase: phase.into(),
            lower: phase.to_lowercase().into(),
            node: kept(status.node_name.as_deref()),
            described: Described::of(Some(annotations)),
            resources: instancetype.is_some().then(|| Resources::of(&instance.spec)),
            instancetype,
            preference: Named::by_instance(Family::Preference, annotations),
            guest: [
                kept(guest.kernel_release.as_deref()),
                kept(machine),
                kept(guest.machine.as_deref()),
                kept(guest.name.as_deref()),
                kept(guest.version_id.as_deref()),
            ],
            strategy: kept(instance.spec.eviction_strategy.as_deref()),
            movable: Condition::is_set(&status.conditions, CONDITION_LIVE_MIGRATABLE),
            outdated: instance.labels().contains_key(OUTDATED_LAUNCHER_LABEL),
            launcher: launcher.into(),
            interfaces: interfaces.into(),
            vnics: Vnic::all(&instance.spec.domain.devices.interfaces, &instance.spec.networks),
            overhead,
            moved: status.migration_state.as_ref().map(Moved::of),
        }
    }

    /// Whether it is that object, and not another one of the same name.
    pub(super) fn is(&self, instance: &VirtualMachineInstance) -> bool {
        instance.metadata.uid.as_deref() == Some(&*self.uid)
    }

    pub(super) fn phase(&self) -> &str {
        &self.phase
    }

    pub(super) fn node(&self) -> &str {
        &self.node
    }

    /// Whether an eviction can proceed; `strategy` is the cluster's own.
    pub(super) fn is_evictable(&self, strategy: Option<&str>) -> bool {
        let own = Some(&*self.strategy).filter(|own| !own.is_empty());
        match own.or(strategy) {
            Some("LiveMigrate") => self.movable,
            _ => true,
        }
    }

    /// `namespace` is the instance's, and `strategy` the cluster's.
    pub(super) fn labels(&self, namespace: &str, strategy: Option<&str>, vended: &Vended) -> Labels<'_> {
        let word = |yes: bool| if yes { "true" } else { "false" };
        let [kernel_release, machine, arch, name, version] = &self.guest;
        let mut labels: Labels<'_> = vec![("node", &*self.node), ("phase", &*self.lower)];
        labels.extend(self.described.labels());
        labels.extend([
            ("instance_type", vended.label(namespace, self.instancetype.as_ref())),
            ("preference", vended.label(namespace, self.preference.as_ref())),
            ("guest_os_kernel_release", &**kernel_release),
            ("guest_os_machine", &**machine),
            ("guest_os_arch", &**arch),
            ("guest_os_name", &**name),
            ("guest_os_version_id", &**version),
            ("evictable", word(self.is_evictable(strategy))),
            ("outdated", word(self.outdated)),
            ("vmi_pod", &*self.launcher),
        ]);
        labels
    }

    /// The metric lines of its addresses.
    pub(super) fn addresses(&self) -> impl Iterator<Item = [(&'static str, &str); 5]> {
        self.interfaces.iter().map(|[name, in_guest, address]| {
            let kind = if address.is_empty() { "SystemInterface" } else { "ExternalInterface" };
            [
                ("node", &*self.node),
                ("vnic_name", &**name),
                ("interface_name", &**in_guest),
                ("address", &**address),
                ("type", kind),
            ]
        })
    }
}
