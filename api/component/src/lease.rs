//! Leader election: one process of a component acts, the others wait.
//!
//! ```text
//!             lease free, or its record unchanged for its duration
//!   Waiting ------------------------------------------------------> Leading --- released at SIGTERM
//!      ^            (PUT with the resource version we saw)             |
//!      +--- another process renews                                     +--- no renewal for RENEW_DEADLINE: process ends
//! ```
//!
//! The times in the lease are only informative. A leader is alive if its record changes, measured with our
//! own monotonic clock from the moment we saw the record, as client-go does: clocks of two machines are never
//! compared. All writes carry the resource version that was read, so two candidates cannot both win. A leader
//! that could not renew for ten seconds ends its process, five seconds before another candidate may take
//! over. If the process was paused, the preconditions of its writes stop it afterwards.

use crate::error::response;
use crate::request::{self, Error};
use k8s_openapi::api::coordination::v1::{Lease, LeaseSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{MicroTime, ObjectMeta};
use k8s_openapi::jiff::Timestamp;
use kube::api::{Api, PostParams};
use std::time::{Duration, Instant};
use tracing::{debug, info, warn};

/// How long a record may stay unchanged before others take over.
pub const DURATION: Duration = Duration::from_secs(15);
/// How long the leader tries to renew before it gives up.
pub const RENEW_DEADLINE: Duration = Duration::from_secs(10);
/// Time between two attempts.
pub const RETRY: Duration = Duration::from_secs(2);

/// The action for the lease as it was read.
#[derive(Debug, PartialEq)]
pub enum Move {
    /// There is no lease: create it.
    Create(LeaseSpec),
    /// The lease is ours, free, or abandoned: replace its record.
    Replace(LeaseSpec),
    /// Another candidate holds it.
    Wait,
}

/// The result of reading the lease.
enum Turn {
    /// We lead.
    Leading,
    /// Another candidate leads.
    Other,
    /// The lease changed between read and write.
    Raced,
}

/// A candidate's memory of the lease.
pub struct Election {
    identity: String,
    /// The record last seen, and when it was first seen.
    seen: Option<(LeaseSpec, Instant)>,
}

impl Election {
    /// A candidate that has not read the lease yet.
    pub fn new(identity: impl Into<String>) -> Self {
        Election { identity: identity.into(), seen: None }
    }

    /// The action for the current record. `wall` is only written into the record.
    pub fn step(&mut self, record: Option<&LeaseSpec>, now: Instant, wall: Timestamp) -> Move {
        let Some(record) = record else { return Move::Create(self.record(None, wall)) };
        match &self.seen {
            Some((seen, _)) if seen == record => {}
            _ => self.seen = Some((record.clone(), now)),
        }
        let holder = record.holder_identity.as_deref().unwrap_or_default();
        if holder == self.identity || holder.is_empty() {
            return Move::Replace(self.record(Some(record), wall));
        }
        let duration = record
            .lease_duration_seconds
            .and_then(|seconds| u64::try_from(seconds).ok())
            .map_or(DURATION, Duration::from_secs);
        match self.seen {
            Some((_, since)) if now.duration_since(since) > duration => {
                Move::Replace(self.record(Some(record), wall))
            }
            _ => Move::Wait,
        }
    }

    /// The record that releases the lease, so that the next candidate need not wait.
    pub fn release(&self, record: &LeaseSpec, wall: Timestamp) -> Option<LeaseSpec> {
        (record.holder_identity.as_deref() == Some(&self.identity)).then(|| LeaseSpec {
            holder_identity: Some(String::new()),
            lease_duration_seconds: Some(1),
            renew_time: Some(MicroTime(wall)),
            ..record.clone()
        })
    }

    fn record(&self, old: Option<&LeaseSpec>, wall: Timestamp) -> LeaseSpec {
        let ours = old.filter(|old| old.holder_identity.as_deref() == Some(&self.identity));
        let changes = old.and_then(|old| old.lease_transitions).unwrap_or(0);
        LeaseSpec {
            holder_identity: Some(self.identity.clone()),
            lease_duration_seconds: i32::try_from(DURATION.as_secs()).ok(),
            acquire_time: ours.and_then(|ours| ours.acquire_time.clone()).or(Some(MicroTime(wall))),
            renew_time: Some(MicroTime(wall)),
            lease_transitions: Some(if ours.is_some() || old.is_none() {
                changes
            } else {
                changes.saturating_add(1)
            }),
            ..LeaseSpec::default()
        }
    }
}

/// The lease in the cluster, and our part in its election.
pub struct Candidate {
    leases: Api<Lease>,
    name: &'static str,
    election: Election,
}

impl Candidate {
    /// A candidate named `identity` for the lease of this name.
    pub fn new(leases: Api<Lease>, name: &'static str, identity: impl Into<String>) -> Self {
        Candidate { leases, name, election: Election::new(identity) }
    }

    /// Returns as soon as this process leads.
    pub async fn acquire(&mut self) {
        info!(lease = self.name, identity = self.election.identity, "waiting for the lease");
        loop {
            match self.turn().await {
                Ok(Turn::Leading) => break,
                Ok(Turn::Other | Turn::Raced) => {}
                Err(error) => warn!(error = %error.message(), "cannot get the lease"),
            }
            tokio::time::sleep(RETRY).await;
        }
        info!(lease = self.name, identity = self.election.identity, "leading");
    }

    /// Renews until that fails for [`RENEW_DEADLINE`] or another holds the lease; the caller then ends the process.
    pub async fn hold(&mut self) {
        let mut renewed = Instant::now();
        loop {
            tokio::time::sleep(RETRY).await;
            match tokio::time::timeout(RENEW_DEADLINE.saturating_sub(renewed.elapsed()), self.turn()).await {
                Ok(Ok(Turn::Leading)) => renewed = Instant::now(),
                Ok(Ok(Turn::Other)) => {
                    warn!(lease = self.name, "another process holds the lease");
                    return;
                }
                Ok(Ok(Turn::Raced)) | Err(_) => {}
                Ok(Err(error)) => debug!(error = %error.message(), "cannot renew the lease"),
            }
            if renewed.elapsed() >= RENEW_DEADLINE {
                warn!(lease = self.name, "the lease could not be renewed in time");
                return;
            }
        }
    }

    /// Releases the lease, if it is ours.
    pub async fn release(&self) -> Result<(), Error> {
        let name = self.name;
        let subject = || format!("lease {name}");
        let mut lease = request::call("get", subject, self.leases.get(name)).await?;
        let Some(record) = lease.spec.as_ref().and_then(|spec| self.election.release(spec, Timestamp::now()))
        else {
            return Ok(());
        };
        lease.spec = Some(record);
        request::call("release", subject, self.leases.replace(name, &PostParams::default(), &lease)).await?;
        info!(lease = self.name, "released the lease");
        Ok(())
    }

    /// One read and at most one write.
    async fn turn(&mut self) -> Result<Turn, Error> {
        let name = self.name;
        let subject = || format!("lease {name}");
        let lease = request::call("get", subject, self.leases.get_opt(name)).await?;
        let record = lease.as_ref().map(|lease| lease.spec.clone().unwrap_or_default());
        let written = match self.election.step(record.as_ref(), Instant::now(), Timestamp::now()) {
            Move::Wait => return Ok(Turn::Other),
            Move::Create(spec) => {
                let lease = Lease {
                    metadata: ObjectMeta { name: Some(name.to_owned()), ..ObjectMeta::default() },
                    spec: Some(spec),
                };
                request::call("create", subject, self.leases.create(&PostParams::default(), &lease)).await
            }
            Move::Replace(spec) => {
                let lease = Lease { spec: Some(spec), ..lease.unwrap_or_default() };
                request::call("update", subject, self.leases.replace(name, &PostParams::default(), &lease))
                    .await
            }
        };
        match written {
            Ok(_) => Ok(Turn::Leading),
            // Another write was faster: read the lease again soon.
            Err(Error::Api { source, .. }) if response(&source).is_some_and(|answer| answer.code == 409) => {
                Ok(Turn::Raced)
            }
            Err(error) => Err(error),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wall() -> Timestamp {
        Timestamp::UNIX_EPOCH
    }

    fn spec_of(a_move: Move) -> LeaseSpec {
        match a_move {
            Move::Create(spec) | Move::Replace(spec) => spec,
            Move::Wait => panic!("waits"),
        }
    }

    #[test]
    fn a_free_lease_is_taken_and_renewed() {
        let (mut a, now) = (Election::new("a"), Instant::now());
        let first = spec_of(a.step(None, now, wall()));
        assert_eq!(first.holder_identity.as_deref(), Some("a"));
        let again = spec_of(a.step(Some(&first), now, wall()));
        assert_eq!(again.lease_transitions, Some(0));
        assert_eq!(again.acquire_time, first.acquire_time);
    }

    #[test]
    fn another_waits_for_the_whole_duration_by_its_own_clock() {
        let (mut a, mut b, now) = (Election::new("a"), Election::new("b"), Instant::now());
        // The record claims to be from 1970, which has no effect.
        let record = spec_of(a.step(None, now, wall()));
        assert_eq!(b.step(Some(&record), now, wall()), Move::Wait);
        assert_eq!(b.step(Some(&record), now + DURATION, wall()), Move::Wait);
        let taken = spec_of(b.step(Some(&record), now + DURATION + RETRY, wall()));
        assert_eq!((taken.holder_identity.as_deref(), taken.lease_transitions), (Some("b"), Some(1)));
    }

    #[test]
    fn a_renewal_restarts_the_wait() {
        let (mut a, mut b, now) = (Election::new("a"), Election::new("b"), Instant::now());
        let record = spec_of(a.step(None, now, wall()));
        assert_eq!(b.step(Some(&record), now, wall()), Move::Wait);
        let renewed = spec_of(a.step(Some(&record), now, Timestamp::MAX));
        assert_eq!(b.step(Some(&renewed), now + DURATION, wall()), Move::Wait);
        assert_eq!(b.step(Some(&renewed), now + DURATION + RETRY, wall()), Move::Wait);
    }

    #[test]
    fn a_released_lease_is_taken_at_once() {
        let (mut a, mut b, now) = (Election::new("a"), Election::new("b"), Instant::now());
        let record = spec_of(a.step(None, now, wall()));
        assert_eq!(b.release(&record, wall()), None);
        let released = a.release(&record, wall()).unwrap();
        assert!(matches!(b.step(Some(&released), now, wall()), Move::Replace(_)));
    }
}
