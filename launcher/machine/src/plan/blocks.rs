//! Sizes of a disk's blocks: those of the manifest, or those of its volume.
//!
//! A guest reads the sizes when it starts, and cannot be told of others. So a disk keeps those that its volume had then: the
//! layout has them, and a guest that comes from another machine gets them again, whatever the volume has here.

use crate::blocks::Blocks;
use crate::device::blockdev::FileSource;
use crate::error::PlanError;
use crate::facts::VolumeFacts;
use crate::layout::Layout;
use crate::name;
use barevirt_api::v1::{CustomBlockSize, Disk};

/// The sizes of a disk's blocks, if they are not QEMU's. `saved` is the layout of the guest's earlier start, if there is one.
pub(super) fn plan(
    disk: &Disk,
    ready: Option<&VolumeFacts>,
    saved: Option<&Layout>,
    field: &str,
) -> Result<Option<Blocks>, PlanError> {
    if let Some(custom) = disk.block_size.as_ref().and_then(|size| size.custom.as_ref()) {
        return given(custom, field).map(Some);
    }
    let Some(ready) = ready.filter(|_| disk.matches_volume()) else { return Ok(None) };
    let Some(own) = ready.blocks else { return Ok(None) };
    // QEMU's SATA disks have no others.
    let own = if disk.bus().unwrap_or("sata") == "sata" { own.of_512() } else { own };
    match saved.filter(|saved| saved.is_arriving()) {
        Some(saved) => started(disk, ready, own, saved, field).map(Some),
        None => Ok(Some(own)),
    }
}

/// Records the sizes of a disk that has those of its volume.
pub(super) fn note(disk: &Disk, blocks: Option<Blocks>, layout: &mut Layout) {
    if let Some(blocks) = blocks.filter(|_| disk.matches_volume()) {
        layout.note_blocks(&name::device("disk", &disk.name), blocks);
    }
}

fn given(custom: &CustomBlockSize, field: &str) -> Result<Blocks, PlanError> {
    let bytes = |part: &str, given: i32| {
        u32::try_from(given).map_err(|_| PlanError::Unsupported {
            field: format!("{field}.blockSize.custom.{part}"),
            value: given.to_string(),
            why: "sizes from 0 to 2 GiB are",
        })
    };
    let logical = bytes("logical", custom.logical.unwrap_or_default())?;
    let physical = bytes("physical", custom.physical.unwrap_or_default())?;
    let discard = custom.discard_granularity.map(|given| bytes("discardGranularity", given)).transpose()?;
    Ok(Blocks { logical, physical, discard })
}

/// The sizes with which the guest was started elsewhere. A device here must not have larger blocks: QEMU would read and write
/// more than the guest does, and a loss of power could change what the guest did not write. File systems see to that
/// themselves.
fn started(
    disk: &Disk,
    ready: &VolumeFacts,
    own: Blocks,
    saved: &Layout,
    field: &str,
) -> Result<Blocks, PlanError> {
    let field = || format!("{field}.blockSize.matchVolume");
    let volume = || ready.name.clone();
    let Some(started) = saved.blocks(&name::device("disk", &disk.name)) else {
        return Err(PlanError::UnknownBlocks { field: field(), volume: volume() });
    };
    let is_device = matches!(ready.source, FileSource::BlockDevice(_) | FileSource::DeviceFdSet(_));
    if is_device && ready.overlay.is_none() && own.logical > started.logical {
        let (here, started) = (own.logical, started.logical);
        return Err(PlanError::LargerBlocks { field: field(), volume: volume(), here, started });
    }
    Ok(started)
}

#[cfg(test)]
mod tests {
    use super::super::hot_disk::tests::ready;
    use super::super::tests::{facts, valid, vmi};
    use super::*;
    use crate::facts::Facts;
    use crate::hotplug::attach_disk;
    use crate::machine::Machine;
    use crate::plan::hot_disk::HotDisks;
    use crate::plan::plan;
    use barevirt_api::valid::ValidVmi;
    use serde_json::{Value, json};

    fn blocks(logical: u32, physical: u32) -> Blocks {
        Blocks { logical, physical, discard: Some(physical) }
    }

    fn matching(name: &str, bus: &str) -> Value {
        json!({"name": name, "disk": {"bus": bus}, "blockSize": {"matchVolume": {}}})
    }

    /// A machine on whose volumes files or devices have these blocks.
    fn with(vmi: &ValidVmi, device: bool, own: Blocks, layout: Option<Layout>) -> Result<Machine, PlanError> {
        let mut facts = Facts { layout, ..facts(vmi) };
        for volume in &mut facts.volumes {
            volume.blocks = Some(own);
            if device {
                volume.source = FileSource::BlockDevice(format!("/dev/{}", volume.name));
                (volume.read_only, volume.overlay) = (false, None);
            }
        }
        plan(vmi, &facts)
    }

    fn sizes(machine: &Machine) -> Vec<Option<Blocks>> {
        machine.disks.iter().map(|disk| disk.device.blocks).collect()
    }

    #[test]
    fn a_disk_has_the_blocks_of_its_volume_if_it_asks_for_them() {
        let mut off = matching("off", "virtio");
        off["blockSize"]["matchVolume"]["enabled"] = json!(false);
        let plain = json!({"name": "plain", "disk": {"bus": "virtio"}});
        let drive = json!({"name": "cd", "cdrom": {"bus": "scsi"}, "blockSize": {"matchVolume": {}}});
        let disks = [
            matching("a", "virtio"),
            matching("b", "scsi"),
            matching("c", "usb"),
            matching("d", "sata"),
            off,
            plain,
            drive,
        ];
        let vmi = valid(vmi(&disks));
        let machine = with(&vmi, true, blocks(4096, 8192), None).unwrap();
        let all = Some(blocks(4096, 8192));
        let on_sata = Some(Blocks { logical: 512, physical: 8192, discard: None });
        assert_eq!(sizes(&machine), [all, all, all, on_sata, None, None, None]);
        let line = crate::argv(&machine).join("\n");
        let size = r#""logical_block_size":4096,"physical_block_size":8192,"discard_granularity":8192"#;
        assert_eq!(line.matches(size).count(), 3, "{line}");
        let told: Vec<_> =
            ["a", "d", "off", "cd"].map(|name| machine.layout.blocks(&format!("disk-{name}"))).into();
        assert_eq!(told, [all, on_sata, None, None]);
        // An image that was made for the guest has no blocks of its own.
        assert_eq!(sizes(&plan(&vmi, &facts(&vmi)).unwrap()), [None; 7]);
    }

    #[test]
    fn a_guest_that_moves_keeps_the_blocks_of_its_start_and_a_new_start_has_new_ones() {
        // A place on the machine's own bus is forgotten by the layout.
        let mut placed = matching("a", "virtio");
        placed["disk"]["pciAddress"] = json!("0000:00:10.0");
        let vmi = valid(vmi(&[placed, matching("b", "scsi")]));
        let (small, large) = (blocks(512, 512), blocks(4096, 4096));
        for (there, here) in [(small, large), (large, small)] {
            let source = with(&vmi, false, there, None).unwrap();
            let layout = Layout::saved(&source.layout.to_saved()).unwrap();
            let target = with(&vmi, false, here, Some(layout.clone().for_arrival())).unwrap();
            assert_eq!(sizes(&target), [Some(there); 2]);
            assert_eq!(target.layout.to_saved(), layout.to_saved(), "it moves on");
            assert_eq!(sizes(&with(&vmi, false, here, Some(layout.for_start())).unwrap()), [Some(here); 2]);
        }
    }

    #[test]
    fn a_device_with_larger_blocks_is_refused_to_a_guest_that_moves() {
        let vmi = valid(vmi(&[matching("a", "virtio")]));
        let (small, large) = (blocks(512, 4096), blocks(4096, 4096));
        let move_to = |there, device, here| {
            let layout = with(&vmi, true, there, None).unwrap().layout.for_arrival();
            with(&vmi, device, here, Some(layout)).map(|machine| sizes(&machine))
        };
        let error = move_to(small, true, large).unwrap_err();
        assert_eq!(error.field(), "spec.domain.devices.disks[0].blockSize.matchVolume");
        assert!(error.to_string().contains("blocks of 4096 bytes here"), "{error}");
        assert_eq!(move_to(large, true, small), Ok(vec![Some(large)]));
        assert_eq!(move_to(small, false, large), Ok(vec![Some(small)]));
        // A layout without them is not that of such a guest.
        let unknown = with(&vmi, true, small, Some(Layout::new().for_arrival())).unwrap_err();
        assert!(matches!(unknown, PlanError::UnknownBlocks { .. }), "{unknown}");
    }

    #[test]
    fn a_plugged_disk_has_the_blocks_of_its_volume_wherever_its_guest_moves() {
        let mut object = vmi(&[]);
        let spec = &mut object["spec"];
        spec["domain"]["devices"]["disks"] = json!([matching("one", "scsi"), matching("two", "virtio")]);
        let hot = |name: &str| json!({"name": name, "persistentVolumeClaim": {"claimName": name, "hotpluggable": true}});
        spec["volumes"] = json!([hot("one"), hot("two")]);
        let vmi = valid(object);
        let own = |name: &str, own| VolumeFacts { blocks: Some(own), ..ready(name) };
        let start = Facts { volumes: Vec::new(), ..facts(&vmi) };
        let machine = plan(&vmi, &start).unwrap();
        let (small, large) = (blocks(512, 512), blocks(4096, 4096));
        let one = HotDisks::of(&machine, &vmi).plan(&vmi, &own("one", large)).unwrap();
        let two = one.room.plan(&vmi, &own("two", small)).unwrap();
        assert_eq!((one.disk.device.blocks, two.disk.device.blocks), (Some(large), Some(small)));
        let size = attach_disk(&one.disk).last().unwrap().forward.arguments["logical_block_size"].clone();
        assert_eq!(size, 4096);
        let layout = Layout::saved(&two.room.layout().to_saved()).unwrap();
        let volumes = vec![own("one", small), own("two", large)];
        let there = Facts { layout: Some(layout.for_arrival()), volumes, ..facts(&vmi) };
        let there = plan(&vmi, &there).unwrap();
        assert_eq!(sizes(&there), [Some(large), Some(small)]);
        // Where it is now, what is plugged in next has the blocks of its volume.
        let mut room = HotDisks::of(&there, &vmi);
        room.free(&two.disk);
        assert_eq!(room.layout().blocks("disk-two"), None);
        assert_eq!(room.plan(&vmi, &own("two", large)).unwrap().disk.device.blocks, Some(large));
    }
}
