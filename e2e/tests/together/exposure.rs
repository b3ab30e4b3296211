//! How guests of every binding are exposed: services of either or both IP families, for connections and for datagrams, records
//! of host names, forwarded ports, SSH and copied files.

use barevirt_e2e::exposed::{self, Exposed};
use barevirt_e2e::ssh::Key;
use barevirt_e2e::wait::RUNNING;
use barevirt_e2e::{guest, in_namespace, pods};
use serde_json::{Value, json};

const BINDINGS: [&str; 3] = ["masquerade", "bridge", "passtBinding"];

/// The guest of a binding.
fn instance(binding: &str, key: &Key) -> Value {
    let name = binding.to_lowercase();
    let mut manifest = guest::with_user_data(guest::instance(&name), &exposed::user_data(key));
    let spec = guest::spec_of(&mut manifest);
    exposed::with_record(spec, &name);
    spec["domain"]["devices"]["interfaces"] =
        json!([{ "name": "default", binding: {}, "ports": exposed::ports() }]);
    manifest
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
            let exposed = Exposed { namespace, guest: &name, key: &key, client: &client };
            exposed.is_reached_in_every_way()?;
        }
        Ok(())
    });
}
