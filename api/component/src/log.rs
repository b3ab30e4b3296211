//! The log: JSON lines on standard error, with a level that can be changed while the process runs.
//!
//! Levels are numbered as in klog and KubeVirt: 2 is the default, 3 to 5 are more detailed, 6 to 9 log
//! everything. Levels above the default apply only to our own code, because the lines of TLS and HTTP
//! libraries would fill the log and may contain secrets.

use crate::installation::Installation;
use barevirt_api::settings::Component;
use std::fmt;
use tracing::info;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{EnvFilter, Registry, fmt as format, reload};

/// The default level. The client library logs each failed request as an error; the caller of the request logs
/// the consequence instead.
const USUAL: &str = "info,kube_client::client::builder=off";
/// Prefixes of our crates' names, and so of their log targets.
const OURS: [&str; 2] = ["barevirt_", "virt_"];

/// The level of this process's log.
#[derive(Clone)]
pub struct Level {
    handle: reload::Handle<EnvFilter, Registry>,
    /// The level if the `KubeVirt` object gives none: that of the environment.
    own: String,
}

impl fmt::Debug for Level {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Level").field("own", &self.own).finish_non_exhaustive()
    }
}

/// Starts the log of this process; `RUST_LOG` applies until the `KubeVirt` object gives a level.
pub fn start() -> Level {
    let given = std::env::var("RUST_LOG").unwrap_or_default();
    let good = !given.is_empty() && EnvFilter::try_new(&given).is_ok();
    let own = if good { given.clone() } else { USUAL.to_owned() };
    let (filter, handle) = reload::Layer::new(EnvFilter::new(&own));
    let lines = format::layer()
        .json()
        .flatten_event(true)
        .with_current_span(false)
        .with_span_list(false)
        .with_writer(std::io::stderr);
    // This only fails if a log was already started, which is then used.
    let _ = tracing_subscriber::registry().with(filter).with(lines).try_init();
    if !good && !given.is_empty() {
        tracing::warn!(RUST_LOG = given, "not understood: the default level applies");
    }
    Level { handle, own }
}

impl Level {
    /// Sets the level; `None` means the process's own.
    fn set(&self, verbosity: Option<u32>) {
        let directives = verbosity.map_or_else(|| self.own.clone(), directives);
        // This only fails if the log no longer exists.
        let _ = self.handle.reload(EnvFilter::new(&directives));
        info!(verbosity, directives, "log level");
    }

    /// Follows `developerConfiguration.logVerbosity` for a component on a node until the future is dropped.
    pub async fn follow(self, installation: Installation, component: Component, node: String) {
        let mut first = true;
        let of = |settings: &barevirt_api::settings::Settings| settings.verbosity.of(component, &node);
        installation
            .follow(of, |verbosity| {
                // At the start, the process's own level is already set.
                if verbosity.is_some() || !first {
                    self.set(*verbosity);
                }
                first = false;
            })
            .await;
    }
}

/// The log filter of a level.
fn directives(verbosity: u32) -> String {
    let level = match verbosity {
        0..=2 => return USUAL.to_owned(),
        3..=5 => "debug",
        6.. => "trace",
    };
    let ours = OURS.map(|prefix| format!("{prefix}={level}"));
    format!("{USUAL},{}", ours.join(","))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::{Arc, Mutex};

    #[derive(Clone, Default)]
    struct Lines(Arc<Mutex<Vec<u8>>>);

    impl std::io::Write for Lines {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            self.0.lock().unwrap().extend_from_slice(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }

    /// The lines that events of each level produce, from our code and from a library's.
    fn said(verbosity: Option<u32>) -> Vec<String> {
        let lines = Lines::default();
        let writer = lines.clone();
        let (filter, handle) = reload::Layer::new(EnvFilter::new("warn"));
        let layer = format::layer().json().flatten_event(true).with_writer(move || writer.clone());
        let subscriber = tracing_subscriber::registry().with(filter).with(layer);
        tracing::subscriber::with_default(subscriber, || {
            Level { handle, own: "warn".to_owned() }.set(verbosity);
            tracing::info!(target: "virt_handler::sync", "ours info");
            tracing::debug!(target: "virt_handler::sync", "ours debug");
            tracing::trace!(target: "barevirt_component::x", "ours trace");
            tracing::info!(target: "hyper::proto", "library info");
            tracing::debug!(target: "hyper::proto", "library debug");
        });
        let bytes = lines.0.lock().unwrap().clone();
        String::from_utf8(bytes)
            .unwrap()
            .lines()
            .filter_map(|line| {
                let line: serde_json::Value = serde_json::from_str(line).unwrap();
                line["message"].as_str().map(str::to_owned)
            })
            .filter(|message| message != "log level")
            .collect()
    }

    #[test]
    fn levels_change_while_the_process_runs() {
        assert_eq!(said(None), Vec::<String>::new());
        for usual in 0..=2 {
            assert_eq!(said(Some(usual)), ["ours info", "library info"], "{usual}");
        }
        for more in 3..=5 {
            assert_eq!(said(Some(more)), ["ours info", "ours debug", "library info"], "{more}");
        }
        for all in 6..=9 {
            assert_eq!(said(Some(all)), ["ours info", "ours debug", "ours trace", "library info"], "{all}");
        }
    }
}
