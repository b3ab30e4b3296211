//! Networks that interfaces are connected to.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// A network for the interface of the same name.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Network {
    /// Name of the network and of its interface.
    pub name: String,
    /// The cluster's pod network.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pod: Option<PodNetwork>,
}

/// The cluster's pod network; it has no settings here.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct PodNetwork {}
