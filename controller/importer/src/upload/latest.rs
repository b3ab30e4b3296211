//! The upload that began last, and the answers to its requests.

use super::arrival::{Order, Part, unwanted};
use super::asked::Rest;
use crate::failure::Failure;
use http::{Response, StatusCode};
use http_body_util::Full;
use hyper::body::{Bytes, Incoming};
use tokio::sync::{mpsc, oneshot, watch};

/// The answer to an upload, once that is known.
pub(super) type AnswerReceiver = watch::Receiver<Option<Result<(), Failure>>>;

/// An upload that has begun.
#[derive(Clone)]
pub(super) struct Latest {
    /// The name by which it goes on, if it may.
    pub(super) id: Option<String>,
    /// Its length in bytes, if it is known.
    pub(super) length: Option<u64>,
    /// Orders to the task that receives it.
    pub(super) orders: mpsc::Sender<Order>,
    /// Its answer.
    pub(super) answer: AnswerReceiver,
}

impl Latest {
    /// Whether that is the rest of this upload.
    pub(super) fn is(&self, rest: &Rest) -> bool {
        self.id.as_ref() == Some(&rest.id) && self.length == Some(rest.length)
    }

    /// Makes it give up its place, if it waits for its rest. Whether it does.
    pub(super) async fn leave(&self) -> bool {
        let (leave, leaves) = oneshot::channel();
        // One without a name never waits.
        self.id.is_some()
            && self.orders.send(Order::Leave(leave)).await.is_ok()
            && leaves.await.unwrap_or(false)
    }

    /// Answers a request for its rest, which begins at that byte, or for that byte.
    pub(super) async fn go_on(self, from: Option<u64>, body: Incoming) -> Response<Full<Bytes>> {
        match from {
            None => self.ask().await,
            Some(from) => self.send(from, body).await,
        }
    }

    async fn ask(self) -> Response<Full<Bytes>> {
        let (answer, answered) = oneshot::channel();
        if self.orders.send(Order::Ask(answer)).await.is_ok()
            && let Ok(arrived) = answered.await
        {
            return said(StatusCode::ACCEPTED, arrived.to_string());
        }
        // Nothing is waited for any more: the question is what has become of it.
        finished(self.answer).await
    }

    async fn send(self, from: u64, body: Incoming) -> Response<Full<Bytes>> {
        let (part, over) = Part::of(body);
        let (answer, answered) = oneshot::channel();
        if let Err(unsent) = self.orders.send(Order::GoOn(from, part, answer)).await {
            if let Order::GoOn(_, part, _) = unsent.0 {
                tokio::spawn(part.refuse());
            }
            return finished(self.answer).await;
        }
        match answered.await {
            Ok(Ok(())) => outcome(self.answer, over).await,
            Ok(Err(arrived)) => {
                said(StatusCode::SERVICE_UNAVAILABLE, format!("the upload goes on at byte {arrived}"))
            }
            Err(_) => finished(self.answer).await,
        }
    }
}

/// The answer to a request whose body is a part: once that is known, or once this part is given up.
pub(super) async fn outcome(answer: AnswerReceiver, over: oneshot::Receiver<()>) -> Response<Full<Bytes>> {
    let broken = async {
        if over.await.is_ok() {
            std::future::pending::<()>().await;
        }
    };
    tokio::select! {
        biased;
        answer = finished(answer) => answer,
        () = broken => said(StatusCode::SERVICE_UNAVAILABLE, "the upload broke off"),
    }
}

async fn finished(mut answer: AnswerReceiver) -> Response<Full<Bytes>> {
    let answer = answer.wait_for(Option::is_some).await.ok().and_then(|answer| answer.clone());
    match answer {
        Some(Ok(())) => said(StatusCode::OK, ""),
        Some(Err(failure @ Failure::Final(_))) => said(StatusCode::BAD_REQUEST, failure.to_string()),
        Some(Err(failure @ Failure::Passing(_))) => {
            said(StatusCode::SERVICE_UNAVAILABLE, failure.to_string())
        }
        None => said(StatusCode::SERVICE_UNAVAILABLE, "the upload was lost"),
    }
}

/// An answer.
pub(super) fn said(code: StatusCode, text: impl Into<String>) -> Response<Full<Bytes>> {
    let mut answer = Response::new(Full::from(text.into()));
    *answer.status_mut() = code;
    answer
}

/// An answer to a request whose body is not used.
pub(super) fn refuse(code: StatusCode, text: &str, body: Incoming) -> Response<Full<Bytes>> {
    tokio::spawn(unwanted(body));
    said(code, text)
}
