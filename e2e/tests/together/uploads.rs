//! Uploads without CDI: `virtctl image-upload` through the API server and through the upload proxy, and an
//! upload that breaks off.

use crate::imports::{sha256, shell, tiny};
use crate::imports_in_a_row::places;
use anyhow::{Context, Result, ensure};
use barevirt_e2e::api_server;
use barevirt_e2e::cdi::{Absent, DATA_VOLUMES};
use barevirt_e2e::command::{cluster_script, run};
use barevirt_e2e::forward::Forward;
use barevirt_e2e::wait::{self, BOOT, RUNNING, SOON};
use barevirt_e2e::{Console, Namespace, Node, guest, in_namespace};
use serde_json::{Value, json};
use std::path::Path;
use std::process::Command;
use std::time::Duration;

/// Time until a claim was filled, and its machine runs.
const FILLED: Duration = Duration::from_secs(RUNNING.as_secs() + 120);
/// Size in bytes of the disk that is sent packed, and of the one that breaks off.
const DATA: usize = 1 << 20;
const LONG: usize = 8 << 20;

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

fn upload(namespace: &Namespace, arguments: &[&str]) -> Result<String> {
    let output = namespace.try_virtctl(&[&["image-upload"], arguments].concat())?;
    ensure!(output.code == 0, "virtctl ended with {}: {}", output.code, output.text());
    Ok(output.text())
}

fn annotation<'a>(claim: &'a Value, name: &str) -> &'a Value {
    &claim["metadata"]["annotations"][format!("cdi.kubevirt.io/storage.{name}")]
}

/// The upload proxy, behind a port of this machine.
fn proxy() -> Result<Forward> {
    let words = ["port-forward", "-n", "kubevirt", "service/virt-api", ":8445"];
    Forward::start(cluster_script("kubectl.sh").args(words))
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

        has_contents(namespace, "data", &sha256(&data)?)?;
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

/// Checks what the claim has, on its node: it is on that of its upload pod, where the machine may not be.
fn has_contents(namespace: &Namespace, claim: &str, digest: &str) -> Result<()> {
    let volume = namespace.need("pvc", claim)?["spec"]["volumeName"].clone();
    let volume = volume.as_str().context("it has no volume")?;
    let all = places(namespace)?;
    let mut folders = all.iter().flat_map(|(node, paths)| paths.iter().map(move |path| (node, path)));
    let (node, path) = folders
        .find(|(_, path)| path.contains(volume))
        .with_context(|| format!("no folder of {volume}: {all:?}"))?;
    let said = Node::named(node).sh(&format!("head -c {DATA} {path}/disk.img | sha256sum"))?;
    ensure!(said.contains(digest), "{path} of {node}: {said}");
    Ok(())
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
        namespace.apply(&json!({
            "apiVersion": "cdi.kubevirt.io/v1beta1", "kind": "DataVolume",
            "metadata": {
                "name": "disk", "annotations": { "cdi.kubevirt.io/storage.bind.immediate.requested": "" },
            },
            "spec": {
                "source": { "upload": {} }, "storage": { "resources": { "requests": { "storage": "32Mi" } } },
            },
        }))?;
        let ready = |what: &str| {
            namespace
                .wait(DATA_VOLUMES, "disk", what, FILLED, |volume| volume["status"]["phase"] == "UploadReady")
        };
        ready("to be ready")?;
        let path = format!(
            "/apis/upload.cdi.kubevirt.io/v1beta1/namespaces/{}/uploadtokenrequests",
            namespace.name()
        );
        let request = json!({
            "apiVersion": "upload.cdi.kubevirt.io/v1beta1", "kind": "UploadTokenRequest",
            "metadata": { "generateName": "token-" }, "spec": { "pvcName": "disk" },
        });
        let file = work.path().join("request");
        std::fs::write(&file, request.to_string())?;
        let answer = namespace.kubectl(&["create", "--raw", &path, "-f", &file.display().to_string()])?;
        let answer: Value = serde_json::from_str(&answer)?;
        let token = answer["status"]["token"].as_str().context("no token")?.to_owned();

        // Each has its own forwarder, since a broken connection may end it.
        let post = |path: &str, token: &str, more: &[&str], file: &Path| {
            let proxy = proxy()?;
            let url = format!("https://127.0.0.1:{}/v1beta1/{path}", proxy.port);
            let mut curl = Command::new("curl");
            curl.args([
                "-sk",
                "-X",
                "POST",
                "-w",
                " %{http_code}",
                "-H",
                &format!("Authorization: Bearer {token}"),
            ]);
            curl.args(more).arg("-T").arg(file).arg(url);
            run(&mut curl, None)
        };
        let send = |token: &str, more: &[&str], file: &Path| post("upload", token, more, file);
        let refused = send("forged", &[], &data)?;
        ensure!(refused.text().ends_with("401"), "{refused:?}");
        let bad = send(&token, &[], &work.path().join("bad"))?;
        ensure!(bad.text().contains("names a backing file") && bad.text().ends_with("400"), "{bad:?}");
        let cut = send(&token, &["--limit-rate", "1M", "--max-time", "3"], &data)?;
        ensure!(cut.code == 28, "{cut:?}");
        ready("to be ready still")?;
        // One with a name waits for its rest, and leaves its place to the next one.
        let name = ["-H", "Barevirt-Upload: a1b2c3"];
        let named = [&name[..], &["--limit-rate", "1M", "--max-time", "3"]].concat();
        let cut = send(&token, &named, &data)?;
        ensure!(cut.code == 28, "{cut:?}");
        let range = format!("Content-Range: bytes */{LONG}");
        let empty = work.path().join("empty");
        std::fs::write(&empty, "")?;
        let question = [&name[..], &["-H", range.as_str()]].concat();
        let asked = post("upload-rest", &token, &question, &empty)?;
        let text = asked.text();
        let (arrived, status) = text.split_once(' ').with_context(|| format!("{asked:?}"))?;
        let arrived: usize = arrived.parse().with_context(|| format!("{asked:?}"))?;
        ensure!(status == "202" && (1..LONG).contains(&arrived), "{asked:?}");

        // The way of KubeVirt's virtctl.
        let proxy = proxy()?;
        let url = format!("https://127.0.0.1:{}", proxy.port);
        let path = format!("--image-path={}", data.display());
        let said = upload(
            namespace,
            &["dv", "disk", "--no-create", "--insecure", "--uploadproxy-url", &url, &path],
        )?;
        ensure!(said.contains(&format!("Uploading data to {url}")), "{said:?}");
        namespace.wait(DATA_VOLUMES, "disk", "to be filled", SOON, |volume| {
            volume["status"]["phase"] == "Succeeded"
        })?;
        let late = send(&token, &[], &data)?;
        ensure!(late.text().ends_with("409"), "{late:?}");
        Ok(())
    });
}
