//! Manifests as users bring them, whose disks come from a web server: of KubeVirt's user guide, and as Harvester and Forklift
//! write them.

use super::imports::{FILLED, SERVER, device, filled, host, publish, shell, tiny, without_cdi};
use anyhow::{Context, Result, ensure};
use barevirt_e2e::command::repository;
use barevirt_e2e::wait::{BOOT, SOON};
use barevirt_e2e::{Console, Namespace, pods};
use serde_json::Value;

/// The server that the manifests name.
const ADDRESS: &str = "http://images.example";
/// The annotation of a DataVolume that is filled before anything uses it.
const IMMEDIATE: &str = "cdi.kubevirt.io/storage.bind.immediate.requested";

/// Applies the objects of a manifest, only with the test's own server.
fn apply(namespace: &Namespace, file: &str) -> Result<()> {
    let path = repository().join("e2e/tests/fixtures").join(file);
    let text = std::fs::read_to_string(&path).with_context(|| path.display().to_string())?;
    let text = text.replace(ADDRESS, &format!("http://{}", host(namespace)));
    let objects: Vec<Value> = serde_saphyr::from_multiple(&text)?;
    for object in objects {
        namespace.apply(&object).context(file.to_owned())?;
        if object["kind"] == "DataVolume" && object["metadata"]["annotations"][IMMEDIATE].is_string() {
            filled(namespace, object["metadata"]["name"].as_str().unwrap_or_default(), FILLED)?;
        }
    }
    Ok(())
}

fn boots(namespace: &Namespace, name: &str) -> Result<Console> {
    namespace.wait_phase(name, "Running", FILLED)?;
    let mut console = Console::open(namespace, name)?;
    console.login(BOOT)?;
    Ok(console)
}

/// The machine's first disk is an export of another cluster, which is a raw image packed by gzip.
fn forklift(namespace: &Namespace) -> Result<()> {
    let work = tempfile::tempdir()?;
    shell(
        work.path(),
        &format!("qemu-img convert -O raw {} disk.img && gzip -1 disk.img", tiny().display()),
    )?;
    publish(namespace, "volumes/ledger-root/disk.img.gz", &work.path().join("disk.img.gz"))?;
    apply(namespace, "forklift.yaml")?;
    let mut console = boots(namespace, "forklift")?;
    let empty = console.ok(&format!("tr -d '\\000' <{} | wc -c", device("vmdisk2")), SOON)?;
    ensure!(empty.trim() == "0", "{empty}");
    console.leave()?;
    let volume = filled(namespace, "forklift-empty", SOON)?;
    // Forklift finds the claims of its disks by these.
    let claim = namespace.need("pvc", "forklift-empty")?;
    for (key, of) in [("forklift.konveyor.io/disk-source", "annotations"), ("vmID", "labels")] {
        let (wanted, found) = (&volume["metadata"][of][key], &claim["metadata"][of][key]);
        ensure!(found.is_string() && found == wanted, "{key}: {found}");
    }
    Ok(())
}

#[test]
fn manifests_of_the_user_guide_of_harvester_and_of_forklift_boot_from_a_web_server() {
    without_cdi("usermanifests", |namespace| {
        pods::server(namespace, SERVER, "images")?;
        publish(namespace, "tiny.qcow2", &tiny())?;
        for file in ["harvester.yaml", "guide-template.yaml", "guide-claim.yaml"] {
            apply(namespace, file)?;
        }
        // The guide's machine is made stopped.
        namespace.virtctl(&["start", "guide-template"])?;
        for name in ["guide-template", "guide-claim"] {
            boots(namespace, name)?.leave()?;
        }
        let mut console = boots(namespace, "harvester")?;
        let name = console.ok("hostname", SOON)?;
        ensure!(name == "of-cloud-init", "the secret's user data have no effect: {name}");
        console.leave()?;
        let vm = namespace.wait_status("harvester", "Running", SOON)?;
        let annotations = &vm["metadata"]["annotations"];
        ensure!(annotations["harvesterhci.io/volumeClaimTemplates"].is_string(), "{annotations}");
        forklift(namespace)
    });
}
