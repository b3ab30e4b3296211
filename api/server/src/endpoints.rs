//! The calls of `subresources.kubevirt.io`, one line each: where, with which verb, and what for.
//!
//! Everything else about a call follows from its line: which request it is ([`crate::route`]), its access review,
//! its entry in discovery ([`crate::discovery`]) and in the OpenAPI documents ([`crate::openapi`]). Paths and verbs
//! are KubeVirt's, and so are the operations' names, from which generated clients make their methods; `qmp` is ours.
//!
//! A call that has nothing behind it yet is here too, as [`Call::NotYet`]: who may not make it gets the same answer as
//! for any other, who may is told that it is not supported yet.

use http::Method;

/// What a person may ask of a virtual machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MachineAction {
    /// Have it running.
    Start,
    /// Have it stopped.
    Stop,
    /// Have it stopped, then running.
    Restart,
}

/// What a person may ask of a machine's or an instance's volumes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum VolumeAction {
    /// One more, with its disk.
    Add,
    /// One less.
    Remove,
}

/// What a person may ask of a running instance.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum InstanceAction {
    /// Its first serial line, as a websocket.
    Console,
    /// Its display, as a websocket of RFB bytes.
    Vnc,
    /// A slot for a USB device of the client's, as a websocket.
    UsbRedir,
    /// One QMP command.
    Qmp,
    /// QMP commands and events, as a websocket.
    QmpStream,
    /// What its launcher knows of QEMU, for a bundle.
    Debug,
}

/// What a person may do to a guest that runs, or learn of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Control {
    /// Its CPUs stand still.
    Pause,
    /// They go on.
    Unpause,
    /// Its file systems are frozen.
    Freeze,
    /// They are thawed.
    Unfreeze,
    /// It is asked to start anew.
    SoftReboot,
    /// Its reset button is pressed.
    Reset,
    /// What its agent says of it.
    GuestOsInfo,
    /// Who is logged in.
    UserList,
    /// What is mounted.
    FilesystemList,
    /// What its display shows.
    Screenshot,
}

/// What is behind an endpoint.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Call {
    /// Version of the product.
    Version,
    /// Whether this server works.
    Health,
    /// A change of a VirtualMachine.
    Machine(MachineAction),
    /// A change of the volumes of a machine or an instance.
    Volume(VolumeAction),
    /// A call on a running instance.
    Instance(InstanceAction),
    /// Something that is done to a running guest, or learnt of it.
    Control(Control),
    /// A stream to a port of a running guest.
    PortForward,
    /// A machine with its instance type and preference applied.
    Expand,
    /// What a machine or an instance depends on.
    ObjectGraph,
    /// Nothing yet: 501.
    NotYet,
}

/// What a call is made on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum On {
    /// The cluster, for everybody: no access review.
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
    /// GET of something with a name.
    Get,
    /// GET of something without a name.
    List,
    /// POST.
    Create,
    /// PUT.
    Update,
}

/// A body that a call takes or answers with.
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

/// What a call answers when all is well.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Answer {
    /// 202 without a body: the wish stands.
    Accepted,
    /// 200 without a body.
    Done,
    /// 200 with some JSON.
    Json,
    /// 200 with a JSON body of that kind.
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
    /// Whether it has to be there.
    pub required: bool,
    /// What it does.
    pub does: &'static str,
}

/// One call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Endpoint {
    /// What it is made on.
    pub on: On,
    /// Words of the path after that. A word in braces stands for any, and is no part of the subresource.
    pub path: &'static str,
    /// Verb of the access review, and with it the method.
    pub verb: Verb,
    /// What is behind it.
    pub call: Call,
    /// KubeVirt's name of the operation, without the version before it.
    pub operation: &'static str,
    /// One line for people.
    pub does: &'static str,
    /// Query parameters.
    pub query: &'static [Query],
    /// Body of the request.
    pub takes: Option<Kind>,
    /// What comes back.
    pub answers: Answer,
}

impl MachineAction {
    /// Subresource name in paths and rules.
    pub fn subresource(self) -> &'static str {
        match self {
            Self::Start => "start",
            Self::Stop => "stop",
            Self::Restart => "restart",
        }
    }
}

impl VolumeAction {
    /// Subresource name in paths and rules.
    pub fn subresource(self) -> &'static str {
        match self {
            Self::Add => "addvolume",
            Self::Remove => "removevolume",
        }
    }
}

impl InstanceAction {
    /// Subresource name in paths and rules.
    pub fn subresource(self) -> &'static str {
        match self {
            Self::Console => "console",
            Self::Vnc => "vnc",
            Self::UsbRedir => "usbredir",
            Self::Qmp | Self::QmpStream => "qmp",
            Self::Debug => "debug",
        }
    }
}

impl Control {
    /// Words of the path, here and at the handler.
    pub fn path(self) -> &'static str {
        match self {
            Self::Pause => "pause",
            Self::Unpause => "unpause",
            Self::Freeze => "freeze",
            Self::Unfreeze => "unfreeze",
            Self::SoftReboot => "softreboot",
            Self::Reset => "reset",
            Self::GuestOsInfo => "guestosinfo",
            Self::UserList => "userlist",
            Self::FilesystemList => "filesystemlist",
            Self::Screenshot => "vnc/screenshot",
        }
    }

    /// Whether it does something to the guest.
    pub fn changes(self) -> bool {
        match self {
            Self::Pause | Self::Unpause | Self::Freeze | Self::Unfreeze | Self::SoftReboot | Self::Reset => {
                true
            }
            Self::GuestOsInfo | Self::UserList | Self::FilesystemList | Self::Screenshot => false,
        }
    }
}

impl Verb {
    /// As rules have it.
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
    /// Resource of the access review: the plural of the object, or the path where there is none.
    pub fn resource(&self) -> &'static str {
        match self.on {
            On::Machine => "virtualmachines",
            On::Instance => "virtualmachineinstances",
            On::Everyone | On::Cluster | On::Namespace => self.path,
        }
    }

    /// Subresource of the access review: the path without the words in braces. Empty where there is no object.
    pub fn subresource(&self) -> &'static str {
        match self.on {
            On::Machine | On::Instance => self.path.split_once("/{").map_or(self.path, |(before, _)| before),
            On::Everyone | On::Cluster | On::Namespace => "",
        }
    }

    /// As rules and `kubectl` call it: `virtualmachines/start`.
    pub fn title(&self) -> String {
        match self.subresource() {
            "" => self.resource().to_owned(),
            subresource => format!("{}/{subresource}", self.resource()),
        }
    }

    /// Whether the words after the object are those of this call.
    pub fn matches(&self, words: &[&str]) -> bool {
        let own = self.path.split('/');
        own.clone().count() == words.len()
            && own.zip(words).all(|(own, word)| {
                if own.starts_with('{') {
                    // A port or a protocol; what is beyond these letters is neither.
                    !word.is_empty() && word.bytes().all(|byte| byte.is_ascii_alphanumeric())
                } else {
                    own == *word
                }
            })
    }

    /// The words of a path that stand where this call has braces.
    pub fn parameters(&self, words: &[&str]) -> Vec<String> {
        let own = self.path.split('/').zip(words);
        own.filter(|(own, _)| own.starts_with('{')).map(|(_, word)| (*word).to_owned()).collect()
    }

    const fn new(
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

    const fn calls(mut self, call: Call) -> Self {
        self.call = call;
        self
    }

    const fn asks(mut self, query: &'static [Query]) -> Self {
        self.query = query;
        self
    }

    const fn takes(mut self, kind: Kind) -> Self {
        self.takes = Some(kind);
        self
    }

    const fn answers(mut self, answer: Answer) -> Self {
        self.answers = answer;
        self
    }
}

const fn machine(path: &'static str, verb: Verb, operation: &'static str, does: &'static str) -> Endpoint {
    Endpoint::new(On::Machine, path, verb, operation, does)
}

const fn instance(path: &'static str, verb: Verb, operation: &'static str, does: &'static str) -> Endpoint {
    Endpoint::new(On::Instance, path, verb, operation, does)
}

const fn profiler(path: &'static str, does: &'static str) -> Endpoint {
    Endpoint::new(On::Cluster, path, Verb::List, path, does)
}

const fn everyone(path: &'static str, operation: &'static str, does: &'static str) -> Endpoint {
    Endpoint::new(On::Everyone, path, Verb::List, operation, does)
}

pub(crate) const KEEP_SESSION: Query = Query {
    name: "preserveSession",
    kind: "boolean",
    required: false,
    does: "Refuse instead of taking the display from whom it shows to now; false by default.",
};
const MOVE_CURSOR: Query = Query {
    name: "moveCursor",
    kind: "boolean",
    required: false,
    does: "Move the pointer first, so that a screen that sleeps wakes up; false by default.",
};
// Not `timeout`: the API server takes that word for its own.
const QMP_TIMEOUT: Query = Query {
    name: "timeoutSeconds",
    kind: "integer",
    required: false,
    does: "Seconds that QEMU may take, from 1 to 50; 10 by default.",
};
const VSOCK_PORT: Query = Query {
    name: "port",
    kind: "integer",
    required: true,
    does: "Port that a program in the guest listens on.",
};
const VSOCK_TLS: Query = Query {
    name: "tls",
    kind: "boolean",
    required: false,
    does: "Speak TLS to that program; true by default.",
};

/// All of them, in the order of discovery.
pub static ENDPOINTS: &[Endpoint] = &{
    use Answer::{Done, Object, Png, Stream};
    use Kind as K;
    use Verb::{Create, Get, Update};
    [
        // A VirtualMachine, running or not.
        machine("start", Update, "Start", "Has the machine running.")
            .calls(Call::Machine(MachineAction::Start))
            .takes(K::StartOptions),
        machine("stop", Update, "Stop", "Has the machine stopped.")
            .calls(Call::Machine(MachineAction::Stop))
            .takes(K::StopOptions),
        machine("restart", Update, "Restart", "Has the machine stopped, then running.")
            .calls(Call::Machine(MachineAction::Restart))
            .takes(K::RestartOptions),
        machine("migrate", Update, "Migrate", "Moves the running machine to another node.")
            .takes(K::MigrateOptions),
        machine(
            "expand-spec",
            Get,
            "vm-ExpandSpec",
            "The machine with its instancetype and preference filled in.",
        )
        .calls(Call::Expand)
        .answers(Object(K::VirtualMachine)),
        machine(
            "addvolume",
            Update,
            "vm-addvolume",
            "Adds a volume and its disk, also while the machine runs.",
        )
        .calls(Call::Volume(VolumeAction::Add))
        .takes(K::AddVolumeOptions),
        machine("removevolume", Update, "vm-removevolume", "Takes a volume that was added away again.")
            .calls(Call::Volume(VolumeAction::Remove))
            .takes(K::RemoveVolumeOptions),
        machine("memorydump", Update, "MemoryDump", "Writes the guest's memory to a claim.")
            .takes(K::VirtualMachineMemoryDumpRequest),
        machine(
            "removememorydump",
            Update,
            "RemoveMemoryDump",
            "Forgets about the claim with the memory dump.",
        ),
        machine("objectgraph", Get, "vm-objectgraph", "The objects that the machine depends on.")
            .calls(Call::ObjectGraph)
            .takes(K::ObjectGraphOptions)
            .answers(Object(K::ObjectGraphNode)),
        machine(
            "evacuate/cancel",
            Update,
            "vm-evacuatecancel",
            "Has the machine stay on the node it was to leave.",
        )
        .takes(K::EvacuateCancelOptions)
        .answers(Done),
        machine("portforward/{port}", Get, "vm-PortForward", "A stream to a TCP port of the guest.")
            .calls(Call::PortForward)
            .answers(Stream),
        machine(
            "portforward/{port}/{protocol}",
            Get,
            "vm-PortForwardWithProtocol",
            "A stream to a port of the guest, tcp or udp.",
        )
        .calls(Call::PortForward)
        .answers(Stream),
        // An instance, which runs.
        instance("console", Get, "Console", "The first serial line, as a websocket.")
            .calls(Call::Instance(InstanceAction::Console))
            .answers(Stream),
        instance("vnc", Get, "VNC", "The display, as a websocket of RFB bytes.")
            .calls(Call::Instance(InstanceAction::Vnc))
            .asks(&[KEEP_SESSION])
            .answers(Stream),
        instance("vnc/screenshot", Get, "VNCScreenshot", "What the display shows, as a picture.")
            .calls(Call::Control(Control::Screenshot))
            .asks(&[MOVE_CURSOR])
            .answers(Png),
        instance("usbredir", Get, "usbredir", "A USB device of the client's, as a websocket.")
            .calls(Call::Instance(InstanceAction::UsbRedir))
            .answers(Stream),
        instance("vsock", Get, "VSOCK", "A stream to a vsock port of the guest.")
            .asks(&[VSOCK_PORT, VSOCK_TLS])
            .answers(Stream),
        instance("portforward/{port}", Get, "vmi-PortForward", "A stream to a TCP port of the guest.")
            .calls(Call::PortForward)
            .answers(Stream),
        instance(
            "portforward/{port}/{protocol}",
            Get,
            "vmi-PortForwardWithProtocol",
            "A stream to a port of the guest, tcp or udp.",
        )
        .calls(Call::PortForward)
        .answers(Stream),
        instance("qmp", Create, "Qmp", "One command of QEMU's monitor, and what QEMU answers.")
            .calls(Call::Instance(InstanceAction::Qmp))
            .asks(&[QMP_TIMEOUT])
            .takes(K::QmpCommand)
            .answers(Object(K::QmpAnswer)),
        instance("qmp", Get, "QmpStream", "QMP commands and events, as a websocket.")
            .calls(Call::Instance(InstanceAction::QmpStream))
            .answers(Stream),
        instance("debug", Get, "Debug", "What the launcher knows of QEMU, without asking it.")
            .calls(Call::Instance(InstanceAction::Debug)),
        instance("pause", Update, "Pause", "Has the guest's CPUs stand still.")
            .calls(Call::Control(Control::Pause))
            .takes(K::PauseOptions)
            .answers(Done),
        instance("unpause", Update, "Unpause", "Has the guest's CPUs go on.")
            .calls(Call::Control(Control::Unpause))
            .takes(K::UnpauseOptions)
            .answers(Done),
        instance("freeze", Update, "Freeze", "Freezes the guest's file systems.")
            .calls(Call::Control(Control::Freeze))
            .takes(K::FreezeUnfreezeTimeout)
            .answers(Done),
        instance("unfreeze", Update, "Unfreeze", "Thaws the guest's file systems.")
            .calls(Call::Control(Control::Unfreeze))
            .answers(Done),
        instance("softreboot", Update, "SoftReboot", "Asks the guest to start anew.")
            .calls(Call::Control(Control::SoftReboot))
            .answers(Done),
        instance("reset", Update, "Reset", "Presses the guest's reset button.")
            .calls(Call::Control(Control::Reset))
            .answers(Done),
        instance("guestosinfo", Get, "Guestosinfo", "What the guest agent says of the guest.")
            .calls(Call::Control(Control::GuestOsInfo))
            .answers(Object(K::VirtualMachineInstanceGuestAgentInfo)),
        instance("userlist", Get, "Userlist", "Who is logged in, by the guest agent.")
            .calls(Call::Control(Control::UserList))
            .answers(Object(K::VirtualMachineInstanceGuestOsUserList)),
        instance("filesystemlist", Get, "Filesystemlist", "Mounted file systems, by the guest agent.")
            .calls(Call::Control(Control::FilesystemList))
            .answers(Object(K::VirtualMachineInstanceFileSystemList)),
        instance("addvolume", Update, "vmi-addvolume", "Adds a volume and its disk to the running guest.")
            .calls(Call::Volume(VolumeAction::Add))
            .takes(K::AddVolumeOptions),
        instance("removevolume", Update, "vmi-removevolume", "Takes a volume that was added away again.")
            .calls(Call::Volume(VolumeAction::Remove))
            .takes(K::RemoveVolumeOptions),
        instance("objectgraph", Get, "vmi-objectgraph", "The objects that the instance depends on.")
            .calls(Call::ObjectGraph)
            .takes(K::ObjectGraphOptions)
            .answers(Object(K::ObjectGraphNode)),
        instance("sev/fetchcertchain", Get, "SEVFetchCertChain", "Certificates of the node's SEV platform.")
            .answers(Object(K::SevPlatformInfo)),
        instance(
            "sev/querylaunchmeasurement",
            Get,
            "SEVQueryLaunchMeasurement",
            "What SEV measured at launch.",
        )
        .answers(Object(K::SevMeasurementInfo)),
        instance("sev/setupsession", Update, "SEVSetupSession", "Sets the parameters of the SEV session.")
            .takes(K::SevSessionOptions),
        instance(
            "sev/injectlaunchsecret",
            Update,
            "SEVInjectLaunchSecret",
            "Puts a secret into the SEV guest.",
        )
        .takes(K::SevSecretOptions),
        instance(
            "evacuate/cancel",
            Update,
            "vmi-evacuatecancel",
            "Has the guest stay on the node it was to leave.",
        )
        .takes(K::EvacuateCancelOptions)
        .answers(Done),
        instance("backup", Update, "Backup", "Begins or ends a backup; for the controller.")
            .takes(K::BackupOptions),
        instance(
            "redefine-checkpoint",
            Update,
            "RedefineCheckpoint",
            "Tells QEMU of a checkpoint; for the controller.",
        )
        .takes(K::BackupCheckpoint),
        // Without an object.
        Endpoint::new(
            On::Namespace,
            "expand-vm-spec",
            Update,
            "ExpandSpec",
            "The machine in the body with its instancetype and preference filled in.",
        )
        .calls(Call::Expand)
        .takes(K::VirtualMachine)
        .answers(Object(K::VirtualMachine)),
        everyone("version", "Version", "Version of the product.")
            .calls(Call::Version)
            .answers(Object(K::Version)),
        everyone("healthz", "CheckHealth", "Whether this server works.").calls(Call::Health),
        everyone("guestfs", "Guestfs", "Where the image with libguestfs is."),
        profiler("start-cluster-profiler", "Starts the profilers of the components."),
        profiler("stop-cluster-profiler", "Stops the profilers of the components."),
        profiler("dump-cluster-profiler", "What the profilers of the components recorded."),
    ]
};
