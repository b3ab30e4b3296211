//! The log: JSON lines on standard error, with a level that can be changed while the process runs.
//!
//! Levels are counted as klog and KubeVirt do: 2 is the usual one, 3 to 5 say more, 6 to 9 say all. More than the usual is
//! said by our own code only: what TLS and HTTP libraries have to say fills a log, and may have secrets in it.

use crate::installation::Installation;
use barevirt_api::settings::Component;
use std::fmt;
use tracing::info;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{EnvFilter, Registry, fmt as format, reload};

/// The level where nobody says anything. The client library calls each failed request an error; whoever made it says what comes
/// of it.
const USUAL: &str = "info,kube_client::client::builder=off";
/// What the names of our crates begin with, and so the targets of what they log.
const OURS: [&str; 2] = ["barevirt_", "virt_"];

/// The level of this process's log.
#[derive(Clone)]
pub struct Level {
    handle: reload::Handle<EnvFilter, Registry>,
    /// What holds where the `KubeVirt` object says nothing: the environment's word.
    own: String,
}

impl fmt::Debug for Level {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Level").field("own", &self.own).finish_non_exhaustive()
    }
}

/// Starts the log of this process; `RUST_LOG` holds until the `KubeVirt` object says a level.
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
    // Fails only where a log was started before, which then goes on.
    let _ = tracing_subscriber::registry().with(filter).with(lines).try_init();
    if !good && !given.is_empty() {
        tracing::warn!(RUST_LOG = given, "not understood: the usual level holds");
    }
    Level { handle, own }
}

impl Level {
    /// Takes the level over; none is the process's own.
    fn set(&self, verbosity: Option<u32>) {
        let directives = verbosity.map_or_else(|| self.own.clone(), directives);
        // Fails only where the log is gone.
        let _ = self.handle.reload(EnvFilter::new(&directives));
        info!(verbosity, directives, "log level");
    }

    /// Follows `developerConfiguration.logVerbosity` for a component on a node until the future is dropped.
    pub async fn follow(self, installation: Installation, component: Component, node: String) {
        let mut first = true;
        let of = |settings: &barevirt_api::settings::Settings| settings.verbosity.of(component, &node);
        installation
            .follow(of, |verbosity| {
                // At the start, its own level holds already.
                if verbosity.is_some() || !first {
                    self.set(*verbosity);
                }
                first = false;
            })
            .await;
    }
}

/// What a level means.
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

    /// The lines that come of one event of each level, from our code and from a library's.
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
