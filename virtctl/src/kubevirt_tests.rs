//! Compares the commands and flags of KubeVirt's virtctl with ours, so that scripts keep working and missing
//! ones are known.

use super::*;
use clap::{Arg, Command as Program};

const KUBEVIRTS: &str = include_str!("kubevirt.txt");

/// `-o/--output`, `--output` or `-o` as clap knows it.
fn flag<'a>(program: &'a Program, text: &str) -> Option<&'a Arg> {
    let (short, long) = match text.split_once('/') {
        Some((short, long)) => (Some(short), long),
        None => (None, text),
    };
    let found = program.get_arguments().find(|arg| arg.get_long() == long.strip_prefix("--"))?;
    let same =
        short.is_none_or(|short| found.get_short() == short.strip_prefix('-').and_then(|s| s.chars().next()));
    same.then_some(found)
}

#[test]
fn every_flag_of_kubevirts_is_there_or_known_to_be_missing() {
    let program = Options::command();
    for line in KUBEVIRTS.lines().filter(|line| !line.starts_with('#')) {
        let words = line.split_whitespace().filter(|word| *word != "-");
        let (flags, words): (Vec<&str>, Vec<&str>) = words.partition(|word| word.starts_with(['-', '!']));
        let (missing, words): (Vec<&str>, Vec<&str>) = words.into_iter().partition(|word| *word == "missing");
        let command = words.iter().try_fold(&program, |command, word| command.find_subcommand(word));
        let command = command.unwrap_or_else(|| panic!("there is no command {words:?}"));
        // A command that is not built accepts any arguments.
        let takes_anything =
            command.get_arguments().any(|arg| arg.get_id() == "arguments" && arg.is_trailing_var_arg_set());
        assert_eq!(takes_anything, !missing.is_empty(), "{words:?}");
        for text in flags {
            match text.strip_prefix('!') {
                Some(text) => assert!(flag(command, text).is_none(), "{words:?} has {text} now"),
                None => assert!(flag(command, text).is_some(), "{words:?} has no {text}"),
            }
        }
    }
}

#[test]
fn the_program_is_sound_in_every_command() {
    // clap's own checks of names, letters and groups, with global flags in every command.
    program::with_switches(Options::command()).debug_assert();
}
