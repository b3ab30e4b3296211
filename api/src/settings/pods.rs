//! Settings of launcher pods.

use super::NodeDisk;
use crate::quantity;
use crate::v1::{DeveloperConfiguration, KubeVirtConfiguration, ResourceRequirementsWithoutClaims};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use std::collections::BTreeMap;

/// Settings that every launcher pod gets.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Pods {
    /// Labels of nodes, in addition to those of the instance, which take precedence.
    pub node_selectors: BTreeMap<String, String>,
    /// Container runtime.
    pub runtime_class: Option<String>,
    /// Seccomp profile.
    pub seccomp: Seccomp,
    /// Factor on the memory that QEMU and the launcher need.
    pub overhead: Factor,
    /// Resources of the helper of a container disk, if they replace the built-in ones.
    pub container_disk: HelperResources,
    /// The same for the program of an attachment pod.
    pub hotplug_disk: HelperResources,
    /// The same for the program that shares a directory.
    pub virtiofs: HelperResources,
    /// Labels of namespaces where a pod that has no CPU limit gets one.
    pub cpu_limit: Option<LabelSelector>,
    /// Limits that quotas of the pod's namespace require; set by callers that have read the namespace.
    pub quota: QuotaLimits,
    /// Whether images of container disks are volumes of the pod instead of containers; set by callers that
    /// know that the cluster supports such volumes, because the feature gate alone does not say so.
    pub image_volumes: bool,
    /// Image of passt; set by callers that know it.
    pub passt_image: Option<String>,
    /// Storage class of the claims that keep UEFI variables and TPM state.
    pub state_class: Option<String>,
    /// Free space for new disks on claims.
    pub room: Room,
    /// Whether the serial console of guests is not logged, unless a guest requests it.
    pub without_serial_log: bool,
    /// Whether guests do not report free memory.
    pub without_free_page_reporting: bool,
    /// Seconds between two reports of a guest's memory, if given; 0: there are none.
    pub memory_report_seconds: Option<u32>,
    /// How much of the node's disk guests may take; from annotations of the object.
    pub node_disk: NodeDisk,
}

/// Free space for a new disk on a claim's file system.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Room {
    /// Bytes that stay free.
    pub reserve: u64,
    /// By how many percent the disk may be smaller than requested.
    pub tolerated_percent: u8,
}

impl Default for Room {
    /// KubeVirt's defaults.
    fn default() -> Self {
        Room { reserve: 128 << 10, tolerated_percent: 10 }
    }
}

impl Room {
    /// The installation's values; a value out of range counts as not given.
    fn of(developer: &DeveloperConfiguration) -> Self {
        let usual = Room::default();
        let percent = developer.pvc_tolerate_less_space_up_to_percent;
        let percent =
            percent.and_then(|percent| u8::try_from(percent).ok()).filter(|percent| *percent <= 100);
        let reserve = developer.minimum_reserve_pvc_bytes.and_then(|bytes| u64::try_from(bytes).ok());
        Room {
            reserve: reserve.unwrap_or(usual.reserve),
            tolerated_percent: percent.unwrap_or(usual.tolerated_percent),
        }
    }
}

/// Seccomp profile of a pod.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Seccomp {
    /// The container runtime's own profile. KubeVirt's default is no filter; Pod Security's `restricted`
    /// requires one.
    #[default]
    RuntimeDefault,
    /// A file beneath the kubelet's directory of profiles.
    Localhost(String),
}

/// Limits that a pod without limits of its own gets if a quota of its namespace counts limits: such a quota
/// admits no pod without them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct QuotaLimits {
    /// Whether it gets a CPU limit.
    pub cpu: bool,
    /// Whether it gets a memory limit, this many times the request.
    pub memory: Option<Factor>,
}

impl QuotaLimits {
    /// Default factor of the memory limit: twice the request, as in KubeVirt.
    pub const MEMORY: Factor = Factor(2000);
}

/// A factor of at least one, in thousandths.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Factor(u64);

impl Default for Factor {
    fn default() -> Self {
        Factor(1000)
    }
}

impl Factor {
    /// A decimal number as text; `None` if it is not a number, below one or above a thousand.
    pub fn parse(text: &str) -> Option<Self> {
        let (whole, part) = text.split_once('.').unwrap_or((text, ""));
        let digits = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit());
        if whole.is_empty() || whole.len() > 4 || part.len() > 18 || !digits(whole) || !digits(part) {
            return None;
        }
        // Further digits would change less than a kibibyte per mebibyte, so they are rounded up.
        let (head, tail) = part.split_at(part.len().min(3));
        let mut thousandths: u64 = format!("{whole}{head:0<3}").parse().ok()?;
        if tail.bytes().any(|byte| byte != b'0') {
            thousandths += 1;
        }
        (1000..=1_000_000).contains(&thousandths).then_some(Factor(thousandths))
    }

    /// The multiple of an amount, rounded up.
    pub fn times(self, amount: u64) -> u64 {
        let product = (u128::from(amount) * u128::from(self.0)).div_ceil(1000);
        u64::try_from(product).unwrap_or(u64::MAX)
    }
}

/// Requests and limits that replace built-in ones.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct HelperResources {
    /// Requests for `cpu` and `memory`.
    pub requests: BTreeMap<String, Quantity>,
    /// Limits for `cpu` and `memory`.
    pub limits: BTreeMap<String, Quantity>,
}

/// Resources that can be given to a helper.
pub const HELPER_RESOURCES: [&str; 2] = ["cpu", "memory"];
/// The configurable helpers, by KubeVirt's names.
pub const HELPERS: [&str; 3] = [CONTAINER_DISK, HOTPLUG_DISK, VIRTIOFS];
const CONTAINER_DISK: &str = "container-disk";
const HOTPLUG_DISK: &str = "hotplug-disk";
const VIRTIOFS: &str = "virtiofs";

impl HelperResources {
    fn of(given: &ResourceRequirementsWithoutClaims) -> Self {
        let taken = |given: &BTreeMap<String, Quantity>| {
            let taken = given.iter().filter(|(name, quantity)| {
                HELPER_RESOURCES.contains(&name.as_str())
                    && quantity::millis(quantity).is_ok_and(|millis| millis > 0)
            });
            taken.map(|(name, quantity)| (name.clone(), quantity.clone())).collect()
        };
        HelperResources { requests: taken(&given.requests), limits: taken(&given.limits) }
    }
}

impl Pods {
    pub(super) fn of_configuration(configuration: &KubeVirtConfiguration) -> Self {
        let developer = configuration.developer_configuration.as_ref();
        let options = configuration.virtual_machine_options.as_ref();
        let profile = configuration
            .seccomp_configuration
            .as_ref()
            .and_then(|seccomp| seccomp.virtual_machine_instance_profile.as_ref())
            .and_then(|profile| profile.custom_profile.as_ref())
            .and_then(|custom| custom.localhost_profile.clone());
        let helper = |kind: &str| {
            let mut given = configuration.support_container_resources.iter();
            let given = given.find(|helper| helper.type_ == kind);
            given.map(|helper| HelperResources::of(&helper.resources)).unwrap_or_default()
        };
        Pods {
            node_selectors: developer.map(|developer| developer.node_selectors.clone()).unwrap_or_default(),
            runtime_class: configuration.default_runtime_class.clone().filter(|name| !name.is_empty()),
            seccomp: profile.map_or(Seccomp::RuntimeDefault, Seccomp::Localhost),
            overhead: configuration
                .additional_guest_memory_overhead_ratio
                .as_deref()
                .and_then(Factor::parse)
                .unwrap_or_default(),
            container_disk: helper(CONTAINER_DISK),
            hotplug_disk: helper(HOTPLUG_DISK),
            virtiofs: helper(VIRTIOFS),
            cpu_limit: configuration.auto_cpu_limit_namespace_label_selector.clone(),
            quota: QuotaLimits::default(),
            node_disk: NodeDisk::default(),
            image_volumes: false,
            passt_image: None,
            room: developer.map(Room::of).unwrap_or_default(),
            state_class: configuration.vm_state_storage_class.clone().filter(|name| !name.is_empty()),
            without_serial_log: options.is_some_and(|options| options.disable_serial_console_log.is_some()),
            without_free_page_reporting: options
                .is_some_and(|options| options.disable_free_page_reporting.is_some()),
            memory_report_seconds: configuration
                .mem_balloon_stats_period
                .and_then(|seconds| u32::try_from(seconds).ok()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn room_that_is_out_of_range_counts_as_not_given() {
        let of = |reserve: i64, percent: i32| {
            let configuration = json!({"developerConfiguration":
                {"minimumReservePVCBytes": reserve, "pvcTolerateLessSpaceUpToPercent": percent}});
            Pods::of_configuration(&serde_json::from_value(configuration).unwrap()).room
        };
        assert_eq!(of(0, 0), Room { reserve: 0, tolerated_percent: 0 });
        assert_eq!(of(1 << 30, 100), Room { reserve: 1 << 30, tolerated_percent: 100 });
        assert_eq!(of(-1, 101), Room::default());
        assert_eq!(of(131_072, -1), Room::default());
    }

    #[test]
    fn a_factor_is_at_least_one() {
        for text in ["", "0.999", "-1", "1e3", "nan", "1.0.0", " 1", "1001", ".5"] {
            assert_eq!(Factor::parse(text), None, "{text:?}");
        }
        for (text, of_a_million) in
            [("1", 1_000_000), ("1.5", 1_500_000), ("1.0001", 1_001_000), ("2.", 2_000_000)]
        {
            assert_eq!(
                Factor::parse(text).map(|factor| factor.times(1_000_000)),
                Some(of_a_million),
                "{text}"
            );
        }
        assert_eq!(Factor::default().times(u64::MAX), u64::MAX);
        assert_eq!(Factor::parse("3").unwrap().times(u64::MAX), u64::MAX);
    }

    #[test]
    fn pods_get_what_is_configured() {
        let configuration: KubeVirtConfiguration = serde_json::from_value(json!({
            "developerConfiguration": {"nodeSelectors": {"disk": "ssd"}},
            "defaultRuntimeClass": "kata",
            "virtualMachineOptions": {"disableSerialConsoleLog": {}, "disableFreePageReporting": {}},
            "memBalloonStatsPeriod": 0,
            "seccompConfiguration": {"virtualMachineInstanceProfile": {"customProfile": {"localhostProfile": "vm.json"}}},
            "supportContainerResources": [
                {"type": "hotplug-disk", "resources": {"limits": {"memory": "1Gi"}}},
                {"type": "container-disk",
                    "resources": {"limits": {"cpu": "0", "memory": "80Mi"}, "requests": {"cpu": "2m"}}},
            ],
        }))
        .unwrap();
        let pods = Pods::of_configuration(&configuration);
        assert_eq!(pods.node_selectors.get("disk").map(String::as_str), Some("ssd"));
        assert_eq!(pods.runtime_class.as_deref(), Some("kata"));
        assert_eq!(pods.seccomp, Seccomp::Localhost("vm.json".into()));
        assert!(pods.without_serial_log && pods.without_free_page_reporting);
        assert_eq!(pods.memory_report_seconds, Some(0));
        let amounts = |list: &BTreeMap<String, Quantity>| {
            list.iter().map(|(name, quantity)| format!("{name}={}", quantity.0)).collect::<Vec<_>>()
        };
        assert_eq!(amounts(&pods.container_disk.limits), ["memory=80Mi"]);
        assert_eq!(amounts(&pods.container_disk.requests), ["cpu=2m"]);
        assert_eq!(amounts(&pods.hotplug_disk.limits), ["memory=1Gi"]);
        assert_eq!(amounts(&pods.hotplug_disk.requests), [""; 0]);
        assert_eq!(Pods::of_configuration(&KubeVirtConfiguration::default()), Pods::default());
    }
}
