//! The paths of the server. Pure.

use barevirt_protocol::v1::Control;
use http::Method;

/// The kind of a request about a guest.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// The first serial port.
    Console,
    /// The display.
    Vnc,
    /// A slot for a USB device of the client.
    Usb,
    /// One QMP command.
    Qmp,
    /// QMP commands and events.
    QmpStream,
    /// The launcher's information about QEMU.
    Debug,
    /// A change of the guest's state.
    Control(Control),
    /// Information from its agent.
    Agent(AgentQuery),
    /// A picture of its display.
    Screenshot,
}

/// The information that a guest's agent provides.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AgentQuery {
    /// An overview of everything.
    Overview,
    /// Users who are logged in.
    Users,
    /// Mounted file systems.
    FileSystems,
}

impl Kind {
    /// Parses the last part of the path.
    fn parse(words: &[&str]) -> Option<Self> {
        Some(match words {
            ["console"] => Self::Console,
            ["vnc"] => Self::Vnc,
            ["usbredir"] => Self::Usb,
            ["vnc", "screenshot"] => Self::Screenshot,
            ["qmp"] => Self::Qmp,
            ["qmp", "stream"] => Self::QmpStream,
            ["debug"] => Self::Debug,
            ["pause"] => Self::Control(Control::Pause),
            ["unpause"] => Self::Control(Control::Unpause),
            ["reset"] => Self::Control(Control::Reset),
            ["softreboot"] => Self::Control(Control::SoftReboot),
            ["freeze"] => Self::Control(Control::Freeze),
            ["unfreeze"] => Self::Control(Control::Unfreeze),
            ["guestosinfo"] => Self::Agent(AgentQuery::Overview),
            ["userlist"] => Self::Agent(AgentQuery::Users),
            ["filesystemlist"] => Self::Agent(AgentQuery::FileSystems),
            _ => return None,
        })
    }

    fn method(self) -> Method {
        match self {
            Self::Console
            | Self::Vnc
            | Self::Usb
            | Self::QmpStream
            | Self::Debug
            | Self::Agent(_)
            | Self::Screenshot => Method::GET,
            Self::Qmp => Method::POST,
            Self::Control(_) => Method::PUT,
        }
    }
}

/// A guest and the request about it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Guest {
    /// Namespace of the VMI.
    pub namespace: String,
    /// Name of the VMI.
    pub name: String,
    /// The kind of the request.
    pub kind: Kind,
}

/// The route of a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Route {
    /// Whether the process is healthy.
    Health,
    /// Whether the process can do its work.
    Readiness,
    /// A request about a guest.
    Guest(Guest),
    /// The path exists, but not with this method.
    WrongMethod,
    /// The path does not exist.
    Nothing,
}

impl Route {
    /// Parses method and path.
    pub fn parse(method: &Method, path: &str) -> Self {
        let parts: Vec<&str> = path.split('/').collect();
        let (kind, namespace, name) = match parts.as_slice() {
            ["", "healthz"] if method == Method::GET => return Route::Health,
            ["", "readyz"] if method == Method::GET => return Route::Readiness,
            ["", "healthz" | "readyz"] => return Route::WrongMethod,
            ["", "v1", "namespaces", namespace, "virtualmachineinstances", name, words @ ..] => {
                let Some(kind) = Kind::parse(words) else { return Route::Nothing };
                (kind, namespace, name)
            }
            _ => return Route::Nothing,
        };
        if namespace.is_empty() || name.is_empty() {
            return Route::Nothing;
        }
        if method != kind.method() {
            return Route::WrongMethod;
        }
        Route::Guest(Guest { namespace: (*namespace).to_owned(), name: (*name).to_owned(), kind })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_of_a_guest() {
        let base = "/v1/namespaces/shop/virtualmachineinstances/web";
        let guest = |kind| Route::Guest(Guest { namespace: "shop".to_owned(), name: "web".to_owned(), kind });
        assert_eq!(Route::parse(&Method::GET, &format!("{base}/console")), guest(Kind::Console));
        assert_eq!(Route::parse(&Method::GET, &format!("{base}/vnc")), guest(Kind::Vnc));
        assert_eq!(Route::parse(&Method::GET, &format!("{base}/usbredir")), guest(Kind::Usb));
        assert_eq!(Route::parse(&Method::POST, &format!("{base}/qmp")), guest(Kind::Qmp));
        let pause = guest(Kind::Control(Control::Pause));
        assert_eq!(Route::parse(&Method::PUT, &format!("{base}/pause")), pause);
        assert_eq!(Route::parse(&Method::GET, &format!("{base}/pause")), Route::WrongMethod);
        let users = guest(Kind::Agent(AgentQuery::Users));
        assert_eq!(Route::parse(&Method::GET, &format!("{base}/userlist")), users);
        assert_eq!(Route::parse(&Method::GET, &format!("{base}/vnc/screenshot")), guest(Kind::Screenshot));
        assert_eq!(Route::parse(&Method::GET, &format!("{base}/qmp")), Route::WrongMethod);
        assert_eq!(Route::parse(&Method::POST, &format!("{base}/console")), Route::WrongMethod);
    }

    #[test]
    fn other_paths() {
        assert_eq!(Route::parse(&Method::GET, "/healthz"), Route::Health);
        for path in [
            "/",
            "",
            "/healthz/",
            "/v1/namespaces//virtualmachineinstances/web/console",
            "/v1/namespaces/shop/virtualmachineinstances//console",
            "/v1/namespaces/shop/virtualmachineinstances/web",
            "/v1/namespaces/shop/virtualmachineinstances/web/console/",
            "/v1/namespaces/shop/virtualmachineinstances/web/exec",
            "/v1/namespaces/shop/virtualmachineinstances/web/vnc/pause",
            "/v1/namespaces/shop/pods/web/console",
        ] {
            assert_eq!(Route::parse(&Method::GET, path), Route::Nothing, "{path}");
        }
    }
}
