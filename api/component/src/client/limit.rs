//! Limits the requests of a client: a token bucket with one token for each request, which fills at a steady
//! rate and is full after a quiet time.

use barevirt_api::settings::{Rate, Settings};
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, ready};
use std::time::Duration;
use tokio::time::{Instant, Sleep, sleep};
use tower::Service;
use tracing::info;

use crate::installation::Installation;

/// Longest wait before the rate is read again, because it may have changed.
const LOOK: Duration = Duration::from_millis(500);

/// A rate that may change, shared by all clones.
#[derive(Clone, Debug)]
pub struct Limit(Arc<Mutex<Bucket>>);

impl Limit {
    /// A limit whose bucket is full at the start.
    pub fn new(rate: Rate) -> Self {
        Limit(Arc::new(Mutex::new(Bucket { rate, tokens: f64::from(rate.burst), at: Instant::now() })))
    }

    /// A layer that applies the rate to a client.
    pub fn layer(&self) -> Layer {
        Layer(self.clone())
    }

    /// Changes the rate.
    fn set(&self, rate: Rate) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).set(rate, Instant::now());
    }

    /// Follows the settings until the future is dropped. `whose` is for the log.
    pub async fn follow(
        self,
        installation: Installation,
        whose: &'static str,
        of: impl Fn(&Settings) -> Rate,
    ) {
        installation
            .follow(of, |rate| {
                info!(whose, qps = rate.qps, burst = rate.burst, "rate of requests");
                self.set(*rate);
            })
            .await;
    }

    /// Takes a token, or returns how long it takes until there may be one.
    fn take(&self) -> Result<(), Duration> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).take(Instant::now())
    }
}

#[derive(Debug)]
struct Bucket {
    rate: Rate,
    tokens: f64,
    at: Instant,
}

impl Bucket {
    fn fill(&mut self, now: Instant) {
        let passed = now.saturating_duration_since(self.at).as_secs_f64();
        self.tokens = (self.tokens + passed * self.rate.qps).min(f64::from(self.rate.burst));
        self.at = now;
    }

    fn set(&mut self, rate: Rate, now: Instant) {
        self.fill(now);
        self.rate = rate;
        self.fill(now);
    }

    fn take(&mut self, now: Instant) -> Result<(), Duration> {
        self.fill(now);
        if self.tokens >= 1.0 {
            self.tokens -= 1.0;
            return Ok(());
        }
        let wait = (1.0 - self.tokens) / self.rate.qps;
        Err(Duration::try_from_secs_f64(wait).unwrap_or(LOOK))
    }
}

/// Applies the rate to a client.
#[derive(Clone, Debug)]
pub struct Layer(Limit);

impl<S> tower::Layer<S> for Layer {
    type Service = Limited<S>;

    fn layer(&self, inner: S) -> Limited<S> {
        Limited { inner, limit: self.0.clone(), token: false, wait: None }
    }
}

/// A client that is ready when it has a token.
#[derive(Debug)]
pub struct Limited<S> {
    inner: S,
    limit: Limit,
    /// Whether a token was taken and not used yet.
    token: bool,
    wait: Option<Pin<Box<Sleep>>>,
}

impl<S, R> Service<R> for Limited<S>
where
    S: Service<R>,
{
    type Response = S::Response;
    type Error = S::Error;
    type Future = S::Future;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        while !self.token {
            if let Some(wait) = &mut self.wait {
                ready!(wait.as_mut().poll(context));
                self.wait = None;
            }
            match self.limit.take() {
                Ok(()) => self.token = true,
                Err(left) => self.wait = Some(Box::pin(sleep(left.min(LOOK)))),
            }
        }
        self.inner.poll_ready(context)
    }

    fn call(&mut self, request: R) -> S::Future {
        self.token = false;
        self.inner.call(request)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::convert::Infallible;
    use tower::{Layer as _, ServiceExt, service_fn};

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn a_burst_and_then_a_steady_rate() {
        let start = Instant::now();
        let rate = Rate { qps: 2.0, burst: 3 };
        let mut bucket = Bucket { rate, tokens: 3.0, at: start };
        for _ in 0..3 {
            assert_eq!(bucket.take(start), Ok(()));
        }
        assert_eq!(bucket.take(start), Err(SECOND / 2));
        assert_eq!(bucket.take(start + SECOND / 2), Ok(()));
        assert_eq!(bucket.take(start + SECOND / 2), Err(SECOND / 2));
        // A quiet time fills the bucket, but not more.
        let later = start + SECOND * 100;
        assert_eq!((0..9).filter(|_| bucket.take(later).is_ok()).count(), 3);
        // A clock that stands still or goes backwards adds nothing.
        assert!(bucket.take(start).is_err());
    }

    #[test]
    fn another_rate_holds_at_once() {
        let start = Instant::now();
        let mut bucket = Bucket { rate: Rate { qps: 0.001, burst: 1 }, tokens: 0.0, at: start };
        assert_eq!(bucket.take(start), Err(SECOND * 1000));
        bucket.set(Rate { qps: 100.0, burst: 10 }, start);
        assert_eq!(bucket.take(start + SECOND / 100), Ok(()));
        // A smaller bucket keeps fewer of the saved tokens.
        bucket.set(Rate { qps: 100.0, burst: 2 }, start + SECOND * 50);
        assert_eq!((0..9).filter(|_| bucket.take(start + SECOND * 50).is_ok()).count(), 2);
    }

    #[tokio::test(start_paused = true)]
    async fn a_client_waits_for_its_tokens_and_hears_of_a_new_rate() {
        let limit = Limit::new(Rate { qps: 10.0, burst: 2 });
        let mut service = limit.layer().layer(service_fn(async |(): ()| Ok::<_, Infallible>(())));
        let start = Instant::now();
        for _ in 0..12 {
            service.ready().await.unwrap().call(()).await.unwrap();
        }
        let took = start.elapsed();
        assert!((SECOND * 99 / 100..SECOND * 12 / 10).contains(&took), "{took:?}");
        // At this rate the next token would come after a day; then the rate is raised again.
        limit.set(Rate { qps: 1.0 / 86400.0, burst: 1 });
        let setter = limit.clone();
        tokio::spawn(async move {
            sleep(SECOND * 10).await;
            setter.set(Rate { qps: 100.0, burst: 100 });
        });
        let start = Instant::now();
        service.ready().await.unwrap().call(()).await.unwrap();
        assert!((SECOND * 10..SECOND * 11).contains(&start.elapsed()), "{:?}", start.elapsed());
    }
}
