//! The pod that receives an upload: the importer's, running a server. It has no rights, and no secret except the key that it
//! makes for its own server.

use super::super::claim::{class, disk_size};
use super::super::facts::{Installation, LABEL};
use super::super::importer::{self, RESTARTS_ANNOTATION, Volumes};
use super::super::keys;
use super::super::passed::passed;
use super::target::Target;
use crate::owner::owner;
use barevirt_api::cdi::DataVolumeSpec;
use barevirt_import_job::{Content, Job, Source, UPLOAD_PORT, upload_pod_name, upload_server_name};
use k8s_openapi::api::core::v1::{Pod, Probe, TCPSocketAction};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use kube::ResourceExt;

/// The pod.
pub(super) fn of(
    target: &Target,
    content: Content,
    authorities: &str,
    installation: &Installation,
    restarts: i32,
) -> Pod {
    let Target { claim, data_volume, .. } = target;
    // The disk of a claim without a DataVolume is as large as the claim.
    let of_claim = DataVolumeSpec { pvc: claim.spec.clone(), ..DataVolumeSpec::default() };
    let spec = data_volume.as_ref().map_or(&of_claim, |data_volume| &data_volume.spec);
    let uid = claim.uid().unwrap_or_default();
    let name = upload_server_name(&uid);
    let job = Job {
        source: Source::Upload { authorities: authorities.to_owned() },
        content,
        size: disk_size(spec, None),
        overhead: installation.overhead.of_class(class(claim)),
        preallocation: installation.preallocates(spec),
        owner: uid,
    };
    let volumes = Volumes::of_claim(claim);
    let mut pod = importer::pod(spec, &job, volumes, ("upload", UPLOAD_PORT), installation);
    pod.metadata = metadata(target, restarts);
    keys::give(&mut pod, installation, Some(&name));
    if let Some(container) = pod.spec.as_mut().and_then(|spec| spec.containers.first_mut()) {
        // Without a certificate a client can open a connection, and nothing more.
        let open = TCPSocketAction { host: None, port: IntOrString::Int(UPLOAD_PORT.into()) };
        container.readiness_probe =
            Some(Probe { tcp_socket: Some(open), period_seconds: Some(2), ..Probe::default() });
    }
    pod
}

fn metadata(target: &Target, restarts: i32) -> ObjectMeta {
    let claim = &target.claim;
    let text = |(name, value): (&str, &str)| (name.to_owned(), value.to_owned());
    let labels = [
        LABEL,
        ("cdi.kubevirt.io", "cdi-upload-server"),
        ("app.kubernetes.io/managed-by", "virt-controller"),
    ];
    let mut annotations = passed(claim.annotations());
    annotations.insert(RESTARTS_ANNOTATION.to_owned(), restarts.to_string());
    ObjectMeta {
        name: Some(upload_pod_name(&claim.name_any())),
        namespace: claim.metadata.namespace.clone(),
        labels: Some(labels.map(text).into()),
        annotations: Some(annotations),
        // The claim's deletion need not wait for it: that would need a right to write the finalizers of claims.
        owner_references: Some(vec![OwnerReference { block_owner_deletion: None, ..owner(claim) }]),
        ..ObjectMeta::default()
    }
}
