//! Request bodies, limited by a budget, because they are read before the sender is known.
//!
//! ```text
//!   length from the head --> bytes of the small or the large pool --> arrives in time --> weight --> is parsed
//!                            of all, and of one address: waits        else: refused              waits, or refused
//! ```
//!
//! A body of unknown length counts as the longest. Small bodies have their own pool, so that large ones do
//! not delay them: reviews are small. The bytes are returned when the [`Whole`] is dropped.

use super::Caller;
use super::places::Work;
use super::weight::weight;
use http::Request;
use http_body_util::BodyExt;
use hyper::body::{Body, Bytes, Incoming};
use std::collections::HashMap;
use std::net::IpAddr;
use std::ops::Deref;
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::timeout;

/// A body's largest size: an AdmissionReview carries the old and the new object, each at most etcd's 1.5 MB.
pub const LARGEST: usize = 8 << 20;
/// Up to this size a body is small.
const SMALL: usize = 64 << 10;
/// Bytes of all small bodies at one time, and of all large ones.
const OF_SMALL: usize = 16 << 20;
const OF_LARGE: usize = 32 << 20;
/// Weight of all bodies that are being answered at one time, which also limits a single one.
const OF_WEIGHT: usize = 64 << 20;
/// How long a body may wait for bytes of the pool, and for weight.
const WAIT: Duration = Duration::from_secs(5);
/// How long a small body may take to arrive, and a large one.
const SMALL_WITHIN: Duration = Duration::from_secs(3);
const LARGE_WITHIN: Duration = Duration::from_secs(10);
/// Bytes that one permit stands for.
const UNIT: usize = 1 << 10;

/// Why a body was not read.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NotRead {
    /// It is longer than the limit.
    #[error("the request's body is longer than {LARGEST} bytes")]
    TooLarge,
    /// It would take too much memory after parsing.
    #[error("the request's body has too many parts")]
    TooHeavy,
    /// Other requests have all the bytes of the pool.
    #[error("too many requests have a body to be read")]
    Busy,
    /// It did not arrive in time.
    #[error("the request's body did not arrive in time")]
    Late,
    /// The connection failed.
    #[error("read the request's body: {0}")]
    Broken(String),
}

/// A complete body. While it is held, its bytes count, and its connection keeps its place.
#[derive(Debug)]
pub struct Whole {
    bytes: Bytes,
    _held: [OwnedSemaphorePermit; 3],
    _work: Work,
}

impl Deref for Whole {
    type Target = Bytes;

    fn deref(&self) -> &Bytes {
        &self.bytes
    }
}

/// The budget of a server.
#[derive(Debug)]
pub struct Bodies {
    small: Pool,
    large: Pool,
    weight: Arc<Semaphore>,
}

impl Default for Bodies {
    fn default() -> Self {
        Bodies {
            small: Pool::new(OF_SMALL),
            large: Pool::new(OF_LARGE),
            weight: Arc::new(Semaphore::new(OF_WEIGHT / UNIT)),
        }
    }
}

impl Bodies {
    /// Reads a JSON body.
    ///
    /// # Errors
    /// The reason why it was not read; the bytes received so far are dropped.
    pub async fn read(&self, caller: &Caller, request: Request<Incoming>) -> Result<Whole, NotRead> {
        let body = request.into_body();
        let hint = body.size_hint();
        let length = hint.exact().map_or(LARGEST, |length| usize::try_from(length).unwrap_or(usize::MAX));
        if length > LARGEST || hint.lower() > LARGEST as u64 {
            return Err(NotRead::TooLarge);
        }
        let (pool, within) =
            if length <= SMALL { (&self.small, SMALL_WITHIN) } else { (&self.large, LARGE_WITHIN) };
        let [share, held] = pool.take(caller.address, length).await?;
        let bytes = match timeout(within, collect(body, length)).await {
            Ok(collected) => collected?,
            Err(_) => return Err(NotRead::Late),
        };
        // From here on the client cannot delay anything.
        let work = caller.work();
        let weight = weight(&bytes);
        if weight > OF_WEIGHT {
            return Err(NotRead::TooHeavy);
        }
        let weight = permits(&self.weight, weight).await?;
        Ok(Whole { bytes: bytes.into(), _held: [share, held, weight], _work: work })
    }
}

async fn collect(mut body: Incoming, length: usize) -> Result<Vec<u8>, NotRead> {
    // Memory that is not written to costs nothing.
    let mut bytes = Vec::with_capacity(length);
    while let Some(frame) = body.frame().await {
        let frame = frame.map_err(|error| NotRead::Broken(error.to_string()))?;
        let Ok(data) = frame.into_data() else { continue };
        if bytes.len() + data.len() > length {
            return Err(NotRead::TooLarge);
        }
        bytes.extend_from_slice(&data);
    }
    Ok(bytes)
}

async fn permits(of: &Arc<Semaphore>, bytes: usize) -> Result<OwnedSemaphorePermit, NotRead> {
    let count = u32::try_from(bytes.div_ceil(UNIT)).unwrap_or(u32::MAX);
    match timeout(WAIT, of.clone().acquire_many_owned(count)).await {
        Ok(Ok(permits)) => Ok(permits),
        // The semaphores are never closed.
        Ok(Err(_)) | Err(_) => Err(NotRead::Busy),
    }
}

/// Bytes of which one address can have at most half.
#[derive(Debug)]
struct Pool {
    all: Arc<Semaphore>,
    share: usize,
    shares: Mutex<HashMap<IpAddr, Weak<Semaphore>>>,
}

impl Pool {
    fn new(bytes: usize) -> Self {
        let all = Arc::new(Semaphore::new(bytes / UNIT));
        Pool { all, share: bytes / UNIT / 2, shares: Mutex::default() }
    }

    /// Takes bytes from the address's share, and then from the pool: a waiting request holds no bytes that
    /// another one waits for.
    async fn take(&self, address: IpAddr, bytes: usize) -> Result<[OwnedSemaphorePermit; 2], NotRead> {
        let share = self.share_of(address);
        let share = permits(&share, bytes).await?;
        Ok([share, permits(&self.all, bytes).await?])
    }

    fn share_of(&self, address: IpAddr) -> Arc<Semaphore> {
        let mut shares = self.shares.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(share) = shares.get(&address).and_then(Weak::upgrade) {
            return share;
        }
        // Shares that no request waits for or holds are removed.
        shares.retain(|_, share| share.strong_count() > 0);
        let share = Arc::new(Semaphore::new(self.share));
        shares.insert(address, Arc::downgrade(&share));
        share
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::Ipv4Addr;

    fn from(last: u8) -> IpAddr {
        Ipv4Addr::new(10, 0, 0, last).into()
    }

    #[tokio::test(start_paused = true)]
    async fn bytes_are_waited_for_and_then_refused() {
        let pool = Pool::new(4 * LARGEST);
        let held = [pool.take(from(1), LARGEST).await.unwrap(), pool.take(from(1), LARGEST).await.unwrap()];
        // One address gets at most half of the pool, even if the rest is free.
        assert_eq!(pool.take(from(1), LARGEST).await.unwrap_err(), NotRead::Busy);
        let other = [pool.take(from(2), LARGEST).await.unwrap(), pool.take(from(3), LARGEST).await.unwrap()];
        assert_eq!(pool.take(from(4), UNIT).await.unwrap_err(), NotRead::Busy);
        drop(held);
        assert!(pool.take(from(1), LARGEST).await.is_ok());
        drop(other);
        assert_eq!(pool.all.available_permits(), 4 * LARGEST / UNIT);
        let _last = pool.share_of(from(9));
        assert_eq!(pool.shares.lock().unwrap().len(), 1);
    }

    #[tokio::test(start_paused = true)]
    async fn a_waiting_request_gets_the_freed_memory() {
        let pool = Arc::new(Pool::new(2 * LARGEST));
        let held = pool.take(from(1), LARGEST).await.unwrap();
        let waits = tokio::spawn({
            let pool = pool.clone();
            async move { pool.take(from(1), LARGEST).await.is_ok() }
        });
        tokio::time::sleep(WAIT / 2).await;
        drop(held);
        assert!(waits.await.unwrap());
    }
}
