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

mod annotation;
mod arguments;
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

use crate::session::Session;
pub(crate) use arguments::ImageUpload;
use asked::Target;
use cluster::Cluster;
use image::Image;
use send::Proxy;

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
