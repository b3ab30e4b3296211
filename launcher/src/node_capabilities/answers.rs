//! QEMU's answers, and the capabilities that follow from them. Pure.
//!
//! Features are compared by libvirt's names, which KubeVirt's users write. QEMU lists each of its properties
//! under every spelling it ever had, and a manifest may use any of them, so all are reported.

use std::collections::{BTreeMap, BTreeSet};

use barevirt_api::validate::is_machine_type_of_amd64;
use barevirt_protocol::capabilities::Capabilities;
use serde::Deserialize;
use serde_json::Value;

/// An entry of `query-cpu-definitions`.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "kebab-case")]
pub struct Definition {
    /// The model's name.
    pub name: String,
    /// Features that are missing here; `None` if unknown.
    pub unavailable_features: Option<Vec<String>>,
    /// The model that this name is an alias of.
    pub alias_of: Option<String>,
    /// Whether it is the same on every host.
    pub migration_safe: bool,
}

impl Definition {
    fn is_usable(&self) -> bool {
        self.unavailable_features.as_ref().is_some_and(Vec::is_empty)
    }

    /// Whether the model stands for a CPU. The others stand for all features of the accelerator, or for none.
    fn is_named(&self) -> bool {
        self.migration_safe && self.name != "base"
    }
}

/// The answer of `query-cpu-model-expansion`.
#[derive(Clone, Debug, Default, Deserialize)]
pub struct Expansion {
    model: Model,
}

#[derive(Clone, Debug, Default, Deserialize)]
struct Model {
    props: BTreeMap<String, Value>,
}

/// An entry of `query-machines`.
#[derive(Clone, Debug, Default, Deserialize)]
pub struct Machine {
    name: String,
    #[serde(default)]
    alias: Option<String>,
}

impl Expansion {
    fn vendor(&self) -> &str {
        self.model.props.get("vendor").and_then(Value::as_str).unwrap_or_default()
    }

    fn on(&self) -> impl Iterator<Item = &str> {
        let on = self.model.props.iter().filter(|(_, value)| **value == Value::Bool(true));
        on.map(|(name, _)| name.as_str())
    }

    /// The features, each once.
    fn features(&self) -> BTreeSet<&str> {
        self.on().filter_map(feature).collect()
    }

    /// The features under all of their names.
    fn spellings(&self) -> BTreeSet<&str> {
        let names = self.on().filter_map(|name| Some([name, feature(name)?]));
        names.flatten().collect()
    }
}

/// All answers of one QEMU.
#[derive(Clone, Debug, Default)]
pub struct Answers {
    /// The accelerator.
    pub accelerator: String,
    /// CPU models.
    pub definitions: Vec<Definition>,
    /// Machine types.
    pub machines: Vec<Machine>,
    /// The node's own CPU, as far as guests can have it.
    pub host: Expansion,
    /// The models of [`Answers::candidates`].
    pub models: BTreeMap<String, Expansion>,
    /// Whether memory encryption is available.
    pub sev: bool,
}

impl Answers {
    /// Models that may describe the node's own CPU: guests can have all of their features here.
    #[must_use]
    pub fn candidates(&self) -> Vec<String> {
        let fit = |one: &&Definition| one.is_named() && one.is_usable() && one.alias_of.is_none();
        self.definitions.iter().filter(fit).map(|one| one.name.clone()).collect()
    }

    /// The features that guests can have.
    #[must_use]
    pub fn capabilities(&self) -> Capabilities {
        let names = |usable: bool| {
            let fit = |one: &&Definition| one.is_named() && (!usable || one.is_usable());
            let names: BTreeSet<&str> =
                self.definitions.iter().filter(fit).map(|one| one.name.as_str()).collect();
            owned(names)
        };
        let host = self.host.features();
        let near = self.nearest(&host);
        let beyond = near.map(|near| host.difference(&near.1.features()).copied().collect());
        let machine_types = self.machines.iter().flat_map(|one| [Some(&one.name), one.alias.as_ref()]);
        let machine_types =
            machine_types.flatten().map(String::as_str).filter(|name| is_machine_type_of_amd64(name));
        Capabilities {
            accelerator: self.accelerator.clone(),
            vendor: vendor(self.host.vendor()).to_owned(),
            known_models: names(false),
            usable_models: names(true),
            host_model: near.map(|(name, _)| self.shown_name(name).to_owned()),
            host_model_features: owned(beyond.unwrap_or_default()),
            features: owned(self.host.spellings()),
            machine_types: owned(machine_types.collect()),
            sev: self.sev,
            ..Capabilities::default()
        }
    }

    /// The model that has most of the host's features. If possible it has the same vendor, because a guest's
    /// kernel checks the vendor, too. Emulation has no vendor of its own.
    fn nearest(&self, host: &BTreeSet<&str>) -> Option<(&String, &Expansion)> {
        let emulated = self.accelerator == "tcg";
        self.models.iter().max_by_key(|(name, model)| {
            let related = emulated || model.vendor() == self.host.vendor();
            (related, model.features().intersection(host).count(), *name)
        })
    }

    /// The name without a version, if the model has one.
    fn shown_name<'a>(&'a self, name: &'a str) -> &'a str {
        let aliases = self.definitions.iter().filter(|one| one.alias_of.as_deref() == Some(name));
        aliases.map(|one| one.name.as_str()).min_by_key(|alias| alias.len()).unwrap_or(name)
    }
}

fn owned(names: BTreeSet<&str>) -> Vec<String> {
    names.into_iter().map(str::to_owned).collect()
}

/// libvirt's name of a vendor.
fn vendor(id: &str) -> &str {
    match id {
        "GenuineIntel" => "Intel",
        "AuthenticAMD" => "AMD",
        "HygonGenuine" => "Hygon",
        "CentaurHauls" => "VIA",
        other => other.trim(),
    }
}

/// libvirt's name of the feature for a property; `None` if the property is not a feature.
fn feature(property: &str) -> Option<&str> {
    const OTHER: [&str; 22] = [
        "check",
        "cpuid-0xb",
        "enforce",
        "fill-mtrr-mask",
        "full-cpuid-auto-level",
        "host-cache-info",
        "host-phys-bits",
        "kvm",
        "kvmclock",
        "kvmclock-stable-bit",
        "l3-cache",
        "legacy-cache",
        "legacy-multi-node",
        "lmce",
        "migratable",
        "pmu",
        "realized",
        "start-powered-off",
        "tcg-cpuid",
        "vmware-cpuid-freq",
        "xen-vapic",
        "hotpluggable",
    ];
    const PREFIXES: [&str; 4] = ["hv-", "kvm-", "kvm_", "x-"];
    if OTHER.contains(&property) || PREFIXES.iter().any(|prefix| property.starts_with(prefix)) {
        return None;
    }
    Some(match property {
        "sse3" => "pni",
        "sse4-1" | "sse4_1" => "sse4.1",
        "sse4-2" | "sse4_2" => "sse4.2",
        "i64" => "lm",
        "xd" => "nx",
        "pclmulqdq" => "pclmuldq",
        "ffxsr" | "fxsr-opt" => "fxsr_opt",
        "cmp-legacy" => "cmp_legacy",
        "ds-cpl" => "ds_cpl",
        "lahf-lm" => "lahf_lm",
        "nodeid-msr" => "nodeid_msr",
        "perfctr-core" => "perfctr_core",
        "perfctr-nb" => "perfctr_nb",
        "tsc-adjust" => "tsc_adjust",
        "nrip_save" => "nrip-save",
        "pause_filter" => "pause-filter",
        "svm_lock" => "svm-lock",
        "tsc_scale" => "tsc-scale",
        "vmcb_clean" => "vmcb-clean",
        other => other,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn expansion(vendor: &str, on: &[&str]) -> Expansion {
        let mut props: BTreeMap<String, Value> =
            on.iter().map(|name| ((*name).to_owned(), json!(true))).collect();
        props.insert("vendor".to_owned(), json!(vendor));
        props.insert("avx512f".to_owned(), json!(false));
        Expansion { model: Model { props } }
    }

    fn definitions() -> Vec<Definition> {
        serde_json::from_value(json!([
            {"name": "host", "unavailable-features": [], "migration-safe": false},
            {"name": "base", "unavailable-features": [], "migration-safe": true},
            {"name": "Old-v1", "unavailable-features": [], "migration-safe": true},
            {"name": "New-v1", "unavailable-features": ["avx512f"], "migration-safe": true},
            {"name": "Mid-v2", "unavailable-features": [], "migration-safe": true},
            {"name": "Mid-IBRS", "unavailable-features": [], "migration-safe": true, "alias-of": "Mid-v2"},
            {"name": "Rival-v1", "unavailable-features": [], "migration-safe": true},
            {"name": "Unsure-v1", "migration-safe": true},
        ]))
        .unwrap()
    }

    fn answers(accelerator: &str) -> Answers {
        Answers {
            accelerator: accelerator.to_owned(),
            definitions: definitions(),
            machines: serde_json::from_value(json!([
                {"name": "pc-q35-10.0", "alias": "q35"}, {"name": "pc-i440fx-10.0", "alias": "pc"}, {"name": "none"},
            ]))
            .unwrap(),
            host: expansion("GenuineIntel", &["sse", "sse3", "pni", "sse4-1", "sse4.1", "aes", "kvm-mmu", "x-force", "migratable"]),
            models: [
                ("Old-v1", expansion("GenuineIntel", &["sse"])),
                ("Mid-v2", expansion("GenuineIntel", &["sse", "pni", "sse3", "hypervisor"])),
                ("Rival-v1", expansion("AuthenticAMD", &["sse", "pni", "aes"])),
            ]
            .map(|(name, model)| (name.to_owned(), model))
            .into(),
            sev: false,
        }
    }

    #[test]
    fn models_with_nothing_missing_are_usable() {
        let capabilities = answers("kvm").capabilities();
        assert_eq!(capabilities.usable_models, ["Mid-IBRS", "Mid-v2", "Old-v1", "Rival-v1"]);
        assert_eq!(
            capabilities.known_models,
            ["Mid-IBRS", "Mid-v2", "New-v1", "Old-v1", "Rival-v1", "Unsure-v1"]
        );
        assert_eq!(answers("kvm").candidates(), ["Old-v1", "Mid-v2", "Rival-v1"]);
    }

    #[test]
    fn features_have_all_their_names_and_other_properties_none() {
        let capabilities = answers("kvm").capabilities();
        assert_eq!(capabilities.features, ["aes", "pni", "sse", "sse3", "sse4-1", "sse4.1"]);
        assert_eq!((capabilities.vendor.as_str(), capabilities.accelerator.as_str()), ("Intel", "kvm"));
    }

    #[test]
    fn the_host_model_is_the_nearest_of_its_vendor() {
        let capabilities = answers("kvm").capabilities();
        assert_eq!(capabilities.host_model.as_deref(), Some("Mid-IBRS"));
        assert_eq!(capabilities.host_model_features, ["aes", "sse4.1"]);
        let emulated = answers("tcg").capabilities();
        assert_eq!(emulated.host_model.as_deref(), Some("Rival-v1"));
        assert_eq!(emulated.host_model_features, ["sse4.1"]);
    }

    #[test]
    fn machine_types_are_those_that_guests_may_have() {
        assert_eq!(answers("kvm").capabilities().machine_types, ["pc-q35-10.0", "q35"]);
    }
}
