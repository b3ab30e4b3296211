//! What may be asked for.

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
    /// A migration of a running machine.
    Migrate,
    /// An end of the wish that a guest leaves its node.
    CancelEvacuation,
    /// Nothing yet: 501.
    NotYet,
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
