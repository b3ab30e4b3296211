//! Sends the file, and sends it again after a temporary error.
//!
//! ```text
//!  HEAD upload-async ── 200 ──> POST upload-async ──> 200  done
//!          └─ anything else ──> POST upload       ──> 401, later than in the first try: another token, again
//!                                                     5xx, 408, 425, 429, connection lost: again, after a while
//!                                                     anything else: reported, no further try
//! ```

mod attempts;
mod credentials;
mod proxy;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use anyhow::{Context, bail};
use http::StatusCode;
use tokio::time::{Instant, MissedTickBehavior, interval};

use super::image::Image;
use super::progress::Progress;
use attempts::{Attempts, Next, Outcome};
pub(super) use proxy::Proxy;
use proxy::{Broken, ProxyAnswer};

/// How often the progress is checked.
const LOOK: Duration = Duration::from_millis(500);
/// Longest time that the proxy may read nothing.
const STALLED: Duration = Duration::from_secs(5 * 60);
/// Longest time of a try: the proxy itself gives up then.
const LONGEST: Duration = Duration::from_secs(24 * 60 * 60);

/// Sends the file in at most that many tries, and returns how many it took.
pub(super) async fn send<F: Future<Output = anyhow::Result<String>>>(
    proxy: &Proxy,
    image: &Image,
    tries: u32,
    token: impl Fn() -> F,
) -> anyhow::Result<u32> {
    let mut bearer = token().await?;
    let mut attempts = Attempts::new(tries);
    loop {
        let outcome = match attempt(proxy, image, &bearer).await {
            Ok(proxy_answer) if proxy_answer.status == StatusCode::OK => return Ok(attempts.made() + 1),
            Ok(proxy_answer) => Outcome::Refused(proxy_answer.status, proxy_answer.text),
            Err(Broken::Untrusted(why)) => bail!(why),
            Err(Broken::Lost(why)) => Outcome::Lost(why),
        };
        match attempts.after(outcome) {
            Next::GiveUp(why) => bail!(why),
            Next::Again { after, with_another_token, because } => {
                eprintln!("{because}, trying again");
                // The random part spreads clients that were refused at the same moment.
                tokio::time::sleep(after + after.mul_f64(fastrand::f64() / 4.0)).await;
                if with_another_token {
                    bearer = token().await.context("failed to get upload token")?;
                }
            }
        }
    }
}

/// One try. It also ends if the proxy stops reading the file.
async fn attempt(proxy: &Proxy, image: &Image, token: &str) -> Result<ProxyAnswer, Broken> {
    let sent = Arc::new(AtomicU64::new(0));
    let endpoint = proxy.endpoint(token).await;
    let progress = Progress::of(image.length());
    let mut answer = std::pin::pin!(proxy.post(&endpoint, token, image.body(sent.clone())));
    let mut look = interval(LOOK);
    look.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let started = Instant::now();
    let mut moved = (0, started);
    loop {
        tokio::select! {
            proxy_answer = &mut answer => {
                progress.show(sent.load(Ordering::Relaxed));
                return proxy_answer;
            }
            now = look.tick() => {
                let at = sent.load(Ordering::Relaxed);
                progress.show(at);
                if at != moved.0 {
                    moved = (at, now);
                }
                if at < image.length() && now - moved.1 > STALLED {
                    let why = format!("the upload proxy has read nothing for {} s", STALLED.as_secs());
                    return Err(Broken::Lost(why));
                }
                if now - started > LONGEST {
                    return Err(Broken::Lost(format!("no answer within {} h", LONGEST.as_secs() / 3600)));
                }
            }
        }
    }
}
