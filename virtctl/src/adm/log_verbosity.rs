//! log-verbosity: how much the components log, as the KubeVirt object says.

use std::collections::BTreeMap;

use anyhow::{Context, bail, ensure};
use barevirt_api::v1::KubeVirt;
use clap::{ArgGroup, Args};
use kube::api::{ListParams, Patch, PatchParams};
use kube::{Api, ResourceExt};
use serde_json::{Value, json};

use crate::session::{self, Connection};

/// The level of a component that the KubeVirt object does not mention.
const USUAL: u64 = 2;
const HIGHEST: u64 = 9;
/// A flag without a level, as KubeVirt's virtctl reads it: the level is shown.
const SHOW: u64 = 10;

/// Arguments of `virtctl adm log-verbosity`.
#[derive(Debug, Args)]
#[command(
    arg_required_else_help = true,
    group = ArgGroup::new("components").multiple(true).required(true)
        .args(["virt_api", "virt_controller", "virt_handler", "virt_launcher", "virt_operator", "all", "reset"]),
    after_help = "A flag with a level sets it, a flag without one shows it; the two do not go together. A level is given as \
    --flag=LEVEL.\n\n\
    Examples:\n  \
    # Show the levels of all components:\n  virtctl adm log-verbosity --all\n\n  \
    # Set all to 3, and virt-handler to 7:\n  virtctl adm log-verbosity --all=3 --virt-handler=7\n\n  \
    # Show two of them:\n  virtctl adm log-verbosity --virt-handler --virt-launcher\n\n  \
    # All as usual, but virt-handler:\n  virtctl adm log-verbosity --reset --virt-handler=7\n\n  \
    # All as usual:\n  virtctl adm log-verbosity --reset"
)]
pub(crate) struct LogVerbosity {
    /// Level of virt-api.
    #[arg(long, value_name = "LEVEL", num_args = 0..=1, require_equals = true, default_missing_value = "10")]
    virt_api: Option<u64>,
    /// Level of virt-controller.
    #[arg(long, value_name = "LEVEL", num_args = 0..=1, require_equals = true, default_missing_value = "10")]
    virt_controller: Option<u64>,
    /// Level of virt-handler.
    #[arg(long, value_name = "LEVEL", num_args = 0..=1, require_equals = true, default_missing_value = "10")]
    virt_handler: Option<u64>,
    /// Level of virt-launcher; it applies to launchers that start later.
    #[arg(long, value_name = "LEVEL", num_args = 0..=1, require_equals = true, default_missing_value = "10")]
    virt_launcher: Option<u64>,
    /// Level of virt-operator.
    #[arg(long, value_name = "LEVEL", num_args = 0..=1, require_equals = true, default_missing_value = "10")]
    virt_operator: Option<u64>,
    /// Level of every component without a flag of its own.
    #[arg(
        long, value_name = "LEVEL", num_args = 0..=1, require_equals = true, default_missing_value = "10",
        conflicts_with = "reset"
    )]
    all: Option<u64>,
    /// Remove every level that was set, including those of nodes.
    #[arg(long)]
    reset: bool,
}

/// A component: its name, and its field.
type Component = (&'static str, &'static str);

/// What the flags ask for.
#[derive(Debug, PartialEq, Eq)]
enum LevelRequest {
    /// Show the levels of these components.
    Show(Vec<Component>),
    /// Set these levels, by field.
    Set { reset: bool, levels: BTreeMap<&'static str, u64> },
}

impl LogVerbosity {
    pub(crate) async fn run(&self, connection: &Connection) -> anyhow::Result<()> {
        // Wrong flags are reported without a cluster.
        let request = self.request()?;
        let session = connection.open().await?;
        let everywhere: Api<KubeVirt> = Api::all(session.client.clone());
        let found = everywhere.list(&ListParams::default()).await.map_err(session::plain);
        let found = found.context("could not list KubeVirt CRs across all namespaces")?.items;
        let kubevirt = match &found[..] {
            [] => bail!("could not detect a KubeVirt installation"),
            [kubevirt] => kubevirt,
            _ => bail!("invalid kubevirt installation, more than one KubeVirt resource found"),
        };
        let spec = serde_json::to_value(kubevirt).context("read the KubeVirt object")?["spec"].take();
        match request {
            LevelRequest::Show(components) => print!("{}", shown(&components, &spec)),
            LevelRequest::Set { reset, levels } => {
                let Some(patch) = patch(reset, &levels, &spec) else { return Ok(()) };
                let (namespace, name) = (kubevirt.namespace().unwrap_or_default(), kubevirt.name_any());
                let objects: Api<KubeVirt> = Api::namespaced(session.client.clone(), &namespace);
                let patched = objects.patch(&name, &PatchParams::default(), &Patch::Merge(&patch)).await;
                patched
                    .map_err(session::plain)
                    .with_context(|| format!("change KubeVirt {namespace}/{name}"))?;
                println!("successfully set/reset the log verbosity");
            }
        }
        Ok(())
    }

    fn components(&self) -> [(Component, Option<u64>); 5] {
        [
            (("virt-api", "virtAPI"), self.virt_api),
            (("virt-controller", "virtController"), self.virt_controller),
            (("virt-handler", "virtHandler"), self.virt_handler),
            (("virt-launcher", "virtLauncher"), self.virt_launcher),
            (("virt-operator", "virtOperator"), self.virt_operator),
        ]
    }

    fn request(&self) -> anyhow::Result<LevelRequest> {
        let components = self.components();
        let given = components.iter().map(|((name, _), level)| (*name, *level)).chain([("all", self.all)]);
        let given: Vec<(&str, u64)> = given.filter_map(|(name, level)| Some((name, level?))).collect();
        for (name, level) in &given {
            ensure!(*level <= HIGHEST || *level == SHOW, "{name}: log verbosity must be 0-{HIGHEST}");
        }
        let shows = given.iter().any(|(_, level)| *level == SHOW);
        let sets = self.reset || given.iter().any(|(_, level)| *level != SHOW);
        ensure!(!(shows && sets), "only show or set is allowed");
        let asked =
            components.into_iter().filter_map(|(component, level)| Some((component, level.or(self.all)?)));
        Ok(match shows {
            true => LevelRequest::Show(asked.map(|(component, _)| component).collect()),
            false => LevelRequest::Set {
                reset: self.reset,
                levels: asked.map(|((_, field), level)| (field, level)).collect(),
            },
        })
    }
}

/// One line for each, in the order of their names.
fn shown(components: &[Component], spec: &Value) -> String {
    let levels = &spec["configuration"]["developerConfiguration"]["logVerbosity"];
    let line = |(name, field): &Component| format!("{name}={}\n", levels[*field].as_u64().unwrap_or(USUAL));
    components.iter().map(line).collect()
}

/// The change as a merge patch, which leaves other fields alone; none if there is no level to remove.
fn patch(reset: bool, levels: &BTreeMap<&'static str, u64>, spec: &Value) -> Option<Value> {
    let mut fields: serde_json::Map<String, Value> = serde_json::Map::new();
    if reset {
        let former = spec["configuration"]["developerConfiguration"]["logVerbosity"].as_object();
        fields.extend(former.into_iter().flatten().map(|(field, _)| (field.clone(), Value::Null)));
    }
    fields.extend(levels.iter().map(|(field, level)| ((*field).to_owned(), json!(level))));
    (!fields.is_empty())
        .then(|| json!({"spec": {"configuration": {"developerConfiguration": {"logVerbosity": fields}}}}))
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Parser)]
    struct Wrapped {
        #[command(flatten)]
        inner: LogVerbosity,
    }

    fn request(arguments: &[&str]) -> Result<LevelRequest, String> {
        let words = [&["log-verbosity"], arguments].concat();
        let read = Wrapped::try_parse_from(words).map_err(|error| error.to_string())?.inner;
        read.request().map_err(|error| error.to_string())
    }

    fn spec(levels: Value) -> Value {
        json!({"configuration": {"developerConfiguration": {"logVerbosity": levels}}})
    }

    #[test]
    fn a_flag_without_a_level_shows_it() {
        let LevelRequest::Show(all) = request(&["--all"]).unwrap() else { panic!("nothing is shown") };
        let spec = spec(json!({"virtHandler": 7, "virtAPI": 0}));
        assert_eq!(
            shown(&all, &spec),
            "virt-api=0\nvirt-controller=2\nvirt-handler=7\nvirt-launcher=2\nvirt-operator=2\n"
        );
        assert_eq!(shown(&all[..1], &json!({"configuration": {}})), "virt-api=2\n");
        // KubeVirt's virtctl cannot distinguish 10 from no level, and scripts may rely on that.
        let two = LevelRequest::Show(vec![("virt-api", "virtAPI"), ("virt-handler", "virtHandler")]);
        assert_eq!(request(&["--virt-handler", "--virt-api=10"]), Ok(two));
    }

    #[test]
    fn a_flag_with_a_level_sets_it() {
        let set = |reset, levels: &[(&'static str, u64)]| {
            Ok(LevelRequest::Set { reset, levels: levels.iter().copied().collect() })
        };
        assert_eq!(request(&["--virt-handler=7"]), set(false, &[("virtHandler", 7)]));
        assert_eq!(request(&["--reset"]), set(true, &[]));
        assert_eq!(request(&["--reset", "--virt-launcher=0"]), set(true, &[("virtLauncher", 0)]));
        let all = [
            ("virtAPI", 3),
            ("virtController", 3),
            ("virtHandler", 9),
            ("virtLauncher", 3),
            ("virtOperator", 3),
        ];
        assert_eq!(request(&["--all=3", "--virt-handler=9"]), set(false, &all));
    }

    #[test]
    fn invalid_verbosity_flags_are_refused() {
        for (arguments, message) in [
            (&["--virt-api=11"][..], "virt-api: log verbosity must be 0-9"),
            (&["--all=12"], "all: log verbosity must be 0-9"),
            (&["--virt-api", "--virt-handler=3"], "only show or set is allowed"),
            (&["--reset", "--virt-handler"], "only show or set is allowed"),
            (&["--virt-api=-1"], "invalid digit found in string"),
            (&["--reset", "--all=3"], "cannot be used with"),
            // A level is part of its flag.
            (&["--virt-api", "3"], "unexpected argument '3'"),
        ] {
            let said = request(arguments).unwrap_err();
            assert!(said.contains(message), "{arguments:?}: {said}");
        }
        assert!(request(&[]).is_err());
    }

    #[test]
    fn a_change_leaves_what_it_does_not_name() {
        let at = "/spec/configuration/developerConfiguration/logVerbosity";
        let change = |reset, levels: &[(&'static str, u64)], former: Value| {
            let change = patch(reset, &levels.iter().copied().collect(), &spec(former))?;
            change.pointer(at).cloned()
        };
        assert_eq!(change(false, &[("virtAPI", 4)], json!({"virtHandler": 7})), Some(json!({"virtAPI": 4})));
        assert_eq!(
            change(true, &[("virtAPI", 4)], json!({"virtHandler": 7, "virtAPI": 1})),
            Some(json!({"virtAPI": 4, "virtHandler": null}))
        );
        assert_eq!(
            change(true, &[], json!({"nodeVerbosity": {"a": 5}})),
            Some(json!({"nodeVerbosity": null}))
        );
        assert_eq!(change(true, &[], json!({})), None);
        assert_eq!(change(true, &[], Value::Null), None);
    }
}
