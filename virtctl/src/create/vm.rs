//! create vm.
//!
//! The order of the steps is KubeVirt's, since it decides from which volume a machine starts and from which one its instance
//! type is inferred: container disks, claims, data sources, cloned claims, blank volumes, imported volumes, sysprep,
//! credentials, cloud-init. A step sees what those before it made.

mod access;
mod cloud_init;
mod import;
mod infer;
mod volumes;

use std::collections::BTreeMap;
use std::path::PathBuf;

use barevirt_api::gates::Gates;
use barevirt_api::v1::{InstancetypeMatcher, Memory, PreferenceMatcher, VirtualMachine};
use barevirt_api::validate::{self, CauseKind, Requester};
use clap::Args;

use super::params::{self, flag_error};
use crate::{random, yaml};

const RUN_STRATEGIES: [&str; 5] = ["Always", "Manual", "Halted", "Once", "RerunOnFailure"];
const INSTANCETYPES: [&str; 2] = ["virtualmachineinstancetype", "virtualmachineclusterinstancetype"];
const PREFERENCES: [&str; 2] = ["virtualmachinepreference", "virtualmachineclusterpreference"];

/// Arguments of `virtctl create vm`.
#[derive(Debug, Args)]
#[command(after_help = "If no boot order was specified volumes have the following fixed boot order:\n\
    Containerdisk > PVC > DataSource > Clone PVC > Blank > Imported volumes\n\n\
    Examples:\n  \
    # A machine with a random name:\n  virtctl create vm\n\n  \
    # One with an instance type and a preference of the cluster, and a container disk:\n  \
    virtctl create vm --instancetype=u1.small --preference=fedora --volume-containerdisk=src:my.registry/my-image:my-tag\n\n  \
    # One with an instance type of its namespace:\n  \
    virtctl create vm --instancetype=virtualmachineinstancetype/small\n\n  \
    # One that boots from the second of two disks:\n  \
    virtctl create vm --volume-containerdisk=src:a:1 --volume-pvc=src:my-pvc,bootorder:1\n\n  \
    # A user with a key, and one with a password from a file, by cloud-init:\n  \
    virtctl create vm --user cloud-user --ssh-key='ssh-ed25519 AAAA....'\n  \
    virtctl create vm --user cloud-user --password-file=/path/to/file\n\n  \
    # Keys from the secret my-keys, put into the running guest by its agent:\n  \
    virtctl create vm --user cloud-user --access-cred=type:ssh,src:my-keys\n\n  \
    # A volume imported from a registry:\n  \
    virtctl create vm --volume-import=type:registry,url:docker://my.registry/my-image:my-tag,size:10Gi\n\n  \
    # Created at once:\n  virtctl create vm --memory=1Gi --volume-containerdisk=src:a:1 | kubectl create -f -")]
pub(super) struct Vm {
    /// Name of the VM; random when not given.
    #[arg(long)]
    name: Option<String>,
    /// Run strategy of the VM: Always, Manual, Halted, Once or RerunOnFailure.
    #[arg(long, default_value = "Always")]
    run_strategy: String,
    /// Termination grace period of the VM in seconds.
    #[arg(long, default_value_t = 180, allow_negative_numbers = true)]
    termination_grace_period: i64,
    /// Memory of the VM; 512Mi when nothing else gives it.
    #[arg(long, conflicts_with_all = ["instancetype", "infer_instancetype", "infer_instancetype_from"])]
    memory: Option<String>,
    /// Instance type of the VM, [kind/]name.
    #[arg(long, conflicts_with_all = ["infer_instancetype", "infer_instancetype_from"])]
    instancetype: Option<String>,
    /// Infer the instance type from the first boot disk. Where it is not said, it is tried.
    #[arg(long, num_args = 0..=1, default_missing_value = "true", require_equals = true,
        conflicts_with = "infer_instancetype_from")]
    infer_instancetype: Option<bool>,
    /// Volume to infer the instance type from.
    #[arg(long)]
    infer_instancetype_from: Option<String>,
    /// Preference of the VM, [kind/]name.
    #[arg(long, conflicts_with_all = ["infer_preference", "infer_preference_from"])]
    preference: Option<String>,
    /// Infer the preference from the first boot disk. Where it is not said, it is tried.
    #[arg(long, num_args = 0..=1, default_missing_value = "true", require_equals = true,
        conflicts_with = "infer_preference_from")]
    infer_preference: Option<bool>,
    /// Volume to infer the preference from.
    #[arg(long)]
    infer_preference_from: Option<String>,
    /// A container disk, src:string,name:string,bootorder:uint; as often as needed.
    #[arg(long)]
    volume_containerdisk: Vec<String>,
    /// A claim, src:string,name:string,bootorder:uint; as often as needed.
    #[arg(long)]
    volume_pvc: Vec<String>,
    /// A DataVolume; as often as needed. type:blank,gcs,http,imageio,pvc,registry,s3,vddk,snapshot or ds, each with
    /// size,name,bootorder and parameters of its own (docs/virtctl.md).
    #[arg(long)]
    volume_import: Vec<String>,
    /// A ConfigMap or Secret as sysprep volume, src:string,type:configmap or secret.
    #[arg(long)]
    volume_sysprep: Option<String>,
    /// User in the cloud-init user data.
    #[arg(long, conflicts_with = "cloud_init_user_data")]
    user: Option<String>,
    /// File with the password for the cloud-init user data.
    #[arg(long, conflicts_with = "cloud_init_user_data")]
    password_file: Option<PathBuf>,
    /// SSH authorized keys in the cloud-init user data.
    #[arg(long, value_delimiter = ',', conflicts_with = "cloud_init_user_data")]
    ssh_key: Vec<String>,
    /// Let the guest agent manage SSH keys, by the cloud-init user data.
    #[arg(long, num_args = 0..=1, default_missing_value = "true", require_equals = true,
        conflicts_with = "cloud_init_user_data")]
    ga_manage_ssh: Option<bool>,
    /// A credential from a secret, type:ssh or password,src:string,method:ga, nocloud or configdrive,user:string; as often as
    /// needed.
    #[arg(long)]
    access_cred: Vec<String>,
    /// Type of the cloud-init data source: nocloud, configdrive or none.
    #[arg(long)]
    cloud_init: Option<String>,
    /// cloud-init user data in base64.
    #[arg(long)]
    cloud_init_user_data: Option<String>,
    /// cloud-init network data in base64.
    #[arg(long)]
    cloud_init_network_data: Option<String>,
    /// Deprecated: --volume-import with type:ds.
    #[arg(long)]
    volume_datasource: Vec<String>,
    /// Deprecated: --volume-import with type:pvc.
    #[arg(long)]
    volume_clone_pvc: Vec<String>,
    /// Deprecated: --volume-import with type:blank.
    #[arg(long)]
    volume_blank: Vec<String>,
}

/// A machine that is being made.
struct Draft {
    vm: VirtualMachine,
    /// Volumes by the boot order that was asked for.
    boot_orders: BTreeMap<i32, String>,
    /// What the credentials ask of cloud-init.
    cloud_init: cloud_init::Wanted,
    /// What is to be said beside the manifest.
    warnings: Vec<String>,
}

impl Vm {
    pub(super) fn manifest(&self, namespace: Option<&str>) -> anyhow::Result<String> {
        let Draft { vm, warnings, .. } = self.draft(namespace)?;
        for warning in warnings.into_iter().chain(not_there(&vm)) {
            eprintln!("{warning}");
        }
        yaml::text(&vm)
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
        draft.cloud_init =
            cloud_init::Wanted { kind: self.cloud_init.clone(), manage_ssh: self.ga_manage_ssh };
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
        Ok(Draft {
            vm,
            boot_orders: BTreeMap::new(),
            cloud_init: cloud_init::Wanted::default(),
            warnings: Vec::new(),
        })
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

/// Kind, where one is given, and name of an instance type or a preference.
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

/// What Barevirt cannot do yet of what the manifest asks for. On another cluster it may be there.
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
