//! Tests against a kubelet that speaks the real protocol.

use std::os::unix::fs::FileTypeExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use hyper_util::rt::TokioIo;
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::{mpsc, watch};
use tokio::task::JoinHandle;
use tokio::time::timeout;
use tokio_stream::wrappers::UnixListenerStream;
use tonic::transport::{Channel, Endpoint, Server, Uri};
use tonic::{Request, Response, Status};
use tower::service_fn;

use super::copy::NodeCopy;
use super::plugin::{Offer, Supply, run};
use super::v1beta1::device_plugin_client::DevicePluginClient;
use super::v1beta1::registration_server::{Registration, RegistrationServer};
use super::v1beta1::{
    AllocateRequest, ContainerAllocateRequest, Empty, ListAndWatchResponse, RegisterRequest,
};
use super::{Resource, offer};

pub(super) const SOON: Duration = Duration::from_secs(20);

struct Kubelet(mpsc::UnboundedSender<RegisterRequest>);

#[tonic::async_trait]
impl Registration for Kubelet {
    async fn register(&self, request: Request<RegisterRequest>) -> Result<Response<Empty>, Status> {
        self.0.send(request.into_inner()).unwrap();
        Ok(Response::new(Empty {}))
    }
}

/// Imitates a kubelet that starts: it removes the plugins' sockets and makes its own.
pub(super) fn kubelet(folder: &Path) -> (JoinHandle<()>, mpsc::UnboundedReceiver<RegisterRequest>) {
    for entry in std::fs::read_dir(folder).unwrap() {
        std::fs::remove_file(entry.unwrap().path()).unwrap();
    }
    let (asked, asks) = mpsc::unbounded_channel();
    let listener = UnixListener::bind(folder.join("kubelet.sock")).unwrap();
    let server = Server::builder().add_service(RegistrationServer::new(Kubelet(asked)));
    let task = tokio::spawn(async move {
        server.serve_with_incoming(UnixListenerStream::new(listener)).await.unwrap();
    });
    (task, asks)
}

pub(super) async fn plugin(folder: &Path, asked: &RegisterRequest) -> DevicePluginClient<Channel> {
    let path = folder.join(&asked.endpoint);
    let connector = service_fn(move |_: Uri| {
        let path = path.clone();
        async move { UnixStream::connect(path).await.map(TokioIo::new) }
    });
    let channel = Endpoint::from_static("http://plugin.invalid").connect_with_connector(connector).await;
    DevicePluginClient::new(channel.unwrap())
}

async fn next(devices: &mut tonic::Streaming<ListAndWatchResponse>) -> (usize, String) {
    let message = timeout(SOON, devices.message()).await.unwrap().unwrap().unwrap();
    let health = message.devices[0].health.clone();
    assert!(message.devices.iter().all(|device| device.health == health));
    (message.devices.len(), health)
}

#[tokio::test]
async fn a_resource_is_offered_while_its_device_is_there_and_to_each_kubelet() {
    let (folder, device) = (tempfile::tempdir().unwrap(), tempfile::NamedTempFile::new().unwrap());
    let path: PathBuf = device.path().to_owned();
    let (task, mut asks) = kubelet(folder.path());
    let mut registered = offer(Resource { name: "kvm", device: path.clone() }, folder.path());
    let asked = timeout(SOON, asks.recv()).await.unwrap().unwrap();
    assert_eq!(
        (asked.version.as_str(), asked.resource_name.as_str()),
        ("v1beta1", "devices.kubevirt.io/kvm")
    );
    assert_eq!(asked.endpoint, "kubevirt-kvm.sock");
    timeout(SOON, registered.wait_for(|known| *known)).await.unwrap().unwrap();

    let mut client = plugin(folder.path(), &asked).await;
    let mut devices = client.list_and_watch(Empty {}).await.unwrap().into_inner();
    assert_eq!(next(&mut devices).await, (1000, "Healthy".to_owned()));
    let one = ContainerAllocateRequest { devices_ids: vec!["kvm7".to_owned()] };
    let request = AllocateRequest { container_requests: vec![one.clone(), one] };
    let given = client.allocate(request).await.unwrap().into_inner();
    assert_eq!(given.container_responses.len(), 2);
    device.close().unwrap();
    assert_eq!(next(&mut devices).await, (1000, "Unhealthy".to_owned()));
    std::fs::write(&path, "").unwrap();
    assert_eq!(next(&mut devices).await, (1000, "Healthy".to_owned()));
    drop(devices);

    // The kubelet restarts.
    task.abort();
    let (_task, mut asks) = kubelet(folder.path());
    let again = timeout(SOON, asks.recv()).await.unwrap().unwrap();
    assert_eq!(again, asked);
    let mut client = plugin(folder.path(), &again).await;
    let mut devices = client.list_and_watch(Empty {}).await.unwrap().into_inner();
    assert_eq!(next(&mut devices).await, (1000, "Healthy".to_owned()));
    std::fs::remove_file(path).unwrap();
}

/// A handler that is killed takes back nothing, and the kubelet asks the next one.
#[tokio::test]
async fn a_pod_gets_the_device_node_from_each_handler() {
    let folder = tempfile::tempdir().unwrap();
    let (_kubelet, mut asks) = kubelet(folder.path());
    let copy = NodeCopy { device: PathBuf::from("/dev/null"), copy: folder.path().join("null.node") };
    // Only root may make device nodes.
    if copy.make().is_err_and(|error| error.kind() == std::io::ErrorKind::PermissionDenied) {
        return;
    }
    for handler in 1..=3 {
        // Also where somebody has removed it.
        if handler == 3 {
            std::fs::remove_file(&copy.copy).unwrap();
        }
        let offer = Offer {
            resource: "devices.kubevirt.io/null".to_owned(),
            endpoint: "kubevirt-null.sock".to_owned(),
            supply: Supply::Copied { name: "null", copy: copy.clone() },
        };
        let (registered, _) = watch::channel(false);
        let plays = tokio::spawn(run(offer, folder.path().to_owned(), registered));
        let asked = timeout(SOON, asks.recv()).await.unwrap().unwrap();
        let one = ContainerAllocateRequest { devices_ids: vec!["null7".to_owned()] };
        let request = AllocateRequest { container_requests: vec![one] };
        let given = plugin(folder.path(), &asked).await.allocate(request).await.unwrap().into_inner();
        let devices = &given.container_responses[0].devices;
        assert_eq!(devices.len(), 1, "handler {handler}");
        assert_eq!(devices[0].container_path, "/dev/null");
        assert!(std::fs::symlink_metadata(&copy.copy).unwrap().file_type().is_char_device());
        plays.abort();
    }
}

#[tokio::test]
async fn without_a_kubelet_it_is_not_registered() {
    let folder = tempfile::tempdir().unwrap();
    let mut registered = offer(Resource::all().into_iter().next().unwrap(), folder.path());
    assert!(timeout(Duration::from_secs(3), registered.wait_for(|known| *known)).await.is_err());
}
