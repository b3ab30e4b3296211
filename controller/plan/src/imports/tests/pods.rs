//! The pods that fill claims.

use super::*;

fn pod(change: impl FnOnce(&mut Value), block: bool) -> Pod {
    let data_volume = data_volume(change);
    let mut claim = claim::of(&data_volume, None, &Profile::default()).unwrap();
    if block {
        claim.spec.as_mut().unwrap().volume_mode = Some("Block".to_owned());
    }
    importer::of(&data_volume, (&claim, None), &installation(), Some(3))
}

#[test]
fn an_object_of_s3_is_asked_for_with_the_keys_of_its_secret() {
    let pod = pod(
        |value| {
            value["spec"]["source"] = json!({ "s3": {
                "url": "https://s3.example/bucket/a.img", "secretRef": "keys", "certConfigMap": "ca",
            } });
        },
        false,
    );
    let spec = serde_json::to_value(pod.spec.unwrap()).unwrap();
    let job: Job = serde_json::from_str(spec["containers"][0]["env"][0]["value"].as_str().unwrap()).unwrap();
    assert_eq!(job.source, Source::S3 { url: "https://s3.example/bucket/a.img".to_owned() });
    let text = spec["volumes"].to_string();
    assert!(text.contains(r#""secretName":"keys""#) && text.contains(r#""name":"ca""#), "{text}");
}

/// A kubelet would replace `$(HOSTNAME)`, and make one `$` of two.
#[test]
fn an_address_reaches_the_importer_as_it_was_written() {
    let url = "https://images.example/a?name=$(IMPORT_JOB)&signature=a$$b$c";
    let pod = pod(|value| value["spec"]["source"] = json!({ "http": { "url": url } }), false);
    let text = pod.spec.unwrap().containers.remove(0).env.unwrap().remove(0).value.unwrap();
    assert!(!text.contains('$'), "{text}");
    let job: Job = serde_json::from_str(&text).unwrap();
    let Source::Http { url: told, .. } = job.source else { panic!("{text}") };
    assert_eq!(told, url);
}

#[test]
fn a_pod_with_everything() {
    let pod = pod(
        |value| {
            value["spec"]["priorityClassName"] = json!("high");
            value["spec"]["serviceAccountName"] = json!("robot");
            value["spec"]["source"] = json!({ "http": {
                "url": "https://images.example/a", "checksum": "sha256:00", "secretRef": "login", "certConfigMap": "ca",
                "extraHeaders": ["X-A: b"], "secretExtraHeaders": ["h1", "h2"],
            } });
        },
        false,
    );
    insta::assert_snapshot!(serde_saphyr::to_string(&serde_json::to_value(&pod).unwrap()).unwrap());
}

#[test]
fn the_network_of_the_settings_reaches_importers_that_have_a_server() {
    let network = Network { public_only: true, no_proxy: ".svc".to_owned(), ..Network::default() };
    let installation = Installation { network: network.clone(), ..installation() };
    let of = |source: Value| {
        let data_volume = data_volume(|value| value["spec"]["source"] = source);
        let claim = claim::of(&data_volume, None, &Profile::default()).unwrap();
        let pod = importer::of(&data_volume, (&claim, None), &installation, None);
        let variables = pod.spec.unwrap().containers.remove(0).env.unwrap();
        let found = variables.into_iter().find(|variable| variable.name == "IMPORT_NETWORK");
        found.map(|variable| serde_json::from_str::<Network>(&variable.value.unwrap()).unwrap())
    };
    assert_eq!(of(json!({ "http": { "url": "https://images.example/a" } })), Some(network.clone()));
    assert_eq!(of(json!({ "registry": { "url": "docker://r.example/a:1" } })), Some(network.clone()));
    assert_eq!(of(json!({ "s3": { "url": "https://s3.example/bucket/a" } })), Some(network));
    assert_eq!(of(json!({ "blank": {} })), None);
}

#[test]
fn settings_decide_the_resources_the_share_of_the_file_system_and_the_preallocation() {
    let given = json!({
        "podResourceRequirements": { "limits": { "memory": "2Gi" } }, "preallocation": true,
        "filesystemOverhead": { "global": "0.1", "storageClass": { "fast": "0.01" } },
    });
    let installation = configured(installation(), &serde_json::from_value(given).unwrap());
    let of = |class: Option<&str>, preallocation: Option<bool>| {
        let data_volume = data_volume(|value| value["spec"]["preallocation"] = json!(preallocation));
        let mut claim = claim::of(&data_volume, None, &Profile::default()).unwrap();
        claim.spec.as_mut().unwrap().storage_class_name = class.map(str::to_owned);
        let pod = importer::of(&data_volume, (&claim, None), &installation, None);
        let container = pod.spec.unwrap().containers.remove(0);
        assert_eq!(container.resources.unwrap().limits.unwrap()["memory"].0, "2Gi");
        let job: Job = serde_json::from_str(container.env.unwrap()[0].value.as_ref().unwrap()).unwrap();
        (job.overhead, job.preallocation)
    };
    assert_eq!(of(Some("fast"), None), (10, true));
    assert_eq!(of(Some("slow"), Some(false)), (100, false));
    assert_eq!(of(None, Some(true)), (100, true));
}

#[test]
fn importers_are_on_the_networks_that_their_data_volume_names() {
    let pod = pod(
        |value| {
            value["metadata"]["annotations"] = json!({
                "k8s.v1.cni.cncf.io/networks": "storage", "v1.multus-cni.io/default-network": "ns/first",
                "linkerd.io/inject": "enabled", "other": "x",
            });
        },
        false,
    );
    let annotations = serde_json::to_value(pod.metadata.annotations).unwrap();
    let expected = json!({
        "k8s.v1.cni.cncf.io/networks": "storage", "v1.multus-cni.io/default-network": "ns/first",
        "linkerd.io/inject": "enabled", "sidecar.istio.io/inject": "false", "import.barevirt.dev/restarts": "3",
    });
    assert_eq!(annotations, expected);
}

/// A volume that is local to a node with a taint can be filled there alone.
#[test]
fn importers_go_to_the_nodes_of_workloads() {
    let tolerations = json!([{ "key": "guests", "operator": "Exists", "effect": "NoSchedule" }]);
    let nodes = json!({ "nodeSelector": { "guests": "yes" }, "tolerations": tolerations });
    let installation = Installation { nodes: serde_json::from_value(nodes).unwrap(), ..installation() };
    let data_volume = data_volume(|_| {});
    let claim = claim::of(&data_volume, None, &Profile::default()).unwrap();
    let spec = importer::of(&data_volume, (&claim, None), &installation, None).spec.unwrap();
    let selector = spec.node_selector.unwrap();
    assert_eq!((selector["guests"].as_str(), selector["kubernetes.io/os"].as_str()), ("yes", "linux"));
    assert_eq!(serde_json::to_value(spec.tolerations).unwrap(), tolerations);
}

#[test]
fn a_block_device_is_given_as_one_with_room_beside_it() {
    let pod = pod(
        |value| value["spec"]["source"] = json!({ "registry": { "url": "docker://r.example:5000/a:1" } }),
        true,
    );
    let spec = pod.spec.unwrap();
    let container = &spec.containers[0];
    assert_eq!(container.volume_devices.as_ref().unwrap()[0].device_path, "/dev/cdi-block-volume");
    assert_eq!(container.volume_mounts.as_ref().unwrap()[0].mount_path, "/scratch");
    let job: Job = serde_json::from_str(container.env.as_ref().unwrap()[0].value.as_ref().unwrap()).unwrap();
    assert_eq!(
        job.source,
        Source::Registry {
            url: "docker://r.example:5000/a:1".to_owned(),
            architecture: None,
            insecure: true
        }
    );
    assert_eq!((job.size, job.overhead, job.owner.as_str()), (1 << 30, 60, UID));
}

#[test]
fn an_image_beside_a_block_device_takes_a_bounded_space_of_the_node() {
    let data_volume = data_volume(|_| ());
    let asked = json!({ "volumeMode": "Block", "resources": { "requests": { "storage": "1Gi" } } });
    let mut claim: PersistentVolumeClaim =
        serde_json::from_value(json!({ "metadata": { "name": "root" }, "spec": asked })).unwrap();
    let limit = |claim: &PersistentVolumeClaim| {
        let pod = importer::of(&data_volume, (claim, None), &installation(), None);
        let volumes = pod.spec.unwrap().volumes.unwrap();
        let scratch = volumes.into_iter().find(|volume| volume.name == "scratch").unwrap();
        scratch.empty_dir.unwrap().size_limit.map(|limit| limit.0)
    };
    // Twice the disk, and 65 MiB.
    assert_eq!(limit(&claim).as_deref(), Some("2113Mi"));
    claim.status = serde_json::from_value(json!({ "capacity": { "storage": "3Gi" } })).unwrap();
    assert_eq!(limit(&claim).as_deref(), Some("6209Mi"));
}

#[test]
fn a_long_name_is_cut_and_stays_another_one() {
    let (one, other) = ("x".repeat(253), format!("{}y", "x".repeat(252)));
    assert_eq!(pod_name("root"), "importer-root");
    assert!(pod_name(&one).len() <= 63);
    assert_ne!(pod_name(&one), pod_name(&other));
}

#[test]
fn an_image_of_a_named_architecture_is_pulled_by_a_node_of_it() {
    let selected = |method: &str| {
        let pod = pod(
            |value| {
                value["spec"]["source"] = json!({ "registry": {
                    "url": "docker://localhost/disk:1", "pullMethod": method, "platform": { "architecture": "arm64" },
                } });
            },
            false,
        );
        pod.spec.unwrap().node_selector.unwrap().get("kubernetes.io/arch").cloned()
    };
    assert_eq!(selected("node").as_deref(), Some("arm64"));
    // The importer itself takes the image of that architecture on any node.
    assert_eq!(selected("pod"), None);
}

/// Examples of manifests have empty names where no object is needed.
#[test]
fn a_node_that_pulls_the_image_is_given_no_secret() {
    let problem = |secret: &str, authorities: &str| {
        let source = json!({ "registry": {
            "url": "docker://localhost/disk:1", "pullMethod": "node", "secretRef": secret, "certConfigMap": authorities,
        } });
        job::source_problem(&data_volume(|value| value["spec"]["source"] = source))
    };
    assert_eq!(problem("", ""), None);
    assert!(problem("keys", "").unwrap().contains("takes neither"));
    assert!(problem("", "ca").unwrap().contains("takes neither"));
}

#[test]
fn an_image_of_the_node_is_a_volume_of_the_pod() {
    let by_node = |value: &mut Value| {
        value["spec"]["source"] =
            json!({ "registry": { "url": "docker://localhost/disk:1", "pullMethod": "node" } });
    };
    let pod = pod(by_node, false);
    let image = pod.spec.as_ref().unwrap().volumes.as_ref().unwrap()[1].image.clone().unwrap();
    assert_eq!(image.reference.as_deref(), Some("localhost/disk:1"));
    // Where the cluster has no such volumes, the status says so.
    let mut world = World::new(data_volume(by_node));
    world.settle();
    world.claim_is("Bound");
    let without = Installation { image_volumes: false, ..installation() };
    let planned = plan(&world.observed, &without);
    assert!(planned.step.is_none());
    assert_eq!(condition(&planned.status.unwrap(), "Running").1, "SourceNotReady");
}
