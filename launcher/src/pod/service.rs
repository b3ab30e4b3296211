//! The gRPC service for the handler. It is thin: all decisions are made elsewhere.

use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use barevirt_api::monitor::{Class, Forbidden};
use barevirt_protocol::names::{LOWEST_VERSION, VERSION};
use barevirt_protocol::v1::launcher_server::Launcher;
use barevirt_protocol::v1::{
    Control as WireControl, ControlRequest, ControlResponse, DebugRequest, DebugResponse, GuestRequest,
    GuestResponse, HelloRequest, HelloResponse, LauncherStatus, MigrateRequest, MigrateResponse, QmpRequest,
    QmpResponse, RealTimeRequest, RealTimeResponse, ScreenshotRequest, ScreenshotResponse, ShutdownRequest,
    ShutdownResponse, StatsRequest, StatsResponse, SyncRequest, SyncResponse, WatchRequest,
};
use barevirt_qmp::{Deadline, Error, Qmp};
use serde_json::{Value, json};
use tokio::sync::{mpsc, oneshot, watch};
use tokio_stream::wrappers::WatchStream;
use tokio_stream::{Stream, StreamExt};
use tonic::{Request, Response, Status};

use super::migrate;
use super::reboot::{self, NotRebooted};
use super::wanted::{Refusal, Wanted, judge};
use crate::guest_agent::{self, Ask};
use crate::lifecycle::{self, Control};
use crate::migration::Connections;
use crate::people::journal::Journal;
use crate::people::refused;
use crate::real_time::RealTimeReport;
use crate::screenshot::{self, NoPicture};
use crate::standstill;
use crate::stats::Meter;
use crate::supervisor;

/// Longest time limit for one command.
const LONGEST_COMMAND: Duration = Duration::from_secs(120);
/// Time limit if the request gives none.
const USUAL_COMMAND: Duration = Duration::from_secs(10);
/// Longest command, in bytes.
const LONGEST_LINE: usize = 1 << 20;

/// Parts of the launcher that the service needs.
#[derive(Debug, Clone)]
pub struct Service {
    /// UID of the pod.
    pub pod_uid: String,
    /// UID of the VMI.
    pub uid: String,
    /// The accepted Sync.
    pub wanted: watch::Sender<Option<Arc<Wanted>>>,
    /// The complete status.
    pub status: watch::Receiver<LauncherStatus>,
    /// Requests to the supervisor.
    pub requests: mpsc::Sender<supervisor::Request>,
    /// The monitor for users, as soon as it is open.
    pub people: watch::Receiver<Option<Qmp>>,
    /// Requests to the guest agent's task.
    pub agent: mpsc::Sender<Ask>,
    /// Collects metrics.
    pub meter: Meter,
    /// QEMU's process.
    pub process: watch::Receiver<crate::status::Status>,
    /// Its last events.
    pub journal: Journal,
    /// The handler's result for virtual CPUs with realtime scheduling.
    pub real_time: watch::Sender<RealTimeReport>,
    /// Connections of a migration.
    pub connections: Connections,
}

impl Service {
    async fn supervisor(&self, control: Control) -> Result<(), Status> {
        let (reply, replied) = oneshot::channel();
        let request = supervisor::Request::Control { control, reply };
        self.requests.send(request).await.map_err(|_| ended())?;
        replied.await.map_err(|_| ended())?.map_err(|not_done| not_controlled(&not_done))
    }

    async fn agent<T>(
        &self,
        ask: impl FnOnce(oneshot::Sender<Result<T, guest_agent::NotDone>>) -> Ask,
    ) -> Result<T, Status> {
        let (reply, replied) = oneshot::channel();
        self.agent.send(ask(reply)).await.map_err(|_| ended())?;
        replied.await.map_err(|_| ended())?.map_err(|not_done| not_by_agent(&not_done))
    }

    async fn soft_reboot(&self) -> Result<(), Status> {
        let rebooted = reboot::soft_reboot(&self.agent, &self.requests).await;
        rebooted.map_err(|not_rebooted| match not_rebooted {
            NotRebooted::ByAgent(not_done) => not_by_agent(&not_done),
            NotRebooted::ByButton(not_done) => not_controlled(&not_done),
        })
    }
}

fn ended() -> Status {
    Status::failed_precondition(lifecycle::Refused::NotRunning.to_string())
}

fn not_controlled(not_done: &supervisor::NotDone) -> Status {
    let text = not_done.to_string();
    match not_done {
        supervisor::NotDone::Refused(_)
        | supervisor::NotDone::NotOrdered(_)
        | supervisor::NotDone::NotConnected => Status::failed_precondition(text),
        supervisor::NotDone::Monitor(error) => by_error(error, text),
    }
}

fn not_by_agent(not_done: &guest_agent::NotDone) -> Status {
    let text = not_done.to_string();
    match not_done {
        guest_agent::NotDone::NotConnected | guest_agent::NotDone::Paused => {
            Status::failed_precondition(text)
        }
        guest_agent::NotDone::Silent => Status::deadline_exceeded(text),
        // The guest decides the text of the agent's refusals.
        guest_agent::NotDone::Agent(error) | guest_agent::NotDone::Frozen(error) => {
            by_error(error, guest_agent::answers::printable(&text))
        }
    }
}

fn by_error(error: &Error, text: String) -> Status {
    match error {
        Error::Deadline { .. } => Status::deadline_exceeded(text),
        Error::Closed { .. } => Status::unavailable(text),
        Error::Refused { .. }
        | Error::Answer { .. }
        | Error::Arguments { .. }
        | Error::NoOutOfBand { .. }
        | Error::Stream { .. } => Status::internal(text),
    }
}

#[tonic::async_trait]
impl Launcher for Service {
    type WatchStream = Pin<Box<dyn Stream<Item = Result<LauncherStatus, Status>> + Send>>;

    async fn hello(&self, request: Request<HelloRequest>) -> Result<Response<HelloResponse>, Status> {
        let version = request.into_inner().version;
        tracing::info!(version, "virt-handler is here");
        Ok(Response::new(HelloResponse {
            lowest_version: LOWEST_VERSION,
            highest_version: VERSION,
            pod_uid: self.pod_uid.clone(),
        }))
    }

    async fn sync(&self, request: Request<SyncRequest>) -> Result<Response<SyncResponse>, Status> {
        let accepted = self.wanted.borrow().clone();
        let wanted = judge(&self.uid, accepted.as_deref(), request.into_inner()).map_err(|refusal| {
            tracing::warn!(%refusal, "sync refused");
            match refusal {
                Refusal::Outdated { .. } | Refusal::Elsewhere => {
                    Status::failed_precondition(refusal.to_string())
                }
                Refusal::Other { .. } => Status::permission_denied(refusal.to_string()),
                Refusal::Parse(_) | Refusal::Invalid(_) => Status::invalid_argument(refusal.to_string()),
            }
        })?;
        let accepted_revision = wanted.revision;
        self.wanted.send_if_modified(|present| {
            let new = present.as_deref() != Some(&wanted);
            if new {
                tracing::info!(revision = wanted.revision, spec_hash = wanted.spec_hash, "sync accepted");
                *present = Some(Arc::new(wanted));
            }
            new
        });
        Ok(Response::new(SyncResponse { accepted_revision }))
    }

    async fn watch(&self, _: Request<WatchRequest>) -> Result<Response<Self::WatchStream>, Status> {
        let stream = WatchStream::new(self.status.clone()).map(Ok);
        Ok(Response::new(Box::pin(stream)))
    }

    async fn shutdown(
        &self,
        request: Request<ShutdownRequest>,
    ) -> Result<Response<ShutdownResponse>, Status> {
        let ShutdownRequest { grace_period_seconds, reason } = request.into_inner();
        let grace = Duration::from_secs(grace_period_seconds.into());
        let why = format!("virt-handler: {reason}");
        match self.requests.send(supervisor::Request::Stop { grace, why }).await {
            Ok(()) => Ok(Response::new(ShutdownResponse {})),
            // The VM has ended, which is what was requested.
            Err(_) => Ok(Response::new(ShutdownResponse {})),
        }
    }

    async fn control(&self, request: Request<ControlRequest>) -> Result<Response<ControlResponse>, Status> {
        let request = request.into_inner();
        match request.control() {
            WireControl::Unspecified => return Err(Status::invalid_argument("an unknown control")),
            WireControl::Pause => self.supervisor(Control::Pause).await?,
            WireControl::Unpause => self.supervisor(Control::Unpause).await?,
            WireControl::Reset => self.supervisor(Control::Reset).await?,
            WireControl::SoftReboot => self.soft_reboot().await?,
            WireControl::Freeze => {
                let thaw_after = Duration::from_millis(request.unfreeze_after_ms);
                self.agent(|reply| Ask::Freeze { thaw_after, reply }).await?;
            }
            WireControl::Unfreeze => self.agent(|reply| Ask::Thaw { reply }).await?,
        }
        Ok(Response::new(ControlResponse {}))
    }

    async fn guest(&self, _: Request<GuestRequest>) -> Result<Response<GuestResponse>, Status> {
        let info = self.agent(|reply| Ask::Info { reply }).await?;
        let info = serde_json::to_vec(&info).map_err(|error| Status::internal(error.to_string()))?;
        Ok(Response::new(GuestResponse { info }))
    }

    async fn screenshot(
        &self,
        request: Request<ScreenshotRequest>,
    ) -> Result<Response<ScreenshotResponse>, Status> {
        let Some(qmp) = self.people.borrow().clone() else { return Err(ended()) };
        match screenshot::take(&qmp, request.into_inner().move_cursor).await {
            Ok(png) => Ok(Response::new(ScreenshotResponse { png })),
            Err(NoPicture::Monitor(error)) => Err(by_error(&error, error.to_string())),
            Err(error @ (NoPicture::Memory(_) | NoPicture::TooLarge | NoPicture::NotPng)) => {
                Err(Status::internal(error.to_string()))
            }
        }
    }

    async fn stats(&self, _: Request<StatsRequest>) -> Result<Response<StatsResponse>, Status> {
        Ok(Response::new(self.meter.read().await))
    }

    async fn real_time(
        &self,
        request: Request<RealTimeRequest>,
    ) -> Result<Response<RealTimeResponse>, Status> {
        let RealTimeRequest { qemu_pid, refusal } = request.into_inner();
        if refusal.is_empty() {
            tracing::info!("virtual CPUs are realtime");
        } else {
            tracing::warn!(refusal, "virtual CPUs are not realtime");
        }
        self.real_time.send_replace(RealTimeReport { qemu: qemu_pid, refusal });
        Ok(Response::new(RealTimeResponse {}))
    }

    async fn migrate(&self, request: Request<MigrateRequest>) -> Result<Response<MigrateResponse>, Status> {
        let (uid, order) = migrate::read(request.into_inner(), &self.connections)
            .map_err(|refusal| Status::invalid_argument(refusal.to_string()))?;
        let (reply, replied) = oneshot::channel();
        let request = supervisor::Request::Migrate { uid, order, reply };
        self.requests.send(request).await.map_err(|_| ended())?;
        replied.await.map_err(|_| ended())?.map_err(|not_done| not_controlled(&not_done))?;
        Ok(Response::new(MigrateResponse {}))
    }

    async fn debug(&self, _: Request<DebugRequest>) -> Result<Response<DebugResponse>, Status> {
        let (pid, version, migration) = {
            let known = self.process.borrow();
            (known.qemu_pid, known.qemu_version.clone(), known.migration.clone())
        };
        let report = super::debug::report(pid, &version, &self.journal, migration.as_ref());
        let report = report.to_string().into_bytes();
        Ok(Response::new(DebugResponse { report }))
    }

    async fn qmp(&self, request: Request<QmpRequest>) -> Result<Response<QmpResponse>, Status> {
        let QmpRequest { command, deadline_ms } = request.into_inner();
        let (name, arguments) = parse(&command).map_err(Status::invalid_argument)?;
        let Some(qmp) = self.people.borrow().clone() else {
            return Err(Status::unavailable("QEMU does not run"));
        };
        let wait = match deadline_ms {
            0 => USUAL_COMMAND,
            ms => Duration::from_millis(ms.into()).min(LONGEST_COMMAND),
        };
        match barevirt_api::monitor::judge(&name, &arguments) {
            Ok(class) => {
                tracing::info!(command = name, class = class.word(), "QMP through virt-handler");
                let told = self.process.borrow().migration.clone();
                if class != Class::Query && told.is_some_and(|told| told.is_closed()) {
                    return Err(Status::failed_precondition(lifecycle::Refused::Migrating.to_string()));
                }
            }
            Err(forbidden @ Forbidden::Unknown(_)) => {
                let answer = refused(&forbidden).to_string().into_bytes();
                return Ok(Response::new(QmpResponse { answer }));
            }
            Err(forbidden) => return Err(Status::permission_denied(forbidden.to_string())),
        }
        let answer = match qmp.execute_raw(&name, arguments, Deadline::after(wait)).await {
            Ok(value) => json!({"return": value}),
            Err(Error::Refused { class, desc, .. }) => json!({"error": {"class": class, "desc": desc}}),
            Err(Error::Deadline { .. }) => {
                let pid = self.process.borrow().qemu_pid;
                let seen = standstill::look(&qmp, pid).await;
                return Err(Status::deadline_exceeded(seen.explain(&name, wait)));
            }
            Err(error) => return Err(Status::unavailable(error.to_string())),
        };
        Ok(Response::new(QmpResponse { answer: answer.to_string().into_bytes() }))
    }
}

/// Parses `{"execute": NAME, "arguments": {...}}`. Any other key is an error and never ignored.
fn parse(command: &[u8]) -> Result<(String, Value), String> {
    if command.len() > LONGEST_LINE {
        return Err(format!("a command has at most {LONGEST_LINE} bytes"));
    }
    let Ok(Value::Object(mut command)) = serde_json::from_slice(command) else {
        return Err("a command is a JSON object".to_owned());
    };
    let Some(Value::String(name)) = command.remove("execute") else {
        return Err("a command has its name in 'execute'".to_owned());
    };
    let arguments = command.remove("arguments").unwrap_or(Value::Null);
    if !arguments.is_null() && !arguments.is_object() {
        return Err("'arguments' of a command is an object".to_owned());
    }
    match command.keys().next() {
        Some(key) => Err(format!("a command has no {key:?}")),
        None => Ok((name, arguments)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_has_a_name_and_arguments() {
        let parsed = parse(br#"{"execute": "query-block", "arguments": {"a": 1}}"#);
        assert_eq!(parsed, Ok(("query-block".to_owned(), json!({"a": 1}))));
        assert_eq!(parse(br#"{"execute": "stop"}"#), Ok(("stop".to_owned(), Value::Null)));
        for bad in [
            "",
            "3",
            "{}",
            r#"{"execute": 3}"#,
            r#"{"exec-oob": "yank"}"#,
            r#"{"execute": "a", "id": 1}"#,
            r#"{"execute": "a", "arguments": []}"#,
        ] {
            assert!(parse(bad.as_bytes()).is_err(), "{bad}");
        }
    }
}
