//! Limits on the number of streams, for each guest and each user, and the memory of a stream.
//!
//! A stream is a console, a display, a USB device or a forwarded connection. Without limits, a loop of one
//! user could take all memory, or all connections that this server accepts.

use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{SystemTime, UNIX_EPOCH};

use barevirt_component::metrics::begin;
use barevirt_component::metrics::names::{CONSOLES, DISPLAYS, LAST_CONNECTION, Metric, TUNNELS, USB_CLIENTS};
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::gauge::ConstGauge;

use crate::answer::Refusal;

/// Streams to one guest at the same time.
pub const OF_GUEST: usize = 128;
/// Streams of one user at the same time.
pub const OF_USER: usize = 512;

/// Guests whose last connection is known.
const REMEMBERED: usize = 4096;

/// All open streams.
#[derive(Debug, Clone, Default)]
pub struct Streams(Arc<Mutex<Known>>);

#[derive(Debug, Default)]
struct Known {
    /// How many streams each holder has.
    open: HashMap<Holder, usize>,
    /// When a stream to a guest was last opened, in seconds since 1970, by namespace and name.
    last: HashMap<(String, String), u64>,
}

impl Known {
    /// Remembers a connection to a guest. The guest whose connection is longest ago is forgotten if there are too many.
    fn remember(&mut self, namespace: &str, name: &str, now: SystemTime) {
        let seconds = now.duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
        self.last.insert((namespace.to_owned(), name.to_owned()), seconds);
        if self.last.len() > REMEMBERED {
            let oldest = self.last.iter().min_by_key(|(_, time)| **time).map(|(guest, _)| guest.clone());
            if let Some(oldest) = oldest {
                self.last.remove(&oldest);
            }
        }
    }
}

/// The target of a stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Kind {
    /// The serial console.
    Console,
    /// The display.
    Display,
    /// A slot for a USB device.
    Usb,
    /// A port of the guest.
    Port,
    /// QEMU's monitor. KubeVirt has no such stream, and no metric for it.
    Qmp,
    /// The same for a user who may only query.
    QmpQueries,
}

impl Kind {
    fn metric(self) -> Option<&'static Metric> {
        match self {
            Kind::Console => Some(&CONSOLES),
            Kind::Display => Some(&DISPLAYS),
            Kind::Usb => Some(&USB_CLIENTS),
            Kind::Port => Some(&TUNNELS),
            Kind::Qmp | Kind::QmpQueries => None,
        }
    }

    /// Streams of this kind to one guest at the same time, if the limit is lower than [`OF_GUEST`]. A
    /// launcher serves 16 clients of its monitor: users who may only query, through two virt-apis, get half
    /// of them.
    fn of_guest(self) -> usize {
        match self {
            Kind::QmpQueries => 4,
            Kind::Console | Kind::Display | Kind::Usb | Kind::Port | Kind::Qmp => OF_GUEST,
        }
    }
}

/// Users and guests that have streams.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
enum Holder {
    User(String),
    Guest(String, String),
    /// Streams of one kind to a guest, for metrics.
    Kind(Kind, String, String),
}

/// An open stream, counted as long as this value is held.
#[derive(Debug)]
pub struct Seat {
    streams: Streams,
    holders: [Holder; 3],
}

impl Streams {
    /// Opens a stream.
    ///
    /// # Errors
    /// 429 with the name of the user or the guest that has too many.
    pub fn open(&self, kind: Kind, user: &str, namespace: &str, name: &str) -> Result<Seat, Refusal> {
        let holders = [
            Holder::User(user.to_owned()),
            Holder::Guest(namespace.to_owned(), name.to_owned()),
            Holder::Kind(kind, namespace.to_owned(), name.to_owned()),
        ];
        let mut known = self.lock();
        let of = |holder: &Holder| known.open.get(holder).copied().unwrap_or_default();
        if of(&holders[0]) >= OF_USER {
            return Err(Refusal::too_many(format!(
                "user \"{user}\" has {OF_USER} streams open, and may have no more: close one first"
            )));
        }
        if of(&holders[1]) >= OF_GUEST {
            return Err(Refusal::too_many(format!(
                "virtualmachineinstance {namespace}/{name} has {OF_GUEST} streams open, and may have no more: \
                 close one first"
            )));
        }
        let most = kind.of_guest();
        if of(&holders[2]) >= most {
            return Err(Refusal::too_many(format!(
                "virtualmachineinstance {namespace}/{name} has {most} streams of this kind open, and may have no more: close \
                 one first"
            )));
        }
        for holder in &holders {
            *known.open.entry(holder.clone()).or_default() += 1;
        }
        // QEMU's monitor is no connection to the guest.
        if kind.metric().is_some() {
            known.remember(namespace, name, SystemTime::now());
        }
        drop(known);
        Ok(Seat { streams: self.clone(), holders })
    }

    fn lock(&self) -> MutexGuard<'_, Known> {
        // No code panics while it holds the lock with the map half changed.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Collector for Streams {
    fn encode(&self, mut encoder: DescriptorEncoder) -> Result<(), fmt::Error> {
        // The counts are copied, so that no stream waits for the metrics.
        let mut of_kind: BTreeMap<Kind, Vec<(String, String, usize)>> = BTreeMap::new();
        let known = self.lock();
        for (holder, count) in &known.open {
            if let Holder::Kind(kind, namespace, name) = holder {
                of_kind.entry(*kind).or_default().push((namespace.clone(), name.clone(), *count));
            }
        }
        let last = known.last.clone();
        drop(known);
        for (kind, guests) in &of_kind {
            let Some(metric) = kind.metric() else { continue };
            let mut family = begin(&mut encoder, metric)?;
            for (namespace, name, count) in guests {
                let labels = [("namespace", namespace.as_str()), ("vmi", name.as_str())];
                let count = ConstGauge::new(i64::try_from(*count).unwrap_or(i64::MAX));
                count.encode(family.encode_family(&labels)?)?;
            }
        }
        let mut family = begin(&mut encoder, &LAST_CONNECTION)?;
        for ((namespace, name), seconds) in &last {
            let labels = [("namespace", namespace.as_str()), ("vmi", name.as_str())];
            let seconds = ConstGauge::new(i64::try_from(*seconds).unwrap_or(i64::MAX));
            seconds.encode(family.encode_family(&labels)?)?;
        }
        Ok(())
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        let mut known = self.streams.lock();
        for holder in &self.holders {
            if let Some(count) = known.open.get_mut(holder) {
                *count -= 1;
                if *count == 0 {
                    known.open.remove(holder);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_number_of_streams_of_a_guest_and_of_a_user_is_limited() {
        let streams = Streams::default();
        let mut held: Vec<Seat> = (0..OF_GUEST)
            .map(|number| streams.open(Kind::Port, &format!("user{number}"), "shop", "web").unwrap())
            .collect();
        let refused = streams.open(Kind::Port, "jdoe", "shop", "web").unwrap_err();
        assert_eq!((refused.code.as_u16(), refused.reason), (429, "TooManyRequests"));
        assert!(refused.message.contains("virtualmachineinstance shop/web has 128 streams"), "{refused:?}");
        assert!(streams.open(Kind::Port, "jdoe", "shop", "db").is_ok());
        held.pop();
        assert!(streams.open(Kind::Port, "jdoe", "shop", "web").is_ok());
        drop(held);
        let held: Vec<Seat> = (0..OF_USER)
            .map(|number| streams.open(Kind::Port, "jdoe", "shop", &format!("vm{number}")).unwrap())
            .collect();
        let refused = streams.open(Kind::Port, "jdoe", "shop", "web").unwrap_err();
        assert!(refused.message.contains("user \"jdoe\" has 512 streams"), "{refused:?}");
        assert!(streams.open(Kind::Port, "other", "shop", "web").is_ok());
        drop(held);
        assert!(streams.lock().open.is_empty());
    }

    #[test]
    fn read_only_clients_leave_room_at_the_monitor() {
        let streams = Streams::default();
        let open = |name: &str| streams.open(Kind::QmpQueries, "viewer", "shop", name);
        let held: Vec<Seat> = (0..4).map(|_| open("web").unwrap()).collect();
        let refused = open("web").unwrap_err();
        assert_eq!(refused.code.as_u16(), 429);
        assert!(
            refused.message.contains("virtualmachineinstance shop/web has 4 streams of this kind"),
            "{refused:?}"
        );
        assert!(open("db").is_ok());
        assert!(streams.open(Kind::Qmp, "admin", "shop", "web").is_ok());
        drop(held);
        assert!(open("web").is_ok());
    }

    #[test]
    fn the_last_connection_is_known_after_its_end() {
        let streams = Streams::default();
        let mut metrics = barevirt_component::metrics::Metrics::default();
        metrics.collect(streams.clone());
        let now = || SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs();
        let before = now();
        drop(streams.open(Kind::Console, "jdoe", "shop", "web").unwrap());
        drop(streams.open(Kind::Qmp, "jdoe", "shop", "db").unwrap());
        let text = metrics.text();
        let line = "\nkubevirt_vmi_last_api_connection_timestamp_seconds{namespace=\"shop\",vmi=\"web\"} ";
        let (_, rest) = text.split_once(line).unwrap();
        let seconds: u64 = rest.lines().next().unwrap().parse().unwrap();
        assert!((before..=now()).contains(&seconds), "{text}");
        assert!(!text.contains("vmi=\"db\""), "{text}");
    }

    #[test]
    fn the_oldest_connection_is_forgotten_first() {
        let mut known = Known::default();
        let at = |second| UNIX_EPOCH + std::time::Duration::from_secs(second);
        known.remember("shop", "first", at(1));
        for number in 0..REMEMBERED {
            known.remember("shop", &format!("vm{number}"), at(2));
        }
        assert_eq!(known.last.len(), REMEMBERED);
        assert!(!known.last.contains_key(&("shop".to_owned(), "first".to_owned())));
    }

    #[test]
    fn open_streams_are_counted_by_kind_and_guest() {
        let streams = Streams::default();
        let mut metrics = barevirt_component::metrics::Metrics::default();
        metrics.collect(streams.clone());
        let open = |kind, name| streams.open(kind, "jdoe", "shop", name).unwrap();
        let held = [open(Kind::Console, "web"), open(Kind::Console, "web"), open(Kind::Qmp, "web")];
        let display = open(Kind::Display, "db");
        let usb = [open(Kind::Usb, "db"), open(Kind::Usb, "db")];
        let line = |metric: &str, name: &str, count: u32| {
            format!("\nkubevirt_{metric}{{namespace=\"shop\",vmi=\"{name}\"}} {count}\n")
        };
        let text = metrics.text();
        assert!(text.contains(&line("console_active_connections", "web", 2)), "{text}");
        assert!(text.contains(&line("vnc_active_connections", "db", 1)), "{text}");
        assert!(text.contains(&line("usbredir_active_connections", "db", 2)), "{text}");
        drop(display);
        let text = metrics.text();
        assert!(!text.contains("kubevirt_vnc_active") && text.contains("kubevirt_console_active"), "{text}");
        drop((held, usb));
    }
}
