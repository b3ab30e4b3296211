//! Names of images: `docker://host[:port]/path[:tag][@digest]`.

use crate::failure::Failure;
use barevirt_import_job::is_digest;
use std::fmt;

/// The parts of a name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Name {
    /// Host of the registry, with a port where it has one.
    pub host: String,
    /// Path of the image there.
    pub path: String,
    /// Tag or digest.
    pub reference: String,
}

impl fmt::Display for Name {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let separator = if self.reference.contains(':') { '@' } else { ':' };
        write!(out, "{}/{}{separator}{}", self.host, self.path, self.reference)
    }
}

impl Name {
    /// Parses a name with its scheme. Without a host it is an image of Docker's registry, as with Docker.
    ///
    /// # Errors
    /// It is not a valid name.
    pub fn parse(text: &str) -> Result<Self, Failure> {
        let wrong = |why: &str| Failure::Final(format!("image name {text:?} cannot be used: {why}"));
        let rest = text.trim().strip_prefix("docker://");
        let rest = rest.ok_or_else(|| wrong("it does not begin with docker://"))?;
        let (rest, digest) = match rest.split_once('@') {
            Some((rest, digest)) => (rest, Some(digest)),
            None => (rest, None),
        };
        let (host, path) = match rest.split_once('/') {
            Some((host, path)) if host.contains(['.', ':']) || host == "localhost" => (host, path),
            _ => ("docker.io", rest),
        };
        let (path, tag) = path.split_once(':').unwrap_or((path, "latest"));
        let (host, path) = match (host, path.contains('/')) {
            ("docker.io", true) => ("registry-1.docker.io", path.to_owned()),
            ("docker.io", false) => ("registry-1.docker.io", format!("library/{path}")),
            (host, _) => (host, path.to_owned()),
        };
        let plain = |text: &str, more: &[u8]| {
            !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || more.contains(&byte))
        };
        if !plain(host, b".-:[]") {
            return Err(wrong("its registry is not a host"));
        }
        if path.len() > 255 || !path.split('/').all(|part| plain(part, b"._-") && !part.starts_with('.')) {
            return Err(wrong("its path has other characters than letters, digits, '.', '_' and '-'"));
        }
        let reference = match digest {
            Some(digest) if is_digest(digest) => digest,
            Some(_) => return Err(wrong("its digest is not sha256: and 64 hexadecimal digits")),
            None if tag.len() <= 128 && plain(tag, b"._-") => tag,
            None => return Err(wrong("its tag is invalid")),
        };
        Ok(Name { host: host.to_owned(), path, reference: reference.to_owned() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_read_as_docker_reads_them() {
        let digest = format!("sha256:{}", "a".repeat(64));
        for (text, name) in [
            ("docker://quay.io/containerdisks/fedora:41", "quay.io/containerdisks/fedora:41".to_owned()),
            ("docker://r.example:5000/a", "r.example:5000/a:latest".to_owned()),
            ("docker://fedora", "registry-1.docker.io/library/fedora:latest".to_owned()),
            ("docker://me/disk:1", "registry-1.docker.io/me/disk:1".to_owned()),
            ("docker://docker.io/me/disk:1", "registry-1.docker.io/me/disk:1".to_owned()),
            (&format!("docker://q.io/a:1@{digest}"), format!("q.io/a@{digest}")),
        ] {
            assert_eq!(Name::parse(text).unwrap().to_string(), name, "{text}");
        }
        for bad in [
            "oci-archive://x",
            "docker://",
            "docker://q.io/",
            "docker://q.io/a:",
            "docker://q.io/../a",
            "docker://q.io/a?x",
            "docker://q.io/a@sha256:00",
            "docker://q.io/a//b",
            "docker://u@q.io/a",
        ] {
            assert!(Name::parse(bad).unwrap_err().is_final(), "{bad}");
        }
    }
}
