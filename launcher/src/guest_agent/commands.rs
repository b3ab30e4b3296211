//! Commands that a guest agent must know. Pure: the lists and the messages are KubeVirt's.

use barevirt_api::v1::GuestAgentCommandInfo;

use crate::credentials::Kinds;

/// For the facts that are collected from every guest.
const BASIC: [&str; 10] = [
    "guest-ping",
    "guest-get-time",
    "guest-info",
    "guest-shutdown",
    "guest-network-get-interfaces",
    "guest-get-fsinfo",
    "guest-get-host-name",
    "guest-get-users",
    "guest-get-timezone",
    "guest-get-osinfo",
];
/// For public keys. KubeVirt also supports agents before 5.2, with files and programs of the guest.
const KEYS: [&str; 3] =
    ["guest-ssh-get-authorized-keys", "guest-ssh-add-authorized-keys", "guest-ssh-remove-authorized-keys"];
/// For passwords.
const PASSWORDS: [&str; 1] = ["guest-set-user-password"];

/// What is missing; `None` if nothing is, or if the agent has not listed its commands yet.
#[must_use]
pub fn missing(known: &[GuestAgentCommandInfo], needed: Kinds) -> Option<&'static str> {
    let knows = |all: &[&str]| {
        all.iter().all(|name| known.iter().any(|one| one.name == *name && one.enabled == Some(true)))
    };
    if known.is_empty() {
        None
    } else if !knows(&BASIC) {
        Some("This guest agent doesn't support required basic commands")
    } else if needed.keys && !knows(&KEYS) {
        Some("This guest agent doesn't support required public key commands")
    } else if needed.passwords && !knows(&PASSWORDS) {
        Some("This guest agent doesn't support required password commands")
    } else {
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn needed_agent_commands_must_exist_and_be_enabled() {
        let all = BASIC.iter().chain(&KEYS).chain(&PASSWORDS);
        let mut known: Vec<_> =
            all.map(|name| GuestAgentCommandInfo { name: (*name).to_owned(), enabled: Some(true) }).collect();
        let both = Kinds { keys: true, passwords: true };
        assert_eq!(missing(&known, both), None);
        assert_eq!(missing(&[], both), None);
        let mut disable = |name: &str| {
            known.iter_mut().find(|one| one.name == name).unwrap().enabled = Some(false);
            known.clone()
        };
        let known = disable("guest-set-user-password");
        assert_eq!(
            missing(&known, both),
            Some("This guest agent doesn't support required password commands")
        );
        assert_eq!(missing(&known, Kinds { keys: true, passwords: false }), None);
        let known = disable("guest-ssh-add-authorized-keys");
        assert_eq!(
            missing(&known, both),
            Some("This guest agent doesn't support required public key commands")
        );
        assert_eq!(missing(&known, Kinds::default()), None);
        let known = disable("guest-get-users");
        assert_eq!(
            missing(&known, Kinds::default()),
            Some("This guest agent doesn't support required basic commands")
        );
    }
}
