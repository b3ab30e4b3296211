//! create preference.

use barevirt_api::preference::{
    CpuPreferences, MachinePreferences, VirtualMachineClusterPreference, VirtualMachineClusterPreferenceSpec,
    VirtualMachinePreference, VirtualMachinePreferenceSpec, VolumePreferences,
};
use clap::Args;

use super::params::flag_error;
use crate::{random, yaml};

/// Every spelling that the API takes; those with `prefer` are the older ones.
const TOPOLOGIES: [&str; 10] = [
    "sockets",
    "cores",
    "threads",
    "spread",
    "any",
    "preferSockets",
    "preferCores",
    "preferThreads",
    "preferSpread",
    "preferAny",
];

/// Arguments of `virtctl create preference`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  \
    # A VirtualMachineClusterPreference with a random name:\n  virtctl create preference\n\n  \
    # One with a CPU topology, for the current namespace:\n  \
    virtctl create preference --cpu-topology sockets --namespaced\n\n  \
    # Created at once:\n  \
    virtctl create preference --volume-storage-class fast | kubectl create -f -")]
pub(super) struct Preference {
    /// Create a VirtualMachinePreference. By default a VirtualMachineClusterPreference is created.
    #[arg(long)]
    namespaced: bool,
    /// Name of the preference.
    #[arg(long)]
    name: Option<String>,
    /// The preferred storage class.
    #[arg(long)]
    volume_storage_class: Option<String>,
    /// The preferred machine type.
    #[arg(long)]
    machine_type: Option<String>,
    /// The preferred CPU topology that the guest sees: sockets, cores, threads or spread.
    #[arg(long)]
    cpu_topology: Option<String>,
}

impl Preference {
    pub(super) fn manifest(&self, namespace: Option<&str>) -> anyhow::Result<String> {
        let spec = self.spec()?;
        let named = |default: &str| self.name.clone().unwrap_or_else(|| random::name(default));
        if self.namespaced || namespace.is_some() {
            let mut object = VirtualMachinePreference::new(&named("preference"), spec);
            object.metadata.namespace = namespace.map(str::to_owned);
            yaml::text(&object)
        } else {
            let spec = VirtualMachineClusterPreferenceSpec { spec };
            yaml::text(&VirtualMachineClusterPreference::new(&named("clusterpreference"), spec))
        }
    }

    fn spec(&self) -> anyhow::Result<VirtualMachinePreferenceSpec> {
        if let Some(topology) = &self.cpu_topology
            && !TOPOLOGIES.contains(&topology.as_str())
        {
            let why = "CPU topology must have a value of sockets, cores, threads or spread";
            return Err(flag_error("cpu-topology", why));
        }
        Ok(VirtualMachinePreferenceSpec {
            cpu: self.cpu_topology.clone().map(|topology| CpuPreferences {
                preferred_cpu_topology: Some(topology),
                ..CpuPreferences::default()
            }),
            machine: self
                .machine_type
                .clone()
                .map(|machine| MachinePreferences { preferred_machine_type: Some(machine) }),
            volumes: self
                .volume_storage_class
                .clone()
                .map(|class| VolumePreferences { preferred_storage_class_name: Some(class) }),
            ..VirtualMachinePreferenceSpec::default()
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;
    use serde_json::{Value, json};

    #[derive(Parser)]
    struct Wrapped {
        #[command(flatten)]
        inner: Preference,
    }

    fn manifest(namespace: Option<&str>, arguments: &[&str]) -> anyhow::Result<Value> {
        let inner = Wrapped::try_parse_from([&["x"], arguments].concat())?.inner;
        Ok(serde_saphyr::from_str(&inner.manifest(namespace)?)?)
    }

    #[test]
    fn a_preference_of_the_cluster_or_of_a_namespace() {
        let object = manifest(None, &[]).unwrap();
        assert_eq!(object["kind"], "VirtualMachineClusterPreference");
        assert!(object["metadata"]["name"].as_str().unwrap().starts_with("clusterpreference-"));
        let flags = ["--name=p", "--cpu-topology=cores", "--volume-storage-class=fast", "--machine-type=q35"];
        let object = manifest(Some("mine"), &flags).unwrap();
        assert_eq!(object["kind"], "VirtualMachinePreference");
        assert_eq!(object["metadata"], json!({"name": "p", "namespace": "mine"}));
        let wanted = json!({
            "cpu": {"preferredCPUTopology": "cores"}, "machine": {"preferredMachineType": "q35"},
            "volumes": {"preferredStorageClassName": "fast"}});
        assert_eq!(object["spec"], wanted);
        assert!(
            manifest(None, &["--cpu-topology=x"]).unwrap_err().to_string().contains("\"--cpu-topology\"")
        );
    }
}
