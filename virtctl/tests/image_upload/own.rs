//! Barevirt's way to upload in the fake cluster: through the API server, where an upload goes on after a cut.

use std::sync::{Arc, Mutex};

use http::{HeaderMap, Request, StatusCode};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;

use crate::cluster::{Answer, Received, State, json_answer};

/// An answer instead of which the connection is closed.
#[derive(Clone)]
pub(crate) struct Cut;

/// What has arrived of the upload that began last.
#[derive(Default)]
pub(crate) struct Arrived {
    id: String,
    checksum: Option<String>,
    bytes: Vec<u8>,
    length: usize,
}

fn text(headers: &HeaderMap, name: &str) -> Option<String> {
    headers.get(name).map(|value| value.to_str().unwrap().to_owned())
}

/// Takes an image, its rest, or the question where the rest begins.
pub(crate) async fn take(state: Arc<Mutex<State>>, request: Request<Incoming>) -> Answer {
    let (head, mut body) = request.into_parts();
    let path = head.uri.path().to_owned();
    let id = text(&head.headers, "barevirt-upload").unwrap();
    let range = text(&head.headers, "content-range");
    let most = {
        let mut state = state.lock().unwrap();
        match (&range, path.ends_with("/rest")) {
            (None, false) => {
                let length = text(&head.headers, "content-length").unwrap().parse().unwrap();
                let checksum = text(&head.headers, "barevirt-checksum");
                state.arrived = Arrived { id, checksum, bytes: vec![], length };
            }
            (Some(range), true) => {
                assert!(text(&head.headers, "barevirt-checksum").is_none());
                let arrived = &state.arrived;
                let end = format!("/{}", arrived.length);
                if id != arrived.id || state.script.forgets {
                    return json_answer(503, "no such upload");
                }
                if *range == format!("bytes *{end}") {
                    return json_answer(202, arrived.bytes.len().to_string());
                }
                let whole = format!("bytes {}-{}{end}", arrived.bytes.len(), arrived.length - 1);
                assert_eq!(*range, whole);
            }
            other => panic!("{path}: {other:?}"),
        }
        state.posts += 1;
        (!state.script.cuts.is_empty()).then(|| state.script.cuts.remove(0))
    };
    let mut length = 0;
    while let Some(frame) = body.frame().await {
        let Ok(frame) = frame else { break };
        let Some(data) = frame.data_ref() else { continue };
        state.lock().unwrap().arrived.bytes.extend_from_slice(data);
        length += data.len();
        if most.is_some_and(|most| length >= most) {
            let mut answer = Answer::new(Full::default());
            *answer.status_mut() = StatusCode::BAD_GATEWAY;
            answer.extensions_mut().insert(Cut);
            return answer;
        }
    }
    let mut state = state.lock().unwrap();
    let Arrived { bytes, length, checksum, .. } = std::mem::take(&mut state.arrived);
    assert_eq!(bytes.len(), length);
    state.received.push(Received { path, token: checksum.unwrap_or_default(), length, begins_with: bytes });
    json_answer(200, "")
}
