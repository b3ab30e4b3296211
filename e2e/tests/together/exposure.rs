//! How guests of every binding are exposed: services of either or both IP families, records of host names, forwarded ports
//! and SSH.

use anyhow::{Context, Result, ensure};
use barevirt_e2e::command::cluster_script;
use barevirt_e2e::ssh::Key;
use barevirt_e2e::wait::{self, BOOT, RUNNING, SOON};
use barevirt_e2e::{Forward, Namespace, guest, in_namespace, pods};
use serde_json::{Value, json};

const BINDINGS: [&str; 3] = ["masquerade", "bridge", "passtBinding"];

/// The guest of a binding: its name is also its host name, and its domain is that of the service of that name.
fn instance(binding: &str, key: &Key) -> Value {
    let name = binding.to_lowercase();
    let user_data = format!("#cloud-config\nssh_authorized_keys:\n- {}\n", key.public);
    let mut manifest = guest::with_user_data(guest::instance(&name), &user_data);
    let spec = guest::spec_of(&mut manifest);
    (spec["hostname"], spec["subdomain"]) = (json!(name), json!(format!("sites-{name}")));
    let ports = json!([{ "name": "web", "port": 80 }, { "name": "ssh", "port": 22 }]);
    spec["domain"]["devices"]["interfaces"] = json!([{ "name": "default", binding: {}, "ports": ports }]);
    manifest
}

/// Exposes a guest's port 80 at port 8000, and returns the service's addresses.
fn expose(
    namespace: &Namespace,
    guest: &str,
    service: &str,
    families: &str,
    more: &[&str],
) -> Result<Vec<String>> {
    let (name, family) = (format!("--name={service}-{guest}"), format!("--ip-family={families}"));
    let mut arguments = vec!["expose", "vmi", guest, &name, "--port=8000", "--target-port=80", &family];
    arguments.extend(more);
    namespace.virtctl(&arguments)?;
    let made = namespace.need("service", &format!("{service}-{guest}"))?;
    let spec = &made["spec"];
    let wanted: Vec<&str> = families.split(',').collect();
    ensure!(spec["ipFamilies"] == json!(wanted), "asked for {families}: {spec}");
    let addresses = spec["clusterIPs"].as_array().cloned().unwrap_or_default();
    Ok(addresses.iter().filter_map(|address| address.as_str().map(str::to_owned)).collect())
}

fn answers(client: &pods::Client<'_>, url: &str, guest: &str) -> Result<()> {
    client.wait_answer(url, Some(guest), BOOT * 2)
}

#[test]
fn guests_of_every_binding_have_services_of_both_families_records_forwarded_ports_and_ssh() {
    in_namespace("exposure", |namespace| {
        let key = Key::make()?;
        for binding in BINDINGS {
            namespace.apply(&instance(binding, &key))?;
        }
        let client = pods::client(namespace, "client")?;
        for name in BINDINGS.map(str::to_lowercase) {
            namespace.wait_phase(&name, "Running", RUNNING)?;
            has_services_of_the_families_asked_for(namespace, &client, &name)?;
            has_a_record_with_its_pods_addresses(namespace, &client, &name)?;
            is_reached_through_the_api_server(namespace, &name, &key)?;
        }
        Ok(())
    });
}

fn has_services_of_the_families_asked_for(
    namespace: &Namespace,
    client: &pods::Client<'_>,
    guest: &str,
) -> Result<()> {
    let six = expose(namespace, guest, "six", "IPv6", &[])?;
    ensure!(six.len() == 1 && six[0].contains(':'), "{six:?}");
    let both = ["--ip-family-policy=RequireDualStack"];
    let both = expose(namespace, guest, "both", "IPv6,IPv4", &both)?;
    ensure!(both.len() == 2 && both[0].contains(':') && both[1].contains('.'), "{both:?}");
    for address in six.iter().chain(&both) {
        answers(client, &format!("http://{}:8000/hostname", pods::host(address)), guest)?;
    }
    Ok(())
}

fn has_a_record_with_its_pods_addresses(
    namespace: &Namespace,
    client: &pods::Client<'_>,
    guest: &str,
) -> Result<()> {
    let headless = expose(namespace, guest, "sites", "IPv4,IPv6", &["--cluster-ip=None"])?;
    ensure!(headless.iter().all(|address| address == "None"), "{headless:?}");
    let launcher = namespace.launcher(guest)?;
    let addresses = launcher["status"]["podIPs"].as_array().cloned().unwrap_or_default();
    let addresses: Vec<_> = addresses.iter().filter_map(|one| one["ip"].as_str()).collect();
    ensure!(addresses.len() == 2, "the pod has {addresses:?}");
    let record = format!("{guest}.sites-{guest}.{}.svc.cluster.local", namespace.name());
    wait::until_true(&format!("{record} to name {addresses:?}"), SOON, || {
        let said = client.sh(&format!("nslookup {record}"))?.stdout;
        let named: Vec<_> = said.split_whitespace().collect();
        Ok(addresses.iter().all(|address| named.contains(address)))
    })?;
    answers(client, &format!("http://{record}/hostname"), guest)
}

fn is_reached_through_the_api_server(namespace: &Namespace, guest: &str, key: &Key) -> Result<()> {
    let mut forward = cluster_script("virtctl.sh");
    forward.args(["port-forward", "-n", namespace.name(), &format!("vmi/{guest}"), "0:80"]);
    let answer = Forward::start(&mut forward)?.get("/hostname")?;
    ensure!(answer.contains(" 200 ") && answer.trim_end().ends_with(guest), "{answer}");
    let (target, options) = (format!("root@vmi/{guest}"), key.options());
    let mut arguments = vec!["ssh", &target, "-c", "hostname"];
    arguments.extend(options.iter().map(String::as_str));
    let said = namespace.virtctl(&arguments).with_context(|| format!("ssh to {guest}"))?;
    ensure!(said.trim() == guest, "{said}");
    Ok(())
}
