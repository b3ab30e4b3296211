//! What the status says about a connection that broke in post-copy. Pure.

use barevirt_api::names::{CONDITION_POST_COPY_RECOVERY, REASON_CONNECTION_BROKEN};
use barevirt_api::v1::{Condition, VirtualMachineInstanceMigrationState as State, merge_condition};
use barevirt_protocol::v1::{MigrationState as Stage, MigrationStatus};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

/// Sets the condition for as long as the guest waits for a new connection, and removes it otherwise.
pub fn set_condition(
    conditions: &mut Vec<Condition>,
    state: &State,
    told: Option<&MigrationStatus>,
    now: &Time,
) {
    let sent = told.filter(|told| told.state() == Stage::Sent);
    let Some(recovery) = sent.and_then(|told| told.recovery.as_ref()) else {
        Condition::remove(conditions, CONDITION_POST_COPY_RECOVERY);
        return;
    };
    let node = state.target_node.as_deref().unwrap_or_default();
    let tried = match recovery.tries {
        0 => "a new connection is being made".to_owned(),
        tries => format!("attempt {tries} to connect again"),
    };
    let message = format!(
        "the connection broke in post-copy: the guest is on node {node} and waits for the rest of its memory; {tried}"
    );
    let condition = Condition::new(CONDITION_POST_COPY_RECOVERY, true, REASON_CONNECTION_BROKEN, message);
    merge_condition(conditions, condition, now);
}

#[cfg(test)]
mod tests {
    use barevirt_protocol::v1::MigrationRecovery;
    use k8s_openapi::jiff::Timestamp;

    use super::*;

    #[test]
    fn a_broken_connection_is_a_condition_until_there_is_a_new_one() {
        let now = Time(Timestamp::from_second(1000).unwrap());
        let state = State { target_node: Some("b".to_owned()), ..State::default() };
        let told = |tries, stage: Stage| MigrationStatus {
            state: stage.into(),
            recovery: Some(MigrationRecovery { tries, awaits_connection: true }),
            ..MigrationStatus::default()
        };
        let mut conditions = Vec::new();
        set_condition(&mut conditions, &state, Some(&told(2, Stage::Sent)), &now);
        let message = conditions[0].message.as_deref().unwrap();
        assert!(message.contains("node b") && message.ends_with("attempt 2 to connect again"), "{message}");
        let whole = MigrationStatus { recovery: None, ..told(0, Stage::Sent) };
        for last in [Some(&told(2, Stage::Over)), Some(&whole), None] {
            let mut conditions = conditions.clone();
            set_condition(&mut conditions, &state, last, &now);
            assert!(conditions.is_empty(), "{last:?}");
        }
    }
}
