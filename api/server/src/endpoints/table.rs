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
    does: "Refuse instead of disconnecting the present client of the display; false by default.",
};
const MOVE_CURSOR: Query = Query {
    name: "moveCursor",
    kind: "boolean",
    required: false,
    does: "Move the pointer first, to wake a sleeping display; false by default.",
};
// Not `timeout`: the API server interprets this name itself.
const QMP_TIMEOUT: Query = Query {
    name: "timeoutSeconds",
    kind: "integer",
    required: false,
    does: "Time limit for QEMU in seconds, from 1 to 50; 10 by default.",
};
const VSOCK_PORT: Query = Query {
    name: "port",
    kind: "integer",
    required: true,
    does: "Port on which a program in the guest listens.",
};
const VSOCK_TLS: Query = Query {
    name: "tls",
    kind: "boolean",
    required: false,
    does: "Use TLS for the connection to that program; true by default.",
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
        machine("start", Update, "Start", "Starts the machine.")
            .calls(Call::Machine(MachineAction::Start))
            .takes(K::StartOptions),
        machine("stop", Update, "Stop", "Stops the machine.")
            .calls(Call::Machine(MachineAction::Stop))
            .takes(K::StopOptions),
        machine("restart", Update, "Restart", "Stops the machine and starts it again.")
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
            "Adds a volume and its disk, even while the machine runs.",
        )
        .calls(Call::Volume(VolumeAction::Add))
        .takes(K::AddVolumeOptions),
        machine("removevolume", Update, "vm-removevolume", "Removes a volume that was added.")
            .calls(Call::Volume(VolumeAction::Remove))
            .takes(K::RemoveVolumeOptions),
        machine("memorydump", Update, "MemoryDump", "Writes the guest's memory to a claim.")
            .takes(K::VirtualMachineMemoryDumpRequest),
        machine(
            "removememorydump",
            Update,
            "RemoveMemoryDump",
            "Removes the claim with the memory dump from the machine.",
        ),
        machine("objectgraph", Get, "vm-objectgraph", "The objects that the machine depends on.")
            .calls(Call::ObjectGraph)
            .takes(K::ObjectGraphOptions)
            .answers(Object(K::ObjectGraphNode)),
        machine(
            "evacuate/cancel",
            Update,
            "vm-evacuatecancel",
            "Cancels the evacuation of the machine from its node.",
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
        instance("console", Get, "Console", "The first serial port, as a websocket.")
            .calls(Call::Instance(InstanceAction::Console))
            .answers(Stream),
        instance("vnc", Get, "VNC", "The display, as a websocket of RFB bytes.")
            .calls(Call::Instance(InstanceAction::Vnc))
            .asks(&[KEEP_SESSION])
            .answers(Stream),
        instance("vnc/screenshot", Get, "VNCScreenshot", "A picture of the display.")
            .calls(Call::Control(Control::Screenshot))
            .asks(&[MOVE_CURSOR])
            .answers(Png),
        instance("usbredir", Get, "usbredir", "A USB device of the client, as a websocket.")
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
        instance("qmp", Create, "Qmp", "Runs one command of QEMU's monitor and returns QEMU's answer.")
            .calls(Call::Instance(InstanceAction::Qmp))
            .asks(&[QMP_TIMEOUT])
            .takes(K::QmpCommand)
            .answers(Object(K::QmpAnswer)),
        instance("qmp", Get, "QmpStream", "QMP commands and events, as a websocket.")
            .calls(Call::Instance(InstanceAction::QmpStream))
            .answers(Stream),
        instance("debug", Get, "Debug", "The launcher's information about QEMU, without a query to QEMU.")
            .calls(Call::Instance(InstanceAction::Debug)),
        instance("pause", Update, "Pause", "Pauses the guest's CPUs.")
            .calls(Call::Control(Control::Pause))
            .takes(K::PauseOptions)
            .answers(Done),
        instance("unpause", Update, "Unpause", "Resumes the guest's CPUs.")
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
        instance("softreboot", Update, "SoftReboot", "Asks the guest to reboot.")
            .calls(Call::Control(Control::SoftReboot))
            .answers(Done),
        instance("reset", Update, "Reset", "Presses the guest's reset button.")
            .calls(Call::Control(Control::Reset))
            .answers(Done),
        instance("guestosinfo", Get, "Guestosinfo", "Information about the guest from the guest agent.")
            .calls(Call::Control(Control::GuestOsInfo))
            .answers(Object(K::VirtualMachineInstanceGuestAgentInfo)),
        instance("userlist", Get, "Userlist", "Users who are logged in, from the guest agent.")
            .calls(Call::Control(Control::UserList))
            .answers(Object(K::VirtualMachineInstanceGuestOsUserList)),
        instance("filesystemlist", Get, "Filesystemlist", "Mounted file systems, from the guest agent.")
            .calls(Call::Control(Control::FilesystemList))
            .answers(Object(K::VirtualMachineInstanceFileSystemList)),
        instance("addvolume", Update, "vmi-addvolume", "Adds a volume and its disk to the running guest.")
            .calls(Call::Volume(VolumeAction::Add))
            .takes(K::AddVolumeOptions),
        instance("removevolume", Update, "vmi-removevolume", "Removes a volume that was added.")
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
            "The measurement of SEV at launch.",
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
            "Cancels the evacuation of the guest from its node.",
        )
        .calls(Call::CancelEvacuation)
        .takes(K::EvacuateCancelOptions)
        .answers(Done),
        instance("backup", Update, "Backup", "Starts or ends a backup; for the controller.")
            .takes(K::BackupOptions),
        instance(
            "redefine-checkpoint",
            Update,
            "RedefineCheckpoint",
            "Defines a checkpoint in QEMU; for the controller.",
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
        everyone("healthz", "CheckHealth", "Whether this server is healthy.").calls(Call::Health),
        everyone("guestfs", "Guestfs", "Where the image with libguestfs is."),
        profiler("start-cluster-profiler", "Starts the profilers of the components."),
        profiler("stop-cluster-profiler", "Stops the profilers of the components."),
        profiler("dump-cluster-profiler", "The results of the components' profilers."),
    ]
};
