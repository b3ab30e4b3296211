use super::*;
use crate::target::Places;
use std::io::Cursor;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use tar::Header;

mod random;

/// An entry whose name, target and type nobody has checked.
struct Raw<'a> {
    kind: u8,
    name: &'a [u8],
    target: &'a [u8],
    mode: u32,
    contents: &'a [u8],
}

fn file<'a>(name: &'a str, contents: &'a [u8]) -> Raw<'a> {
    Raw { kind: b'0', name: name.as_bytes(), target: b"", mode: 0o644, contents }
}

fn of_kind<'a>(kind: u8, name: &'a str, target: &'a str) -> Raw<'a> {
    Raw { kind, name: name.as_bytes(), target: target.as_bytes(), mode: 0o755, contents: b"" }
}

fn header(raw: &Raw<'_>) -> Header {
    let mut header = Header::new_gnu();
    let fields = header.as_old_mut();
    fields.name[..raw.name.len()].copy_from_slice(raw.name);
    fields.linkname[..raw.target.len()].copy_from_slice(raw.target);
    fields.linkflag = [raw.kind];
    header.set_size(raw.contents.len() as u64);
    header.set_mode(raw.mode);
    header.set_mtime(1_700_000_000);
    header.set_uid(0);
    header.set_gid(0);
    header.set_cksum();
    header
}

fn entry(raw: &Raw<'_>) -> Vec<u8> {
    let mut bytes = header(raw).as_bytes().to_vec();
    bytes.extend(raw.contents);
    bytes.resize(bytes.len().next_multiple_of(512), 0);
    bytes
}

fn archive(entries: &[Raw<'_>]) -> Vec<u8> {
    let mut bytes: Vec<u8> = entries.iter().flat_map(entry).collect();
    bytes.extend([0; 1024]);
    bytes
}

/// A claim in a directory of its own; what is beside the claim must stay as it is.
struct World {
    directory: tempfile::TempDir,
    bounds: Bounds,
}

impl World {
    fn new() -> Self {
        let directory = tempfile::tempdir().unwrap();
        std::fs::create_dir(directory.path().join("claim")).unwrap();
        std::fs::write(directory.path().join("outside"), "as it was").unwrap();
        let bounds =
            Bounds { bytes: 1 << 20, entries: 100, until: Instant::now() + Duration::from_secs(600) };
        World { directory, bounds }
    }

    fn claim(&self) -> PathBuf {
        self.directory.path().join("claim")
    }

    fn open(&self) -> Tree {
        let none = self.directory.path().join("none");
        let places = Places {
            data: self.claim(),
            device: none.clone(),
            scratch: none.clone(),
            source: none.clone(),
            source_device: none.clone(),
            keys: none.clone(),
            receiver: none,
        };
        Tree::open(&places, 1 << 20, 60).unwrap()
    }

    /// Unpacks without the confinement of the thread: what is made here is what the checks allow.
    fn unpack(&self, bytes: &[u8]) -> Result<(), Failure> {
        let tree = self.open();
        let stream = Box::new(Cursor::new(bytes.to_vec()));
        let done = unpack(stream, "the archive", &FeedFailure::default(), &tree, self.bounds);
        let done = done.and_then(|()| tree.finish());
        if done.is_err() {
            tree.abandon();
        }
        let beside: Vec<_> = std::fs::read_dir(self.directory.path()).unwrap().collect();
        assert_eq!(beside.len(), 2, "{beside:?}");
        assert_eq!(std::fs::read(self.directory.path().join("outside")).unwrap(), b"as it was");
        done
    }

    /// Refuses the archive, and leaves nothing.
    #[track_caller]
    fn refuses(&self, bytes: &[u8]) -> String {
        let failure = self.unpack(bytes).unwrap_err();
        assert!(failure.is_final(), "{failure}");
        let left: Vec<_> = std::fs::read_dir(self.claim()).unwrap().collect();
        assert!(left.is_empty(), "{failure}: {left:?}");
        failure.to_string()
    }

    fn read(&self, name: &str) -> Vec<u8> {
        std::fs::read(self.claim().join(name)).unwrap()
    }
}

#[test]
fn files_directories_and_links_come_with_their_permissions_and_nothing_more() {
    let world = World::new();
    let setuid = Raw { mode: 0o6755, ..file("./bin/tool", b"run") };
    let read_only = Raw { mode: 0o1555, ..of_kind(b'5', "./bin/", "") };
    let unreadable = Raw { mode: 0, ..file("late/none", b"") };
    let done = world.unpack(&archive(&[
        of_kind(b'5', "./", ""),
        read_only,
        setuid,
        of_kind(b'2', "bin/link", "../late/text"),
        of_kind(b'1', "bin/again", "./bin/tool"),
        file("late/text", b"of a directory that has no entry"),
        unreadable,
    ]));
    done.unwrap();
    assert_eq!(world.read("bin/link"), b"of a directory that has no entry");
    assert_eq!(world.read("bin/again"), b"run");
    let found = |name: &str| std::fs::metadata(world.claim().join(name)).unwrap();
    assert_eq!(found("bin/tool").mode() & 0o7777, 0o755);
    assert_eq!(found("bin/tool").mtime(), 1_700_000_000);
    assert_eq!(found("bin/tool").ino(), found("bin/again").ino());
    assert_eq!(found("bin").mode() & 0o7777, 0o755);
    assert_eq!(found("late/none").mode() & 0o7777, 0o600);
    let mut root: Vec<_> =
        std::fs::read_dir(world.claim()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    root.sort();
    assert_eq!(root, ["bin", "late"]);
}

#[test]
fn a_later_entry_replaces_an_earlier_one_and_a_second_archive_the_first() {
    let world = World::new();
    std::fs::write(world.claim().join("other"), "stays").unwrap();
    std::fs::create_dir(world.claim().join("lost+found")).unwrap();
    for text in [&b"first"[..], b"second"] {
        let entries = [
            file("lost+found/x", b""),
            of_kind(b'2', "a", "b"),
            file("a", b"once more"),
            file("a", text),
            file("d/e", text),
        ];
        world.unpack(&archive(&entries)).unwrap();
        assert_eq!((world.read("a"), world.read("d/e")), (text.to_vec(), text.to_vec()));
    }
    assert_eq!(world.read("other"), b"stays");
    assert!(!world.claim().join("lost+found/x").exists(), "it is the file system's");
}

#[test]
fn entries_that_lead_out_of_the_claim_are_refused_by_name() {
    let outside = World::new().directory.path().join("outside").display().to_string();
    for (entries, why) in [
        (vec![file("../outside", b"x")], "leads out of the archive by .."),
        (vec![file("a/../../outside", b"x")], "leads out of the archive by .."),
        (vec![file(&outside, b"x")], "absolute name"),
        (vec![of_kind(b'5', "..", "")], "leads out of the archive by .."),
        (vec![of_kind(b'2', "a", "../outside")], "leads out of the archive, or may"),
        (vec![of_kind(b'2', "a", "/etc")], "link to an absolute path"),
        (vec![of_kind(b'2', "d/a", "../../x")], "leads out of the archive, or may"),
        (vec![of_kind(b'2', "a", "b/../../x")], "leads out of the archive, or may"),
        (vec![of_kind(b'1', "a", "../outside")], "is a hard link whose target leads out"),
        (vec![of_kind(b'1', "a", "/etc/passwd")], "is a hard link whose target has an absolute name"),
        (vec![file(".archive.import", b"x")], "used while the archive is unpacked"),
    ] {
        let said = World::new().refuses(&archive(&entries));
        assert!(said.contains(why) && said.starts_with("the archive: entry \""), "{why}: {said}");
    }
}

/// A link is made, but no entry is written, linked or looked up through it.
#[test]
fn nothing_is_written_through_a_link() {
    let behind = "lies behind a link";
    for (entries, why) in [
        (vec![of_kind(b'5', "d", ""), of_kind(b'2', "a", "d"), file("a/x", b"x")], behind),
        (vec![of_kind(b'5', "d", ""), of_kind(b'2', "a", "d"), of_kind(b'5', "a/e", "")], behind),
        (vec![file("d/f", b"x"), of_kind(b'2', "a", "d"), of_kind(b'1', "h", "a/f")], behind),
        (vec![of_kind(b'5', "d", ""), of_kind(b'2', "a", "d"), of_kind(b'5', "a", "")], behind),
        // A second name at another depth would lead elsewhere than the link.
        (
            vec![of_kind(b'2', "d/e/a", "../../x"), of_kind(b'1', "h", "d/e/a")],
            "is a hard link to something that is not a file",
        ),
    ] {
        let said = World::new().refuses(&archive(&entries));
        assert!(said.contains(why), "{why}: {said}");
    }
    // A file takes the place of a link, not of what the link leads to.
    let world = World::new();
    world.unpack(&archive(&[file("f", b"kept"), of_kind(b'2', "a", "f"), file("a", b"new")])).unwrap();
    assert_eq!((world.read("f"), world.read("a")), (b"kept".to_vec(), b"new".to_vec()));
}

#[test]
fn other_kinds_of_entries_are_refused_by_name() {
    for (entry, why) in [
        (of_kind(b'3', "null", ""), "is a device"),
        (of_kind(b'4', "sda", ""), "is a device"),
        (of_kind(b'6', "fifo", ""), "is a FIFO"),
        (of_kind(b'V', "label", ""), "is of type 'V'"),
        (of_kind(b'2', "a", ""), "is a link without a target"),
        (of_kind(b'1', "a", "later"), "is a hard link to something that is not a file"),
    ] {
        let said = World::new().refuses(&archive(&[entry]));
        assert!(said.contains(why), "{why}: {said}");
    }
    let taken = "would replace a directory";
    for entries in [
        [of_kind(b'5', "d", ""), file("d", b"x")],
        [file("d", b"x"), of_kind(b'5', "d", "")],
        [file("d", b"x"), file("d/e", b"x")],
    ] {
        let said = World::new().refuses(&archive(&entries));
        assert!(said.contains(taken), "{said}");
    }
    // Longer than a file system takes, by GNU's entry for long names.
    let long = Raw { kind: b'L', contents: &[b'n'; 300], ..file("././@LongLink", b"") };
    let said = World::new().refuses(&archive(&[long, file("n", b"x")]));
    assert!(said.contains("does not take"), "{said}");
}

#[test]
fn sparse_files_are_refused_in_each_format() {
    let from = tempfile::tempdir().unwrap();
    let holes = std::fs::File::create(from.path().join("holes")).unwrap();
    holes.set_len(1 << 20).unwrap();
    for format in ["gnu", "pax"] {
        let mut tar = std::process::Command::new("tar");
        let output = tar
            .args(["--sparse", "--format", format, "-C"])
            .arg(from.path())
            .args(["-c", "."])
            .output()
            .unwrap();
        let said = World::new().refuses(&output.stdout);
        assert!(said.contains("is a sparse file"), "{format}: {said}");
    }
}

#[test]
fn an_archive_that_was_cut_off_is_never_taken() {
    let whole = archive(&[file("a", &[7; 700]), file("b", b"x")]);
    World::new().unpack(&whole).unwrap();
    for length in (0..=whole.len() - 1024).step_by(64) {
        let said = World::new().refuses(&whole[..length]);
        assert!(
            said.contains("is cut off") || said.contains("is empty") || said.contains("is not a tar archive"),
            "{length}: {said}"
        );
    }
    let mut long = whole.clone();
    long.extend([0; 8192]);
    World::new().unpack(&long).unwrap();
    // A second archive behind the first would be lost in silence.
    long.extend(&whole);
    assert!(World::new().refuses(&long).contains("goes on after the end"));
    let mut zeros = whole;
    zeros.resize((2 << 20) + 512, 0);
    let mut world = World::new();
    world.bounds.bytes = 8 << 20;
    assert!(world.refuses(&zeros).contains("goes on after the end"));
}

#[test]
fn entries_names_bytes_and_time_are_bounded() {
    let many: Vec<Raw<'_>> = (0..101).map(|_| file("a", b"")).collect();
    assert!(World::new().refuses(&archive(&many)).contains("more than 100 entries"));

    // A compression bomb.
    let zeros = vec![0; 4 << 20];
    let packed = archive(&[file("a", &zeros)]);
    let mut encoder = flate2::write::GzEncoder::new(vec![], flate2::Compression::best());
    encoder.write_all(&packed).unwrap();
    let bomb = encoder.finish().unwrap();
    assert!(bomb.len() < 1 << 16);
    assert!(World::new().refuses(&bomb).contains("unpacks to more than the 1048576 bytes"));

    // A name that `tar` would keep in memory.
    for kind in [b'L', b'K', b'x'] {
        let long = Raw { kind, ..file("././@LongLink", &zeros) };
        let mut world = World::new();
        world.bounds.bytes = 16 << 20;
        let said = world.refuses(&archive(&[long, file("a", b"x")]));
        assert!(said.contains("more than 1048576 bytes of names and attributes"), "{said}");
    }

    let mut late = World::new();
    late.bounds.until = Instant::now();
    assert!(late.refuses(&archive(&[file("a", b"")])).contains("takes too long"));
}

#[test]
fn a_file_that_is_not_an_archive_is_distinguished_from_a_damaged_archive() {
    let no_archive = "is not a tar archive";
    for bytes in [&b"PK\x03\x04"[..], &[7; 4096], b"QFI\xfb"] {
        let said = World::new().refuses(bytes);
        assert!(said.contains(no_archive), "{said}");
    }
    let said = World::new().refuses(b"<!DOCTYPE html><p>");
    assert!(said.contains("web page"), "{said}");
    let mut damaged = archive(&[file("a", b"x"), file("b", b"x")]);
    damaged[1024] ^= 1;
    let said = World::new().refuses(&damaged);
    assert!(said.contains("is damaged") && said.contains("checksum"), "{said}");
    // Numbers that nobody writes.
    let mut far = header(&file("a", b""));
    far.set_mtime(u64::MAX >> 1);
    far.set_cksum();
    let mut bytes = far.as_bytes().to_vec();
    bytes.extend([0; 1024]);
    World::new().unpack(&bytes).unwrap();
}

#[test]
fn an_archive_of_the_usual_programs_is_unpacked() {
    let from = tempfile::tempdir().unwrap();
    let long = format!("{}/{}", "d".repeat(150), "f".repeat(200));
    std::fs::create_dir(from.path().join("d".repeat(150))).unwrap();
    std::fs::write(from.path().join(&long), b"long").unwrap();
    std::fs::write(from.path().join("a"), [7; 100_000]).unwrap();
    std::os::unix::fs::symlink(&long, from.path().join("link")).unwrap();
    for format in ["gnu", "pax"] {
        let mut tar = std::process::Command::new("tar");
        let output =
            tar.args(["--format", format, "-C"]).arg(from.path()).args(["-c", "."]).output().unwrap();
        let world = World::new();
        world.unpack(&output.stdout).unwrap();
        assert_eq!(world.read("a"), [7; 100_000], "{format}");
        assert_eq!(world.read("link"), b"long", "{format}");
        assert!(Path::new(&world.claim().join(&long)).is_file(), "{format}");
    }
}

#[test]
fn the_thread_that_unpacks_opens_nothing_but_the_claim() {
    let world = World::new();
    let (tree, outside) = (world.open(), world.directory.path().join("outside"));
    std::fs::read(&outside).unwrap();
    let inside = world.claim().join("inside");
    let tried = tree.confined(|| {
        let written = std::fs::write(&inside, "x").is_ok();
        let opened = std::fs::read(&outside).is_ok() || std::fs::write(&outside, "x").is_ok();
        let connected =
            std::net::UdpSocket::bind("127.0.0.1:0").and_then(|socket| socket.connect("127.0.0.1:9"));
        Ok((written, opened, connected.is_ok()))
    });
    assert_eq!(tried, Ok((true, false, false)));
    // The other threads are not confined.
    std::fs::read(&outside).unwrap();
}
