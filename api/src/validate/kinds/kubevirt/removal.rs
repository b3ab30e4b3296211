//! Removal of an installation that still has workloads.

use crate::v1::KubeVirt;
use crate::validate::{Cause, CauseKind, Path};

/// The strategy that refuses the removal as long as there are workloads.
pub const BLOCK_UNINSTALL: &str = "BlockUninstallIfWorkloadsExist";

/// Everything that prevents the deletion of the object. `workloads` names existing workloads, if there are
/// any. A broken installation may always be removed, because it may have to be replaced.
pub fn delete(object: &KubeVirt, workloads: Option<&str>) -> Vec<Cause> {
    let blocks = object.spec.uninstall_strategy.as_deref() == Some(BLOCK_UNINSTALL);
    let deployed = object.status.as_ref().and_then(|status| status.phase.as_deref()) == Some("Deployed");
    workloads
        .filter(|_| blocks && deployed)
        .map(|workloads| {
            let message = format!(
                "spec.uninstallStrategy is {BLOCK_UNINSTALL}, and there are still {workloads}: delete them, or change the \
                 strategy, before KubeVirt is removed"
            );
            Cause::new(CauseKind::Forbidden, &Path::new(""), message)
        })
        .into_iter()
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn workloads_block_the_removal_of_an_installation_with_block_uninstall() {
        let workloads = Some("Virtual Machines present, such as a/b");
        for (strategy, phase, workloads, refused) in [
            (json!(BLOCK_UNINSTALL), "Deployed", workloads, true),
            (json!(BLOCK_UNINSTALL), "Deployed", None, false),
            (json!(BLOCK_UNINSTALL), "Deploying", workloads, false),
            (json!("RemoveWorkloads"), "Deployed", workloads, false),
            (json!(null), "Deployed", workloads, false),
        ] {
            let object = serde_json::from_value(json!({
                "metadata": {"name": "kubevirt"}, "spec": {"uninstallStrategy": strategy}, "status": {"phase": phase},
            }));
            let causes = delete(&object.unwrap(), workloads);
            assert_eq!(causes.len(), usize::from(refused), "{strategy} {phase}");
            assert!(causes.iter().all(|cause| cause.message.contains("still Virtual Machines present")));
        }
    }
}
