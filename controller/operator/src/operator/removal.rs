//! The order in which an installation is removed, given what is left of it. Pure.
//!
//! Definitions go first, while everything still runs: their objects are deleted with them, and controllers and handlers stop
//! the machines. Then the webhooks go, then the components, and last the objects that these needed. Each step is waited for.

use super::kind::{Identity, Kind};

/// The next step of a removal.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Removal {
    /// Objects to delete now.
    pub delete: Vec<Identity>,
    /// Objects that are being deleted, and waited for.
    pub wait: Vec<Identity>,
}

impl Removal {
    /// Whether nothing is left.
    pub fn is_done(&self) -> bool {
        self.delete.is_empty() && self.wait.is_empty()
    }
}

/// The step in which objects of a kind are deleted.
fn turn(kind: Kind) -> u8 {
    match kind {
        // They are deleted with their definitions.
        Kind::CustomResourceDefinition | Kind::ClusterInstancetype | Kind::ClusterPreference => 0,
        Kind::MutatingWebhookConfiguration | Kind::ValidatingWebhookConfiguration | Kind::ApiService => 1,
        Kind::Deployment | Kind::DaemonSet => 2,
        Kind::Service
        | Kind::PodDisruptionBudget
        | Kind::NetworkPolicy
        | Kind::ServiceMonitor
        | Kind::PrometheusRule
        | Kind::ValidatingAdmissionPolicyBinding
        | Kind::ValidatingAdmissionPolicy => 3,
        Kind::ClusterRoleBinding | Kind::RoleBinding => 4,
        Kind::ClusterRole | Kind::Role | Kind::ServiceAccount => 5,
    }
}

/// Plans the next step; each object comes with whether it is being deleted already.
pub fn plan(found: &[(Identity, bool)]) -> Removal {
    let Some(now) = found.iter().map(|(identity, _)| turn(identity.kind)).min() else {
        return Removal::default();
    };
    let of_turn = |going: bool| {
        found
            .iter()
            .filter(|(identity, deleting)| turn(identity.kind) == now && *deleting == going)
            .map(|(identity, _)| identity.clone())
            .collect()
    };
    Removal { delete: of_turn(false), wait: of_turn(true) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Images, strategy};

    #[test]
    fn everything_goes_step_by_step() {
        let mut found: Vec<(Identity, bool)> = strategy(&Images::default())
            .iter()
            .filter_map(Identity::of)
            .map(|identity| (identity, false))
            .collect();
        let mut order: Vec<Kind> = vec![];
        for _ in 0..50 {
            let removal = plan(&found);
            if removal.is_done() {
                break;
            }
            assert!(removal.wait.is_empty());
            order.extend(removal.delete.iter().map(|identity| identity.kind));
            // Deleting them takes time, in which nothing else happens.
            for (identity, deleting) in &mut found {
                *deleting |= removal.delete.contains(identity);
            }
            assert_eq!(plan(&found), Removal { delete: vec![], wait: removal.delete.clone() });
            found.retain(|(identity, _)| !removal.delete.contains(identity));
        }
        assert!(found.is_empty());
        let place = |kind: Kind| order.iter().position(|other| *other == kind).unwrap();
        let last = |kind: Kind| order.iter().rposition(|other| *other == kind).unwrap();
        assert_eq!(place(Kind::CustomResourceDefinition), 0);
        assert!(last(Kind::ValidatingWebhookConfiguration) < place(Kind::Deployment));
        assert!(last(Kind::DaemonSet) < place(Kind::ClusterRoleBinding));
        assert!(last(Kind::ClusterRoleBinding) < place(Kind::ClusterRole));
    }
}
