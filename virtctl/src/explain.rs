//! explain: what a manifest results in, without a cluster; what a running VM was made from; and how a migration
//! goes.
//!
//! Defaults, validation, the launcher pod and QEMU's command line come from the same code that virt-api,
//! virt-controller and virt-launcher use.

mod arguments;
mod explained;
mod manifests;
mod marked;
mod migration;
mod print;
mod running;
mod started;

use anyhow::bail;

use barevirt_api::settings::Settings;
use k8s_openapi::jiff::Timestamp;

use crate::session::Connection;
pub(crate) use arguments::Explain;
use arguments::Subject;
use explained::{ExplainContext, Explained};
pub(crate) use manifests::Manifests;

impl Explain {
    /// Explains; fails if something would be refused.
    pub(crate) async fn run(&self, connection: &Connection) -> anyhow::Result<()> {
        if self.files.is_empty() {
            let session = connection.open().await?;
            return match self.subject()? {
                Subject::Instance(name) => running::explain(self, name, &session).await,
                Subject::Migration(name) => migration::explain(self, name, &session).await,
            };
        }
        let manifests = Manifests::load(&self.files)?;
        let context = self.context(&manifests, connection.asked_namespace());
        let all: Vec<Explained> = manifests
            .subjects
            .iter()
            .map(|subject| explained::explain(subject, &context, |vm| manifests.lookups(vm)))
            .collect();
        match self.output {
            // One result is printed as an object, several as a list.
            Some(format) => match all.as_slice() {
                [one] => print!("{}", format.text(one)?),
                several => print!("{}", format.text(&several)?),
            },
            None => {
                print!(
                    "{}",
                    all.iter().map(|one| print::text(one, &self.show)).collect::<Vec<_>>().join("\n")
                );
            }
        }
        if !manifests.others.is_empty() {
            eprintln!("Not explained: {}.", manifests.others.join(", "));
        }
        let refused: Vec<&str> =
            all.iter().filter(|one| !one.causes.is_empty()).map(|one| one.name.as_str()).collect();
        if !refused.is_empty() {
            bail!("would be refused, see the causes: {}", refused.join(", "));
        }
        Ok(())
    }
}

/// The explanation of manifests as the command prints it, and whether all of them would be accepted.
/// `namespace` is for manifests that name none.
pub(crate) fn in_words(manifests: &Manifests, settings: Settings, namespace: &str) -> (String, bool) {
    let config = arguments::config("virt-launcher".to_owned(), settings).in_namespace(None, &[]);
    let context = ExplainContext { config, namespace: Some(namespace.to_owned()), now: Timestamp::now() };
    let explain = |subject| explained::explain(subject, &context, |vm| manifests.lookups(vm));
    let all: Vec<Explained> = manifests.subjects.iter().map(explain).collect();
    let texts: Vec<String> = all.iter().map(|one| print::text(one, &[])).collect();
    (texts.join("\n"), all.iter().all(|one| one.causes.is_empty()))
}
