//! The actions of calls.

/// An action on a virtual machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MachineAction {
    /// Starts it.
    Start,
    /// Stops it.
    Stop,
    /// Stops it, then starts it.
    Restart,
}

/// An action on the volumes of a machine or an instance.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum VolumeAction {
    /// Adds a volume with its disk.
    Add,
    /// Removes a volume.
    Remove,
}

/// A call on a running instance.
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
    /// The launcher's information about QEMU, for a debug bundle.
    Debug,
}

/// An action on a running guest, or information about it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Control {
    /// Pauses its CPUs.
    Pause,
    /// Lets its CPUs run again.
    Unpause,
    /// Freezes its file systems.
    Freeze,
    /// Thaws its file systems.
    Unfreeze,
    /// Asks it to reboot.
    SoftReboot,
    /// Presses its reset button.
    Reset,
    /// Information from its agent.
    GuestOsInfo,
    /// The users who are logged in.
    UserList,
    /// The mounted file systems.
    FilesystemList,
    /// A picture of its display.
    Screenshot,
}

/// The action of an endpoint.
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
    /// An action on a running guest, or information about it.
    Control(Control),
    /// A stream to a port of a running guest.
    PortForward,
    /// A machine with its instance type and preference applied.
    Expand,
    /// The objects that a machine or an instance depends on.
    ObjectGraph,
    /// A migration of a running machine.
    Migrate,
    /// Cancels the evacuation of a guest from its node.
    CancelEvacuation,
    /// Not supported yet: 501.
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
    /// Path elements, here and at the handler.
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

    /// Whether the control changes the guest.
    pub fn changes(self) -> bool {
        match self {
            Self::Pause | Self::Unpause | Self::Freeze | Self::Unfreeze | Self::SoftReboot | Self::Reset => {
                true
            }
            Self::GuestOsInfo | Self::UserList | Self::FilesystemList | Self::Screenshot => false,
        }
    }
}
