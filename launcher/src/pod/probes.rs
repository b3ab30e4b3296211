//! Probes that ask the guest agent: their socket, and the reports to the handler.

use std::sync::Arc;

use barevirt_api::v1::Probe;
use barevirt_qmp::Agent;
use barevirt_qmp::quiet::Quiet;
use tokio::sync::watch;
use tokio::task::spawn_local;

use super::report::Circumstances;
use super::shared::Pod;
use super::wanted::Wanted;
use crate::status::Status;
use crate::{people, probe};

/// Serves the socket on which a probe asks the guest agent.
pub fn serve_probes(pod: &Pod, agent: &Agent, status: &watch::Receiver<Status>) {
    let asks = |wanted: &Arc<Wanted>| {
        let spec = wanted.vmi.spec();
        [&spec.readiness_probe, &spec.liveness_probe].into_iter().flatten().any(Probe::is_by_agent)
    };
    if !pod.wanted.borrow().as_ref().is_some_and(asks) {
        return;
    }
    let pings_paused = watch::Sender::new(false);
    let failed_pings = watch::Sender::new(0);
    let guest = probe::serve::Guest {
        agent: agent.clone(),
        status: status.clone(),
        facts: pod.guest.subscribe(),
        pings_paused: pings_paused.subscribe(),
        failed_pings: failed_pings.clone(),
    };
    spawn_local(pause_pings(pod.wanted.subscribe(), pings_paused));
    spawn_local(tell_failed_pings(failed_pings.subscribe(), pod.circumstances.clone()));
    match people::listen(&pod.args.private.join(probe::SOCKET)) {
        Ok(listener) => drop(spawn_local(probe::serve::serve(listener, guest))),
        // No guest is ready then, and the probe says that it cannot ask. None is ended for it.
        Err(error) => tracing::error!(%error, "probes are not answered"),
    }
}

/// Updates whether pings are paused, from the instance's annotation.
async fn pause_pings(mut wanted: watch::Receiver<Option<Arc<Wanted>>>, paused: watch::Sender<bool>) {
    loop {
        let now = wanted.borrow_and_update().as_ref().is_some_and(|wanted| wanted.are_agent_pings_paused());
        if paused.send_replace(now) != now {
            tracing::info!(paused = now, "probes by guestAgentPing");
        }
        if wanted.changed().await.is_err() {
            return;
        }
    }
}

/// Reports failing pings to the handler.
async fn tell_failed_pings(mut failed: watch::Receiver<u64>, circumstances: watch::Sender<Circumstances>) {
    let quiet = Quiet::new(1);
    while failed.changed().await.is_ok() {
        let count = *failed.borrow_and_update();
        if let Some(left_out) = quiet.line() {
            tracing::warn!(left_out, "a probe by guestAgentPing fails");
        }
        circumstances.send_modify(|circumstances| circumstances.failed_pings = count);
    }
}
