//! DataImportCrons without CDI: a newer image of a registry replaces the former one, and a machine is made
//! from it by name.

use crate::imports::{Insecure, SMALL, condition, host, publish, publish_image, shell, small};
use crate::imports_in_a_row::{have_contents, volumes};
use anyhow::{Context, Result, ensure};
use barevirt_e2e::cdi::{Absent, DATA_SOURCES, DATA_VOLUMES};
use barevirt_e2e::command::{Output, object, objects, try_kubectl, try_kubectl_with};
use barevirt_e2e::wait::{self, RUNNING, SOON};
use barevirt_e2e::{Namespace, guest, in_namespace, pods};
use serde_json::{Value, json};
use std::time::Duration;

pub(crate) const CRONS: &str = "dataimportcrons.cdi.kubevirt.io";
const PROFILES: &str = "storageprofiles.cdi.kubevirt.io";
const CONFIGS: &str = "cdiconfigs.cdi.kubevirt.io";
const SERVER: &str = "web";
/// Time until a pod has polled the source, and others have filled a claim.
pub(crate) const FILLED: Duration = Duration::from_secs(RUNNING.as_secs() + 240);

/// Waits until a definition is served.
pub(crate) fn served(definition: &str) -> Result<()> {
    wait::until_true(&format!("{definition} to be served"), SOON, || Ok(objects(&[definition, "-A"]).is_ok()))
}

fn cron(host: &str) -> Value {
    json!({
        "apiVersion": "cdi.kubevirt.io/v1beta1", "kind": "DataImportCron",
        "metadata": {
            "name": "tiny", "labels": { "instancetype.kubevirt.io/default-instancetype": "u1.nano" },
        },
        "spec": {
            // Every minute, so that the test does not wait long.
            "schedule": "* * * * *", "managedDataSource": "tiny", "importsToKeep": 1, "retentionPolicy": "None",
            "template": { "spec": {
                "source": { "registry": { "url": format!("docker://{host}/images/data:1") } },
                "storage": { "resources": { "requests": { "storage": "16Mi" } } },
            } },
        },
    })
}

/// The claim of the DataSource, once it is up to date and another claim than `former`.
fn stands_for(namespace: &Namespace, former: &str) -> Result<String> {
    let name =
        |source: &Value| source["status"]["source"]["pvc"]["name"].as_str().unwrap_or_default().to_owned();
    let ready = namespace.wait(DATA_SOURCES, "tiny", "to stand for another claim", FILLED, |source| {
        condition(source, "Ready")["status"] == "True" && name(source) != former
    })?;
    let cron = namespace.wait(CRONS, "tiny", "to be up to date", SOON, |cron| {
        condition(cron, "UpToDate")["status"] == "True"
    })?;
    ensure!(cron["status"]["lastImportedPVC"]["name"] == *name(&ready), "{}", cron["status"]);
    ensure!(cron["status"]["lastExecutionTimestamp"].is_string(), "{}", cron["status"]);
    Ok(name(&ready))
}

#[test]
fn a_newer_image_of_a_registry_takes_the_place_of_the_former() {
    in_namespace("importcrons", |namespace| {
        let _absent = Absent::prepare()?;
        served(CRONS)?;
        pods::server(namespace, SERVER, "images")?;
        let work = tempfile::tempdir()?;
        let host = host(namespace);
        let _insecure = Insecure::allow(namespace, &host)?;
        shell(work.path(), "head -c 1048576 /dev/urandom >first")?;
        publish_image(namespace, work.path(), &work.path().join("first"))?;
        namespace.apply(&cron(&host))?;
        let first = stands_for(namespace, "")?;
        ensure!(first.starts_with("tiny-"), "{first}");
        let volume = namespace.need(DATA_VOLUMES, &first)?;
        let url = volume["spec"]["source"]["registry"]["url"].as_str().context("no address")?.to_owned();
        ensure!(url.contains("/images/data@sha256:"), "{url}");

        let (image, digest) = small(work.path())?;
        publish_image(namespace, work.path(), &image)?;
        let second = stands_for(namespace, &first)?;
        namespace.wait_gone(DATA_VOLUMES, &first, SOON)?;
        namespace.wait_gone("pvc", &first, SOON)?;

        // A machine is made from it, and infers its instance type from it. `catalogue` has one that boots.
        let mut machine = guest::machine("vm", "Always");
        machine["spec"]["instancetype"] = json!({ "inferFromVolume": "root" });
        machine["spec"]["dataVolumeTemplates"] = json!([{
            "metadata": { "name": "root" },
            "spec": { "sourceRef": { "kind": "DataSource", "name": "tiny" }, "storage": {} },
        }]);
        let template = guest::spec_of(&mut machine);
        template["volumes"] = json!([{ "name": "root", "dataVolume": { "name": "root" } }]);
        if let Some(domain) = template["domain"].as_object_mut() {
            domain.remove("memory");
            domain.remove("resources");
        }
        namespace.apply(&machine)?;
        ensure!(namespace.need("vm", "vm")?["spec"]["instancetype"]["name"] == "u1.nano");
        namespace.wait_phase("vm", "Running", FILLED)?;
        wait::until_true("the volumes of the image and of the machine", SOON, || {
            Ok(volumes(namespace)?.len() == 2)
        })?;
        have_contents(namespace, SMALL, &digest)?;

        namespace.delete(CRONS, "tiny")?;
        namespace.wait_gone(DATA_SOURCES, "tiny", SOON)?;
        namespace.wait_gone(DATA_VOLUMES, &second, SOON)?;
        namespace.wait_gone("pod", "poller-tiny", SOON)
    });
}

#[test]
fn a_source_that_cannot_be_polled_is_reported() {
    in_namespace("importcronsbad", |namespace| {
        let _absent = Absent::prepare()?;
        served(CRONS)?;
        pods::server(namespace, SERVER, "images")?;
        let mut cron = cron("nowhere.invalid");
        let at = |path: &str| json!({ "http": { "url": format!("http://{}/{path}", host(namespace)) } });
        cron["spec"]["template"]["spec"]["source"] = at("nothing");
        namespace.apply(&cron)?;
        namespace.wait(CRONS, "tiny", "to say why", FILLED, |cron| {
            let said = condition(cron, "UpToDate")["message"].as_str().unwrap_or_default();
            said.contains("answers 404")
        })?;
        for (path, value, field) in [
            ("/spec/schedule", json!("often"), "spec.schedule"),
            ("/spec/garbageCollect", json!("Sometimes"), "spec.garbageCollect"),
            ("/spec/importsToKeep", json!(-1), "spec.importsToKeep"),
            ("/spec/template/spec/source", json!({ "blank": {} }), "spec.template.spec.source"),
        ] {
            let mut bad = cron.clone();
            bad["metadata"]["name"] = json!("bad");
            let (parent, last) = path.rsplit_once('/').context("no path")?;
            bad.pointer_mut(parent).context("no such member")?[last] = value;
            let refusal = namespace.refusal(&bad)?;
            ensure!(refusal.contains(field), "{refusal}");
        }
        // The source cannot be changed.
        let mut other = cron.clone();
        other["spec"]["template"]["spec"]["source"] = at("something");
        let output = try_kubectl_with(&["-n", namespace.name(), "apply", "-f", "-"], &other.to_string())?;
        ensure!(output.code != 0 && output.text().contains("cannot be changed"), "{}", output.text());
        Ok(())
    });
}

#[test]
fn an_object_of_a_bucket_fills_a_claim() {
    in_namespace("importss3", |namespace| {
        let _absent = Absent::prepare()?;
        pods::server(namespace, SERVER, "images")?;
        let work = tempfile::tempdir()?;
        shell(work.path(), "head -c 1048576 /dev/urandom >data")?;
        publish(namespace, "bucket/data.img", &work.path().join("data"))?;
        namespace.apply(&json!({
            "apiVersion": "v1", "kind": "Secret", "metadata": { "name": "keys" },
            "stringData": { "accessKeyId": "access", "secretKey": "secret" },
        }))?;
        let url = format!("http://{}/bucket/data.img", host(namespace));
        for (name, source) in [
            ("signed", json!({ "s3": { "url": url, "secretRef": "keys" } })),
            ("open", json!({ "s3": { "url": url } })),
        ] {
            namespace.apply(&crate::imports::data_volume(name, &source, "16Mi"))?;
        }
        for name in ["signed", "open"] {
            crate::imports::filled(namespace, name, FILLED)?;
        }
        Ok(())
    });
}

#[test]
fn missing_claim_settings_come_from_the_profile_of_its_class() {
    in_namespace("importsprofile", |namespace| {
        let _absent = Absent::prepare()?;
        served(PROFILES)?;
        let made = Class::make(namespace)?;
        let class = made.0.clone();
        wait::until_true("a profile of the class", SOON, || {
            let profile = object(&[PROFILES, &class])?.unwrap_or_default();
            Ok(profile["status"]["provisioner"] == "e2e.barevirt.dev/nothing")
        })?;
        let patch = json!({ "spec": { "claimPropertySets": [
            { "accessModes": ["ReadWriteMany"], "volumeMode": "Block" },
        ] } });
        let patched = try_kubectl(&["patch", PROFILES, &class, "--type=merge", "-p", &patch.to_string()])?;
        ensure!(patched.code == 0, "{}", patched.text());
        let strategy = json!({ "spec": { "cloneStrategy": "csi-clone" } }).to_string();
        let refused = try_kubectl(&["patch", PROFILES, &class, "--type=merge", "-p", &strategy])?;
        ensure!(refused.code != 0 && refused.text().contains("spec.cloneStrategy"), "{}", refused.text());
        let mut volume = crate::imports::data_volume("open", &json!({ "blank": {} }), "16Mi");
        volume["spec"]["storage"]["storageClassName"] = json!(class);
        namespace.apply(&volume)?;
        let claim = namespace.wait("pvc", "open", "to be made", SOON, |_| true)?;
        ensure!(claim["spec"]["accessModes"] == json!(["ReadWriteMany"]), "{}", claim["spec"]);
        ensure!(claim["spec"]["volumeMode"] == "Block", "{}", claim["spec"]);
        ensure!(claim["spec"]["resources"]["requests"]["storage"] == "16Mi", "{}", claim["spec"]);
        Ok(())
    });
}

/// Changes the settings in CDI's form.
fn configure(change: &Value, more: &[&str]) -> Result<Output> {
    let change = change.to_string();
    let words = ["patch", CONFIGS, "config", "--type=merge", "-p", change.as_str()];
    try_kubectl(&[&words[..], more].concat())
}

#[test]
fn settings_in_cdis_form_count_and_those_without_effect_are_refused_by_name() {
    in_namespace("importsettings", |namespace| {
        let _absent = Absent::prepare()?;
        served(CONFIGS)?;
        let class = Class::make(namespace)?;
        wait::until_true("the status to name the class", SOON, || {
            let config = object(&[CONFIGS, "config"])?.unwrap_or_default();
            Ok(config["status"]["filesystemOverhead"]["storageClass"][class.0.as_str()] == "0.06")
        })?;
        for (field, value) in [
            ("scratchSpaceStorageClass", json!("fast")),
            ("logVerbosity", json!(3)),
            ("featureGates", json!(["Other"])),
            ("filesystemOverhead.global", json!("1")),
            ("importProxy.HTTPSProxy", json!("https://proxy.example")),
        ] {
            let change = field.rsplit('.').fold(value, |value, part| json!({ (part): value }));
            let refused = configure(&json!({ "spec": change }), &["--dry-run=server"])?;
            let said = refused.text();
            ensure!(refused.code != 0 && said.contains(&format!("spec.{field}")), "{field}: {said}");
        }
        // Other tests have other classes.
        let share = |share: Value| {
            let classes = json!({ (class.0.as_str()): share });
            configure(&json!({ "spec": { "filesystemOverhead": { "storageClass": classes } } }), &[])
        };
        let changed = share(json!("0.5"))?;
        ensure!(changed.code == 0, "{}", changed.text());
        let mut volume = crate::imports::data_volume("half", &json!({ "blank": {} }), "16Mi");
        volume["spec"]["storage"]["storageClassName"] = json!(class.0);
        namespace.apply(&volume)?;
        let claim = namespace.wait("pvc", "half", "to be made", SOON, |_| true)?;
        let changed = share(Value::Null)?;
        ensure!(changed.code == 0, "{}", changed.text());
        ensure!(claim["spec"]["resources"]["requests"]["storage"] == "32Mi", "{}", claim["spec"]);
        Ok(())
    });
}

/// A storage class with its profile, until this is dropped.
struct Class(String);

impl Class {
    /// Makes one, of the namespace's name, without a provisioner: tests look at claims, which are not filled.
    fn make(namespace: &Namespace) -> Result<Self> {
        let name = namespace.name().to_owned();
        let manifest = json!({
            "apiVersion": "storage.k8s.io/v1", "kind": "StorageClass", "metadata": { "name": name },
            "provisioner": "e2e.barevirt.dev/nothing", "volumeBindingMode": "WaitForFirstConsumer",
        });
        let made = try_kubectl_with(&["apply", "-f", "-"], &manifest.to_string())?;
        ensure!(made.code == 0, "{}", made.text());
        Ok(Class(name))
    }
}

impl Drop for Class {
    fn drop(&mut self) {
        let _ = try_kubectl(&["delete", "storageclass", &self.0, "--ignore-not-found"]);
        let _ = try_kubectl(&["delete", PROFILES, &self.0, "--ignore-not-found"]);
    }
}
