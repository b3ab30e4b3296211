//! What follows a failed try.

use std::time::Duration;

use http::StatusCode;

/// How often an expired token is replaced.
const TOKENS: u32 = 3;
/// Pause before the second try; it doubles before each further try.
const FIRST_PAUSE: Duration = Duration::from_millis(500);
const MAX_PAUSE: Duration = Duration::from_secs(8);

/// How a try failed.
#[derive(Debug)]
pub(super) enum Outcome {
    /// The proxy's status and text.
    Refused(StatusCode, String),
    /// No answer, and why.
    Lost(String),
}

/// What to do about it.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Next {
    Again { after: Duration, with_another_token: bool, because: String },
    GiveUp(String),
}

/// The tries so far, and how many are allowed.
#[derive(Debug)]
pub(super) struct Attempts {
    made: u32,
    /// Those since the upload last got further.
    in_vain: u32,
    limit: u32,
    tokens: u32,
}

impl Outcome {
    fn text(&self) -> String {
        match self {
            Self::Refused(status, text) if text.is_empty() => {
                format!("unexpected return value {}", status.as_u16())
            }
            Self::Refused(status, text) => format!("unexpected return value {}, {text}", status.as_u16()),
            Self::Lost(why) => why.clone(),
        }
    }

    /// Whether the same request may succeed later.
    fn may_pass(&self) -> bool {
        match self {
            Self::Refused(status, _) => {
                status.is_server_error() || matches!(status.as_u16(), 401 | 408 | 425 | 429)
            }
            Self::Lost(_) => true,
        }
    }
}

impl Attempts {
    /// With at most that many tries.
    pub(super) fn new(limit: u32) -> Self {
        Self { made: 0, in_vain: 0, limit, tokens: TOKENS }
    }

    /// Notes that the server has more of the image than before the last try: tries are counted from here on.
    pub(super) fn got_further(&mut self) {
        self.in_vain = 0;
    }

    /// How many tries failed.
    pub(super) fn made(&self) -> u32 {
        self.made
    }

    /// What follows another failed try.
    pub(super) fn after(&mut self, outcome: Outcome) -> Next {
        let text = outcome.text();
        let unauthorized = matches!(&outcome, Outcome::Refused(StatusCode::UNAUTHORIZED, _));
        // A new token that is refused has not expired.
        if unauthorized && (self.made == 0 || self.tokens == 0) {
            return Next::GiveUp(format!("authentication failed: {text}"));
        }
        self.made += 1;
        self.in_vain += 1;
        if !outcome.may_pass() {
            return Next::GiveUp(format!("error uploading image: {text}"));
        }
        if self.in_vain >= self.limit {
            return Next::GiveUp(format!("error uploading image after {} retries: {text}", self.limit));
        }
        self.tokens -= u32::from(unauthorized);
        let doubled = FIRST_PAUSE.saturating_mul(1 << (self.in_vain - 1).min(16));
        Next::Again { after: doubled.min(MAX_PAUSE), with_another_token: unauthorized, because: text }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(status: u16) -> Outcome {
        Outcome::Refused(StatusCode::from_u16(status).unwrap(), "words".to_owned())
    }

    fn again(next: Next) -> Option<(u64, bool)> {
        match next {
            Next::Again { after, with_another_token, .. } => {
                Some((after.as_millis().try_into().unwrap(), with_another_token))
            }
            Next::GiveUp(_) => None,
        }
    }

    #[test]
    fn temporary_failures_are_retried_with_growing_pauses() {
        let mut attempts = Attempts::new(8);
        let distances: Vec<u64> = [503, 502, 500, 504, 429, 408]
            .into_iter()
            .map(|status| again(attempts.after(refused(status))).unwrap().0)
            .collect();
        assert_eq!(distances, [500, 1000, 2000, 4000, 8000, 8000]);
        assert_eq!(again(attempts.after(Outcome::Lost("connection reset".to_owned()))), Some((8000, false)));
        assert_eq!(attempts.made(), 7);
        assert_eq!(
            attempts.after(refused(503)),
            Next::GiveUp(
                "error uploading image after 8 retries: unexpected return value 503, words".to_owned()
            )
        );
    }

    #[test]
    fn tries_are_counted_from_where_the_upload_got_further() {
        let mut attempts = Attempts::new(2);
        for _ in 0..4 {
            assert_eq!(again(attempts.after(refused(503))), Some((500, false)));
            attempts.got_further();
        }
        assert_eq!(again(attempts.after(refused(503))), Some((500, false)));
        assert!(matches!(attempts.after(refused(503)), Next::GiveUp(_)));
        assert_eq!(attempts.made(), 6);
    }

    #[test]
    fn permanent_failures_are_reported_at_once() {
        for status in [301, 400, 403, 404, 409, 413] {
            assert_eq!(
                Attempts::new(5).after(refused(status)),
                Next::GiveUp(format!("error uploading image: unexpected return value {status}, words"))
            );
        }
    }

    #[test]
    fn a_token_that_has_run_out_is_replaced_and_one_that_is_refused_is_not() {
        let fails = Next::GiveUp("authentication failed: unexpected return value 401, words".to_owned());
        assert_eq!(Attempts::new(5).after(refused(401)), fails);
        let mut attempts = Attempts::new(9);
        assert_eq!(again(attempts.after(refused(503))), Some((500, false)));
        for pause in [1000, 2000, 4000] {
            assert_eq!(again(attempts.after(refused(401))), Some((pause, true)));
        }
        assert_eq!(attempts.after(refused(401)), fails);
    }

    #[test]
    fn an_answer_without_words_is_its_number() {
        let mut attempts = Attempts::new(1);
        assert_eq!(
            attempts.after(Outcome::Refused(StatusCode::SERVICE_UNAVAILABLE, String::new())),
            Next::GiveUp("error uploading image after 1 retries: unexpected return value 503".to_owned())
        );
    }
}
