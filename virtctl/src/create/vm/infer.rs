//! Instance type and preference by the labels of a volume.

use anyhow::{Context, bail};
use barevirt_api::v1::{InstancetypeMatcher, PreferenceMatcher, VirtualMachine};

use super::arguments::Vm;
use super::draft::Draft;

/// The failure policy if the user did not ask for inference: the machine is made without an instance type or
/// preference.
const IGNORE: &str = "Ignore";

/// Which volume, and whether the user asked for it.
struct Inferred {
    volume: String,
    explicit: bool,
}

impl Inferred {
    fn policy(&self) -> Option<String> {
        (!self.explicit).then(|| IGNORE.to_owned())
    }
}

impl Vm {
    pub(super) fn infer(&self, draft: &mut Draft) -> anyhow::Result<()> {
        let given = self.instancetype.is_some() || self.memory.is_some();
        let found = inferred(draft, given, self.infer_instancetype, self.infer_instancetype_from.as_deref())?;
        if let Some(inferred) = found {
            if inferred.explicit {
                draft.vm.spec.template.spec.domain.memory = None;
            }
            draft.vm.spec.instancetype = Some(InstancetypeMatcher {
                infer_from_volume_failure_policy: inferred.policy(),
                infer_from_volume: Some(inferred.volume),
                ..InstancetypeMatcher::default()
            });
        }
        let given = self.preference.is_some();
        let found = inferred(draft, given, self.infer_preference, self.infer_preference_from.as_deref())?;
        if let Some(inferred) = found {
            draft.vm.spec.preference = Some(PreferenceMatcher {
                infer_from_volume_failure_policy: inferred.policy(),
                infer_from_volume: Some(inferred.volume),
                ..PreferenceMatcher::default()
            });
        }
        Ok(())
    }
}

/// The volume to infer from; none if the value is given, or if it cannot be inferred and the user did not ask
/// for that.
fn inferred(
    draft: &Draft,
    given: bool,
    infer: Option<bool>,
    from: Option<&str>,
) -> anyhow::Result<Option<Inferred>> {
    if given || infer == Some(false) {
        return Ok(None);
    }
    let explicit = infer.is_some() || from.is_some();
    match volume(draft, from) {
        Ok(volume) => Ok(Some(Inferred { volume, explicit })),
        Err(error) if explicit => Err(error),
        Err(_) => Ok(None),
    }
}

/// The named volume, or the first boot volume, if a value can be inferred from it.
fn volume(draft: &Draft, from: Option<&str>) -> anyhow::Result<String> {
    let volumes = &draft.vm.spec.template.spec.volumes;
    let first = || draft.boot_orders.values().next().or_else(|| volumes.first().map(|volume| &volume.name));
    let name = match from {
        Some(name) => name.to_owned(),
        None => {
            first().context("at least one volume is needed to infer an instance type or preference")?.clone()
        }
    };
    let volume = volumes.iter().find(|volume| volume.name == name);
    let volume = volume.with_context(|| format!("there is no volume with name \"{name}\""))?;
    match (&volume.data_volume, &volume.persistent_volume_claim) {
        (Some(data_volume), _) => of_data_volume(&draft.vm, &data_volume.name)?,
        (None, Some(_)) => {}
        (None, None) => {
            bail!("inference of instancetype or preference works only with datasources, datavolumes or pvcs")
        }
    }
    Ok(name)
}

fn of_data_volume(vm: &VirtualMachine, name: &str) -> anyhow::Result<()> {
    let named = |metadata: &k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta| {
        metadata.name.as_deref() == Some(name)
    };
    let templates = &vm.spec.data_volume_templates;
    let Some(template) = templates.iter().find(|one| one.metadata.as_ref().is_some_and(named)) else {
        return Ok(());
    };
    let source = template.spec.source.as_ref();
    let tells = source
        .is_some_and(|one| one.pvc.is_some() || one.registry.is_some() || one.snapshot.is_some())
        || template.spec.source_ref.as_ref().is_some_and(|one| one.kind == "DataSource");
    if !tells {
        bail!(
            "this datavolume is not valid to infer an instancetype or preference from \
             (source needs to be PVC, Registry or Snapshot, sourceRef needs to be DataSource)"
        );
    }
    Ok(())
}
