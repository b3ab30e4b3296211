//! The CPU: its model, and the features added to it or removed.

use super::dedicated;
use super::enlightenments::Enlightenments;
use crate::cpu::{Cpu, CpuModel, Flag};
use crate::error::PlanError;
use crate::facts::{Accelerator, Facts};
use crate::host_cpu::{HOST_MODEL, HOST_PASSTHROUGH, HostCpu, feature_name};
use barevirt_api::v1::CpuFeature;
use barevirt_api::valid::ValidVmi;

/// CPUs that a q35 machine supports without an interrupt-remapping IOMMU.
const MAX_CPUS: u32 = 255;

pub(super) fn plan(vmi: &ValidVmi, facts: &Facts, enlightenments: &Enlightenments) -> Result<Cpu, PlanError> {
    let topology = vmi.topology();
    if topology.max_vcpus() > MAX_CPUS {
        let field = "spec.domain.cpu".to_owned();
        return Err(PlanError::TooManyCpus { field, cpus: topology.max_vcpus(), limit: MAX_CPUS });
    }
    let cpu = vmi.spec().domain.cpu.as_ref();
    let features = cpu.map(|cpu| cpu.features.as_slice()).unwrap_or_default();
    let model = model(vmi, facts, features)?;
    let mut flags = Vec::new();
    for (index, feature) in features.iter().enumerate() {
        let field = format!("spec.domain.cpu.features[{index}]");
        flags.push(flag(feature, facts.host_cpu.as_ref(), field)?);
    }
    flags.extend(enlightenments.flags.iter().cloned());
    flags.extend(dedicated::flags(vmi, &facts.accelerator));
    let sockets = facts.sockets.unwrap_or(topology.sockets).clamp(1, topology.max_sockets.max(1));
    Ok(Cpu { model, flags, topology, sockets })
}

fn model(vmi: &ValidVmi, facts: &Facts, features: &[CpuFeature]) -> Result<CpuModel, PlanError> {
    let kvm = matches!(facts.accelerator, Accelerator::Kvm { .. });
    let name = match (vmi.cpu_model(), kvm) {
        (HOST_MODEL | HOST_PASSTHROUGH, false) => return Ok(CpuModel::Max),
        (HOST_PASSTHROUGH, true) => return Ok(CpuModel::Host),
        (HOST_MODEL, true) => {
            let spelled = facts.host_cpu.as_ref().map(HostCpu::spelled);
            return Ok(spelled.map_or(CpuModel::Host, CpuModel::Spelled));
        }
        (name, _) => name,
    };
    let refused = |why| {
        let (field, value) = ("spec.domain.cpu.model".to_owned(), name.to_owned());
        PlanError::Unsupported { field, value, why }
    };
    if let (true, Some(host)) = (kvm, &facts.host_cpu) {
        let Some(lacking) = host.lacking() else {
            return Err(refused("QEMU has no CPU model of that name"));
        };
        // Missing features that the manifest itself switches are checked below.
        let settled =
            |lacks: &str| features.iter().any(|given| feature_name(&given.name) == feature_name(lacks));
        let missing: Vec<&str> =
            lacking.iter().map(String::as_str).filter(|feature| !settled(feature)).collect();
        if !missing.is_empty() {
            let (field, model) = ("spec.domain.cpu.model".to_owned(), name.to_owned());
            return Err(PlanError::CpuLacks { field, model, features: missing.join(", ") });
        }
    }
    Ok(CpuModel::Named(name.to_owned()))
}

/// The flag for a feature and its policy. The default policy is `require`.
fn flag(feature: &CpuFeature, host: Option<&HostCpu>, field: String) -> Result<Flag, PlanError> {
    let name = feature_name(&feature.name);
    let refused = |field: &str, why| {
        let (field, value) = (format!("{field}.name"), feature.name.clone());
        Err(PlanError::Unsupported { field, value, why })
    };
    let Some(host) = host else {
        return refused(&field, "the host was not asked for its CPU features");
    };
    if !host.knows(&name) {
        return refused(&field, "QEMU has no CPU feature of that name");
    }
    let offered = host.offers(&name);
    let on = match (feature.policy.as_deref().unwrap_or_default(), offered) {
        ("force", _) | ("" | "require" | "optional", true) => true,
        ("disable", _) | ("optional" | "forbid", false) => false,
        ("" | "require", false) => return refused(&field, "this node has no such CPU feature"),
        ("forbid", true) => return refused(&field, "this node has that CPU feature"),
        (other, _) => {
            let (field, value) = (format!("{field}.policy"), other.to_owned());
            let why = "force, require, optional, disable and forbid are";
            return Err(PlanError::Unsupported { field, value, why });
        }
    };
    Ok(Flag::switch(&name, on))
}

#[cfg(test)]
mod tests;
