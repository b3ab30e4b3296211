//! Archives without CDI: files that `virtctl image-upload` sends or that a web server has, as a pod sees them in its claim; and
//! archives that are refused.

use crate::imports::{FILLED, data_volume, fails, filled, host, publish, shell};
use crate::uploads::without_cdi;
use anyhow::{Result, ensure};
use barevirt_e2e::cdi::{Absent, DATA_VOLUMES};
use barevirt_e2e::wait::SOON;
use barevirt_e2e::{Namespace, in_no_namespace, pods};
use serde_json::{Value, json};
use std::path::Path;

/// A directory `files`, and `files.tar.gz` with its contents.
fn files(work: &Path) -> Result<()> {
    shell(
        work,
        "mkdir -p files/config
        echo 'of the archive' >files/config/text
        head -c 100000 /dev/urandom >files/data
        printf '#!/bin/sh\\necho it runs\\n' >files/tool
        chmod 4755 files/tool
        ln -s config/text files/link
        tar -C files -czf files.tar.gz .",
    )
}

fn archive(name: &str, source: &Value) -> Value {
    let mut volume = data_volume(name, source, "16Mi");
    volume["spec"]["contentType"] = json!("archive");
    volume
}

/// A pod that has the claim below /files sees the files of [`files`].
fn seen(namespace: &Namespace, claim: &str, work: &Path) -> Result<()> {
    let name = format!("reader-{claim}");
    let mut pod = pods::pod(&name, &["sleep", "3600"]);
    // As a launcher: the root of a claim need not be open to others.
    pod["spec"]["securityContext"]["runAsUser"] = json!(107);
    pod["spec"]["securityContext"]["runAsGroup"] = json!(107);
    pod["spec"]["volumes"] = json!([{ "name": "files", "persistentVolumeClaim": { "claimName": claim } }]);
    pod["spec"]["containers"][0]["volumeMounts"] = json!([{ "name": "files", "mountPath": "/files" }]);
    namespace.apply(&pod)?;
    namespace.wait("pod", &name, "to run", FILLED, |pod| pod["status"]["phase"] == "Running")?;
    let sh = |script: &str| namespace.kubectl(&["exec", &name, "--", "sh", "-c", script]);
    let sum = |text: &str| text.split(' ').next().unwrap_or_default().to_owned();
    let sent = std::fs::read(work.join("files/data"))?;
    let found = sh("wc -c </files/data; sha256sum </files/data; cat /files/link; /files/tool")?;
    ensure!(found.contains("of the archive") && found.contains("it runs"), "{found}");
    ensure!(found.contains(&sent.len().to_string()), "{found}");
    let expected = barevirt_e2e::command::succeed(
        std::process::Command::new("sha256sum").arg(work.join("files/data")),
        None,
    )?;
    ensure!(found.contains(&sum(&expected)), "{found}");
    // The setuid bit does not come along, and no disk is beside the files.
    let listed = sh("ls -A /files; find /files -perm -4000")?;
    ensure!(!listed.contains("disk.img") && !listed.contains("/files/tool"), "{listed}");
    ensure!(!listed.contains(".import"), "{listed}");
    Ok(())
}

#[test]
fn an_archive_and_a_directory_are_uploaded_and_a_pod_sees_their_files() {
    without_cdi("archives", |namespace| {
        let work = tempfile::tempdir()?;
        files(work.path())?;
        let upload = |kind: &str, name: &str, path: &str| {
            let path = format!("--archive-path={}", work.path().join(path).display());
            let words = ["image-upload", kind, name, "--size=16Mi", "--force-bind", &path];
            let output = namespace.try_virtctl(&words)?;
            ensure!(output.code == 0, "virtctl ended with {}: {}", output.code, output.text());
            Ok(())
        };
        upload("dv", "packed", "files.tar.gz")?;
        let filled = namespace.wait(DATA_VOLUMES, "packed", "to be filled", SOON, |volume| {
            volume["status"]["phase"] == "Succeeded"
        })?;
        ensure!(filled["spec"]["contentType"] == "archive", "{filled}");
        let claim = namespace.need("pvc", "packed")?;
        let annotations = &claim["metadata"]["annotations"];
        ensure!(annotations["cdi.kubevirt.io/storage.contentType"] == "archive", "{annotations}");
        seen(namespace, "packed", work.path())?;

        upload("pvc", "directory", "files")?;
        let claim = namespace.need("pvc", "directory")?;
        let annotations = &claim["metadata"]["annotations"];
        ensure!(annotations["cdi.kubevirt.io/storage.pod.phase"] == "Succeeded", "{annotations}");
        seen(namespace, "directory", work.path())
    });
}

#[test]
fn an_archive_of_a_web_server_becomes_files_and_a_hostile_one_none() {
    without_cdi("archivesweb", |namespace| {
        pods::server(namespace, "web", "archives")?;
        let work = tempfile::tempdir()?;
        files(work.path())?;
        shell(
            work.path(),
            "ln -s ../../../etc files/out && tar -C files -cf link.tar out && rm files/out
            head -c 40000 files.tar.gz >cut.tar.gz
            head -c 67108864 /dev/zero >zeros && tar -czf bomb.tar.gz zeros && rm zeros",
        )?;
        // One that is hostile, one that does not arrive, and one that does not fit; the importer's own tests have all others.
        let bad = [
            ("link", "link.tar", "is a link that leads out"),
            ("cut", "cut.tar.gz", "is cut off"),
            ("bomb", "bomb.tar.gz", "unpacks to more than"),
        ];
        for file in bad.iter().map(|(_, file, _)| *file).chain(["files.tar.gz"]) {
            publish(namespace, file, &work.path().join(file))?;
        }
        let host = host(namespace);
        let http = |path: &str| json!({ "http": { "url": format!("http://{host}/{path}") } });
        namespace.apply(&archive("files", &http("files.tar.gz")))?;
        for (name, file, _) in &bad {
            namespace.apply(&archive(name, &http(file)))?;
        }
        filled(namespace, "files", FILLED)?;
        seen(namespace, "files", work.path())?;
        for (name, _, why) in &bad {
            fails(namespace, name, why)?;
        }
        Ok(())
    });
}

#[test]
fn an_archive_is_refused_by_its_field_where_it_has_no_source_or_no_file_system() {
    in_no_namespace(|namespace| {
        let _absent = Absent::prepare()?;
        let mut other = archive("no", &json!({ "http": { "url": "http://a/b" } }));
        other["spec"]["contentType"] = json!("iso");
        let mut block = archive("no", &json!({ "upload": {} }));
        block["spec"]["storage"]["volumeMode"] = json!("Block");
        let registry = archive("no", &json!({ "registry": { "url": "docker://a/b" } }));
        for (volume, field) in [
            (archive("no", &json!({ "blank": {} })), "spec.contentType"),
            (registry, "spec.contentType"),
            (
                archive("no", &json!({ "pvc": { "name": "a", "namespace": namespace.name() } })),
                "spec.contentType",
            ),
            (other, "spec.contentType"),
            (block, "spec.storage.volumeMode"),
        ] {
            let refusal = namespace.refusal(&volume)?;
            ensure!(refusal.contains(field), "{refusal}");
        }
        Ok(())
    });
}
