//! A command line for QEMU's monitor. The page allows only queries; commands that change a guest need
//! `virtctl qmp`.

use http::StatusCode;
use serde_json::{Value, json};

use super::answer::Failure;
use super::ask::{Cluster, within};
use super::route::Target;
use crate::qmp::{self, words};
use crate::session::{self, INSTANCES};

/// How many seconds QEMU may take for an answer.
const TIMEOUT: u64 = 10;
/// Commands that only read, besides those that begin with `query-`.
const ASKING: [&str; 5] =
    ["qom-list", "qom-get", "qom-list-types", "qom-list-properties", "device-list-properties"];

/// QEMU's answer to a line such as `query-stats target=vm`.
pub(super) async fn say(cluster: &Cluster, target: &Target, line: &str) -> Result<Value, Failure> {
    let (command, arguments) = understand(line)?;
    let session = cluster.session(&target.namespace);
    let path = session::path(&target.namespace, INSTANCES, &target.name, "qmp");
    let answer = within(qmp::ask(&session, &path, &command, arguments, TIMEOUT)).await?;
    let answer = answer.map_err(|error| Failure {
        status: StatusCode::UNPROCESSABLE_ENTITY,
        message: format!("{error:#}"),
    })?;
    Ok(json!({ "answer": answer }))
}

/// The command of a line and its arguments. Pure.
fn understand(line: &str) -> Result<(String, Value), Failure> {
    let words = words::split(line)?;
    let [command, arguments @ ..] = words.as_slice() else {
        return Err(Failure::bad("type a command, for example query-status"));
    };
    if !(command.starts_with("query-") || ASKING.contains(&command.as_str())) {
        return Err(Failure::bad(format!(
            "the page sends only queries, such as query-status; for {command}, use virtctl qmp"
        )));
    }
    Ok((command.clone(), words::arguments(arguments)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_page_only_asks() {
        assert_eq!(understand(" query-status ").unwrap(), ("query-status".to_owned(), Value::Null));
        assert_eq!(understand("query-stats target=vm").unwrap().1, json!({"target": "vm"}));
        assert_eq!(understand("qom-get path=/ property=type").unwrap().0, "qom-get");
        for refused in
            ["quit", "system_reset", "qom-set path=/ property=a value=b", "", "{\"execute\":\"quit\"}"]
        {
            assert!(understand(refused).is_err(), "{refused}");
        }
    }
}
