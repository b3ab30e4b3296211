//! An untrusted archive: nothing is made or changed beside the claim, no link in it leads out, and a refused archive leaves
//! nothing. The thread is not confined here, so the checks stand alone.
//!
//! The first byte chooses whether the headers get valid checksums, since random bytes have none.
#![no_main]

use libfuzzer_sys::fuzz_target;
use std::fs::{create_dir, read, read_dir, read_link, write};
use std::io::Cursor;
use std::path::{Component, Path};
use std::time::{Duration, Instant};
use virt_importer::archive::{Bounds, Tree, unpack};
use virt_importer::feed::FeedFailure;
use virt_importer::target::Places;

const BLOCK: usize = 512;
const OUTSIDE: &[u8] = b"as it was";

/// Gives each block that may be a header a valid checksum, so that the fuzzer gets past it.
fn with_checksums(bytes: &[u8]) -> Vec<u8> {
    let mut bytes = bytes.to_vec();
    for block in bytes.chunks_exact_mut(BLOCK) {
        if block[156] == 0 && block[0] == 0 {
            continue;
        }
        block[148..156].fill(b' ');
        let sum: u32 = block.iter().map(|byte| u32::from(*byte)).sum();
        block[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
    }
    bytes.resize(bytes.len().next_multiple_of(BLOCK) + 2 * BLOCK, 0);
    bytes
}

/// Checks that every link below a directory stays below the claim.
fn check(directory: &Path, depth: usize) {
    for entry in read_dir(directory).unwrap() {
        let entry = entry.unwrap();
        let kind = entry.file_type().unwrap();
        if kind.is_dir() {
            check(&entry.path(), depth + 1);
        } else if kind.is_symlink() {
            let target = read_link(entry.path()).unwrap();
            assert!(target.is_relative(), "{target:?}");
            let up = target.components().filter(|part| *part == Component::ParentDir).count();
            assert!(up <= depth, "{target:?} at depth {depth}");
        } else {
            assert!(kind.is_file(), "{kind:?}");
        }
    }
}

fuzz_target!(|input: &[u8]| {
    let [mend, bytes @ ..] = input else { return };
    let bytes = if mend & 1 == 1 { with_checksums(bytes) } else { bytes.to_vec() };
    let world = tempfile::tempdir().unwrap();
    let (claim, outside, none) =
        (world.path().join("claim"), world.path().join("outside"), world.path().join("none"));
    create_dir(&claim).unwrap();
    write(&outside, OUTSIDE).unwrap();
    let places = Places {
        data: claim.clone(),
        device: none.clone(),
        scratch: none.clone(),
        source: none.clone(),
        source_device: none.clone(),
        keys: none.clone(),
        receiver: none,
    };
    let tree = Tree::open(&places, 1 << 20, 60).unwrap();
    let bounds = Bounds { bytes: 1 << 20, entries: 100, until: Instant::now() + Duration::from_secs(5) };
    let done = unpack(Box::new(Cursor::new(bytes)), "the archive", &FeedFailure::default(), &tree, bounds);
    if done.and_then(|()| tree.finish()).is_err() {
        tree.abandon();
        assert_eq!(read_dir(&claim).unwrap().count(), 0);
    }
    check(&claim, 0);
    assert_eq!(read(&outside).unwrap(), OUTSIDE);
    assert_eq!(read_dir(world.path()).unwrap().count(), 2);
});
