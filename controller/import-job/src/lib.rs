//! The protocol between virt-controller and virt-importer.
//!
//! ```text
//!   virt-controller -- environment variable IMPORT: Job (JSON) --> virt-importer        secrets and certificates: files at Places
//!   virt-controller <-- termination message: Outcome (JSON) ------ virt-importer
//!   virt-controller <-- GET /metrics on METRICS_PORT: progress --- virt-importer
//! ```
//!
//! [`Job`] and [`Outcome`] are here, with the names of files, variables and ports that both programs use. The modules:
//!
//! - [`copy`]: a copy from another namespace, between two importers.
//! - `upload`: an upload, between virt-api and an importer.
//! - `network`: proxies, authorities and addresses, from the settings of the installation.
//! - `digest`: the form of a digest, by which a new version of a source is recognised.

pub mod copy;
mod digest;
mod network;
mod upload;

use serde::{Deserialize, Serialize};

pub use digest::{DIGEST_PREFIX, is_digest};
pub use network::{NETWORK, Network};
pub use upload::{
    UPLOAD, UPLOAD_ASYNC, UPLOAD_CHECKSUM, UPLOAD_ID, UPLOAD_PORT, UPLOAD_REST, upload_pod_name,
    upload_server_name,
};

/// Environment variable with the job.
pub const JOB: &str = "IMPORT";
/// Directory where a claim with a file system is mounted.
pub const DATA: &str = "/data";
/// The disk in it: what KubeVirt's machines look for.
pub const DISK: &str = "disk.img";
/// The size of the disk is a multiple of this, in bytes.
pub const DISK_ALIGNMENT: u64 = 1 << 20;
/// Path of a claim that is a block device.
pub const DEVICE: &str = "/dev/cdi-block-volume";
/// Directory for contents that cannot be streamed into a block device.
pub const SCRATCH: &str = "/scratch";
/// Directory of the source: a claim with a file system, or an image that the node has pulled.
pub const SOURCE: &str = "/source";
/// Path of the source, where it is a claim that is a block device.
pub const SOURCE_DEVICE: &str = "/dev/cdi-source-volume";
/// Directory with the secret for the server: [`USER`] and [`PASSWORD`].
pub const CREDENTIALS: &str = "/credentials";
/// User name in a secret.
pub const USER: &str = "accessKeyId";
/// Password in a secret.
pub const PASSWORD: &str = "secretKey";
/// Directory with certificates of authorities that are trusted in addition to the usual ones.
pub const AUTHORITIES: &str = "/authorities";
/// Directory with a directory for each secret with header lines, `0`, `1` and so on; each file is one line.
pub const HEADERS: &str = "/headers";
/// File from which the kubelet reads a container's termination message.
pub const TERMINATION_LOG: &str = "/dev/termination-log";
/// Port of the progress metric, over HTTP.
pub const METRICS_PORT: u16 = 8443;
/// Name of the progress metric, in per cent; the same as CDI's.
pub const PROGRESS_METRIC: &str = "kubevirt_cdi_import_progress_total";

/// Argument with which virt-importer reports the digest of a source without downloading it.
pub const LOOK: &str = "look";

/// Exit code of an import that a retry may help.
pub const EXIT_PASSING: u8 = 1;
/// Exit code of an import that no retry can help.
pub const EXIT_FINAL: u8 = 2;
/// Longest reason, in bytes: the kubelet keeps 4096 of a termination message.
pub const LONGEST_REASON: usize = 2048;

/// Longest image that is kept until it is converted into a disk of that size, in bytes: tables and snapshots are added to
/// the contents.
#[must_use]
pub fn longest_staged(disk: u64) -> u64 {
    disk.saturating_mul(2).saturating_add(64 << 20)
}

/// The source of the contents.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", rename_all_fields = "camelCase", deny_unknown_fields)]
pub enum Source {
    /// A file of a web server.
    Http {
        /// Its address, `http` or `https`.
        url: String,
        /// Further header lines, `Name: value`.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        headers: Vec<String>,
        /// `algorithm:digest` of the file as the server has it: md5, sha1, sha256 or sha512.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        checksum: Option<String>,
    },
    /// A container image with a disk below `/disk`.
    Registry {
        /// Its name, `docker://host/path:tag`.
        url: String,
        /// Architecture, if the image exists for several; the importer's own if not given.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        architecture: Option<String>,
        /// Whether the registry is used without TLS.
        #[serde(default)]
        insecure: bool,
    },
    /// An object of S3. Its keys are in [`CREDENTIALS`]; without keys the request is anonymous.
    S3 {
        /// Its address, `http` or `https`: endpoint, bucket and object.
        url: String,
    },
    /// Nothing: an empty disk.
    Blank {},
    /// Another claim, byte for byte.
    Claim {},
    /// A container image that the node has pulled, with a disk below `/disk`.
    Image {},
    /// An image that a client sends through virt-api. The server's key is in [`copy::KEYS`]; it belongs to the pod alone.
    Upload {
        /// Authorities that sign virt-api's certificate, PEM: no other client is accepted.
        authorities: String,
    },
    /// A claim of another namespace, byte for byte, from the pod that sends it ([`copy`]).
    Sender {
        /// Its address.
        address: String,
        /// Its port.
        port: u16,
        /// Its certificate, PEM.
        certificate: String,
    },
}

/// What the contents are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Content {
    /// An image of a disk.
    #[default]
    Disk,
    /// An archive (tar), which is unpacked into the file system of a claim. Only for [`Source::Http`], [`Source::S3`] and
    /// [`Source::Upload`].
    Archive,
}

impl Content {
    /// Whether it is an image of a disk.
    #[must_use]
    pub fn is_disk(&self) -> bool {
        *self == Content::Disk
    }
}

/// One import.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Job {
    /// The source of the contents.
    pub source: Source,
    /// What the contents are.
    #[serde(default, skip_serializing_if = "Content::is_disk")]
    pub content: Content,
    /// Size of the disk to make, in bytes. For a block device: its minimum size. For an archive: its largest size, unpacked.
    pub size: u64,
    /// The share of a claim that is left to its file system, in thousandths; the disk is made smaller if there is less
    /// space.
    #[serde(default)]
    pub overhead: u16,
    /// Whether all space is allocated in advance.
    #[serde(default)]
    pub preallocation: bool,
    /// UID of the DataVolume, for the label of the metric.
    #[serde(default)]
    pub owner: String,
}

/// The outcome of a job.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", rename_all_fields = "camelCase", tag = "result")]
pub enum Outcome {
    /// The claim is filled.
    Done {
        /// Size of the disk, in bytes.
        size: u64,
    },
    /// The digest of a source.
    Found {
        /// `sha256:` and a digest.
        digest: String,
    },
    /// The job failed.
    Failed {
        /// Whether no retry can help.
        last: bool,
        /// The reason.
        reason: String,
    },
}

impl Outcome {
    /// A failure, with a reason within [`LONGEST_REASON`] and without control characters.
    #[must_use]
    pub fn failed(last: bool, reason: &str) -> Self {
        let mut bounded = String::new();
        for character in reason.chars() {
            let character = if character.is_control() { ' ' } else { character };
            if bounded.len() + character.len_utf8() > LONGEST_REASON {
                break;
            }
            bounded.push(character);
        }
        Outcome::Failed { last, reason: bounded }
    }

    /// The text of the termination message.
    #[must_use]
    pub fn to_message(&self) -> String {
        // Strings, numbers and booleans always have a JSON form.
        serde_json::to_string(self).unwrap_or_default()
    }

    /// Parses a termination message. Its author may be controlled by an image.
    #[must_use]
    pub fn of_message(text: &str) -> Option<Self> {
        match serde_json::from_str(text).ok()? {
            Outcome::Failed { last, reason } => Some(Outcome::failed(last, &reason)),
            done @ Outcome::Done { .. } => Some(done),
            Outcome::Found { digest } => is_digest(&digest).then_some(Outcome::Found { digest }),
        }
    }
}

/// The progress in the text of `/metrics`, in per cent.
#[must_use]
pub fn progress_of(metrics: &str) -> Option<f64> {
    let line = metrics.lines().find(|line| line.starts_with(PROGRESS_METRIC))?;
    let value: f64 = line.rsplit(' ').next()?.parse().ok()?;
    (0.0..=100.0).contains(&value).then_some(value)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_job_is_written_as_it_is_read() {
        let job = Job {
            source: Source::Http {
                url: "https://images.example/a".to_owned(),
                headers: vec![],
                checksum: Some("md5:0".to_owned()),
            },
            content: Content::Disk,
            size: 1 << 20,
            overhead: 60,
            preallocation: false,
            owner: "u".to_owned(),
        };
        let text = serde_json::to_string(&job).unwrap();
        assert_eq!(serde_json::from_str::<Job>(&text).unwrap(), job);
        assert!(text.contains(r#""source":{"http":{"url""#) && !text.contains("content"), "{text}");
        let archive = Job { content: Content::Archive, ..job };
        let text = serde_json::to_string(&archive).unwrap();
        assert!(text.contains(r#""content":"archive""#), "{text}");
        assert_eq!(serde_json::from_str::<Job>(&text).unwrap(), archive);
        assert!(serde_json::from_str::<Job>(r#"{"source":{"ftp":{}},"size":1}"#).is_err());
    }

    #[test]
    fn writer_and_reader_bound_a_failure_reason() {
        let long = "ü\n".repeat(LONGEST_REASON);
        let message = Outcome::failed(true, &long).to_message();
        assert!(message.len() < 4096 && !message.contains("\\n"), "{}", message.len());
        let forged = format!(r#"{{"result":"failed","last":false,"reason":"{}"}}"#, "x".repeat(5000));
        let Some(Outcome::Failed { reason, last: false }) = Outcome::of_message(&forged) else {
            panic!("{forged}")
        };
        assert_eq!(reason.len(), LONGEST_REASON);
        assert_eq!(Outcome::of_message("Killed"), None);
        let found =
            |digest: &str| Outcome::of_message(&format!(r#"{{"result":"found","digest":"{digest}"}}"#));
        let digest = format!("{DIGEST_PREFIX}{}", "a".repeat(64));
        assert_eq!(found(&digest), Some(Outcome::Found { digest: digest.clone() }));
        assert_eq!(found("sha256:../../a"), None);
        assert_eq!(Outcome::of_message(r#"{"result":"done","size":7}"#), Some(Outcome::Done { size: 7 }));
    }

    #[test]
    fn a_progress_is_a_share_of_a_hundred() {
        let text = |value: &str| format!("# TYPE x counter\n{PROGRESS_METRIC}{{ownerUID=\"u\"}} {value}\n");
        assert_eq!(progress_of(&text("41.5")), Some(41.5));
        for bad in ["101", "-1", "NaN", "inf", ""] {
            assert_eq!(progress_of(&text(bad)), None, "{bad}");
        }
        assert_eq!(progress_of(""), None);
    }
}
