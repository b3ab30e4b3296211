//! QEMU's block nodes and exports for the copies of disks, as its commands take them. Pure.

use std::path::Path;

use barevirt_qmp::qapi::qmp;

/// QEMU can limit a disk to multiples of this size, in bytes.
const SECTOR: u64 = 512;

/// The command that exports a node of the disk of this name and id.
pub(super) fn export(name: &str, id: &str, node: &str) -> qmp::block_export_add {
    let base = qmp::BlockExportOptionsBase {
        id: id.to_owned(),
        node_name: node.to_owned(),
        writable: Some(true),
        fixed_iothread: None,
        iothread: None,
        writethrough: None,
    };
    let name = qmp::BlockExportOptionsNbdBase { name: Some(name.to_owned()), description: None };
    qmp::block_export_add((qmp::BlockExportOptionsNbd::from(name), base).into())
}

/// The command that opens the file of a disk that the guest only reads once more, to write to it, as the node of this name.
pub(super) fn image(path: &Path, node: &str) -> qmp::blockdev_add {
    let file = qmp::BlockdevOptionsFile {
        filename: path.display().to_string(),
        aio: None,
        aio_max_batch: None,
        drop_cache: None,
        locking: None,
        pr_manager: None,
        x_check_cache_dropped: None,
    };
    qmp::blockdev_add(qmp::BlockdevOptions::file { base: options(Some(node.to_owned())), file })
}

/// The command that opens the target's export of a disk, on the connection of the copy's name, as the node of that
/// name, encrypted with the key of this name. With a size, the node is only that many first bytes of the export, which may be
/// larger: QEMU only copies to a disk of the same size. It refuses a smaller disk.
pub(super) fn target(export: &str, copy: &str, key: Option<&str>, size: Option<u64>) -> qmp::blockdev_add {
    let nbd = qmp::BlockdevOptionsNbd {
        export: Some(export.to_owned()),
        server: qmp::FdSocketAddress { str: copy.to_owned() }.into(),
        tls_creds: key.map(str::to_owned),
        tls_hostname: key.map(|_| "migration".to_owned()),
        open_timeout: None,
        reconnect_delay: None,
        x_dirty_bitmap: None,
    };
    let named = options(Some(copy.to_owned()));
    let whole_sectors = size.filter(|size| size.is_multiple_of(SECTOR));
    match whole_sectors.and_then(|size| i64::try_from(size).ok()) {
        None => qmp::blockdev_add((nbd, named).into()),
        Some(size) => {
            let file = qmp::BlockdevRef::definition(Box::new((nbd, options(None)).into()));
            let mut raw = qmp::BlockdevOptionsRaw::from(file);
            raw.size = Some(size);
            qmp::blockdev_add((raw, named).into())
        }
    }
}

/// A node's options that all drivers have.
fn options(node_name: Option<String>) -> qmp::BlockdevOptionsBase {
    qmp::BlockdevOptionsBase {
        node_name,
        auto_read_only: None,
        cache: None,
        detect_zeroes: None,
        discard: None,
        force_share: None,
        read_only: None,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_copy_is_written_to_as_many_bytes_as_the_disk_has() {
        let sent = |key, size| serde_json::to_value(target("data", "copy-0", key, size)).unwrap();
        let export = json!({"driver": "nbd", "export": "data", "server": {"type": "fd", "str": "copy-0"}});
        let mut whole = export.clone();
        whole["node-name"] = json!("copy-0");
        assert_eq!(sent(None, None), whole);
        assert_eq!(sent(None, Some(1000)), whole);
        let first = json!({"driver": "raw", "node-name": "copy-0", "size": 1024, "file": export});
        assert_eq!(sent(None, Some(1024)), first);
        let encrypted = sent(Some("key"), Some(1024))["file"].clone();
        assert_eq!(encrypted["tls-creds"], "key");
        assert_eq!(encrypted["tls-hostname"], "migration");
    }

    #[test]
    fn an_image_is_exported_by_a_node_of_its_own() {
        let node = serde_json::to_value(image(Path::new("/run/seed.iso"), "copy-1")).unwrap();
        assert_eq!(node, json!({"driver": "file", "node-name": "copy-1", "filename": "/run/seed.iso"}));
        let exported = serde_json::to_value(export("seed", "disk-seed", "copy-1")).unwrap();
        let expected = json!({"type": "nbd", "id": "disk-seed", "node-name": "copy-1", "name": "seed", "writable": true});
        assert_eq!(exported, expected);
    }
}
