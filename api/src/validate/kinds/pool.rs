//! `VirtualMachinePool`.

use super::{not_there, selector};
use crate::gates::Gates;
use crate::pool::{VirtualMachinePool, VirtualMachinePoolSpec};
use crate::validate::{self, Cause, Path, Requester};
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;

/// Everything wrong with a new one.
pub fn create(pool: &VirtualMachinePool, requester: Requester, gates: &Gates) -> Vec<Cause> {
    let spec = &pool.spec;
    let mut causes = template(spec, requester, gates);
    let field = Path::new("spec.selector");
    let labels =
        spec.virtual_machine_template.metadata.as_ref().and_then(|metadata| metadata.labels.as_ref());
    match selector::matches(&spec.selector, labels) {
        Ok(true) => {}
        Ok(false) => causes.push(Cause::invalid(&field, "selector does not match labels.")),
        Err(why) => causes.push(Cause::invalid(&field, why)),
    }
    max_unavailable(spec, &mut causes);
    let strategies = |given: [(&'static str, bool); 3]| -> Vec<&'static str> {
        given.into_iter().filter(|(_, given)| *given).map(|(name, _)| name).collect()
    };
    if let Some(update) = &spec.update_strategy {
        let given = strategies([
            ("unmanaged", update.unmanaged.is_some()),
            ("opportunistic", update.opportunistic.is_some()),
            ("proactive", update.proactive.is_some()),
        ]);
        only_one("spec.updateStrategy", &given, &mut causes);
    }
    if let Some(scale_in) = &spec.scale_in_strategy {
        let given = strategies([
            ("unmanaged", scale_in.unmanaged.is_some()),
            ("opportunistic", scale_in.opportunistic.is_some()),
            ("proactive", scale_in.proactive.is_some()),
        ]);
        only_one("spec.scaleInStrategy", &given, &mut causes);
    }
    causes.push(not_there("VirtualMachinePool", "nothing makes its machines"));
    causes
}

/// Everything wrong with a change.
pub fn update(old: &VirtualMachinePool, new: &VirtualMachinePool) -> Vec<Cause> {
    if old.spec.selector == new.spec.selector {
        Vec::new()
    } else {
        vec![Cause::invalid(&Path::new("spec.selector"), "selector is immutable after creation.")]
    }
}

/// The rules of machines, at the place where the pool has its machine.
fn template(spec: &VirtualMachinePoolSpec, requester: Requester, gates: &Gates) -> Vec<Cause> {
    const PLACE: &str = "spec.virtualMachineTemplate";
    let Some(machine) = &spec.virtual_machine_template.spec else {
        return vec![Cause::required(
            &Path::new(PLACE).child("spec.template"),
            "missing virtual machine template.",
        )];
    };
    validate::vm_spec(&Path::new(PLACE).child("spec"), machine, requester, gates)
}

fn max_unavailable(spec: &VirtualMachinePoolSpec, causes: &mut Vec<Cause>) {
    let wrong = match &spec.max_unavailable {
        None => None,
        Some(IntOrString::Int(number)) => {
            (*number <= 0).then(|| "maxUnavailable must be greater than 0".to_owned())
        }
        Some(IntOrString::String(text)) => match text.strip_suffix('%').map(str::parse::<i32>) {
            None => Some("maxUnavailable percentage must end with %".to_owned()),
            Some(Err(error)) => Some(format!(
                "maxUnavailable percentage value {:?} is invalid: {error}",
                validate::text::quoted(text)
            )),
            Some(Ok(percent)) => (!(1..=100).contains(&percent))
                .then(|| format!("maxUnavailable percentage value {percent} must be between 1 and 100")),
        },
    };
    causes.extend(wrong.map(|message| Cause::invalid(&Path::new("spec.maxUnavailable"), message)));
}

fn only_one(field: &str, given: &[&str], causes: &mut Vec<Cause>) {
    if given.len() > 1 {
        let message = format!(
            "only one strategy can be configured at a time: but found {} strategies",
            given.join(", ")
        );
        causes.push(Cause::invalid(&Path::new(field), message));
    }
}
