//! The files of the folder, and the requests of the kernel for them.

use crate::unsynced::{Unsynced, index};
use fuser::{
    BsdFileFlags, Errno, FileAttr, FileHandle, FileType, Filesystem, FopenFlags, Generation, INodeNo,
    LockOwner, OpenFlags, ReplyAttr, ReplyCreate, ReplyData, ReplyDirectory, ReplyEmpty, ReplyEntry,
    ReplyOpen, ReplyStatfs, ReplyWrite, Request, TimeOrNow, WriteFlags,
};
use nix::fcntl::OFlag;
use nix::sys::statvfs::{Statvfs, statvfs};
use std::ffi::{OsStr, OsString};
use std::fs::{self, File, Permissions};
use std::io::{self, Read, Seek, SeekFrom};
use std::os::unix::fs::{FileExt as _, MetadataExt as _, OpenOptionsExt as _, PermissionsExt as _, chown};
use std::path::PathBuf;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// The kernel asks again each time.
const AT_ONCE: Duration = Duration::ZERO;
/// Numbers of files are not used twice.
const ONLY: Generation = Generation(0);
/// The kernel keeps no contents: each read and each write comes here.
const DIRECT: FopenFlags = FopenFlags::FOPEN_DIRECT_IO;
/// No file has a handle, its number is enough.
const NONE: FileHandle = FileHandle(0);
/// The bits of a mode that are permissions.
const PERMISSIONS: u32 = 0o7777;

/// A file or a folder that the kernel has asked for.
struct Node {
    path: PathBuf,
    unsynced: Unsynced,
}

impl Node {
    fn open(&self) -> io::Result<File> {
        File::options().read(true).write(true).open(&self.path)
    }
}

/// All of them. The number of each is its place in the list, beginning with the root's, which is 1.
struct Nodes(Vec<Node>);

/// What is to be changed of a file; each field may be left out.
#[derive(Default)]
struct Change {
    mode: Option<u32>,
    user: Option<u32>,
    group: Option<u32>,
    length: Option<u64>,
}

impl Nodes {
    fn of(folder: PathBuf) -> Self {
        Self(vec![Node { path: folder, unsynced: Unsynced::default() }])
    }

    fn get(&mut self, number: INodeNo) -> io::Result<&mut Node> {
        let place = index(number.0.wrapping_sub(1));
        self.0.get_mut(place).ok_or_else(|| io::Error::from_raw_os_error(Errno::ESTALE.code()))
    }

    fn number(&mut self, path: PathBuf) -> INodeNo {
        let place = match self.0.iter().position(|node| node.path == path) {
            Some(place) => place,
            None => {
                self.0.push(Node { path, unsynced: Unsynced::default() });
                self.0.len() - 1
            }
        };
        INodeNo(place as u64 + 1)
    }

    fn attributes(&mut self, number: INodeNo) -> io::Result<FileAttr> {
        let node = self.get(number)?;
        let found = fs::symlink_metadata(&node.path)?;
        Ok(FileAttr {
            ino: number,
            size: node.unsynced.length(found.len()),
            blocks: found.blocks(),
            atime: found.accessed().unwrap_or(UNIX_EPOCH),
            mtime: found.modified().unwrap_or(UNIX_EPOCH),
            ctime: found.modified().unwrap_or(UNIX_EPOCH),
            crtime: UNIX_EPOCH,
            kind: FileType::from_std(found.file_type()).unwrap_or(FileType::RegularFile),
            perm: u16::try_from(found.mode() & PERMISSIONS).unwrap_or_default(),
            nlink: u32::try_from(found.nlink()).unwrap_or(u32::MAX),
            uid: found.uid(),
            gid: found.gid(),
            rdev: 0,
            blksize: 4096,
            flags: 0,
        })
    }

    fn find(&mut self, parent: INodeNo, name: &OsStr) -> io::Result<FileAttr> {
        let path = self.get(parent)?.path.join(name);
        fs::symlink_metadata(&path)?;
        let number = self.number(path);
        self.attributes(number)
    }

    fn list(&mut self, number: INodeNo) -> io::Result<Vec<(FileAttr, OsString)>> {
        let entries = fs::read_dir(&self.get(number)?.path)?;
        let mut names = entries.map(|entry| Ok(entry?.file_name())).collect::<io::Result<Vec<_>>>()?;
        names.sort();
        names.into_iter().map(|name| Ok((self.find(number, &name)?, name))).collect()
    }

    fn create(
        &mut self,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        owner: (u32, u32),
    ) -> io::Result<FileAttr> {
        let path = self.get(parent)?.path.join(name);
        File::options()
            .write(true)
            .create(true)
            .truncate(false)
            .mode(mode & PERMISSIONS)
            .open(&path)?
            .sync_all()?;
        chown(&path, Some(owner.0), Some(owner.1))?;
        self.find(parent, name)
    }

    fn change(&mut self, number: INodeNo, change: &Change) -> io::Result<FileAttr> {
        let node = self.get(number)?;
        if let Some(mode) = change.mode {
            fs::set_permissions(&node.path, Permissions::from_mode(mode & PERMISSIONS))?;
        }
        if change.user.is_some() || change.group.is_some() {
            chown(&node.path, change.user, change.group)?;
        }
        if let Some(length) = change.length {
            node.open()?.set_len(length)?;
            node.unsynced.cut(length);
        }
        self.attributes(number)
    }

    fn read(&mut self, number: INodeNo, at: u64, most: u32) -> io::Result<Vec<u8>> {
        let node = self.get(number)?;
        let mut file = node.open()?;
        let length = node.unsynced.length(file.metadata()?.len());
        let count = length.saturating_sub(at).min(u64::from(most));
        file.seek(SeekFrom::Start(at))?;
        let mut bytes = Vec::new();
        file.take(count).read_to_end(&mut bytes)?;
        bytes.resize(index(count), 0);
        node.unsynced.lay_over(at, &mut bytes);
        Ok(bytes)
    }

    fn write(&mut self, number: INodeNo, at: u64, bytes: &[u8], flags: OFlag) -> io::Result<()> {
        self.get(number)?.unsynced.write(at, bytes);
        // O_SYNC contains O_DSYNC.
        if flags.contains(OFlag::O_DSYNC) { self.sync(number) } else { Ok(()) }
    }

    fn sync(&mut self, number: INodeNo) -> io::Result<()> {
        let node = self.get(number)?;
        let file = node.open()?;
        for write in node.unsynced.take() {
            file.write_all_at(&write.bytes, write.at)?;
        }
        file.sync_all()
    }

    fn space(&mut self, number: INodeNo) -> io::Result<Statvfs> {
        Ok(statvfs(&self.get(number)?.path)?)
    }
}

/// The file system.
pub(crate) struct Files(Mutex<Nodes>);

impl Files {
    /// Of that folder.
    pub(crate) fn of(folder: PathBuf) -> Self {
        Self(Mutex::new(Nodes::of(folder)))
    }

    fn nodes(&self) -> MutexGuard<'_, Nodes> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Requests that are not here are answered with ENOSYS. To the kernel that is success for `flush`, which comes when a file is
/// closed.
impl Filesystem for Files {
    fn lookup(&self, _: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        match self.nodes().find(parent, name) {
            Ok(found) => reply.entry(&AT_ONCE, &found, ONLY),
            Err(error) => reply.error(error.into()),
        }
    }

    fn getattr(&self, _: &Request, number: INodeNo, _: Option<FileHandle>, reply: ReplyAttr) {
        match self.nodes().attributes(number) {
            Ok(found) => reply.attr(&AT_ONCE, &found),
            Err(error) => reply.error(error.into()),
        }
    }

    fn setattr(
        &self,
        _: &Request,
        number: INodeNo,
        mode: Option<u32>,
        user: Option<u32>,
        group: Option<u32>,
        length: Option<u64>,
        _atime: Option<TimeOrNow>,
        _mtime: Option<TimeOrNow>,
        _ctime: Option<SystemTime>,
        _: Option<FileHandle>,
        _crtime: Option<SystemTime>,
        _chgtime: Option<SystemTime>,
        _bkuptime: Option<SystemTime>,
        _flags: Option<BsdFileFlags>,
        reply: ReplyAttr,
    ) {
        match self.nodes().change(number, &Change { mode, user, group, length }) {
            Ok(changed) => reply.attr(&AT_ONCE, &changed),
            Err(error) => reply.error(error.into()),
        }
    }

    fn create(
        &self,
        request: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        umask: u32,
        _flags: i32,
        reply: ReplyCreate,
    ) {
        match self.nodes().create(parent, name, mode & !umask, (request.uid(), request.gid())) {
            Ok(created) => reply.created(&AT_ONCE, &created, ONLY, NONE, DIRECT),
            Err(error) => reply.error(error.into()),
        }
    }

    fn open(&self, _: &Request, _: INodeNo, _: OpenFlags, reply: ReplyOpen) {
        reply.opened(NONE, DIRECT);
    }

    fn read(
        &self,
        _: &Request,
        number: INodeNo,
        _: FileHandle,
        at: u64,
        most: u32,
        _: OpenFlags,
        _: Option<LockOwner>,
        reply: ReplyData,
    ) {
        match self.nodes().read(number, at, most) {
            Ok(bytes) => reply.data(&bytes),
            Err(error) => reply.error(error.into()),
        }
    }

    fn write(
        &self,
        _: &Request,
        number: INodeNo,
        _: FileHandle,
        at: u64,
        bytes: &[u8],
        _: WriteFlags,
        flags: OpenFlags,
        _: Option<LockOwner>,
        reply: ReplyWrite,
    ) {
        match self.nodes().write(number, at, bytes, OFlag::from_bits_retain(flags.0)) {
            Ok(()) => reply.written(u32::try_from(bytes.len()).unwrap_or(u32::MAX)),
            Err(error) => reply.error(error.into()),
        }
    }

    fn fsync(&self, _: &Request, number: INodeNo, _: FileHandle, _only_data: bool, reply: ReplyEmpty) {
        match self.nodes().sync(number) {
            Ok(()) => reply.ok(),
            Err(error) => reply.error(error.into()),
        }
    }

    fn readdir(&self, _: &Request, number: INodeNo, _: FileHandle, after: u64, mut reply: ReplyDirectory) {
        match self.nodes().list(number) {
            Ok(entries) => {
                for (place, (entry, name)) in (1..).zip(entries).skip(index(after)) {
                    if reply.add(entry.ino, place, entry.kind, name) {
                        break;
                    }
                }
                reply.ok();
            }
            Err(error) => reply.error(error.into()),
        }
    }

    fn statfs(&self, _: &Request, number: INodeNo, reply: ReplyStatfs) {
        match self.nodes().space(number) {
            Ok(space) => {
                let unit = u32::try_from(space.fragment_size()).unwrap_or(4096);
                reply.statfs(
                    space.blocks(),
                    space.blocks_free(),
                    space.blocks_available(),
                    space.files(),
                    space.files_free(),
                    unit,
                    255,
                    unit,
                );
            }
            Err(error) => reply.error(error.into()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn disk(nodes: &mut Nodes) -> INodeNo {
        let owner = (nix::unistd::getuid().as_raw(), nix::unistd::getgid().as_raw());
        nodes.create(INodeNo::ROOT, OsStr::new("disk.img"), 0o600, owner).unwrap().ino
    }

    #[test]
    fn what_was_synced_is_there_in_the_next_life_and_nothing_else() {
        let folder = tempfile::tempdir().unwrap();
        let mut nodes = Nodes::of(folder.path().to_owned());
        let file = disk(&mut nodes);
        nodes.change(file, &Change { length: Some(8), ..Change::default() }).unwrap();
        nodes.write(file, 0, b"synced", OFlag::O_RDWR).unwrap();
        nodes.sync(file).unwrap();
        nodes.write(file, 2, b"forgotten", OFlag::O_RDWR).unwrap();
        assert_eq!(nodes.read(file, 0, 100).unwrap(), b"syforgotten");
        assert_eq!(nodes.attributes(file).unwrap().size, 11);

        let mut next = Nodes::of(folder.path().to_owned());
        let file = disk(&mut next);
        assert_eq!(next.read(file, 0, 100).unwrap(), b"synced\0\0");
        next.write(file, 6, b"!", OFlag::O_RDWR | OFlag::O_DSYNC).unwrap();
        assert_eq!(std::fs::read(folder.path().join("disk.img")).unwrap(), b"synced!\0");
    }

    #[test]
    fn a_file_keeps_its_number_and_its_folder_lists_it() {
        let folder = tempfile::tempdir().unwrap();
        let mut nodes = Nodes::of(folder.path().to_owned());
        let file = disk(&mut nodes);
        assert_eq!(nodes.find(INodeNo::ROOT, OsStr::new("disk.img")).unwrap().ino, file);
        let names: Vec<OsString> =
            nodes.list(INodeNo::ROOT).unwrap().into_iter().map(|(_, name)| name).collect();
        assert_eq!(names, ["disk.img"]);
        let missing = nodes.find(INodeNo::ROOT, OsStr::new("other")).unwrap_err();
        assert_eq!(Errno::from(missing), Errno::ENOENT);
        assert_eq!(Errno::from(nodes.read(INodeNo(9), 0, 1).unwrap_err()), Errno::ESTALE);
        assert_eq!(nodes.attributes(file).unwrap().perm, 0o600);
    }
}
