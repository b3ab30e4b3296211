//! A device for tests: a loop device, which has a device node in each of several pods.

use std::fs::File;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;
use std::process::Command;

use nix::sys::stat::{Mode, SFlag, mknod};

/// A loop device; detached when this is dropped.
pub(crate) struct Loop(String);

impl Loop {
    /// A device of `bytes`, with these names in a directory that is made. `None` where tests may make none.
    pub(crate) fn new(directory: &Path, bytes: u64, names: &[&str]) -> Option<Self> {
        if !nix::unistd::geteuid().is_root() || !Path::new("/dev/loop-control").exists() {
            eprintln!("skipped: there are no loop devices without privilege");
            return None;
        }
        std::fs::create_dir(directory).unwrap();
        let file = directory.with_extension("backing");
        File::create(&file).unwrap().set_len(bytes).unwrap();
        let made = Command::new("losetup").args(["--find", "--show"]).arg(&file).output().unwrap();
        assert!(made.status.success(), "{made:?}");
        let device = Loop(String::from_utf8(made.stdout).unwrap().trim().to_owned());
        let number = std::fs::metadata(&device.0).unwrap().rdev();
        for name in names {
            mknod(&directory.join(name), SFlag::S_IFBLK, Mode::S_IRWXU, number).unwrap();
        }
        Some(device)
    }
}

impl Drop for Loop {
    fn drop(&mut self) {
        let _ = Command::new("losetup").args(["--detach", &self.0]).status();
    }
}
