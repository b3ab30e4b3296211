//! Figures of a guest from the virt-handler of its node, read through the API server if the user has the
//! right.

use http::{Method, StatusCode};
use serde_json::{Value, json};

use super::answer::Failure;
use super::ask::Cluster;
use super::machine;
use super::route::{Target, is_name};
use crate::session::INSTANCES;

/// Namespace of the installation if it cannot be looked up.
const USUAL: &str = "kubevirt";

/// The figures that the page draws, and the label that distinguishes several with the same name.
const DRAWN: [(&str, &str); 9] = [
    ("kubevirt_vmi_cpu_usage_seconds_total", ""),
    ("kubevirt_vmi_memory_resident_bytes", ""),
    ("kubevirt_vmi_memory_domain_bytes", ""),
    ("kubevirt_vmi_memory_available_bytes", ""),
    ("kubevirt_vmi_memory_usable_bytes", ""),
    ("kubevirt_vmi_storage_read_traffic_bytes_total", "drive"),
    ("kubevirt_vmi_storage_write_traffic_bytes_total", "drive"),
    ("kubevirt_vmi_network_receive_bytes_total", "interface"),
    ("kubevirt_vmi_network_transmit_bytes_total", "interface"),
];

/// The figures of a running guest.
pub(super) async fn of(cluster: &Cluster, target: &Target) -> Result<Value, Failure> {
    let instance = cluster.get(&machine::path(target, INSTANCES)).await?;
    let node = instance["status"]["nodeName"].as_str().unwrap_or_default();
    if !is_name(node) {
        return Err(not_there("the machine is on no node yet"));
    }
    let namespace = installation(cluster).await;
    let selected = format!(
        "/api/v1/namespaces/{namespace}/pods?labelSelector=kubevirt.io%3Dvirt-handler&fieldSelector=spec.nodeName%3D{node}&limit=1"
    );
    let pods = cluster.list(&selected).await?;
    let pod = pods.first().and_then(|pod| pod["metadata"]["name"].as_str());
    let Some(pod) = pod.filter(|name| is_name(name)) else {
        return Err(not_there(&format!("there is no virt-handler on {node} in {namespace}")));
    };
    let path = format!("/api/v1/namespaces/{namespace}/pods/https:{pod}:8443/proxy/metrics");
    let text = cluster.text(Method::GET, &path, None).await?;
    Ok(json!({ "figures": figures(&text, target) }))
}

fn not_there(why: &str) -> Failure {
    Failure { status: StatusCode::NOT_FOUND, message: why.to_owned() }
}

async fn installation(cluster: &Cluster) -> String {
    let found = cluster.list("/apis/kubevirt.io/v1/kubevirts?limit=1").await.unwrap_or_default();
    let namespace = found.first().and_then(|object| object["metadata"]["namespace"].as_str());
    namespace.filter(|name| is_name(name)).unwrap_or(USUAL).to_owned()
}

/// The drawn figures of one guest, from a handler's text. Pure.
fn figures(text: &str, target: &Target) -> Vec<Value> {
    text.lines()
        .filter_map(|line| {
            let (name, rest) = line.split_once('{')?;
            let (_, by) = DRAWN.iter().find(|(drawn, _)| *drawn == name)?;
            let (labels, value) = labels(rest)?;
            let label =
                |key: &str| labels.iter().find(|(name, _)| name == key).map(|(_, value)| value.as_str());
            let ours = label("namespace") == Some(&target.namespace) && label("name") == Some(&target.name);
            let value: f64 = value.split_whitespace().next()?.parse().ok()?;
            ours.then(|| json!({ "name": name, "of": label(by).unwrap_or_default(), "value": value }))
        })
        .collect()
}

/// The labels of a line, and the rest of the line.
fn labels(mut rest: &str) -> Option<(Vec<(String, String)>, &str)> {
    let mut labels = Vec::new();
    loop {
        rest = rest.trim_start_matches(',');
        if let Some(value) = rest.strip_prefix('}') {
            return Some((labels, value));
        }
        let (key, quoted) = rest.split_once("=\"")?;
        let (mut value, mut letters) = (String::new(), quoted.char_indices());
        let end = loop {
            match letters.next()? {
                (at, '"') => break at,
                (_, '\\') => match letters.next()?.1 {
                    'n' => value.push('\n'),
                    letter => value.push(letter),
                },
                (_, letter) => value.push(letter),
            }
        };
        labels.push((key.to_owned(), value));
        rest = &quoted[end + 1..];
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_guest_s_figures_are_found() {
        let target = Target { namespace: "shop".to_owned(), name: "web".to_owned() };
        let text = r#"# HELP kubevirt_vmi_cpu_usage_seconds_total x
kubevirt_vmi_cpu_usage_seconds_total{node="n",namespace="shop",name="web"} 1.5
kubevirt_vmi_cpu_usage_seconds_total{node="n",namespace="shop",name="other"} 7
kubevirt_vmi_storage_read_traffic_bytes_total{note="a \"b\", c}",namespace="shop",name="web",drive="root"} 4096 1700000000
kubevirt_vmi_unknown{namespace="shop",name="web"} 3
kubevirt_vmi_memory_resident_bytes{namespace="shop",name="web"
kubevirt_vmi_memory_resident_bytes{namespace="shop",name="web"} NaN-ish
"#;
        assert_eq!(
            figures(text, &target),
            [
                json!({"name": "kubevirt_vmi_cpu_usage_seconds_total", "of": "", "value": 1.5}),
                json!({"name": "kubevirt_vmi_storage_read_traffic_bytes_total", "of": "root", "value": 4096.0}),
            ]
        );
    }
}
