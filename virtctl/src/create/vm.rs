//! create vm.
//!
//! The order of the steps is KubeVirt's, since it decides from which volume a machine starts and from which one its instance
//! type is inferred: container disks, claims, data sources, cloned claims, blank volumes, imported volumes, sysprep,
//! credentials, cloud-init. A step sees what those before it made.

mod access;
mod arguments;
mod cloud_init;
mod draft;
mod import;
mod infer;
mod volumes;

use std::collections::BTreeMap;

use super::params::{self, flag_error};
use crate::{random, yaml};
pub(super) use arguments::Vm;
use barevirt_api::gates::Gates;
use barevirt_api::v1::{InstancetypeMatcher, Memory, PreferenceMatcher, VirtualMachine};
use barevirt_api::validate::{self, CauseKind, Requester};
use draft::{CloudInit, Draft};

const RUN_STRATEGIES: [&str; 5] = ["Always", "Manual", "Halted", "Once", "RerunOnFailure"];
const INSTANCETYPES: [&str; 2] = ["virtualmachineinstancetype", "virtualmachineclusterinstancetype"];
const PREFERENCES: [&str; 2] = ["virtualmachinepreference", "virtualmachineclusterpreference"];

impl Vm {
    pub(super) fn manifest(&self, namespace: Option<&str>) -> anyhow::Result<String> {
        let (vm, warnings) = self.made(namespace)?;
        for warning in warnings {
            eprintln!("{warning}");
        }
        yaml::text(&vm)
    }

    /// The machine, and the warnings about its manifest.
    pub(super) fn made(&self, namespace: Option<&str>) -> anyhow::Result<(VirtualMachine, Vec<String>)> {
        let Draft { vm, mut warnings, .. } = self.draft(namespace)?;
        warnings.extend(not_there(&vm));
        Ok((vm, warnings))
    }

    fn draft(&self, namespace: Option<&str>) -> anyhow::Result<Draft> {
        let mut draft = self.start(namespace)?;
        self.kinds(&mut draft)?;
        volumes::container_disks(&mut draft, &self.volume_containerdisk)?;
        volumes::claims(&mut draft, &self.volume_pvc)?;
        import::volumes(&mut draft, &self.imports(|warning| eprintln!("{warning}"))?)?;
        if let Some(text) = &self.volume_sysprep {
            volumes::sysprep(&mut draft, text)?;
        }
        draft.cloud_init = CloudInit { kind: self.cloud_init.clone(), manage_ssh: self.ga_manage_ssh };
        for text in &self.access_cred {
            access::credential(&mut draft, text, self.user.as_deref())?;
        }
        self.add_cloud_init(&mut draft)?;
        self.infer(&mut draft)?;
        volumes::disks_for_all(&mut draft);
        Ok(draft)
    }

    fn start(&self, namespace: Option<&str>) -> anyhow::Result<Draft> {
        let memory = self.memory.as_deref().unwrap_or("512Mi");
        let memory = params::size(memory).map_err(|error| flag_error("memory", error))?;
        let run_strategy = RUN_STRATEGIES.iter().find(|one| one.eq_ignore_ascii_case(&self.run_strategy));
        let Some(run_strategy) = run_strategy else {
            let known = RUN_STRATEGIES.join(", ");
            let why =
                format!("invalid run strategy \"{}\", supported values are: {known}", self.run_strategy);
            return Err(flag_error("run-strategy", why));
        };
        let name = self.name.clone().filter(|name| !name.is_empty());
        let mut vm = VirtualMachine::default();
        vm.metadata.name = Some(name.unwrap_or_else(|| random::name("vm")));
        vm.metadata.namespace = namespace.map(str::to_owned);
        vm.spec.run_strategy = Some((*run_strategy).to_owned());
        let template = &mut vm.spec.template.spec;
        template.termination_grace_period_seconds = Some(self.termination_grace_period);
        template.domain.memory = Some(Memory { guest: Some(memory), ..Memory::default() });
        Ok(Draft { vm, boot_orders: BTreeMap::new(), cloud_init: CloudInit::default(), warnings: Vec::new() })
    }

    /// Instance type and preference that are named.
    fn kinds(&self, draft: &mut Draft) -> anyhow::Result<()> {
        if let Some(text) = &self.instancetype {
            let (kind, name) = kind("instancetype", text, &INSTANCETYPES)?;
            // The instance type gives it.
            draft.vm.spec.template.spec.domain.memory = None;
            draft.vm.spec.instancetype =
                Some(InstancetypeMatcher { kind, name: Some(name), ..InstancetypeMatcher::default() });
        }
        if let Some(text) = &self.preference {
            let (kind, name) = kind("preference", text, &PREFERENCES)?;
            draft.vm.spec.preference =
                Some(PreferenceMatcher { kind, name: Some(name), ..PreferenceMatcher::default() });
        }
        Ok(())
    }

    /// All imports, those of deprecated flags first.
    fn imports(&self, warn: impl Fn(&str)) -> anyhow::Result<Vec<String>> {
        let mut imports = vec![];
        for (flag, kind, texts) in [
            ("volume-datasource", "ds", &self.volume_datasource),
            ("volume-clone-pvc", "pvc", &self.volume_clone_pvc),
            ("volume-blank", "blank", &self.volume_blank),
        ] {
            if !texts.is_empty() {
                warn(&format!("Flag --{flag} has been deprecated, use flag --volume-import instead"));
            }
            for text in texts {
                if text.is_empty() {
                    return Err(flag_error("volume-import", "params may not be empty"));
                }
                imports.push(format!("type:{kind},{text}"));
            }
        }
        imports.extend(self.volume_import.iter().cloned());
        Ok(imports)
    }
}

/// Kind, if one is given, and name of an instance type or a preference.
fn kind(flag: &str, text: &str, kinds: &[&str]) -> anyhow::Result<(Option<String>, String)> {
    let (kind, name) = params::prefixed(text).map_err(|error| flag_error(flag, error))?;
    let kind = kind.map(|kind| kind.to_lowercase());
    match kind {
        Some(kind) if !kinds.contains(&kind.as_str()) => {
            let known = kinds.join(", ");
            Err(flag_error(flag, format!("invalid {flag} kind \"{kind}\", supported values are: {known}")))
        }
        kind => Ok((kind, name)),
    }
}

/// Warnings about features of the manifest that Barevirt does not support yet. Another cluster may support
/// them.
fn not_there(vm: &VirtualMachine) -> Vec<String> {
    let causes = validate::vm(vm, Requester::User, &Gates::default());
    let missing = |cause: &validate::Cause| {
        cause.kind == CauseKind::NotSupported && cause.message.contains("is not supported yet")
    };
    let causes = causes.into_iter().filter(missing);
    causes.map(|cause| format!("WARNING: Barevirt refuses this manifest: {}", cause.message)).collect()
}

#[cfg(test)]
mod tests;
