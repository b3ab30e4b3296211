//! A DataVolume with `preallocation`, without CDI.

use super::imports::{FILLED, SERVER, SMALL, data_volume, filled, host, publish, small, without_cdi};
use super::imports_in_a_row::{have_contents, places};
use anyhow::ensure;
use barevirt_e2e::{Node, pods};
use serde_json::json;

#[test]
fn a_preallocated_disk_has_all_its_blocks() {
    without_cdi("importsallocated", |namespace| {
        pods::server(namespace, SERVER, "images")?;
        let work = tempfile::tempdir()?;
        let (image, digest) = small(work.path())?;
        publish(namespace, "small.qcow2", &image)?;
        let source = json!({ "http": { "url": format!("http://{}/small.qcow2", host(namespace)) } });
        let mut volume = data_volume("disk", &source, "16Mi");
        volume["spec"]["preallocation"] = json!(true);
        namespace.apply(&volume)?;
        filled(namespace, "disk", FILLED)?;
        let claim = namespace.need("pvc", "disk")?;
        let annotations = &claim["metadata"]["annotations"];
        ensure!(annotations["cdi.kubevirt.io/storage.preallocation"] == "true", "{annotations}");
        for (node, folders) in places(namespace)? {
            for folder in folders {
                // Blocks, the size of one, and the size of the disk, with the parts that its image leaves out.
                let said = Node::named(&node).sh(&format!("stat -c '%b %B %s' {folder}/disk.img"))?;
                let numbers: Vec<u64> = said.split_whitespace().flat_map(str::parse).collect();
                let is_whole =
                    matches!(numbers[..], [blocks, block, size] if size > 0 && blocks * block >= size);
                ensure!(is_whole, "{folder} of {node} has holes: {said}");
            }
        }
        have_contents(namespace, SMALL, &digest)
    });
}
