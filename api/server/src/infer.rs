//! Instance type and preference of a machine from the labels of a volume, read from the API server when the
//! machine is written.
//!
//! `barevirt_api` decides which object comes next and what the result is; this module only reads the objects.

use barevirt_api::instancetype::infer::{self, Choice, Failure, Named, Next, Reference};
use barevirt_api::instancetype::matcher::{Family, Matcher};
use barevirt_api::v1::VirtualMachine;
use barevirt_api::validate::Cause;
use kube::core::DynamicObject;
use kube::{Api, Client};
use serde_json::Value;

/// Most steps: a DataVolume, its DataSource, and the source of the DataSource.
const STEPS: usize = 4;

/// The replacement for each `inferFromVolume`, or why there is none.
pub type Inferred = Vec<(Family, Result<Choice, Cause>)>;

/// Infers what the machine requests. An invalid request is left unchanged: validation reports it.
pub async fn inferred(client: &Client, vm: &VirtualMachine) -> Inferred {
    let mut inferred = Inferred::new();
    for family in Family::ALL {
        let Some(matcher) = family.matcher(vm) else { continue };
        if matcher.infer_from_volume.is_some() && matcher.causes().is_empty() {
            let end = end(client, vm, &matcher).await;
            inferred.push((family, infer::choose(&matcher, end)));
        }
    }
    inferred
}

/// Replaces each `inferFromVolume` by its result.
pub fn apply(inferred: &Inferred, vm: &mut VirtualMachine) {
    for (family, choice) in inferred {
        if let Ok(choice) = choice {
            infer::apply(*family, choice, &mut vm.spec);
        }
    }
}

async fn end(client: &Client, vm: &VirtualMachine, matcher: &Matcher<'_>) -> Result<Named, Failure> {
    let namespace = vm.metadata.namespace.as_deref().unwrap_or_default();
    let mut at = infer::begin(vm, matcher.infer_from_volume.unwrap_or_default())?;
    for _ in 0..STEPS {
        let found = read(client, &at).await?;
        match infer::follow(matcher.family, namespace, &at, found.as_ref())? {
            Next::Reference(next) => at = next,
            Next::Found(named) => return Ok(named),
        }
    }
    Err(Failure {
        message: "unable to infer defaults: the volume leads nowhere".to_owned(),
        may_be_ignored: false,
    })
}

/// The object, if it exists; `None` also if the API server does not serve the kind.
async fn read(client: &Client, look: &Reference) -> Result<Option<Value>, Failure> {
    let resource = look.kind.resource();
    let kind = &resource.kind;
    let objects: Api<DynamicObject> = Api::namespaced_with(client.clone(), &look.namespace, &resource);
    let failure = |why: String| Failure {
        message: format!("unable to read {kind} {}/{}: {why}", look.namespace, look.name),
        may_be_ignored: false,
    };
    let found = objects.get_opt(&look.name).await.map_err(|error| failure(error.to_string()))?;
    found.map(|found| serde_json::to_value(found).map_err(|error| failure(error.to_string()))).transpose()
}
