//! ssh and scp: they run the clients of this machine over a stream to the guest.

use std::ffi::{OsStr, OsString};
use std::path::PathBuf;
use std::process::{Command, ExitStatus};

use anyhow::{Context, bail, ensure};
use clap::Args;

use crate::port_forward::{self, Target};
use crate::session::Connection;

/// Arguments that ssh and scp share.
#[derive(Debug, Args)]
struct Options {
    /// The user to open the connection as. Default: the user of this machine.
    #[arg(short = 'l', long)]
    username: Option<String>,
    /// Path to a private key. Default: what the local client uses.
    #[arg(short = 'i', long)]
    identity_file: Option<PathBuf>,
    /// Path to a file of known hosts. Default: what the local client uses.
    #[arg(long)]
    known_hosts: Option<PathBuf>,
    /// The guest's port.
    #[arg(short = 'p', long, default_value_t = 22)]
    port: u16,
    /// An option for the local client, such as "-o StrictHostKeyChecking=no"; can be repeated.
    #[arg(short = 't', long, allow_hyphen_values = true)]
    local_ssh_opts: Vec<String>,
}

/// Arguments of `virtctl ssh`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  \
    # A shell of the instance 'testvmi':\n  virtctl ssh jdoe@vmi/testvmi\n\n  \
    # One command in the machine 'testvm' of the namespace 'mine':\n  \
    virtctl ssh jdoe@vm/testvm/mine -c 'uname -a'")]
pub(crate) struct Ssh {
    /// [username@]type/name[/namespace]; the type is vm or vmi.
    target: String,
    #[command(flatten)]
    options: Options,
    /// A command to execute in the guest.
    #[arg(short = 'c', long)]
    command: Option<String>,
}

/// Arguments of `virtctl scp`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  \
    # A file into the home folder of the user jdoe:\n  virtctl scp myfile.bin jdoe@vmi/testvmi:myfile.bin\n\n  \
    # A folder out of the machine 'testvm' of the namespace 'mine':\n  \
    virtctl scp --recursive jdoe@vm/testvm/mine:mydir ./mydir")]
pub(crate) struct Scp {
    /// A path here, or [username@]type/name[/namespace]:path in the guest.
    source: String,
    /// The destination: a path here, or [username@]type/name[/namespace]:path in the guest.
    destination: String,
    #[command(flatten)]
    options: Options,
    /// Copy entire directories.
    #[arg(short, long)]
    recursive: bool,
    /// Preserve modification times, access times and modes.
    #[arg(long)]
    preserve: bool,
}

/// A user of a guest.
#[derive(Debug, PartialEq, Eq)]
struct Login {
    user: Option<String>,
    target: Target,
    namespace: String,
}

impl Ssh {
    pub(crate) async fn run(&self, connection: &Connection) -> anyhow::Result<()> {
        let namespace = connection.open().await?.namespace;
        let login = Login::parse(&self.target, &namespace)?;
        let mut arguments = vec![login.host(&self.options)];
        arguments.extend(self.command.clone());
        self.options.run("ssh", connection, &login, &arguments)
    }
}

impl Scp {
    pub(crate) async fn run(&self, connection: &Connection) -> anyhow::Result<()> {
        let namespace = connection.open().await?.namespace;
        let (login, arguments) = self.arguments(&namespace)?;
        self.options.run("scp", connection, &login, &arguments)
    }

    fn arguments(&self, namespace: &str) -> anyhow::Result<(Login, Vec<String>)> {
        let (source, destination) = (&self.source, &self.destination);
        let (place, to_guest) = match (source.split_once(':'), destination.split_once(':')) {
            (Some(_), Some(_)) => bail!(
                "copying from a remote location to another remote location is not supported: \
                 {source:?} to {destination:?}"
            ),
            (None, None) => bail!(
                "none of the two provided locations seems to be a remote location: {source:?} to {destination:?}"
            ),
            (Some(place), None) => (place, false),
            (None, Some(place)) => (place, true),
        };
        let login = Login::parse(place.0, namespace)?;
        let there = format!("{}:{}", login.host(&self.options), place.1);
        let mut arguments = vec![];
        arguments.extend(self.recursive.then(|| "-r".to_owned()));
        arguments.extend(self.preserve.then(|| "-p".to_owned()));
        arguments.extend(if to_guest { [source.clone(), there] } else { [there, destination.clone()] });
        Ok((login, arguments))
    }
}

impl Login {
    fn parse(text: &str, namespace: &str) -> anyhow::Result<Self> {
        let (user, place) = match text.split_once('@') {
            Some((user, place)) => (Some(user), place),
            None => (None, text),
        };
        ensure!(user != Some(""), "expected username before '@'");
        ensure!(!place.is_empty(), "expected target after '@'");
        let target = port_forward::target(place)?;
        let namespace = target.namespace.clone().unwrap_or_else(|| namespace.to_owned());
        Ok(Self { user: user.map(str::to_owned), target, namespace })
    }

    /// The guest's name for the client, for example in its file of known hosts.
    fn host(&self, options: &Options) -> String {
        let own = || ["USER", "USERNAME", "LOGNAME"].iter().find_map(|name| std::env::var(name).ok());
        let user = self.user.clone().or_else(|| options.username.clone()).or_else(own);
        let user = user.filter(|user| !user.is_empty()).map(|user| format!("{user}@")).unwrap_or_default();
        format!("{user}{}.{}.{}", self.target.kind(), self.target.name, self.namespace)
    }
}

impl Options {
    /// Runs the local client, and exits with its code.
    fn run(
        &self,
        client: &str,
        connection: &Connection,
        login: &Login,
        arguments: &[String],
    ) -> anyhow::Result<()> {
        let own = std::env::current_exe().context("find this program")?;
        let mut command = Command::new(client);
        command.arg("-o").arg(way(&own, connection, login, self.port)?);
        if let Some(path) = &self.known_hosts {
            command.arg("-o").arg(format!("UserKnownHostsFile={}", path.display()));
        }
        command.args(self.local_ssh_opts.iter().flat_map(|text| local_options(text)));
        if let Some(path) = &self.identity_file {
            command.arg("-i").arg(path);
        }
        let status = command.args(arguments).status();
        let status: ExitStatus = status.with_context(|| format!("run {client} of this machine"))?;
        match status.code() {
            Some(0) => Ok(()),
            Some(code) => std::process::exit(code),
            None => bail!("{client} was ended: {status}"),
        }
    }
}

/// Options for the local client as users write them, one or several in one text: "-v", "-4 -o A=b", "-o
/// SendEnv=A B". A value may be in the same word as its letter, or in the next word.
fn local_options(text: &str) -> Vec<String> {
    let mut options: Vec<String> = vec![];
    for word in text.split_ascii_whitespace() {
        match options.last_mut() {
            // This word continues the value.
            Some(last) if !word.starts_with('-') && last.len() != 2 => *last = format!("{last} {word}"),
            _ => options.push(word.to_owned()),
        }
    }
    options
}

/// The command that the client runs to reach the guest.
fn way(
    program: &std::path::Path,
    connection: &Connection,
    login: &Login,
    port: u16,
) -> anyhow::Result<OsString> {
    let mut words: Vec<OsString> = vec![program.into()];
    words.extend(connection.flags());
    words.extend(["port-forward", "--stdio=true"].map(OsString::from));
    words.push(format!("{}/{}/{}", login.target.kind(), login.target.name, login.namespace).into());
    words.push(port.to_string().into());
    let quoted: Vec<String> = words.iter().map(|word| quoted(word)).collect::<Result<_, _>>()?;
    Ok(format!("ProxyCommand={}", quoted.join(" ")).into())
}

/// Quotes for the shell that ssh starts. ssh expands a single percent sign.
fn quoted(word: &OsStr) -> anyhow::Result<String> {
    let text = word.to_str().with_context(|| format!("{word:?} is not text"))?;
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_./=:@".contains(&byte);
    if !text.is_empty() && text.bytes().all(plain) {
        return Ok(text.to_owned());
    }
    Ok(format!("'{}'", text.replace('\'', r"'\''").replace('%', "%%")))
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Parser)]
    struct Wrapped<T: Args> {
        #[command(flatten)]
        inner: T,
    }

    fn scp(arguments: &[&str]) -> anyhow::Result<(Login, Vec<String>)> {
        let words = [&["scp"], arguments].concat();
        Wrapped::<Scp>::parse_from(words).inner.arguments("here")
    }

    #[test]
    fn a_login_names_a_user_and_a_guest() {
        let login = Login::parse("jdoe@vm/a/there", "here").unwrap();
        let options = Wrapped::<Options>::parse_from(["ssh", "-l", "other"]).inner;
        assert_eq!(login.host(&options), "jdoe@vm.a.there");
        assert_eq!(Login::parse("vmis/a", "here").unwrap().host(&options), "other@vmi.a.here");
        for (text, message) in [
            ("@vm/a", "expected username before '@'"),
            ("jdoe@", "expected target after '@'"),
            ("jdoe@a", "target must contain type and name separated by '/'"),
        ] {
            assert_eq!(Login::parse(text, "here").unwrap_err().to_string(), message);
        }
    }

    #[test]
    fn one_place_of_a_copy_is_in_a_guest() {
        let (login, arguments) = scp(&["-r", "dir", "jdoe@vmi/a:dir"]).unwrap();
        assert_eq!((login.namespace.as_str(), login.target.kind()), ("here", "vmi"));
        assert_eq!(arguments, ["-r", "dir", "jdoe@vmi.a.here:dir"]);
        let (_, arguments) = scp(&["--preserve", "jdoe@vmi/a/there:file", "."]).unwrap();
        assert_eq!(arguments, ["-p", "jdoe@vmi.a.there:file", "."]);
        assert!(scp(&["a", "b"]).is_err());
        assert!(scp(&["vm/a:b", "vm/c:d"]).is_err());
    }

    #[test]
    fn local_options_stay_whole() {
        for (text, options) in [
            ("-v", &["-v"][..]),
            ("-o StrictHostKeyChecking=no", &["-o", "StrictHostKeyChecking=no"]),
            ("-oStrictHostKeyChecking=no", &["-oStrictHostKeyChecking=no"]),
            ("-4 -o A=b  -C", &["-4", "-o", "A=b", "-C"]),
            ("-o SendEnv=A B", &["-o", "SendEnv=A B"]),
            ("-oSendEnv=A B -v", &["-oSendEnv=A B", "-v"]),
            ("", &[]),
        ] {
            assert_eq!(local_options(text), options, "{text:?}");
        }
    }

    #[test]
    fn the_way_is_quoted_for_a_shell() {
        for (word, expected) in [
            ("virtctl", "virtctl"),
            ("a b", "'a b'"),
            ("50%'s", r"'50%%'\''s'"),
            ("", "''"),
            ("$(x)", "'$(x)'"),
        ] {
            assert_eq!(quoted(OsStr::new(word)).unwrap(), expected);
        }
    }
}
