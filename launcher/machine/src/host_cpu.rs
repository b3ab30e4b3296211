//! CPU features that a guest can have on this host: QEMU's own answers, queried before the guest's QEMU is
//! started.
//!
//! ```text
//!   question() ──> does the manifest need to know? ──> the launcher asks a QEMU without a machine
//!                                                          query-cpu-model-expansion  host or max
//!                                                          query-cpu-definitions      if a model is named
//!   HostCpu::new() <───────────────────────────────────────┘
//! ```

use crate::facts::Accelerator;
use barevirt_api::valid::ValidVmi;
use serde_json::{Map, Value};

/// CPU models of the API that QEMU does not have by name.
pub(crate) const HOST_MODEL: &str = "host-model";
pub(crate) const HOST_PASSTHROUGH: &str = "host-passthrough";

/// Queries that are needed before a machine can be planned.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CpuQuestion {
    /// QEMU's name for the model with all features of the accelerator: `host` or `max`.
    pub all: &'static str,
    /// The manifest's model, if missing features matter.
    pub named: Option<String>,
}

impl CpuQuestion {
    /// The queries that the manifest needs; `None` for most emulated machines.
    #[must_use]
    pub fn of(vmi: &ValidVmi, accelerator: &Accelerator) -> Option<Self> {
        let features = vmi.spec().domain.cpu.as_ref().is_some_and(|cpu| !cpu.features.is_empty());
        let (all, kvm) = match accelerator {
            Accelerator::Kvm { .. } => ("host", true),
            Accelerator::Tcg { .. } => ("max", false),
        };
        let (needed, named) = match vmi.cpu_model() {
            HOST_MODEL => (kvm, None),
            HOST_PASSTHROUGH => (false, None),
            // Emulation leaves out features of a model that it does not support; with KVM this would be
            // another CPU.
            name => (kvm, kvm.then(|| name.to_owned())),
        };
        (needed || features).then_some(Self { all, named })
    }
}

/// The answers.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct HostCpu {
    /// The host's CPU without features that prevent migration: every property of QEMU's model `base`.
    model: Map<String, Value>,
    /// All features, and whether a guest can have them.
    offer: Map<String, Value>,
    /// Features of the named model that this host lacks; `None` if QEMU has no such model, or none was named.
    lacking: Option<Vec<String>>,
}

impl HostCpu {
    /// From the properties of two static expansions of the question's [`all`](CpuQuestion::all), with
    /// `migratable` on and off, and from the features that [`named`](CpuQuestion::named) lacks, if QEMU has
    /// that model.
    #[must_use]
    pub fn new(model: Map<String, Value>, offer: Map<String, Value>, lacking: Option<Vec<String>>) -> Self {
        Self { model, offer, lacking }
    }

    /// Whether QEMU knows a feature.
    pub(crate) fn knows(&self, feature: &str) -> bool {
        self.offer.get(feature).is_some_and(Value::is_boolean)
    }

    /// Whether a guest can have a feature here.
    pub(crate) fn offers(&self, feature: &str) -> bool {
        self.offer.get(feature) == Some(&Value::Bool(true))
    }

    /// Features of the named model that this host lacks.
    pub(crate) fn lacking(&self) -> Option<&[String]> {
        self.lacking.as_deref()
    }

    /// The host's CPU as a list of features, for QEMU's model `base`, which has none by itself.
    pub(crate) fn spelled(&self) -> Vec<(String, String)> {
        let word = |(name, value): (&String, &Value)| {
            let value = match value {
                Value::Bool(true) => "on".to_owned(),
                Value::Number(number) => number.to_string(),
                // This option has no way to quote a comma.
                Value::String(text) => text.replace(',', " "),
                Value::Bool(false) | Value::Null | Value::Array(_) | Value::Object(_) => return None,
            };
            Some((name.clone(), value))
        };
        self.model.iter().filter_map(word).collect()
    }
}

/// QEMU's name of a feature. The API has libvirt's names, some of which differ.
pub(crate) fn feature_name(name: &str) -> String {
    match name {
        "pclmuldq" => "pclmulqdq".to_owned(),
        "sse4-1" | "sse4_1" => "sse4.1".to_owned(),
        "sse4-2" | "sse4_2" => "sse4.2".to_owned(),
        other => other.replace('_', "-"),
    }
}
