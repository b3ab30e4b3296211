//! The container of passt, which joins the guest to the pod network. Like the launcher, it has no privileges.
//!
//! passt has a socket for each port at which it listens. Sockets count as memory of the container: measured,
//! 3.5 kB each. If the interface lists no ports, that is about 260 MB (KubeVirt adds 250 MiB); if it lists some,
//! nearly nothing.

use super::disks::{Disks, helper_resources};
use super::parts::{SOCKETS_SIZE, empty_dir, mount, unprivileged};
use crate::config::Config;
use barevirt_api::mesh;
use barevirt_api::passt::{self, CONTAINER, SOCKETS, are_all, forwarded};
use barevirt_api::settings::HelperResources;
use barevirt_api::v1::Interface;
use barevirt_api::valid::ValidVmi;
use k8s_openapi::api::core::v1::{Container, ResourceRequirements};

/// The volume with the socket.
const VOLUME: &str = "passt";
/// Memory requests with a socket for each port, and with few sockets.
const ALL_PORTS_MEMORY: &str = "280Mi";
const SOME_PORTS_MEMORY: &str = "32Mi";
/// Limits of CPU and memory. The guest's connections need memory beyond the request; passt has one thread.
const LIMITS: [&str; 2] = ["1", "1Gi"];
/// The limits in a pod of the class `Guaranteed`, which requests as much as its limits.
const GUARANTEED_LIMITS: [&str; 2] = ["1", "512Mi"];

/// Adds the container and the volume of the socket, if the guest has such a card.
pub(super) fn add(vmi: &ValidVmi, guaranteed: bool, config: &Config, disks: &mut Disks) {
    let Some(interface) = passt::of(vmi.spec()) else { return };
    disks.containers.push(container(vmi, interface, guaranteed, config));
    disks.volumes.push(empty_dir(VOLUME, SOCKETS_SIZE));
    disks.compute_mounts.push(mount(VOLUME, SOCKETS));
}

fn container(vmi: &ValidVmi, interface: &Interface, guaranteed: bool, config: &Config) -> Container {
    let [tcp, udp] = forwarded(interface, mesh::has_sidecar(vmi.vmi().metadata.annotations.as_ref()));
    let resources = resources(are_all(&tcp), guaranteed);
    let hostname = vmi.hostname();
    let mut command: Vec<String> =
        ["/usr/bin/virt-launcher", "passt", "--hostname", &hostname, "--tcp", &tcp, "--udp", &udp]
            .map(str::to_owned)
            .into();
    if let Some(subdomain) = vmi.spec().subdomain.clone().filter(|subdomain| !subdomain.is_empty()) {
        command.extend(["--subdomain".to_owned(), subdomain]);
    }
    Container {
        name: CONTAINER.to_owned(),
        image: config.settings.pods.passt_image.clone(),
        image_pull_policy: config.pull_policy().map(str::to_owned),
        command: Some(command),
        resources: Some(resources),
        security_context: Some(unprivileged()),
        // The instance's status says why the container ended.
        termination_message_policy: Some("FallbackToLogsOnError".to_owned()),
        volume_mounts: Some(vec![mount(VOLUME, SOCKETS)]),
        ..Container::default()
    }
}

fn resources(all_ports: bool, guaranteed: bool) -> ResourceRequirements {
    let memory = if all_ports { ALL_PORTS_MEMORY } else { SOME_PORTS_MEMORY };
    let limits = if guaranteed { GUARANTEED_LIMITS } else { LIMITS };
    helper_resources(&HelperResources::default(), ["10m", memory], limits)
}

#[cfg(test)]
mod tests {
    use super::*;
    use barevirt_api::settings::Settings;
    use serde_json::{Value, json};

    fn pod(interface: &Value, resources: &Value) -> Value {
        let vmi = json!({
            "metadata": {"name": "web", "namespace": "ns", "uid": "u"},
            "spec": {
                "subdomain": "sites",
                "domain": {
                    "memory": {"guest": "128Mi"}, "resources": resources,
                    "devices": {"interfaces": [interface]},
                },
                "networks": [{"name": "default", "pod": {}}],
            },
        });
        let vmi = ValidVmi::new(serde_json::from_value(vmi).unwrap());
        let vmi = vmi.unwrap_or_else(|causes| panic!("{causes:?}"));
        let mut settings = Settings::default();
        settings.pods.passt_image = Some("registry/virt-passt:1".to_owned());
        let config = Config { launcher_image: "launcher".to_owned(), image_pull_policy: None, settings };
        serde_json::to_value(crate::pod::build(&vmi, &config).spec.unwrap()).unwrap()
    }

    fn passt(more: &Value) -> Value {
        let mut interface = json!({"name": "default", "passtBinding": {}});
        interface["ports"] = more.clone();
        interface
    }

    #[test]
    fn passt_has_a_container_of_its_own_image_and_meets_the_launcher_alone() {
        let spec = pod(&passt(&json!([{"port": 80}, {"port": 53, "protocol": "UDP"}])), &json!({}));
        let containers = spec["containers"].as_array().unwrap();
        let [compute, passt] = &containers[..] else { panic!("{containers:?}") };
        assert_eq!((&passt["name"], &passt["image"]), (&json!("passt"), &json!("registry/virt-passt:1")));
        let command = passt["command"].as_array().unwrap().iter().map(|word| word.as_str().unwrap());
        assert_eq!(
            command.collect::<Vec<_>>().join(" "),
            "/usr/bin/virt-launcher passt --hostname web --tcp 80 --udp 53 --subdomain sites"
        );
        let socket = json!({"name": "passt", "mountPath": "/var/run/kubevirt/passt"});
        assert_eq!(passt["volumeMounts"], json!([socket]));
        assert!(compute["volumeMounts"].as_array().unwrap().contains(&socket));
        assert_eq!(passt["securityContext"], compute["securityContext"]);
        assert_eq!(passt["securityContext"]["capabilities"], json!({"drop": ["ALL"]}));
        assert_eq!(compute["ports"].as_array().unwrap().len(), 2);
    }

    #[test]
    fn a_socket_for_each_port_takes_memory() {
        let of = |spec: Value| spec["containers"][1]["resources"].clone();
        let all = of(pod(&passt(&json!([])), &json!({})));
        let limits = json!({"cpu": "1", "memory": "1Gi"});
        assert_eq!(all, json!({"requests": {"cpu": "10m", "memory": "280Mi"}, "limits": limits}));
        let some = of(pod(&passt(&json!([{"port": 80}])), &json!({})));
        assert_eq!(some["requests"]["memory"], "32Mi");
        let same = json!({"cpu": "1", "memory": "512Mi"});
        let guaranteed = of(pod(&passt(&json!([])), &json!({"limits": same, "requests": same})));
        assert_eq!(guaranteed, json!({"requests": same, "limits": same}));
    }

    #[test]
    fn passt_leaves_the_ports_of_a_meshs_sidecar_alone() {
        let vmi = json!({
            "metadata": {"name": "web", "namespace": "ns", "uid": "u",
                "annotations": {"sidecar.istio.io/inject": "true"}},
            "spec": {
                "domain": {"memory": {"guest": "128Mi"},
                    "devices": {"interfaces": [{"name": "default", "passtBinding": {}}]}},
                "networks": [{"name": "default", "pod": {}}],
            },
        });
        let vmi = ValidVmi::new(serde_json::from_value(vmi).unwrap());
        let vmi = vmi.unwrap_or_else(|causes| panic!("{causes:?}"));
        let settings = Settings::default();
        let config = Config { launcher_image: "launcher".to_owned(), image_pull_policy: None, settings };
        let spec = serde_json::to_value(crate::pod::build(&vmi, &config).spec.unwrap()).unwrap();
        let passt = &spec["containers"][1];
        let command = passt["command"].as_array().unwrap();
        let tcp = command.iter().position(|word| word == "--tcp").unwrap() + 1;
        assert!(command[tcp].as_str().unwrap().starts_with("~15000,~15001,"), "{command:?}");
        assert_eq!(passt["resources"]["requests"]["memory"], ALL_PORTS_MEMORY);
    }

    #[test]
    fn without_such_a_card_there_is_no_passt() {
        let spec = pod(&json!({"name": "default", "masquerade": {}}), &json!({}));
        assert!(!spec.to_string().contains("passt"), "{spec}");
    }
}
