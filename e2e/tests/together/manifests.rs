//! Manifests as users bring them, whose disks come from a web server: of KubeVirt's user guide, and as Harvester writes them.

use super::imports::{FILLED, SERVER, filled, host, publish, tiny, without_cdi};
use anyhow::{Context, Result, ensure};
use barevirt_e2e::command::repository;
use barevirt_e2e::wait::{BOOT, SOON};
use barevirt_e2e::{Console, Namespace, pods};
use serde_json::Value;

/// The server that the manifests name.
const ADDRESS: &str = "http://images.example";

/// Applies the objects of a manifest, only with the test's own server.
fn apply(namespace: &Namespace, file: &str) -> Result<()> {
    let path = repository().join("e2e/tests/fixtures").join(file);
    let text = std::fs::read_to_string(&path).with_context(|| path.display().to_string())?;
    let text = text.replace(ADDRESS, &format!("http://{}", host(namespace)));
    let objects: Vec<Value> = serde_saphyr::from_multiple(&text)?;
    for object in objects {
        namespace.apply(&object).context(file.to_owned())?;
        if object["kind"] == "DataVolume" {
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

#[test]
fn manifests_of_the_user_guide_and_of_harvester_boot_from_a_web_server() {
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
        Ok(())
    });
}
