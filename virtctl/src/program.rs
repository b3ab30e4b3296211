//! The program's own face: its name in help and examples, its completion, and how it fails on wrong usage.

use std::ffi::OsStr;
use std::path::Path;

use clap::Command;
use clap_complete::Shell;

/// Name of the program in KubeVirt's examples and ours.
const NAME: &str = "virtctl";

/// As it is to be called, by the name of its file: a plugin of kubectl is a file `kubectl-virt`.
pub(crate) fn name(file: Option<&OsStr>) -> String {
    let file = file.and_then(|file| Path::new(file).file_stem()?.to_str());
    match file.and_then(|name| name.strip_suffix("-virt")) {
        Some(before) => format!("{before} virt"),
        None => NAME.to_owned(),
    }
}

/// The commands, with examples that can be typed as they are.
pub(crate) fn named(command: Command, name: &str) -> Command {
    if name == NAME {
        return command;
    }
    let command = command.bin_name(name.to_owned());
    renamed(command, name)
}

fn renamed(mut command: Command, name: &str) -> Command {
    if let Some(help) = command.get_after_help().map(ToString::to_string) {
        command = command.after_help(help.replace(&format!("{NAME} "), &format!("{name} ")));
    }
    command.mut_subcommands(|command| renamed(command, name))
}

/// The completion script of a shell.
pub(crate) fn completion(mut command: Command, shell: Shell) -> Vec<u8> {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut command, NAME, &mut script);
    script
}

/// The flags that every command takes.
pub(crate) fn options(command: &Command) -> String {
    let mut text = "The following options can be passed to any command:\n\n".to_owned();
    for flag in command.get_arguments().filter(|flag| flag.is_global_set()) {
        let short = flag.get_short().map(|short| format!("-{short}, ")).unwrap_or_else(|| "    ".to_owned());
        let long = flag.get_long().unwrap_or_default();
        let help = flag.get_help().map(ToString::to_string).unwrap_or_default();
        text += &format!("  {short}--{long:<12} {help}\n");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_plugin_is_called_by_kubectl() {
        for (file, called) in [
            (Some("/usr/bin/kubectl-virt"), "kubectl virt"),
            (Some("oc-virt"), "oc virt"),
            (Some("virtctl"), "virtctl"),
            (None, "virtctl"),
        ] {
            assert_eq!(name(file.map(OsStr::new)), called);
        }
    }

    #[test]
    fn examples_are_those_of_the_name() {
        let command = Command::new("virtctl")
            .subcommand(Command::new("start").after_help("virtctl start a").subcommand(Command::new("b")));
        let mut command = named(command, "kubectl virt");
        let help = command.find_subcommand_mut("start").unwrap().render_help().to_string();
        assert!(help.contains("kubectl virt start a") && !help.contains("virtctl"), "{help}");
    }
}
