//! Writes docs/reference/subresources.md from the table of calls, for `make docs`.

use super::actions::Call;
use super::endpoint::{Answer, Endpoint, On};
use super::table::ENDPOINTS;
use std::fmt::Write;
use std::fs;
use std::path::Path;

fn row(endpoint: &Endpoint) -> String {
    let place = match endpoint.on {
        On::Machine => "virtualmachines/NAME/",
        On::Instance => "virtualmachineinstances/NAME/",
        On::Everyone | On::Cluster | On::Namespace => "",
    };
    let query: Vec<String> = endpoint.query.iter().map(|query| format!("`{}`", query.name)).collect();
    let answers = match endpoint.answers {
        _ if endpoint.call == Call::NotYet => "501: not built yet".to_owned(),
        Answer::Accepted => "202".to_owned(),
        Answer::Done => "200".to_owned(),
        Answer::Json => "JSON".to_owned(),
        Answer::Object(kind) => format!("`{kind:?}`"),
        Answer::Png => "a PNG".to_owned(),
        Answer::Stream => "a websocket".to_owned(),
    };
    let takes = endpoint.takes.map(|kind| format!("`{kind:?}`")).unwrap_or_default();
    format!(
        "| {method} `{place}{path}` | `{verb}` `{title}` | {does} | {takes} | {query} | {answers} |",
        method = endpoint.verb.method(),
        path = endpoint.path,
        verb = endpoint.verb.word(),
        title = endpoint.title(),
        does = endpoint.does,
        query = query.join(", "),
    )
}

fn page() -> String {
    let mut page = String::from(
        "# Subresources\n\n\
         Written by `make docs` from the table of calls. Paths are below `/apis/subresources.kubevirt.io/v1/`, those of objects below\n\
         `namespaces/NAMESPACE/` in it. Callers need the named right in the API group\n\
         `subresources.kubevirt.io`.\n\n\
         | call | right | what it does | body | query | answer |\n|---|---|---|---|---|---|\n",
    );
    for endpoint in ENDPOINTS {
        let _ = writeln!(page, "{}", row(endpoint));
    }
    page
}

#[test]
fn reference_page_of_subresources_is_up_to_date() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/reference/subresources.md");
    if std::env::var_os("UPDATE_DOCS").is_some() {
        fs::write(&path, page()).unwrap();
    }
    let there = fs::read_to_string(&path).unwrap();
    assert_eq!(there, page(), "make docs updates docs/reference/subresources.md");
}
