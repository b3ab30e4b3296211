//! The command line. Parsed by hand, because the program is copied into every VM pod and must stay small.

use std::ffi::OsString;
use std::path::PathBuf;

/// The task of the program.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Command {
    /// Copies itself.
    Copy { destination: PathBuf },
    /// Hands over disks.
    Serve(Serve),
    /// Prints the version.
    Version,
}

/// Arguments of `serve`.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Serve {
    /// The files to hand over: one for a volume, two for a kernel and its initial file system.
    pub(crate) files: Vec<Wanted>,
    /// The launcher's socket.
    pub(crate) socket: PathBuf,
    /// The directory that counts as the root of the image.
    pub(crate) root: PathBuf,
}

/// A file of the image.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Wanted {
    /// Name of the volume in the VirtualMachineInstance, or the launcher's name for the file.
    pub(crate) volume: String,
    /// Path of the file in the image; `None` for the only file below `/disk`.
    pub(crate) path: Option<PathBuf>,
}

/// Why the command line is invalid.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub(crate) enum ArgumentError {
    #[error(
        "usage: container-disk --version | copy DEST | serve --socket PATH [--root DIRECTORY] (--volume NAME [--path DISK])..."
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

/// Parses the arguments after the program's name. Options are `--name value` or `--name=value`; the first
/// `--path` belongs to the first `--volume`, and so on.
pub(crate) fn parse(arguments: impl IntoIterator<Item = OsString>) -> Result<Command, ArgumentError> {
    let mut arguments = arguments.into_iter();
    match arguments.next().as_ref().and_then(|word| word.to_str()) {
        Some("copy") => match (arguments.next(), arguments.next()) {
            (Some(destination), None) => Ok(Command::Copy { destination: destination.into() }),
            _ => Err(ArgumentError::Usage),
        },
        Some("version" | "--version") => match arguments.next() {
            None => Ok(Command::Version),
            Some(_) => Err(ArgumentError::Usage),
        },
        Some("serve") => serve(arguments).map(Command::Serve),
        _ => Err(ArgumentError::Usage),
    }
}

fn serve(mut arguments: impl Iterator<Item = OsString>) -> Result<Serve, ArgumentError> {
    let mut values: [Vec<OsString>; OPTIONS.len()] = [const { Vec::new() }; OPTIONS.len()];
    while let Some(argument) = arguments.next() {
        let (name, attached) = match argument.to_str().and_then(|text| text.split_once('=')) {
            Some((name, value)) => (OsString::from(name), Some(OsString::from(value))),
            None => (argument.clone(), None),
        };
        let Some(option) = OPTIONS.iter().position(|option| name == **option) else {
            return Err(ArgumentError::Unknown(argument));
        };
        let value = attached.or_else(|| arguments.next()).ok_or(ArgumentError::NoValue(OPTIONS[option]))?;
        values[option].push(value);
    }
    let [volumes, mut sockets, paths, mut roots] = values;
    if volumes.is_empty() {
        return Err(ArgumentError::Missing("--volume"));
    }
    let mut paths = paths.into_iter();
    let file = |volume: OsString| {
        let volume = volume.into_string().map_err(|_| ArgumentError::NotUtf8("--volume"))?;
        // A template without a path leaves an empty argument.
        Ok(Wanted { volume, path: paths.next().filter(|path| !path.is_empty()).map(PathBuf::from) })
    };
    Ok(Serve {
        files: volumes.into_iter().map(file).collect::<Result<_, _>>()?,
        socket: sockets.pop().ok_or(ArgumentError::Missing("--socket"))?.into(),
        root: roots.pop().map_or_else(|| PathBuf::from("/"), PathBuf::from),
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
        for word in ["version", "--version"] {
            assert_eq!(words(word), Ok(Command::Version));
        }
        assert_eq!(words("version now"), Err(ArgumentError::Usage));
        let serve = |path: Option<&str>| {
            Ok(Command::Serve(Serve {
                files: vec![Wanted { volume: "root".into(), path: path.map(PathBuf::from) }],
                socket: "/s".into(),
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
    fn several_files_of_an_image_are_handed_over_in_pairs() {
        let line =
            "serve --socket /s --volume kernel --path /boot/vmlinuz --volume initrd --path /boot/initrd";
        let Ok(Command::Serve(serve)) = words(line) else { panic!("not understood") };
        let files: Vec<_> =
            serve.files.iter().map(|file| (file.volume.as_str(), file.path.as_deref())).collect();
        let path = |path| Some(std::path::Path::new(path));
        assert_eq!(files, [("kernel", path("/boot/vmlinuz")), ("initrd", path("/boot/initrd"))]);
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
