//! Sends the file, and sends it again after a temporary error.
//!
//! ```text
//!  HEAD upload-async ── 200 ──> POST upload-async ──> 200  done
//!          └─ anything else ──> POST upload       ──> 401, later than in the first try: another token, again
//!                                                     5xx, 408, 425, 429, connection lost: again, after a while
//!                                                     anything else: reported, no further try
//! ```
//!
//! Through the API server an upload goes on where it broke off, since Barevirt is behind it:
//!
//! ```text
//!  POST .../rest, bytes */LENGTH ── 202, N ──> POST .../rest, bytes N-LAST/LENGTH ──> as above
//!              │         └─ 200 ──> done: the answer was lost
//!              └─ anything else ──> all of it again
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
use crate::random;
use attempts::{Attempts, Next, Outcome};
use barevirt_import_job::{UPLOAD_CHECKSUM, UPLOAD_ID};
pub(super) use proxy::Proxy;
use proxy::{Broken, ProxyAnswer};

/// How often the progress is checked.
const LOOK: Duration = Duration::from_millis(500);
/// Longest time that the proxy may read nothing.
const STALLED: Duration = Duration::from_secs(5 * 60);
/// Longest time of a try: the proxy itself gives up then.
const LONGEST: Duration = Duration::from_secs(24 * 60 * 60);
/// Length of an upload's name: no two uploads have the same.
const ID: usize = 24;
/// Progress after which the count of tries starts again, in bytes.
const WORTHWHILE: u64 = 1 << 20;

/// What is sent, and where it goes on.
struct Sending<'a> {
    proxy: &'a Proxy,
    image: &'a Image,
    checksum: Option<&'a str>,
    /// The upload's name, if it can go on where it broke off.
    id: Option<String>,
    /// The byte with which the next try begins.
    from: u64,
    /// The last byte that is known to have arrived.
    furthest: u64,
}

/// Sends the file in at most that many tries, and returns how many it took.
pub(super) async fn send<F: Future<Output = anyhow::Result<String>>>(
    proxy: &Proxy,
    (image, checksum): (&Image, Option<&str>),
    tries: u32,
    token: impl Fn() -> F,
) -> anyhow::Result<u32> {
    let mut bearer = token().await?;
    let mut attempts = Attempts::new(tries);
    let id = (proxy.goes_on() && image.is_file()).then(|| random::suffix(ID));
    let mut sending = Sending { proxy, image, checksum, id, from: 0, furthest: 0 };
    loop {
        let outcome = match sending.attempt(&bearer, &mut attempts).await {
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

impl Sending<'_> {
    /// One try, after a look at how far an earlier one came.
    async fn attempt(&mut self, token: &str, attempts: &mut Attempts) -> Result<ProxyAnswer, Broken> {
        if attempts.made() > 0
            && let Some(id) = &self.id
        {
            let answer = self.proxy.arrived(token, id, self.image.length()).await?;
            if answer.status == StatusCode::OK {
                return Ok(answer);
            }
            let arrived = match answer.status {
                StatusCode::ACCEPTED => answer.text.parse::<u64>().ok(),
                _ => None,
            };
            self.from = arrived.filter(|arrived| *arrived < self.image.length()).unwrap_or(0);
            if self.from >= self.furthest + WORTHWHILE {
                self.furthest = self.from;
                attempts.got_further();
            }
        }
        self.send(token).await
    }

    /// What is said about the upload, beside its bytes.
    fn headers(&self) -> Vec<(&'static str, String)> {
        let mut headers = vec![];
        if let Some(id) = &self.id {
            headers.push((UPLOAD_ID, id.clone()));
        }
        if self.from > 0 {
            let length = self.image.length();
            headers.push(("content-range", format!("bytes {}-{}/{length}", self.from, length - 1)));
        } else if let Some(checksum) = self.checksum {
            headers.push((UPLOAD_CHECKSUM, checksum.to_owned()));
        }
        headers
    }

    /// Sends from there on. It also ends if the proxy stops reading the file.
    async fn send(&self, token: &str) -> Result<ProxyAnswer, Broken> {
        let Sending { proxy, image, from, .. } = self;
        let sent = Arc::new(AtomicU64::new(*from));
        let endpoint = proxy.endpoint(token, *from > 0).await;
        let progress = Progress::of(*from, image.length());
        let (headers, body) = (self.headers(), image.body(*from, sent.clone()));
        let mut answer = std::pin::pin!(proxy.post(&endpoint, token, &headers, body));
        let mut look = interval(LOOK);
        look.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let started = Instant::now();
        let mut moved = (*from, started);
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
}
