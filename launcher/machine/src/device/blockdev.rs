//! The source of a disk's bytes: a graph of block nodes, whose names are stable as long as the disk keeps its
//! name.
//!
//! ```text
//!   without overlay:   disk-<name> (raw or qcow2) ──file──> file-<name>
//!   with overlay:      disk-<name> (qcow2) ──file────> file-<name>    the guest's writes
//!                            └─────backing──> base-<name> ──file──> bfile-<name>    read-only
//! ```
//!
//! The device is always attached to `disk-<name>`. No node ever follows a name in an image's header:
//! `backing` is given for every qcow2 node, null if there is none. Nodes are made one by one, innermost
//! first.

use crate::name;
use crate::props::Props;
use barevirt_api::v1::Disk;
use serde_json::Value;

/// Space that the guest discards is given back to the node or the storage.
const UNMAP: &str = "unmap";

/// The file of one image.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FileSource {
    /// A regular file, by path.
    Path(String),
    /// A block device, by path.
    BlockDevice(String),
    /// A regular file that is already open: the number of one of the [`FdSet`](crate::FdSet)s. The set must
    /// hold a descriptor with exactly the requested access mode; one that is open for reading and writing
    /// cannot be used for reading only. To bypass the page cache, the descriptor must be open with
    /// `O_DIRECT`, otherwise without it (QEMU 9.1).
    FdSet(u32),
    /// A block device that is already open, in the same way.
    DeviceFdSet(u32),
}

/// Format of an image. The program that checked the image gives it; QEMU never probes it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ImageFormat {
    /// The guest's bytes, unchanged.
    Raw,
    /// QEMU's copy-on-write format.
    Qcow2,
}

/// Whether the guest may write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReadMode {
    /// Reads only.
    ReadOnly,
    /// Reads and writes.
    ReadWrite,
}

/// How the host's page cache is used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cache {
    /// Without the page cache (O_DIRECT); the guest's flushes reach the disk.
    None,
    /// Through the page cache, and each write is flushed.
    WriteThrough,
    /// Through the page cache; the guest's flushes reach the disk.
    WriteBack,
    /// Through the page cache, and flushes are ignored: for data that ends with the pod. A flush protects
    /// only against a crash of the node, which also ends the pod.
    Disposable,
}

/// Thread model of reads and writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Aio {
    /// QEMU's pool of threads. The default.
    Threads,
    /// Linux AIO; only with [`Cache::None`].
    Native,
}

/// An image, and the overlay for its writes if there is one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Image {
    /// Name of the disk, from which node names are made.
    pub name: String,
    /// The image; with an overlay, its read-only base.
    pub source: FileSource,
    /// Format of `source`.
    pub format: ImageFormat,
    /// An empty qcow2 file of the same virtual size, with no backing file in its header.
    pub overlay: Option<FileSource>,
    /// The guest's access.
    pub mode: ReadMode,
    /// Caching of the layer that is written to.
    pub cache: Cache,
    /// Thread model of that layer.
    pub aio: Aio,
    /// Whether others may write to it at the same time, so that it is not locked.
    pub is_shared: bool,
    /// Whether its space was allocated in advance, so that what the guest discards is kept.
    pub thick: bool,
}

impl Image {
    /// Name of the node that a device is attached to.
    #[must_use]
    pub fn node(&self) -> String {
        Self::node_of(&self.name)
    }

    /// The same for the disk of that name.
    #[must_use]
    pub fn node_of(disk: &str) -> String {
        name::node("disk", disk)
    }

    /// The nodes, in the order in which they can be made.
    pub(crate) fn nodes(&self) -> Vec<Props> {
        let (top, file) = (self.node(), name::node("file", &self.name));
        match &self.overlay {
            None => vec![
                self.written_file(&file, &self.source),
                format_node(&top, self.format, &file, self.mode, self.discard())
                    .maybe("backing", null_backing(self.format)),
            ],
            Some(overlay) => {
                let (base, base_file) = (name::node("base", &self.name), name::node("bfile", &self.name));
                let read_only = ReadMode::ReadOnly;
                vec![
                    file_node(&base_file, &self.source, read_only).with("discard", UNMAP),
                    format_node(&base, self.format, &base_file, read_only, UNMAP)
                        .maybe("backing", null_backing(self.format)),
                    self.written_file(&file, overlay),
                    format_node(&top, ImageFormat::Qcow2, &file, self.mode, UNMAP).with("backing", base),
                ]
            }
        }
    }

    /// Names of the nodes, in the order of [`Image::nodes`].
    #[must_use]
    pub fn node_names(&self) -> Vec<String> {
        let roles: &[&str] =
            if self.overlay.is_some() { &["bfile", "base", "file", "disk"] } else { &["file", "disk"] };
        roles.iter().map(|role| name::node(role, &self.name)).collect()
    }

    /// What becomes of the space that the guest discards. An overlay is never allocated in advance.
    fn discard(&self) -> &'static str {
        if self.thick && self.overlay.is_none() { "ignore" } else { UNMAP }
    }

    fn written_file(&self, node: &str, source: &FileSource) -> Props {
        let aio = match self.aio {
            Aio::Threads => "threads",
            Aio::Native => "native",
        };
        file_node(node, source, self.mode)
            .with("discard", self.discard())
            .with("aio", aio)
            .maybe("locking", self.is_shared.then_some("off"))
            .nest("cache", &self.cache.flags())
    }
}

impl Cache {
    /// The cache mode of a disk: the manifest's, else the usual one for its image.
    ///
    /// # Errors
    /// Returns a word that is not a cache mode.
    pub fn of(disk: &Disk, usual: Cache) -> Result<Self, String> {
        match disk.cache.as_deref().unwrap_or_default() {
            "none" => Ok(Cache::None),
            "writethrough" => Ok(Cache::WriteThrough),
            "writeback" => Ok(Cache::WriteBack),
            // All users of a shared disk must see each other's writes.
            "" if disk.shareable == Some(true) => Ok(Cache::None),
            "" => Ok(usual),
            other => Err(other.to_owned()),
        }
    }

    fn flags(self) -> Props {
        Props::new("direct", self == Cache::None).with("no-flush", self == Cache::Disposable)
    }
}

fn format_node(node: &str, format: ImageFormat, file: &str, mode: ReadMode, discard: &'static str) -> Props {
    let driver = match format {
        ImageFormat::Raw => "raw",
        ImageFormat::Qcow2 => "qcow2",
    };
    Props::new("driver", driver)
        .with("node-name", node)
        .with("read-only", mode == ReadMode::ReadOnly)
        .with("discard", discard)
        .with("file", file)
}

impl FileSource {
    /// The block driver that opens it, and the file name or set for the driver.
    pub(crate) fn driver_and_name(&self) -> (&'static str, String) {
        match self {
            FileSource::Path(path) => ("file", path.clone()),
            FileSource::BlockDevice(path) => ("host_device", path.clone()),
            FileSource::FdSet(set) => ("file", format!("/dev/fdset/{set}")),
            FileSource::DeviceFdSet(set) => ("host_device", format!("/dev/fdset/{set}")),
        }
    }
}

fn file_node(node: &str, source: &FileSource, mode: ReadMode) -> Props {
    let (driver, filename) = source.driver_and_name();
    Props::new("driver", driver)
        .with("node-name", node)
        .with("filename", filename)
        .with("read-only", mode == ReadMode::ReadOnly)
}

/// Explicitly "no backing file", whatever the header says, for the format that could have one.
fn null_backing(format: ImageFormat) -> Option<Value> {
    match format {
        ImageFormat::Raw => None,
        ImageFormat::Qcow2 => Some(Value::Null),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn image() -> Image {
        Image {
            name: "root".into(),
            source: FileSource::FdSet(3),
            format: ImageFormat::Qcow2,
            overlay: Some(FileSource::Path("/run/a,b.qcow2".into())),
            mode: ReadMode::ReadWrite,
            cache: Cache::Disposable,
            aio: Aio::Threads,
            is_shared: false,
            thick: false,
        }
    }

    #[test]
    fn space_that_was_allocated_in_advance_stays_allocated() {
        let discards = |thick, overlay: Option<FileSource>| -> Vec<Value> {
            let image = Image { thick, overlay, ..image() };
            image.nodes().iter().map(|node| node.to_value()["discard"].clone()).collect()
        };
        assert_eq!(discards(false, None), ["unmap"; 2]);
        assert_eq!(discards(true, None), ["ignore"; 2]);
        assert_eq!(discards(true, image().overlay), ["unmap"; 4]);
    }

    #[test]
    fn an_overlay_names_its_base_and_the_base_names_nothing() {
        let nodes: Vec<Value> = image().nodes().iter().map(Props::to_value).collect();
        assert_eq!(nodes[0]["filename"], "/dev/fdset/3");
        assert_eq!(nodes[0]["read-only"], true);
        assert_eq!(nodes[1]["backing"], Value::Null);
        assert!(nodes[1].as_object().unwrap().contains_key("backing"));
        assert_eq!(nodes[3]["backing"], "base-root");
        assert_eq!(nodes[3]["read-only"], false);
    }

    #[test]
    fn names_match_the_nodes() {
        for overlay in [None, Some(FileSource::Path("/o".into()))] {
            let image = Image { overlay, ..image() };
            let names: Vec<Value> =
                image.nodes().iter().map(|node| node.to_value()["node-name"].clone()).collect();
            assert_eq!(names, image.node_names().into_iter().map(Value::from).collect::<Vec<_>>());
            assert_eq!(names.last().unwrap(), &Value::from(image.node()));
        }
    }
}
