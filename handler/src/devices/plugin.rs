//! One resource's plugin: serves, registers, looks after both.

use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use futures::StreamExt as _;
use futures::stream::{self, BoxStream};
use hyper_util::rt::TokioIo;
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::{oneshot, watch};
use tokio::time::{sleep, timeout};
use tokio_stream::wrappers::UnixListenerStream;
use tonic::transport::{Endpoint, Server, Uri};
use tonic::{Request, Response, Status};
use tower::service_fn;
use tracing::{info, warn};

use super::v1beta1::device_plugin_server::{DevicePlugin, DevicePluginServer};
use super::v1beta1::registration_client::RegistrationClient;
use super::v1beta1::{
    AllocateRequest, AllocateResponse, ContainerAllocateResponse, Device, DevicePluginOptions, Empty,
    ListAndWatchResponse, PreStartContainerRequest, PreStartContainerResponse, PreferredAllocationRequest,
    PreferredAllocationResponse, RegisterRequest,
};
use super::{MOST, Resource};

/// Version of the API.
const VERSION: &str = "v1beta1";
/// The kubelet's socket.
const KUBELET: &str = "kubelet.sock";
/// How often sockets and device are looked at.
const LOOK: Duration = Duration::from_secs(2);
/// How long the kubelet may take to answer.
const ANSWER: Duration = Duration::from_secs(10);
/// Failures in a row before one is logged: a kubelet that starts is away for some seconds.
const LOG_AFTER: u32 = 5;

/// Serves and registers, again and again.
pub(super) async fn run(resource: Resource, folder: PathBuf, registered: watch::Sender<bool>) {
    let mut failures = 0_u32;
    let healthy = watch::Sender::new(resource.device.exists());
    loop {
        match session(&resource, &folder, &healthy, &registered).await {
            Ok(()) => {
                failures = 0;
                info!(resource = resource.name, "the kubelet started anew, or the socket is gone");
            }
            Err(error) => {
                failures = failures.saturating_add(1);
                if failures == LOG_AFTER {
                    let error = format!("{:#}", anyhow::Error::from(error));
                    warn!(resource = resource.name, error, "the kubelet does not take the resource");
                }
            }
        }
        registered.send_replace(false);
        sleep(LOOK).await;
    }
}

/// Why the kubelet does not know the resource.
#[derive(Debug, thiserror::Error)]
enum PluginError {
    #[error("listen on {path}")]
    Listen { path: String, source: io::Error },
    #[error("find the kubelet's socket")]
    Kubelet(#[source] io::Error),
    #[error("connect to the kubelet")]
    Connect(#[source] tonic::transport::Error),
    #[error("register with the kubelet")]
    Register(#[source] Status),
    #[error("the kubelet does not answer in time")]
    Late,
    #[error("serve the kubelet")]
    Serve,
}

/// From the socket's birth to the moment when it or the kubelet's is another.
async fn session(
    resource: &Resource,
    folder: &Path,
    healthy: &watch::Sender<bool>,
    registered: &watch::Sender<bool>,
) -> Result<(), PluginError> {
    let endpoint = format!("kubevirt-{}.sock", resource.name);
    let path = folder.join(&endpoint);
    let listener =
        listen(&path).map_err(|source| PluginError::Listen { path: path.display().to_string(), source })?;
    let (stop, stopped) = oneshot::channel::<()>();
    let plugin = Plugin { name: resource.name, healthy: healthy.subscribe() };
    let mut server = tokio::spawn(
        Server::builder().add_service(DevicePluginServer::new(plugin)).serve_with_incoming_shutdown(
            UnixListenerStream::new(listener),
            async move {
                // Dropping the sender stops it as well.
                let _ = stopped.await;
            },
        ),
    );
    let kubelet = folder.join(KUBELET);
    let known = (identity(&path).ok(), Some(identity(&kubelet).map_err(PluginError::Kubelet)?));
    timeout(ANSWER, register(&kubelet, &endpoint, resource.name)).await.map_err(|_| PluginError::Late)??;
    registered.send_replace(true);
    info!(resource = resource.name, "the kubelet has the resource");
    loop {
        tokio::select! {
            _ = &mut server => return Err(PluginError::Serve),
            () = sleep(LOOK) => {}
        }
        let there = resource.device.exists();
        healthy.send_if_modified(|healthy| std::mem::replace(healthy, there) != there);
        if known != (identity(&path).ok(), identity(&kubelet).ok()) {
            drop(stop);
            return Ok(());
        }
    }
}

/// In place of a socket that an earlier handler left.
fn listen(path: &Path) -> io::Result<UnixListener> {
    match std::fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => UnixListener::bind(path),
    }
}

/// What is another one for another socket at the same path.
fn identity(path: &Path) -> io::Result<(u64, u64, i64, i64)> {
    let found = std::fs::metadata(path)?;
    Ok((found.dev(), found.ino(), found.ctime(), found.ctime_nsec()))
}

async fn register(kubelet: &Path, endpoint: &str, name: &str) -> Result<(), PluginError> {
    let kubelet = kubelet.to_owned();
    let connector = service_fn(move |_: Uri| {
        let kubelet = kubelet.clone();
        async move { UnixStream::connect(kubelet).await.map(TokioIo::new) }
    });
    // The authority is required by HTTP/2 and means nothing here.
    let channel = Endpoint::from_static("http://kubelet.invalid").connect_with_connector(connector).await;
    let request = RegisterRequest {
        version: VERSION.to_owned(),
        endpoint: endpoint.to_owned(),
        resource_name: format!("devices.kubevirt.io/{name}"),
        options: Some(DevicePluginOptions::default()),
    };
    let mut client = RegistrationClient::new(channel.map_err(PluginError::Connect)?);
    client.register(request).await.map(drop).map_err(PluginError::Register)
}

/// What the kubelet asks.
struct Plugin {
    name: &'static str,
    healthy: watch::Receiver<bool>,
}

fn devices(name: &str, healthy: bool) -> ListAndWatchResponse {
    let health = if healthy { "Healthy" } else { "Unhealthy" };
    let device = |number: usize| Device { id: format!("{name}{number}"), health: health.to_owned() };
    ListAndWatchResponse { devices: (0..MOST).map(device).collect() }
}

#[tonic::async_trait]
impl DevicePlugin for Plugin {
    type ListAndWatchStream = BoxStream<'static, Result<ListAndWatchResponse, Status>>;

    async fn get_device_plugin_options(
        &self,
        _: Request<Empty>,
    ) -> Result<Response<DevicePluginOptions>, Status> {
        Ok(Response::new(DevicePluginOptions::default()))
    }

    async fn list_and_watch(&self, _: Request<Empty>) -> Result<Response<Self::ListAndWatchStream>, Status> {
        let name = self.name;
        let mut healthy = self.healthy.clone();
        healthy.mark_changed();
        let states = stream::unfold(healthy, move |mut healthy| async move {
            healthy.changed().await.ok()?;
            let now = *healthy.borrow_and_update();
            Some((Ok(devices(name, now)), healthy))
        });
        Ok(Response::new(states.boxed()))
    }

    async fn get_preferred_allocation(
        &self,
        _: Request<PreferredAllocationRequest>,
    ) -> Result<Response<PreferredAllocationResponse>, Status> {
        Ok(Response::new(PreferredAllocationResponse {}))
    }

    /// One answer for each container, with nothing in it: see the module.
    async fn allocate(
        &self,
        request: Request<AllocateRequest>,
    ) -> Result<Response<AllocateResponse>, Status> {
        let containers = request.into_inner().container_requests;
        let container_responses = containers.iter().map(|_| ContainerAllocateResponse {}).collect();
        Ok(Response::new(AllocateResponse { container_responses }))
    }

    async fn pre_start_container(
        &self,
        _: Request<PreStartContainerRequest>,
    ) -> Result<Response<PreStartContainerResponse>, Status> {
        Ok(Response::new(PreStartContainerResponse {}))
    }
}
