//! The command line of `virtctl image-upload`.

use std::path::PathBuf;

use clap::Args;

/// Arguments of `virtctl image-upload`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  \
    # Upload a local disk image to a newly created DataVolume:\n  \
    virtctl image-upload dv fedora-dv --size=10Gi --image-path=/images/fedora30.qcow2\n\n  \
    # Upload a local disk image to an existing DataVolume:\n  \
    virtctl image-upload dv fedora-dv --no-create --image-path=/images/fedora30.qcow2\n\n  \
    # Upload a local disk image to a newly created PersistentVolumeClaim:\n  \
    virtctl image-upload pvc fedora-pvc --size=10Gi --image-path=/images/fedora30.qcow2\n\n  \
    # The same, labeled with a default instance type and preference:\n  \
    virtctl image-upload pvc fedora-pvc --size=10Gi --image-path=/images/fedora30.qcow2 \
    --default-instancetype=n1.medium --default-preference=fedora\n\n  \
    # Upload a local disk image to an existing PersistentVolumeClaim:\n  \
    virtctl image-upload pvc fedora-pvc --no-create --image-path=/images/fedora30.qcow2\n\n  \
    # Upload to a DataVolume through a proxy of CDI's at another address:\n  \
    virtctl image-upload dv fedora-dv --uploadproxy-url=https://cdi-uploadproxy.mycluster.com \
    --image-path=/images/fedora30.qcow2\n\n  \
    # Upload a local archive to a newly created DataVolume:\n  \
    virtctl image-upload dv fedora-dv --size=10Gi --archive-path=/images/fedora30.tar\n\n  \
    # Upload the files of a local directory:\n  \
    virtctl image-upload dv files --size=10Gi --archive-path=/srv/files")]
pub(crate) struct ImageUpload {
    /// dv or pvc, and the name of the DataVolume or PersistentVolumeClaim.
    #[arg(value_names = ["TYPE", "NAME"], num_args = 0..)]
    pub(super) target: Vec<String>,
    /// Checksum of the file, which the server verifies: md5, sha1, sha256 or sha512, a colon, and the digest. Not with CDI.
    #[arg(long, value_name = "ALGORITHM:DIGEST")]
    pub(super) checksum: Option<String>,
    /// Allow insecure server connections when using HTTPS.
    #[arg(long)]
    pub(super) insecure: bool,
    /// The URL of the cdi-upload proxy service.
    #[arg(long, default_value = "", hide_default_value = true, value_name = "URL")]
    pub(super) uploadproxy_url: String,
    /// The destination PersistentVolumeClaim's name. Deprecated: give it after 'pvc'.
    #[arg(long, default_value = "", hide_default_value = true, value_name = "NAME")]
    pub(super) pvc_name: String,
    /// The size of the volume to create. Deprecated: use --size.
    #[arg(long, default_value = "", hide_default_value = true, value_name = "SIZE")]
    pub(super) pvc_size: String,
    /// The size of the volume to create (10Gi, 500Mi).
    #[arg(long, default_value = "", hide_default_value = true)]
    pub(super) size: String,
    /// The storage class of the volume.
    #[arg(long, default_value = "", hide_default_value = true, value_name = "NAME")]
    pub(super) storage_class: String,
    /// The access mode of the volume.
    #[arg(long, default_value = "", hide_default_value = true, value_name = "MODE")]
    pub(super) access_mode: String,
    /// Create a block volume. Deprecated: use --volume-mode=block.
    #[arg(long)]
    pub(super) block_volume: bool,
    /// block or filesystem; the default is that of the storage profile, and filesystem for an archive.
    #[arg(long, default_value = "", hide_default_value = true, value_name = "MODE")]
    pub(super) volume_mode: String,
    /// Path to the local VM image.
    #[arg(long, value_name = "FILE")]
    pub(super) image_path: Option<PathBuf>,
    /// Path to the local archive (tar), or to a directory, which is packed while it is sent.
    #[arg(long, value_name = "FILE")]
    pub(super) archive_path: Option<PathBuf>,
    /// Upload to an existing DataVolume or PersistentVolumeClaim.
    #[arg(long)]
    pub(super) no_create: bool,
    /// Seconds to wait for the upload pod to start.
    #[arg(long, default_value_t = 300, value_name = "SECONDS")]
    pub(super) wait_secs: u32,
    /// How often to send the file at most, after temporary errors of the server.
    #[arg(long, default_value_t = 5, value_name = "TIMES")]
    pub(super) retry: u32,
    /// Bind the volume at once, even if its storage class waits for the first consumer.
    #[arg(long)]
    pub(super) force_bind: bool,
    /// Create a DataSource that points to the volume.
    #[arg(long)]
    pub(super) datasource: bool,
    /// The default instance type to associate with the image.
    #[arg(long, default_value = "", hide_default_value = true, value_name = "NAME")]
    pub(super) default_instancetype: String,
    /// The kind of the default instance type.
    #[arg(long, default_value = "", hide_default_value = true, value_name = "KIND")]
    pub(super) default_instancetype_kind: String,
    /// The default preference to associate with the image.
    #[arg(long, default_value = "", hide_default_value = true, value_name = "NAME")]
    pub(super) default_preference: String,
    /// The kind of the default preference.
    #[arg(long, default_value = "", hide_default_value = true, value_name = "KIND")]
    pub(super) default_preference_kind: String,
}
