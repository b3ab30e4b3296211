//! Uploads through virt-api's proxy for tools other than `virtctl`: with a token, and by `curl`.

use crate::command::{Output, cluster_script, run, try_kubectl_with};
use crate::forward::Forward;
use crate::namespace::Namespace;
use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};
use std::fs;
use std::path::Path;
use std::process::Command;
use tempfile::NamedTempFile;

/// The name under which an upload goes on.
const NAME: &str = "Barevirt-Upload: a1b2c3";

/// A DataVolume that waits for an upload.
pub fn data_volume(name: &str, size: &str) -> Value {
    json!({
        "apiVersion": "cdi.kubevirt.io/v1beta1", "kind": "DataVolume",
        "metadata": {
            "name": name, "annotations": { "cdi.kubevirt.io/storage.bind.immediate.requested": "" },
        },
        "spec": {
            "source": { "upload": {} }, "storage": { "resources": { "requests": { "storage": size } } },
        },
    })
}

/// The proxy, behind a port of this machine.
///
/// # Errors
/// When no port is forwarded to it.
pub fn forward() -> Result<Forward> {
    let words = ["port-forward", "-n", "kubevirt", "service/virt-api", ":8445"];
    Forward::start(cluster_script("kubectl.sh").args(words))
}

/// One who may send an image into a claim.
pub struct Sender {
    token: String,
}

impl Sender {
    /// With a token for that claim, which lasts five minutes.
    ///
    /// # Errors
    /// When there is none to be had.
    pub fn into_claim(namespace: &Namespace, claim: &str) -> Result<Self> {
        let path = format!(
            "/apis/upload.cdi.kubevirt.io/v1beta1/namespaces/{}/uploadtokenrequests",
            namespace.name()
        );
        let request = json!({
            "apiVersion": "upload.cdi.kubevirt.io/v1beta1", "kind": "UploadTokenRequest",
            "metadata": { "generateName": "token-" }, "spec": { "pvcName": claim },
        });
        let answer = try_kubectl_with(&["create", "--raw", &path, "-f", "-"], &request.to_string())?;
        ensure!(answer.code == 0, "no token for {claim}: {}", answer.text());
        let answer: Value = serde_json::from_str(&answer.stdout)?;
        Ok(Self { token: answer["status"]["token"].as_str().context("no token")?.to_owned() })
    }

    /// With a token that nobody has signed.
    pub fn stranger() -> Self {
        Self { token: "forged".to_owned() }
    }

    /// Sends a file, with further arguments of `curl`. The output ends with the status of the answer.
    ///
    /// # Errors
    /// When `curl` cannot be started, or does not end. A broken connection is no error here.
    pub fn send(&self, more: &[&str], file: &Path) -> Result<Output> {
        self.post("upload", more, file)
    }

    /// The same under a name: if it breaks off, it can go on.
    ///
    /// # Errors
    /// As those of [`Sender::send`].
    pub fn send_named(&self, more: &[&str], file: &Path) -> Result<Output> {
        self.post("upload", &[&["-H", NAME], more].concat(), file)
    }

    /// Asks how much has arrived of that upload, of so many bytes. The output ends with the status of the answer.
    ///
    /// # Errors
    /// As those of [`Sender::send`].
    pub fn ask(&self, length: usize) -> Result<Output> {
        let range = format!("Content-Range: bytes */{length}");
        self.post("upload-rest", &["-H", NAME, "-H", &range], NamedTempFile::new()?.path())
    }

    /// How many bytes have arrived of that upload, which waits for its rest.
    ///
    /// # Errors
    /// When there is no such upload, or nothing of it is missing.
    pub fn arrived(&self, length: usize) -> Result<usize> {
        let asked = self.ask(length)?;
        let text = asked.text();
        let (arrived, status) = text.split_once(' ').with_context(|| format!("{asked:?}"))?;
        ensure!(status == "202", "{asked:?}");
        arrived.parse().with_context(|| format!("{asked:?}"))
    }

    /// Sends what is missing, from that byte of the file on.
    ///
    /// # Errors
    /// When the file is shorter, and as those of [`Sender::send`].
    pub fn send_rest(&self, from: usize, file: &Path) -> Result<Output> {
        let all = fs::read(file).with_context(|| format!("read {}", file.display()))?;
        let missing = all.get(from..).filter(|missing| !missing.is_empty()).context("nothing is missing")?;
        let rest = NamedTempFile::new()?;
        fs::write(rest.path(), missing)?;
        let range = format!("Content-Range: bytes {from}-{}/{}", all.len() - 1, all.len());
        self.post("upload-rest", &["-H", NAME, "-H", &range], rest.path())
    }

    /// Each request has its own forwarder, since a broken connection may end it.
    fn post(&self, path: &str, more: &[&str], file: &Path) -> Result<Output> {
        let proxy = forward()?;
        let url = format!("https://127.0.0.1:{}/v1beta1/{path}", proxy.port);
        let token = format!("Authorization: Bearer {}", self.token);
        let mut curl = Command::new("curl");
        curl.args(["-sk", "-X", "POST", "-w", " %{http_code}", "-H", &token]);
        curl.args(more).arg("-T").arg(file).arg(url);
        run(&mut curl, None)
    }
}
