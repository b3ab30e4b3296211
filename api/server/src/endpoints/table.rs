//! The table of all calls.

use barevirt_api::migratable::SERVED;

use super::actions::{Call, Control, InstanceAction, MachineAction, VolumeAction};
use super::endpoint::{Answer, Endpoint, Kind, On, Query, Verb};

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
// Not `timeout`: the API server interprets this name itself.
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

/// The action of `migrate`.
const MIGRATE: Call = if SERVED { Call::Migrate } else { Call::NotYet };

/// All calls, in the order of discovery.
pub static ENDPOINTS: &[Endpoint] = &{
    use Answer::{Done, Object, Png, Stream};
    use Kind as K;
    use Verb::{Create, Get, Update};
    [
        // Calls on a VirtualMachine, running or not.
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
            .calls(MIGRATE)
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
        .calls(Call::CancelEvacuation)
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
        // Calls on an instance.
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
        .calls(Call::CancelEvacuation)
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
        // Calls without an object.
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
