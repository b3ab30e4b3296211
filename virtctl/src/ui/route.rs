//! What a request means. Pure.

use http::Method;

/// A machine, or an instance, with valid names.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Target {
    pub(super) namespace: String,
    pub(super) name: String,
}

/// An action on a machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Action {
    Start,
    Stop,
    Restart,
    Pause,
    Unpause,
    SoftReboot,
    Reset,
    Migrate,
}

/// A stream of a guest.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Stream {
    Console,
    Display,
}

/// A question about a manifest.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Question {
    /// What it results in.
    Explain,
    /// Which of its changes need a restart.
    Diff,
    /// Whether the API server accepts it, without creating anything.
    Check,
    /// Create it.
    Create,
}

/// A request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Route {
    /// Which cluster, and which namespace.
    About,
    /// Machines, instances and nodes, as they change.
    Live,
    /// The values of a form as a manifest.
    Draft,
    /// A question about a manifest.
    Ask(Question),
    /// All of a machine, its instance and its events.
    Show(Target),
    /// Its manifest.
    Manifest(Target),
    /// Replace its manifest.
    Save(Target),
    /// An action on it.
    Act(Target, Action),
    /// A line for QEMU's monitor.
    Monitor(Target),
    /// Figures of its guest.
    Metrics(Target),
    /// Its console or display.
    Open(Target, Stream),
}

/// Longest name that Kubernetes accepts.
const LONGEST: usize = 253;

/// The route of a path beneath `/api/`. None if there is no such path, or not with this method.
pub(super) fn route(method: &Method, path: &str) -> Option<Route> {
    let words: Vec<&str> = path.strip_prefix("/api/")?.split('/').collect();
    let get = method == Method::GET;
    let post = method == Method::POST;
    match words.as_slice() {
        ["about"] if get => Some(Route::About),
        ["live"] if get => Some(Route::Live),
        ["draft"] if post => Some(Route::Draft),
        ["explain"] if post => Some(Route::Ask(Question::Explain)),
        ["diff"] if post => Some(Route::Ask(Question::Diff)),
        ["check"] if post => Some(Route::Ask(Question::Check)),
        ["create"] if post => Some(Route::Ask(Question::Create)),
        ["machines", namespace, name, rest @ ..] => {
            let target = Target { namespace: checked(namespace)?, name: checked(name)? };
            match rest {
                [] if get => Some(Route::Show(target)),
                ["manifest"] if get => Some(Route::Manifest(target)),
                ["manifest"] if method == Method::PUT => Some(Route::Save(target)),
                ["do", action] if post => Some(Route::Act(target, self::action(action)?)),
                ["monitor"] if post => Some(Route::Monitor(target)),
                ["metrics"] if get => Some(Route::Metrics(target)),
                ["console"] if get => Some(Route::Open(target, Stream::Console)),
                ["vnc"] if get => Some(Route::Open(target, Stream::Display)),
                _ => None,
            }
        }
        _ => None,
    }
}

fn action(word: &str) -> Option<Action> {
    Some(match word {
        "start" => Action::Start,
        "stop" => Action::Stop,
        "restart" => Action::Restart,
        "pause" => Action::Pause,
        "unpause" => Action::Unpause,
        "softreboot" => Action::SoftReboot,
        "reset" => Action::Reset,
        "migrate" => Action::Migrate,
        _ => return None,
    })
}

fn checked(name: &str) -> Option<String> {
    is_name(name).then(|| name.to_owned())
}

/// Whether it is a valid name of an object, without characters that have a meaning in a path.
pub(super) fn is_name(name: &str) -> bool {
    let plain = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
    let at = |byte: Option<u8>| byte.is_some_and(plain);
    name.len() <= LONGEST
        && name.bytes().all(|byte| plain(byte) || byte == b'-' || byte == b'.')
        && at(name.bytes().next())
        && at(name.bytes().last())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn get(path: &str) -> Option<Route> {
        route(&Method::GET, path)
    }

    #[test]
    fn requests_are_understood() {
        let target = Target { namespace: "shop".to_owned(), name: "web.1".to_owned() };
        assert_eq!(get("/api/live"), Some(Route::Live));
        assert_eq!(get("/api/machines/shop/web.1"), Some(Route::Show(target.clone())));
        assert_eq!(get("/api/machines/shop/web.1/vnc"), Some(Route::Open(target.clone(), Stream::Display)));
        assert_eq!(
            route(&Method::POST, "/api/machines/shop/web.1/do/migrate"),
            Some(Route::Act(target.clone(), Action::Migrate))
        );
        assert_eq!(route(&Method::PUT, "/api/machines/shop/web.1/manifest"), Some(Route::Save(target)));
        assert_eq!(route(&Method::POST, "/api/check"), Some(Route::Ask(Question::Check)));
    }

    #[test]
    fn unknown_api_paths_are_not_found() {
        for path in [
            "/api",
            "/api/",
            "/api/x",
            "/api/live/",
            "/api/machines",
            "/api/machines/shop",
            "/api//live",
            "/api/machines/shop/web/x",
            "/api/machines/shop/web/",
            "/api/machines/shop/web/do/start",
            "/live",
        ] {
            assert_eq!(get(path), None, "{path}");
        }
        for path in ["/api/live", "/api/machines/shop/web", "/api/machines/shop/web/do/delete"] {
            assert_eq!(route(&Method::POST, path), None, "{path}");
        }
        assert_eq!(route(&Method::DELETE, "/api/machines/shop/web"), None);
    }

    #[test]
    fn a_name_stays_a_name() {
        for name in
            ["..", ".", "", "a/b", "a%2fb", "a?b", "a#b", "A", "-a", "a-", "a b", "ä", &"a".repeat(254)]
        {
            assert!(!is_name(name), "{name}");
            assert_eq!(get(&format!("/api/machines/shop/{name}/metrics")), None, "{name}");
        }
        assert!(is_name("a") && is_name("0-a.b"));
    }
}
