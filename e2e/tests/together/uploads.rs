//! Uploads without CDI: `virtctl image-upload` through the API server and through the upload proxy, and an
//! upload that breaks off.

use crate::imports::{filled, sha256, shell, tiny};
use anyhow::{Result, ensure};
use barevirt_e2e::api_server;
use barevirt_e2e::cdi::{Absent, DATA_VOLUMES};
use barevirt_e2e::upload_proxy::{self, Sender};
use barevirt_e2e::wait::{self, BOOT, RUNNING, SOON};
use barevirt_e2e::{Console, Namespace, guest, in_namespace, local_volume};
use serde_json::{Value, json};
use std::time::Duration;

/// Time until a claim was filled, and its machine runs.
pub(crate) const FILLED: Duration = Duration::from_secs(RUNNING.as_secs() + 120);
/// Size in bytes of the disk that is sent packed, and of the one that breaks off.
const DATA: u64 = 1 << 20;
const LONG: usize = 8 << 20;
/// For `curl`: the connection breaks off after some seconds, in which not all of the long disk is sent.
const CUT: [&str; 4] = ["--limit-rate", "1M", "--max-time", "3"];

/// Runs a test while there is no CDI, once virt-api takes uploads.
pub(crate) fn without_cdi(name: &str, test: impl FnOnce(&Namespace) -> Result<()> + Send + 'static) {
    in_namespace(name, move |namespace| {
        let _absent = Absent::prepare()?;
        wait::until_true("uploads to be served by virt-api", SOON, || {
            let served = api_server::text("/apis/upload.cdi.kubevirt.io/v1beta1");
            Ok(served.is_ok_and(|resources| resources.contains("uploads/proxy")))
        })?;
        test(namespace)
    });
}

/// `virtctl image-upload ARGUMENTS`, which has to succeed; returns its output.
pub(crate) fn upload(namespace: &Namespace, arguments: &[&str]) -> Result<String> {
    let output = namespace.try_virtctl(&[&["image-upload"], arguments].concat())?;
    ensure!(output.code == 0, "virtctl ended with {}: {}", output.code, output.text());
    Ok(output.text())
}

fn annotation<'a>(claim: &'a Value, name: &str) -> &'a Value {
    &claim["metadata"]["annotations"][format!("cdi.kubevirt.io/storage.{name}")]
}

#[test]
fn a_machine_boots_from_an_upload_beside_one_that_came_packed() {
    without_cdi("uploads", |namespace| {
        let work = tempfile::tempdir()?;
        shell(work.path(), &format!("head -c {DATA} /dev/urandom >data && gzip -k data"))?;
        let (data, packed) = (work.path().join("data"), work.path().join("data.gz"));

        let path = format!("--image-path={}", tiny().display());
        let said = upload(namespace, &["dv", "root", "--size=160Mi", "--force-bind", &path])?;
        for words in ["Uploading data through the API server", "Processing completed successfully"] {
            ensure!(said.contains(words), "{words:?} is not in {said:?}");
        }
        let filled = namespace.wait(DATA_VOLUMES, "root", "to be filled", SOON, |volume| {
            volume["status"]["phase"] == "Succeeded"
        })?;
        ensure!(filled["status"]["progress"] == "100.0%", "{}", filled["status"]);
        namespace.wait_gone("pod", "cdi-upload-root", SOON)?;

        let path = format!("--image-path={}", packed.display());
        upload(namespace, &["pvc", "data", "--size=32Mi", "--force-bind", &path])?;
        let claim = namespace.need("pvc", "data")?;
        ensure!(annotation(&claim, "pod.phase") == "Succeeded", "{claim}");
        ensure!(annotation(&claim, "upload.target") == "", "{claim}");
        // A second one would overwrite it.
        let again = namespace.try_virtctl(&["image-upload", "pvc", "data", "--no-create", &path])?;
        ensure!(again.code == 1 && again.text().contains("already successfully imported"), "{again:?}");

        // On its node: it is on that of its upload pod, where the machine may not be.
        ensure!(local_volume::digest(namespace, "data", DATA)? == sha256(&data)?, "other contents");
        let mut machine = guest::machine("vm", "Always");
        guest::spec_of(&mut machine)["volumes"] =
            json!([{ "name": "root", "dataVolume": { "name": "root" } }]);
        namespace.apply(&machine)?;
        namespace.wait_phase("vm", "Running", FILLED)?;
        let mut console = Console::open(namespace, "vm")?;
        console.login(BOOT)?;
        console.leave().map(drop)
    });
}

/// Makes a DataVolume for an upload, whose pod is ready for it once this returns.
pub(crate) fn opened(namespace: &Namespace, name: &str) -> Result<()> {
    namespace.apply(&upload_proxy::data_volume(name, "32Mi"))?;
    is_ready(namespace, name, "to be ready")
}

fn is_ready(namespace: &Namespace, name: &str, what: &str) -> Result<()> {
    let is_ready = |volume: &Value| volume["status"]["phase"] == "UploadReady";
    namespace.wait(DATA_VOLUMES, name, what, FILLED, is_ready).map(drop)
}

#[test]
fn a_broken_upload_is_resumed_or_restarted_and_a_bad_image_is_refused() {
    without_cdi("uploadscut", |namespace| {
        let work = tempfile::tempdir()?;
        shell(
            work.path(),
            &format!(
                "head -c {LONG} /dev/urandom >data && qemu-img create -q -f qcow2 -u -F raw -b /etc/passwd bad 1M"
            ),
        )?;
        let data = work.path().join("data");
        opened(namespace, "disk")?;
        let sender = Sender::into_claim(namespace, "disk")?;
        let refused = Sender::stranger().send(&[], &data)?;
        ensure!(refused.text().ends_with("401"), "{refused:?}");
        let bad = sender.send(&[], &work.path().join("bad"))?;
        ensure!(bad.text().contains("names a backing file") && bad.text().ends_with("400"), "{bad:?}");
        let cut = sender.send(&CUT, &data)?;
        ensure!(cut.code == 28, "{cut:?}");
        is_ready(namespace, "disk", "to be ready still")?;
        // One with a name waits for its rest, and leaves its place to the next one.
        let cut = sender.send_named(&CUT, &data)?;
        ensure!(cut.code == 28, "{cut:?}");
        let arrived = sender.arrived(LONG)?;
        ensure!((1..LONG).contains(&arrived), "{arrived} bytes have arrived");

        // The way of KubeVirt's virtctl.
        let proxy = upload_proxy::forward()?;
        let url = format!("https://127.0.0.1:{}", proxy.port);
        let path = format!("--image-path={}", data.display());
        let said = upload(
            namespace,
            &["dv", "disk", "--no-create", "--insecure", "--uploadproxy-url", &url, &path],
        )?;
        ensure!(said.contains(&format!("Uploading data to {url}")), "{said:?}");
        filled(namespace, "disk", SOON)?;
        let late = sender.send(&[], &data)?;
        ensure!(late.text().ends_with("409"), "{late:?}");

        // Its rest arrives.
        opened(namespace, "rest")?;
        let sender = Sender::into_claim(namespace, "rest")?;
        let cut = sender.send_named(&CUT, &data)?;
        ensure!(cut.code == 28, "{cut:?}");
        let arrived = sender.arrived(LONG)?;
        ensure!((1..LONG).contains(&arrived), "{arrived} bytes have arrived");
        let rest = sender.send_rest(arrived, &data)?;
        ensure!(rest.code == 0 && rest.text().ends_with("200"), "{rest:?}");
        filled(namespace, "rest", SOON)?;
        let digest = sha256(&data)?;
        for name in ["disk", "rest"] {
            ensure!(
                local_volume::digest(namespace, name, LONG as u64)? == digest,
                "{name} has other contents"
            );
        }
        Ok(())
    });
}
