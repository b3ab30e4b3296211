//! One import, from its job to its outcome.

use crate::archive::{self, Tree};
use crate::checksum::Checksum;
use crate::claim::{Claim, Settings};
use crate::convert::{Tools, convert};
use crate::download::{Deadline, Download};
use crate::failure::{Failure, joined};
use crate::feed::{Feed, FeedFailure, PIECES};
use crate::image::{Filled, MOST_AFTER, copy, fill};
use crate::local;
use crate::progress::Progress;
use crate::reading::{Reading, rest};
use crate::receive;
use crate::registry::Registry;
use crate::registry::name::Name;
use crate::s3::{self, Signer};
use crate::target::{Places, Target};
use crate::url::{Url, basic};
use crate::web::{Ask, Web, header_line};
use barevirt_import_job::{Job, Source};
use barevirt_layers::layer::{self, Entry};
use barevirt_layers::listing::Listing;
use barevirt_layers::manifest::{Descriptor, own_architecture};
use barevirt_layers::unpack::{Peeked, unpacked};
use http::header::{self, HeaderMap, HeaderValue};
use std::io::Read;
use std::sync::Arc;
use tokio::sync::{mpsc, oneshot};
use tokio::task::spawn_blocking;

/// The environment of an import.
#[derive(Debug)]
pub struct Importer {
    /// HTTP client.
    pub web: Web,
    /// The claim.
    pub places: Places,
    /// The programs that convert.
    pub tools: Tools,
    /// User and password for the server.
    pub login: Option<(String, String)>,
    /// Secret header lines.
    pub headers: Vec<String>,
    /// Its progress.
    pub progress: Arc<Progress>,
}

impl Importer {
    /// Fills the claim; returns the size of its disk, or of its archive, in bytes. What is incomplete is removed.
    ///
    /// # Errors
    /// The claim cannot be filled.
    pub async fn run(&self, job: &Job) -> Result<u64, Failure> {
        let (places, settings) = (self.places.clone(), Settings::of(job));
        let claim = joined(spawn_blocking(move || Claim::open(&places, settings))).await?;
        let filled = match &claim {
            Claim::Disk(target) => self.fill(job, target).await,
            Claim::Tree(tree) => self.unpack(job, tree).await,
        };
        let finished = match filled {
            Ok(()) => claim.finish().await,
            Err(failure) => Err(failure),
        };
        if finished.is_err() {
            claim.abandon().await?;
        } else {
            self.progress.transferred(1, 1);
            self.progress.converted(u64::MAX);
        }
        finished
    }

    async fn fill(&self, job: &Job, target: &Arc<Target>) -> Result<(), Failure> {
        // The layers of an image share it.
        let deadline = Deadline::after(self.web.policy.longest(target.size()));
        match &job.source {
            // [`crate::upload`] serves these jobs.
            Source::Upload { .. } => Err(Failure::Final("an upload is not fetched".to_owned())),
            Source::Blank {} => {
                let target = target.clone();
                joined(spawn_blocking(move || target.zero_from(0))).await
            }
            Source::Claim {} => {
                let (places, target, progress) = (self.places.clone(), target.clone(), self.progress.clone());
                joined(spawn_blocking(move || local::claim(&places, &target, progress))).await
            }
            Source::Image {} => {
                let (places, copied, progress) = (self.places.clone(), target.clone(), self.progress.clone());
                let filled = joined(spawn_blocking(move || local::image(&places, &copied, progress))).await?;
                self.complete(filled, "the image", target).await
            }
            Source::Sender { address, port, certificate } => {
                let ask = receive::ask(address, *port)?;
                let web = receive::web(&self.places.keys, certificate, self.web.clone())?;
                let download = Download { ask, registry: None, checksum: None, length: None, deadline };
                let what = local::WHAT.to_owned();
                self.transfer(&web, download, what, target, verbatim).await
            }
            Source::Http { .. } | Source::S3 { .. } => {
                let download = self.download(&job.source, deadline)?;
                let what = download.ask.url.shown();
                let filled = self.transfer(&self.web, download, what.clone(), target, whole).await?;
                self.complete(filled, &what, target).await
            }
            Source::Registry { url, architecture, insecure } => {
                let name = Name::parse(url)?;
                let what = format!("image {name}");
                let architecture = architecture.as_deref().unwrap_or(own_architecture());
                let mut registry = Registry::new(name, *insecure, self.login.clone());
                let mut listing = Listing::default();
                for layer in registry.layers(&self.web, architecture).await? {
                    let download = of_blob(&registry, &layer, deadline)?;
                    let read = move |reading| of_layer(reading, listing);
                    let (filled, known) =
                        self.transfer(&self.web, download, what.clone(), target, read).await?;
                    if let Some(filled) = filled {
                        return self.complete(filled, &what, target).await;
                    }
                    if known.is_complete() {
                        break;
                    }
                    listing = known;
                }
                Err(Failure::Final(format!("{what} has no disk: no layer has a file in /disk")))
            }
        }
    }

    /// The request for a file of a web server.
    pub(crate) fn ask(&self, url: Url, headers: &[String]) -> Result<Ask, Failure> {
        let mut private = HeaderMap::new();
        for line in headers.iter().chain(&self.headers) {
            let (name, value) = header_line(line)?;
            private.append(name, value);
        }
        if let Some((user, password)) = &self.login {
            let value = HeaderValue::from_str(&basic(user, password));
            let value = value.map_err(|_| Failure::Final("the secret cannot be sent".to_owned()))?;
            private.insert(header::AUTHORIZATION, value);
        }
        Ok(Ask { url, private, headers: HeaderMap::new(), signer: None })
    }

    /// Unpacks an archive into the claim.
    async fn unpack(&self, job: &Job, tree: &Arc<Tree>) -> Result<(), Failure> {
        let download = self.download(&job.source, Deadline::after(archive::LONGEST))?;
        let what = download.ask.url.shown();
        self.transfer(&self.web, download, what, tree, archive::whole).await
    }

    /// The download of a source that is one file.
    fn download(&self, source: &Source, deadline: Deadline) -> Result<Download, Failure> {
        match source {
            Source::Http { url, headers, checksum } => {
                let checksum = checksum.as_deref().map(Checksum::parse).transpose()?;
                let ask = self.ask(Url::parse(url)?, headers)?;
                Ok(Download { ask, registry: None, checksum, length: None, deadline })
            }
            Source::S3 { url } => {
                let url = s3::canonical(&Url::parse(url)?);
                let keys = self.login.as_ref();
                let signer = keys.map(|(access, secret)| Signer::new(&url, (access, secret))).transpose()?;
                let ask = Ask { url, private: HeaderMap::new(), headers: HeaderMap::new(), signer };
                Ok(Download { ask, registry: None, checksum: None, length: None, deadline })
            }
            Source::Registry { .. }
            | Source::Blank {}
            | Source::Claim {}
            | Source::Image {}
            | Source::Upload { .. }
            | Source::Sender { .. } => {
                Err(Failure::Final("this source is not a file of a server".to_owned()))
            }
        }
    }

    /// Reads a server's file while it is downloaded.
    async fn transfer<T: Send + 'static, C: Send + Sync + 'static>(
        &self,
        web: &Web,
        download: Download,
        what: String,
        target: &Arc<C>,
        read: impl FnOnce(Reading<C>) -> Result<T, Failure> + Send + 'static,
    ) -> Result<T, Failure> {
        let (sink, pieces) = mpsc::channel(PIECES);
        let (tell, described) = oneshot::channel();
        let running = tokio::spawn(download.run(web.clone(), tell, sink, self.progress.clone()));
        // If the transfer failed before an answer, the feed has the failure.
        let described = described.await.unwrap_or_default();
        let (feed, trouble) = Feed::new(pieces);
        let (target, progress) = (target.clone(), self.progress.clone());
        let reading = Reading { feed: Some(feed), trouble, what, described, target, progress };
        let done = joined(spawn_blocking(move || read(reading))).await;
        running.abort();
        done
    }

    /// Converts a staged image.
    async fn complete(&self, filled: Filled, what: &str, target: &Arc<Target>) -> Result<(), Failure> {
        match filled {
            Filled::Written => Ok(()),
            Filled::Staged(image) => convert(&self.tools, &image, what, target, &self.progress).await,
        }
    }
}

/// The download of a layer.
fn of_blob(registry: &Registry, layer: &Descriptor, deadline: Deadline) -> Result<Download, Failure> {
    let checksum = Some(Checksum::parse(&layer.digest)?);
    let (ask, registry) = (registry.blob(layer)?, Some(registry.clone()));
    Ok(Download { ask, registry, checksum, length: Some(layer.size), deadline })
}

/// Reads a file that is the image.
pub(crate) fn whole(mut reading: Reading) -> Result<Filled, Failure> {
    let (stream, returned) = reading.take_reader();
    let Reading { trouble, what, described, target, progress, .. } = &reading;
    let filled = fill(stream, (what, described.length), trouble, target, progress)?;
    // Only padding may follow.
    rest(&returned, MOST_AFTER, what, trouble)?;
    Ok(filled)
}

/// Copies a file that is a disk, whatever its contents.
fn verbatim(mut reading: Reading) -> Result<(), Failure> {
    let (stream, returned) = reading.take_reader();
    let Reading { trouble, what, described, target, .. } = &reading;
    let Some(length) = described.length else {
        // If there was no answer, reading returns the reason.
        let nothing = || Failure::Passing(format!("{what}: its length is not known"));
        return Err(trouble.seen(stream).unwrap_or_else(nothing));
    };
    copy(stream, (what, length), trouble, target)?;
    rest(&returned, 0, what, trouble)
}

/// Reads a layer, which may contain the image. `listing` is what the layers above it have and delete; it is returned with what
/// this one does.
fn of_layer(mut reading: Reading, mut listing: Listing) -> Result<(Option<Filled>, Listing), Failure> {
    let (stream, returned) = reading.take_reader();
    let Reading { trouble, what, described, target, progress, .. } = &reading;
    let damaged = |error: std::io::Error| trouble.of(what, &error);
    let (mut archive, _) = unpacked(stream, 512).map_err(damaged)?;
    let mut found: Option<(String, Filled)> = None;
    while let Some(entry) = layer::next(&mut archive).map_err(damaged)? {
        let is_found = listing.add(&entry).map_err(|error| Failure::Final(format!("{what}: {error}")))?;
        let Some(name) = entry.disk().filter(|_| is_found).map(str::to_owned) else {
            layer::skip_contents(&mut archive, entry.size, 0).map_err(damaged)?;
            continue;
        };
        if let Some((other, _)) = &found {
            return Err(Failure::Final(format!(
                "{what} has several files in /disk ({other}, {name}): only one is allowed"
            )));
        }
        if !entry.is_file() {
            return Err(Failure::Final(format!("{what}: /disk/{name} is not a regular file")));
        }
        let (filled, rest) = disk(archive, &entry, what, trouble, target, progress)?;
        archive = rest;
        found = Some((name, filled));
    }
    drop(archive);
    // The trailing data of compressors and archives, bounded by the layer's length.
    rest(&returned, described.length.unwrap_or(0), what, trouble)?;
    listing.end_of_layer();
    Ok((found.map(|(_, filled)| filled), listing))
}

type Archive = Peeked;

/// Reads the contents of one file of an archive as an image; returns the archive after it.
fn disk(
    archive: Archive,
    entry: &Entry,
    what: &str,
    trouble: &FeedFailure,
    target: &Target,
    progress: &Progress,
) -> Result<(Filled, Archive), Failure> {
    let (back, returned) = std::sync::mpsc::channel();
    let contents = Contents { archive: Some(archive), left: entry.size, back };
    let filled = fill(Box::new(contents), (what, Some(entry.size)), trouble, target, progress)?;
    let (mut archive, left) =
        returned.try_recv().map_err(|_| Failure::Passing(format!("{what}: its archive was lost")))?;
    layer::skip_contents(&mut archive, entry.size, entry.size - left)
        .map_err(|error| trouble.of(what, &error))?;
    Ok((filled, archive))
}

/// The contents of one file; when it is dropped, the archive is returned with the number of unread bytes.
struct Contents {
    archive: Option<Archive>,
    left: u64,
    back: std::sync::mpsc::Sender<(Archive, u64)>,
}

impl Read for Contents {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        let most = buffer.len().min(usize::try_from(self.left).unwrap_or(usize::MAX));
        let Some(archive) = self.archive.as_mut().filter(|_| most > 0) else { return Ok(0) };
        let count = archive.read(&mut buffer[..most])?;
        if count == 0 {
            return Err(std::io::ErrorKind::UnexpectedEof.into());
        }
        self.left -= count as u64;
        Ok(count)
    }
}

impl Drop for Contents {
    fn drop(&mut self) {
        if let Some(archive) = self.archive.take() {
            // After a failure it is not wanted back.
            let _ = self.back.send((archive, self.left));
        }
    }
}
