//! Removes secrets from the contents of a bundle. Pure.
//!
//! Objects lose the fields that hold a guest's secrets: cloud-init, Ignition, passwords, and copies of all
//! of them in annotations. The values of those fields, and everything that looks like a token, are then
//! removed from all other parts.

use k8s_openapi::ByteString;
use serde_json::Value;

/// Replaces a secret.
pub(super) const REMOVED: &str = "(removed)";

/// Fields whose text is a secret, in lower case.
const SECRET: [&str; 12] = [
    "userdata",
    "userdatabase64",
    "networkdata",
    "networkdatabase64",
    "password",
    "token",
    "data",
    "stringdata",
    "kernelargs",
    "kubevirt.io/ignitiondata",
    "kubectl.kubernetes.io/last-applied-configuration",
    "kubevirt.io/latest-observed-api-version-patch",
];
/// Shortest line that is searched elsewhere. Shorter ones occur everywhere.
const SHORTEST: usize = 8;

/// Removes secrets from an object, and collects them.
pub(super) fn object(value: &mut Value, found: &mut Vec<String>) {
    match value {
        Value::Object(members) => {
            members.remove("managedFields");
            for (key, member) in members.iter_mut() {
                match member {
                    Value::String(text) if SECRET.contains(&key.to_lowercase().as_str()) => {
                        found.extend(lines(text));
                        // Logs have the decoded text of a base64 value.
                        if let Ok(bytes) = serde_json::from_value::<ByteString>(Value::String(text.clone())) {
                            found.extend(lines(&String::from_utf8_lossy(&bytes.0)));
                        }
                        *text = REMOVED.to_owned();
                    }
                    other => object(other, found),
                }
            }
        }
        Value::Array(items) => items.iter_mut().for_each(|item| object(item, found)),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
    }
}

/// The lines of a secret, since a log may contain one of them; each also in its JSON form.
fn lines(text: &str) -> Vec<String> {
    let long = |line: &&str| line.len() >= SHORTEST && !line.starts_with('#');
    let plain = text.lines().map(str::trim).filter(long);
    plain.flat_map(|line| [line.to_owned(), escaped(line)]).collect()
}

/// The line escaped as in JSON, without the quotes.
fn escaped(line: &str) -> String {
    Value::from(line)
        .to_string()
        .strip_prefix('"')
        .and_then(|text| text.strip_suffix('"'))
        .unwrap_or_default()
        .to_owned()
}

/// Removes the secrets that were found, and everything that looks like a token, from a text.
pub(super) fn text(text: &str, found: &[String]) -> String {
    let mut text = text.to_owned();
    for secret in found {
        if secret.len() >= SHORTEST && text.contains(secret.as_str()) {
            text = text.replace(secret.as_str(), REMOVED);
        }
    }
    without_tokens(&text)
}

/// Without JSON web tokens: three parts of base64 with dots between, the first of which is JSON.
fn without_tokens(text: &str) -> String {
    let mut clean = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find("eyJ") {
        let (before, token) = rest.split_at(at);
        let is_part = |letter: char| letter.is_ascii_alphanumeric() || "-_.".contains(letter);
        let end = token.find(|letter| !is_part(letter)).unwrap_or(token.len());
        let (token, after) = token.split_at(end);
        clean.push_str(before);
        clean.push_str(if token.len() > 40 && token.matches('.').count() >= 2 { REMOVED } else { token });
        rest = after;
    }
    clean.push_str(rest);
    clean
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_secret_planted_in_cloud_init_is_nowhere() {
        let secret = "hunter2-planted";
        let script = format!("#cloud-config\npassword: {secret}\nchpasswd: {{expire: false}}\n");
        let mut vmi = json!({
            "metadata": {
                "name": "vm",
                "managedFields": [{"x": 1}],
                "annotations": {"kubectl.kubernetes.io/last-applied-configuration": format!("{{{script}}}")},
            },
            "spec": {"volumes": [
                {"name": "init", "cloudInitNoCloud": {"userData": script, "networkDataBase64": "c2FpZDogImh1c2gtaHVzaCI="}},
                {"name": "other", "secret": {"secretName": "keys"}},
            ]},
        });
        let mut found = Vec::new();
        object(&mut vmi, &mut found);
        assert!(!vmi.to_string().contains(secret), "{vmi}");
        assert_eq!(vmi["spec"]["volumes"][0]["cloudInitNoCloud"]["userData"], REMOVED);
        // Other values stay.
        assert_eq!(vmi["spec"]["volumes"][1]["secret"]["secretName"], "keys");
        let log = format!("ok\ncloud-init says: password: {secret} was set\nsaid: \"hush-hush\"\n");
        let clean = text(&log, &found);
        assert!(!clean.contains(secret) && !clean.contains("hush-hush") && clean.contains("ok\n"), "{clean}");
        let in_json = text(&json!({"log": log}).to_string(), &found);
        assert!(!in_json.contains("hush-hush"), "{in_json}");
    }

    #[test]
    fn tokens_are_found_by_their_form() {
        let token = format!("eyJhbGciOi.{}.{}", "a".repeat(30), "b_-9".repeat(8));
        assert_eq!(without_tokens(&format!("bearer {token}, eyJust x")), "bearer (removed), eyJust x");
    }
}
