//! Requirements of a preference that a machine must meet.

use super::VirtualMachinePreferenceSpec;
use super::topology::{Across, Topology, topology};
use crate::cause::{Cause, CauseKind, Path};
use crate::instancetype::VirtualMachineInstancetypeSpec;
use crate::quantity;
use crate::v1::VirtualMachineInstanceSpec;
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;

/// A cause for each requirement that is not met. The specification has instance type, preference and defaults applied.
pub fn check(
    instancetype: Option<&VirtualMachineInstancetypeSpec>,
    preference: &VirtualMachinePreferenceSpec,
    spec: &VirtualMachineInstanceSpec,
) -> Vec<Cause> {
    let Some(requirements) = &preference.requirements else { return Vec::new() };
    let mut causes = Vec::new();
    if let Some(cpu) = &requirements.cpu {
        causes.extend(vcpus(cpu.guest, instancetype, preference, spec));
    }
    if let Some(memory) = &requirements.memory {
        causes.extend(self::memory(&memory.guest, instancetype, spec));
    }
    if let Some(wanted) = &requirements.architecture {
        let given = spec.architecture.as_deref().unwrap_or_default();
        if given != wanted {
            causes.push(unmet(
                "spec.template.spec.architecture",
                &format!("preference requires architecture {wanted} but {given} is being requested"),
            ));
        }
    }
    causes
}

/// KubeVirt's clients compare this message and kind.
fn unmet(field: &str, why: &str) -> Cause {
    Cause {
        field: field.to_owned(),
        message: format!("failure checking preference requirements: {why}"),
        kind: CauseKind::NotFound,
    }
}

fn vcpus(
    wanted: i64,
    instancetype: Option<&VirtualMachineInstancetypeSpec>,
    preference: &VirtualMachinePreferenceSpec,
    spec: &VirtualMachineInstanceSpec,
) -> Option<Cause> {
    if let Some(instancetype) = instancetype {
        let given = instancetype.cpu.guest;
        return (given < wanted).then(|| {
            let why = format!(
                "insufficient CPU resources of {given} vCPU provided by instance type, preference requires {wanted} vCPU"
            );
            unmet("spec.instancetype", &why)
        });
    }
    let base = Path::new("spec.template.spec.domain.cpu");
    let Some(cpu) = &spec.domain.cpu else {
        let why = format!("no CPU resources provided by VirtualMachine, preference requires {wanted} vCPU");
        return Some(unmet(&base.to_string(), &why));
    };
    let [sockets, cores, threads] =
        [cpu.sockets, cpu.cores, cpu.threads].map(|count| i64::from(count.unwrap_or(0)));
    // The levels that the preference spreads over must have enough vCPUs. Another cause reports an unknown
    // topology.
    let (given, word, fields): (i64, &str, &[&str]) =
        match topology(&Path::new("preference.spec"), Some(preference)) {
            Ok(Topology::Sockets) => (sockets, "sockets", &["sockets"]),
            Ok(Topology::Cores) => (cores, "cores", &["cores"]),
            Ok(Topology::Threads) => (threads, "threads", &["threads"]),
            Ok(Topology::Spread(across @ Across::SocketsCores, _)) => {
                (sockets.saturating_mul(cores), across.name(), &["sockets", "cores"])
            }
            Ok(Topology::Spread(across @ Across::CoresThreads, _)) => {
                (cores.saturating_mul(threads), across.name(), &["cores", "threads"])
            }
            Ok(Topology::Spread(across @ Across::SocketsCoresThreads, _)) => {
                (product(sockets, cores, threads), across.name(), &["sockets", "cores", "threads"])
            }
            Ok(Topology::Any) => (
                product(sockets, cores, threads),
                "cores, sockets and threads",
                &["cores", "sockets", "threads"],
            ),
            Err(cause) => return Some(cause),
        };
    (given < wanted).then(|| {
        let fields: Vec<String> = fields.iter().map(|field| base.child(field).to_string()).collect();
        let why = format!(
            "insufficient CPU resources of {given} vCPU provided by VirtualMachine, preference requires {wanted} vCPU \
             provided as {word}"
        );
        unmet(&fields.join(", "), &why)
    })
}

fn product(sockets: i64, cores: i64, threads: i64) -> i64 {
    sockets.saturating_mul(cores).saturating_mul(threads)
}

fn memory(
    wanted: &Quantity,
    instancetype: Option<&VirtualMachineInstancetypeSpec>,
    spec: &VirtualMachineInstanceSpec,
) -> Option<Cause> {
    let least = match quantity::bytes(wanted) {
        Ok(least) => least,
        Err(error) => {
            return Some(Cause::invalid(
                &Path::new("preference.spec.requirements.memory.guest"),
                error.to_string(),
            ));
        }
    };
    let none = Quantity("0".to_owned());
    let own = spec.domain.memory.as_ref().and_then(|memory| memory.guest.as_ref());
    let given = own.or(instancetype.map(|instancetype| &instancetype.memory.guest)).unwrap_or(&none);
    // Validation of the field itself reports a quantity that cannot be read.
    let enough = quantity::bytes(given).map_or(true, |given| given >= least);
    let (field, giver) = match instancetype {
        Some(_) => ("spec.instancetype", "instance type"),
        None => ("spec.template.spec.domain.memory", "VirtualMachine"),
    };
    (!enough).then(|| {
        let (given, wanted) = (&given.0, &wanted.0);
        let why = format!(
            "insufficient Memory resources of {given} provided by {giver}, preference requires {wanted}"
        );
        unmet(field, &why)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn failures(instancetype: Value, preference: Value, spec: Value) -> Vec<String> {
        let instancetype: Option<VirtualMachineInstancetypeSpec> =
            serde_json::from_value(instancetype).unwrap();
        let preference = serde_json::from_value(preference).unwrap();
        let mut spec: VirtualMachineInstanceSpec = serde_json::from_value(spec).unwrap();
        spec.architecture.get_or_insert_with(|| "amd64".to_owned());
        check(instancetype.as_ref(), &preference, &spec)
            .into_iter()
            .map(|cause| {
                assert_eq!(cause.kind, CauseKind::NotFound);
                let why = cause.message.strip_prefix("failure checking preference requirements: ").unwrap();
                format!("{} | {why}", cause.field)
            })
            .collect()
    }

    fn spec(sockets: u32, cores: u32, threads: u32) -> Value {
        json!({"domain": {"devices": {}, "cpu": {"sockets": sockets, "cores": cores, "threads": threads},
            "memory": {"guest": "1Gi"}}})
    }

    #[test]
    fn an_instance_type_has_to_bring_enough() {
        let instancetype = json!({"cpu": {"guest": 1}, "memory": {"guest": "1Gi"}});
        let preference = json!({"requirements": {"cpu": {"guest": 2}, "memory": {"guest": "2Gi"}}});
        assert_eq!(
            failures(instancetype.clone(), preference, spec(1, 1, 1)),
            [
                "spec.instancetype | insufficient CPU resources of 1 vCPU provided by instance type, preference requires 2 \
                 vCPU",
                "spec.instancetype | insufficient Memory resources of 1Gi provided by instance type, preference requires \
                 2Gi",
            ]
        );
        let met = json!({"requirements": {"cpu": {"guest": 1}, "memory": {"guest": "1024Mi"}, "architecture": "amd64"}});
        assert_eq!(failures(instancetype, met, spec(1, 1, 1)), Vec::<String>::new());
    }

    #[test]
    fn without_one_the_machine_has_to() {
        let needs = |topology: Value| {
            let mut cpu = topology;
            cpu["x"] = Value::Null;
            json!({"cpu": cpu, "requirements": {"cpu": {"guest": 4}}})
        };
        let base = "spec.template.spec.domain.cpu";
        for (topology, machine, field, given, word) in [
            (json!({}), spec(3, 9, 9), format!("{base}.sockets"), 3, "sockets"),
            (json!({"preferredCPUTopology": "cores"}), spec(9, 3, 9), format!("{base}.cores"), 3, "cores"),
            (
                json!({"preferredCPUTopology": "threads"}),
                spec(9, 9, 3),
                format!("{base}.threads"),
                3,
                "threads",
            ),
            (
                json!({"preferredCPUTopology": "spread"}),
                spec(3, 1, 9),
                format!("{base}.sockets, {base}.cores"),
                3,
                "SocketsCores",
            ),
            (
                json!({"preferredCPUTopology": "spread", "spreadOptions": {"across": "CoresThreads"}}),
                spec(9, 1, 2),
                format!("{base}.cores, {base}.threads"),
                2,
                "CoresThreads",
            ),
            (
                json!({"preferredCPUTopology": "spread", "spreadOptions": {"across": "SocketsCoresThreads"}}),
                spec(1, 1, 2),
                format!("{base}.sockets, {base}.cores, {base}.threads"),
                2,
                "SocketsCoresThreads",
            ),
            (
                json!({"preferredCPUTopology": "any"}),
                spec(1, 3, 1),
                format!("{base}.cores, {base}.sockets, {base}.threads"),
                3,
                "cores, sockets and threads",
            ),
        ] {
            assert_eq!(
                failures(Value::Null, needs(topology.clone()), machine),
                [format!(
                    "{field} | insufficient CPU resources of {given} vCPU provided by VirtualMachine, preference requires 4 \
                     vCPU provided as {word}"
                )]
            );
            assert_eq!(failures(Value::Null, needs(topology), spec(4, 4, 4)), Vec::<String>::new());
        }
    }

    #[test]
    fn memory_and_architecture_of_the_machine() {
        let preference = json!({"requirements": {"memory": {"guest": "2Gi"}, "architecture": "arm64"}});
        assert_eq!(
            failures(Value::Null, preference, spec(1, 1, 1)),
            [
                "spec.template.spec.domain.memory | insufficient Memory resources of 1Gi provided by VirtualMachine, \
                 preference requires 2Gi",
                "spec.template.spec.architecture | preference requires architecture arm64 but amd64 is being requested",
            ]
        );
    }
}
