//! The passt binding: the guest has its pod's addresses, and a process of the pod without privileges forwards its
//! traffic.

use anyhow::{Result, bail, ensure};
use barevirt_e2e::command::cluster_script;
use barevirt_e2e::wait::{BOOT, MOVED, SOON};
use barevirt_e2e::{Console, Forward, Namespace, Node, guest, in_namespace, networks, pods, questions};
use serde_json::{Value, json};

/// A guest behind passt. It lists its ports, because sockets for all ports need more open files than some nodes allow.
fn behind_passt(mut manifest: Value) -> Value {
    let interface = &mut guest::spec_of(&mut manifest)["domain"]["devices"]["interfaces"][0];
    *interface = json!({
        "name": "default", "passtBinding": {}, "macAddress": "02:00:00:70:61:73",
        "ports": [{ "port": 80 }, { "name": "ssh", "port": 22 }],
    });
    manifest
}

/// The pod's addresses, as its status has them.
fn addresses_of(pod: &Value) -> Vec<String> {
    let addresses = pod["status"]["podIPs"].as_array().cloned().unwrap_or_default();
    addresses.iter().filter_map(|address| address["ip"].as_str().map(str::to_owned)).collect()
}

/// passt's program, which depends on the node's processor, and its process id.
fn passt(node: &Node, pod: &Value) -> Result<(&'static str, u32)> {
    for program in ["passt.avx2", "passt"] {
        if let Some(process) = node.processes(pod, program)?.first() {
            return Ok((program, *process));
        }
    }
    bail!("no passt runs in that pod")
}

fn answers(client: &pods::Client<'_>, host: &str) -> Result<()> {
    let url = format!("http://{host}/hostname");
    client.wait_answer(&url, None, BOOT)
}

/// One guest behind passt. Each step is a behaviour of its own.
#[test]
fn a_guest_behind_passt_has_its_pods_addresses_and_only_listed_ports_and_passt_has_no_privilege() {
    in_namespace("passt", |namespace| {
        pods::server(namespace, "greeter", "hello from a pod")?;
        let mut console = Console::boot(namespace, &behind_passt(guest::instance("vm")))?;
        let pod = namespace.launcher("vm")?;
        let addresses = addresses_of(&pod);
        has_its_pods_addresses(namespace, &mut console, &addresses)?;
        let client = pods::client(namespace, "client")?;
        is_reached(namespace, &client, &addresses)?;
        does_not_reach_its_pods_loopback_and_hides_other_ports(&client, &mut console, &addresses[0])?;
        console.leave()?;
        is_reached_by_port_forward(namespace, &pod)?;
        let node = Node::of(&pod)?;
        let (program, process) = passt(&node, &pod)?;
        has_no_privilege(&node, process)?;
        node.kill(&pod, program, "KILL")?;
        reports_the_end_of_passt(namespace)
    });
}

fn has_its_pods_addresses(namespace: &Namespace, console: &mut Console, addresses: &[String]) -> Result<()> {
    let wanted: Vec<_> = addresses.iter().map(|address| format!("{address}/")).collect();
    let inside = networks::wait_inside(console, &wanted)?;
    ensure!(inside.contains("02:00:00:70:61:73"), "{inside}");
    for name in ["greeter", &format!("greeter.{}.svc.cluster.local", namespace.name())] {
        let answer = console.ok(&format!("timeout 20 wget -qO- http://{name}/"), SOON)?;
        ensure!(answer == "hello from a pod", "{name} answers {answer}");
    }
    questions::ask_service(console, namespace, "greeter", "hello from a pod")?;
    namespace.address("vm")?;
    let vmi = namespace.need("vmi", "vm")?;
    let told = &vmi["status"]["interfaces"][0];
    ensure!(told["ipAddresses"] == json!(addresses), "{told} does not have {addresses:?}");
    ensure!(told["mac"] == "02:00:00:70:61:73" && told["queueCount"] == 1, "{told}");
    Ok(())
}

fn is_reached(namespace: &Namespace, client: &pods::Client<'_>, addresses: &[String]) -> Result<()> {
    for address in addresses {
        answers(client, &pods::host(address))?;
    }
    namespace.apply(&json!({
        "apiVersion": "v1", "kind": "Service", "metadata": { "name": "web" },
        "spec": { "selector": { "guest": "vm" }, "ports": [{ "port": 80 }] },
    }))?;
    answers(client, "web")?;
    let ssh = format!("timeout 5 nc {} 22 </dev/null", addresses[0]);
    ensure!(client.sh(&ssh)?.stdout.contains("SSH-"), "no SSH from a pod");
    Ok(())
}

fn does_not_reach_its_pods_loopback_and_hides_other_ports(
    client: &pods::Client<'_>,
    console: &mut Console,
    address: &str,
) -> Result<()> {
    let serve = "mkdir -p /tmp/www && echo other >/tmp/www/index.html && httpd -p 8080 -h /tmp/www";
    console.ok(serve, SOON)?;
    let other = client.fetch(&format!("http://{}:8080/", pods::host(address)))?;
    ensure!(other.is_empty(), "port 8080 is not in the list and says {other}");
    // Only passt itself listens on the pod's loopback, at the guest's ports.
    let gateway = console.ok("ip route | sed -n 's/^default via \\([^ ]*\\).*/\\1/p'", SOON)?;
    let (said, code) =
        console.run(&format!("timeout 5 wget -qO- http://{}:80/hostname", gateway.trim()), SOON)?;
    ensure!(code != 0, "the gateway leads the guest to its pod's loopback: {said}");
    Ok(())
}

fn is_reached_by_port_forward(namespace: &Namespace, launcher: &Value) -> Result<()> {
    let pod = format!("pod/{}", launcher["metadata"]["name"].as_str().unwrap_or_default());
    let arguments = ["port-forward", "-n", namespace.name(), &pod, ":80"];
    let answer = Forward::start(cluster_script("kubectl.sh").args(arguments))?.get("/hostname")?;
    ensure!(answer.starts_with("HTTP/1.") && answer.contains(" 200 "), "{answer}");
    Ok(())
}

fn has_no_privilege(node: &Node, process: u32) -> Result<()> {
    let status =
        node.sh(&format!("grep -E '^(Uid|CapEff|CapBnd|NoNewPrivs|Seccomp):' /proc/{process}/status"))?;
    for line in [
        "Uid:\t107\t107",
        "CapEff:\t0000000000000000",
        "CapBnd:\t0000000000000000",
        "NoNewPrivs:\t1",
        "Seccomp:\t2",
    ] {
        ensure!(status.contains(line), "{line} is not in {status}");
    }
    Ok(())
}

fn reports_the_end_of_passt(namespace: &Namespace) -> Result<()> {
    let vmi = namespace.wait("vmi", "vm", "to tell of it", SOON, |vmi| {
        vmi["status"]["conditions"].to_string().contains("PasstEnded")
    })?;
    let conditions = vmi["status"]["conditions"].to_string();
    ensure!(
        conditions.contains("interface default is not joined to the pod network any more"),
        "{conditions}"
    );
    ensure!(vmi["status"]["phase"] == "Running", "{}", vmi["status"]);
    namespace.wait_event("vm", "PasstEnded").map(drop)
}

#[test]
fn a_guest_that_moves_is_reached_at_its_next_pod() {
    in_namespace("passtmoves", |namespace| {
        Console::boot(namespace, &behind_passt(guest::movable(guest::instance("vm"))))?.leave()?;
        let before = namespace.address("vm")?;
        let client = pods::client(namespace, "client")?;
        answers(&client, &pods::host(&before))?;
        namespace.apply(&json!({
            "apiVersion": "kubevirt.io/v1", "kind": "VirtualMachineInstanceMigration",
            "metadata": { "name": "one" }, "spec": { "vmiName": "vm" },
        }))?;
        namespace.wait("vmim", "one", "to succeed", MOVED, |vmim| vmim["status"]["phase"] == "Succeeded")?;
        let vmi = namespace.wait("vmi", "vm", "to have another address", SOON, |vmi| {
            vmi["status"]["interfaces"][0]["ipAddress"].as_str().is_some_and(|address| address != before)
        })?;
        let after = vmi["status"]["interfaces"][0]["ipAddress"].as_str().unwrap_or_default().to_owned();
        // passt learns the guest's address from the first packet that the guest sends.
        let mut console = Console::open(namespace, "vm")?;
        console.login(SOON)?;
        console.run("timeout 5 nc 192.0.2.1 53 </dev/null", SOON)?;
        console.leave()?;
        answers(&client, &pods::host(&after))
    });
}
