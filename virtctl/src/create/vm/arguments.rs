//! The command line of `virtctl create vm`.

use std::path::PathBuf;

use clap::Args;

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
pub(in crate::create) struct Vm {
    /// Name of the VM; random when not given.
    #[arg(long)]
    pub(super) name: Option<String>,
    /// Run strategy of the VM: Always, Manual, Halted, Once or RerunOnFailure.
    #[arg(long, default_value = "Always")]
    pub(super) run_strategy: String,
    /// Termination grace period of the VM in seconds.
    #[arg(long, default_value_t = 180, allow_negative_numbers = true)]
    pub(super) termination_grace_period: i64,
    /// Memory of the VM; 512Mi when nothing else gives it.
    #[arg(long, conflicts_with_all = ["instancetype", "infer_instancetype", "infer_instancetype_from"])]
    pub(super) memory: Option<String>,
    /// Instance type of the VM, [kind/]name.
    #[arg(long, conflicts_with_all = ["infer_instancetype", "infer_instancetype_from"])]
    pub(super) instancetype: Option<String>,
    /// Infer the instance type from the first boot disk. Without the flag this is tried, and may fail.
    #[arg(long, num_args = 0..=1, default_missing_value = "true", require_equals = true,
        conflicts_with = "infer_instancetype_from")]
    pub(super) infer_instancetype: Option<bool>,
    /// Volume to infer the instance type from.
    #[arg(long)]
    pub(super) infer_instancetype_from: Option<String>,
    /// Preference of the VM, [kind/]name.
    #[arg(long, conflicts_with_all = ["infer_preference", "infer_preference_from"])]
    pub(super) preference: Option<String>,
    /// Infer the preference from the first boot disk. Without the flag this is tried, and may fail.
    #[arg(long, num_args = 0..=1, default_missing_value = "true", require_equals = true,
        conflicts_with = "infer_preference_from")]
    pub(super) infer_preference: Option<bool>,
    /// Volume to infer the preference from.
    #[arg(long)]
    pub(super) infer_preference_from: Option<String>,
    /// A container disk, src:string,name:string,bootorder:uint; can be repeated.
    #[arg(long)]
    pub(super) volume_containerdisk: Vec<String>,
    /// A claim, src:string,name:string,bootorder:uint; can be repeated.
    #[arg(long)]
    pub(super) volume_pvc: Vec<String>,
    /// A DataVolume; can be repeated. type:blank,gcs,http,imageio,pvc,registry,s3,vddk,snapshot or ds, each
    /// with size,name,bootorder and further parameters (docs/virtctl.md).
    #[arg(long)]
    pub(super) volume_import: Vec<String>,
    /// A ConfigMap or Secret as sysprep volume, src:string,type:configmap or secret.
    #[arg(long)]
    pub(super) volume_sysprep: Option<String>,
    /// User in the cloud-init user data.
    #[arg(long, conflicts_with = "cloud_init_user_data")]
    pub(super) user: Option<String>,
    /// File with the password for the cloud-init user data.
    #[arg(long, conflicts_with = "cloud_init_user_data")]
    pub(super) password_file: Option<PathBuf>,
    /// SSH authorized keys in the cloud-init user data.
    #[arg(long, value_delimiter = ',', conflicts_with = "cloud_init_user_data")]
    pub(super) ssh_key: Vec<String>,
    /// Let the guest agent manage SSH keys, by the cloud-init user data.
    #[arg(long, num_args = 0..=1, default_missing_value = "true", require_equals = true,
        conflicts_with = "cloud_init_user_data")]
    pub(super) ga_manage_ssh: Option<bool>,
    /// A credential from a secret, type:ssh or password,src:string,method:ga, nocloud or
    /// configdrive,user:string; can be repeated.
    #[arg(long)]
    pub(super) access_cred: Vec<String>,
    /// Type of the cloud-init data source: nocloud, configdrive or none.
    #[arg(long)]
    pub(super) cloud_init: Option<String>,
    /// cloud-init user data in base64.
    #[arg(long)]
    pub(super) cloud_init_user_data: Option<String>,
    /// cloud-init network data in base64.
    #[arg(long)]
    pub(super) cloud_init_network_data: Option<String>,
    /// Deprecated: --volume-import with type:ds.
    #[arg(long)]
    pub(super) volume_datasource: Vec<String>,
    /// Deprecated: --volume-import with type:pvc.
    #[arg(long)]
    pub(super) volume_clone_pvc: Vec<String>,
    /// Deprecated: --volume-import with type:blank.
    #[arg(long)]
    pub(super) volume_blank: Vec<String>,
}
