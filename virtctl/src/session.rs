//! A session with one cluster: which kubeconfig, context and namespace, and calls on the subresource API.

use std::ffi::OsString;
use std::path::PathBuf;

use anyhow::Context;
use clap::Args;
use http::{Method, Request, header};
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Client, Config};
use serde::Serialize;
use serde_json::Value;

use crate::waiting;

/// The cluster, chosen as kubectl chooses it.
#[derive(Debug, Args)]
pub(crate) struct Connection {
    /// Path to the kubeconfig file to use.
    #[arg(long, global = true)]
    kubeconfig: Option<PathBuf>,
    /// The name of the kubeconfig context to use.
    #[arg(long, global = true)]
    context: Option<String>,
    /// The namespace of the object.
    #[arg(short, long, global = true)]
    namespace: Option<String>,
    /// The name of the kubeconfig cluster to use.
    #[arg(long, global = true)]
    cluster: Option<String>,
    #[command(flatten)]
    server: Server,
    #[command(flatten)]
    user: UserOverrides,
}

/// Overrides of the kubeconfig: the API server.
#[derive(Debug, Default, Args)]
struct Server {
    /// The address and port of the Kubernetes API server.
    #[arg(short, long, global = true, value_name = "URL")]
    server: Option<String>,
    /// Path to a cert file for the certificate authority.
    #[arg(long, global = true, value_name = "FILE")]
    certificate_authority: Option<PathBuf>,
    /// The name that the server's certificate has to have, instead of the server's own.
    #[arg(long, global = true, value_name = "NAME")]
    tls_server_name: Option<String>,
    /// Do not check the server's certificate: anybody on the network path can read everything.
    #[arg(long, global = true)]
    insecure_skip_tls_verify: bool,
}

/// Overrides of the kubeconfig: the user.
#[derive(Debug, Default, Args)]
struct UserOverrides {
    /// Bearer token for authentication to the API server.
    #[arg(long, global = true)]
    token: Option<String>,
    /// Path to a client certificate file for TLS.
    #[arg(long, global = true, value_name = "FILE")]
    client_certificate: Option<PathBuf>,
    /// Path to a client key file for TLS.
    #[arg(long, global = true, value_name = "FILE")]
    client_key: Option<PathBuf>,
    /// Username to impersonate for the operation.
    #[arg(long = "as", global = true, value_name = "USER")]
    impersonate: Option<String>,
    /// Group to impersonate for the operation, this flag can be repeated.
    #[arg(long = "as-group", global = true, value_name = "GROUP")]
    impersonate_groups: Vec<String>,
    /// UID to impersonate for the operation.
    #[arg(long = "as-uid", global = true, value_name = "UID")]
    impersonate_uid: Option<String>,
}

/// A client and the namespace of the call.
pub(crate) struct Session {
    pub(crate) client: Client,
    pub(crate) namespace: String,
}

impl Connection {
    /// The flags that choose the same cluster in another call of this program; the namespace is left out.
    pub(crate) fn flags(&self) -> Vec<OsString> {
        let Self { kubeconfig, context, namespace: _, cluster, server, user } = self;
        let Server { server, certificate_authority, tls_server_name, insecure_skip_tls_verify } = server;
        let UserOverrides {
            token,
            client_certificate,
            client_key,
            impersonate,
            impersonate_groups,
            impersonate_uid,
        } = user;
        let files = [
            ("--kubeconfig", kubeconfig),
            ("--certificate-authority", certificate_authority),
            ("--client-certificate", client_certificate),
            ("--client-key", client_key),
        ];
        let words = [
            ("--context", context),
            ("--cluster", cluster),
            ("--server", server),
            ("--tls-server-name", tls_server_name),
            ("--token", token),
            ("--as", impersonate),
            ("--as-uid", impersonate_uid),
        ];
        let files = files.into_iter().filter_map(|(flag, path)| Some((flag, path.clone()?.into_os_string())));
        let words = words.into_iter().filter_map(|(flag, word)| Some((flag, word.clone()?.into())));
        let groups = impersonate_groups.iter().map(|group| ("--as-group", group.into()));
        let valued = files.chain(words).chain(groups);
        let mut flags: Vec<OsString> = valued.flat_map(|(flag, value)| [flag.into(), value]).collect();
        flags.extend(insecure_skip_tls_verify.then(|| "--insecure-skip-tls-verify".into()));
        flags
    }

    /// The namespace of the command line.
    pub(crate) fn asked_namespace(&self) -> Option<&str> {
        self.namespace.as_deref()
    }

    /// Reads the configuration; nothing is sent yet.
    pub(crate) async fn open(&self) -> anyhow::Result<Session> {
        Ok(self.open_with_config().await?.0)
    }

    /// The same, with the configuration of the client, for requests that do not use the client.
    pub(crate) async fn open_with_config(&self) -> anyhow::Result<(Session, Config)> {
        let mut config = self.config().await?;
        self.server.apply(&mut config)?;
        self.user.apply(&mut config);
        let namespace = self.namespace.clone().unwrap_or_else(|| config.default_namespace.clone());
        // A refusal is reported at once: 503 and 504 are answers about a guest here, and a command must not
        // be sent twice.
        config.default_retry = false;
        let client = Client::try_from(config.clone()).context("make a client")?;
        Ok((Session { client, namespace }, config))
    }
}

impl Connection {
    /// The kubeconfig's cluster, or the cluster that this program runs in.
    async fn config(&self) -> anyhow::Result<Config> {
        let chosen = KubeConfigOptions {
            context: self.context.clone(),
            cluster: self.cluster.clone(),
            ..KubeConfigOptions::default()
        };
        if let Some(path) = &self.kubeconfig {
            let file =
                Kubeconfig::read_from(path).with_context(|| format!("read kubeconfig {}", path.display()))?;
            return Config::from_custom_kubeconfig(file, &chosen).await.context("use kubeconfig");
        }
        if self.context.is_some() || self.cluster.is_some() {
            return Config::from_kubeconfig(&chosen).await.context("use kubeconfig");
        }
        match (Config::infer().await, &self.server.server) {
            (Ok(config), _) => Ok(config),
            (Err(_), Some(server)) => Ok(Config::new(address(server)?)),
            (Err(error), None) => Err(error).context("no kubeconfig, and not inside a cluster"),
        }
    }
}

/// A server's address; without a scheme it is https, as in kubectl, except on port 80.
fn address(server: &str) -> anyhow::Result<http::Uri> {
    let whole = if server.contains("://") { server.to_owned() } else { format!("https://{server}") };
    whole.parse().with_context(|| format!("--server {server:?} is not an address"))
}

impl Server {
    fn apply(&self, config: &mut Config) -> anyhow::Result<()> {
        let Self { server, certificate_authority, tls_server_name, insecure_skip_tls_verify } = self;
        if let Some(server) = server {
            config.cluster_url = address(server)?;
        }
        if let Some(path) = certificate_authority {
            (config.root_cert, config.root_cert_file) = (None, Some(path.clone()));
        }
        if let Some(name) = tls_server_name {
            config.tls_server_name = Some(name.clone());
        }
        config.accept_invalid_certs |= *insecure_skip_tls_verify;
        Ok(())
    }
}

impl UserOverrides {
    fn apply(&self, config: &mut Config) {
        let Self { token, client_certificate, client_key, impersonate, impersonate_groups, impersonate_uid } =
            self;
        if token.is_some() || client_certificate.is_some() {
            // With two identities the server would choose one of them.
            let former = std::mem::take(&mut config.auth_info);
            config.auth_info.impersonate = former.impersonate;
            config.auth_info.impersonate_uid = former.impersonate_uid;
            config.auth_info.impersonate_groups = former.impersonate_groups;
            config.auth_info.impersonate_user_extra = former.impersonate_user_extra;
        }
        let (info, text) = (&mut config.auth_info, |path: &PathBuf| path.to_string_lossy().into_owned());
        if let Some(token) = token {
            info.token = Some(token.clone().into());
        }
        if let Some(path) = client_certificate {
            (info.client_certificate, info.client_certificate_data) = (Some(text(path)), None);
        }
        if let Some(path) = client_key {
            (info.client_key, info.client_key_data) = (Some(text(path)), None);
        }
        if let Some(name) = impersonate {
            info.impersonate = Some(name.clone());
        }
        if let Some(uid) = impersonate_uid {
            info.impersonate_uid = Some(uid.clone());
        }
        if !impersonate_groups.is_empty() {
            info.impersonate_groups = Some(impersonate_groups.clone());
        }
    }
}

/// Which kind of object the user means.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    Machine,
    Instance,
}

impl Kind {
    /// Reads any of its spellings.
    pub(crate) fn parse(word: &str) -> Option<Self> {
        match word.to_lowercase().as_str() {
            "vm" | "vms" | "virtualmachine" | "virtualmachines" => Some(Self::Machine),
            "vmi" | "vmis" | "virtualmachineinstance" | "virtualmachineinstances" => Some(Self::Instance),
            _ => None,
        }
    }
}

/// Reads a label of an argument.
pub(crate) fn label(text: &str) -> Result<(String, String), String> {
    let (key, value) =
        text.split_once('=').ok_or_else(|| format!("{text} must be formatted as key=value"))?;
    Ok((key.to_owned(), value.to_owned()))
}

/// Plural of instances, as in paths.
pub(crate) const INSTANCES: &str = "virtualmachineinstances";

/// Path of a subresource.
pub(crate) fn path(namespace: &str, resource: &str, name: &str, subresource: &str) -> String {
    format!("/apis/subresources.kubevirt.io/v1/namespaces/{namespace}/{resource}/{name}/{subresource}")
}

/// `dryRun` of a call's options, and the line that says so.
pub(crate) fn dry_run(wanted: bool) -> Vec<String> {
    if wanted {
        println!("Dry Run execution");
        vec!["All".to_owned()]
    } else {
        Vec::new()
    }
}

impl Session {
    /// Calls a subresource with a JSON body and returns the answer's text.
    pub(crate) async fn call(
        &self,
        method: Method,
        path: String,
        body: &impl Serialize,
    ) -> Result<String, kube::Error> {
        let request = Request::builder()
            .method(method)
            .uri(path)
            .header(header::CONTENT_TYPE, "application/json")
            .header(header::ACCEPT, "application/json")
            .body(serde_json::to_vec(body).map_err(kube::Error::SerdeError)?)
            .map_err(kube::Error::HttpError)?;
        waiting::during("waiting for the cluster's answer", self.client.request_text(request)).await
    }

    /// Calls a subresource and reads its answer as JSON.
    pub(crate) async fn call_json(
        &self,
        method: Method,
        path: String,
        body: &impl Serialize,
    ) -> anyhow::Result<Value> {
        let text = self.call(method, path, body).await.map_err(plain)?;
        serde_json::from_str(&text).context("the server's answer is not JSON")
    }
}

/// The message of a failed answer.
pub(crate) fn sentence(body: &[u8]) -> String {
    serde_json::from_slice::<Value>(body)
        .ok()
        .and_then(|status| status["message"].as_str().map(str::to_owned))
        .unwrap_or_else(|| String::from_utf8_lossy(body).into_owned())
}

/// The server's own message, if it sent one.
pub(crate) fn plain(error: kube::Error) -> anyhow::Error {
    match error {
        kube::Error::Api(status) if !status.message.is_empty() => anyhow::anyhow!(status.message.clone()),
        other => other.into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Parser)]
    struct Wrapped {
        #[command(flatten)]
        inner: Connection,
    }

    const ALL: [&str; 23] = [
        "--kubeconfig",
        "k",
        "--certificate-authority",
        "ca.crt",
        "--client-certificate",
        "me.crt",
        "--client-key",
        "me.key",
        "--context",
        "c",
        "--cluster",
        "l",
        "--server",
        "here:6443",
        "--tls-server-name",
        "there",
        "--token",
        "t",
        "--as",
        "ann",
        "--as-uid",
        "7",
        "--insecure-skip-tls-verify",
    ];

    fn read(arguments: &[&str]) -> Connection {
        Wrapped::parse_from([&["virtctl"], arguments].concat()).inner
    }

    #[test]
    fn another_call_gets_the_same_flags() {
        assert_eq!(read(&ALL).flags(), ALL);
        assert_eq!(read(&["-n", "shop"]).flags(), Vec::<OsString>::new());
        let groups = ["--as-group", "a", "--as-group", "b"];
        assert_eq!(read(&groups).flags(), groups);
    }

    #[test]
    fn flags_come_before_the_kubeconfig() {
        let mut config = Config::new("https://former".parse().unwrap());
        config.auth_info.client_certificate = Some("former.crt".to_owned());
        config.auth_info.impersonate = Some("bob".to_owned());
        let mut left = config.clone();
        read(&[]).server.apply(&mut left).unwrap();
        read(&[]).user.apply(&mut left);
        assert_eq!(left.cluster_url, "https://former");
        assert_eq!(left.auth_info.client_certificate.as_deref(), Some("former.crt"));
        assert!(!left.accept_invalid_certs);

        let asked = read(&["-s", "here:6443", "--token=t", "--as-group=a", "--insecure-skip-tls-verify"]);
        asked.server.apply(&mut config).unwrap();
        asked.user.apply(&mut config);
        assert_eq!(config.cluster_url, "https://here:6443");
        assert!(config.accept_invalid_certs && config.auth_info.token.is_some());
        // The certificate of the kubeconfig would be another user's.
        assert_eq!(config.auth_info.client_certificate, None);
        assert_eq!(config.auth_info.impersonate.as_deref(), Some("bob"));
        assert_eq!(config.auth_info.impersonate_groups, Some(vec!["a".to_owned()]));
        let wrong = read(&["--server", "no address"]);
        assert!(wrong.server.apply(&mut config).is_err());
    }
}
