//! A guest that is exposed: by services of either or both IP families, for connections and for datagrams, by records of host
//! names, forwarded ports, SSH and copied files.

use crate::command::cluster_script;
use crate::forward::Forward;
use crate::namespace::Namespace;
use crate::pods::{self, ECHO};
use crate::ssh::Key;
use crate::wait::{self, BOOT, SOON};
use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};

/// Where services for datagrams take them.
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

/// User data with the key, for SSH.
pub fn user_data(key: &Key) -> String {
    format!("#cloud-config\nssh_authorized_keys:\n- {}\n", key.public)
}

/// Gives a guest the host name of its own name, in the domain of the headless service that [`Exposed`] makes for it.
pub fn with_record(spec: &mut Value, name: &str) {
    (spec["hostname"], spec["subdomain"]) = (json!(name), json!(format!("sites-{name}")));
}

/// The ports that have to reach the guest.
pub fn ports() -> Value {
    json!([
        { "name": "web", "port": 80 }, { "name": "ssh", "port": 22 },
        { "name": "echo", "port": ECHO, "protocol": "UDP" },
    ])
}

/// A running guest with [this user data](user_data) and [this host name](with_record).
pub struct Exposed<'a> {
    /// Where it is.
    pub namespace: &'a Namespace,
    /// Its name.
    pub guest: &'a str,
    /// The key that it knows.
    pub key: &'a Key,
    /// The pod that asks it.
    pub client: &'a pods::Client<'a>,
}

impl Exposed<'_> {
    /// Checks each way to it and from it.
    ///
    /// # Errors
    /// When one does not lead there.
    pub fn is_reached_in_every_way(&self) -> Result<()> {
        self.has_services_of_the_families_asked_for()?;
        self.has_a_record_with_its_pods_addresses()?;
        self.is_reached_through_the_api_server()?;
        self.answers_datagrams_at_its_pods_addresses_and_a_services()?;
        self.sends_packets_as_large_as_the_mtu()?;
        self.copies_a_file_there_and_back()
    }

    /// Exposes a guest's port 80 at port 8000, or others as `more` says, and returns the service's addresses.
    fn expose(&self, service: &str, families: &str, more: &[&str]) -> Result<Vec<String>> {
        let guest = self.guest;
        let (name, family) = (format!("--name={service}-{guest}"), format!("--ip-family={families}"));
        let mut arguments = vec!["expose", "vmi", guest, &name, &family];
        arguments.extend(more);
        if !more.iter().any(|argument| argument.starts_with("--port=")) {
            arguments.extend(["--port=8000", "--target-port=80"]);
        }
        self.namespace.virtctl(&arguments)?;
        let made = self.namespace.need("service", &format!("{service}-{guest}"))?;
        let spec = &made["spec"];
        let wanted: Vec<&str> = families.split(',').collect();
        ensure!(spec["ipFamilies"] == json!(wanted), "asked for {families}: {spec}");
        let addresses = spec["clusterIPs"].as_array().cloned().unwrap_or_default();
        Ok(addresses.iter().filter_map(|address| address.as_str().map(str::to_owned)).collect())
    }

    fn answers(&self, url: &str) -> Result<()> {
        self.client.wait_answer(url, Some(self.guest), BOOT * 2)
    }

    fn has_services_of_the_families_asked_for(&self) -> Result<()> {
        let six = self.expose("six", "IPv6", &[])?;
        ensure!(six.len() == 1 && six[0].contains(':'), "{six:?}");
        let both = ["--ip-family-policy=RequireDualStack"];
        let both = self.expose("both", "IPv6,IPv4", &both)?;
        ensure!(both.len() == 2 && both[0].contains(':') && both[1].contains('.'), "{both:?}");
        for address in six.iter().chain(&both) {
            self.answers(&format!("http://{}:8000/hostname", pods::host(address)))?;
        }
        Ok(())
    }

    fn has_a_record_with_its_pods_addresses(&self) -> Result<()> {
        let guest = self.guest;
        let headless = self.expose("sites", "IPv4,IPv6", &["--cluster-ip=None"])?;
        ensure!(headless.iter().all(|address| address == "None"), "{headless:?}");
        let addresses = pods::both_addresses(&self.namespace.launcher(guest)?)?;
        let record = format!("{guest}.sites-{guest}.{}.svc.cluster.local", self.namespace.name());
        wait::until_true(&format!("{record} to name {addresses:?}"), SOON, || {
            let said = self.client.sh(&format!("nslookup {record}"))?.stdout;
            let named: Vec<_> = said.split_whitespace().collect();
            Ok(addresses.iter().all(|address| named.contains(&address.as_str())))
        })?;
        self.answers(&format!("http://{record}/hostname"))
    }

    fn is_reached_through_the_api_server(&self) -> Result<()> {
        let guest = self.guest;
        let mut forward = cluster_script("virtctl.sh");
        forward.args(["port-forward", "-n", self.namespace.name(), &format!("vmi/{guest}"), "0:80"]);
        let answer = Forward::start(&mut forward)?.get("/hostname")?;
        ensure!(answer.contains(" 200 ") && answer.trim_end().ends_with(guest), "{answer}");
        let said = self.in_guest("hostname")?;
        ensure!(said.trim() == guest, "{said}");
        Ok(())
    }

    /// Runs a command line in a guest by SSH.
    fn in_guest(&self, line: &str) -> Result<String> {
        let guest = self.guest;
        let (target, options) = (format!("root@vmi/{guest}"), self.key.options());
        let mut arguments = vec!["ssh", &target, "-c", line];
        arguments.extend(options.iter().map(String::as_str));
        self.namespace.virtctl(&arguments).with_context(|| format!("ssh to {guest}"))
    }

    fn answers_datagrams_at_its_pods_addresses_and_a_services(&self) -> Result<()> {
        let guest = self.guest;
        self.in_guest(&format!("setsid udp {ECHO} </dev/null >/dev/null 2>&1 &"))?;
        let (port, target) = (format!("--port={ECHO_SERVICE}"), format!("--target-port={ECHO}"));
        let udp = ["--protocol=UDP", &port, &target, "--ip-family-policy=RequireDualStack"];
        let service = self.expose("echo", "IPv4,IPv6", &udp)?;
        ensure!(service.len() == 2, "{service:?}");
        let own = pods::both_addresses(&self.namespace.launcher(guest)?)?;
        let all = own.iter().map(|address| (address, ECHO));
        for (address, port) in all.chain(service.iter().map(|address| (address, ECHO_SERVICE))) {
            let text = "7".repeat(pods::largest_payload(address));
            self.client.wait_datagram(address, port, &text)?;
        }
        Ok(())
    }

    fn sends_packets_as_large_as_the_mtu(&self) -> Result<()> {
        let to = self.client.addresses()?;
        // One answer is enough: an emulated guest on a busy machine loses some.
        let ping = |to: &String| format!("ping -c 3 -W 5 -s {} {to} >/dev/null", pods::largest_payload(to));
        self.in_guest(&to.each_ref().map(ping).join(" && ")).map(drop)
    }

    /// `virtctl scp` in both directions.
    fn copies_a_file_there_and_back(&self) -> Result<()> {
        let guest = self.guest;
        let files = tempfile::tempdir()?;
        let path = |name: &str| files.path().join(name).display().to_string();
        let sent: Vec<u8> = (0..=u8::MAX).cycle().take(100_000).collect();
        std::fs::write(path("sent"), &sent)?;
        self.in_guest(&format!("echo '{SCP}' >/bin/scp && chmod 755 /bin/scp"))?;
        let options = self.key.options();
        let there = format!("root@vmi/{guest}:/tmp/there");
        for (from, to) in [(&path("sent"), &there), (&there, &path("back"))] {
            let mut arguments = vec!["scp", from, to, "-t", "-O"];
            arguments.extend(options.iter().map(String::as_str));
            self.namespace.virtctl(&arguments).with_context(|| format!("scp from {from} to {to}"))?;
        }
        ensure!(std::fs::read(path("back"))? == sent, "{guest} sends another file back");
        Ok(())
    }
}
