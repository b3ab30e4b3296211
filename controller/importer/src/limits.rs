//! `virt-importer limited`: sets limits, then executes another program.

use barevirt_confinement::{Calls, ConfinementError, Domain, Files, May, Plan, Rule};
use nix::sys::resource::{Resource, setrlimit};
use std::ffi::OsString;
use std::io;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::Command;

/// The limits of a program.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Limited {
    /// Address space, in bytes.
    pub memory: u64,
    /// Processor time, in seconds.
    pub seconds: u64,
    /// Files that it may read, in addition to programs and libraries.
    pub read: Vec<PathBuf>,
    /// Files that it may write.
    pub write: Vec<PathBuf>,
    /// Program and arguments.
    pub command: Vec<OsString>,
}

/// Why the program was not executed.
#[derive(Debug, thiserror::Error)]
pub enum LimitedError {
    /// The command line is invalid.
    #[error("limited: {0}")]
    Arguments(String),
    /// The kernel refused a limit.
    #[error("limit the program: {0}")]
    Limit(#[from] nix::Error),
    /// The kernel refused the confinement.
    #[error(transparent)]
    Confine(#[from] ConfinementError),
    /// The program cannot be executed.
    #[error("execute {0:?}: {1}")]
    Execute(OsString, io::Error),
}

impl Limited {
    /// Parses the arguments after `limited`.
    ///
    /// # Errors
    /// An argument is missing or invalid.
    pub fn parse(arguments: impl IntoIterator<Item = OsString>) -> Result<Self, LimitedError> {
        let wrong = |text: String| LimitedError::Arguments(text);
        let mut limited = Limited::default();
        let mut arguments = arguments.into_iter();
        while let Some(flag) = arguments.next() {
            if flag == "--" {
                limited.command = arguments.collect();
                break;
            }
            let value = arguments.next().ok_or_else(|| wrong(format!("{flag:?} has no value")))?;
            let number = || {
                let number = value.to_str().and_then(|text| text.parse().ok());
                number.ok_or_else(|| wrong(format!("{value:?} is not a number")))
            };
            match flag.to_str() {
                Some("--memory") => limited.memory = number()?,
                Some("--seconds") => limited.seconds = number()?,
                Some("--read") => limited.read.push(value.into()),
                Some("--write") => limited.write.push(value.into()),
                _ => return Err(wrong(format!("{flag:?} is not known"))),
            }
        }
        if limited.command.is_empty() || limited.memory == 0 || limited.seconds == 0 {
            return Err(wrong("memory, seconds and a program must be given".to_owned()));
        }
        Ok(limited)
    }

    /// Executes the program; returns only if that fails.
    #[must_use]
    pub fn execute(self) -> LimitedError {
        match self.confined() {
            Ok(mut command) => {
                let error = command.exec();
                LimitedError::Execute(command.get_program().to_owned(), error)
            }
            Err(error) => error,
        }
    }

    fn confined(self) -> Result<Command, LimitedError> {
        // Without a rule nothing can be read except programs, libraries and the files that libraries need.
        let mut rules: Vec<Rule> =
            ["/usr", "/lib", "/lib64", "/bin"].map(|path| Rule::path(May::Run, path)).into();
        let read = ["/etc/ld.so.cache", "/proc/self", "/sys/devices/system/cpu", "/dev/urandom"];
        rules.extend(read.map(|path| Rule::path(May::Read, path)));
        rules.push(Rule::path(May::Use, "/dev/null"));
        rules.extend(self.read.into_iter().map(|path| Rule::path(May::Read, path)));
        rules.extend(self.write.into_iter().map(|path| Rule::path(May::Use, path)));
        let files = Files { reads_all: false, tcp: false, rules };
        Domain::new("qemu-img", Plan { files: Some(files), calls: Calls::Connected })?.enter()?;
        setrlimit(Resource::RLIMIT_AS, self.memory, self.memory)?;
        // First a signal that identifies the cause, and a little later the end.
        setrlimit(Resource::RLIMIT_CPU, self.seconds, self.seconds.saturating_add(5))?;
        setrlimit(Resource::RLIMIT_CORE, 0, 0)?;
        let mut words = self.command.into_iter();
        let mut command = Command::new(words.next().unwrap_or_default());
        command.args(words);
        Ok(command)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_are_read_whole_or_not_at_all() {
        let words = |text: &str| text.split(' ').map(OsString::from).collect::<Vec<_>>();
        let read = Limited::parse(words("--memory 9 --seconds 8 --read /a --write /b -- p -x")).unwrap();
        assert_eq!((read.memory, read.seconds), (9, 8));
        assert_eq!(read.command, words("p -x"));
        for bad in [
            "--memory 9 -- p",
            "--memory x --seconds 1 -- p",
            "--memory 1 --seconds 1",
            "--what 1 -- p",
            "--read",
        ] {
            assert!(Limited::parse(words(bad)).is_err(), "{bad}");
        }
    }
}
