//! `virtctl image-upload` through the cluster's API server.
//!
//! The cluster has no CDI, so this test provides a fake one: reduced kinds for an upload
//! (`barevirt_e2e::cdi`), a controller in a thread, and an upload proxy (`proxy.rs`). The token is a default
//! value that the API server fills in, because an API of this test behind the aggregator would block the
//! deletion of other namespaces.

mod proxy;

use std::io::Write;
use std::thread;

use anyhow::{Context, Result, anyhow, ensure};
use barevirt_e2e::cdi::{self, Absent, DATA_SOURCES, DATA_VOLUMES, TOKEN};
use barevirt_e2e::wait::{self, SOON};
use barevirt_e2e::{Namespace, in_namespace};
use proxy::Proxy;
use serde_json::json;

fn annotate(namespace: &Namespace, claim: &str, annotations: &[&str]) -> Result<()> {
    let all: Vec<String> =
        annotations.iter().map(|annotation| format!("cdi.kubevirt.io/storage.{annotation}")).collect();
    let words = all.iter().map(String::as_str);
    let arguments: Vec<&str> = ["annotate", "--overwrite", "pvc", claim].into_iter().chain(words).collect();
    namespace.kubectl(&arguments).map(drop)
}

/// CDI's controller for a claim: its pod is ready, and done once an image has arrived.
fn fill(namespace: &Namespace, proxy: &Proxy, claim: &str) -> Result<()> {
    let came = proxy.images().len();
    annotate(namespace, claim, &["pod.phase=Running", "pod.ready=true"])?;
    wait::until_true("an image to come", SOON, || Ok(proxy.images().len() > came))?;
    annotate(namespace, claim, &["pod.phase=Succeeded", "pod.ready=false"])
}

/// CDI's controller for a DataVolume: makes its claim, and then does the same.
fn fill_data_volume(namespace: &Namespace, proxy: &Proxy, name: &str) -> Result<()> {
    let made = namespace.wait(DATA_VOLUMES, name, "to be made", SOON, |_| true)?;
    namespace.apply(&json!({
        "apiVersion": "v1", "kind": "PersistentVolumeClaim",
        "metadata": { "name": name, "annotations": { "cdi.kubevirt.io/storage.upload.target": "" } },
        "spec": { "accessModes": ["ReadWriteOnce"], "resources": made["spec"]["storage"]["resources"] },
    }))?;
    let phase = |phase: &str| cdi::report(namespace, name, phase, true);
    phase("UploadScheduled")?;
    phase("UploadReady")?;
    fill(namespace, proxy, name)?;
    phase("Succeeded")
}

/// Runs the fake CDI during a call of virtctl, and returns virtctl's output.
fn upload(
    namespace: &Namespace,
    arguments: &[&str],
    controller: impl FnOnce() -> Result<()> + Send,
) -> Result<String> {
    thread::scope(|scope| {
        let controller = scope.spawn(controller);
        let output = namespace.try_virtctl(&[&["image-upload"], arguments].concat())?;
        let played = controller.join().map_err(|_| anyhow!("CDI's part panicked"))?;
        ensure!(output.code == 0, "virtctl ended with {}: {}", output.code, output.text());
        played.context("CDI's part")?;
        Ok(output.text())
    })
}

#[test]
fn an_image_of_this_machine_is_uploaded_into_a_volume() {
    in_namespace("image-upload", |namespace| {
        let content: Vec<u8> = (0..3_000_000_u32).map(|at| (at % 251) as u8).collect();
        let mut file = tempfile::NamedTempFile::new()?;
        file.write_all(&content)?;
        let path = format!("--image-path={}", file.path().display());

        let absent = Absent::alone()?;

        let proxy = Proxy::start(TOKEN)?;
        let kinds = absent.install()?;
        kinds.configure(&proxy.url())?;
        let said = upload(
            namespace,
            &[
                "dv",
                "image",
                "--size=16Mi",
                &path,
                "--insecure",
                "--datasource",
                "--default-preference=fedora",
            ],
            || fill_data_volume(namespace, &proxy, "image"),
        )?;
        let name = namespace.name();
        for words in [
            format!("DataVolume {name}/image created"),
            format!("Uploading data to {}", proxy.url()),
            // The proxy's first answer.
            "unexpected return value 503, not yet, trying again".to_owned(),
            format!("Created a new DataSource {name}/image"),
            "Processing completed successfully".to_owned(),
            format!("Uploading {} completed successfully", file.path().display()),
        ] {
            ensure!(said.contains(&words), "{words:?} is not in {said:?}");
        }
        ensure!(proxy.images() == [content.clone()], "another image came");
        let made = namespace.need(DATA_VOLUMES, "image")?;
        ensure!(made["spec"]["source"] == json!({ "upload": {} }), "{made}");
        let source = namespace.need(DATA_SOURCES, "image")?;
        ensure!(source["spec"]["source"]["pvc"] == json!({ "name": "image", "namespace": name }), "{source}");
        let label = &source["metadata"]["labels"]["instancetype.kubevirt.io/default-preference"];
        ensure!(label == "fedora", "{source}");

        // A second one would overwrite it.
        let again = namespace.try_virtctl(&["image-upload", "dv", "image", "--no-create", &path])?;
        ensure!(
            again.code == 1
                && again.text().contains("PVC image already successfully imported/cloned/updated"),
            "{again:?}"
        );

        let said = upload(namespace, &["pvc", "disk", "--size=16Mi", &path, "--insecure"], || {
            let claim = namespace.wait("pvc", "disk", "to be made", SOON, |_| true)?;
            let annotations = &claim["metadata"]["annotations"];
            ensure!(annotations["cdi.kubevirt.io/storage.upload.target"] == "", "{annotations}");
            ensure!(annotations["cdi.kubevirt.io/storage.contentType"] == "kubevirt", "{annotations}");
            fill(namespace, &proxy, "disk")
        })?;
        ensure!(said.contains(&format!("PersistentVolumeClaim {name}/disk created")), "{said:?}");
        ensure!(proxy.images().len() == 2, "the second image came");

        // An existing claim that was not made for an upload.
        namespace.claim("other")?;
        let refused = namespace.try_virtctl(&["image-upload", "pvc", "other", "--size=16Mi", &path])?;
        ensure!(
            refused.code == 1 && refused.text().contains("PVC other not available for upload"),
            "{refused:?}"
        );
        let said = upload(namespace, &["pvc", "other", "--no-create", &path, "--insecure"], || {
            namespace.wait("pvc", "other", "to be opened for an upload", SOON, |claim| {
                claim["metadata"]["annotations"]["cdi.kubevirt.io/storage.upload.target"] == ""
            })?;
            fill(namespace, &proxy, "other")
        })?;
        ensure!(said.contains(&format!("Using existing PVC {name}/other")), "{said:?}");
        ensure!(proxy.images().len() == 3, "the third image came");
        Ok(())
    });
}
