//! How guests of every binding are exposed: services of either or both IP families, for connections and for datagrams, records
//! of host names, forwarded ports, SSH and copied files.

use anyhow::{Context, Result, ensure};
use barevirt_e2e::command::cluster_script;
use barevirt_e2e::ssh::Key;
use barevirt_e2e::wait::{self, BOOT, RUNNING, SOON};
use barevirt_e2e::{Forward, Namespace, guest, in_namespace, pods};
use serde_json::{Value, json};

const BINDINGS: [&str; 3] = ["masquerade", "bridge", "passtBinding"];
/// Where the guests answer datagrams, and where the services for them do.
const ECHO: u16 = 7000;
const ECHO_SERVICE: u16 = 7007;

/// What the guest needs for `scp -O`: as much of this protocol as one file in either direction takes.
const SCP: &str = "#!/bin/sh
ok() { printf \"\\0\"; }
took() { dd bs=1 count=1 of=/dev/null 2>/dev/null; }
if [ $1 = -t ]; then
    ok; read -r line; line=${line#* }; ok
    dd bs=${line%% *} count=1 iflag=fullblock of=$2 2>/dev/null; took; ok
else
    took; printf \"C0644 %s %s\\n\" $(wc -c <$2) ${2##*/}; took; cat $2; ok; took
fi";

/// The guest of a binding: its name is also its host name, and its domain is that of the service of that name.
fn instance(binding: &str, key: &Key) -> Value {
    let name = binding.to_lowercase();
    let user_data = format!("#cloud-config\nssh_authorized_keys:\n- {}\n", key.public);
    let mut manifest = guest::with_user_data(guest::instance(&name), &user_data);
    let spec = guest::spec_of(&mut manifest);
    (spec["hostname"], spec["subdomain"]) = (json!(name), json!(format!("sites-{name}")));
    let ports = json!([
        { "name": "web", "port": 80 }, { "name": "ssh", "port": 22 },
        { "name": "echo", "port": ECHO, "protocol": "UDP" },
    ]);
    spec["domain"]["devices"]["interfaces"] = json!([{ "name": "default", binding: {}, "ports": ports }]);
    manifest
}

/// Exposes a guest's port 80 at port 8000, or others as `more` says, and returns the service's addresses.
fn expose(
    namespace: &Namespace,
    guest: &str,
    service: &str,
    families: &str,
    more: &[&str],
) -> Result<Vec<String>> {
    let (name, family) = (format!("--name={service}-{guest}"), format!("--ip-family={families}"));
    let mut arguments = vec!["expose", "vmi", guest, &name, &family];
    arguments.extend(more);
    if !more.iter().any(|argument| argument.starts_with("--port=")) {
        arguments.extend(["--port=8000", "--target-port=80"]);
    }
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
        let inside = client.inside()?;
        for name in BINDINGS.map(str::to_lowercase) {
            namespace.wait_phase(&name, "Running", RUNNING)?;
            has_services_of_the_families_asked_for(namespace, &client, &name)?;
            has_a_record_with_its_pods_addresses(namespace, &client, &name)?;
            is_reached_through_the_api_server(namespace, &name, &key)?;
            answers_datagrams_at_its_pods_addresses_and_a_services(namespace, &inside, &name, &key)?;
            sends_packets_as_large_as_the_mtu(namespace, &name, &key)?;
            copies_a_file_there_and_back(namespace, &name, &key)?;
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
    let addresses = pods::both_addresses(&namespace.launcher(guest)?)?;
    let record = format!("{guest}.sites-{guest}.{}.svc.cluster.local", namespace.name());
    wait::until_true(&format!("{record} to name {addresses:?}"), SOON, || {
        let said = client.sh(&format!("nslookup {record}"))?.stdout;
        let named: Vec<_> = said.split_whitespace().collect();
        Ok(addresses.iter().all(|address| named.contains(&address.as_str())))
    })?;
    answers(client, &format!("http://{record}/hostname"), guest)
}

fn is_reached_through_the_api_server(namespace: &Namespace, guest: &str, key: &Key) -> Result<()> {
    let mut forward = cluster_script("virtctl.sh");
    forward.args(["port-forward", "-n", namespace.name(), &format!("vmi/{guest}"), "0:80"]);
    let answer = Forward::start(&mut forward)?.get("/hostname")?;
    ensure!(answer.contains(" 200 ") && answer.trim_end().ends_with(guest), "{answer}");
    let said = in_guest(namespace, guest, key, "hostname")?;
    ensure!(said.trim() == guest, "{said}");
    Ok(())
}

/// Runs a command line in a guest by SSH.
fn in_guest(namespace: &Namespace, guest: &str, key: &Key, line: &str) -> Result<String> {
    let (target, options) = (format!("root@vmi/{guest}"), key.options());
    let mut arguments = vec!["ssh", &target, "-c", line];
    arguments.extend(options.iter().map(String::as_str));
    namespace.virtctl(&arguments).with_context(|| format!("ssh to {guest}"))
}

fn answers_datagrams_at_its_pods_addresses_and_a_services(
    namespace: &Namespace,
    client: &pods::Inside,
    guest: &str,
    key: &Key,
) -> Result<()> {
    in_guest(namespace, guest, key, &format!("setsid udp {ECHO} </dev/null >/dev/null 2>&1 &"))?;
    let (port, target) = (format!("--port={ECHO_SERVICE}"), format!("--target-port={ECHO}"));
    let udp = ["--protocol=UDP", &port, &target, "--ip-family-policy=RequireDualStack"];
    let service = expose(namespace, guest, "echo", "IPv4,IPv6", &udp)?;
    ensure!(service.len() == 2, "{service:?}");
    let own = pods::both_addresses(&namespace.launcher(guest)?)?;
    let all = own.iter().map(|address| (address, ECHO));
    for (address, port) in all.chain(service.iter().map(|address| (address, ECHO_SERVICE))) {
        let text = "7".repeat(pods::largest_payload(address));
        let what = format!("a datagram to come back from {guest} at {address}");
        wait::until_true(&what, SOON, || Ok(client.datagram(address, port, &text)? == text))?;
    }
    Ok(())
}

fn sends_packets_as_large_as_the_mtu(namespace: &Namespace, guest: &str, key: &Key) -> Result<()> {
    let to = pods::both_addresses(&namespace.need("pod", "client")?)?;
    // One answer is enough: an emulated guest on a busy machine loses some.
    let ping = |to: &String| format!("ping -c 3 -W 5 -s {} {to} >/dev/null", pods::largest_payload(to));
    in_guest(namespace, guest, key, &to.each_ref().map(ping).join(" && ")).map(drop)
}

/// `virtctl scp` in both directions.
fn copies_a_file_there_and_back(namespace: &Namespace, guest: &str, key: &Key) -> Result<()> {
    let files = tempfile::tempdir()?;
    let path = |name: &str| files.path().join(name).display().to_string();
    let sent: Vec<u8> = (0..=u8::MAX).cycle().take(100_000).collect();
    std::fs::write(path("sent"), &sent)?;
    in_guest(namespace, guest, key, &format!("echo '{SCP}' >/bin/scp && chmod 755 /bin/scp"))?;
    let options = key.options();
    let there = format!("root@vmi/{guest}:/tmp/there");
    for (from, to) in [(&path("sent"), &there), (&there, &path("back"))] {
        let mut arguments = vec!["scp", from, to, "-t", "-O"];
        arguments.extend(options.iter().map(String::as_str));
        namespace.virtctl(&arguments).with_context(|| format!("scp from {from} to {to}"))?;
    }
    ensure!(std::fs::read(path("back"))? == sent, "{guest} sends another file back");
    Ok(())
}
