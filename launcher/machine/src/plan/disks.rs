//! Disks: image, block nodes, and connection.

use super::blocks;
use super::boot::BootOrder;
use super::hot_disk::{came, not_there, prepared};
use super::io_threads::{IoThreads, has_own};
use super::ports::Ports;
use crate::blocks::Blocks;
use crate::device::blockdev::{Aio, Cache, FileSource, Image, ReadMode};
use crate::device::controller::{Controllers, SataController};
use crate::device::disk::{Bus, Disk, DiskDevice, DiskKind, IdeSlot, OnError};
use crate::device::io_thread::{self, IoThread, Served};
use crate::device::virtio::Virtio;
use crate::error::PlanError;
use crate::facts::{Facts, VolumeFacts};
use crate::layout::Layout;
use crate::name;
use barevirt_api::v1;
use barevirt_api::valid::{Bus as ApiBus, ValidDisk, ValidVmi};

/// Most units that a SCSI target has.
pub(super) const SCSI_UNITS: u16 = 256;

/// A bus, without the place on it.
#[derive(Clone, Copy, PartialEq)]
pub(super) enum Connection {
    Virtio,
    Sata(IdeSlot),
    Usb,
    Scsi(u16),
}

/// A disk without its port.
pub(super) struct Planned {
    name: String,
    connection: Connection,
    kind: DiskKind,
    is_empty: bool,
    boot_index: Option<u32>,
    serial: Option<String>,
    on_error: OnError,
    blocks: Option<Blocks>,
    served: Served,
    queues: Option<u32>,
    image: Option<Image>,
}

/// All disks, and the controllers they need.
pub(super) struct PlannedDisks {
    disks: Vec<Planned>,
    /// Whether there is a SCSI controller without a disk, for disks that are plugged in.
    waits_for_scsi: bool,
    threads: IoThreads,
    sata_controllers: u8,
    /// Number of queues if it differs from QEMU's choice.
    queues: Option<u32>,
}

pub(super) fn plan(vmi: &ValidVmi, facts: &Facts, boot_order: &BootOrder) -> Result<PlannedDisks, PlanError> {
    let mut places = Places::default();
    let mut threads = IoThreads::of(vmi.spec())?;
    let as_started = queues_as_started(vmi, facts);
    let many_queues = vmi.spec().domain.devices.block_multi_queue.unwrap_or(false);
    let mut disks = Vec::new();
    for (at, disk) in vmi.spec().domain.devices.disks.iter().enumerate() {
        let field = format!("spec.domain.devices.disks[{at}]");
        let valid = vmi.disks().iter().find(|valid| valid.at == at);
        let is_hot = valid.is_some_and(|valid| valid.volume.is_hotpluggable());
        if is_hot && !disk.is_cdrom() {
            continue;
        }
        let ready = prepared(facts, &disk.name);
        let image = match (valid, ready) {
            (Some(valid), Some(ready)) => Some(image(valid, ready, &field)?),
            (Some(_), None) if !is_hot => {
                return Err(PlanError::VolumeMissing { field, volume: disk.name.clone() });
            }
            (Some(_) | None, _) => None,
        };
        let connection = places.next(disk.bus().unwrap_or("sata"), kind(disk), &field)?;
        let (served, queues) = match connection {
            Connection::Virtio => {
                let served = threads.serve(disk);
                let own = queues(&served, many_queues, vmi.topology().vcpus());
                (served, own.or(as_started))
            }
            Connection::Sata(_) | Connection::Usb | Connection::Scsi(_) => (Served::ByMainLoop, None),
        };
        let boot_index = boot_order.index(disk.boot_order, at);
        let blocks = blocks::plan(disk, ready, facts.layout.as_ref(), &field)?;
        let planned = planned(disk, image, connection, blocks, &field)?.booted_from(boot_index);
        disks.push(Planned { served, queues, ..planned });
    }
    for (valid, ready) in came(vmi, facts) {
        let field = format!("spec.domain.devices.disks[{}]", valid.at);
        let unit = |id: &str| facts.layout.as_ref().and_then(|layout| layout.unit(id));
        let connection = match (valid.bus, unit(&name::device("disk", &valid.disk.name))) {
            (ApiBus::Virtio, _) => Connection::Virtio,
            (ApiBus::Scsi, Some(unit)) => Connection::Scsi(unit),
            (ApiBus::Scsi, None) => places.next("scsi", kind(&valid.disk), &field)?,
            (ApiBus::Sata | ApiBus::Usb, _) => return Err(not_there(valid, &field)),
        };
        let image = image(valid, ready, &field)?;
        let blocks = blocks::plan(&valid.disk, Some(ready), facts.layout.as_ref(), &field)?;
        let planned = planned(&valid.disk, Some(image), connection, blocks, &field)?.with_queues(as_started);
        disks.push(planned.with_own_thread(&valid.disk));
    }
    Ok(PlannedDisks {
        disks,
        waits_for_scsi: false,
        threads,
        sata_controllers: places.sata_controllers(),
        queues: as_started,
    })
}

/// Number of queues if QEMU would choose another: one for each processor at the machine's start. A guest that
/// comes from another node may have a different number of processors now.
pub(super) fn queues_as_started(vmi: &ValidVmi, facts: &Facts) -> Option<u32> {
    let topology = vmi.topology();
    facts.sockets.filter(|now| *now != topology.sockets).map(|_| topology.vcpus())
}

/// A disk alone: its threads and its boot index depend on the other disks.
pub(super) fn planned(
    disk: &v1::Disk,
    image: Option<Image>,
    connection: Connection,
    blocks: Option<Blocks>,
    field: &str,
) -> Result<Planned, PlanError> {
    Ok(Planned {
        name: disk.name.clone(),
        connection,
        kind: kind(disk),
        is_empty: has_open_tray(disk),
        on_error: on_error(disk, field)?,
        blocks,
        served: Served::ByMainLoop,
        queues: None,
        boot_index: None,
        serial: disk.serial.clone().filter(|serial| !serial.is_empty()),
        image,
    })
}

/// The kind of drive that the guest sees.
pub(super) fn kind(disk: &v1::Disk) -> DiskKind {
    match disk {
        _ if disk.is_cdrom() => DiskKind::Cdrom,
        _ if disk.is_lun() => DiskKind::Lun,
        _ => DiskKind::Disk,
    }
}

/// As with libvirt, the guest finds no medium in a drive with an open tray.
fn has_open_tray(disk: &v1::Disk) -> bool {
    disk.is_cdrom() && disk.cdrom.as_ref().is_some_and(|drive| drive.tray.as_deref() == Some("open"))
}

/// One queue for each virtual CPU if requested, and at least one for each thread.
fn queues(served: &Served, many: bool, cpus: u32) -> Option<u32> {
    match served {
        Served::ByPool(threads) => Some(cpus.max(u32::try_from(threads.len()).unwrap_or(u32::MAX))),
        Served::ByMainLoop | Served::By(_) | Served::ByOwn(_) => many.then_some(cpus),
    }
}

fn on_error(disk: &v1::Disk, field: &str) -> Result<OnError, PlanError> {
    match disk.error_policy.as_deref().unwrap_or_default() {
        "" => Ok(OnError::Stop),
        given => OnError::from_api(given)
            .ok_or_else(|| unsupported(field, "errorPolicy", given, "stop, report, ignore and enospace are")),
    }
}

/// Assigns the places on numbered buses, in the order of the list.
#[derive(Default)]
struct Places {
    sata: u8,
    scsi: u16,
}

impl Places {
    const SATA: u8 = IdeSlot::UNITS * (1 + SataController::MAX);

    fn next(&mut self, bus: &str, kind: DiskKind, field: &str) -> Result<Connection, PlanError> {
        let full = |bus, limit| PlanError::BusFull { field: field.to_owned(), bus, limit };
        match (bus, kind) {
            ("virtio", DiskKind::Disk) => Ok(Connection::Virtio),
            ("sata", DiskKind::Disk | DiskKind::Cdrom) => {
                if self.sata == Self::SATA {
                    return Err(full("sata", Self::SATA.into()));
                }
                let slot =
                    IdeSlot { controller: self.sata / IdeSlot::UNITS, unit: self.sata % IdeSlot::UNITS };
                self.sata += 1;
                Ok(Connection::Sata(slot))
            }
            ("usb", DiskKind::Disk) => Ok(Connection::Usb),
            ("scsi", _) => {
                if self.scsi == SCSI_UNITS {
                    return Err(full("scsi", SCSI_UNITS));
                }
                self.scsi += 1;
                Ok(Connection::Scsi(self.scsi - 1))
            }
            (other, kind) => Err(PlanError::Unsupported {
                field: format!("{field}.{}.bus", kind.target()),
                value: other.to_owned(),
                why: match kind {
                    DiskKind::Disk => "a disk is on virtio, sata, scsi or usb",
                    DiskKind::Cdrom => "a CD drive is on sata or scsi",
                    DiskKind::Lun => "a LUN is on scsi",
                },
            }),
        }
    }

    fn sata_controllers(&self) -> u8 {
        self.sata.div_ceil(IdeSlot::UNITS).saturating_sub(1)
    }
}

pub(super) fn image(valid: &ValidDisk, ready: &VolumeFacts, field: &str) -> Result<Image, PlanError> {
    let disk = &valid.disk;
    // A disk of metrics is read-only for the guest.
    let is_read = disk.is_readonly() || valid.volume.downward_metrics.is_some();
    let mode = if is_read { ReadMode::ReadOnly } else { ReadMode::ReadWrite };
    // A read-only disk needs no overlay, because its image cannot change.
    let overlay = ready.overlay.clone().filter(|_| mode == ReadMode::ReadWrite);
    if mode == ReadMode::ReadWrite && overlay.is_none() && ready.read_only {
        return Err(PlanError::VolumeReadOnly { field: field.to_owned(), volume: ready.name.clone() });
    }
    let cache = Cache::of(disk, ready.cache)
        .map_err(|given| unsupported(field, "cache", &given, "none, writethrough and writeback are"))?;
    let device = matches!(ready.source, FileSource::BlockDevice(_) | FileSource::DeviceFdSet(_));
    if disk.is_lun() && !device {
        return Err(PlanError::NoDevice { field: format!("{field}.lun"), volume: ready.name.clone() });
    }
    let aio = match disk.io.as_deref().unwrap_or_default() {
        "" if device && cache == Cache::None => Aio::Native,
        "" | "threads" => Aio::Threads,
        "native" if cache == Cache::None => Aio::Native,
        "native" => return Err(unsupported(field, "io", "native", "it needs cache none")),
        other => return Err(unsupported(field, "io", other, "threads and native are")),
    };
    Ok(Image {
        name: disk.name.clone(),
        source: ready.source.clone(),
        format: ready.format,
        overlay,
        mode,
        cache,
        aio,
        is_shared: disk.shareable == Some(true),
        thick: ready.thick,
    })
}

fn unsupported(field: &str, part: &str, value: &str, why: &'static str) -> PlanError {
    PlanError::Unsupported { field: format!("{field}.{part}"), value: value.to_owned(), why }
}

impl PlannedDisks {
    /// The same with a SCSI controller in any case, into which disks are plugged.
    pub(super) fn with_scsi(self) -> Self {
        Self { waits_for_scsi: true, ..self }
    }

    /// Names in the PCI layout: virtio disks, then the SCSI controller if a disk is on it.
    pub(super) fn pci_names(&self) -> Vec<String> {
        let virtio = self.disks.iter().filter(|disk| disk.connection == Connection::Virtio);
        let mut names: Vec<String> = virtio.map(|disk| name::device("disk", &disk.name)).collect();
        if self.on_scsi() {
            names.push(Controllers::SCSI.to_owned());
        }
        names
    }

    /// Records the block sizes that these disks of the manifest get from their volumes.
    pub(super) fn note_blocks(&self, manifest: &[v1::Disk], layout: &mut Layout) {
        for planned in &self.disks {
            if let Some(disk) = manifest.iter().find(|disk| disk.name == planned.name) {
                blocks::note(disk, planned.blocks, layout);
            }
        }
    }

    /// I/O threads of the disks.
    pub(super) fn threads(&self) -> Vec<IoThread> {
        self.threads.all()
    }

    /// Number of disks on the USB controller.
    pub(super) fn on_usb(&self) -> usize {
        self.disks.iter().filter(|disk| disk.connection == Connection::Usb).count()
    }

    fn on_scsi(&self) -> bool {
        self.waits_for_scsi || self.disks.iter().any(|disk| matches!(disk.connection, Connection::Scsi(_)))
    }

    /// The controllers that these disks need, in addition to the one for channels.
    pub(super) fn controllers(&self, ports: &Ports<'_>, virtio: Virtio) -> Result<Controllers, PlanError> {
        Ok(Controllers {
            chipset_sata: self.disks.iter().any(|disk| matches!(disk.connection, Connection::Sata(_))),
            sata: (1..=self.sata_controllers).map(|number| SataController { number }).collect(),
            scsi: (self.on_scsi() || ports.layout.is_scsi_plugged())
                .then(|| ports.seat(Controllers::SCSI))
                .transpose()?,
            scsi_served: self.threads.serve_scsi(),
            scsi_queues: self.queues,
            usb: None,
            serial: ports.seat(Controllers::SERIAL)?,
            virtio,
        })
    }

    pub(super) fn finish(self, ports: &Ports<'_>, virtio: Virtio) -> Result<Vec<Disk>, PlanError> {
        self.disks.into_iter().map(|disk| disk.finish(ports, virtio)).collect()
    }
}

impl Planned {
    /// The device with this number of queues, if it has queues.
    pub(super) fn with_queues(self, queues: Option<u32>) -> Self {
        let queues = queues.filter(|_| self.connection == Connection::Virtio);
        Self { queues, ..self }
    }

    /// The device with the thread that comes with it, if it asks for one: for a disk that is plugged in.
    pub(super) fn with_own_thread(self, disk: &v1::Disk) -> Self {
        if has_own(disk) && self.connection == Connection::Virtio {
            let served = Served::ByOwn(io_thread::plugged(&disk.name));
            Self { served, ..self }
        } else {
            self
        }
    }

    pub(super) fn booted_from(self, boot_index: Option<u32>) -> Self {
        Self { boot_index, ..self }
    }

    pub(super) fn finish(self, ports: &Ports<'_>, virtio: Virtio) -> Result<Disk, PlanError> {
        let Planned {
            name,
            connection,
            kind,
            is_empty,
            boot_index,
            serial,
            on_error,
            blocks,
            served,
            queues,
            image,
        } = self;
        let bus = match connection {
            Connection::Virtio => Bus::Virtio(ports.seat(&name::device("disk", &name))?, virtio),
            Connection::Sata(slot) => Bus::Sata(slot),
            Connection::Usb => Bus::Usb,
            Connection::Scsi(lun) => Bus::Scsi { lun },
        };
        let device = DiskDevice { kind, is_empty, bus, boot_index, serial, on_error, blocks, served, queues };
        Ok(Disk { name, image, device })
    }
}
