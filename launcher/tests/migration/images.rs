//! A disk that a guest only reads: its contents move with the guest, whatever disk the target has made.

use std::collections::BTreeSet;
use std::path::Path;

use barevirt_qmp::newer::QueryNamedBlockNodes;

use super::*;

/// A guest with a CD. The file of a target is empty until the guest comes, if that is awaited.
fn start(directory: &Path, file: &str, incoming: bool, awaited: bool) -> End {
    let (disk, cd) = (counter::disk(directory), directory.join(file));
    let disk = format!("driver=file,node-name=file,read-only=on,filename={}", disk.display());
    let image = format!("driver=file,node-name=file-seed,read-only=on,filename={}", cd.display());
    let mut extra = vec!["-blockdev", &disk, "-blockdev", "driver=raw,node-name=disk,file=file,read-only=on"];
    extra.extend(["-device", "virtio-blk-pci,drive=disk,bootindex=1", "-blockdev", &image]);
    extra.extend(["-blockdev", "driver=raw,node-name=disk-seed,file=file-seed,read-only=on"]);
    extra.extend(["-device", "ide-cd,bus=ide.0,drive=disk-seed,id=seed"]);
    if incoming {
        extra.extend(["-incoming", "defer"]);
    }
    let mut bare = support::bare(&extra);
    let keys = tempfile::tempdir().unwrap();
    bare.launch.keys = keys.path().join("keys");
    let (name, node) = ("seed".to_owned(), "disk-seed".to_owned());
    let awaited = awaited.then(|| name.clone());
    bare.launch.disks = Copyable {
        images: vec![LocalDisk { name, node, on_claim: false, image: Some(cd) }],
        awaited: awaited.into_iter().collect::<BTreeSet<_>>(),
        socket: keys.path().join("disks.sock"),
        ..Copyable::default()
    };
    End::supervised(bare, incoming, keys)
}

async fn pair(directory: &Path, awaited: bool) -> (End, End) {
    let mut source = start(directory, "source", false, false);
    let mut target = start(directory, "target", true, awaited);
    source.until("running", |status| status.stage == Stage::Running).await;
    target.until("ready", |status| status.ready).await;
    (source, target)
}

/// A file in which no two blocks are the same.
fn contents(first: u32) -> Vec<u8> {
    (0..96_u32 << 10).flat_map(|word| (first + word).to_le_bytes()).collect()
}

/// Names of QEMU's nodes.
async fn nodes(end: &mut End) -> Vec<String> {
    let people = end.people.take().unwrap();
    let (people, _events) = Qmp::open(people, Options::default(), Deadline::after(SOON)).await.unwrap();
    let nodes = people.execute(QueryNamedBlockNodes { flat: true }, Deadline::after(SOON)).await.unwrap();
    let mut names: Vec<String> = nodes.into_iter().filter_map(|node| node.node_name).collect();
    names.sort();
    names
}

async fn arrives(source: &mut End, target: &mut End) {
    source.reaches(State::Sent).await;
    target.order(MigrationOrder::Go { hold: false }).await.unwrap();
    target.until("running", |status| status.stage == Stage::Running).await;
    target.count().await;
    target.reaches(State::Arrived).await;
}

#[test]
fn a_disk_that_is_only_read_has_the_sources_contents_and_stays_read_only() {
    local(async {
        let directory = tempfile::tempdir().unwrap();
        let at = |name: &str| directory.path().join(name);
        std::fs::write(at("source"), contents(7)).unwrap();
        std::fs::write(at("target"), vec![0; contents(7).len()]).unwrap();
        let (mut source, mut target) = pair(directory.path(), true).await;
        send_with(&source, &target, "seed", limits()).await;
        arrives(&mut source, &mut target).await;
        assert!(std::fs::read(at("target")).unwrap() == contents(7));
        // QEMU has closed the file that it wrote to, and has the read-only nodes of its start.
        assert_eq!(nodes(&mut target).await, ["disk", "disk-seed", "file", "file-seed"]);
    });
}

#[test]
fn a_disk_whose_contents_do_not_come_lets_no_guest_in() {
    local(async {
        let directory = tempfile::tempdir().unwrap();
        for name in ["source", "target"] {
            std::fs::write(directory.path().join(name), vec![0; 4096]).unwrap();
        }
        let (mut source, target) = pair(directory.path(), true).await;
        let (ours, theirs) = connection();
        let transport = |memory| {
            Some(Transport {
                memory,
                channels: vec![],
                compression: false,
                key: None,
                disks: BTreeMap::new(),
            })
        };
        target.order(MigrationOrder::Receive { transport: transport(theirs) }).await.unwrap();
        source.order(MigrationOrder::Send { transport: transport(ours), limits: limits() }).await.unwrap();
        let end = target.end().await;
        assert!(end.message.contains("disk seed has no connection"), "{end:?}");
        source.reaches(State::Over).await;
        source.count().await;
    });
}

/// It sends what the guest may write to, and tells no sizes.
#[test]
fn a_guest_comes_from_a_source_of_an_older_version() {
    local(async {
        let directory = tempfile::tempdir().unwrap();
        let at = |name: &str| directory.path().join(name);
        std::fs::write(at("source"), contents(7)).unwrap();
        std::fs::write(at("target"), contents(9)).unwrap();
        let (mut source, mut target) = pair(directory.path(), false).await;
        let (ours, theirs) = connection();
        let transport = |memory| {
            Some(Transport {
                memory,
                channels: vec![],
                compression: false,
                key: Key::new(vec![7; 32]),
                disks: BTreeMap::new(),
            })
        };
        target.order(MigrationOrder::Receive { transport: transport(theirs) }).await.unwrap();
        source.order(MigrationOrder::Send { transport: transport(ours), limits: limits() }).await.unwrap();
        arrives(&mut source, &mut target).await;
        assert!(std::fs::read(at("target")).unwrap() == contents(9));
    });
}

#[test]
fn a_disk_that_is_only_read_and_has_another_size_there_is_a_failure_that_says_so() {
    local(async {
        let directory = tempfile::tempdir().unwrap();
        let at = |name: &str| directory.path().join(name);
        std::fs::write(at("source"), contents(7)).unwrap();
        std::fs::write(at("target"), vec![0; 4096]).unwrap();
        let (mut source, target) = pair(directory.path(), true).await;
        send_with(&source, &target, "seed", limits()).await;
        let over = source.reaches(State::Over).await;
        assert!(over.reason.contains("size"), "{over:?}");
        assert!(std::fs::read(at("source")).unwrap() == contents(7));
        source.count().await;
    });
}
