//! DataVolumes of a machine's templates. The cluster has no CDI, so a fake one does its part
//! (`barevirt_e2e::cdi`).

use anyhow::{Result, ensure};
use barevirt_e2e::cdi::{self, Absent, DATA_SOURCES, DATA_VOLUMES, FillMode, Kinds};
use barevirt_e2e::wait::{BOOT, RUNNING, SOON};
use barevirt_e2e::{Console, Namespace, guest, in_namespace};
use serde_json::{Value, json};
use std::time::Duration;

/// Time until the garbage collector knows a new kind, and has done its work.
const COLLECTED: Duration = Duration::from_secs(150);
/// Time until a disk was written to a claim, and its machine runs.
const FILLED: Duration = Duration::from_secs(RUNNING.as_secs() + 120);

/// guest-tiny with its root disk on the DataVolume `root` of a template.
fn machine(strategy: &str, origin: &Value) -> Value {
    let mut machine = guest::machine("vm", strategy);
    guest::spec_of(&mut machine)["volumes"] = json!([{ "name": "root", "dataVolume": { "name": "root" } }]);
    let mut spec = json!({ "storage": { "resources": { "requests": { "storage": "160Mi" } } } });
    for (name, value) in origin.as_object().into_iter().flatten() {
        spec[name] = value.clone();
    }
    machine["spec"]["dataVolumeTemplates"] =
        json!([{ "metadata": { "name": "root", "labels": { "of": "template" } }, "spec": spec }]);
    machine
}

fn imported(strategy: &str) -> Value {
    machine(strategy, &json!({ "source": { "http": { "url": "http://images.invalid/tiny.qcow2" } } }))
}

/// Runs a test in a namespace with the fake CDI.
fn with_cdi(name: &str, mode: FillMode, test: impl FnOnce(&Namespace) -> Result<()> + Send + 'static) {
    in_namespace(name, move |namespace| {
        let _kinds = Kinds::install()?;
        cdi::play(namespace, mode, || test(namespace))
    });
}

fn boots(namespace: &Namespace) -> Result<()> {
    namespace.wait_phase("vm", "Running", FILLED)?;
    let mut console = Console::open(namespace, "vm")?;
    console.login(BOOT)?;
    console.leave().map(drop)
}

/// The message of the machine's condition `Failure`.
fn failure(namespace: &Namespace) -> Result<String> {
    let failed = |vm: &Value| {
        let conditions = vm["status"]["conditions"].as_array().cloned().unwrap_or_default();
        let failure = conditions.into_iter().find(|condition| condition["type"] == "Failure");
        failure.and_then(|failure| failure["message"].as_str().map(str::to_owned))
    };
    let vm = namespace.wait("vm", "vm", "to have a condition Failure", SOON, |vm| failed(vm).is_some())?;
    Ok(failed(&vm).unwrap_or_default())
}

#[test]
fn a_machine_boots_from_its_data_volume_which_is_deleted_with_it() {
    with_cdi("template", FillMode::AtOnce, |namespace| {
        namespace.apply(&imported("Always"))?;
        namespace.wait_status("vm", "Provisioning", SOON)?;
        ensure!(namespace.get("vmi", "vm")?.is_none(), "an instance was made of an empty disk");
        let made = namespace.need(DATA_VOLUMES, "root")?;
        let vm = namespace.need("vm", "vm")?;
        let metadata = &made["metadata"];
        ensure!(metadata["ownerReferences"][0]["uid"] == vm["metadata"]["uid"], "{made}");
        ensure!(metadata["labels"]["kubevirt.io/created-by"] == vm["metadata"]["uid"], "{made}");
        ensure!(metadata["labels"]["of"] == "template", "{made}");
        ensure!(metadata["annotations"]["cdi.kubevirt.io/allowClaimAdoption"] == "true", "{made}");
        ensure!(
            made["spec"]["source"] == json!({ "http": { "url": "http://images.invalid/tiny.qcow2" } }),
            "{made}"
        );
        let said = namespace.wait_event("vm", "SuccessfulDataVolumeCreate")?;
        ensure!(said == "Created DataVolume root", "{said}");
        boots(namespace)?;

        // A stopped machine keeps its DataVolume; a deleted machine does not.
        namespace.virtctl(&["stop", "vm"])?;
        namespace.wait_status("vm", "Stopped", SOON)?;
        let kept = namespace.need(DATA_VOLUMES, "root")?;
        ensure!(kept["metadata"]["uid"] == made["metadata"]["uid"], "the data volume was made again");
        namespace.delete("vm", "vm")?;
        namespace.wait_gone(DATA_VOLUMES, "root", COLLECTED)?;
        namespace.wait_gone("pvc", "root", COLLECTED)
    });
}

#[test]
fn a_claim_that_waits_for_its_first_consumer_is_given_one() {
    with_cdi("templatewaits", FillMode::FirstConsumer, |namespace| {
        namespace.apply(&imported("Halted"))?;
        // The machine is not to run, so its claim is not bound.
        namespace.wait(DATA_VOLUMES, "root", "to wait", SOON, |volume| {
            volume["status"]["phase"] == "WaitForFirstConsumer"
        })?;
        namespace.virtctl(&["start", "vm"])?;
        namespace.wait_status("vm", "WaitingForVolumeBinding", SOON)?;
        boots(namespace)?;
        namespace.delete("vm", "vm")
    });
}

#[test]
fn a_failed_data_volume_is_reported() {
    with_cdi("templatefails", FillMode::Never, |namespace| {
        namespace.apply(&imported("Always"))?;
        namespace.wait_status("vm", "DataVolumeError", SOON)?;
        let said = namespace.wait_event("vm", "FailedDataVolumeImport")?;
        ensure!(said == "DataVolume root failed to import disk image", "{said}");
        ensure!(namespace.get("vmi", "vm")?.is_none(), "an instance was made of an empty disk");
        // An instance without a machine fails.
        let mut alone = guest::instance("alone");
        alone["spec"]["volumes"] = json!([{ "name": "root", "dataVolume": { "name": "root" } }]);
        namespace.apply(&alone)?;
        let failed = namespace.wait_phase("alone", "Failed", SOON)?;
        ensure!(failed["status"]["reason"] == "FailedDataVolumeImport", "{failed}");
        // After correcting the mistake, a user deletes the DataVolume to have it made again.
        let former = namespace.need(DATA_VOLUMES, "root")?["metadata"]["uid"].clone();
        namespace.delete(DATA_VOLUMES, "root")?;
        namespace.wait(DATA_VOLUMES, "root", "to be another one", SOON, |volume| {
            volume["metadata"]["uid"] != former
        })?;
        namespace.delete("vm", "vm")
    });
}

#[test]
fn a_machine_reports_a_source_that_only_cdi_serves() {
    in_namespace("templatealone", |namespace| {
        let absent = Absent::alone()?;
        namespace
            .apply(&machine("Halted", &json!({ "source": { "gcs": { "url": "gs://invalid/tiny" } } })))?;
        let message = failure(namespace)?;
        ensure!(message.contains("failed to create DataVolume"), "{message}");
        ensure!(message.contains("spec.source.gcs"), "{message}");
        ensure!(message.contains("served by CDI alone"), "{message}");
        // It goes on once CDI exists.
        let _kinds = absent.install()?;
        namespace.wait(DATA_VOLUMES, "root", "to be made", SOON, |_| true)?;
        namespace.delete("vm", "vm")
    });
}

#[test]
fn a_copy_from_another_namespace_needs_the_accounts_right() {
    in_namespace("golden", |golden| {
        let golden = golden.clone();
        in_namespace("copies", move |namespace| {
            let _kinds = Kinds::install()?;
            golden.apply(&json!({
                "apiVersion": "cdi.kubevirt.io/v1beta1", "kind": "DataSource", "metadata": { "name": "tiny" },
                "spec": { "source": { "pvc": { "name": "image", "namespace": golden.name() } } },
            }))?;
            golden.wait(DATA_SOURCES, "tiny", "to be there", SOON, |_| true)?;
            let by = json!({ "kind": "DataSource", "name": "tiny", "namespace": golden.name() });
            namespace.apply(&machine("Halted", &json!({ "sourceRef": by })))?;
            let message = failure(namespace)?;
            let user = format!("system:serviceaccount:{}:default", namespace.name());
            let why = format!(
                "User {user} has insufficient permissions in clone source namespace {}",
                golden.name()
            );
            ensure!(message.contains("not authorized to create DataVolume"), "{message}");
            ensure!(message.contains(&why), "{message}");
            ensure!(namespace.get(DATA_VOLUMES, "root")?.is_none(), "a copy was made without leave");

            golden.apply(&json!({
                "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "Role", "metadata": { "name": "copy" },
                "rules": [{ "apiGroups": ["cdi.kubevirt.io"], "resources": ["datavolumes/source"], "verbs": ["create"] }],
            }))?;
            golden.apply(&json!({
                "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "RoleBinding", "metadata": { "name": "copy" },
                "roleRef": { "apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "copy" },
                "subjects": [{ "kind": "User", "apiGroup": "rbac.authorization.k8s.io", "name": user }],
            }))?;
            let made = namespace.wait(DATA_VOLUMES, "root", "to be made", SOON, |_| true)?;
            // Exactly the claim whose right was checked.
            let source = json!({ "pvc": { "name": "image", "namespace": golden.name() } });
            ensure!(made["spec"]["source"] == source && made["spec"]["sourceRef"].is_null(), "{made}");
            namespace.delete("vm", "vm")
        });
        Ok(())
    });
}

#[test]
fn an_instance_type_is_read_from_what_a_template_copies() {
    in_namespace("infers", |namespace| {
        let _kinds = Kinds::install()?;
        let mut machine =
            machine("Halted", &json!({ "sourceRef": { "kind": "DataSource", "name": "tiny" } }));
        guest::spec_of(&mut machine)["domain"].as_object_mut().and_then(|domain| domain.remove("memory"));
        machine["spec"]["instancetype"] = json!({ "inferFromVolume": "root" });
        let refusal = namespace.refusal(&machine)?;
        ensure!(refusal.contains(&format!("DataSource {}/tiny not found", namespace.name())), "{refusal}");
        namespace.apply(&json!({
            "apiVersion": "cdi.kubevirt.io/v1beta1", "kind": "DataSource",
            "metadata": { "name": "tiny", "labels": { "instancetype.kubevirt.io/default-instancetype": "u1.nano" } },
            "spec": { "source": { "pvc": { "name": "image", "namespace": namespace.name() } } },
        }))?;
        namespace.apply(&machine)?;
        let vm = namespace.need("vm", "vm")?;
        ensure!(vm["spec"]["instancetype"]["name"] == "u1.nano", "{}", vm["spec"]["instancetype"]);
        ensure!(vm["spec"]["instancetype"]["inferFromVolume"].is_null(), "{}", vm["spec"]["instancetype"]);
        namespace.delete("vm", "vm")
    });
}
