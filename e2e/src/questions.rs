//! What guests ask each other and services: by connections and datagrams, and each other by pings as large as the MTU, in both IP
//! families.

use crate::console::Console;
use crate::guest;
use crate::namespace::Namespace;
use crate::pods::{self, ECHO};
use crate::wait::{self, SOON};
use anyhow::{Result, ensure};
use serde_json::{Value, json};

/// A guest on the pods' network on that node, whose ports for the questions are reached. The bindings are `masquerade`, `bridge`
/// and `passt`.
pub fn instance(name: &str, binding: &str, node: &str) -> Value {
    let mut manifest = guest::instance(name);
    let spec = guest::spec_of(&mut manifest);
    spec["nodeSelector"] = json!({ "kubernetes.io/hostname": node });
    spec["domain"]["devices"]["interfaces"] = match binding {
        // passt opens a socket for each port that it forwards.
        "passt" => {
            let ports = json!([{ "port": 80 }, { "port": ECHO, "protocol": "UDP" }]);
            json!([{ "name": "default", "passtBinding": {}, "ports": ports }])
        }
        _ => json!([{ "name": "default", binding: {} }]),
    };
    manifest
}

/// Has the guest at that console, which is logged in, answer datagrams at [`ECHO`].
///
/// # Errors
/// When the console does not take the command.
pub fn answer_datagrams(console: &mut Console) -> Result<()> {
    console.ok(&format!("{{ udp {ECHO} & }}"), SOON).map(drop)
}

/// A guest that answers.
#[derive(Clone, Debug)]
pub struct Answering {
    /// Its name.
    pub name: String,
    /// Where the others reach it.
    pub addresses: [String; 2],
    /// What its web server says, and no other guest's.
    boot: String,
    /// MTU of the network, in bytes.
    mtu: usize,
}

impl Answering {
    /// Has the guest at that console answer, which is logged in.
    ///
    /// # Errors
    /// When the console does.
    pub fn begin(console: &mut Console, name: &str, addresses: [String; 2]) -> Result<Self> {
        let boot = console.ok("cat /www/boot-id", SOON)?.trim().to_owned();
        answer_datagrams(console)?;
        Ok(Self { name: name.to_owned(), addresses, boot, mtu: pods::MTU })
    }

    /// The same on a network with that MTU, in bytes.
    pub fn with_mtu(self, mtu: usize) -> Self {
        Self { mtu, ..self }
    }

    /// What another guest asks this one at that address, as commands that fail without an answer.
    fn questions(&self, address: &str) -> [String; 3] {
        let length = pods::payload_within(address, self.mtu);
        let (url, boot) = (format!("http://{}/boot-id", pods::host(address)), &self.boot);
        [
            format!("[ \"$(timeout 5 wget -qO- {url})\" = {boot} ]"),
            format!("udp {address} {ECHO} $(printf %0{length}d 7)"),
            format!("ping -c 1 -W 5 -s {length} {address} >/dev/null"),
        ]
    }
}

/// Has the guest of that name ask all others, from its console.
///
/// # Errors
/// When one does not answer; the error has each question without an answer.
pub fn ask_all(console: &mut Console, name: &str, all: &[Answering]) -> Result<()> {
    let mut silent = Vec::new();
    for other in all.iter().filter(|other| other.name != name) {
        for line in other.addresses.iter().flat_map(|address| other.questions(address)) {
            let ask = format!("(for n in 1 2 3; do {line} && exit 0; done; exit 1)");
            if console.run(&ask, SOON)?.1 != 0 {
                silent.push(format!("{name} to {}: {line}", other.name));
            }
        }
    }
    ensure!(silent.is_empty(), "no answer:\n{}", silent.join("\n"));
    Ok(())
}

/// Has the guest at that console, which is logged in, ask the service of a [server](pods::server) that says this line, at its
/// addresses of both families.
///
/// # Errors
/// When one does not answer in time, or the service does not have one of each family.
pub fn ask_service(console: &mut Console, namespace: &Namespace, name: &str, line: &str) -> Result<()> {
    let service = namespace.need("service", name)?;
    let given = service["spec"]["clusterIPs"].as_array();
    let addresses: Vec<&str> = given.into_iter().flatten().filter_map(Value::as_str).collect();
    let six = addresses.iter().filter(|address| address.contains(':')).count();
    ensure!((addresses.len(), six) == (2, 1), "service {name} has the addresses {addresses:?}");
    for address in addresses {
        let url = format!("http://{}/", pods::host(address));
        for question in [
            format!("[ \"$(timeout 5 wget -qO- {url})\" = '{line}' ]"),
            format!("udp {address} {ECHO} question"),
        ] {
            wait::until_true(&format!("an answer of service {name} to {question}"), SOON, || {
                Ok(console.run(&question, SOON)?.1 == 0)
            })?;
        }
    }
    Ok(())
}
