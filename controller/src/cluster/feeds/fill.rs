//! Fills a cache from a watch, and reports each change.

use barevirt_component::error::chain;
use futures::StreamExt;
use kube::Resource;
use kube::api::Api;
use kube::runtime::WatchStreamExt;
use kube::runtime::reflector::store::Writer;
use kube::runtime::watcher::{self, Event, watcher};
use serde::de::DeserializeOwned;
use std::collections::HashSet;
use std::fmt::Debug;
use tracing::warn;

/// A change that a watch reports.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Change {
    /// The object exists.
    Seen,
    /// It was deleted; this was its last state.
    Gone,
    /// It no longer exists, and its deletion was not seen; this is an earlier state.
    Missed,
}

/// Keeps a cache filled and reports each change, also changes during an interruption of the watch. The objects of a list are
/// passed to `listed` before the cache counts as filled.
pub(super) async fn feed<K>(
    api: Api<K>,
    config: watcher::Config,
    writer: Writer<K>,
    mut listed: impl FnMut(&K),
    changed: impl FnMut(&K, Change),
) where
    K: Resource<DynamicType = ()> + Clone + Debug + DeserializeOwned + Send + 'static,
{
    let listed = |object: Option<&K>| object.into_iter().for_each(&mut listed);
    fill(api, config, writer, |_| true, listed, changed).await;
}

/// The same with a cache that keeps only some objects. A list ends with `listed(None)`; nothing else is reported of objects
/// that are not kept.
pub(super) async fn feed_some<K>(
    api: Api<K>,
    writer: Writer<K>,
    kept: impl Fn(&K) -> bool,
    listed: impl FnMut(Option<&K>),
    changed: impl FnMut(&K, Change),
) where
    K: Resource<DynamicType = ()> + Clone + Debug + DeserializeOwned + Send + 'static,
{
    fill(api, watcher::Config::default(), writer, kept, listed, changed).await;
}

async fn fill<K>(
    api: Api<K>,
    config: watcher::Config,
    mut writer: Writer<K>,
    kept: impl Fn(&K) -> bool,
    mut listed: impl FnMut(Option<&K>),
    mut changed: impl FnMut(&K, Change),
) where
    K: Resource<DynamicType = ()> + Clone + Debug + DeserializeOwned + Send + 'static,
{
    let reader = writer.as_reader();
    let kind = K::kind(&()).into_owned();
    let mut events = std::pin::pin!(watcher(api, config).default_backoff());
    while let Some(event) = events.next().await {
        let mut event = match event {
            Ok(event) => event,
            Err(error) => {
                warn!(kind, error = %chain(&error), "the watch is interrupted");
                continue;
            }
        };
        if let Event::Apply(object) | Event::InitApply(object) = &mut event {
            // Managed fields are by far the largest part of many objects, and nothing here reads them.
            object.meta_mut().managed_fields = None;
        }
        let before = if matches!(event, Event::InitDone) { reader.state() } else { vec![] };
        match &event {
            Event::Apply(object) if !kept(object) => {
                writer.apply_watcher_event(&Event::Delete(object.clone()));
            }
            Event::InitApply(object) if !kept(object) => {}
            _ => writer.apply_watcher_event(&event),
        }
        match &event {
            Event::Apply(object) => changed(object, Change::Seen),
            Event::Delete(object) => changed(object, Change::Gone),
            Event::InitApply(object) => listed(Some(object)),
            Event::Init => {}
            Event::InitDone => {
                listed(None);
                let now = reader.state();
                let there: HashSet<_> = now.iter().map(|object| object.meta().uid.clone()).collect();
                for object in before.iter().filter(|object| !there.contains(&object.meta().uid)) {
                    changed(object, Change::Missed);
                }
                for object in &now {
                    changed(object, Change::Seen);
                }
            }
        }
    }
}
