//! Claims that CDI's populators fill, without CDI: an image that a machine boots from, a copy, an upload, and what is reported when
//! a claim cannot be filled.

use super::imports::{FILLED, SERVER, SMALL, host, publish, small, tiny, without_cdi};
use super::imports_in_a_row::{have_contents, volumes};
use super::uploads;
use anyhow::{Context, Result, ensure};
use barevirt_e2e::cdi::{Absent, DATA_VOLUMES};
use barevirt_e2e::wait::{self, BOOT, SOON};
use barevirt_e2e::{Console, Namespace, guest, in_no_namespace, pods};
use serde_json::{Value, json};

/// The claim is bound at once, on any node.
const AT_ONCE: (&str, &str) = ("cdi.kubevirt.io/storage.bind.immediate.requested", "");

fn source(kind: &str, name: &str, spec: &Value) -> Value {
    json!({
        "apiVersion": "cdi.kubevirt.io/v1beta1", "kind": kind, "metadata": { "name": name }, "spec": spec,
    })
}

fn image(namespace: &Namespace, name: &str, path: &str) -> Value {
    let url = format!("http://{}/{path}", host(namespace));
    source("VolumeImportSource", name, &json!({ "source": { "http": { "url": url } } }))
}

/// A claim that is filled from that source.
fn claim(name: &str, kind: &str, source: &str, size: &str, annotations: &[(&str, &str)]) -> Value {
    let annotations: serde_json::Map<String, Value> =
        annotations.iter().map(|(name, value)| ((*name).to_owned(), json!(value))).collect();
    json!({
        "apiVersion": "v1", "kind": "PersistentVolumeClaim",
        "metadata": { "name": name, "annotations": annotations },
        "spec": {
            "accessModes": ["ReadWriteOnce"], "resources": { "requests": { "storage": size } },
            "dataSourceRef": { "apiGroup": "cdi.kubevirt.io", "kind": kind, "name": source },
        },
    })
}

/// Waits until a claim is bound, and nothing is left of what filled it.
fn bound(namespace: &Namespace, name: &str) -> Result<Value> {
    let claim =
        namespace.wait("pvc", name, "to be bound", FILLED, |claim| claim["status"]["phase"] == "Bound")?;
    let uid = claim["metadata"]["uid"].as_str().context("a claim without a UID")?;
    let prime = format!("populator-{uid}");
    namespace.wait_gone(DATA_VOLUMES, &prime, SOON)?;
    namespace.wait_gone("pvc", &prime, SOON)?;
    let annotations = &claim["metadata"]["annotations"];
    ensure!(annotations["cdi.kubevirt.io/storage.pod.phase"] == "Succeeded", "{annotations}");
    ensure!(annotations["cdi.kubevirt.io/storage.populator.progress"] == "100.0%", "{annotations}");
    Ok(claim)
}

#[test]
fn a_machine_boots_from_a_claim_that_is_filled_on_its_node() {
    without_cdi("populators", |namespace| {
        pods::server(namespace, SERVER, "images")?;
        publish(namespace, "tiny.qcow2", &tiny())?;
        // The claim comes first, and waits for its source, and then for the machine.
        namespace.apply(&claim("root", "VolumeImportSource", "image", "256Mi", &[]))?;
        let told = namespace.wait_event("root", "SourceNotFound")?;
        ensure!(told.contains("VolumeImportSource image"), "{told}");
        namespace.apply(&image(namespace, "image", "tiny.qcow2"))?;
        let mut machine = guest::machine("vm", "Always");
        guest::spec_of(&mut machine)["volumes"] =
            json!([{ "name": "root", "persistentVolumeClaim": { "claimName": "root" } }]);
        namespace.apply(&machine)?;
        bound(namespace, "root")?;
        namespace.wait_event("root", "ImportSucceeded")?;
        namespace.wait_phase("vm", "Running", FILLED)?;
        let mut console = Console::open(namespace, "vm")?;
        console.login(BOOT)?;
        console.leave()?;
        ensure!(volumes(namespace)?.len() == 1, "more than the claim's volume is left");
        // The volume goes with the claim, as its class says.
        namespace.delete("vm", "vm")?;
        namespace.delete("pvc", "root")?;
        wait::until_true("the volume to be gone", SOON, || Ok(volumes(namespace)?.is_empty()))
    });
}

#[test]
fn a_claim_is_copied_into_one_that_names_its_source() {
    without_cdi("populatorscopy", |namespace| {
        pods::server(namespace, SERVER, "images")?;
        let work = tempfile::tempdir()?;
        let (file, digest) = small(work.path())?;
        publish(namespace, "small.qcow2", &file)?;
        let from = json!({ "source": { "kind": "PersistentVolumeClaim", "name": "golden" } });
        namespace.apply(&source("VolumeCloneSource", "golden", &from))?;
        // It waits until its source is there, and filled.
        namespace.apply(&claim("copy", "VolumeCloneSource", "golden", "16Mi", &[AT_ONCE]))?;
        namespace.apply(&image(namespace, "image", "small.qcow2"))?;
        namespace.apply(&claim("golden", "VolumeImportSource", "image", "16Mi", &[AT_ONCE]))?;
        for name in ["golden", "copy"] {
            bound(namespace, name)?;
        }
        namespace.wait_event("copy", "CloneSucceeded")?;
        ensure!(volumes(namespace)?.len() == 2, "more than the two volumes are left");
        have_contents(namespace, SMALL, &digest)
    });
}

#[test]
fn an_upload_fills_a_claim_that_waits_for_one() {
    uploads::without_cdi("populatorsupload", |namespace| {
        namespace.apply(&source("VolumeUploadSource", "sent", &json!({})))?;
        namespace.apply(&claim("disk", "VolumeUploadSource", "sent", "16Mi", &[AT_ONCE]))?;
        let work = tempfile::tempdir()?;
        let (file, digest) = small(work.path())?;
        let path = format!("--image-path={}", file.display());
        let sent = namespace.try_virtctl(&["image-upload", "pvc", "disk", "--no-create", &path])?;
        ensure!(sent.code == 0, "virtctl ended with {}: {}", sent.code, sent.text());
        bound(namespace, "disk")?;
        have_contents(namespace, SMALL, &digest)
    });
}

#[test]
fn a_claim_that_cannot_be_filled_says_so_and_is_filled_once_it_can_be() {
    without_cdi("populatorsbad", |namespace| {
        pods::server(namespace, SERVER, "images")?;
        namespace.apply(&image(namespace, "image", "later.qcow2"))?;
        namespace.apply(&claim("disk", "VolumeImportSource", "image", "16Mi", &[AT_ONCE]))?;
        let told = namespace.wait_event("disk", "ImportFailed")?;
        ensure!(told.contains("answers 404"), "{told}");
        let uid = namespace.need("pvc", "disk")?["metadata"]["uid"].clone();
        let prime = format!("populator-{}", uid.as_str().context("a claim without a UID")?);
        ensure!(told.contains(&prime), "{told}");
        namespace.wait("pvc", "disk", "to say so itself", SOON, |claim| {
            claim["metadata"]["annotations"]["cdi.kubevirt.io/storage.pod.phase"] == "Failed"
        })?;
        let work = tempfile::tempdir()?;
        let (file, digest) = small(work.path())?;
        publish(namespace, "later.qcow2", &file)?;
        namespace.delete(DATA_VOLUMES, &prime)?;
        bound(namespace, "disk")?;
        have_contents(namespace, SMALL, &digest)?;
        // What was judged once stays.
        let refusal = namespace.refusal(&image(namespace, "image", "other.qcow2"))?;
        ensure!(refusal.contains("cannot be changed"), "{refusal}");
        Ok(())
    });
}

#[test]
fn sources_that_are_not_served_are_refused_by_field() {
    in_no_namespace(|namespace| {
        let _absent = Absent::prepare()?;
        let import = |spec: Value| source("VolumeImportSource", "no", &json!({ "source": spec }));
        let snapshot = json!({ "source": { "apiGroup": "snapshot.storage.k8s.io", "kind": "VolumeSnapshot", "name": "s" } });
        for (object, field) in [
            (import(json!({ "vddk": {} })), "spec.source.vddk"),
            (import(json!({ "gcs": { "url": "gs://a" } })), "spec.source.gcs"),
            (import(json!({ "http": { "url": "ftp://a" } })), "spec.source.http.url"),
            (import(json!({ "blank": {}, "http": { "url": "http://a" } })), "exactly one source"),
            (source("VolumeImportSource", "no", &json!({})), "source must be given"),
            (source("VolumeCloneSource", "no", &snapshot), "spec.source.kind"),
            (source("VolumeUploadSource", "no", &json!({ "contentType": "iso" })), "spec.contentType"),
        ] {
            let refusal = namespace.refusal(&object)?;
            ensure!(refusal.contains(field), "{refusal}");
        }
        Ok(())
    });
}
