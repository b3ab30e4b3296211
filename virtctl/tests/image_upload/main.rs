//! `virtctl image-upload`, the program itself, against an API server and an upload proxy that speak the real protocol
//! (`cluster.rs`): objects, CDI's controller, tokens, TLS, and a proxy that fails on request. `terminal.rs` has what a user
//! sees of waits, of other commands too.

#![allow(clippy::unwrap_used)] // A test fails by panicking, helpers of tests too.

mod cluster;
mod own;
mod terminal;

use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use cluster::{Cluster, Kind, Script};
use serde_json::json;

/// The output and the exit code of the program.
#[derive(Debug)]
struct Ended {
    code: Option<i32>,
    out: String,
    err: String,
    /// The most memory it had, in KiB.
    peak: u64,
}

/// `virtctl image-upload` for a user of that cluster only.
fn command(cluster: &Cluster, arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_virtctl"));
    command.args(["--server", &cluster.api(), "-n", "shop", "image-upload"]).args(arguments);
    command.env("KUBECONFIG", cluster.kubeconfig());
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

/// `VmHWM` of a process that runs.
fn memory(pid: u32) -> Option<u64> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"))?;
    line.trim().strip_suffix(" kB")?.parse().ok()
}

fn run(command: &mut Command) -> Ended {
    let mut child = command.spawn().unwrap();
    let mut peak = 0;
    let ended = loop {
        peak = peak.max(memory(child.id()).unwrap_or_default());
        if child.try_wait().unwrap().is_some() {
            break child.wait_with_output().unwrap();
        }
        std::thread::sleep(Duration::from_millis(10));
    };
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    Ended { code: ended.status.code(), out: text(ended.stdout), err: text(ended.stderr), peak }
}

fn upload(cluster: &Cluster, arguments: &[&str]) -> Ended {
    run(&mut command(cluster, arguments))
}

fn image(bytes: &[u8]) -> (tempfile::NamedTempFile, String) {
    let mut file = tempfile::NamedTempFile::new().unwrap();
    file.write_all(bytes).unwrap();
    let flag = |kind: &str, path: &Path| format!("--{kind}={}", path.display());
    let flag = flag("image-path", file.path());
    (file, flag)
}

#[test]
fn a_data_volume_is_made_filled_and_pointed_to() {
    let cluster = Cluster::start(Script::default());
    let content: Vec<u8> = (0..1_000_000_u32).map(|at| (at % 253) as u8).collect();
    let (file, flag) = image(&content);
    let ended = upload(
        &cluster,
        &[
            "dv",
            "disk",
            "--size=1Gi",
            &flag,
            "--insecure",
            "--datasource",
            "--force-bind",
            "--default-instancetype=u1.small",
        ],
    );
    assert_eq!(ended.code, Some(0), "{ended:?}");
    let proxy = cluster.proxy();
    let path = file.path().display();
    assert_eq!(
        ended.out.lines().collect::<Vec<_>>(),
        [
            "PVC shop/disk not found",
            "DataVolume shop/disk created",
            "Waiting for PVC disk upload pod to be ready...",
            "Pod now ready",
            &format!("Uploading data to {proxy}"),
            "Created a new DataSource shop/disk",
            "Uploading data completed successfully, waiting for processing to complete, you can hit ctrl-c without interrupting the progress",
            "Processing completed successfully",
            &format!("Uploading {path} completed successfully"),
        ]
    );
    let label = json!({ "instancetype.kubevirt.io/default-instancetype": "u1.small" });
    let made = cluster.object(Kind::DataVolume, "disk").unwrap();
    assert_eq!(made["metadata"]["labels"], label);
    assert_eq!(made["metadata"]["annotations"]["cdi.kubevirt.io/storage.bind.immediate.requested"], "");
    assert_eq!(made["spec"]["source"], json!({ "upload": {} }));
    let source = cluster.object(Kind::DataSource, "disk").unwrap();
    assert_eq!(source["spec"]["source"], json!({ "pvc": { "name": "disk", "namespace": "shop" } }));
    assert_eq!(source["metadata"]["labels"], label);
    let [received] = cluster.received().try_into().unwrap();
    assert_eq!(received.path, "/v1beta1/upload-async");
    assert_eq!((received.length, received.token.as_str()), (content.len(), "token-1"));
    assert_eq!(received.begins_with, content);
}

#[test]
fn an_archive_is_uploaded_through_an_older_proxy() {
    let cluster = Cluster::start(Script { only_synchronous: true, ..Script::default() });
    let (file, _) = image(b"a tar");
    let archive = format!("--archive-path={}", file.path().display());
    let ended = upload(&cluster, &["pvc", "disk", "--size=1Gi", &archive, "--insecure"]);
    assert_eq!(ended.code, Some(0), "{ended:?}");
    assert!(ended.out.contains("PersistentVolumeClaim shop/disk created\n"), "{ended:?}");
    let made = cluster.object(Kind::Claim, "disk").unwrap();
    assert_eq!(made["metadata"]["annotations"]["cdi.kubevirt.io/storage.contentType"], "archive");
    assert_eq!(made["spec"]["accessModes"], json!(["ReadWriteOnce"]));
    let [received] = cluster.received().try_into().unwrap();
    assert_eq!((received.path.as_str(), received.begins_with.as_slice()), ("/v1beta1/upload", &b"a tar"[..]));
}

#[test]
fn a_proxy_that_is_busy_is_asked_again_and_a_token_that_ran_out_is_replaced() {
    let cluster = Cluster::start(Script { answers: vec![503, 502, 401], ..Script::default() });
    let (_file, flag) = image(&[7; 300_000]);
    let ended = upload(&cluster, &["pvc", "disk", "--size=1Gi", &flag, "--insecure"]);
    assert_eq!(ended.code, Some(0), "{ended:?}");
    assert!(ended.err.starts_with("unexpected return value 503, told to, trying again\n"), "{ended:?}");
    let [received] = cluster.received().try_into().unwrap();
    assert_eq!((received.length, received.token.as_str()), (300_000, "token-2"));
    assert_eq!(cluster.posts(), 4);
}

#[test]
fn a_refusal_by_the_proxy_is_reported_once() {
    for (answers, retry, words, posts) in [
        (vec![400], 5, "error uploading image: unexpected return value 400, told to\n", 1),
        (vec![401], 5, "authentication failed: unexpected return value 401, told to\n", 1),
        (vec![503; 9], 2, "error uploading image after 2 retries: unexpected return value 503, told to\n", 2),
    ] {
        let cluster = Cluster::start(Script { answers, ..Script::default() });
        let (_file, flag) = image(&[7; 300_000]);
        let retry = format!("--retry={retry}");
        let ended = upload(&cluster, &["pvc", "disk", "--size=1Gi", &flag, "--insecure", &retry]);
        assert!(ended.code == Some(1) && ended.err.ends_with(words), "{ended:?}");
        assert_eq!(cluster.posts(), posts);
    }
}

#[test]
fn an_upload_through_the_api_server_goes_on_where_it_broke_off() {
    let content: Vec<u8> = (0..2_000_000_u32).map(|at| (at % 253) as u8).collect();
    let script = Script { own: true, cuts: vec![700_000, 0, 600_000], ..Script::default() };
    let cluster = Cluster::start(script);
    let (_file, flag) = image(&content);
    let checksum = "--checksum=md5:00112233445566778899aabbccddeeff";
    let ended = upload(&cluster, &["dv", "disk", "--size=1Gi", &flag, checksum]);
    assert_eq!(ended.code, Some(0), "{ended:?}");
    assert!(ended.out.contains("Uploading data through the API server\n"), "{ended:?}");
    let [received] = cluster.received().try_into().unwrap();
    assert_eq!(received.token, "md5:00112233445566778899aabbccddeeff");
    assert!(received.path.ends_with("/uploads/disk/proxy/rest"), "{}", received.path);
    assert!(received.begins_with == content, "other contents");
    assert_eq!(cluster.posts(), 4);
    // A restarted server knows nothing of the upload: all of it is sent again.
    let cluster =
        Cluster::start(Script { own: true, cuts: vec![700_000], forgets: true, ..Script::default() });
    let ended = upload(&cluster, &["pvc", "disk", "--size=1Gi", &flag]);
    assert_eq!(ended.code, Some(0), "{ended:?}");
    let [received] = cluster.received().try_into().unwrap();
    assert!(received.path.ends_with("/uploads/disk/proxy"), "{}", received.path);
    assert!(received.begins_with == content, "other contents");
}

#[test]
fn the_disk_of_a_container_disk_is_sent_and_goes_on_after_a_cut() {
    let content: Vec<u8> = (0..2_000_000_u32).map(|at| (at % 253) as u8).collect();
    let packed = |files: &[(&str, &[u8])]| {
        let mut builder = tar::Builder::new(vec![]);
        for (name, bytes) in files {
            let mut header = tar::Header::new_ustar();
            header.set_entry_type(tar::EntryType::Regular);
            header.set_size(bytes.len() as u64);
            builder.append_data(&mut header, name, *bytes).unwrap();
        }
        builder.into_inner().unwrap()
    };
    let layer = packed(&[("disk/fedora.qcow2", &content)]);
    let list =
        json!([{ "Config": "config.json", "RepoTags": ["fedora:42"], "Layers": ["layer.tar"] }]).to_string();
    let (file, flag) = image(&packed(&[("manifest.json", list.as_bytes()), ("layer.tar", &layer)]));
    let cluster = Cluster::start(Script { own: true, cuts: vec![700_000, 600_000], ..Script::default() });
    let ended = upload(&cluster, &["dv", "disk", "--size=1Gi", &flag, "--checksum=md5:00"]);
    assert_eq!(ended.code, Some(0), "{ended:?}");
    let said = format!(
        "Reading container disk {}\nThe image is its file /disk/fedora.qcow2\n",
        file.path().display()
    );
    assert!(ended.out.starts_with(&said), "{ended:?}");
    let [received] = cluster.received().try_into().unwrap();
    assert!(received.path.ends_with("/uploads/disk/proxy/rest"), "{}", received.path);
    assert!(received.begins_with == content && received.token == "md5:00", "other contents");
    // One without a disk is refused before anything is made.
    let (file, flag) = image(&packed(&[("manifest.json", br#"[{"Layers":[]}]"#)]));
    let refused = upload(&cluster, &["dv", "other", "--size=1Gi", &flag]);
    let why =
        format!("container disk {}: it has no disk: no layer has a file in /disk\n", file.path().display());
    assert_eq!((refused.code, refused.err), (Some(1), why));
    assert_eq!(cluster.object(Kind::DataVolume, "other"), None);
}

#[test]
fn a_checksum_is_sent_only_where_it_is_verified() {
    let cluster = Cluster::start(Script::default());
    let (_file, flag) = image(b"image");
    let ended = upload(&cluster, &["dv", "disk", "--size=1Gi", &flag, "--checksum=md5:00", "--insecure"]);
    assert!(
        ended.code == Some(1) && ended.err.starts_with("--checksum is verified by Barevirt"),
        "{ended:?}"
    );
    assert_eq!(cluster.object(Kind::DataVolume, "disk"), None);
}

#[test]
fn without_cdi_nothing_is_made() {
    let cluster = Cluster::start(Script { without_cdi: true, ..Script::default() });
    let (_file, flag) = image(b"image");
    for kind in ["dv", "pvc"] {
        let ended = upload(&cluster, &[kind, "disk", "--size=1Gi", &flag]);
        assert_eq!(ended.code, Some(1));
        assert!(ended.err.starts_with("this cluster has no CDI"), "{ended:?}");
    }
    assert_eq!(cluster.object(Kind::Claim, "disk"), None);
    assert_eq!(cluster.object(Kind::DataVolume, "disk"), None);
}

#[test]
fn a_claim_that_is_there_is_opened_for_an_upload_and_not_filled_twice() {
    let cluster = Cluster::start(Script::default());
    let (_file, flag) = image(b"image");
    let missing = upload(&cluster, &["pvc", "disk", "--no-create", &flag]);
    assert_eq!(missing.code, Some(1));
    assert!(missing.err.contains("persistentvolumeclaims \"disk\" not found"), "{missing:?}");
    cluster.put(Kind::Claim, "disk", json!({ "metadata": { "name": "disk" }, "spec": {} }));
    let foreign = upload(&cluster, &["pvc", "disk", "--size=1Gi", &flag]);
    assert!(foreign.err.starts_with("PVC disk not available for upload"), "{foreign:?}");

    let filled = upload(&cluster, &["pvc", "disk", "--no-create", &flag, "--insecure"]);
    assert_eq!(filled.code, Some(0), "{filled:?}");
    assert!(filled.out.starts_with("Using existing PVC shop/disk\n"), "{filled:?}");
    let again = upload(&cluster, &["pvc", "disk", "--no-create", &flag, "--insecure"]);
    assert_eq!(again.err, "PVC disk already successfully imported/cloned/updated\n");
    assert_eq!(cluster.received().len(), 1);
}

#[test]
fn the_proxys_certificate_has_to_be_trusted() {
    let cluster = Cluster::start(Script::default());
    let (_file, flag) = image(b"image");
    let arguments = ["pvc", "disk", "--size=1Gi", &flag];
    let refused = run(command(&cluster, &arguments).env("SSL_CERT_FILE", cluster.other_authority()));
    assert_eq!(refused.code, Some(1));
    assert!(refused.err.contains("is not trusted") && refused.err.contains("--insecure"), "{refused:?}");
    assert_eq!(cluster.posts(), 0);
    // The claim exists and waits, so the same command continues.
    let trusting = run(command(&cluster, &arguments).env("SSL_CERT_FILE", cluster.authority()));
    assert_eq!(trusting.code, Some(0), "{trusting:?}");
    assert!(trusting.out.contains("Using existing PVC shop/disk\n"), "{trusting:?}");
}

#[test]
fn a_large_file_is_not_held_in_memory() {
    const LENGTH: u64 = 256 << 20;
    let cluster = Cluster::start(Script { without_tls: true, ..Script::default() });
    let file = tempfile::NamedTempFile::new().unwrap();
    file.as_file().set_len(LENGTH).unwrap();
    let flag = format!("--image-path={}", file.path().display());
    let ended = upload(&cluster, &["pvc", "disk", "--size=1Gi", &flag]);
    assert_eq!(ended.code, Some(0), "{ended:?}");
    assert_eq!(cluster.received()[0].length as u64, LENGTH);
    assert!(ended.peak > 0 && ended.peak < 96 << 10, "{} KiB for a file of 256 MiB", ended.peak);
}

#[test]
fn no_wait_is_without_an_end_and_each_says_what_for() {
    let (_file, flag) = image(b"image");
    let cluster = Cluster::start(Script { never_ready: true, ..Script::default() });
    for kind in ["dv", "pvc"] {
        let ended = upload(&cluster, &[kind, &format!("{kind}-disk"), "--size=1Gi", &flag, "--wait-secs=1"]);
        assert_eq!(ended.code, Some(1));
        assert!(ended.err.starts_with("timed out waiting for the condition: "), "{ended:?}");
        assert!(ended.err.contains(&format!("shop/{kind}-disk")), "{ended:?}");
    }
    let cluster = Cluster::start(Script { loses_images: true, ..Script::default() });
    let ended = upload(&cluster, &["pvc", "disk", "--size=1Gi", &flag, "--insecure"]);
    assert_eq!(ended.code, Some(1));
    assert!(ended.err.starts_with("processing of the image in PVC shop/disk failed"), "{ended:?}");
}
