//! DataVolumes without CDI: filled from a web server and a registry in the namespace of the test, and errors.

use anyhow::{Result, ensure};
use barevirt_e2e::cdi::{Absent, DATA_VOLUMES};
pub(crate) use barevirt_e2e::command::sha256;
use barevirt_e2e::command::{kubectl, repository, succeed, try_kubectl};
use barevirt_e2e::container::Container;
use barevirt_e2e::wait::{BOOT, RUNNING, SOON};
use barevirt_e2e::{Console, Namespace, guest, in_namespace, in_no_namespace, pods};
use serde_json::{Value, json};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

/// Time until an importer's pod has run, and its machine runs.
pub(crate) const FILLED: Duration = Duration::from_secs(RUNNING.as_secs() + 120);
/// Name of the web server and of its service.
pub(crate) const SERVER: &str = "web";
/// Config map with registries that have no TLS.
const REGISTRIES: &str = "cdi-insecure-registries";

/// Runs a test while there is no CDI.
pub(crate) fn without_cdi(name: &str, test: impl FnOnce(&Namespace) -> Result<()> + Send + 'static) {
    in_namespace(name, move |namespace| {
        let _absent = Absent::prepare()?;
        test(namespace)
    });
}

pub(crate) fn host(namespace: &Namespace) -> String {
    host_of(namespace, SERVER)
}

/// The host name of a service.
pub(crate) fn host_of(namespace: &Namespace, service: &str) -> String {
    format!("{service}.{}.svc", namespace.name())
}

/// Puts a file on the web server.
pub(crate) fn publish(namespace: &Namespace, path: &str, file: &Path) -> Result<()> {
    publish_on(namespace, SERVER, path, file)
}

/// Puts a file on the server of that name.
pub(crate) fn publish_on(namespace: &Namespace, server: &str, path: &str, file: &Path) -> Result<()> {
    Container::of(&namespace.need("pod", server)?)?.put(file, &format!("/tmp/www/{path}"))
}

pub(crate) fn shell(directory: &Path, script: &str) -> Result<()> {
    succeed(Command::new("sh").args(["-ec", script]).current_dir(directory), None).map(drop)
}

pub(crate) fn tiny() -> PathBuf {
    let target =
        std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| repository().join("target"), PathBuf::from);
    target.join("images/guest-tiny.qcow2")
}

/// A container image with that disk, as files of a web server: that is enough of a registry for reading.
pub(crate) fn publish_image(namespace: &Namespace, work: &Path, disk: &Path) -> Result<()> {
    shell(
        work,
        &format!(
            "mkdir -p root/disk && cp {} root/disk/disk.img && tar -C root -cz disk >layer",
            disk.display()
        ),
    )?;
    let layer = work.join("layer");
    let digest = format!("sha256:{}", sha256(&layer)?);
    let manifest = json!({
        "schemaVersion": 2, "mediaType": "application/vnd.oci.image.manifest.v1+json",
        "layers": [{
            "mediaType": "application/vnd.oci.image.layer.v1.tar+gzip", "digest": digest,
            "size": std::fs::metadata(&layer)?.len(),
        }],
    });
    let file = work.join("manifest");
    std::fs::write(&file, manifest.to_string())?;
    // The name is written last, so that a client finds all of the image, or the former image.
    publish(namespace, &format!("v2/images/data/blobs/{digest}"), &layer)?;
    publish(namespace, &format!("v2/images/data/manifests/sha256:{}", sha256(&file)?), &file)?;
    publish(namespace, "v2/images/data/manifests/1", &file)
}

/// Lists the test's registry as one without TLS, until this is dropped. Each test has a key of its own in the
/// config map.
pub(crate) struct Insecure {
    key: String,
}

impl Insecure {
    pub(crate) fn allow(namespace: &Namespace, host: &str) -> Result<Self> {
        // Another test may have made it.
        let _ = try_kubectl(&["create", "configmap", "-n", "kubevirt", REGISTRIES])?;
        let registries = Insecure { key: namespace.name().to_owned() };
        registries.set(&json!(host))?;
        Ok(registries)
    }

    fn set(&self, host: &Value) -> Result<()> {
        let change = json!({ "data": { &self.key: host } }).to_string();
        let output = try_kubectl(&[
            "patch",
            "configmap",
            "-n",
            "kubevirt",
            REGISTRIES,
            "--type=merge",
            "-p",
            &change,
        ])?;
        ensure!(output.code == 0, "{}", output.text());
        Ok(())
    }
}

impl Drop for Insecure {
    fn drop(&mut self) {
        let _ = self.set(&Value::Null);
    }
}

fn spec(source: &Value, size: &str) -> Value {
    json!({ "source": source, "storage": { "resources": { "requests": { "storage": size } } } })
}

pub(crate) fn data_volume(name: &str, source: &Value, size: &str) -> Value {
    json!({
        "apiVersion": "cdi.kubevirt.io/v1beta1", "kind": "DataVolume",
        "metadata": { "name": name, "annotations": { "cdi.kubevirt.io/storage.bind.immediate.requested": "true" } },
        "spec": spec(source, size),
    })
}

pub(crate) fn data_source(name: &str, source: &Value) -> Value {
    json!({
        "apiVersion": "cdi.kubevirt.io/v1beta1", "kind": "DataSource", "metadata": { "name": name },
        "spec": { "source": source },
    })
}

pub(crate) fn condition<'a>(object: &'a Value, type_: &str) -> &'a Value {
    let all = object["status"]["conditions"].as_array();
    all.and_then(|all| all.iter().find(|condition| condition["type"] == type_)).unwrap_or(&Value::Null)
}

/// Waits for the end of what fills a DataVolume, which has to succeed.
pub(crate) fn filled(namespace: &Namespace, name: &str, within: Duration) -> Result<Value> {
    let filled = namespace.wait(DATA_VOLUMES, name, "to be filled", within, |volume| {
        ["Succeeded", "Failed"].iter().any(|phase| volume["status"]["phase"] == *phase)
    })?;
    ensure!(filled["status"]["phase"] == "Succeeded", "{name}: {}", filled["status"]);
    Ok(filled)
}

/// Waits until a DataVolume has failed, with a message that contains those words; returns the message.
pub(crate) fn fails(namespace: &Namespace, name: &str, why: &str) -> Result<String> {
    let failed = namespace
        .wait(DATA_VOLUMES, name, "to fail", FILLED, |volume| volume["status"]["phase"] == "Failed")?;
    let said = condition(&failed, "Running")["message"].as_str().unwrap_or_default();
    ensure!(said.contains(why), "{name}: {said}");
    Ok(said.to_owned())
}

/// Length in bytes of the disk in [`small`]'s image.
pub(crate) const SMALL: u64 = 4 << 20;

/// An image in that folder for tests whose guest does not boot from it: random bytes, and a part that the image leaves out.
/// Returns its path, and the checksum of its disk.
pub(crate) fn small(work: &Path) -> Result<(PathBuf, String)> {
    shell(
        work,
        &format!(
            "head -c 1048576 /dev/urandom >small && truncate -s {SMALL} small && \
             qemu-img convert -f raw -O qcow2 small small.qcow2"
        ),
    )?;
    Ok((work.join("small.qcow2"), sha256(&work.join("small"))?))
}

/// The checksum of the disk of the small guest's image.
pub(crate) fn digest_of_tiny() -> Result<String> {
    let work = tempfile::tempdir()?;
    shell(work.path(), &format!("qemu-img convert -O raw {} raw", tiny().display()))?;
    sha256(&work.path().join("raw"))
}

/// The device of the disk with that serial in the guest.
pub(crate) fn device(serial: &str) -> String {
    format!("/dev/$(basename $(dirname $(grep -lx {serial} /sys/block/*/serial)))")
}

#[test]
fn a_machine_boots_from_a_download_beside_a_disk_from_a_registry_and_an_empty_one() {
    without_cdi("imports", |namespace| {
        pods::server(namespace, SERVER, "images")?;
        let work = tempfile::tempdir()?;
        publish(namespace, "tiny.qcow2", &tiny())?;
        shell(
            work.path(),
            "head -c 1048576 /dev/urandom >data && qemu-img convert -f raw -O vmdk -o subformat=streamOptimized data vmdk",
        )?;
        let data = work.path().join("data");
        publish_image(namespace, work.path(), &data)?;
        publish(namespace, "data.vmdk", &work.path().join("vmdk"))?;
        let host = host(namespace);
        let _insecure = Insecure::allow(namespace, &host)?;

        let mut machine = guest::machine("vm", "Always");
        let template = guest::spec_of(&mut machine);
        template["volumes"] = json!([
            { "name": "root", "dataVolume": { "name": "root" } },
            { "name": "data", "dataVolume": { "name": "data" } },
            { "name": "vmware", "dataVolume": { "name": "vmware" } },
            { "name": "empty", "dataVolume": { "name": "empty" } },
        ]);
        for (name, serial) in [("data", "DATA"), ("vmware", "VMWARE"), ("empty", "EMPTY")] {
            let disk = json!({ "name": name, "serial": serial, "disk": { "bus": "virtio" } });
            guest::push(&mut template["domain"]["devices"]["disks"], disk);
        }
        let checksum = format!("sha256:{}", sha256(&tiny())?);
        let url = format!("http://{host}/tiny.qcow2");
        machine["spec"]["dataVolumeTemplates"] = json!([
            { "metadata": { "name": "root" },
              "spec": spec(&json!({ "http": { "url": url, "checksum": checksum } }), "160Mi") },
            { "metadata": { "name": "data" },
              "spec": spec(&json!({ "registry": { "url": format!("docker://{host}/images/data:1") } }), "16Mi") },
            { "metadata": { "name": "vmware" },
              "spec": spec(&json!({ "http": { "url": format!("http://{host}/data.vmdk") } }), "16Mi") },
            { "metadata": { "name": "empty" }, "spec": spec(&json!({ "blank": {} }), "16Mi") },
        ]);
        namespace.apply(&machine)?;
        for name in ["root", "data", "vmware", "empty"] {
            let filled = filled(namespace, name, FILLED)?;
            ensure!(filled["status"]["progress"] == "100.0%", "{}", filled["status"]);
            ensure!(condition(&filled, "Ready")["status"] == "True", "{}", filled["status"]);
            namespace.wait_gone("pod", &format!("importer-{name}"), SOON)?;
        }
        namespace.wait_phase("vm", "Running", FILLED)?;
        let mut console = Console::open(namespace, "vm")?;
        console.login(BOOT)?;
        for serial in ["DATA", "VMWARE"] {
            let found = console.ok(&format!("head -c 1048576 {} | sha256sum", device(serial)), SOON)?;
            ensure!(found.contains(&sha256(&data)?), "{serial}: {found}");
        }
        let rest =
            console.ok(&format!("tail -c +1048577 {} | tr -d '\\000' | wc -c", device("DATA")), SOON)?;
        ensure!(rest.trim() == "0", "{rest}");
        let empty = console.ok(&format!("tr -d '\\000' <{} | wc -c", device("EMPTY")), SOON)?;
        ensure!(empty.trim() == "0", "{empty}");
        console.leave()?;
        // It is deleted with its machine.
        namespace.delete("vm", "vm")?;
        namespace.wait_gone(DATA_VOLUMES, "root", FILLED)?;
        namespace.wait_gone("pvc", "root", FILLED)
    });
}

#[test]
fn a_forbidden_import_fails_with_the_reason() {
    without_cdi("importsbad", |namespace| {
        pods::server(namespace, SERVER, "images")?;
        let work = tempfile::tempdir()?;
        shell(
            work.path(),
            "qemu-img create -q -f qcow2 -u -F raw -b /etc/passwd backed 1M
            head -c 1048576 /dev/urandom >raw
            head -c 67108864 /dev/zero | gzip -9 >bomb",
        )?;
        for name in ["backed", "raw", "bomb"] {
            publish(namespace, name, &work.path().join(name))?;
        }
        let host = host(namespace);
        let http = |path: &str| json!({ "http": { "url": format!("http://{host}/{path}") } });
        let mut wrong = http("raw");
        wrong["http"]["checksum"] = json!(format!("sha256:{}", "0".repeat(64)));
        // The importer's own tests have all reasons.
        let all = [
            ("backed", http("backed"), "names a backing file"),
            ("bomb", http("bomb"), "is a disk of more than"),
            ("wrong", wrong, "has the checksum"),
            ("nothing", http("nothing"), "answers 404"),
            (
                "metadata",
                json!({ "http": { "url": "http://169.254.169.254/latest" } }),
                "may not be connected to",
            ),
        ];
        for (name, source, _) in &all {
            namespace.apply(&data_volume(name, source, "16Mi"))?;
        }
        for (name, _, why) in &all {
            fails(namespace, name, why)?;
            namespace.wait_gone("pod", &format!("importer-{name}"), SOON)?;
        }
        let event = namespace.wait_event("backed", "ImportFailed")?;
        ensure!(event.contains("names a backing file"), "{event}");
        // A registry that is not there may come: as with CDI, the import goes on.
        let absent = json!({ "registry": { "url": "docker://127.0.0.1/invalid:latest" } });
        namespace.apply(&data_volume("absent", &absent, "16Mi"))?;
        let tried = namespace.wait(DATA_VOLUMES, "absent", "to be tried again", FILLED, |volume| {
            volume["status"]["restartCount"].as_u64() >= Some(1)
                && condition(volume, "Running")["reason"] == "Error"
        })?;
        ensure!(tried["status"]["phase"] == "ImportInProgress", "{}", tried["status"]);
        ensure!(condition(&tried, "Running")["status"] == "False", "{}", tried["status"]);
        Ok(())
    });
}

#[test]
fn unsupported_import_sources_are_refused_by_field() {
    in_no_namespace(|namespace| {
        let _absent = Absent::prepare()?;
        for (source, field) in [
            (json!({ "vddk": {} }), "spec.source.vddk"),
            (json!({ "gcs": { "url": "gs://a" } }), "spec.source.gcs"),
            (json!({ "imageio": { "url": "https://a", "diskId": "1" } }), "spec.source.imageio"),
            (json!({ "snapshot": { "name": "a", "namespace": "b" } }), "spec.source.snapshot"),
            (
                json!({ "registry": { "url": "docker://a/b", "pullMethod": "cache" } }),
                "spec.source.registry.pullMethod",
            ),
            (json!({ "http": { "url": "ftp://a" } }), "spec.source.http.url"),
            (json!({ "s3": { "url": "ftp://a" } }), "spec.source.s3.url"),
        ] {
            let refusal = namespace.refusal(&data_volume("no", &source, "16Mi"))?;
            ensure!(refusal.contains(field), "{refusal}");
        }
        let mut populated = data_volume("no", &json!({ "blank": {} }), "16Mi");
        populated["spec"]["storage"]["dataSourceRef"] =
            json!({ "apiGroup": "cdi.kubevirt.io", "kind": "VolumeImportSource", "name": "a" });
        let refusal = namespace.refusal(&populated)?;
        ensure!(refusal.contains("has no data source of its own"), "{refusal}");
        Ok(())
    });
}

/// DataVolumes that are not filled: `waiting` for a pod, `running` with an importer, and `used` by the pod `holder`, too.
fn begin_some(namespace: &Namespace) -> Result<()> {
    let absent = json!({ "registry": { "url": "docker://127.0.0.1/invalid:latest" } });
    let mut waiting = data_volume("waiting", &absent, "16Mi");
    waiting["metadata"]["annotations"] = json!({});
    namespace.apply(&waiting)?;
    for name in ["running", "used"] {
        namespace.apply(&data_volume(name, &absent, "16Mi"))?;
    }
    for (name, phase) in
        [("waiting", "WaitForFirstConsumer"), ("running", "ImportInProgress"), ("used", "ImportInProgress")]
    {
        namespace
            .wait(DATA_VOLUMES, name, "to begin", FILLED, |volume| volume["status"]["phase"] == phase)?;
    }
    let mut holder = pods::pod("holder", &["sleep", "3600"]);
    holder["spec"]["volumes"] = json!([{ "name": "used", "persistentVolumeClaim": { "claimName": "used" } }]);
    namespace.apply(&holder)?;
    namespace.wait("pod", "holder", "to run", FILLED, |pod| pod["status"]["phase"] == "Running").map(drop)
}

/// Waits until CDI can make the claims of these DataVolumes. A claim that a pod uses stays until that pod is gone.
fn are_handed_over(namespace: &Namespace) -> Result<()> {
    for name in ["waiting", "running"] {
        namespace.wait_gone("pvc", name, SOON)?;
    }
    for name in ["running", "used"] {
        namespace.wait_gone("pod", &format!("importer-{name}"), SOON)?;
    }
    let used = namespace.need("pvc", "used")?;
    ensure!(used["metadata"]["deletionTimestamp"].is_null(), "a claim in use is deleted: {used}");
    namespace.delete("pod", "holder")?;
    namespace.wait_gone("pvc", "used", FILLED)
}

#[test]
fn cdi_that_is_installed_later_takes_over_until_it_is_removed() {
    in_namespace("importsgiven", |namespace| {
        let absent = Absent::alone()?;
        namespace.apply(&data_volume("before", &json!({ "blank": {} }), "16Mi"))?;
        filled(namespace, "before", FILLED)?;
        begin_some(namespace)?;
        let former = namespace.need("pvc", "before")?;
        let kinds = absent.install()?;
        are_handed_over(namespace)?;
        namespace.apply(&data_volume("theirs", &json!({ "blank": {} }), "16Mi"))?;
        std::thread::sleep(Duration::from_secs(10));
        let theirs = namespace.need(DATA_VOLUMES, "theirs")?;
        ensure!(theirs["status"].is_null(), "{theirs}");
        ensure!(namespace.get("pvc", "theirs")?.is_none(), "a claim was made");
        // A filled claim is marked as CDI marks it, so it is not filled again.
        let claim = namespace.need("pvc", "before")?;
        ensure!(claim["metadata"]["uid"] == former["metadata"]["uid"], "the claim was made again: {claim}");
        let annotations = &claim["metadata"]["annotations"];
        ensure!(annotations["cdi.kubevirt.io/storage.populatedFor"] == "before", "{annotations}");
        drop(kinds);
        // Another test may install its CDI in between, but not from here on.
        let _absent = Absent::prepare()?;
        namespace.apply(&data_volume("after", &json!({ "blank": {} }), "16Mi"))?;
        filled(namespace, "after", FILLED)?;
        kubectl(&["get", "crd", DATA_VOLUMES]).map(drop)
    });
}
