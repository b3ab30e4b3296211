//! What guests and pods ask each other, and guests services: by connections and datagrams, and each other by pings as large as the
//! MTU, in both IP families.

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

/// A command that succeeds if a web server answers with that text within some seconds.
pub fn fetches(seconds: u32, url: &str, text: &str) -> String {
    format!("[ \"$(timeout {seconds} wget -qO- {url} 2>/dev/null)\" = '{text}' ]")
}

/// A guest or a pod that answers.
#[derive(Clone, Debug)]
pub struct Answering {
    /// Its name.
    pub name: String,
    /// Where the others reach it.
    pub addresses: [String; 2],
    /// Port and path of a page of its web server.
    page: &'static str,
    /// What that page says, and nobody else's.
    says: String,
    /// MTU of the network, in bytes.
    mtu: usize,
}

impl Answering {
    /// Has the guest at that console answer, which is logged in.
    ///
    /// # Errors
    /// When the console does.
    pub fn begin(console: &mut Console, name: &str, addresses: [String; 2]) -> Result<Self> {
        let says = console.ok("cat /www/boot-id", SOON)?.trim().to_owned();
        answer_datagrams(console)?;
        Ok(Self { name: name.to_owned(), addresses, page: "80/boot-id", says, mtu: pods::MTU })
    }

    /// A [pod that says a line](pods::serving), which is its name.
    pub fn pod(name: &str, addresses: [String; 2]) -> Self {
        Self { name: name.to_owned(), addresses, page: "8080/", says: name.to_owned(), mtu: pods::MTU }
    }

    /// The same on a network with that MTU, in bytes.
    pub fn with_mtu(self, mtu: usize) -> Self {
        Self { mtu, ..self }
    }

    /// What others ask this one at that address, as commands that fail without an answer.
    fn questions(&self, address: &str) -> [String; 3] {
        let length = pods::payload_within(address, self.mtu);
        let (url, says) = (format!("http://{}:{}", pods::host(address), self.page), &self.says);
        [
            fetches(5, &url, says),
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
    ask(name, all, |question| Ok(console.run(question, SOON)?.1 == 0))
}

/// Has the pod of that name ask all others.
///
/// # Errors
/// When one does not answer; the error has each question without an answer.
pub fn ask_all_from(pod: &pods::Client<'_>, name: &str, all: &[Answering]) -> Result<()> {
    ask(name, all, |question| Ok(pod.sh(question)?.code == 0))
}

/// Has all these guests ask each other, and leaves their consoles.
///
/// # Errors
/// When one does not answer another one.
pub fn ask_each_other(guests: Vec<(Answering, Console)>) -> Result<()> {
    let all: Vec<Answering> = guests.iter().map(|(guest, _)| guest.clone()).collect();
    for (guest, mut console) in guests {
        ask_all(&mut console, &guest.name, &all)?;
        console.leave()?;
    }
    Ok(())
}

fn ask(name: &str, all: &[Answering], mut is_answered: impl FnMut(&str) -> Result<bool>) -> Result<()> {
    let mut silent = Vec::new();
    for other in all.iter().filter(|other| other.name != name) {
        for line in other.addresses.iter().flat_map(|address| other.questions(address)) {
            if !is_answered(&format!("(for n in 1 2 3; do {line} && exit 0; done; exit 1)"))? {
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
        for question in [fetches(5, &url, line), format!("udp {address} {ECHO} question")] {
            wait::until_true(&format!("an answer of service {name} to {question}"), SOON, || {
                Ok(console.run(&question, SOON)?.1 == 0)
            })?;
        }
    }
    Ok(())
}
