//! The digest of a source, without downloading it: DataImportCrons recognise a new image by it.
//!
//! ```text
//!   registry: the digest of the manifest, or of the index if there is one
//!   http:     a digest of the file's metadata: ETag, time, length, and the checksum that was asked for
//! ```

use crate::checksum;
use crate::failure::Failure;
use crate::registry::Registry;
use crate::registry::name::Name;
use crate::run::Importer;
use crate::url::Url;
use barevirt_import_job::Source;
use http::StatusCode;
use http::header;

impl Importer {
    /// The digest of the source.
    ///
    /// # Errors
    /// It cannot be determined.
    pub async fn look(&self, source: &Source) -> Result<String, Failure> {
        match source {
            Source::Registry { url, insecure, .. } => {
                let name = Name::parse(url)?;
                Registry::new(name, *insecure, self.login.clone()).digest(&self.web).await
            }
            Source::Http { url, headers, checksum } => {
                let url = Url::parse(url)?;
                let shown = url.shown();
                let answer = self.web.get(&self.ask(url, headers)?).await?;
                if answer.status != StatusCode::OK {
                    return Err(answer.refusal());
                }
                let validator = [header::ETAG, header::LAST_MODIFIED]
                    .into_iter()
                    .find_map(|name| answer.header(name).map(str::to_owned));
                if validator.is_none() && checksum.is_none() {
                    return Err(Failure::Final(format!(
                        "{shown} says neither ETag nor Last-Modified: its changes cannot be recognised"
                    )));
                }
                let length = answer.header(header::CONTENT_LENGTH).unwrap_or_default();
                let said = [
                    validator.as_deref().unwrap_or_default(),
                    length,
                    checksum.as_deref().unwrap_or_default(),
                ];
                Ok(checksum::of(said.join("\n").as_bytes()))
            }
            Source::Blank {}
            | Source::Claim {}
            | Source::Image {}
            | Source::Upload { .. }
            | Source::S3 { .. }
            | Source::Sender { .. } => {
                Err(Failure::Final("only images of registries and of web servers are looked at".to_owned()))
            }
        }
    }
}
