//! Texts and answers of errors.

use kube::core::Status;

/// An error and all its sources on one line. A source is left out if the text before it already ends with it.
pub fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut next = error.source();
    while let Some(source) = next {
        let source_text = source.to_string();
        if !text.ends_with(&source_text) {
            text.push_str(": ");
            text.push_str(&source_text);
        }
        next = source.source();
    }
    text
}

/// The API server's answer, if the error is one.
pub fn response(error: &kube::Error) -> Option<&Status> {
    match error {
        kube::Error::Api(response) => Some(response),
        _ => None,
    }
}

/// Whether the API server refused because the namespace is being deleted.
pub fn namespace_ends(error: &kube::Error) -> bool {
    let details = response(error).and_then(|response| response.details.as_ref());
    let causes = details.into_iter().flat_map(|details| &details.causes);
    causes.into_iter().any(|cause| cause.reason == "NamespaceTerminating")
}
