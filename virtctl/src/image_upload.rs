//! image-upload: fills a volume with a disk image or an archive from this machine.
//!
//! CDI, the Containerized Data Importer, fills the volume; without CDI, Barevirt does. This command only
//! makes the objects that ask for an upload. It sends the file to CDI's proxy; without CDI, to the API
//! server, which passes it on:
//!
//! ```text
//!  flags ─> Upload ─> claim or DataVolume made, or found ─> upload server ready ─> token, proxy's URL ─> file sent ─> processed
//!           upload    objects, existing                     ready                  cluster, endpoint      send       processing
//! ```
//!
//! Pure code decides what to create, which objects may be used, and what follows a refusal. `cluster` and
//! `send` make the requests.

mod arguments;
mod cluster;
mod container_disk;
mod directory;
mod endpoint;
mod existing;
mod image;
mod objects;
mod processing;
mod progress;
mod ready;
mod send;
mod upload;

use anyhow::ensure;
use kube::Config;

use crate::session::Session;
pub(crate) use arguments::ImageUpload;
use cluster::Cluster;
use image::Image;
use send::Proxy;
use upload::Target;

impl ImageUpload {
    pub(crate) async fn run(&self, session: &Session, config: &Config) -> anyhow::Result<()> {
        for warning in self.deprecated() {
            eprintln!("{warning}");
        }
        let upload = self.upload()?;
        let image = Image::open(&upload.path, upload.content)?;
        let cluster = Cluster::new(session);
        let is_of_cdi = cluster.need_uploads().await?;
        ensure!(
            upload.checksum.is_none() || (!is_of_cdi && upload.proxy.is_empty()),
            "--checksum is verified by Barevirt, which gets an upload through the API server of a cluster without CDI; CDI verifies none"
        );

        let (namespace, name) = (&session.namespace, &upload.name);
        match cluster.existing(&upload).await? {
            Some(claim) => {
                cluster.mark_for_upload(&claim).await?;
                println!("Using existing PVC {namespace}/{}", claim.metadata.name.unwrap_or_default());
            }
            None => {
                let kind = cluster.create(&upload).await?;
                println!("{kind} {namespace}/{name} created");
            }
        }
        match upload.target {
            Target::DataVolume => ready::data_volume(&cluster, &upload).await?,
            Target::Claim => ready::claim(&cluster, &upload).await?,
        }

        let url = match upload.proxy.as_str() {
            "" => cluster.proxy_url(is_of_cdi).await?,
            url => Some(url.to_owned()),
        };
        let proxy = match &url {
            Some(url) => {
                let url = endpoint::whole(url);
                println!("Uploading data to {url}");
                Proxy::new(&endpoint::Endpoints::of(&url)?, upload.insecure)?
            }
            None => {
                println!("Uploading data through the API server");
                Proxy::through_api_server(config, &cluster.upload_path(name))?
            }
        };
        let restarts = processing::restarts(&cluster.claim(name).await?);
        let sent = (&image, upload.checksum.as_deref());
        let attempts = match url {
            Some(_) => send::send(&proxy, sent, upload.tries, || cluster.token(name)).await?,
            // The API server authenticates the user, so no token is needed.
            None => send::send(&proxy, sent, upload.tries, || async { Ok(String::new()) }).await?,
        };
        if upload.data_source {
            println!("{}", cluster.point_data_source(&upload).await?);
        }

        println!(
            "Uploading data completed successfully, waiting for processing to complete, you can hit ctrl-c without interrupting the progress"
        );
        // With several tries, an earlier one may have ended the upload server.
        processing::wait(&cluster, name, (attempts == 1).then_some(restarts)).await?;
        println!("Uploading {} completed successfully", upload.path.display());
        Ok(())
    }
}
