//! The steps of an instance's plan, for the models of other tests.

use super::*;
use crate::migrations::Migrations;
use crate::vmi::others;
use std::time::Instant;

/// An observation.
pub(crate) struct Look<'a> {
    pub(crate) vmi: VirtualMachineInstance,
    pub(crate) launcher: Option<Pod>,
    pub(crate) launcher_node: Option<NodeState>,
    pub(crate) others: Vec<(NodeState, Pod)>,
    /// State of the node that the guest is migrating to.
    pub(crate) target_node: NodeState,
    pub(crate) migrations: &'a Migrations,
    pub(crate) instant: Instant,
    pub(crate) now: Timestamp,
}

/// A step.
#[derive(Debug)]
pub(crate) enum Step {
    Patch(Value),
    Delete { uid: String, grace: u32 },
    End { uid: String },
    Create,
}

/// Plans the steps.
pub(crate) fn steps(look: Look<'_>) -> Vec<Step> {
    let Look { vmi, launcher, launcher_node, others: beside, target_node, migrations, instant, now } = look;
    let wanted = |pod: &Pod| others::is_wanted(migrations, &vmi, pod);
    let beside: Vec<Other> =
        beside.into_iter().map(|(node, pod)| Other { wanted: wanted(&pod), node: Some(node), pod }).collect();
    let target = others::judge(migrations, &vmi, &beside, target_node, instant);
    let is_asked_to_move = others::is_asked(migrations, &vmi);
    let mut observed = observed(vmi, launcher);
    (observed.others, observed.target, observed.is_asked_to_move) = (beside, target, is_asked_to_move);
    (observed.node, observed.is_created_here, observed.now) = (launcher_node, false, now);
    let step = |action| match action {
        Action::Patch(body) => Step::Patch(body),
        Action::DeletePod { uid, grace, .. } => Step::Delete { uid, grace },
        Action::EndPod { uid, .. } => Step::End { uid },
        Action::CreatePod(_) => Step::Create,
        other => panic!("{other:?}"),
    };
    plan(&observed).actions.into_iter().map(step).collect()
}
