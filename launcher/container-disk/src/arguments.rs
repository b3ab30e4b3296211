//! The command line. Parsed by hand: the program is copied into every VM pod and stays small.

use std::ffi::OsString;
use std::path::PathBuf;

/// What the program is to do.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Command {
    /// Copies itself.
    Copy { destination: PathBuf },
    /// Hands over a disk.
    Serve(Serve),
}

/// Arguments of `serve`.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Serve {
    /// Name of the volume in the VirtualMachineInstance.
    pub(crate) volume: String,
    /// The launcher's socket.
    pub(crate) socket: PathBuf,
    /// The disk in the image; `None`: the only file under `/disk`.
    pub(crate) path: Option<PathBuf>,
    /// What counts as the root of the image.
    pub(crate) root: PathBuf,
}

/// Why the command line makes no sense.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub(crate) enum ArgumentError {
    #[error(
        "usage: container-disk copy DEST | serve --volume NAME --socket PATH [--path DISK] [--root DIRECTORY]"
    )]
    Usage,
    #[error("unknown argument {0:?}")]
    Unknown(OsString),
    #[error("argument {0} wants a value")]
    NoValue(&'static str),
    #[error("argument {0} is missing")]
    Missing(&'static str),
    #[error("argument {0} is not UTF-8")]
    NotUtf8(&'static str),
}

const OPTIONS: [&str; 4] = ["--volume", "--socket", "--path", "--root"];

/// Reads the arguments after the program's name. Options are `--name value` or `--name=value`.
pub(crate) fn parse(arguments: impl IntoIterator<Item = OsString>) -> Result<Command, ArgumentError> {
    let mut arguments = arguments.into_iter();
    match arguments.next().as_ref().and_then(|word| word.to_str()) {
        Some("copy") => match (arguments.next(), arguments.next()) {
            (Some(destination), None) => Ok(Command::Copy { destination: destination.into() }),
            _ => Err(ArgumentError::Usage),
        },
        Some("serve") => serve(arguments).map(Command::Serve),
        _ => Err(ArgumentError::Usage),
    }
}

fn serve(mut arguments: impl Iterator<Item = OsString>) -> Result<Serve, ArgumentError> {
    let mut values: [Option<OsString>; OPTIONS.len()] = [const { None }; OPTIONS.len()];
    while let Some(argument) = arguments.next() {
        let (name, attached) = match argument.to_str().and_then(|text| text.split_once('=')) {
            Some((name, value)) => (OsString::from(name), Some(OsString::from(value))),
            None => (argument.clone(), None),
        };
        let Some(option) = OPTIONS.iter().position(|option| name == **option) else {
            return Err(ArgumentError::Unknown(argument));
        };
        let value = attached.or_else(|| arguments.next()).ok_or(ArgumentError::NoValue(OPTIONS[option]))?;
        values[option] = Some(value);
    }
    let [volume, socket, path, root] = values;
    Ok(Serve {
        volume: volume
            .ok_or(ArgumentError::Missing("--volume"))?
            .into_string()
            .map_err(|_| ArgumentError::NotUtf8("--volume"))?,
        socket: socket.ok_or(ArgumentError::Missing("--socket"))?.into(),
        // An empty path is what a template without one leaves behind.
        path: path.filter(|path| !path.is_empty()).map(PathBuf::from),
        root: root.map_or_else(|| PathBuf::from("/"), PathBuf::from),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(line: &str) -> Result<Command, ArgumentError> {
        parse(line.split_whitespace().map(OsString::from))
    }

    #[test]
    fn the_pods_command_lines_are_understood() {
        assert_eq!(
            words("copy /init/container-disk"),
            Ok(Command::Copy { destination: "/init/container-disk".into() })
        );
        let serve = |path: Option<&str>| {
            Ok(Command::Serve(Serve {
                volume: "root".into(),
                socket: "/s".into(),
                path: path.map(PathBuf::from),
                root: "/".into(),
            }))
        };
        assert_eq!(words("serve --volume root --socket /s"), serve(None));
        assert_eq!(words("serve --volume=root --socket /s --path="), serve(None));
        assert_eq!(
            words("serve --socket /s --path /disk/a=b.img --volume root"),
            serve(Some("/disk/a=b.img"))
        );
    }

    #[test]
    fn others_are_refused_by_name() {
        assert_eq!(words(""), Err(ArgumentError::Usage));
        assert_eq!(words("copy"), Err(ArgumentError::Usage));
        assert_eq!(words("copy a b"), Err(ArgumentError::Usage));
        assert_eq!(words("serve --socket /s"), Err(ArgumentError::Missing("--volume")));
        assert_eq!(words("serve --volume v"), Err(ArgumentError::Missing("--socket")));
        assert_eq!(words("serve --volume"), Err(ArgumentError::NoValue("--volume")));
        assert_eq!(words("serve --disk x"), Err(ArgumentError::Unknown("--disk".into())));
    }
}
