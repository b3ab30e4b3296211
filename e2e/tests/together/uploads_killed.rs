//! Uploads without CDI whose pod is killed while an image arrives. `disruption` has those whose virt-api is killed, and `node_loss`
//! those whose node is.

use super::imports::{filled, sha256, shell};
use super::imports_killed::{moments, signal};
use super::uploads::{FILLED, opened, upload, without_cdi};
use anyhow::{anyhow, ensure};
use barevirt_e2e::local_volume;
use barevirt_e2e::upload_proxy::Sender;
use barevirt_e2e::wait::SOON;
use std::thread;
use std::time::Duration;

/// Length in bytes of the image.
const LENGTH: usize = 8 << 20;
/// When the pod is killed, in milliseconds: the image takes eight seconds.
const SLOWLY: [&str; 4] = ["--limit-rate", "1M", "--max-time", "60"];
const EARLIEST: u64 = 1000;
const LATEST: u64 = 6000;

#[test]
fn an_upload_whose_pod_is_killed_at_a_random_moment_is_sent_again() {
    without_cdi("uploadskilled", |namespace| {
        let work = tempfile::tempdir()?;
        shell(work.path(), &format!("head -c {LENGTH} /dev/urandom >data"))?;
        let data = work.path().join("data");
        opened(namespace, "disk")?;
        let sender = Sender::into_claim(namespace, "disk")?;
        let broken = thread::scope(|scope| {
            let sent = scope.spawn(|| sender.send_named(&SLOWLY, &data));
            thread::sleep(Duration::from_millis(moments().u64(EARLIEST..LATEST)));
            let killed = signal(namespace, "cdi-upload-disk", "KILL");
            let sent = sent.join().map_err(|_| anyhow!("the sender panicked"))?;
            killed.and(sent)
        })?;
        ensure!(!broken.text().ends_with("200"), "it has arrived before the pod was killed: {broken:?}");

        // The pod says that it has begun again, and is ready. What had arrived is lost.
        let annotation = |name: &str| format!("cdi.kubevirt.io/storage.pod.{name}");
        let (ready, restarts) = (annotation("ready"), annotation("restarts"));
        namespace.wait("pvc", "disk", "to have a pod that began again", FILLED, |claim| {
            let annotations = &claim["metadata"]["annotations"];
            annotations[&ready] == "true" && annotations[&restarts] != "0"
        })?;
        let asked = sender.ask(LENGTH)?;
        ensure!(asked.text().ends_with("503"), "{asked:?}");
        let path = format!("--image-path={}", data.display());
        upload(namespace, &["dv", "disk", "--no-create", &path])?;
        filled(namespace, "disk", SOON)?;
        let digest = local_volume::digest(namespace, "disk", LENGTH as u64)?;
        ensure!(digest == sha256(&data)?, "the disk has other contents");
        Ok(())
    });
}
