//! Which paths there are. Pure.

use http::Method;

/// What is wanted of a guest.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// The first serial port.
    Console,
    /// The screen.
    Vnc,
    /// One QMP command.
    Qmp,
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
            ["", "healthz"] => return Route::WrongMethod,
            ["", "v1", "namespaces", namespace, "virtualmachineinstances", name, last] => {
                let kind = match *last {
                    "console" => Kind::Console,
                    "vnc" => Kind::Vnc,
                    "qmp" => Kind::Qmp,
                    _ => return Route::Nothing,
                };
                (kind, namespace, name)
            }
            _ => return Route::Nothing,
        };
        if namespace.is_empty() || name.is_empty() {
            return Route::Nothing;
        }
        let wanted = if kind == Kind::Qmp { Method::POST } else { Method::GET };
        if method != wanted {
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
        assert_eq!(Route::parse(&Method::POST, &format!("{base}/qmp")), guest(Kind::Qmp));
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
            "/v1/namespaces/shop/pods/web/console",
        ] {
            assert_eq!(Route::parse(&Method::GET, path), Route::Nothing, "{path}");
        }
    }
}
