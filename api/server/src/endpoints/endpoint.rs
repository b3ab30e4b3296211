//! One call: path, verb and purpose.

use http::Method;

use super::actions::Call;

/// The object of a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum On {
    /// The cluster, for all clients: no access review.
    Everyone,
    /// The cluster.
    Cluster,
    /// A namespace.
    Namespace,
    /// A VirtualMachine.
    Machine,
    /// A VirtualMachineInstance.
    Instance,
}

/// Verb of the access review. Each has one HTTP method.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verb {
    /// GET of a named object.
    Get,
    /// GET without a name.
    List,
    /// POST.
    Create,
    /// PUT.
    Update,
}

/// A body of a request or an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[expect(missing_docs, reason = "each is the type of that name")]
pub enum Kind {
    AddVolumeOptions,
    BackupCheckpoint,
    BackupOptions,
    EvacuateCancelOptions,
    FreezeUnfreezeTimeout,
    MigrateOptions,
    ObjectGraphNode,
    ObjectGraphOptions,
    PauseOptions,
    QmpAnswer,
    QmpCommand,
    RemoveVolumeOptions,
    RestartOptions,
    SevMeasurementInfo,
    SevPlatformInfo,
    SevSecretOptions,
    SevSessionOptions,
    StartOptions,
    StopOptions,
    UnpauseOptions,
    Version,
    VirtualMachine,
    VirtualMachineInstanceFileSystemList,
    VirtualMachineInstanceGuestAgentInfo,
    VirtualMachineInstanceGuestOsUserList,
    VirtualMachineMemoryDumpRequest,
}

/// The answer of a successful call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Answer {
    /// 202 without a body: the request is accepted.
    Accepted,
    /// 200 without a body.
    Done,
    /// 200 with some JSON.
    Json,
    /// 200 with a JSON body of this kind.
    Object(Kind),
    /// 200 with a picture.
    Png,
    /// 101: a websocket.
    Stream,
}

/// A query parameter.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Query {
    /// Its name.
    pub name: &'static str,
    /// JSON type.
    pub kind: &'static str,
    /// Whether it is required.
    pub required: bool,
    /// Its effect.
    pub does: &'static str,
}

/// One call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Endpoint {
    /// The object of the call.
    pub on: On,
    /// Path elements after the object. An element in braces stands for any value and is not part of the
    /// subresource.
    pub path: &'static str,
    /// Verb of the access review, and with it the method.
    pub verb: Verb,
    /// The action.
    pub call: Call,
    /// KubeVirt's name of the operation, without the version before it.
    pub operation: &'static str,
    /// One line for users.
    pub does: &'static str,
    /// Query parameters.
    pub query: &'static [Query],
    /// Body of the request.
    pub takes: Option<Kind>,
    /// The answer.
    pub answers: Answer,
}

impl Verb {
    /// The verb in rules.
    pub fn word(self) -> &'static str {
        match self {
            Self::Get => "get",
            Self::List => "list",
            Self::Create => "create",
            Self::Update => "update",
        }
    }

    /// HTTP method of the request.
    pub fn method(self) -> Method {
        match self {
            Self::Get | Self::List => Method::GET,
            Self::Create => Method::POST,
            Self::Update => Method::PUT,
        }
    }
}

impl Endpoint {
    /// Resource of the access review: the plural of the object, or the path if there is no object.
    pub fn resource(&self) -> &'static str {
        match self.on {
            On::Machine => "virtualmachines",
            On::Instance => "virtualmachineinstances",
            On::Everyone | On::Cluster | On::Namespace => self.path,
        }
    }

    /// Subresource of the access review: the path without the elements in braces. Empty without an object.
    pub fn subresource(&self) -> &'static str {
        match self.on {
            On::Machine | On::Instance => self.path.split_once("/{").map_or(self.path, |(before, _)| before),
            On::Everyone | On::Cluster | On::Namespace => "",
        }
    }

    /// The name in rules and `kubectl`: `virtualmachines/start`.
    pub fn title(&self) -> String {
        match self.subresource() {
            "" => self.resource().to_owned(),
            subresource => format!("{}/{subresource}", self.resource()),
        }
    }

    /// Whether the path elements after the object are those of this call.
    pub fn matches(&self, words: &[&str]) -> bool {
        let own = self.path.split('/');
        own.clone().count() == words.len()
            && own.zip(words).all(|(own, word)| {
                if own.starts_with('{') {
                    // A port or a protocol, which consists of these characters only.
                    !word.is_empty() && word.bytes().all(|byte| byte.is_ascii_alphanumeric())
                } else {
                    own == *word
                }
            })
    }

    /// The elements of a path in the places where this call has braces.
    pub fn parameters(&self, words: &[&str]) -> Vec<String> {
        let own = self.path.split('/').zip(words);
        own.filter(|(own, _)| own.starts_with('{')).map(|(_, word)| (*word).to_owned()).collect()
    }

    pub(super) const fn new(
        on: On,
        path: &'static str,
        verb: Verb,
        operation: &'static str,
        does: &'static str,
    ) -> Self {
        let answers = match verb {
            Verb::Get | Verb::List | Verb::Create => Answer::Json,
            Verb::Update => Answer::Accepted,
        };
        Self { on, path, verb, call: Call::NotYet, operation, does, query: &[], takes: None, answers }
    }

    pub(super) const fn calls(mut self, call: Call) -> Self {
        self.call = call;
        self
    }

    pub(super) const fn asks(mut self, query: &'static [Query]) -> Self {
        self.query = query;
        self
    }

    pub(super) const fn takes(mut self, kind: Kind) -> Self {
        self.takes = Some(kind);
        self
    }

    pub(super) const fn answers(mut self, answer: Answer) -> Self {
        self.answers = answer;
        self
    }
}
