//! The images of common distributions (`manifests/cloud-images.yaml`): all are admitted, and a user without rights in their
//! namespace makes a machine from one, whose image comes from the test's own server.

use super::copies::create_as;
use super::import_crons::{CRONS, FILLED, served};
use super::imports::{SERVER, condition, host, publish, tiny};
use anyhow::{Result, ensure};
use barevirt_e2e::cdi::{Absent, DATA_SOURCES};
use barevirt_e2e::command::{repository, try_kubectl, try_kubectl_with};
use barevirt_e2e::wait::{self, BOOT, SOON};
use barevirt_e2e::{Console, Namespace, in_namespace, pods};
use serde_json::{Value, json};

/// The one from a web server, which also has the smallest instance type.
const IMAGE: &str = "alpine";

/// The objects of the catalogue, in that namespace.
fn catalogue(namespace: &Namespace) -> Result<Vec<Value>> {
    let text = std::fs::read_to_string(repository().join("manifests/cloud-images.yaml"))?;
    let mut objects: Vec<Value> = serde_saphyr::from_multiple(&text)?;
    objects.retain(|object| object["metadata"]["namespace"].is_string());
    for object in &mut objects {
        object["metadata"]["namespace"] = json!(namespace.name());
    }
    Ok(objects)
}

/// Publishes the small guest as the image of the catalogue, and waits until it is imported.
fn offer(images: &Namespace) -> Result<()> {
    pods::server(images, SERVER, "images")?;
    publish(images, "tiny.qcow2", &tiny())?;
    let is_other = |object: &Value| object["kind"] == "DataImportCron" && object["metadata"]["name"] != IMAGE;
    let (others, objects): (Vec<_>, Vec<_>) = catalogue(images)?.into_iter().partition(is_other);
    // Each of them would fill a claim.
    let others = json!({ "apiVersion": "v1", "kind": "List", "items": others }).to_string();
    let asked = try_kubectl_with(&["create", "--dry-run=server", "-f", "-"], &others)?;
    ensure!(asked.code == 0, "{}", asked.text());
    for mut object in objects {
        if object["kind"] == "DataImportCron" {
            let spec = &mut object["spec"]["template"]["spec"];
            spec["source"]["http"]["url"] = json!(format!("http://{}/tiny.qcow2", host(images)));
            spec["storage"]["resources"]["requests"]["storage"] = json!("160Mi");
        }
        images.apply(&object)?;
    }
    let is_ready = |source: &Value| condition(source, "Ready")["status"] == "True";
    images.wait(DATA_SOURCES, IMAGE, "to be ready", FILLED, is_ready).map(drop)
}

#[test]
fn any_user_makes_a_machine_from_the_catalogue() {
    in_namespace("catalogue", |images| {
        let images = images.clone();
        in_namespace("fromcatalogue", move |namespace| {
            let _absent = Absent::prepare()?;
            served(CRONS)?;
            let user = format!("tenant-of-{}", namespace.name());
            let binding = format!("--user={user}");
            namespace.kubectl(&["create", "rolebinding", "tenant", "--clusterrole=edit", &binding])?;
            offer(&images)?;
            let import = format!("type:ds,src:{}/{IMAGE},name:root", images.name());
            let manifest = namespace.virtctl(&[
                "create",
                "vm",
                "--name=vm",
                "--termination-grace-period=0",
                "--infer-instancetype",
                "--infer-preference",
                "--volume-import",
                &import,
            ])?;
            let wanted: Value = serde_saphyr::from_str(&manifest)?;
            let user_flag = format!("--as={user}");
            let may = [
                "auth",
                "can-i",
                "create",
                "virtualmachines.kubevirt.io",
                "-n",
                namespace.name(),
                &user_flag,
                "--as-group=system:authenticated",
            ];
            wait::until_true("the tenant to be allowed to make machines", SOON, || {
                // The role does not take effect at once.
                Ok(try_kubectl(&may)?.code == 0)
            })?;
            let made = create_as(namespace, &user, &wanted)?;
            ensure!(made.code == 0, "{}", made.text());
            let vm = namespace.need("vm", "vm")?;
            ensure!(vm["spec"]["instancetype"]["name"] == "u1.nano", "{}", vm["spec"]["instancetype"]);
            ensure!(vm["spec"]["preference"]["name"] == "alpine", "{}", vm["spec"]["preference"]);
            // The machine's account has the right to copy, too.
            namespace.wait_phase("vm", "Running", FILLED)?;
            let mut console = Console::open(namespace, "vm")?;
            console.login(BOOT)?;
            console.leave().map(drop)
        });
        Ok(())
    });
}
