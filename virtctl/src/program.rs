//! The program's name in help and examples, its completion, and its errors on wrong usage.

use std::ffi::OsStr;
use std::path::Path;

use clap::{Arg, ArgAction, Command, value_parser};
use clap_complete::Shell;

/// Name of the program in KubeVirt's examples and ours.
const NAME: &str = "virtctl";

/// The command to type, from the name of the program's file: a plugin of kubectl is a file `kubectl-virt`.
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

/// The same commands, with every switch as kubectl's are: `--flag`, or `--flag=true` and `--flag=false`.
pub(crate) fn with_switches(command: Command) -> Command {
    let switch = |arg: Arg| match arg.get_action() {
        ArgAction::SetTrue => arg
            .action(ArgAction::Set)
            .num_args(0..=1)
            .require_equals(true)
            .value_name("BOOL")
            .value_parser(value_parser!(bool))
            .hide_possible_values(true)
            .hide_default_value(true)
            .default_missing_value("true")
            .default_value("false"),
        _ => arg,
    };
    command.mut_args(switch).mut_subcommands(with_switches)
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
        text += &format!("  {short}--{long:<24} {help}\n");
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
    fn a_switch_may_say_what_it_is() {
        let recursive = |arguments: &[&str]| {
            let switch = Arg::new("recursive").short('r').long("recursive").action(ArgAction::SetTrue);
            let copy = Command::new("copy").arg(switch).arg(Arg::new("file"));
            let command = with_switches(Command::new("virtctl").subcommand(copy));
            let read = command.try_get_matches_from([&["virtctl", "copy"], arguments].concat()).ok()?;
            let copy = read.subcommand_matches("copy")?;
            Some((copy.get_flag("recursive"), copy.get_one::<String>("file").cloned()))
        };
        let file = Some("a".to_owned());
        assert_eq!(recursive(&[]), Some((false, None)));
        assert_eq!(recursive(&["--recursive", "a"]), Some((true, file.clone())));
        assert_eq!(recursive(&["-r", "a"]), Some((true, file.clone())));
        assert_eq!(recursive(&["--recursive=true", "a"]), Some((true, file.clone())));
        assert_eq!(recursive(&["--recursive=false", "a"]), Some((false, file)));
        assert_eq!(recursive(&["--recursive=maybe"]), None);
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
