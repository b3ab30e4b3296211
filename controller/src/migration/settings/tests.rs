//! Settings from an API server that answers over HTTP.

use super::*;
use barevirt_component::request::Category;
use http::{Request, Response};
use kube::client::Body;
use serde_json::{Value, json};
use std::sync::{Arc, Mutex};

const POLICIES: &str = "/apis/migrations.kubevirt.io/v1alpha1/migrationpolicies";

/// An API server with policies; without any list of them it is out of order.
#[derive(Clone, Default)]
struct Server {
    policies: Arc<Mutex<Option<Vec<Value>>>>,
    asked: Arc<Mutex<Vec<(String, String)>>>,
}

impl Server {
    fn with(policies: Vec<Value>) -> Self {
        let server = Self::default();
        server.set(policies);
        server
    }

    fn set(&self, policies: Vec<Value>) {
        *self.policies.lock().unwrap() = Some(policies);
    }

    fn answer(&self, path: &str, query: &str) -> (u16, Value) {
        self.asked.lock().unwrap().push((path.to_owned(), query.to_owned()));
        let policies = self.policies.lock().unwrap().clone();
        match (path, policies) {
            (POLICIES, Some(items)) => {
                let kind = "MigrationPolicyList";
                let version = "migrations.kubevirt.io/v1alpha1";
                (200, json!({"apiVersion": version, "kind": kind, "metadata": {}, "items": items}))
            }
            ("/api/v1/namespaces/ns", Some(_)) => {
                let metadata = json!({"name": "ns", "labels": {"team": "a"}});
                let kind = "PartialObjectMetadata";
                (200, json!({"apiVersion": "meta.k8s.io/v1", "kind": kind, "metadata": metadata}))
            }
            _ => (
                500,
                json!({"apiVersion": "v1", "kind": "Status", "metadata": {}, "status": "Failure",
                    "reason": "InternalError", "message": "etcd", "code": 500}),
            ),
        }
    }

    fn client(&self) -> Client {
        let server = self.clone();
        let service = tower::service_fn(move |request: Request<Body>| {
            let uri = request.uri();
            let (code, answer) = server.answer(uri.path(), uri.query().unwrap_or_default());
            let answer = Response::builder().status(code).body(Body::from(answer.to_string().into_bytes()));
            std::future::ready(answer)
        });
        Client::new(service, "default")
    }

    async fn choose(&self) -> Result<Effective, Error> {
        let vmi = json!({"metadata": {"name": "web", "namespace": "ns", "labels": {"app": "shop"}},
            "spec": {"domain": {"devices": {}}}});
        let vmi: VirtualMachineInstance = serde_json::from_value(vmi).unwrap();
        choose(&self.client(), &MigrationConfiguration::default(), &vmi).await
    }
}

fn policy(name: &str, selectors: Value) -> Value {
    json!({"apiVersion": "migrations.kubevirt.io/v1alpha1", "kind": "MigrationPolicy",
        "metadata": {"name": name}, "spec": {"bandwidthPerMigration": "1Mi", "selectors": selectors}})
}

#[tokio::test]
async fn a_policy_that_was_made_a_moment_ago_counts() {
    let server = Server::with(vec![]);
    assert_eq!(server.choose().await.unwrap().policy, None);
    server.set(vec![policy("slow", json!({"virtualMachineInstanceSelector": {"app": "shop"}}))]);
    let chosen = server.choose().await.unwrap();
    assert_eq!(chosen.policy.as_deref(), Some("slow"));
    assert_eq!(chosen.configuration.bandwidth_per_migration.unwrap().0, "1Mi");
    // One list for each choice. A resource version would permit an older answer.
    let asked = server.asked.lock().unwrap().clone();
    assert_eq!(asked.len(), 2, "{asked:?}");
    for (path, query) in asked {
        assert_eq!((path.as_str(), query.contains("resourceVersion")), (POLICIES, false), "{query}");
    }
}

#[tokio::test]
async fn labels_of_the_namespace_are_read_where_a_policy_selects_by_them() {
    let server = Server::with(vec![policy("team", json!({"namespaceSelector": {"team": "a"}}))]);
    assert_eq!(server.choose().await.unwrap().policy.as_deref(), Some("team"));
    assert_eq!(server.asked.lock().unwrap().len(), 2);
}

#[tokio::test]
async fn without_an_answer_nothing_is_chosen() {
    let error = Server::default().choose().await.unwrap_err();
    assert_eq!(error.category(), Category::Unavailable, "{error}");
    let told = error.to_string();
    assert!(told.starts_with("cannot list migration policies, for VirtualMachineInstance ns/web"), "{told}");
}

#[tokio::test]
async fn a_policy_that_cannot_be_decoded_is_left_out() {
    let mut unreadable = policy("unreadable", json!({}));
    unreadable["spec"]["selectors"] = json!(7);
    let all = policy("all", json!({}));
    let server = Server::with(vec![unreadable, all]);
    assert_eq!(server.choose().await.unwrap().policy.as_deref(), Some("all"));
}
