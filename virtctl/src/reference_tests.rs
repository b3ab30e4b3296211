//! docs/reference/virtctl.md is generated from the parser of the command line, by `make docs`.

use super::*;
use clap::{Arg, Command as Program};
use std::fmt::Write as _;
use std::fs;
use std::path::Path;

/// `-o, --output FORMAT`, or the name of a positional argument.
fn name(arg: &Arg) -> String {
    let words: Vec<String> =
        [arg.get_short().map(|short| format!("-{short}")), arg.get_long().map(|long| format!("--{long}"))]
            .into_iter()
            .flatten()
            .collect();
    let takes = arg.get_action().takes_values();
    let values = arg.get_value_names().unwrap_or_default().join(" ");
    match (words.is_empty(), takes) {
        (true, _) => values,
        (false, true) => format!("{} {values}", words.join(", ")),
        (false, false) => words.join(", "),
    }
}

fn cell(text: &str) -> String {
    text.replace('|', "\\|").replace('\n', " ")
}

fn describe(program: &Program, path: &str, page: &mut String) {
    let about = program.get_about().map(ToString::to_string).unwrap_or_default();
    let _ = write!(page, "\n## {path}\n\n{about}\n");
    let shown = |arg: &&Arg| !arg.is_hide_set() && !arg.is_global_set() && arg.get_id() != "help";
    let arguments: Vec<&Arg> = program.get_arguments().filter(shown).collect();
    if !arguments.is_empty() {
        page.push_str("\n| argument | |\n|---|---|\n");
        for arg in arguments {
            let help = arg.get_help().map(ToString::to_string).unwrap_or_default();
            let _ = writeln!(page, "| `{}` | {} |", cell(&name(arg)), cell(&help));
        }
    }
    let listed = program.get_subcommands().filter(|sub| !sub.is_hide_set() && sub.get_name() != "help");
    for sub in listed {
        describe(sub, &format!("{path} {}", sub.get_name()), page);
    }
}

fn page() -> String {
    let mut page = String::from(
        "# Commands of virtctl\n\n\
         Written by `make docs` from the parser. [virtctl](../virtctl.md) says how they differ from KubeVirt's. Every command takes\n\
         kubectl's flags; `virtctl options` lists them.\n",
    );
    let program = Options::command();
    let mut commands: Vec<&Program> =
        program.get_subcommands().filter(|sub| !sub.is_hide_set() && sub.get_name() != "help").collect();
    commands.sort_by_key(|command| command.get_name());
    for command in commands {
        describe(command, &format!("virtctl {}", command.get_name()), &mut page);
    }
    page
}

#[test]
fn reference_page_of_commands_is_up_to_date() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/reference/virtctl.md");
    if std::env::var_os("UPDATE_DOCS").is_some() {
        fs::write(&path, page()).unwrap();
    }
    assert_eq!(fs::read_to_string(&path).unwrap(), page(), "make docs writes docs/reference/virtctl.md anew");
}
