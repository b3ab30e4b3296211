//! Container images with a disk below `/disk`, from a registry (OCI distribution specification 1.1).
//!
//! ```text
//!   docker://host/path:tag --manifest--> index --(linux, architecture)--> manifest --> layers, the uppermost first
//!                            \-- 401 --> token of the server that the registry names; so with a layer, as tokens expire
//!   layer --(digest checked)--> tar --> disk/NAME --> the claim
//! ```

pub mod challenge;
pub mod name;

use crate::checksum::{self, Checksum};
use crate::failure::Failure;
use crate::url::{Url, basic};
use crate::web::{Answer, Ask, Web};
use barevirt_import_job::is_digest;
use barevirt_layers::manifest::{ACCEPTED, Descriptor, LONGEST_MANIFEST, Manifest, ManifestError};
use challenge::Challenge;
use http::StatusCode;
use http::header::{self, HeaderMap, HeaderValue};
use hyper::body::Bytes;
use name::Name;
use serde::Deserialize;

/// Longest answer with a token, in bytes.
const LONGEST_TOKEN: usize = 1 << 20;

/// A registry with the credentials for it.
#[derive(Clone, Debug)]
pub struct Registry {
    name: Name,
    insecure: bool,
    /// User and password.
    login: Option<(String, String)>,
    authorization: Option<HeaderValue>,
}

#[derive(Deserialize)]
struct Token {
    #[serde(default)]
    token: String,
    #[serde(default)]
    access_token: String,
}

impl Registry {
    /// The registry of that image. `insecure`: it is used without TLS.
    #[must_use]
    pub fn new(name: Name, insecure: bool, login: Option<(String, String)>) -> Self {
        Registry { name, insecure, login, authorization: None }
    }

    /// The layers of the image for an architecture, the uppermost first.
    ///
    /// # Errors
    /// The image does not exist, or access is denied.
    pub async fn layers(&mut self, web: &Web, architecture: &str) -> Result<Vec<Descriptor>, Failure> {
        let reference = self.name.reference.clone();
        let mut body = self.manifest(web, &reference).await?;
        if let Manifest::Index(index) = self.parsed(&body)? {
            let chosen = index.choose(architecture).map_err(|error| self.unusable(&error))?;
            body = self.manifest(web, &chosen.digest).await?;
        }
        match self.parsed(&body)? {
            Manifest::Image(layers) => Ok(layers.into_iter().rev().collect()),
            Manifest::Index(_) => Err(Failure::Final(format!("image {} is an index of an index", self.name))),
        }
    }

    /// The digest of the image's manifest, or of its index if there are several architectures.
    ///
    /// # Errors
    /// The image does not exist, or access is denied.
    pub async fn digest(&mut self, web: &Web) -> Result<String, Failure> {
        let reference = self.name.reference.clone();
        let body = self.manifest(web, &reference).await?;
        // An invalid manifest is reported now, not by each import.
        self.parsed(&body)?;
        Ok(if is_digest(&reference) { reference } else { checksum::of(&body) })
    }

    /// The request for a layer, without the credentials that [`Registry::get`] adds.
    ///
    /// # Errors
    /// The address is invalid.
    pub fn blob(&self, layer: &Descriptor) -> Result<Ask, Failure> {
        self.ask(&format!("blobs/{}", layer.digest))
    }

    fn parsed(&self, body: &[u8]) -> Result<Manifest, Failure> {
        Manifest::parse(body).map_err(|error| self.unusable(&error))
    }

    fn unusable(&self, error: &ManifestError) -> Failure {
        Failure::Final(format!("image {} {error}", self.name))
    }

    /// Sends a request to the registry. If it wants other credentials, it is asked once more with them: a token lasts
    /// for minutes, the transfer of an image may take hours.
    ///
    /// # Errors
    /// There is no answer, or there are no credentials.
    pub async fn get(&mut self, web: &Web, ask: &Ask) -> Result<Answer, Failure> {
        let answer = web.get(&self.authorized(ask)).await?;
        // Where the registry redirects to gets no credentials, whatever it asks for.
        if answer.status != StatusCode::UNAUTHORIZED || answer.url.origin() != ask.url.origin() {
            return Ok(answer);
        }
        self.authorize(web, &answer).await?;
        web.get(&self.authorized(ask)).await
    }

    async fn manifest(&mut self, web: &Web, reference: &str) -> Result<Bytes, Failure> {
        let ask = self.ask(&format!("manifests/{reference}"))?;
        let answer = self.get(web, &ask).await?;
        if answer.status != StatusCode::OK {
            let failure = answer.refusal();
            let text = format!("get image {}: {failure}", self.name);
            return Err(if failure.is_final() { Failure::Final(text) } else { Failure::Passing(text) });
        }
        let body = answer.whole(LONGEST_MANIFEST, web.policy.stall).await?;
        if reference.contains(':') {
            let checksum = Checksum::parse(reference)?;
            let mut hasher = checksum.hasher();
            hasher.update(&body);
            checksum.verify(hasher, &format!("the manifest of image {}", self.name))?;
        }
        Ok(body)
    }

    fn ask(&self, path: &str) -> Result<Ask, Failure> {
        let scheme = if self.insecure { "http" } else { "https" };
        let url = Url::parse(&format!("{scheme}://{}/v2/{}/{path}", self.name.host, self.name.path))?;
        let mut headers = HeaderMap::new();
        headers.insert(header::ACCEPT, HeaderValue::from_static(ACCEPTED));
        Ok(Ask { url, private: HeaderMap::new(), headers, signer: None })
    }

    /// The request with the present credentials.
    fn authorized(&self, ask: &Ask) -> Ask {
        let mut ask = ask.clone();
        if let Some(value) = &self.authorization {
            ask.private.insert(header::AUTHORIZATION, value.clone());
        }
        ask
    }

    /// Gets the credentials that the registry asks for.
    async fn authorize(&mut self, web: &Web, answer: &Answer) -> Result<(), Failure> {
        let refused = |why: &str| Failure::Final(format!("image {}: {why}", self.name));
        let own = self.login.as_ref().map(|(user, password)| basic(user, password));
        let challenges = answer.headers.get_all(header::WWW_AUTHENTICATE);
        let challenge = challenges.iter().filter_map(|line| Challenge::parse(line.to_str().ok()?)).next();
        let authorization = match challenge {
            None => return Err(refused("the registry does not say who may see it")),
            Some(Challenge::Basic) => {
                own.ok_or_else(|| refused("the registry wants a user name; secretRef names none"))?
            }
            Some(Challenge::Bearer { realm, service }) => {
                let scope = format!("repository:{}:pull", self.name.path);
                let url = answer.url.follow(&challenge::with_query(&realm, service.as_deref(), &scope))?;
                let mut ask = Ask { url, private: HeaderMap::new(), headers: HeaderMap::new(), signer: None };
                if let Some(own) = &own {
                    // The password is for the registry's host; any other host gets it only over TLS.
                    if !ask.url.tls && !self.insecure {
                        return Err(refused("its token is given by a server without TLS"));
                    }
                    ask.private.insert(header::AUTHORIZATION, secret(own)?);
                }
                // Its address is the registry's choice, as that of a redirect is.
                let answer = web.get_from(&ask, Some(answer.reach)).await?;
                if answer.status != StatusCode::OK {
                    let failure = answer.refusal();
                    let text = format!("get a token for image {}: {failure}", self.name);
                    return Err(if failure.is_final() {
                        Failure::Final(text)
                    } else {
                        Failure::Passing(text)
                    });
                }
                let body = answer.whole(LONGEST_TOKEN, web.policy.answer).await?;
                let token: Token = serde_json::from_slice(&body).map_err(|error| {
                    refused(&format!("the token's server sent an invalid answer: {error}"))
                })?;
                let token = if token.token.is_empty() { token.access_token } else { token.token };
                format!("Bearer {token}")
            }
        };
        self.authorization = Some(secret(&authorization)?);
        Ok(())
    }
}

fn secret(text: &str) -> Result<HeaderValue, Failure> {
    let mut value = HeaderValue::from_str(text)
        .map_err(|_| Failure::Final("user name, password or token cannot be sent in a header".to_owned()))?;
    value.set_sensitive(true);
    Ok(value)
}
