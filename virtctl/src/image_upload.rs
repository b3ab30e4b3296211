//! image-upload: a disk image or an archive of this machine becomes what is in a volume.
//!
//! CDI, the Containerized Data Importer, fills the volume. What is made here only asks for it, and the file goes to its proxy:
//!
//! ```text
//!  flags ─> Asked ─> claim or DataVolume made, or found ─> upload server ready ─> token, proxy's URL ─> file sent ─> processed
//!           asked     objects, existing                     ready                  cluster, endpoint      send       processing
//! ```
//!
//! What to make, whether something may be used, what a refusal leads to are pure; `cluster` and `send` talk.

mod asked;
mod cluster;
mod endpoint;
mod existing;
mod image;
mod objects;
mod processing;
mod progress;
mod ready;
mod send;

use std::path::PathBuf;

use clap::Args;

use crate::session::Session;
use asked::Target;
use cluster::Cluster;
use image::Image;
use send::Proxy;

/// Annotations of CDI's on claims and DataVolumes.
mod annotation {
    /// The claim is to be filled by an upload.
    pub(super) const UPLOAD: &str = "cdi.kubevirt.io/storage.upload.target";
    /// The claim is bound at once, whatever its storage class waits for.
    pub(super) const BIND: &str = "cdi.kubevirt.io/storage.bind.immediate.requested";
    /// What is uploaded: an image or an archive.
    pub(super) const CONTENT: &str = "cdi.kubevirt.io/storage.contentType";
    /// Phase of the pod that fills the claim.
    pub(super) const PHASE: &str = "cdi.kubevirt.io/storage.pod.phase";
    /// Whether that pod takes an upload.
    pub(super) const READY: &str = "cdi.kubevirt.io/storage.pod.ready";
    /// How often that pod's program has been started again.
    pub(super) const RESTARTS: &str = "cdi.kubevirt.io/storage.pod.restarts";
    /// What was the matter with it.
    pub(super) const MESSAGE: &str = "cdi.kubevirt.io/storage.condition.running.message";
    /// The DataVolume goes once it is filled.
    pub(super) const GOES: &str = "cdi.kubevirt.io/storage.deleteAfterCompletion";
    /// The DataVolume is filled by way of another claim.
    pub(super) const POPULATOR: &str = "cdi.kubevirt.io/storage.usePopulator";
    /// That other claim.
    pub(super) const PRIME: &str = "cdi.kubevirt.io/storage.populator.pvcPrime";
}

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
    virtctl image-upload dv fedora-dv --size=10Gi --archive-path=/images/fedora30.tar")]
pub(crate) struct ImageUpload {
    /// dv or pvc, and the name of the DataVolume or PersistentVolumeClaim.
    #[arg(value_names = ["TYPE", "NAME"], num_args = 0..)]
    target: Vec<String>,
    /// Allow insecure server connections when using HTTPS.
    #[arg(long)]
    insecure: bool,
    /// The URL of the cdi-upload proxy service.
    #[arg(long, default_value = "", hide_default_value = true, value_name = "URL")]
    uploadproxy_url: String,
    /// The destination PersistentVolumeClaim's name. Deprecated: give it after 'pvc'.
    #[arg(long, default_value = "", hide_default_value = true, value_name = "NAME")]
    pvc_name: String,
    /// The size of the volume to create. Deprecated: use --size.
    #[arg(long, default_value = "", hide_default_value = true, value_name = "SIZE")]
    pvc_size: String,
    /// The size of the volume to create (10Gi, 500Mi).
    #[arg(long, default_value = "", hide_default_value = true)]
    size: String,
    /// The storage class of the volume.
    #[arg(long, default_value = "", hide_default_value = true, value_name = "NAME")]
    storage_class: String,
    /// The access mode of the volume.
    #[arg(long, default_value = "", hide_default_value = true, value_name = "MODE")]
    access_mode: String,
    /// Create a block volume. Deprecated: use --volume-mode=block.
    #[arg(long)]
    block_volume: bool,
    /// block or filesystem; without it as the storage profile says, or for an archive filesystem.
    #[arg(long, default_value = "", hide_default_value = true, value_name = "MODE")]
    volume_mode: String,
    /// Path to the local VM image.
    #[arg(long, value_name = "FILE")]
    image_path: Option<PathBuf>,
    /// Path to the local archive.
    #[arg(long, value_name = "FILE")]
    archive_path: Option<PathBuf>,
    /// Upload to a DataVolume or PersistentVolumeClaim that is there.
    #[arg(long)]
    no_create: bool,
    /// Seconds to wait for the upload pod to start.
    #[arg(long, default_value_t = 300, value_name = "SECONDS")]
    wait_secs: u32,
    /// How often to send the file before giving up, where the server's error may pass.
    #[arg(long, default_value_t = 5, value_name = "TIMES")]
    retry: u32,
    /// Bind the volume at once, also where its storage class waits for the first consumer.
    #[arg(long)]
    force_bind: bool,
    /// Create a DataSource that points to the volume.
    #[arg(long)]
    datasource: bool,
    /// The default instance type to associate with the image.
    #[arg(long, default_value = "", hide_default_value = true, value_name = "NAME")]
    default_instancetype: String,
    /// The kind of the default instance type.
    #[arg(long, default_value = "", hide_default_value = true, value_name = "KIND")]
    default_instancetype_kind: String,
    /// The default preference to associate with the image.
    #[arg(long, default_value = "", hide_default_value = true, value_name = "NAME")]
    default_preference: String,
    /// The kind of the default preference.
    #[arg(long, default_value = "", hide_default_value = true, value_name = "KIND")]
    default_preference_kind: String,
}

impl ImageUpload {
    pub(crate) async fn run(&self, session: &Session) -> anyhow::Result<()> {
        for warning in self.deprecated() {
            eprintln!("{warning}");
        }
        let asked = self.asked()?;
        let image = Image::open(&asked.path)?;
        let cluster = Cluster::new(session);
        cluster.need_cdi().await?;

        let (namespace, name) = (&session.namespace, &asked.name);
        match cluster.existing(&asked).await? {
            Some(claim) => {
                cluster.mark_for_upload(&claim).await?;
                println!("Using existing PVC {namespace}/{}", claim.metadata.name.unwrap_or_default());
            }
            None => {
                let kind = cluster.create(&asked).await?;
                println!("{kind} {namespace}/{name} created");
            }
        }
        match asked.target {
            Target::DataVolume => ready::data_volume(&cluster, &asked).await?,
            Target::Claim => ready::claim(&cluster, &asked).await?,
        }

        let url = match asked.proxy.as_str() {
            "" => cluster.proxy_url().await?,
            url => url.to_owned(),
        };
        let url = endpoint::whole(&url);
        println!("Uploading data to {url}");
        let proxy = Proxy::new(&endpoint::Endpoints::of(&url)?, asked.insecure)?;
        let restarts = processing::restarts(&cluster.claim(name).await?);
        let attempts = send::send(&proxy, &image, asked.tries, || cluster.token(name)).await?;
        if asked.data_source {
            println!("{}", cluster.point_data_source(&asked).await?);
        }

        println!(
            "Uploading data completed successfully, waiting for processing to complete, you can hit ctrl-c without interrupting the progress"
        );
        // Of several tries an earlier one may have been what ended the server.
        processing::wait(&cluster, name, (attempts == 1).then_some(restarts)).await?;
        println!("Uploading {} completed successfully", asked.path.display());
        Ok(())
    }
}
