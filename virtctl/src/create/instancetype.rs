//! create instancetype.

use anyhow::ensure;
use barevirt_api::instancetype::{
    CpuInstancetype, MemoryInstancetype, VirtualMachineClusterInstancetype,
    VirtualMachineClusterInstancetypeSpec, VirtualMachineInstancetype, VirtualMachineInstancetypeSpec,
};
use barevirt_api::v1::{Gpu, HostDevice};
use clap::Args;

use super::params::{self, Params, flag_error};
use crate::{random, yaml};

/// Arguments of `virtctl create instancetype`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  \
    # A VirtualMachineClusterInstancetype with a random name:\n  \
    virtctl create instancetype --cpu 2 --memory 256Mi\n\n  \
    # One with a name, for the current namespace:\n  \
    virtctl create instancetype --namespaced --name small --cpu 2 --memory 256Mi\n\n  \
    # One with a GPU:\n  \
    virtctl create instancetype --cpu 2 --memory 256Mi --gpu name:gpu1,devicename:nvidia\n\n  \
    # Created at once:\n  \
    virtctl create instancetype --cpu 2 --memory 256Mi | kubectl create -f -")]
pub(super) struct Instancetype {
    /// Name of the instance type.
    #[arg(long)]
    name: Option<String>,
    /// Number of CPUs.
    #[arg(long)]
    cpu: u32,
    /// Amount of memory.
    #[arg(long)]
    memory: String,
    /// Policy of the I/O threads: auto or shared.
    #[arg(long)]
    iothreadspolicy: Option<String>,
    /// Create a VirtualMachineInstancetype. By default a VirtualMachineClusterInstancetype is created.
    #[arg(long)]
    namespaced: bool,
    /// A GPU that is passed through, name:string,devicename:string; can be repeated.
    #[arg(long)]
    gpu: Vec<String>,
    /// A host device that is passed through, name:string,devicename:string; can be repeated.
    #[arg(long)]
    hostdevice: Vec<String>,
}

impl Instancetype {
    pub(super) fn manifest(&self, namespace: Option<&str>) -> anyhow::Result<String> {
        let spec = self.spec()?;
        let named = |default: &str| self.name.clone().unwrap_or_else(|| random::name(default));
        if self.namespaced || namespace.is_some() {
            let mut object = VirtualMachineInstancetype::new(&named("instancetype"), spec);
            object.metadata.namespace = namespace.map(str::to_owned);
            yaml::text(&object)
        } else {
            let spec = VirtualMachineClusterInstancetypeSpec { spec };
            yaml::text(&VirtualMachineClusterInstancetype::new(&named("clusterinstancetype"), spec))
        }
    }

    fn spec(&self) -> anyhow::Result<VirtualMachineInstancetypeSpec> {
        ensure!(self.cpu > 0, "cpu value must be greater than zero");
        let memory = params::size(&self.memory).map_err(|error| flag_error("memory", error))?;
        if let Some(policy) = &self.iothreadspolicy
            && !matches!(policy.as_str(), "auto" | "shared")
        {
            return Err(flag_error("iothreadspolicy", "IOThread must be of value auto or shared"));
        }
        let gpu = |text: &String| {
            let (name, device_name) = device("gpu", text)?;
            anyhow::Ok(Gpu { name, device_name: Some(device_name), ..Gpu::default() })
        };
        let host_device = |text: &String| {
            let (name, device_name) = device("hostdevice", text)?;
            anyhow::Ok(HostDevice { name, device_name: Some(device_name), ..HostDevice::default() })
        };
        Ok(VirtualMachineInstancetypeSpec {
            cpu: CpuInstancetype { guest: self.cpu.into(), ..CpuInstancetype::default() },
            memory: MemoryInstancetype { guest: memory, ..MemoryInstancetype::default() },
            gpus: self.gpu.iter().map(gpu).collect::<Result<_, _>>()?,
            host_devices: self.hostdevice.iter().map(host_device).collect::<Result<_, _>>()?,
            io_threads_policy: self.iothreadspolicy.clone(),
            ..VirtualMachineInstancetypeSpec::default()
        })
    }
}

/// Name of the entry, and of the device.
fn device(flag: &'static str, text: &str) -> anyhow::Result<(String, String)> {
    let params = Params::read(flag, text)?.only(&["name", "devicename"])?;
    let device = params.text("devicename");
    Ok((params.required("name")?, device.ok_or_else(|| params.error("deviceName must be specified"))?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;
    use serde_json::{Value, json};

    #[derive(Parser)]
    struct Wrapped {
        #[command(flatten)]
        inner: Instancetype,
    }

    fn manifest(namespace: Option<&str>, arguments: &[&str]) -> anyhow::Result<Value> {
        let inner = Wrapped::try_parse_from([&["x"], arguments].concat())?.inner;
        Ok(serde_saphyr::from_str(&inner.manifest(namespace)?)?)
    }

    #[test]
    fn an_instance_type_of_the_cluster_or_of_a_namespace() {
        let size = ["--cpu=2", "--memory=256Mi"];
        let object = manifest(None, &size).unwrap();
        assert_eq!(object["kind"], "VirtualMachineClusterInstancetype");
        assert_eq!(object["apiVersion"], "instancetype.kubevirt.io/v1beta1");
        assert!(object["metadata"]["name"].as_str().unwrap().starts_with("clusterinstancetype-"));
        assert_eq!(object["spec"], json!({"cpu": {"guest": 2}, "memory": {"guest": "256Mi"}}));
        let object = manifest(Some("mine"), &[&size[..], &["--name=small"]].concat()).unwrap();
        assert_eq!(object["kind"], "VirtualMachineInstancetype");
        assert_eq!(object["metadata"], json!({"name": "small", "namespace": "mine"}));
    }

    #[test]
    fn devices_and_threads() {
        let flags = ["--cpu=1", "--memory=1Gi", "--gpu=name:a,devicename:b/c", "--iothreadspolicy=auto"];
        let spec = manifest(None, &flags).unwrap()["spec"].take();
        assert_eq!(spec["gpus"], json!([{"name": "a", "deviceName": "b/c"}]));
        assert_eq!(spec["ioThreadsPolicy"], "auto");
        for (flag, message) in [
            ("--gpu=name:a", "deviceName must be specified"),
            ("--hostdevice=devicename:a", "name must be specified"),
            ("--iothreadspolicy=x", "IOThread must be of value auto or shared"),
            ("--gpu=name:a,devicename:b,x:y", "unknown param(s): x:y"),
        ] {
            let error = manifest(None, &["--cpu=1", "--memory=1Gi", flag]).unwrap_err().to_string();
            assert!(error.ends_with(message), "{error}");
        }
        assert!(manifest(None, &["--cpu=0", "--memory=1Gi"]).is_err());
        assert!(manifest(None, &["--cpu=1", "--memory=much"]).is_err());
    }
}
