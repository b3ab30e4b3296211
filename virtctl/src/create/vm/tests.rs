//! Flags in, manifests out.

use super::*;
use clap::Parser;
use serde_json::{Value, json};

#[derive(Parser)]
struct Wrapped {
    #[command(flatten)]
    inner: Vm,
}

fn parse(arguments: &[&str]) -> anyhow::Result<Vm> {
    Ok(Wrapped::try_parse_from([&["x", "--name=vm"], arguments].concat())?.inner)
}

fn made(arguments: &[&str]) -> anyhow::Result<Value> {
    Ok(serde_saphyr::from_str(&parse(arguments)?.manifest(None)?)?)
}

fn spec(arguments: &[&str]) -> Value {
    made(arguments).unwrap()["spec"].take()
}

fn template(arguments: &[&str]) -> Value {
    spec(arguments)["template"]["spec"].take()
}

fn error(arguments: &[&str]) -> String {
    made(arguments).unwrap_err().to_string()
}

#[test]
fn a_machine_without_flags() {
    let vm = made(&[]).unwrap();
    assert_eq!((&vm["apiVersion"], &vm["kind"]), (&json!("kubevirt.io/v1"), &json!("VirtualMachine")));
    assert_eq!(vm["metadata"], json!({"name": "vm"}));
    let spec = &vm["spec"];
    assert_eq!(spec["runStrategy"], "Always");
    assert_eq!(spec["template"]["spec"]["terminationGracePeriodSeconds"], 180);
    assert_eq!(spec["template"]["spec"]["domain"]["memory"], json!({"guest": "512Mi"}));
    assert!(spec.get("instancetype").is_none() && spec.get("preference").is_none());
    let random = Wrapped::parse_from(["x"]).inner.draft(Some("mine")).unwrap().vm.metadata;
    assert!(random.name.unwrap().starts_with("vm-"));
    assert_eq!(random.namespace.as_deref(), Some("mine"));
}

#[test]
fn run_strategy_and_kinds() {
    let flags =
        ["--run-strategy=halted", "--instancetype=small", "--preference=VirtualMachinePreference/linux"];
    let spec = spec(&flags);
    assert_eq!(spec["runStrategy"], "Halted");
    assert_eq!(spec["instancetype"], json!({"name": "small"}));
    assert_eq!(spec["preference"], json!({"name": "linux", "kind": "virtualmachinepreference"}));
    assert!(spec["template"]["spec"]["domain"].get("memory").is_none());
    assert!(
        error(&["--run-strategy=x"]).contains("invalid run strategy \"x\", supported values are: Always,")
    );
    assert!(error(&["--instancetype=a/b"]).contains("invalid instancetype kind \"a\""));
    assert!(error(&["--memory=much"]).starts_with("failed to parse \"--memory\" flag"));
    for flags in [["--memory=1Gi", "--instancetype=a"], ["--preference=a", "--infer-preference"]] {
        assert!(parse(&flags).is_err(), "{flags:?}");
    }
}

#[test]
fn volumes_in_their_order() {
    let template = template(&[
        "--volume-pvc=src:claim",
        "--volume-containerdisk=src:docker.io/a:1",
        "--volume-containerdisk=src:b,name:second",
        "--volume-sysprep=src:answers,type:Secret",
    ]);
    let wanted = json!([
        {"name": "vm-containerdisk-0", "containerDisk": {"image": "docker.io/a:1"}},
        {"name": "second", "containerDisk": {"image": "b"}},
        {"name": "claim", "persistentVolumeClaim": {"claimName": "claim"}},
        {"name": "sysprepdisk", "sysprep": {"secret": {"name": "answers"}}},
    ]);
    assert_eq!(template["volumes"], wanted);
    // All get their disks by default.
    assert!(template["domain"]["devices"].get("disks").is_none());
}

#[test]
fn one_disk_in_the_boot_order_brings_the_others() {
    let flags = ["--volume-containerdisk=src:a", "--volume-pvc=src:claim,bootorder:1", "--user=jdoe"];
    let disks = template(&flags)["domain"]["devices"]["disks"].take();
    let wanted =
        json!([{"name": "claim", "bootOrder": 1}, {"name": "vm-containerdisk-0"}, {"name": "cloudinitdisk"}]);
    assert_eq!(disks, wanted);
    let twice = ["--volume-pvc=src:a,bootorder:1", "--volume-pvc=src:b,bootorder:1"];
    assert!(error(&twice).contains("bootorder 1 was specified multiple times"));
    assert!(error(&["--volume-pvc=src:a,bootorder:0"]).contains("bootorder must be greater than 0"));
}

#[test]
fn imports_are_templates_of_data_volumes() {
    let spec = spec(&[
        "--volume-import=type:pvc,src:there/claim,name:a",
        "--volume-import=type:registry,url:docker://b,size:1Gi,pullmethod:node,name:b",
        "--volume-import=type:blank,size:2Gi,name:c",
        "--volume-datasource=src:ds,name:first",
    ]);
    let template = |name: &str, source: Value, storage: Value| {
        let mut spec = source;
        spec["storage"] = storage;
        json!({"metadata": {"name": name}, "spec": spec})
    };
    let size = |size: &str| json!({"resources": {"requests": {"storage": size}}});
    let wanted = json!([
        template("first", json!({"sourceRef": {"kind": "DataSource", "name": "ds"}}), json!({})),
        template("a", json!({"source": {"pvc": {"name": "claim", "namespace": "there"}}}), json!({})),
        template(
            "b",
            json!({"source": {"registry": {"url": "docker://b", "pullMethod": "node"}}}),
            size("1Gi")
        ),
        template("c", json!({"source": {"blank": {}}}), size("2Gi")),
    ]);
    assert_eq!(spec["dataVolumeTemplates"], wanted);
    assert_eq!(spec["template"]["spec"]["volumes"][1], json!({"name": "a", "dataVolume": {"name": "a"}}));
    // The first one has a source to infer from; the user did not ask for inference, so it may fail.
    let inferred = json!({"inferFromVolume": "first", "inferFromVolumeFailurePolicy": "Ignore"});
    assert_eq!((&spec["instancetype"], &spec["preference"]), (&inferred, &inferred));
}

#[test]
fn every_type_of_import_is_the_api_s() {
    for (text, source) in [
        ("gcs,url:gs://a,secretref:s", json!({"gcs": {"url": "gs://a", "secretRef": "s"}})),
        (
            "http,url:http://a,extraheaders:a;b,certconfigmap:c",
            json!({"http": {"url": "http://a", "extraHeaders": ["a", "b"], "certConfigMap": "c"}}),
        ),
        ("imageio,url:http://a,diskid:1", json!({"imageio": {"url": "http://a", "diskId": "1"}})),
        ("s3,url:http://a", json!({"s3": {"url": "http://a"}})),
        ("snapshot,src:n/s", json!({"snapshot": {"name": "s", "namespace": "n"}})),
        (
            "vddk,url:u,uuid:i,thumbprint:t,secretref:s,backingfile:f,initimageurl:g",
            json!({"vddk": {"url": "u", "uuid": "i", "thumbprint": "t", "secretRef": "s", "backingFile": "f",
                "initImageURL": "g"}}),
        ),
    ] {
        let spec = spec(&[&format!("--volume-import=type:{text},size:1Gi")]);
        assert_eq!(spec["dataVolumeTemplates"][0]["spec"]["source"], source, "{text}");
    }
    for (text, message) in [
        ("", "params may not be empty"),
        ("src:a", "type must be specified"),
        ("type:x", "invalid volume import type \"x\", see help for supported values"),
        ("type:blank", "size must be specified"),
        ("type:pvc,src:a", "namespace of pvc \"a\" must be specified"),
        ("type:http,size:1Gi", "url is required with http volume source"),
        ("type:registry,size:1Gi", "exactly one of url or imagestream must be defined"),
        ("type:registry,url:a,size:1Gi,pullmethod:x", "pullmethod must be set to pod or node"),
        ("type:blank,size:1Gi,url:a", "unknown param(s): url:a"),
        ("type:blank,size:1Gi,name:A", "and have at most 63 of them"),
    ] {
        let error = error(&[&format!("--volume-import={text}")]);
        assert!(
            error.starts_with("failed to parse \"--volume-import\" flag") && error.ends_with(message),
            "{error}"
        );
    }
}

#[test]
fn inference_needs_a_suitable_volume() {
    let inferred = spec(&["--volume-pvc=src:a", "--volume-pvc=src:b,bootorder:2", "--infer-instancetype"]);
    assert_eq!(inferred["instancetype"], json!({"inferFromVolume": "b"}));
    assert!(inferred["template"]["spec"]["domain"].get("memory").is_none());
    let from = spec(&["--volume-pvc=src:a", "--infer-preference-from=a", "--infer-instancetype=false"]);
    assert_eq!(from["preference"], json!({"inferFromVolume": "a"}));
    assert!(from.get("instancetype").is_none());
    assert!(error(&["--infer-preference"]).contains("at least one volume is needed"));
    assert!(error(&["--infer-preference-from=a"]).contains("there is no volume with name \"a\""));
    let blank = ["--volume-import=type:blank,size:1Gi,name:a", "--infer-instancetype"];
    assert!(error(&blank).starts_with("this datavolume is not valid"));
    let disk = ["--volume-containerdisk=src:a", "--infer-instancetype"];
    assert!(error(&disk).contains("works only with datasources, datavolumes or pvcs"));
}

#[test]
fn cloud_init_is_generated() {
    let file = std::env::temp_dir().join(format!("virtctl-password-{}", std::process::id()));
    std::fs::write(&file, "secret\n").unwrap();
    let password = format!("--password-file={}", file.display());
    let flags = ["--user=jdoe", &password, "--ssh-key=ssh-a A,ssh-b B", "--ga-manage-ssh"];
    let draft = parse(&flags).unwrap().draft(None).unwrap();
    std::fs::remove_file(&file).unwrap();
    assert!(draft.warnings[0].contains("The password is stored in cleartext"));
    let volume = draft.vm.spec.template.spec.volumes[0].clone();
    let user_data = volume.cloud_init_no_cloud.unwrap().user_data.unwrap();
    assert_eq!(
        user_data,
        "#cloud-config\nuser: jdoe\npassword: secret\nchpasswd: { expire: False }\nssh_authorized_keys:\n  - ssh-a A\n  \
         - ssh-b B\nruncmd:\n  - [ setsebool, -P, 'virt_qemu_ga_manage_ssh', 'on' ]"
    );
    let volumes = |flags: &[&str]| template(flags)["volumes"].clone();
    let given = volumes(&[
        "--cloud-init=configdrive",
        "--cloud-init-user-data=YQ==",
        "--cloud-init-network-data=Yg==",
    ]);
    let drive = json!({"userDataBase64": "YQ==", "networkDataBase64": "Yg=="});
    assert_eq!(given, json!([{"name": "cloudinitdisk", "cloudInitConfigDrive": drive}]));
    let header = json!([{"name": "cloudinitdisk", "cloudInitNoCloud": {"userData": "#cloud-config"}}]);
    assert_eq!(volumes(&["--cloud-init=nocloud"]), header);
    assert_eq!(volumes(&["--cloud-init=none", "--ssh-key=a"]), Value::Null);
    assert_eq!(volumes(&["--ga-manage-ssh=false"]), Value::Null);
    assert!(error(&["--cloud-init=x"]).contains("supported values are: nocloud, configdrive, none"));
    assert!(parse(&["--cloud-init-user-data=YQ==", "--user=a"]).is_err());
}

#[test]
fn credentials_come_from_secrets() {
    let made = template(&["--user=jdoe", "--access-cred=src:keys", "--access-cred=type:password,src:pw"]);
    let wanted = json!([
        {"sshPublicKey": {"source": {"secret": {"secretName": "keys"}},
            "propagationMethod": {"qemuGuestAgent": {"users": ["jdoe"]}}}},
        {"userPassword": {"source": {"secret": {"secretName": "pw"}}, "propagationMethod": {"qemuGuestAgent": {}}}},
    ]);
    assert_eq!(made["accessCredentials"], wanted);
    let user_data = made["volumes"][0]["cloudInitNoCloud"]["userData"].as_str().unwrap();
    assert!(user_data.contains("virt_qemu_ga_manage_ssh"), "{user_data}");
    let drive = template(&["--access-cred=src:keys,method:configdrive"]);
    let volume = json!({"name": "cloudinitdisk", "cloudInitConfigDrive": {"userData": "#cloud-config"}});
    assert_eq!(drive["volumes"], json!([volume]));
    for (flags, message) in [
        (&["--access-cred=src:a"][..], "user must be specified with access credential ssh method ga"),
        (&["--access-cred=type:x,src:a"], "invalid access credential type \"x\""),
        (&["--access-cred=src:a,method:x"], "invalid access credentials ssh method \"x\""),
        (&["--access-cred=type:password,src:a,method:nocloud"], "supported values are: ga"),
        (&["--access-cred=type:password,src:a,user:b"], "user cannot be specified"),
        (&["--access-cred=src:a/b,user:c"], "not allowed to specify namespace of secret \"b\""),
        (&["--access-cred=src:a,method:nocloud", "--cloud-init=none"], "have to match: nocloud vs none"),
    ] {
        assert!(error(flags).contains(message), "{}", error(flags));
    }
}

#[test]
fn unsupported_features_are_named() {
    let missing = |flags: &[&str]| not_there(&parse(flags).unwrap().draft(None).unwrap().vm).join("\n");
    assert_eq!(missing(&["--volume-containerdisk=src:a,bootorder:1", "--user=jdoe"]), "");
    assert_eq!(missing(&["--instancetype=a", "--volume-containerdisk=src:a"]), "");
}
