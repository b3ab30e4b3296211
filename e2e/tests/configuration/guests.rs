//! Settings that decide what a guest may have.

use anyhow::{Context, Result, ensure};
use barevirt_e2e::command::objects;
use barevirt_e2e::components::{RUNNING_COMPONENTS, lives, wait_in_force};
use barevirt_e2e::installation::{self, Changed, wait_available};
use barevirt_e2e::wait::{self, BOOT, RUNNING, SOON};
use barevirt_e2e::{Console, Node, alone, guest, in_namespace, pods};
use serde_json::{Value, json};

#[test]
fn without_its_gate_an_image_is_a_container_of_the_pod_and_no_volume() {
    in_namespace("imagevolumes", |namespace| {
        let _alone = alone();
        let containers = |name: &str| -> Result<usize> {
            namespace.apply(&guest::instance(name))?;
            namespace.wait_phase(name, "Running", RUNNING)?;
            let launcher = namespace.launcher(name)?;
            Ok(launcher["spec"]["containers"].as_array().map_or(0, Vec::len))
        };
        // The test cluster supports image volumes.
        ensure!(containers("volume")? == 1, "the image is no volume");
        let _changed = Changed::begin(&json!({"configuration": {"developerConfiguration": {
            "disabledFeatureGates": ["ImageVolume"],
        }}}))?;
        wait_in_force(lives(RUNNING_COMPONENTS)?.keys())?;
        ensure!(containers("container")? == 2, "the image is no container");
        Ok(())
    });
}

#[test]
fn a_cluster_that_keeps_no_serial_logs_keeps_those_that_are_asked_for() {
    in_namespace("seriallogs", |namespace| {
        let _alone = alone();
        let _changed = Changed::begin(&json!({"configuration": {"virtualMachineOptions": {
            "disableSerialConsoleLog": {},
        }}}))?;
        wait_in_force(lives(RUNNING_COMPONENTS)?.keys())?;
        let mut asks = guest::instance("asks");
        asks["spec"]["domain"]["devices"]["logSerialConsole"] = json!(true);
        for manifest in [&asks, &guest::instance("silent")] {
            namespace.apply(manifest)?;
        }
        let log = |name: &str| -> Result<String> {
            namespace.wait_phase(name, "Running", RUNNING)?;
            let launcher = namespace.launcher(name)?;
            let pod = launcher["metadata"]["name"].as_str().context("the launcher has no name")?.to_owned();
            let read = ["exec", &pod, "-c", "compute", "--", "/usr/bin/virt-launcher", "serial-log"];
            // The program fails if there is no log.
            Ok(namespace.try_kubectl(&read)?.stdout)
        };
        namespace.wait_phase("asks", "Running", RUNNING)?;
        wait::until_true("a log of the instance that asks for one", BOOT, || {
            Ok(log("asks")?.contains("guest-tiny login"))
        })?;
        // The guest with the silent log also runs, and its console works.
        Console::open(namespace, "silent")?.login(BOOT)?;
        let kept = log("silent")?;
        ensure!(!kept.contains("login"), "kept nevertheless: {kept}");
        Ok(())
    });
}

#[test]
fn a_guest_gets_downward_metrics_and_only_permitted_host_devices() {
    in_namespace("hostdevices", |namespace| {
        let _alone = alone();
        wait_available()?;
        let components = lives(RUNNING_COMPONENTS)?;
        let _changed = Changed::begin(&json!({"configuration": {
            "developerConfiguration": {"featureGates": ["DownwardMetrics", "HostDevices"]},
            "permittedHostDevices": {"pciHostDevices": [
                {"pciVendorSelector": "ffff:ffff", "resourceName": "e2e.test/none"}]},
        }}))?;
        wait_in_force(components.keys())?;

        let mut stranger = guest::instance("stranger");
        stranger["spec"]["domain"]["devices"]["hostDevices"] =
            json!([{"name": "card", "deviceName": "e2e.test/card"}]);
        namespace.apply(&stranger)?;

        let mut manifest = guest::instance("told");
        manifest["spec"]["domain"]["devices"]["downwardMetrics"] = json!({});
        guest::push(
            &mut manifest["spec"]["domain"]["devices"]["disks"],
            json!({"name": "metrics", "disk": {"bus": "virtio"}}),
        );
        guest::push(&mut manifest["spec"]["volumes"], json!({"name": "metrics", "downwardMetrics": {}}));
        namespace.apply(&manifest)?;
        let instance = namespace.wait_phase("told", "Running", RUNNING)?;
        let node = instance["status"]["nodeName"].as_str().context("it is on no node")?;
        let mut console = Console::open(namespace, "told")?;
        console.login(BOOT)?;
        let name = format!("<value>{node}</value>");
        // The disk of metrics begins with a magic number.
        let find = "for d in /sys/block/vd*; do d=/dev/${d##*/}; \
                    [ \"$(dd if=$d bs=4 count=1 2>/dev/null)\" = mvbd ] && echo $d; done";
        let disk = console.ok(find, SOON)?.trim().to_owned();
        ensure!(disk.starts_with("/dev/vd"), "no disk of metrics: {disk:?}");
        wait::until_true("the disk to tell of the node", SOON, || {
            // The guest caches what it has read before.
            let read = format!(
                "echo 3 >/proc/sys/vm/drop_caches; dd if={disk} bs=4096 count=2 2>/dev/null | grep -c '{name}'"
            );
            Ok(console.run(&read, SOON)?.0.trim() == "1")
        })?;
        let ask = "p=/dev/$(basename $(dirname $(grep -l vhostmd /sys/class/virtio-ports/*/name))); \
                   exec 3<>$p; printf 'GET /metrics/XML\\n\\n' >&3; timeout 5 head -n 8 <&3; exec 3>&-";
        let answer = console.ok(ask, SOON)?;
        ensure!(answer.contains("HostName") && answer.contains(&name), "{answer}");

        wait::until_true("the device to be refused by name", SOON, || {
            let vmi = namespace.need("vmi", "stranger")?;
            Ok(vmi["status"]["conditions"].as_array().is_some_and(|conditions| {
                conditions.iter().any(|condition| {
                    let message = condition["message"].as_str().unwrap_or_default();
                    condition["reason"] == "FailedCreate"
                        && message.contains("HostDevice e2e.test/card is not permitted")
                })
            }))
        })
    });
}

#[test]
fn where_its_gate_is_on_a_range_of_ports_reaches_the_guest_and_no_other_port_does() {
    in_namespace("portranges", |namespace| {
        let _alone = alone();
        wait_available()?;
        let components = lives(RUNNING_COMPONENTS)?;
        let _changed = Changed::begin(&json!({"configuration": {"developerConfiguration": {
            "featureGates": ["PortRangesSpec"],
        }}}))?;
        wait_in_force(components.keys())?;
        let mut manifest = guest::instance("vm");
        manifest["spec"]["domain"]["devices"]["interfaces"][0]["portRanges"] =
            json!([{"protocol": "TCP", "start": 79, "end": 81}]);
        namespace.apply(&manifest)?;
        namespace.wait_phase("vm", "Running", RUNNING)?;
        let client = pods::client(namespace, "client")?;
        let addresses = pods::both_addresses(&namespace.launcher("vm")?)?;
        for host in addresses.each_ref().map(|address| pods::host(address)) {
            client.wait_answer(&format!("http://{host}/hostname"), None, BOOT)?;
        }
        let mut console = Console::open(namespace, "vm")?;
        console.login(BOOT)?;
        for port in [81, 82] {
            let serve = format!("httpd -p {port} -h /www && wget -qO- http://127.0.0.1:{port}/hostname");
            console.ok(&serve, SOON)?;
        }
        console.leave()?;
        for host in addresses.each_ref().map(|address| pods::host(address)) {
            client.wait_answer(&format!("http://{host}:81/hostname"), None, SOON)?;
            let said = client.fetch(&format!("http://{host}:82/hostname"))?;
            ensure!(said.is_empty(), "port 82 is in no range and says {said}");
        }
        Ok(())
    });
}

#[test]
fn a_host_disk_needs_its_gate_and_a_privileged_namespace() {
    in_namespace("hostdisk", |namespace| {
        let _alone = alone();
        wait_available()?;
        let components = lives(RUNNING_COMPONENTS)?;
        let gates = json!({"developerConfiguration": {"featureGates": ["HostDisk"]}});
        let _changed = Changed::begin(&json!({"configuration": gates}))?;
        wait_in_force(components.keys())?;

        let nodes = objects(&["node"])?;
        let name = nodes.first().and_then(|node| node["metadata"]["name"].as_str()).context("no node")?;
        let (node, directory) = (Node::named(name), format!("/var/tmp/{}", namespace.name()));
        node.sh(&format!("install -d -o 107 -g 107 {directory}"))?;
        let mut manifest = guest::instance("vm");
        manifest["spec"]["nodeSelector"] = json!({"kubernetes.io/hostname": name});
        guest::push(
            &mut manifest["spec"]["domain"]["devices"]["disks"],
            json!({"name": "data", "serial": "DATA", "disk": {"bus": "virtio"}}),
        );
        let source =
            json!({"path": format!("{directory}/data.img"), "type": "DiskOrCreate", "capacity": "16Mi"});
        guest::push(&mut manifest["spec"]["volumes"], json!({"name": "data", "hostDisk": source}));
        namespace.apply(&manifest)?;
        namespace.wait("vmi", "vm", "to be refused by Pod Security", SOON, |vmi| {
            vmi["status"]["conditions"].to_string().contains("hostPath")
        })?;
        namespace.enforce("privileged")?;
        namespace.wait_phase("vm", "Running", RUNNING)?;
        let mut console = Console::open(namespace, "vm")?;
        console.login(BOOT)?;
        let disk = "/dev/$(basename $(dirname $(grep -lx DATA /sys/block/*/serial)))";
        console.ok(&format!("echo kept >{disk} && sync"), SOON)?;
        console.leave()?;
        let found = node.sh(&format!("stat -c %s {directory}/data.img; head -c 4 {directory}/data.img"))?;
        ensure!(found.contains("16777216") && found.contains("kept"), "{found}");
        namespace.delete("vmi", "vm")?;
        node.sh(&format!("rm -r {directory}")).map(drop)
    });
}

#[test]
fn machines_get_the_values_of_their_instance_type_where_the_installation_says_so() {
    in_namespace("written", |namespace| {
        let _alone = alone();
        wait_available()?;
        let components = lives(RUNNING_COMPONENTS)?;
        let spec = json!({"cpu": {"guest": 2}, "memory": {"guest": "128Mi"}});
        namespace.apply(&json!({
            "apiVersion": "instancetype.kubevirt.io/v1beta1", "kind": "VirtualMachineInstancetype",
            "metadata": {"name": "own"}, "spec": spec,
        }))?;
        let machine = |name: &str| {
            let mut machine = guest::without_system(guest::machine(name, "Always"));
            let spec = guest::spec_of(&mut machine);
            spec["domain"] = json!({"devices": {}});
            if let Some(spec) = spec.as_object_mut() {
                spec.remove("networks");
            }
            machine["spec"]["instancetype"] = json!({"name": "own", "kind": "VirtualMachineInstancetype"});
            machine
        };
        namespace.apply(&machine("older"))?;
        let running = namespace.wait_phase("older", "Running", RUNNING)?;
        let policy = |policy: &str| json!({"configuration": {"instancetype": {"referencePolicy": policy}}});
        let has_values = |vm: &Value| {
            let domain = &vm["spec"]["template"]["spec"]["domain"];
            let names = !vm["spec"]["instancetype"].is_null() || !vm["status"]["instancetypeRef"].is_null();
            !names && domain["cpu"]["sockets"] == 2 && domain["memory"]["guest"] == "128Mi"
        };

        let _changed = Changed::begin(&policy("expand"))?;
        wait_in_force(components.keys())?;
        namespace.kubectl(&["label", "vm", "older", "seen=once"])?;
        namespace.apply(&machine("newer"))?;
        let vmi = namespace.wait_phase("newer", "Running", RUNNING)?;
        ensure!(vmi["spec"]["domain"]["cpu"]["sockets"] == 2, "{}", vmi["spec"]["domain"]);
        let newer = namespace.need("vm", "newer")?;
        ensure!(has_values(&newer), "{newer}");
        let older = namespace.need("vm", "older")?;
        ensure!(older["spec"]["instancetype"]["name"] == "own", "{older}");

        // Copies do not matter any more, and the running guest does not notice.
        installation::patch(&policy("expandAll"))?;
        wait_in_force(components.keys())?;
        namespace.kubectl(&["label", "vm", "older", "seen=twice", "--overwrite"])?;
        let older = namespace.wait("vm", "older", "to have the values itself", SOON, has_values)?;
        let generation = older["metadata"]["generation"].to_string();
        let vmi = namespace.wait("vmi", "older", "to be of the machine's generation", SOON, |vmi| {
            vmi["metadata"]["annotations"]["kubevirt.io/vm-generation"] == generation
        })?;
        ensure!(vmi["metadata"]["uid"] == running["metadata"]["uid"], "it was restarted");
        let older = namespace.need("vm", "older")?;
        ensure!(!older["status"]["conditions"].to_string().contains("RestartRequired"), "{older}");
        Ok(())
    });
}
