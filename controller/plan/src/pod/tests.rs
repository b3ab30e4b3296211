use super::*;
use serde_json::{Value, json};
use std::collections::BTreeMap;

fn config() -> Config {
    Config {
        launcher_image: "registry/virt-launcher:1".to_owned(),
        image_pull_policy: Some("IfNotPresent".to_owned()),
        settings: barevirt_api::settings::Settings::default(),
    }
}

fn valid(spec: Value) -> ValidVmi {
    let vmi = serde_json::from_value(json!({
        "metadata": {
            "name": "testvm", "namespace": "ns", "uid": "4f2a9bd2-5a0c-4d7e-9d4e-0c6b1a2f3e4d",
            "labels": {"app": "web", "kubevirt.io/vm": "testvm", "kubevirt.io/nodeName": "node01",
                "kubevirt.io": "virt-handler"},
            "annotations": {"team": "a", "kubectl.kubernetes.io/last-applied-configuration": "{}",
                "kubevirt.io/vm-generation": "1"},
        },
        "spec": spec,
    }))
    .unwrap();
    ValidVmi::new(vmi).unwrap_or_else(|causes| panic!("{causes:?}"))
}

fn yaml(pod: &Pod) -> String {
    serde_saphyr::to_string(&serde_json::to_value(pod).unwrap()).unwrap()
}

#[test]
fn smallest() {
    let vmi = valid(json!({"domain": {"memory": {"guest": "128Mi"}, "devices": {}}}));
    insta::assert_snapshot!(yaml(&build(&vmi, &config())));
}

#[test]
fn with_everything() {
    let vmi = valid(json!({
        "domain": {
            "cpu": {"cores": 2},
            "resources": {"requests": {"memory": "1Gi"}, "limits": {"memory": "1Gi", "cpu": "2"}},
            "devices": {"disks": [
                {"name": "root", "disk": {"bus": "virtio"}},
                {"name": "data", "disk": {"bus": "virtio"}},
                {"name": "scratch", "disk": {"bus": "virtio"}},
                {"name": "cloudinit", "disk": {"bus": "virtio"}},
            ]},
        },
        "volumes": [
            {"name": "root", "containerDisk": {"image": "registry/fedora:1", "imagePullPolicy": "Always",
                "imagePullSecret": "pull"}},
            {"name": "data", "containerDisk": {"image": "registry/data:1", "path": "/disk/data.img",
                "imagePullSecret": "pull"}},
            {"name": "scratch", "emptyDisk": {"capacity": "1Gi"}},
            {"name": "cloudinit", "cloudInitNoCloud": {"secretRef": {"name": "user"},
                "networkDataSecretRef": {"name": "net"}}},
        ],
        "terminationGracePeriodSeconds": 180,
        "hostname": "web", "subdomain": "sites",
        "nodeSelector": {"disk": "fast"},
        "affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [
            {"matchExpressions": [{"key": "zone", "operator": "In", "values": ["a"]}]}]}}},
        "tolerations": [{"key": "vm", "operator": "Exists"}],
        "topologySpreadConstraints": [{"maxSkew": 1, "topologyKey": "zone", "whenUnsatisfiable": "ScheduleAnyway",
            "labelSelector": {"matchLabels": {"app": "web"}}}],
        "schedulerName": "mine", "priorityClassName": "high",
        "dnsPolicy": "None", "dnsConfig": {"nameservers": ["192.0.2.1"]},
    }));
    let mut config = config();
    config.settings.use_emulation = true;
    config.settings.image_pull_policy = Some("Never".to_owned());
    insta::assert_snapshot!(yaml(&build(&vmi, &config)));
}

#[test]
fn secrets_of_the_installation_come_after_those_of_the_disks_and_once() {
    let vmi = valid(json!({
        "domain": {"memory": {"guest": "128Mi"}, "devices": {"disks": [{"name": "root", "disk": {"bus": "virtio"}}]}},
        "volumes": [{"name": "root", "containerDisk": {"image": "r/fedora:1", "imagePullSecret": "disk"}}],
    }));
    let mut config = config();
    config.settings.image_pull_secrets = vec!["disk".to_owned(), "launcher".to_owned()];
    let secrets = build(&vmi, &config).spec.unwrap().image_pull_secrets.unwrap();
    let names: Vec<&str> = secrets.iter().map(|secret| secret.name.as_str()).collect();
    assert_eq!(names, ["disk", "launcher"]);
}

#[test]
fn a_launcher_runs_under_an_account_without_its_token() {
    let account = |name: &str| {
        let vmi = valid(json!({
            "domain": {"memory": {"guest": "128Mi"}, "devices": {}}, "serviceAccountName": name,
        }));
        let spec = build(&vmi, &config()).spec.unwrap();
        assert_eq!(spec.automount_service_account_token, Some(false));
        spec.service_account_name
    };
    assert_eq!(account("robot").as_deref(), Some("robot"));
    assert_eq!(account(""), None);
}

#[test]
fn a_launcher_that_is_to_fail_gets_an_argument() {
    let vmi = valid(json!({"domain": {"memory": {"guest": "128Mi"}, "devices": {}}}));
    let told = |vmi: &ValidVmi| {
        let pod = build(vmi, &config());
        pod.spec.unwrap().containers[0].args.clone().unwrap().contains(&"--simulate-crash".to_owned())
    };
    assert!(!told(&vmi));
    let mut failing = vmi.vmi().clone();
    failing
        .metadata
        .annotations
        .get_or_insert_default()
        .insert(FAIL_FAST_ANNOTATION.to_owned(), String::new());
    assert!(told(&ValidVmi::new(failing).unwrap()));
}

/// The size limit of each folder.
fn folders(vmi: &ValidVmi, config: &Config) -> BTreeMap<String, String> {
    let volumes = build(vmi, config).spec.unwrap().volumes.unwrap();
    let folder = |volume: k8s_openapi::api::core::v1::Volume| {
        let limit = volume.empty_dir?.size_limit;
        Some((volume.name, limit.map_or_else(String::new, |limit| limit.0)))
    };
    volumes.into_iter().filter_map(folder).collect()
}

/// No guest can fill the node's disk.
#[test]
fn folders_on_the_node_are_bounded() {
    let vmi = valid(json!({
        "domain": {"memory": {"guest": "128Mi"}, "devices": {"disks": [{"name": "root", "disk": {}}]}},
        "volumes": [{"name": "root", "containerDisk": {"image": "a"}}],
    }));
    let folders = folders(&vmi, &config());
    let names: Vec<_> = folders.keys().map(String::as_str).collect();
    assert_eq!(names, ["container-disks", "ephemeral-disks", "private", "sockets", "virt-bin-share-dir"]);
    assert!(folders.values().all(|limit| !limit.is_empty()), "{folders:?}");
}

#[test]
fn disk_sizes_bound_the_ephemeral_storage_of_guests() {
    let mebi = |mebibytes: u64| format!("{mebibytes}Mi");
    let of = |volumes: Value, node_disk: NodeDisk| {
        let volumes = volumes.as_array().unwrap();
        let disk = |volume: &Value| {
            let name = volume["name"].as_str().unwrap();
            if name == "cdrom" {
                json!({"name": name, "cdrom": {}})
            } else {
                json!({"name": name, "disk": {}})
            }
        };
        let disks: Vec<_> = volumes.iter().map(disk).collect();
        let domain = json!({"memory": {"guest": "128Mi"}, "devices": {"disks": disks}});
        let vmi = valid(json!({"domain": domain, "volumes": volumes}));
        let mut config = config();
        config.settings.pods.node_disk = node_disk;
        folders(&vmi, &config).remove("ephemeral-disks").unwrap()
    };
    let usual = NodeDisk::default();
    let small = NodeDisk { largest_image: 8 << 30, total: None };
    let image = json!({"name": "root", "containerDisk": {"image": "a"}});
    let on_cdrom = json!({"name": "cdrom", "containerDisk": {"image": "a"}});
    let empty = json!({"name": "scratch", "emptyDisk": {"capacity": "4Gi"}});
    let ephemeral = json!({"name": "data", "ephemeral": {"persistentVolumeClaim": {"claimName": "c"}}});
    let kept = json!({"name": "data", "persistentVolumeClaim": {"claimName": "c"}});
    let seed = json!({"name": "seed", "cloudInitNoCloud": {"userData": "#!/bin/sh"}});
    // For each disk: its size, 1/4096 of it and 1 MiB for tables; 16 MiB for the rest.
    assert_eq!(of(json!([]), usual), mebi(16));
    assert_eq!(of(json!([image]), usual), mebi(16 + (1 << 20) + 256 + 1));
    assert_eq!(of(json!([image]), small), mebi(16 + 8192 + 2 + 1));
    assert_eq!(of(json!([on_cdrom]), small), mebi(16));
    assert_eq!(of(json!([image, empty, seed]), small), mebi(16 + (8192 + 2 + 1) + (4096 + 1 + 1) + 16));
    assert_eq!(of(json!([ephemeral]), small), mebi(16 + 8192 + 2 + 1));
    assert_eq!(of(json!([kept]), small), mebi(16));
    let bounded = NodeDisk { total: Some(5 << 30), ..small };
    assert_eq!(of(json!([image, empty]), bounded), "5Gi");
    assert_eq!(of(json!([]), bounded), mebi(16));
}

#[test]
fn a_launcher_gets_the_image_size_limit_where_it_is_not_the_default() {
    let vmi = valid(json!({
        "domain": {"memory": {"guest": "128Mi"}, "devices": {"disks": [{"name": "root", "disk": {}}]}},
        "volumes": [{"name": "root", "containerDisk": {"image": "a"}}],
    }));
    let told = |config: &Config| {
        let args = build(&vmi, config).spec.unwrap().containers.remove(0).args.unwrap();
        let at = args.iter().position(|arg| arg == "--largest-image");
        at.map(|at| args[at + 1].clone())
    };
    let mut config = config();
    assert_eq!(told(&config), None);
    config.settings.pods.node_disk.largest_image = 20 << 30;
    assert_eq!(told(&config).as_deref(), Some("21474836480"));
}

#[test]
fn the_launchers_ephemeral_storage_is_requested() {
    let storage = |given: serde_json::Value| {
        let vmi = valid(json!({"domain": {
            "memory": {"guest": "128Mi"}, "devices": {}, "resources": given,
        }}));
        let compute = build(&vmi, &config()).spec.unwrap().containers.remove(0);
        let resources = compute.resources.unwrap();
        let of = |list: Option<BTreeMap<String, Quantity>>| {
            list.unwrap_or_default().get("ephemeral-storage").map(|given| given.0.clone())
        };
        (of(resources.requests), of(resources.limits))
    };
    let text = |text: &str| Some(text.to_owned());
    assert_eq!(storage(json!({})), (text("50M"), None));
    let given = json!({"requests": {"ephemeral-storage": "950M"}, "limits": {"ephemeral-storage": "2G"}});
    assert_eq!(storage(given), (text("1G"), text("2050M")));
}

/// The rules of <https://kubernetes.io/docs/concepts/security/pod-security-standards/#restricted>, as far as the pod is
/// concerned.
#[test]
fn admitted_under_restricted() {
    let vmi = valid(json!({
        "domain": {"memory": {"guest": "128Mi"}, "devices": {"disks": [{"name": "root", "disk": {}}]}},
        "volumes": [{"name": "root", "containerDisk": {"image": "a"}}],
    }));
    let pod = build(&vmi, &config());
    let spec = pod.spec.unwrap();
    let security = spec.security_context.unwrap();
    assert_eq!(security.seccomp_profile.unwrap().type_, "RuntimeDefault");
    assert_eq!(security.run_as_non_root, Some(true));
    assert!(spec.host_network.is_none() && spec.host_pid.is_none() && spec.host_ipc.is_none());
    for container in spec.containers.iter().chain(spec.init_containers.iter().flatten()) {
        let security = container.security_context.as_ref().unwrap();
        assert_eq!(security.allow_privilege_escalation, Some(false), "{}", container.name);
        assert_eq!(security.run_as_non_root, Some(true), "{}", container.name);
        let capabilities = security.capabilities.as_ref().unwrap();
        assert_eq!((&capabilities.add, &capabilities.drop), (&None, &Some(vec!["ALL".to_owned()])));
        assert!(security.privileged.is_none() && container.ports.is_none());
    }
    for volume in spec.volumes.unwrap() {
        assert!(volume.empty_dir.is_some() || volume.secret.is_some() || volume.projected.is_some());
    }
}

#[test]
fn one_name_for_one_uid() {
    assert_eq!(name("vm", "a"), name("vm", "a"));
    assert_ne!(name("vm", "a"), name("vm", "b"));
    assert_eq!(name("vm", "a").len(), "virt-launcher-vm-".len() + 5);
    let long = "x".repeat(200);
    assert_eq!(name(&long, "a").len(), 63);
    assert!(
        name(&long, "a")
            .bytes()
            .all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-')
    );
}

#[test]
fn each_secret_source_has_a_volume() {
    for (source, volume) in [
        (json!({"secretRef": {"name": "s"}}), Some("cloudinit-udata")),
        (json!({"networkDataSecretRef": {"name": "s"}, "userData": "x"}), Some("cloudinit-ndata")),
        (json!({"userData": "x"}), None),
    ] {
        let vmi = valid(json!({
            "domain": {"memory": {"guest": "128Mi"}, "devices": {"disks": [{"name": "cloudinit", "disk": {}}]}},
            "volumes": [{"name": "cloudinit", "cloudInitNoCloud": source}],
        }));
        let spec = build(&vmi, &config()).spec.unwrap();
        let found = spec.volumes.unwrap().into_iter().find(|volume| volume.secret.is_some());
        assert_eq!(found.map(|found| found.name).as_deref(), volume);
        let mounted = spec.containers[0].volume_mounts.as_ref().unwrap().iter().any(|mount| {
            mount.mount_path == "/var/run/kubevirt-private/secret/cloudinit" && mount.read_only == Some(true)
        });
        assert_eq!(mounted, volume.is_some());
    }
}

#[test]
fn grace_leaves_the_launcher_its_time() {
    assert_eq!(grace_seconds(0), 1);
    assert_eq!(grace_seconds(30), 40);
    assert_eq!(grace_seconds(u64::MAX), u32::MAX);
}

#[test]
fn installation_settings_apply_to_pods() {
    let vmi = valid(json!({
        "domain": {"memory": {"guest": "128Mi"}, "devices": {"disks": [{"name": "root", "disk": {"bus": "virtio"}}]},
            "cpu": {"cores": 2}},
        "nodeSelector": {"disk": "ssd"},
        "volumes": [{"name": "root", "containerDisk": {"image": "r/fedora:1"}}],
    }));
    let spec: barevirt_api::v1::KubeVirtSpec = serde_json::from_value(json!({"configuration": {
        "developerConfiguration": {"nodeSelectors": {"disk": "hdd", "zone": "a"}, "logVerbosity": {"virtLauncher": 4}},
        "defaultRuntimeClass": "kata",
        "seccompConfiguration": {"virtualMachineInstanceProfile": {"customProfile": {"localhostProfile": "vm.json"}}},
        "supportContainerResources": [{"type": "container-disk",
            "resources": {"limits": {"memory": "2Mi"}, "requests": {"cpu": "300m"}}}],
        "autoCPULimitNamespaceLabelSelector": {"matchLabels": {"a": "b"}},
        "smbios": {"manufacturer": "Acme"},
        "additionalGuestMemoryOverheadRatio": "2",
    }}))
    .unwrap();
    let plain = build(&vmi, &config());
    let config =
        Config { settings: barevirt_api::settings::Settings::from_kubevirt(Some(&spec)), ..config() };
    let pod = build(&vmi, &config);
    let overhead = |pod: &Pod| -> u64 {
        pod.metadata.annotations.as_ref().unwrap()[MEMORY_OVERHEAD_ANNOTATION].parse().unwrap()
    };
    assert!(overhead(&pod) > overhead(&plain) * 19 / 10, "{} {}", overhead(&pod), overhead(&plain));
    let spec = serde_json::to_value(pod.spec.unwrap()).unwrap();
    assert_eq!((&spec["nodeSelector"]["disk"], &spec["nodeSelector"]["zone"]), (&json!("ssd"), &json!("a")));
    assert_eq!(spec["runtimeClassName"], "kata");
    let profile = json!({"type": "Localhost", "localhostProfile": "vm.json"});
    assert_eq!(spec["securityContext"]["seccompProfile"], profile);
    let helper =
        json!({"requests": {"cpu": "300m", "memory": "2Mi"}, "limits": {"cpu": "300m", "memory": "2Mi"}});
    assert_eq!(spec["containers"][1]["resources"], helper);
    assert_eq!(spec["initContainers"][0]["resources"], helper);
    let compute = &spec["containers"][0];
    assert_eq!(compute["resources"]["limits"]["cpu"], "2");
    assert!(
        compute["env"]
            .as_array()
            .unwrap()
            .contains(&json!({"name": "VIRT_LAUNCHER_LOG_VERBOSITY", "value": "4"}))
    );
    let args: Vec<&str> = compute["args"].as_array().unwrap().iter().filter_map(Value::as_str).collect();
    let told = args.iter().position(|arg| *arg == "--smbios").and_then(|place| args.get(place + 1)).unwrap();
    let told: Smbios = told.parse().unwrap();
    assert_eq!((told.manufacturer.as_str(), told.family.as_str()), ("Acme", "KubeVirt"));
    // In a namespace that is not selected there is no limit.
    let elsewhere = build(&vmi, &config.in_namespace(None, &[])).spec.unwrap().containers.remove(0);
    let limits = elsewhere.resources.unwrap().limits.unwrap();
    assert_eq!(limits.keys().collect::<Vec<_>>(), ["devices.kubevirt.io/kvm"]);
}

#[test]
fn a_guest_that_may_be_emulated_needs_no_kvm() {
    let vmi = valid(json!({"domain": {"memory": {"guest": "128Mi"}, "devices": {}}}));
    let asks = |use_emulation: bool| {
        let mut config = config();
        config.settings.use_emulation = use_emulation;
        let resources = build(&vmi, &config).spec.unwrap().containers.remove(0).resources.unwrap();
        let kvm = |list: Option<BTreeMap<String, Quantity>>| list.unwrap_or_default().remove(KVM_RESOURCE);
        (kvm(resources.requests), kvm(resources.limits))
    };
    let one = Some(Quantity("1".to_owned()));
    assert_eq!(asks(false), (one.clone(), one));
    assert_eq!(asks(true), (None, None));
}

#[test]
fn a_launcher_gets_an_argument_where_the_cluster_keeps_no_serial_log() {
    let vmi = valid(json!({"domain": {"memory": {"guest": "128Mi"}, "devices": {}}}));
    let told = |config: &Config| {
        let spec = serde_json::to_value(build(&vmi, config).spec.unwrap()).unwrap();
        spec["containers"][0]["args"].as_array().unwrap().contains(&json!("--without-serial-log"))
    };
    let mut config = config();
    assert!(!told(&config));
    config.settings.pods.without_serial_log = true;
    assert!(told(&config));
}

#[test]
fn a_launcher_gets_the_settings_for_memory_reports() {
    let vmi = valid(json!({"domain": {"memory": {"guest": "128Mi"}, "devices": {}}}));
    let told = |config: &Config| {
        let spec = serde_json::to_value(build(&vmi, config).spec.unwrap()).unwrap();
        let args: Vec<String> = serde_json::from_value(spec["containers"][0]["args"].clone()).unwrap();
        args.into_iter().skip_while(|arg| arg != "--without-free-page-reporting").collect::<Vec<_>>()
    };
    let mut config = config();
    assert_eq!(told(&config), [""; 0]);
    config.settings.pods.without_free_page_reporting = true;
    config.settings.pods.memory_report_seconds = Some(0);
    assert_eq!(told(&config)[..3], ["--without-free-page-reporting", "--memory-report-seconds", "0"]);
}

#[test]
fn a_launcher_with_claims_gets_the_settings_for_the_size_of_new_disks() {
    let with = |volume: serde_json::Value| {
        valid(json!({
            "domain": {"memory": {"guest": "128Mi"}, "devices": {"disks": [{"name": "data", "disk": {"bus": "virtio"}}]}},
            "volumes": [volume],
        }))
    };
    let mut config = config();
    config.settings.pods.room.reserve = 0;
    let told = |vmi| {
        let spec = serde_json::to_value(build(&vmi, &config).spec.unwrap()).unwrap();
        let args: Vec<String> = serde_json::from_value(spec["containers"][0]["args"].clone()).unwrap();
        args.windows(2).any(|pair| pair == ["--claim-reserve", "0"])
    };
    assert!(told(with(json!({"name": "data", "persistentVolumeClaim": {"claimName": "c"}}))));
    assert!(!told(with(json!({"name": "data", "emptyDisk": {"capacity": "1Mi"}}))));
}

#[test]
fn images_are_volumes_where_the_cluster_has_them() {
    let vmi = valid(json!({
        "domain": {"memory": {"guest": "128Mi"}, "devices": {"disks": [{"name": "root", "disk": {"bus": "virtio"}}]}},
        "volumes": [{"name": "root", "containerDisk": {"image": "registry/fedora:1", "imagePullPolicy": "Always"}}],
    }));
    let mut config = config();
    config.settings.pods.image_volumes = true;
    let spec = serde_json::to_value(build(&vmi, &config).spec.unwrap()).unwrap();
    assert_eq!(spec["containers"].as_array().unwrap().len(), 1);
    assert!(spec["initContainers"].is_null());
    let compute = &spec["containers"][0];
    assert!(compute["args"].as_array().unwrap().contains(&json!("--image-volumes")));
    let mount =
        json!({"name": "image-0", "mountPath": "/var/run/kubevirt-image-volume/disk_0", "readOnly": true});
    assert!(compute["volumeMounts"].as_array().unwrap().contains(&mount));
    let volume =
        json!({"name": "image-0", "image": {"reference": "registry/fedora:1", "pullPolicy": "Always"}});
    let volumes = spec["volumes"].as_array().unwrap();
    assert!(volumes.contains(&volume));
    assert!(!volumes.iter().any(|volume| volume["name"] == "container-disks"));
}

/// The kubelet gives exclusive CPUs only to containers of such pods.
#[test]
fn a_guest_with_cpus_of_its_own_has_a_guaranteed_pod() {
    let vmi = valid(json!({
        "domain": {"memory": {"guest": "64Mi"}, "devices": {"disks": [{"name": "root", "disk": {"bus": "virtio"}}]},
            "cpu": {"cores": 2, "dedicatedCpuPlacement": true, "isolateEmulatorThread": true}},
        "volumes": [{"name": "root", "containerDisk": {"image": "r/fedora:1"}}],
    }));
    let spec = build(&vmi, &config()).spec.unwrap();
    assert_eq!(spec.node_selector.unwrap()["kubevirt.io/cpumanager"], "true");
    let containers: Vec<Container> =
        spec.containers.into_iter().chain(spec.init_containers.unwrap()).collect();
    assert_eq!(containers.len(), 3);
    for Container { name, resources, .. } in containers {
        let resources = resources.unwrap();
        let amounts = |list: Option<BTreeMap<String, Quantity>>| {
            let list = list.unwrap();
            (list["cpu"].clone(), list["memory"].clone())
        };
        let (requests, limits) = (amounts(resources.requests), amounts(resources.limits));
        assert_eq!(requests, limits, "{name}");
        assert_eq!(requests.0 == Quantity("3".to_owned()), name == COMPUTE_CONTAINER, "{name}");
    }
}
