//! Which objects of other namespaces are read, with an API server that answers access reviews.

use super::*;
use http_body_util::{BodyExt, Full};
use hyper::body::{Bytes, Incoming};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use serde_json::json;
use std::convert::Infallible;
use std::sync::{Arc, Mutex};
use tokio::net::TcpListener;

const IMAGE: &str = "/apis/cdi.kubevirt.io/v1beta1/namespaces/golden/datasources/image";

/// What an access review is about: the user, the verb, the resource with its subresource, and the namespace.
type Question = (String, String, String, String);

/// An API server with one DataSource in another namespace, and everything that was asked of it.
#[derive(Clone, Default)]
struct ApiServer {
    /// The only access that is allowed.
    allowed: Option<Question>,
    questions: Arc<Mutex<Vec<Question>>>,
    reads: Arc<Mutex<Vec<String>>>,
}

impl ApiServer {
    fn that_allows(user: &str, verb: &str, resource: &str) -> Self {
        let allowed = (user.to_owned(), verb.to_owned(), resource.to_owned(), "golden".to_owned());
        ApiServer { allowed: Some(allowed), ..ApiServer::default() }
    }

    fn answer(&self, path: &str, body: &Value) -> (u16, Value) {
        if path.ends_with("/subjectaccessreviews") {
            let (spec, about) = (&body["spec"], &body["spec"]["resourceAttributes"]);
            let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
            let resource = match text(&about["subresource"]).as_str() {
                "" => text(&about["resource"]),
                subresource => format!("{}/{subresource}", text(&about["resource"])),
            };
            let question = (text(&spec["user"]), text(&about["verb"]), resource, text(&about["namespace"]));
            let allowed = self.allowed.as_ref() == Some(&question);
            self.questions.lock().unwrap().push(question);
            return (201, json!({"spec": spec, "status": {"allowed": allowed}}));
        }
        self.reads.lock().unwrap().push(path.to_owned());
        let named = json!({"instancetype.kubevirt.io/default-instancetype": "small"});
        match path.rsplit_once('/') {
            Some((_, "image")) => (200, json!({"metadata": {"name": "image", "labels": named}})),
            _ => (404, json!({"kind": "Status", "status": "Failure", "reason": "NotFound", "code": 404})),
        }
    }

    async fn client(&self) -> Client {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let server = self.clone();
        tokio::spawn(async move {
            loop {
                let (tcp, _) = listener.accept().await.unwrap();
                let server = server.clone();
                let service = service_fn(move |asked: hyper::Request<Incoming>| {
                    let server = server.clone();
                    async move {
                        let path = asked.uri().path().to_owned();
                        let body = asked.into_body().collect().await.unwrap().to_bytes();
                        let body = serde_json::from_slice(&body).unwrap_or_default();
                        let (code, body) = server.answer(&path, &body);
                        let answer = hyper::Response::builder().status(code);
                        let answer = answer.header("content-type", "application/json");
                        Ok::<_, Infallible>(answer.body(Full::<Bytes>::from(body.to_string())).unwrap())
                    }
                });
                tokio::spawn(http1::Builder::new().serve_connection(TokioIo::new(tcp), service));
            }
        });
        barevirt_component::certificates::install_provider();
        Client::try_from(kube::Config::new(format!("http://{address}").parse().unwrap())).unwrap()
    }

    /// What is inferred for a machine in the namespace `shop` from a DataSource.
    async fn infer(&self, user: Option<&str>, namespace: &str, name: &str) -> Result<Choice, String> {
        let vm: VirtualMachine = serde_json::from_value(json!({
            "metadata": {"name": "web", "namespace": "shop"},
            "spec": {
                "runStrategy": "Always", "instancetype": {"inferFromVolume": "root"},
                "dataVolumeTemplates": [{
                    "metadata": {"name": "web-root"},
                    "spec": {"sourceRef": {"kind": "DataSource", "namespace": namespace, "name": name}},
                }],
                "template": {"spec": {
                    "domain": {"devices": {}}, "volumes": [{"name": "root", "dataVolume": {"name": "web-root"}}],
                }},
            },
        }))
        .unwrap();
        let user = user.map(|name| User { name: name.to_owned(), ..User::default() });
        let mut inferred = inferred(&self.client().await, user.as_ref(), &vm).await;
        inferred.remove(0).1.map_err(|cause| cause.message)
    }

    fn reads(&self) -> Vec<String> {
        self.reads.lock().unwrap().clone()
    }
}

fn small() -> Result<Choice, String> {
    Ok(Choice::Named(Named { name: "small".to_owned(), kind: None }, false))
}

#[tokio::test]
async fn objects_of_other_namespaces_are_read_only_for_those_who_may_read_or_copy_them() {
    const ACCOUNT: &str = "system:serviceaccount:shop:default";
    for (user, verb, resource) in [
        ("ann", "get", "datasources"),
        ("ann", "create", "datavolumes/source"),
        (ACCOUNT, "get", "datasources"),
        (ACCOUNT, "create", "datavolumes/source"),
    ] {
        let server = ApiServer::that_allows(user, verb, resource);
        assert_eq!(server.infer(Some("ann"), "golden", "image").await, small(), "{user} {verb}");
        assert_eq!(server.reads(), [IMAGE]);
    }
    // The answer is the same whether the object exists or not.
    let server = ApiServer::default();
    for name in ["image", "none"] {
        assert_eq!(
            server.infer(Some("ann"), "golden", name).await,
            Err(format!(
                "neither the user nor the machine's account {ACCOUNT} may read DataSource golden/{name}"
            ))
        );
    }
    assert_eq!((server.reads().len(), server.questions.lock().unwrap().len()), (0, 8));
}

/// Otherwise the author of a pool would read with virt-controller's rights.
#[tokio::test]
async fn for_a_machine_that_a_component_writes_its_account_decides() {
    let server =
        ApiServer::that_allows("system:serviceaccount:kubevirt:kubevirt-controller", "get", "datasources");
    assert!(server.infer(None, "golden", "image").await.is_err());
    assert_eq!(server.questions.lock().unwrap().len(), 2);
    let server = ApiServer::that_allows("system:serviceaccount:shop:default", "get", "datasources");
    assert_eq!(server.infer(None, "golden", "image").await, small());
}

#[tokio::test]
async fn nothing_is_asked_about_the_machines_own_namespace() {
    let server = ApiServer::default();
    assert_eq!(server.infer(Some("ann"), "shop", "image").await, small());
    let missing = server.infer(Some("ann"), "shop", "none").await;
    assert_eq!(missing, Err("DataSource shop/none not found".to_owned()));
    assert!(server.questions.lock().unwrap().is_empty());
}
