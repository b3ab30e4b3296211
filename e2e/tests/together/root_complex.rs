//! A guest with all its devices on the PCIe root complex: none is behind a root port, also after the guest has moved.

use anyhow::{Result, ensure};
use barevirt_e2e::moving_guest::{COMMAND, Guest, machine};
use barevirt_e2e::wait::SOON;
use barevirt_e2e::{Console, Namespace, guest, in_namespace};
use serde_json::json;

const ANNOTATION: &str = "kubevirt.io/placePCIDevicesOnRootComplex";

/// Addresses of everything on the guest's PCI buses, each with the device's vendor and kind.
fn devices(namespace: &Namespace) -> Result<Vec<String>> {
    let mut console = Console::open(namespace, "vm")?;
    console.login(SOON)?;
    let list = "for d in /sys/bus/pci/devices/*; do echo $(basename $d) $(cat $d/vendor $d/device); done";
    let found = console.ok(list, COMMAND)?;
    console.leave()?;
    Ok(found.lines().map(|line| line.trim().to_owned()).collect())
}

#[test]
fn devices_on_the_root_complex_stay_there_when_their_guest_moves() {
    in_namespace("rootcomplex", |namespace| {
        let mut manifest = machine("vm");
        manifest["spec"]["template"]["metadata"]["annotations"] = json!({ ANNOTATION: "true" });
        guest::spec_of(&mut manifest)["domain"]["devices"]["rng"] = json!({});
        let guest = Guest::start(namespace, &manifest, "vm")?;
        let before = devices(namespace)?;
        ensure!(before.iter().all(|device| device.starts_with("0000:00:")), "{before:?}");
        for (what, device) in [
            ("network card", "0000:00:02.0 0x1af4 0x1041"),
            ("SCSI controller, into which disks are plugged,", "0000:00:03.0 0x1af4 0x1048"),
            ("source of random numbers", "0000:00:06.0 0x1af4 0x1044"),
        ] {
            ensure!(
                before.iter().any(|found| found == device),
                "the {what} ({device}) is not among {before:?}"
            );
        }

        // The annotation counts for a start: a guest that moves keeps its devices without it.
        namespace.kubectl(&["annotate", "vmi", "vm", &format!("{ANNOTATION}-")])?;
        let count = guest.count()?;
        namespace.migrate("vm")?;
        let after = devices(namespace)?;
        ensure!(after == before, "the devices were {before:?} and are {after:?}");
        guest.goes_on(count)?;

        let mut wrong = manifest.clone();
        wrong["metadata"]["name"] = json!("wrong");
        let devices = &mut guest::spec_of(&mut wrong)["domain"]["devices"];
        devices["interfaces"][0]["pciAddress"] = json!("0000:05:00.0");
        let refused = namespace.refusal(&wrong)?;
        let field = format!("spec.template.metadata.annotations[{ANNOTATION}]");
        ensure!(refused.contains(&field) && refused.contains("0000:05:00.0"), "{refused}");
        Ok(())
    });
}
