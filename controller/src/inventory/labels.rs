//! The labels of machines that become metrics: all, or those that a config map names.

use barevirt_api::names::VM_LABELS_CONFIG_MAP;
use futures::StreamExt;
use k8s_openapi::api::core::v1::ConfigMap;
use kube::runtime::WatchStreamExt;
use kube::runtime::watcher::watch_object;
use kube::{Api, Client};
use std::collections::{BTreeMap, BTreeSet};
use std::pin::pin;
use tracing::{info, warn};

/// Most labels of a machine that are kept: users may write any number.
const MOST: usize = 64;

/// The contents of the config map.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Shown {
    /// Only these; `None` for all.
    allowed: Option<BTreeSet<String>>,
    /// Never these.
    ignored: BTreeSet<String>,
}

impl Shown {
    /// All labels without the config map, and without a list in it, as in KubeVirt.
    fn of(config: Option<&ConfigMap>) -> Self {
        let data = config.and_then(|config| config.data.as_ref());
        let list = |name: &str| {
            let words = data?.get(name)?.split(',').map(str::trim).filter(|word| !word.is_empty());
            Some(words.map(str::to_owned).collect::<BTreeSet<_>>())
        };
        Shown {
            allowed: list("allowlist").filter(|allowed| !allowed.contains("*")),
            ignored: list("ignorelist").unwrap_or_default(),
        }
    }

    fn shows(&self, key: &str) -> bool {
        !self.ignored.contains(key) && self.allowed.as_ref().is_none_or(|allowed| allowed.contains(key))
    }
}

/// Labels of a machine and of its template; the template's count where both have one.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Labels(Box<[(Box<str>, Box<str>)]>);

impl Labels {
    pub(super) fn of<'a>(both: impl IntoIterator<Item = Option<&'a BTreeMap<String, String>>>) -> Self {
        let all: BTreeMap<&String, &String> = both.into_iter().flatten().flatten().collect();
        Labels(
            all.into_iter()
                .take(MOST)
                .map(|(key, value)| (key.as_str().into(), value.as_str().into()))
                .collect(),
        )
    }

    /// The selected labels under Prometheus names. Two may get the same name: the last counts, since a line may not repeat a
    /// label.
    pub(super) fn exported(&self, shown: &Shown) -> BTreeMap<String, &str> {
        let all = self.0.iter().filter(|(key, _)| shown.shows(key));
        all.map(|(key, value)| (name(key), &**value)).collect()
    }
}

/// The name as in KubeVirt.
fn name(key: &str) -> String {
    let plain = |letter: char| letter.is_ascii_alphanumeric() || letter == '_';
    let gap = if key.starts_with(|first: char| first.is_ascii_digit()) { "_" } else { "" };
    let letters = key.chars().map(|letter| if plain(letter) { letter } else { '_' });
    format!("label_{gap}{}", letters.collect::<String>())
}

/// Reports each change of the config map, until the future is dropped.
pub(super) async fn follow(client: Client, namespace: &str, mut tell: impl FnMut(Shown)) {
    let config_maps: Api<ConfigMap> = Api::namespaced(client, namespace);
    let mut changes = pin!(watch_object(config_maps, VM_LABELS_CONFIG_MAP).default_backoff());
    let mut last = Shown::default();
    while let Some(change) = changes.next().await {
        match change.map(|config| Shown::of(config.as_ref())) {
            Ok(shown) if shown != last => {
                info!(?shown, "labels of machines in metrics");
                last = shown.clone();
                tell(shown);
            }
            Ok(_) => {}
            Err(error) => warn!(%error, name = VM_LABELS_CONFIG_MAP, "config map not watched"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn shown(data: Value) -> Shown {
        Shown::of(Some(&serde_json::from_value(json!({"metadata": {"name": "x"}, "data": data})).unwrap()))
    }

    #[test]
    fn all_labels_without_a_list_and_none_with_an_empty_one() {
        assert!(Shown::of(None).shows("a") && shown(json!(null)).shows("a") && shown(json!({})).shows("a"));
        assert!(shown(json!({"allowlist": "b, *"})).shows("a"));
        assert!(!shown(json!({"allowlist": ""})).shows("a"));
        let some = shown(json!({"allowlist": " a ,b,,c", "ignorelist": "b,*"}));
        assert_eq!(["a", "b", "c", "d"].map(|key| some.shows(key)), [true, false, true, false]);
    }

    #[test]
    fn labels_have_prometheus_names_once_each() {
        let map = |given: &[(&str, &str)]| -> BTreeMap<String, String> {
            given.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect()
        };
        let own = map(&[
            ("app.kubernetes.io/name", "shop"),
            ("tier", "old"),
            ("1st", "x"),
            ("a-b", "1"),
            ("a.b", "2"),
        ]);
        let template = map(&[("tier", "new")]);
        let labels = Labels::of([Some(&own), None, Some(&template)]);
        let exported = labels.exported(&Shown::default());
        let exported: Vec<(&str, &str)> =
            exported.iter().map(|(name, value)| (name.as_str(), *value)).collect();
        assert_eq!(
            exported,
            [
                ("label__1st", "x"),
                ("label_a_b", "2"),
                ("label_app_kubernetes_io_name", "shop"),
                ("label_tier", "new")
            ]
        );
        let many: BTreeMap<String, String> = (0..100).map(|n| (format!("k{n}"), String::new())).collect();
        assert_eq!(Labels::of([Some(&many)]).exported(&Shown::default()).len(), MOST);
    }
}
