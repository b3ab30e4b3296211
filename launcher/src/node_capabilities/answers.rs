//! QEMU's answers, and the capabilities that follow from them. Pure.
//!
//! Features are compared by libvirt's names, which KubeVirt's users write. QEMU lists each of its properties
//! under every spelling it ever had, and a manifest may use any of them, so all are reported.

use std::collections::{BTreeMap, BTreeSet};

use barevirt_api::validate::is_machine_type_of_amd64;
use barevirt_protocol::capabilities::Capabilities;
use barevirt_qmp::qapi::qmp::{CpuDefinitionInfo, CpuModelInfo, MachineInfo};
use serde_json::Value;

/// Whether no feature of the model is missing here.
fn is_usable(model: &CpuDefinitionInfo) -> bool {
    model.unavailable_features.as_ref().is_some_and(Vec::is_empty)
}

/// Whether the model stands for a CPU. The others stand for all features of the accelerator, or for none.
fn is_named(model: &CpuDefinitionInfo) -> bool {
    model.migration_safe == Some(true) && model.name != "base"
}

fn vendor_id(model: &CpuModelInfo) -> &str {
    model.props.as_ref().and_then(|props| props.get("vendor")?.as_str()).unwrap_or_default()
}

fn on(model: &CpuModelInfo) -> impl Iterator<Item = &str> {
    let on = model.props.iter().flatten().filter(|(_, value)| **value == Value::Bool(true));
    on.map(|(name, _)| name.as_str())
}

/// The features of an expanded model, each once.
fn features(model: &CpuModelInfo) -> BTreeSet<&str> {
    on(model).filter_map(feature).collect()
}

/// The features of an expanded model under all of their names.
fn spellings(model: &CpuModelInfo) -> BTreeSet<&str> {
    on(model).filter_map(|name| Some([name, feature(name)?])).flatten().collect()
}

/// All answers of one QEMU.
#[derive(Clone, Debug)]
pub struct Answers {
    /// The accelerator.
    pub accelerator: String,
    /// CPU models.
    pub definitions: Vec<CpuDefinitionInfo>,
    /// Machine types.
    pub machines: Vec<MachineInfo>,
    /// The node's own CPU, as far as guests can have it.
    pub host: CpuModelInfo,
    /// The models of [`Answers::candidates`], expanded.
    pub models: BTreeMap<String, CpuModelInfo>,
    /// Whether memory encryption is available.
    pub sev: bool,
}

impl Answers {
    /// Models that may describe the node's own CPU: guests can have all of their features here.
    #[must_use]
    pub fn candidates(&self) -> Vec<String> {
        let fit = |one: &&CpuDefinitionInfo| is_named(one) && is_usable(one) && one.alias_of.is_none();
        self.definitions.iter().filter(fit).map(|one| one.name.clone()).collect()
    }

    /// The features that guests can have.
    #[must_use]
    pub fn capabilities(&self) -> Capabilities {
        let names = |usable: bool| {
            let fit = |one: &&CpuDefinitionInfo| is_named(one) && (!usable || is_usable(one));
            let names: BTreeSet<&str> =
                self.definitions.iter().filter(fit).map(|one| one.name.as_str()).collect();
            owned(names)
        };
        let host = features(&self.host);
        let near = self.nearest(&host);
        let beyond = near.map(|near| host.difference(&features(near.1)).copied().collect());
        let machine_types = |deprecated: bool| {
            let machines = self.machines.iter().filter(|one| !deprecated || one.deprecated);
            let names = machines.flat_map(|one| [Some(&one.name), one.alias.as_ref()]).flatten();
            owned(names.map(String::as_str).filter(|name| is_machine_type_of_amd64(name)).collect())
        };
        Capabilities {
            accelerator: self.accelerator.clone(),
            vendor: vendor(vendor_id(&self.host)).to_owned(),
            known_models: names(false),
            usable_models: names(true),
            host_model: near.map(|(name, _)| self.shown_name(name).to_owned()),
            host_model_features: owned(beyond.unwrap_or_default()),
            features: owned(spellings(&self.host)),
            machine_types: machine_types(false),
            deprecated_machine_types: machine_types(true),
            sev: self.sev,
            ..Capabilities::default()
        }
    }

    /// The model that has most of the host's features. If possible it has the same vendor, because a guest's
    /// kernel checks the vendor, too. Emulation has no vendor of its own.
    fn nearest(&self, host: &BTreeSet<&str>) -> Option<(&String, &CpuModelInfo)> {
        let emulated = self.accelerator == "tcg";
        self.models.iter().max_by_key(|(name, model)| {
            let related = emulated || vendor_id(model) == vendor_id(&self.host);
            (related, features(model).intersection(host).count(), *name)
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

    fn expansion(vendor: &str, on: &[&str]) -> CpuModelInfo {
        let mut props = json!({"vendor": vendor, "avx512f": false});
        on.iter().for_each(|name| props[name] = json!(true));
        serde_json::from_value(json!({"name": "base", "props": props})).unwrap()
    }

    fn definition(name: &str, missing: Option<&[&str]>, alias_of: Option<&str>) -> CpuDefinitionInfo {
        CpuDefinitionInfo {
            name: name.to_owned(),
            unavailable_features: missing.map(|missing| missing.iter().copied().map(str::to_owned).collect()),
            alias_of: alias_of.map(str::to_owned),
            migration_safe: Some(name != "host"),
            deprecated: false,
            static_: false,
            typename: String::new(),
        }
    }

    fn definitions() -> Vec<CpuDefinitionInfo> {
        vec![
            definition("host", Some(&[]), None),
            definition("base", Some(&[]), None),
            definition("Old-v1", Some(&[]), None),
            definition("New-v1", Some(&["avx512f"]), None),
            definition("Mid-v2", Some(&[]), None),
            definition("Mid-IBRS", Some(&[]), Some("Mid-v2")),
            definition("Rival-v1", Some(&[]), None),
            definition("Unsure-v1", None, None),
        ]
    }

    fn machine((name, alias): (&str, Option<&str>)) -> MachineInfo {
        serde_json::from_value(
            json!({"name": name, "alias": alias, "acpi": true, "cpu-max": 255, "deprecated": false,
            "hotpluggable-cpus": true, "numa-mem-supported": true}),
        )
        .unwrap()
    }

    fn answers(accelerator: &str) -> Answers {
        Answers {
            accelerator: accelerator.to_owned(),
            definitions: definitions(),
            machines: [("pc-q35-10.0", Some("q35")), ("pc-i440fx-10.0", Some("pc")), ("none", None)]
                .map(machine)
                .into(),
            host: expansion(
                "GenuineIntel",
                &["sse", "sse3", "pni", "sse4-1", "sse4.1", "aes", "kvm-mmu", "x-force", "migratable"],
            ),
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

    #[test]
    fn deprecated_machine_types_are_among_them() {
        let mut answers = answers("kvm");
        for name in ["pc-q35-6.2", "pc-i440fx-6.2"] {
            answers.machines.push(MachineInfo { deprecated: true, ..machine((name, None)) });
        }
        let capabilities = answers.capabilities();
        assert_eq!(capabilities.machine_types, ["pc-q35-10.0", "pc-q35-6.2", "q35"]);
        assert_eq!(capabilities.deprecated_machine_types, ["pc-q35-6.2"]);
    }
}
