//! A claim, and an importer for it.

use crate::server::{Answer, Request, Server, Then, said};
use barevirt_import_job::{Content, DISK, Job, Source};
use sha2::{Digest, Sha256};
use std::net::{IpAddr, Ipv4Addr};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;
use tempfile::TempDir;
use virt_importer::address::Addresses;
use virt_importer::convert::Tools;
use virt_importer::failure::Failure;
use virt_importer::progress::Progress;
use virt_importer::run::Importer;
use virt_importer::target::Places;
use virt_importer::trust;
use virt_importer::web::{RetryPolicy, Web};

/// Size of the claim's disk, in bytes.
pub(crate) const SIZE: u64 = 16 << 20;

pub(crate) struct World {
    pub(crate) directory: TempDir,
    pub(crate) importer: Importer,
}

impl World {
    pub(crate) fn new() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let places = Places {
            data: directory.path().to_owned(),
            device: directory.path().join("no device"),
            scratch: directory.path().to_owned(),
            source: directory.path().with_extension("source"),
            source_device: directory.path().join("no device"),
            keys: directory.path().with_extension("keys"),
            receiver: directory.path().with_extension("receiver"),
        };
        let policy = RetryPolicy {
            connect: Duration::from_secs(5),
            answer: Duration::from_secs(5),
            stall: Duration::from_millis(500),
            least: 1024,
            tries: 3,
            pause: Duration::from_millis(10),
            longest_pause: Duration::from_millis(20),
            whole: Duration::from_secs(60),
            pace: 128 << 10,
        };
        let importer = Importer {
            web: Web {
                tls: Arc::new(trust::tls(Path::new("/nothing"), Path::new("/nothing"), "").unwrap()),
                addresses: Addresses {
                    excepted: vec![IpAddr::V4(Ipv4Addr::LOCALHOST)],
                    ..Addresses::default()
                },
                proxies: Arc::default(),
                policy,
                name: None,
            },
            places,
            tools: Tools {
                importer: env!("CARGO_BIN_EXE_virt-importer").into(),
                qemu_img: "/usr/bin/qemu-img".into(),
                seconds: None,
            },
            login: None,
            headers: vec![],
            progress: Arc::new(Progress::default()),
        };
        World { directory, importer }
    }

    pub(crate) async fn run(&self, source: Source) -> Result<u64, Failure> {
        self.run_job(&Job {
            source,
            content: Content::Disk,
            size: SIZE,
            overhead: 60,
            preallocation: false,
            owner: "u".to_owned(),
        })
        .await
    }

    pub(crate) async fn run_job(&self, job: &Job) -> Result<u64, Failure> {
        let result = tokio::time::timeout(Duration::from_secs(60), self.importer.run(job)).await;
        let result = result.expect("every import ends");
        let left: Vec<_> = std::fs::read_dir(self.directory.path())
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        match &result {
            Ok(_) => assert_eq!(left, [DISK], "only the disk stays"),
            Err(_) => assert!(left.is_empty(), "nothing stays: {left:?}"),
        }
        result
    }

    #[track_caller]
    pub(crate) fn has(&self, contents: &[u8]) {
        let disk = std::fs::read(self.directory.path().join(DISK)).unwrap();
        assert_eq!(disk.len() as u64, SIZE);
        assert!(disk[..contents.len()] == *contents, "other contents");
        assert!(disk[contents.len()..].iter().all(|byte| *byte == 0), "zeros follow");
    }
}

pub(crate) fn http(url: String) -> Source {
    Source::Http { url, headers: vec![], checksum: None }
}

/// Contents of a disk: hard to compress, and with holes.
pub(crate) fn contents(length: usize) -> Vec<u8> {
    let mut state = 1u32;
    (0..length)
        .map(|at| {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            if at / 300_000 % 2 == 1 { 0 } else { (state >> 24) as u8 }
        })
        .collect()
}

pub(crate) fn sha256(bytes: &[u8]) -> String {
    let digest = Sha256::digest(bytes);
    format!("sha256:{}", digest.iter().map(|byte| format!("{byte:02x}")).collect::<String>())
}

pub(crate) fn qemu_img(arguments: &[&str], directory: &Path) {
    let status = Command::new("qemu-img").args(arguments).current_dir(directory).status().unwrap();
    assert!(status.success());
}

/// The contents as an image of a format, made by qemu-img with these further arguments.
pub(crate) fn image(contents: &[u8], format: &str, more: &[&str]) -> Vec<u8> {
    let directory = tempfile::tempdir().unwrap();
    std::fs::write(directory.path().join("raw"), contents).unwrap();
    let arguments: Vec<&str> = ["convert", "-q", "-f", "raw", "-O", format]
        .into_iter()
        .chain(more.iter().copied())
        .chain(["raw", "image"])
        .collect();
    qemu_img(&arguments, directory.path());
    std::fs::read(directory.path().join("image")).unwrap()
}

/// A qcow2 image that names a backing file.
pub(crate) fn backed(by: &str) -> Vec<u8> {
    let directory = tempfile::tempdir().unwrap();
    qemu_img(&["create", "-q", "-f", "qcow2", "-u", "-F", "raw", "-b", by, "image", "1M"], directory.path());
    std::fs::read(directory.path().join("image")).unwrap()
}

/// The bytes after a program has processed them.
pub(crate) fn packed(command: &[&str], bytes: &[u8]) -> Vec<u8> {
    let directory = tempfile::tempdir().unwrap();
    let path: PathBuf = directory.path().join("file");
    std::fs::write(&path, bytes).unwrap();
    let output = Command::new(command[0])
        .args(&command[1..])
        .stdin(std::fs::File::open(path).unwrap())
        .output()
        .unwrap();
    assert!(output.status.success(), "{command:?}");
    output.stdout
}

/// A server with one file, which supports ranges.
pub(crate) fn server(body: Vec<u8>) -> Server {
    Server::start(move |request| crate::server::file(request, &body))
}

/// The first `most` bytes of an answer, then the connection is closed.
pub(crate) fn cut(mut answer: Answer, most: usize) -> Answer {
    let head = answer.bytes.windows(4).position(|end| end == b"\r\n\r\n").unwrap() + 4;
    answer.bytes.truncate(head + most);
    answer
}

/// An answer that goes on with these bytes after each pause.
pub(crate) fn slow(status: &str, first: &[u8], again: Vec<u8>, pause: Duration) -> Answer {
    let mut answer = endless(status, first, again);
    if let Then::Repeat { pause: between, .. } = &mut answer.then {
        *between = pause;
    }
    answer
}

/// An answer that goes on for longer than any test reads.
pub(crate) fn endless(status: &str, first: &[u8], again: Vec<u8>) -> Answer {
    let mut answer = crate::server::head(status, &[("Content-Type", "application/octet-stream")], first);
    answer.then = Then::Repeat { bytes: again, pause: Duration::ZERO };
    answer
}

pub(crate) fn redirect(to: &str) -> Answer {
    said("302 Found", &[("Location", to)], b"")
}

pub(crate) fn not_found(_: &Request) -> Answer {
    said("404 Not Found", &[], b"no")
}
