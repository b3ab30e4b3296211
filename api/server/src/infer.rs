//! Instance type and preference of a machine from the labels of a volume, read from the API server when the
//! machine is written.
//!
//! `barevirt_api` decides which object comes next and what the result is; this module only reads the objects.
//!
//! An object may be in another namespace than the machine. The answer says whether it exists and what its labels name, so
//! it is only read if the user who writes the machine, or the machine's account, may get it or copy what it contains. The
//! account must be allowed to copy to start such a machine. virt-controller writes the machines of a pool for its author;
//! there the account alone decides.

use barevirt_api::account::Account;
use barevirt_api::cdi;
use barevirt_api::instancetype::infer::{self, Choice, Failure, Kind, Named, Next, Reference};
use barevirt_api::instancetype::matcher::{Family, Matcher};
use barevirt_api::v1::VirtualMachine;
use barevirt_api::validate::Cause;
use kube::core::DynamicObject;
use kube::{Api, Client};
use serde_json::Value;

use crate::authorize;
use crate::front_proxy::User;
use crate::route::Access;

/// Most steps: a DataVolume, its DataSource, and the source of the DataSource.
const STEPS: usize = 4;
/// Version of CDI's group in access reviews.
const CDI_VERSION: &str = "v1beta1";

/// The replacement for each `inferFromVolume`, or why there is none.
pub type Inferred = Vec<(Family, Result<Choice, Cause>)>;

/// Infers what the machine requests. An invalid request is left unchanged: validation reports it. `user` writes the
/// machine; `None` is one of our components.
pub async fn inferred(client: &Client, user: Option<&User>, vm: &VirtualMachine) -> Inferred {
    let mut inferred = Inferred::new();
    for family in Family::ALL {
        let Some(matcher) = family.matcher(vm) else { continue };
        if matcher.infer_from_volume.is_some() && matcher.causes().is_empty() {
            let end = end(client, user, vm, &matcher).await;
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

async fn end(
    client: &Client,
    user: Option<&User>,
    vm: &VirtualMachine,
    matcher: &Matcher<'_>,
) -> Result<Named, Failure> {
    let namespace = vm.metadata.namespace.as_deref().unwrap_or_default();
    let mut at = infer::begin(vm, matcher.infer_from_volume.unwrap_or_default())?;
    for _ in 0..STEPS {
        if at.namespace != namespace {
            check(client, user, vm, &at).await?;
        }
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

/// Fails if neither the user nor the machine's account may know an object of another namespace. The message is the same
/// whether or not the object exists.
async fn check(
    client: &Client,
    user: Option<&User>,
    vm: &VirtualMachine,
    look: &Reference,
) -> Result<(), Failure> {
    let failure = |message| Failure { message, may_be_ignored: false };
    let Account { name, groups } = Account::of(vm);
    let account = User { name, groups, ..User::default() };
    for who in user.into_iter().chain([&account]) {
        for access in [get(look), copy(look)] {
            let may = authorize::may(client, who, &access).await;
            if may.map_err(|refusal| failure(refusal.message))? {
                return Ok(());
            }
        }
    }
    let (kind, Reference { namespace, name, .. }) = (look.kind.resource().kind, look);
    let account = account.name;
    Err(failure(format!(
        "neither the user nor the machine's account {account} may read {kind} {namespace}/{name}"
    )))
}

/// Reading the object.
fn get(look: &Reference) -> Access {
    let (group, version, resource) = match look.kind {
        Kind::Claim => ("", "v1", "persistentvolumeclaims"),
        Kind::Snapshot => ("snapshot.storage.k8s.io", "v1", "volumesnapshots"),
        Kind::DataVolume => (cdi::GROUP, CDI_VERSION, "datavolumes"),
        Kind::DataSource => (cdi::GROUP, CDI_VERSION, "datasources"),
    };
    let (namespace, name) = (look.namespace.clone(), look.name.clone());
    Access { group, verb: "get", version, resource, subresource: "", namespace, name }
}

/// Copying what it contains: CDI's right.
fn copy(look: &Reference) -> Access {
    let get = get(look);
    let (verb, resource, subresource) = ("create", "datavolumes", "source");
    Access { group: cdi::GROUP, verb, version: CDI_VERSION, resource, subresource, ..get }
}

#[cfg(test)]
#[path = "infer_tests.rs"]
mod tests;
