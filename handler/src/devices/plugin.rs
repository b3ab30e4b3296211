//! The plugin of one resource: serves the kubelet's API, registers, and watches both sockets.

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

use super::copy::NodeCopy;
use super::host::HostDevice;
use super::v1beta1::device_plugin_server::{DevicePlugin, DevicePluginServer};
use super::v1beta1::registration_client::RegistrationClient;
use super::v1beta1::{
    AllocateRequest, AllocateResponse, ContainerAllocateRequest, ContainerAllocateResponse, Device,
    DevicePluginOptions, DeviceSpec, Empty, ListAndWatchResponse, NumaNode, PreStartContainerRequest,
    PreStartContainerResponse, PreferredAllocationRequest, PreferredAllocationResponse, RegisterRequest,
    TopologyInfo,
};

/// Version of the API.
const VERSION: &str = "v1beta1";
/// How many guests of a node may use the device. The number is KubeVirt's; nothing else limits it.
const MOST: usize = 1000;
/// The kubelet's socket.
const KUBELET: &str = "kubelet.sock";
/// How often the sockets and the device are checked.
const LOOK: Duration = Duration::from_secs(2);
/// How long the kubelet may take to answer.
const ANSWER: Duration = Duration::from_secs(10);
/// Number of failures in a row before one is logged: a restarting kubelet is away for some seconds.
const LOG_AFTER: u32 = 5;

/// A resource that is offered to the kubelet.
#[derive(Clone, Debug)]
pub(super) struct Offer {
    /// Name of the resource.
    pub(super) resource: String,
    /// Name of the plugin's socket.
    pub(super) endpoint: String,
    /// The devices behind the resource.
    pub(super) supply: Supply,
}

/// The devices behind a resource.
#[derive(Clone, Debug)]
pub(super) enum Supply {
    /// One device that all guests share.
    Shared {
        /// Prefix of the numbered device names.
        name: &'static str,
        /// The device that must exist.
        device: PathBuf,
    },
    /// One device for all guests. A pod gets a device node that its user may open. If the node has no such device,
    /// the pod starts without it.
    Copied {
        /// Prefix of the numbered names.
        name: &'static str,
        /// The node to give to pods.
        copy: NodeCopy,
    },
    /// One device for each guest. The list changes with the devices of the node.
    Single(watch::Receiver<Vec<HostDevice>>),
}

impl Supply {
    /// The devices in the form that the kubelet expects.
    fn devices(&self) -> Vec<Device> {
        let device = |id: String, healthy: bool, numa: Option<i64>| Device {
            id,
            health: if healthy { "Healthy" } else { "Unhealthy" }.to_owned(),
            topology: numa.map(|id| TopologyInfo { nodes: vec![NumaNode { id }] }),
        };
        let numbered = |name: &str, healthy: bool| {
            (0..MOST).map(|number| device(format!("{name}{number}"), healthy, None)).collect()
        };
        match self {
            Supply::Shared { name, device: path } => numbered(name, path.exists()),
            Supply::Copied { name, .. } => numbered(name, true),
            Supply::Single(devices) => {
                let devices = devices.borrow();
                let one = |one: &HostDevice| {
                    device(one.id.clone(), one.nodes.iter().all(|node| node.exists()), one.numa)
                };
                devices.iter().map(one).collect()
            }
        }
    }

    /// What a container gets with devices of those names. Shared devices give it nothing: see the module.
    fn allocate(&self, resource: &str, ids: &[String]) -> Result<ContainerAllocateResponse, Status> {
        let devices = match self {
            Supply::Shared { .. } => return Ok(ContainerAllocateResponse::default()),
            Supply::Copied { copy, .. } => {
                let mut response = ContainerAllocateResponse::default();
                match copy.make() {
                    Ok(device) => {
                        info!(resource, device = device.host_path, "pod gets the device");
                        response.devices.push(device);
                    }
                    Err(error) => info!(resource, %error, "pod starts without the device"),
                }
                return Ok(response);
            }
            Supply::Single(devices) => devices,
        };
        let devices = devices.borrow();
        let mut response = ContainerAllocateResponse::default();
        for id in ids {
            let device = devices.iter().find(|device| device.id == *id);
            let device = device
                .ok_or_else(|| Status::not_found(format!("{resource}: device {id} is not there any more")))?;
            let (variable, value) = device.variable(resource);
            let list = response.envs.entry(variable).or_default();
            if !list.is_empty() {
                list.push(',');
            }
            list.push_str(&value);
            for node in &device.nodes {
                let path = node.display().to_string();
                if response.devices.iter().all(|known| known.host_path != path) {
                    response.devices.push(DeviceSpec {
                        container_path: path.clone(),
                        host_path: path,
                        permissions: "mrw".to_owned(),
                    });
                }
            }
        }
        info!(resource, ?ids, "pod gets the devices");
        Ok(response)
    }
}

/// Serves and registers, again after each failure.
pub(super) async fn run(offer: Offer, folder: PathBuf, registered: watch::Sender<bool>) {
    let mut failures = 0_u32;
    let devices = watch::Sender::new(offer.supply.devices());
    loop {
        match session(&offer, &folder, &devices, &registered).await {
            Ok(()) => {
                failures = 0;
                info!(resource = offer.resource, "the kubelet has restarted, or the socket is gone");
            }
            Err(error) => {
                failures = failures.saturating_add(1);
                if failures == LOG_AFTER {
                    let error = format!("{:#}", anyhow::Error::from(error));
                    warn!(resource = offer.resource, error, "the kubelet does not accept the resource");
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

/// Serves from the creation of the socket until this socket or the kubelet's socket has been replaced.
async fn session(
    offer: &Offer,
    folder: &Path,
    devices: &watch::Sender<Vec<Device>>,
    registered: &watch::Sender<bool>,
) -> Result<(), PluginError> {
    let Offer { resource, endpoint, supply } = offer;
    let path = folder.join(endpoint);
    let listener =
        listen(&path).map_err(|source| PluginError::Listen { path: path.display().to_string(), source })?;
    let (stop, stopped) = oneshot::channel::<()>();
    let plugin = Plugin { offer: offer.clone(), devices: devices.subscribe() };
    let mut server = tokio::spawn(
        Server::builder().add_service(DevicePluginServer::new(plugin)).serve_with_incoming_shutdown(
            UnixListenerStream::new(listener),
            async move {
                // Dropping the sender also stops the server.
                let _ = stopped.await;
            },
        ),
    );
    let kubelet = folder.join(KUBELET);
    let known = (identity(&path).ok(), Some(identity(&kubelet).map_err(PluginError::Kubelet)?));
    timeout(ANSWER, register(&kubelet, endpoint, resource)).await.map_err(|_| PluginError::Late)??;
    registered.send_replace(true);
    info!(resource, "the kubelet has the resource");
    loop {
        tokio::select! {
            _ = &mut server => return Err(PluginError::Serve),
            () = sleep(LOOK) => {}
        }
        let now = supply.devices();
        devices.send_if_modified(|devices| {
            let new = *devices != now;
            *devices = now;
            new
        });
        if known != (identity(&path).ok(), identity(&kubelet).ok()) {
            drop(stop);
            return Ok(());
        }
    }
}

/// Replaces a socket that an earlier handler left.
fn listen(path: &Path) -> io::Result<UnixListener> {
    match std::fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => UnixListener::bind(path),
    }
}

/// Identifies a socket file: another socket at the same path has another value.
fn identity(path: &Path) -> io::Result<(u64, u64, i64, i64)> {
    let found = std::fs::metadata(path)?;
    Ok((found.dev(), found.ino(), found.ctime(), found.ctime_nsec()))
}

async fn register(kubelet: &Path, endpoint: &str, resource: &str) -> Result<(), PluginError> {
    let kubelet = kubelet.to_owned();
    let connector = service_fn(move |_: Uri| {
        let kubelet = kubelet.clone();
        async move { UnixStream::connect(kubelet).await.map(TokioIo::new) }
    });
    // HTTP/2 requires an authority, but it has no meaning here.
    let channel = Endpoint::from_static("http://kubelet.invalid").connect_with_connector(connector).await;
    let request = RegisterRequest {
        version: VERSION.to_owned(),
        endpoint: endpoint.to_owned(),
        resource_name: resource.to_owned(),
        options: Some(DevicePluginOptions::default()),
    };
    let mut client = RegistrationClient::new(channel.map_err(PluginError::Connect)?);
    client.register(request).await.map(drop).map_err(PluginError::Register)
}

/// Answers the kubelet's calls.
struct Plugin {
    offer: Offer,
    devices: watch::Receiver<Vec<Device>>,
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
        let mut devices = self.devices.clone();
        devices.mark_changed();
        let states = stream::unfold(devices, move |mut devices| async move {
            devices.changed().await.ok()?;
            let now = devices.borrow_and_update().clone();
            Some((Ok(ListAndWatchResponse { devices: now }), devices))
        });
        Ok(Response::new(states.boxed()))
    }

    async fn get_preferred_allocation(
        &self,
        _: Request<PreferredAllocationRequest>,
    ) -> Result<Response<PreferredAllocationResponse>, Status> {
        Ok(Response::new(PreferredAllocationResponse {}))
    }

    /// Answers for each container.
    async fn allocate(
        &self,
        request: Request<AllocateRequest>,
    ) -> Result<Response<AllocateResponse>, Status> {
        let containers = request.into_inner().container_requests;
        let Offer { resource, supply, .. } = &self.offer;
        let one = |asked: &ContainerAllocateRequest| supply.allocate(resource, &asked.devices_ids);
        let container_responses = containers.iter().map(one).collect::<Result<_, _>>()?;
        Ok(Response::new(AllocateResponse { container_responses }))
    }

    async fn pre_start_container(
        &self,
        _: Request<PreStartContainerRequest>,
    ) -> Result<Response<PreStartContainerResponse>, Status> {
        Ok(Response::new(PreStartContainerResponse {}))
    }
}
