//! Settings of guests: defaults and permitted values.

use super::live_update::LiveUpdate;
use crate::architecture::is_machine_type_of_amd64;
use crate::quantity;
use crate::syntax::{is_cpu_model, is_printable};
use crate::v1::{KubeVirtConfiguration, SmBiosConfiguration};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use serde::{Deserialize, Serialize};

/// Machine type of guests that name none.
pub const MACHINE_TYPE: &str = "q35";
/// CPU model of guests that name none.
pub const CPU_MODEL: &str = "host-model";

/// Defaults of guests that the installation may choose.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GuestDefaults {
    /// Machine type.
    pub machine_type: String,
    /// CPU model.
    pub cpu_model: String,
    /// CPU request of the pod, in thousandths; `None` if it follows from the number of CPUs.
    pub cpu_request: Option<u64>,
    /// Binding of the interface that is added by default.
    pub binding: Binding,
    /// Limits of growth at run time; `None` if all changes wait for the next start.
    pub live_update: Option<LiveUpdate>,
    /// What an eviction means for instances that do not say; `None` if the object does not say either.
    pub eviction_strategy: Option<String>,
    /// Guests with an isolated emulator thread get an even number of host CPUs.
    pub even_parity: bool,
}

/// A binding that an interface can have by default.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Binding {
    /// The guest has its own address behind the pod's. KubeVirt's default is `bridge`, see ADR 0001.
    #[default]
    Masquerade,
    /// The guest takes the pod's address over.
    Bridge,
}

impl Binding {
    /// The binding of this name in the `KubeVirt` object.
    pub fn named(name: &str) -> Option<Self> {
        match name {
            "masquerade" => Some(Binding::Masquerade),
            "bridge" => Some(Binding::Bridge),
            _ => None,
        }
    }
}

/// The strategies of evictions by their names.
const EVICTION_STRATEGIES: [&str; 4] = ["None", "LiveMigrate", "LiveMigrateIfPossible", "External"];
/// KubeVirt's default CPU request, which means that the number of CPUs decides.
const CPU_REQUEST: u64 = 100;

impl Default for GuestDefaults {
    fn default() -> Self {
        GuestDefaults {
            machine_type: MACHINE_TYPE.to_owned(),
            cpu_model: CPU_MODEL.to_owned(),
            cpu_request: None,
            binding: Binding::default(),
            live_update: Some(LiveUpdate::default()),
            eviction_strategy: None,
            even_parity: false,
        }
    }
}

impl GuestDefaults {
    /// As in KubeVirt, the machine type for all architectures takes precedence over that for amd64.
    pub(super) fn of_configuration(configuration: &KubeVirtConfiguration) -> Self {
        let built_in = GuestDefaults::default();
        let amd64 = configuration.architecture_configuration.as_ref().and_then(|all| all.amd64.as_ref());
        let machine_types =
            [configuration.machine_type.as_ref(), amd64.and_then(|amd64| amd64.machine_type.as_ref())];
        let is_machine_type = |text: &&&String| !text.is_empty() && is_machine_type_of_amd64(text);
        let machine_type = machine_types.iter().flatten().find(is_machine_type);
        let cpu_model =
            configuration.cpu_model.as_ref().filter(|model| !model.is_empty() && is_cpu_model(model));
        let network = configuration.network.as_ref();
        let binding = network.and_then(|network| network.default_network_interface.as_deref());
        GuestDefaults {
            machine_type: machine_type.map_or(built_in.machine_type, |text| (*text).clone()),
            cpu_model: cpu_model.cloned().unwrap_or(built_in.cpu_model),
            cpu_request: configuration
                .cpu_request
                .as_ref()
                .and_then(|request| quantity::millis(request).ok())
                .filter(|millis| *millis > 0 && *millis != CPU_REQUEST),
            binding: binding.and_then(Binding::named).unwrap_or_default(),
            live_update: LiveUpdate::of_configuration(configuration),
            eviction_strategy: configuration
                .eviction_strategy
                .clone()
                .filter(|strategy| EVICTION_STRATEGIES.contains(&strategy.as_str())),
            even_parity: false,
        }
    }

    /// The CPU request, as Kubernetes writes it.
    pub fn cpu_request(&self) -> Option<Quantity> {
        self.cpu_request.map(quantity::from_millis)
    }
}

/// Machine types that guests may name, as patterns; those for all architectures come first, as in KubeVirt.
/// Empty means all.
pub(super) fn machine_types(configuration: &KubeVirtConfiguration) -> Vec<String> {
    let amd64 = configuration.architecture_configuration.as_ref().and_then(|all| all.amd64.as_ref());
    let of_amd64 = amd64.map(|amd64| amd64.emulated_machines.clone()).unwrap_or_default();
    if configuration.emulated_machines.is_empty() {
        of_amd64
    } else {
        configuration.emulated_machines.clone()
    }
}

/// System information in SMBIOS that guests read. The launcher gets it as JSON.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Smbios {
    /// Maker.
    pub manufacturer: String,
    /// Model.
    pub product: String,
    /// Version of the model.
    pub version: Option<String>,
    /// Order number of the model.
    pub sku: Option<String>,
    /// Family of models.
    pub family: String,
}

/// Longest text of SMBIOS that is accepted.
pub const SMBIOS_LIMIT: usize = 256;

impl Default for Smbios {
    /// KubeVirt's defaults.
    fn default() -> Self {
        Smbios {
            manufacturer: "KubeVirt".to_owned(),
            product: "None".to_owned(),
            version: None,
            sku: None,
            family: "KubeVirt".to_owned(),
        }
    }
}

impl std::str::FromStr for Smbios {
    type Err = serde_json::Error;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        serde_json::from_str(text)
    }
}

impl std::fmt::Display for Smbios {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // Strings always have a JSON form.
        f.write_str(&serde_json::to_string(self).unwrap_or_default())
    }
}

impl Smbios {
    /// As in KubeVirt, each given text replaces its default.
    pub(super) fn of_configuration(configuration: &KubeVirtConfiguration) -> Self {
        let built_in = Smbios::default();
        let Some(SmBiosConfiguration { family, manufacturer, product, sku, version }) = &configuration.smbios
        else {
            return built_in;
        };
        let given = |text: &Option<String>| {
            text.clone().filter(|text| !text.is_empty() && is_printable(text, SMBIOS_LIMIT))
        };
        Smbios {
            manufacturer: given(manufacturer).unwrap_or(built_in.manufacturer),
            product: given(product).unwrap_or(built_in.product),
            version: given(version),
            sku: given(sku),
            family: given(family).unwrap_or(built_in.family),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn of(value: Value) -> GuestDefaults {
        GuestDefaults::of_configuration(&serde_json::from_value(value).unwrap())
    }

    #[test]
    fn machine_type_and_cpu_model() {
        let both = |value: Value| {
            let guest = of(value);
            (guest.machine_type, guest.cpu_model)
        };
        let pair = |machine_type: &str, cpu_model: &str| (machine_type.to_owned(), cpu_model.to_owned());
        assert_eq!(both(json!({})), pair("q35", "host-model"));
        let amd64 = json!({"amd64": {"machineType": "pc-q35-9.2"}});
        assert_eq!(
            both(json!({"architectureConfiguration": amd64, "cpuModel": "Nehalem"})),
            pair("pc-q35-9.2", "Nehalem")
        );
        assert_eq!(
            both(json!({"machineType": "pc-q35-10.0", "architectureConfiguration": amd64})).0,
            "pc-q35-10.0"
        );
        // A value that no guest could have counts as not given.
        assert_eq!(
            both(json!({"machineType": "pc-i440fx-9.0", "cpuModel": "a,b"})),
            pair("q35", "host-model")
        );
    }

    #[test]
    fn an_eviction_strategy_that_no_instance_could_have_counts_as_not_given() {
        let strategy = |name: &str| of(json!({ "evictionStrategy": name })).eviction_strategy;
        assert_eq!(strategy("LiveMigrateIfPossible").as_deref(), Some("LiveMigrateIfPossible"));
        assert_eq!((strategy("Soon"), strategy("")), (None, None));
    }

    #[test]
    fn cpu_request_and_binding() {
        assert_eq!(of(json!({"cpuRequest": "100m"})).cpu_request, None);
        assert_eq!(of(json!({"cpuRequest": "0.25"})).cpu_request().unwrap().0, "250m");
        let binding = |name: &str| of(json!({"network": {"defaultNetworkInterface": name}})).binding;
        assert_eq!((binding("bridge"), binding("masquerade")), (Binding::Bridge, Binding::Masquerade));
        assert_eq!(binding("slirp"), Binding::Masquerade);
    }

    #[test]
    fn the_older_list_of_machine_types_wins() {
        let newer = json!({"amd64": {"emulatedMachines": ["q35*"]}});
        let types = |value: Value| machine_types(&serde_json::from_value(value).unwrap());
        assert_eq!(types(json!({})), Vec::<String>::new());
        assert_eq!(types(json!({"architectureConfiguration": newer})), ["q35*"]);
        assert_eq!(
            types(json!({"architectureConfiguration": newer, "emulatedMachines": ["pc-q35*"]})),
            ["pc-q35*"]
        );
    }

    #[test]
    fn smbios_texts_replace_kubevirts() {
        let of = |value: Value| Smbios::of_configuration(&serde_json::from_value(value).unwrap());
        assert_eq!(of(json!({})), Smbios::default());
        let ours = of(json!({"smbios": {"manufacturer": "Acme", "sku": "7", "product": "a\nb"}}));
        assert_eq!((ours.manufacturer.as_str(), ours.product.as_str()), ("Acme", "None"));
        assert_eq!(ours.to_string().parse::<Smbios>().unwrap(), ours);
        assert_eq!("{}".parse::<Smbios>().unwrap(), Smbios::default());
        assert_eq!((ours.sku.as_deref(), ours.version, ours.family.as_str()), (Some("7"), None, "KubeVirt"));
    }
}
