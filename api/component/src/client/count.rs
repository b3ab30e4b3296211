//! Counts requests to the API server, as KubeVirt does: by status code, method, host, resource and verb; and times them by
//! verb and address.

use crate::metrics::{Metrics, names};
use http::{Method, Request, Response, Uri};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::histogram::Histogram;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};
use tower::Service;

/// Buckets in seconds, as in KubeVirt.
const BUCKETS: [f64; 23] = [
    0.005, 0.025, 0.05, 0.1, 0.2, 0.4, 0.6, 0.8, 1.0, 1.25, 1.5, 2.0, 3.0, 4.0, 5.0, 6.0, 8.0, 10.0, 15.0,
    20.0, 30.0, 45.0, 60.0,
];

type Labels = Vec<(&'static str, String)>;
type Times = Family<Labels, Histogram, fn() -> Histogram>;

/// Numbers of requests, and how long they took.
#[derive(Clone, Debug)]
pub struct Requests {
    count: Family<Labels, Counter>,
    times: Times,
}

impl Default for Requests {
    fn default() -> Self {
        let times = Times::new_with_constructor(|| Histogram::new(BUCKETS));
        Requests { count: Family::default(), times }
    }
}

impl Requests {
    /// A counter that `metrics` exports.
    pub fn exported(metrics: &mut Metrics) -> Self {
        let requests = Requests::default();
        metrics.register(&names::REST_CLIENT_REQUESTS, requests.count.clone());
        metrics.register(&names::REST_CLIENT_LATENCY, requests.times.clone());
        requests
    }

    pub(super) fn layer(&self, host: String) -> Layer {
        Layer { requests: self.clone(), host }
    }

    fn add(&self, code: String, method: &Method, host: &str, (resource, verb): (String, &'static str)) {
        let labels = vec![
            ("code", code),
            ("method", method.as_str().to_owned()),
            ("host", host.to_owned()),
            ("resource", resource),
            ("verb", verb.to_owned()),
        ];
        self.count.get_or_create(&labels).inc();
    }

    /// A request was answered, or has failed. A watch is answered as long as it lasts, so it is not timed.
    fn took(&self, verb: &'static str, address: String, time: Duration) {
        if verb != "WATCH" {
            let labels = vec![("verb", verb.to_owned()), ("url", address)];
            self.times.get_or_create(&labels).observe(time.as_secs_f64());
        }
    }
}

/// Adds the counter to a client.
#[derive(Clone, Debug)]
pub(super) struct Layer {
    requests: Requests,
    host: String,
}

impl<S> tower::Layer<S> for Layer {
    type Service = Counted<S>;

    fn layer(&self, inner: S) -> Counted<S> {
        Counted { inner, layer: self.clone() }
    }
}

/// A client with the counter.
#[derive(Clone, Debug)]
pub(super) struct Counted<S> {
    inner: S,
    layer: Layer,
}

impl<S, A, B> Service<Request<A>> for Counted<S>
where
    S: Service<Request<A>, Response = Response<B>>,
    S::Future: Send + 'static,
{
    type Response = S::Response;
    type Error = S::Error;
    type Future = Pin<Box<dyn Future<Output = Result<S::Response, S::Error>> + Send>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(context)
    }

    fn call(&mut self, request: Request<A>) -> Self::Future {
        let (method, operation) = (request.method().clone(), operation(request.method(), request.uri()));
        let Layer { requests, host } = self.layer.clone();
        let address = address(&host, request.uri());
        let begun = Instant::now();
        let answer = self.inner.call(request);
        Box::pin(async move {
            let answer = answer.await;
            requests.took(operation.1, address, begun.elapsed());
            let code = match &answer {
                Ok(answer) => answer.status().as_u16().to_string(),
                Err(_) => "<error>".to_owned(),
            };
            requests.add(code, &method, &host, operation);
            answer
        })
    }
}

/// The resource and the verb of a request, in KubeVirt's terms.
fn operation(method: &Method, uri: &Uri) -> (String, &'static str) {
    let none = || ("none".to_owned(), "none");
    let parts: Vec<&str> = uri.path().split('/').filter(|part| !part.is_empty()).collect();
    let below = match parts.as_slice() {
        ["api", _, below @ ..] | ["apis", _, _, below @ ..] => below,
        _ => return none(),
    };
    let resource = match below {
        ["namespaces", _, resource, ..] | [resource, ..] => *resource,
        [] => return none(),
    };
    let watches = || uri.query().unwrap_or_default().split('&').any(|pair| pair == "watch=true");
    let verb = match method.as_str() {
        "GET" if watches() => "WATCH",
        "GET" if below.last() == Some(&resource) => "LIST",
        "GET" => "GET",
        "PUT" => "UPDATE",
        "PATCH" => "PATCH",
        "POST" => "CREATE",
        "DELETE" => "DELETE",
        _ => "none",
    };
    (resource.to_owned(), verb)
}

/// The address of a request with placeholders for names, as client-go's metrics have it.
fn address(host: &str, uri: &Uri) -> String {
    let mut parts: Vec<&str> = uri.path().split('/').filter(|part| !part.is_empty()).collect();
    let group = match parts.as_slice() {
        ["api", _, ..] => 2,
        ["apis", _, _, ..] => 3,
        _ => return format!("https://{host}/%7Bprefix%7D"),
    };
    let resource = match parts.get(group..) {
        Some(["namespaces", _, _, ..]) => group + 2,
        _ => group,
    };
    if resource > group {
        parts[group + 1] = "%7Bnamespace%7D";
    }
    if let Some(name) = parts.get_mut(resource + 1) {
        *name = "%7Bname%7D";
    }
    format!("https://{host}/{}", parts.join("/"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use tower::{Layer as _, ServiceExt, service_fn};

    #[test]
    fn a_request_is_counted_by_resource_and_verb() {
        for (method, uri, resource, verb) in [
            ("GET", "/api/v1/pods?watch=true&resourceVersion=1", "pods", "WATCH"),
            ("GET", "/api/v1/namespaces/a/pods", "pods", "LIST"),
            ("GET", "/api/v1/namespaces/a/pods/b", "pods", "GET"),
            ("GET", "/api/v1/namespaces/a", "namespaces", "GET"),
            ("GET", "/api/v1/namespaces", "namespaces", "LIST"),
            (
                "PATCH",
                "/apis/kubevirt.io/v1/namespaces/a/virtualmachines/b/status",
                "virtualmachines",
                "PATCH",
            ),
            ("POST", "/apis/authorization.k8s.io/v1/subjectaccessreviews", "subjectaccessreviews", "CREATE"),
            ("PUT", "/apis/coordination.k8s.io/v1/namespaces/a/leases/b", "leases", "UPDATE"),
            ("DELETE", "/api/v1/nodes/a", "nodes", "DELETE"),
            ("GET", "/version", "none", "none"),
            ("GET", "/apis/kubevirt.io/v1", "none", "none"),
        ] {
            let method: Method = method.parse().unwrap();
            let uri: Uri = uri.parse().unwrap();
            assert_eq!(operation(&method, &uri), (resource.to_owned(), verb), "{method} {uri}");
        }
    }

    #[test]
    fn an_address_has_no_names() {
        for (uri, expected) in [
            ("/api/v1/pods?limit=1", "api/v1/pods"),
            ("/api/v1/nodes/a", "api/v1/nodes/%7Bname%7D"),
            ("/api/v1/namespaces/a", "api/v1/namespaces/%7Bname%7D"),
            ("/api/v1/namespaces/a/pods", "api/v1/namespaces/%7Bnamespace%7D/pods"),
            ("/api/v1/namespaces/a/pods/b", "api/v1/namespaces/%7Bnamespace%7D/pods/%7Bname%7D"),
            (
                "/apis/kubevirt.io/v1/namespaces/a/virtualmachines/b/status",
                "apis/kubevirt.io/v1/namespaces/%7Bnamespace%7D/virtualmachines/%7Bname%7D/status",
            ),
            ("/apis/kubevirt.io/v1", "apis/kubevirt.io/v1"),
            ("/version", "%7Bprefix%7D"),
        ] {
            assert_eq!(address("s:443", &uri.parse().unwrap()), format!("https://s:443/{expected}"), "{uri}");
        }
    }

    #[test]
    fn requests_are_timed_and_watches_are_not() {
        let mut metrics = Metrics::default();
        let requests = Requests::exported(&mut metrics);
        requests.took("GET", "https://s/api/v1/pods".to_owned(), Duration::from_millis(30));
        requests.took("WATCH", "https://s/api/v1/pods".to_owned(), Duration::from_secs(300));
        let text = metrics.text();
        let name = names::REST_CLIENT_LATENCY.name;
        assert!(
            text.contains(&format!("\n{name}_sum{{verb=\"GET\",url=\"https://s/api/v1/pods\"}} 0.03\n")),
            "{text}"
        );
        assert!(!text.contains("WATCH"), "{text}");
        assert!(names::is_exported(&format!("{name}_bucket")));
    }

    #[tokio::test]
    async fn answers_and_failures_are_counted() {
        let mut metrics = Metrics::default();
        let requests = Requests::exported(&mut metrics);
        let service = service_fn(async |request: Request<()>| match request.method().as_str() {
            "GET" => Ok(Response::builder().status(404).body(()).unwrap()),
            _ => Err("no connection"),
        });
        let service = requests.layer("server:443".to_owned()).layer(service);
        for method in ["GET", "GET", "DELETE"] {
            let request = Request::builder().method(method).uri("/api/v1/nodes/a").body(()).unwrap();
            let _ = service.clone().oneshot(request).await;
        }
        let text = metrics.text();
        let line = |code: &str, method: &str, verb: &str, count: u32| {
            format!(
                "kubevirt_rest_client_requests_total{{code=\"{code}\",method=\"{method}\",host=\"server:443\",resource=\"nodes\",verb=\"{verb}\"}} {count}\n"
            )
        };
        assert!(text.contains(&line("404", "GET", "GET", 2)), "{text}");
        assert!(text.contains(&line("<error>", "DELETE", "DELETE", 1)), "{text}");
    }
}
