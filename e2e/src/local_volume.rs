//! Volumes of the cluster's default storage class: each is a folder of one node, which has the claim's disk in it.

use crate::command::object;
use crate::namespace::Namespace;
use crate::node::Node;
use anyhow::{Context, Result};
use serde_json::Value;

/// The name of the node that has it.
///
/// # Errors
/// When it is on no node.
pub fn node(volume: &Value) -> Result<&str> {
    let terms = &volume["spec"]["nodeAffinity"]["required"]["nodeSelectorTerms"];
    terms[0]["matchExpressions"][0]["values"][0].as_str().context("a volume on no node")
}

/// Its folder there.
///
/// # Errors
/// When it has none.
pub fn folder(volume: &Value) -> Result<&str> {
    let path = ["hostPath", "local"].iter().find_map(|kind| volume["spec"][kind]["path"].as_str());
    path.context("a volume without a path")
}

/// That of a claim.
///
/// # Errors
/// When there is no such claim, or it has none.
pub fn of_claim(namespace: &Namespace, claim: &str) -> Result<Value> {
    let claim = namespace.need("pvc", claim)?;
    let volume = claim["spec"]["volumeName"].as_str().context("the claim has no volume")?;
    object(&["pv", volume])?.context("the volume is gone")
}

/// The checksum (sha256) of the first bytes of a claim's disk, which its node reads.
///
/// # Errors
/// When the claim has no volume of this kind, or no disk.
pub fn digest(namespace: &Namespace, claim: &str, length: u64) -> Result<String> {
    let volume = of_claim(namespace, claim)?;
    let script = format!("head -c {length} {}/disk.img | sha256sum", folder(&volume)?);
    let said = Node::named(node(&volume)?).sh(&script)?;
    Ok(said.split(' ').next().unwrap_or_default().to_owned())
}
