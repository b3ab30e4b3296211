//! The supported VNC viewers: where each is installed, and how the port is given to each.

use std::path::{Path, PathBuf};
use std::process::Stdio;

use anyhow::{Context, bail, ensure};
use tokio::process::{Child, Command};

/// Kinds of viewers, in the order of the search.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    RemoteViewer,
    Tiger,
    Chicken,
    Real,
}

/// Kinds, their names for `--vnc-type`, and their programs: in the PATH, or where a Mac has them.
const KINDS: [(Kind, &str, &str, bool); 4] = [
    (Kind::RemoteViewer, "remote-viewer", "remote-viewer", false),
    (Kind::Tiger, "tiger", "vncviewer", false),
    (Kind::Chicken, "chicken", "/Applications/Chicken.app/Contents/MacOS/Chicken", true),
    (Kind::Real, "real", "/Applications/VNC Viewer.app/Contents/MacOS/vncviewer", true),
];

/// The folders in which programs are searched.
#[derive(Debug)]
pub(super) struct Search {
    path: Vec<PathBuf>,
    is_mac: bool,
}

/// An installed viewer.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Viewer {
    kind: Kind,
    program: PathBuf,
}

impl Search {
    /// On this machine.
    pub(super) fn here() -> Self {
        let path = std::env::var_os("PATH").unwrap_or_default();
        Self { path: std::env::split_paths(&path).collect(), is_mac: cfg!(target_os = "macos") }
    }

    fn find(&self, program: &str) -> Option<PathBuf> {
        // Joining an absolute path to a folder returns that path.
        self.path.iter().map(|directory| directory.join(program)).find(|file| file.is_file())
    }
}

impl Viewer {
    /// The requested viewer, or the first installed one.
    pub(super) fn find(kind: Option<&str>, path: Option<&Path>, search: &Search) -> anyhow::Result<Self> {
        let known = KINDS.iter().filter(|(_, _, _, only_mac)| search.is_mac || !only_mac);
        let Some(wanted) = kind else {
            ensure!(
                path.is_none(),
                "--vnc-path needs --vnc-type, which says in which form the viewer gets the port"
            );
            for (kind, _, program, _) in known {
                if let Some(program) = search.find(program) {
                    return Ok(Self { kind: *kind, program });
                }
            }
            bail!(
                "could not find remote-viewer or vncviewer binary in $PATH; \
                 install one of them, or use --proxy-only and a viewer of your own"
            );
        };
        let found = known.into_iter().find(|(_, name, _, _)| *name == wanted);
        let Some((kind, _, program, _)) = found else { bail!("unsupported vnc-type: {wanted}") };
        let program = match path {
            Some(path) => {
                ensure!(path.exists(), "specified VNC path does not exist: {}", path.display());
                path.to_owned()
            }
            None => search.find(program).with_context(|| format!("could not find {program} in $PATH"))?,
        };
        Ok(Self { kind: *kind, program })
    }

    fn arguments(&self, port: u16) -> Vec<String> {
        let address = format!("127.0.0.1:{port}");
        match self.kind {
            Kind::RemoteViewer => vec![format!("vnc://{address}")],
            // Two colons: a port, not the number of a display.
            Kind::Tiger => vec![format!("127.0.0.1::{port}")],
            Kind::Chicken => vec![address],
            Kind::Real => {
                [&address, "-WarnUnencrypted=0", "-Shared=0", "-ShareFiles=0"].map(str::to_owned).to_vec()
            }
        }
    }

    /// Starts it; it ends with this program.
    pub(super) fn start(&self, port: u16) -> anyhow::Result<Child> {
        let mut command = Command::new(&self.program);
        command.args(self.arguments(port)).stdin(Stdio::null()).kill_on_drop(true);
        command.spawn().with_context(|| format!("start {}", self.program.display()))
    }
}

/// Waits until a viewer ends. The command succeeds when the viewer succeeded.
pub(super) async fn ended(child: &mut Child, viewer: &Viewer) -> anyhow::Result<()> {
    let status = child.wait().await.context("wait for the viewer")?;
    ensure!(status.success(), "{} ended: {status}", viewer.program.display());
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    #[test]
    fn a_viewer_is_the_one_that_is_there() {
        let directory = tempfile::tempdir().unwrap();
        let search = Search { path: vec!["/nowhere".into(), directory.path().to_owned()], is_mac: false };
        let find = |kind, path: Option<&str>| Viewer::find(kind, path.map(Path::new), &search);
        let none = find(None, None).unwrap_err().to_string();
        assert!(none.starts_with("could not find remote-viewer or vncviewer binary in $PATH"), "{none}");
        let error = find(Some("tiger"), None).unwrap_err().to_string();
        assert_eq!(error, "could not find vncviewer in $PATH");
        fs::write(directory.path().join("vncviewer"), "").unwrap();
        let tiger = find(None, None).unwrap();
        assert_eq!(tiger, Viewer { kind: Kind::Tiger, program: directory.path().join("vncviewer") });
        assert_eq!(tiger.arguments(5901), ["127.0.0.1::5901"]);
        fs::write(directory.path().join("remote-viewer"), "").unwrap();
        assert_eq!(find(None, None).unwrap().arguments(5901), ["vnc://127.0.0.1:5901"]);
        assert_eq!(find(Some("tiger"), None).unwrap(), tiger);
    }

    #[test]
    fn a_viewer_that_cannot_be_is_named() {
        let search = Search { path: vec![], is_mac: false };
        let error = |kind, path: Option<&str>| {
            Viewer::find(kind, path.map(Path::new), &search).unwrap_err().to_string()
        };
        for kind in ["real", "tight"] {
            assert_eq!(error(Some(kind), None), format!("unsupported vnc-type: {kind}"));
        }
        let missing = error(Some("tiger"), Some("/no/viewer"));
        assert_eq!(missing, "specified VNC path does not exist: /no/viewer");
        assert!(error(None, Some("/bin/sh")).starts_with("--vnc-path needs --vnc-type"));
        let viewer = Viewer::find(Some("tiger"), Some(Path::new("/bin/sh")), &search).unwrap();
        assert_eq!(viewer.program, Path::new("/bin/sh"));
    }
}
