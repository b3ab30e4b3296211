//! Which paths there are. Pure.

use barevirt_protocol::v1::Control;
use http::Method;

/// What is wanted of a guest.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// The first serial port.
    Console,
    /// The screen.
    Vnc,
    /// A slot for a USB device of the client's.
    Usb,
    /// One QMP command.
    Qmp,
    /// QMP commands and events.
    QmpStream,
    /// What its launcher knows of QEMU.
    Debug,
    /// Something is done to it.
    Control(Control),
    /// Its agent tells something of it.
    Tells(Tells),
    /// What its display shows.
    Screenshot,
}

/// What a guest's agent tells.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Tells {
    /// Something of everything.
    Overview,
    /// Who is logged in.
    Users,
    /// What is mounted.
    FileSystems,
}

impl Kind {
    /// By its words in the path.
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
            ["guestosinfo"] => Self::Tells(Tells::Overview),
            ["userlist"] => Self::Tells(Tells::Users),
            ["filesystemlist"] => Self::Tells(Tells::FileSystems),
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
            | Self::Tells(_)
            | Self::Screenshot => Method::GET,
            Self::Qmp => Method::POST,
            Self::Control(_) => Method::PUT,
        }
    }
}

/// A guest and what is wanted of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Guest {
    /// Namespace of the VMI.
    pub namespace: String,
    /// Name of the VMI.
    pub name: String,
    /// What is wanted.
    pub kind: Kind,
}

/// Where a request goes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Route {
    /// Is the process well?
    Health,
    /// Can it do its work?
    Readiness,
    /// Something of a guest.
    Guest(Guest),
    /// The path is there, the method is another.
    WrongMethod,
    /// There is no such path.
    Nothing,
}

impl Route {
    /// Reads method and path.
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
        let users = guest(Kind::Tells(Tells::Users));
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
