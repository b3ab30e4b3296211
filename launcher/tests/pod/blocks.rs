//! Disks with the block sizes of their volumes.

use nix::sys::statvfs::statvfs;
use serde_json::{Value, json};

use super::moves::{awaits, expects};
use super::{Pod, Watch, sync, vmi};

/// The sizes that QEMU was told for a disk.
fn told(qemu: u32, id: &str) -> [Value; 3] {
    let line = std::fs::read_to_string(format!("/proc/{qemu}/cmdline")).unwrap();
    let mut devices = line.split('\0').filter_map(|argument| serde_json::from_str::<Value>(argument).ok());
    let device = devices.find(|device| device["id"] == id).unwrap();
    ["logical_block_size", "physical_block_size", "discard_granularity"].map(|name| device[name].clone())
}

#[tokio::test]
async fn a_disk_has_the_blocks_of_its_volume_and_keeps_them_when_its_guest_moves() {
    let mut object = vmi();
    let disks = object["spec"]["domain"]["devices"]["disks"].as_array_mut().unwrap();
    for disk in disks {
        disk["blockSize"] = json!({"matchVolume": {}});
    }
    let source = Pod::start(&[]).await;
    let mut client = source.handler().await;
    let mut watch = Watch::open(&mut client).await;
    let mut wanted = sync(1);
    wanted.get_mut().vmi = object.to_string().into_bytes();
    client.sync(wanted).await.unwrap();
    let _helper = source.root_disk().await;
    let running = watch.running().await;
    let block = statvfs(&source.at("ephemeral")).unwrap().block_size().min(4096);
    let sizes = [block, block, block];
    assert_eq!(told(running.qemu_pid, "disk-scratch"), sizes.map(Value::from));
    // cloud-init's is an image with small blocks.
    assert_eq!(told(running.qemu_pid, "disk-seed"), [Value::Null, Value::Null, Value::Null]);
    let mut layout: Value = serde_json::from_str(&running.pci_layout).unwrap();
    assert_eq!(layout["blocks"], json!({"disk-root": sizes, "disk-scratch": sizes}));

    // Its volumes had others when it started.
    for name in ["disk-root", "disk-scratch"] {
        layout["blocks"][name] = json!([1024, 2048, 8192]);
    }
    object["status"] = json!({"machine": {"type": running.machine_type}});
    object["metadata"]["annotations"] = json!({"barevirt.dev/pci-layout": layout.to_string()});
    let target = Pod::start(&[]).await;
    let (mut target_watch, _target_helper) = expects(&target, &object).await;
    let awaited = target_watch.until("awaits it", awaits).await;
    for disk in ["disk-root", "disk-scratch"] {
        assert_eq!(told(awaited.qemu_pid, disk), [1024_u32, 2048, 8192].map(Value::from), "{disk}");
    }
    let kept: Value = serde_json::from_str(&awaited.pci_layout).unwrap();
    assert_eq!(kept["blocks"], layout["blocks"]);
}
