//! The chart as Helm itself renders it. It needs helm, which takes minutes to build: `make release-check` does that and runs
//! this test, `make test` does not.

#![allow(clippy::unwrap_used, clippy::expect_used)] // A test fails by panicking, helpers of tests too.

use barevirt_install::chart::{DEVEL, KEEP, files};
use barevirt_install::{INSTALLED, Images, kubevirt, manifest};
use serde_json::Value;
use std::path::Path;
use std::process::Command;

/// Standard output of helm.
fn helm(arguments: &[&str]) -> String {
    let program = std::env::var("HELM").expect("HELM tells which helm is asked: run make release-check");
    let output = Command::new(program).args(arguments).output().unwrap();
    let error = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "helm {arguments:?}: {error}");
    String::from_utf8(output.stdout).unwrap()
}

fn write(folder: &Path, images: &Images) {
    for (path, text) in files(DEVEL, images).unwrap() {
        let file = folder.join(path);
        std::fs::create_dir_all(file.parent().unwrap()).unwrap();
        std::fs::write(file, text).unwrap();
    }
}

fn template(chart: &str, arguments: &[&str]) -> Vec<Value> {
    // Without a version, Helm assumes an old one.
    let fixed = ["template", "barevirt", chart, "--kube-version", "v1.34.0"];
    objects(&helm(&[&fixed[..], arguments].concat()))
}

/// The objects of a stream, sorted by kind, namespace and name, without the annotation that only Helm reads.
fn objects(stream: &str) -> Vec<Value> {
    let mut objects: Vec<Value> = stream
        .split("\n---\n")
        .map(|document| document.trim_start_matches("---\n"))
        .filter_map(|document| serde_saphyr::from_str::<Value>(document).ok())
        .filter(Value::is_object)
        .collect();
    for object in &mut objects {
        let metadata = object["metadata"].as_object_mut().unwrap();
        if let Some(annotations) = metadata.get_mut("annotations").and_then(Value::as_object_mut) {
            annotations.remove(KEEP.0);
            if annotations.is_empty() {
                metadata.remove("annotations");
            }
        }
    }
    sorted(objects)
}

fn sorted(mut objects: Vec<Value>) -> Vec<Value> {
    let key = |object: &Value| {
        let metadata = &object["metadata"];
        format!("{} {} {}", object["kind"], metadata["namespace"], metadata["name"])
    };
    objects.sort_by_key(key);
    objects
}

#[test]
fn helm_makes_the_objects_of_the_manifest() {
    let mut pinned = Images { registry: "r.example:5000/x".into(), tag: "v1".into(), ..Images::default() };
    for name in INSTALLED.iter().chain(&["virt-operator"]) {
        let digest = format!("sha256:{}", "0123456789abcdef".repeat(4));
        pinned.pin(name, &format!("r.example:5000/x/{name}@{digest}")).unwrap();
    }
    for images in [Images::default(), pinned] {
        let folder = tempfile::tempdir().unwrap();
        let chart = folder.path().to_str().unwrap();
        write(folder.path(), &images);
        helm(&["lint", "--strict", chart]);
        let made = template(chart, &["--include-crds"]);
        let mut expected = manifest(&images);
        expected.push(kubevirt());
        let expected = sorted(expected);
        assert_eq!(made.len(), expected.len());
        for (made, expected) in made.iter().zip(&expected) {
            assert_eq!(made, expected);
        }
    }
}

#[test]
fn values_decide() {
    let folder = tempfile::tempdir().unwrap();
    let chart = folder.path().to_str().unwrap();
    write(folder.path(), &Images::default());
    let made = template(
        chart,
        &[
            "--namespace",
            "kubevirt",
            "--set",
            "image.registry=mirror.example/b",
            "--set",
            "image.tag=v2",
            "--set",
            "image.digests.virt-launcher=sha256:1",
            "--set",
            "image.pullPolicy=Always",
            "--set",
            "imagePullSecrets[0].name=key",
            "--set",
            "kubevirt.spec.configuration.developerConfiguration.useEmulation=true",
        ],
    );
    let one = |kind: &str| made.iter().find(|object| object["kind"] == kind);
    assert!(one("Namespace").is_none(), "Helm has made it already");
    let spec = &one("KubeVirt").unwrap()["spec"];
    assert_eq!(spec["configuration"]["developerConfiguration"]["useEmulation"], true);
    assert_eq!(spec["imagePullPolicy"], "IfNotPresent");
    let pod = &one("Deployment").unwrap()["spec"]["template"]["spec"];
    assert_eq!(pod["imagePullSecrets"][0]["name"], "key");
    let container = &pod["containers"][0];
    assert_eq!(container["image"], "mirror.example/b/virt-operator:v2");
    assert_eq!(container["imagePullPolicy"], "Always");
    let told = container["env"].as_array().unwrap();
    let value = |name: &str| told.iter().find(|item| item["name"] == name).map(|item| item["value"].clone());
    assert_eq!(value("KUBEVIRT_VERSION"), Some("v2".into()));
    assert_eq!(value("VIRT_LAUNCHER_IMAGE"), Some("mirror.example/b/virt-launcher@sha256:1".into()));
    assert_eq!(value("VIRT_API_IMAGE"), None);
    let none = template(chart, &["--set", "kubevirt.create=false"]);
    assert!(!none.iter().any(|object| object["kind"] == "KubeVirt"));
    assert!(none.iter().any(|object| object["kind"] == "Namespace"));
}
