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

/// The commands by purpose. Hidden commands are in no group.
const GROUPS: [(&str, &[&str]); 8] = [
    (
        "Run machines",
        &[
            "start",
            "stop",
            "restart",
            "pause",
            "unpause",
            "reset",
            "soft-reboot",
            "migrate",
            "migrate-cancel",
            "evacuate-cancel",
        ],
    ),
    ("Reach a guest", &["console", "vnc", "ssh", "scp", "port-forward", "expose", "usbredir", "ui"]),
    ("Change a machine", &["addvolume", "removevolume", "credentials"]),
    ("Write and check manifests", &["create", "explain", "diff", "expand", "image-upload"]),
    (
        "Look at a machine",
        &["guestosinfo", "fslist", "userlist", "objectgraph", "permitted-devices", "qmp", "debug"],
    ),
    ("Install and operate", &["install", "upgrade", "status", "doctor", "adm"]),
    ("About virtctl", &["version", "completion", "help"]),
    ("Flags of every command", &["options"]),
];

/// The commands, listed in groups, and without the flags that all commands have: `options` lists those.
pub(crate) fn arranged(command: Command, name: &str) -> Command {
    let list = groups(&command);
    let command = command.mut_args(|arg| match arg.is_global_set() {
        true => arg.hide(true),
        false => arg,
    });
    let command = command.help_template(format!(
        "{{about-with-newline}}\n{{usage-heading}} {{usage}}\n\n{list}\n\
         Use \"{name} COMMAND --help\" for a command, and \"{name} options\" for the flags that every command takes.\n"
    ));
    command.mut_subcommands(|command| {
        // A command's own help text stays; the hint replaces the list of global flags.
        let after = command.get_after_help().map(ToString::to_string).unwrap_or_default();
        let gap = if after.is_empty() { "" } else { "\n\n" };
        command.after_help(format!("{after}{gap}{NAME} options lists the flags that every command takes."))
    })
}

fn groups(command: &Command) -> String {
    let mut text = String::new();
    for (title, names) in GROUPS {
        text += &format!("{title}:\n");
        for name in names {
            let about = command.find_subcommand(name).and_then(Command::get_about).map(ToString::to_string);
            // clap adds `help` later.
            let about = about.unwrap_or_else(|| "Print the help of a command".to_owned());
            text += &format!("  {name:<18} {about}\n");
        }
        text.push('\n');
    }
    text.truncate(text.trim_end().len());
    text + "\n"
}

/// The same commands, with every switch as in kubectl: `--flag`, or `--flag=true` and `--flag=false`.
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
    fn every_command_is_in_one_group_and_the_flags_of_all_are_elsewhere() {
        let whole = with_switches(<crate::Options as clap::CommandFactory>::command());
        let mut command = arranged(whole.clone(), NAME);
        let mut grouped: Vec<&str> = GROUPS.iter().flat_map(|(_, names)| names.iter().copied()).collect();
        grouped.sort_unstable();
        let mut there: Vec<String> = command
            .get_subcommands()
            .filter(|command| !command.is_hide_set() || command.get_name() == "options")
            .map(|command| command.get_name().to_owned())
            .chain(["help".to_owned()])
            .collect();
        there.sort_unstable();
        assert_eq!(grouped, there);
        let help = command.render_help().to_string();
        assert!(help.contains("Reach a guest:\n  console ") && !help.contains("--kubeconfig"), "{help}");
        let refused = command.clone().try_get_matches_from(["virtctl", "start", "--help"]).unwrap_err();
        let help = refused.to_string();
        assert!(help.contains("virtctl options lists") && !help.contains("--kubeconfig"), "{help}");
        let named = named(arranged(whole, "kubectl virt"), "kubectl virt").render_help().to_string();
        assert!(named.contains("kubectl virt options") && !named.contains("virtctl "), "{named}");
    }

    #[test]
    fn a_command_that_is_missing_has_help_and_is_hidden() {
        let command = arranged(with_switches(<crate::Options as clap::CommandFactory>::command()), NAME);
        for (name, since) in
            [("memory-dump", "v0.54"), ("vmexport", "v0.58"), ("guestfs", "v0.44"), ("template", "v1.8")]
        {
            let help = command.clone().try_get_matches_from(["virtctl", name, "--help"]).unwrap_err();
            assert_eq!(help.kind(), clap::error::ErrorKind::DisplayHelp, "{name}");
            assert!(help.to_string().contains("What is missing: "), "{help}");
            let known = format!("KubeVirt has this command since {since}. Barevirt v");
            assert!(help.to_string().contains(&known), "{help}");
            assert!(command.find_subcommand(name).unwrap().is_hide_set());
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
