//! objectgraph: what a machine or an instance depends on.

use std::collections::BTreeMap;

use anyhow::Context;
use barevirt_api::v1::ObjectGraphOptions;
use clap::Args;
use http::Method;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;

use crate::session::{self, INSTANCES, Session, label};
use crate::yaml::Format;

/// Arguments of `virtctl objectgraph`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  \
    # What the machine 'myvm' depends on:\n  virtctl objectgraph myvm\n\n  \
    # The same of an instance:\n  virtctl objectgraph --vmi myvmi\n\n  \
    # Without what the machine can do without:\n  virtctl objectgraph myvm --exclude-optional\n\n  \
    # Only what it keeps its data on, as YAML:\n  \
    virtctl objectgraph myvm --selector kubevirt.io/dependency-type=storage --output yaml")]
pub(crate) struct ObjectGraph {
    /// Name of the virtual machine, or of the instance with --vmi.
    name: String,
    /// Return the graph of the instance of that name instead of the machine's.
    #[arg(long)]
    vmi: bool,
    /// Leave out optional dependencies.
    #[arg(long)]
    exclude_optional: bool,
    /// Labels that objects have to have, as key=value; several with commas. The label kubevirt.io/dependency-type is
    /// storage, network, compute or config. The children of an omitted object are omitted too.
    #[arg(long, value_name = "KEY=VALUE", value_delimiter = ',', value_parser = label)]
    selector: Vec<(String, String)>,
    /// Format of the output.
    #[arg(short, long, default_value = "json")]
    output: Format,
}

impl ObjectGraph {
    pub(crate) async fn run(&self, session: &Session) -> anyhow::Result<()> {
        let (resource, kind) = match self.vmi {
            true => (INSTANCES, "VirtualMachineInstance"),
            false => ("virtualmachines", "VirtualMachine"),
        };
        let path = session::path(&session.namespace, resource, &self.name, "objectgraph");
        let graph = session.call_json(Method::GET, path, &self.options()).await;
        let graph = graph.with_context(|| format!("error listing object graph of {kind} {}", self.name))?;
        print!("{}", self.output.text(&graph)?);
        Ok(())
    }

    fn options(&self) -> ObjectGraphOptions {
        // The last value of a repeated label counts.
        let labels: BTreeMap<String, String> = self.selector.iter().cloned().collect();
        let selector = LabelSelector { match_labels: Some(labels), match_expressions: None };
        ObjectGraphOptions {
            include_optional_nodes: Some(!self.exclude_optional),
            label_selector: (!self.selector.is_empty()).then_some(selector),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;
    use serde_json::json;

    #[derive(Parser)]
    struct Wrapped {
        #[command(flatten)]
        inner: ObjectGraph,
    }

    #[test]
    fn flags_become_options() {
        for (arguments, options) in [
            (&["web"][..], json!({"includeOptionalNodes": true})),
            (&["web", "--vmi", "--exclude-optional"], json!({"includeOptionalNodes": false})),
            (
                &["web", "--selector=a=1,b=2", "--selector", "a=3=4"],
                json!({"includeOptionalNodes": true, "labelSelector": {"matchLabels": {"a": "3=4", "b": "2"}}}),
            ),
        ] {
            let read = Wrapped::parse_from([&["objectgraph"], arguments].concat()).inner;
            assert_eq!(serde_json::to_value(read.options()).unwrap(), options, "{arguments:?}");
        }
        for wrong in [&["web", "--selector=a"][..], &["web", "-o", "table"], &[]] {
            assert!(Wrapped::try_parse_from([&["objectgraph"], wrong].concat()).is_err(), "{wrong:?}");
        }
    }
}
