//! The pod that looks at the source of a DataImportCron: an importer that downloads nothing. It runs in the DataImportCron's
//! namespace, with its secrets and within its quota, and the same addresses are forbidden to it as to imports.

use crate::generated;
use crate::imports::facts::{Installation, LABEL};
use crate::imports::importer::{self, End, Volumes};
use crate::imports::job;
use crate::imports::passed::passed;
use crate::owner::owner;
use barevirt_api::cdi::{DataImportCron, IMPORT_CRON_LABEL};
use barevirt_import_job::{Content, Job, LOOK, METRICS_PORT, Outcome};
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::ResourceExt;
use std::collections::BTreeMap;

/// How long one look may take, with the kubelet's restarts, in seconds.
const DEADLINE: i64 = 600;

/// Name of the pod for the DataImportCron of that name.
pub fn name(cron: &str) -> String {
    let name = format!("poller-{cron}");
    if name.len() <= 63 { name } else { generated::name(&format!("{}-", &name[..50]), cron) }
}

/// The pod.
pub(super) fn of(cron: &DataImportCron, installation: &Installation) -> Pod {
    let spec = &cron.spec.template.spec;
    let mut volumes = Volumes::default();
    volumes.of_source(spec);
    let job = Job {
        source: job::source(spec.source.as_ref(), &installation.insecure_registries),
        content: Content::Disk,
        size: 0,
        overhead: 0,
        preallocation: false,
        owner: cron.uid().unwrap_or_default(),
    };
    let mut pod = importer::pod(spec, &job, volumes, ("metrics", METRICS_PORT), installation);
    if let Some(spec) = &mut pod.spec {
        spec.active_deadline_seconds = Some(DEADLINE);
        for container in &mut spec.containers {
            container.args = Some(vec![LOOK.to_owned()]);
            // Its progress is not read.
            container.ports = None;
        }
    }
    let labels = [LABEL, ("cdi.kubevirt.io", "poller"), ("app.kubernetes.io/managed-by", "virt-controller")];
    let text = |(name, value): (&str, &str)| (name.to_owned(), value.to_owned());
    let mut labels: BTreeMap<String, String> = labels.map(text).into();
    labels.insert(IMPORT_CRON_LABEL.to_owned(), cron.name_any());
    // It reaches the source as the importers do.
    let said =
        cron.spec.template.metadata.as_ref().and_then(|said| said.annotations.clone()).unwrap_or_default();
    pod.metadata = ObjectMeta {
        name: Some(name(&cron.name_any())),
        namespace: cron.metadata.namespace.clone(),
        labels: Some(labels),
        annotations: Some(passed(&said)),
        owner_references: Some(vec![owner(cron)]),
        ..ObjectMeta::default()
    };
    pod
}

/// The digest that a pod has found, or why it found none; `None` while it runs.
pub(super) fn found(pod: &Pod) -> Option<Result<String, String>> {
    Some(match importer::ended(pod)? {
        End::Hopeless(why) | End::Lost(why) => Err(why),
        End::Filled => match importer::outcome(pod) {
            Some(Outcome::Found { digest }) => Ok(digest),
            Some(Outcome::Done { .. } | Outcome::Failed { .. }) | None => {
                Err("its pod ended without a digest".to_owned())
            }
        },
    })
}
