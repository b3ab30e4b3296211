//! Commands: the parsers accept what the docs tell people to type.
//!
//! Commands of virtctl are parsed by its own parser, a target of make has to be in the Makefile, and a file
//! of the repository has to exist. Nothing is run here; each block says whether an end-to-end test runs it.

use std::fs;

use clap::CommandFactory;
use clap::error::ErrorKind;
use serde_json::Value;

use super::pages::{self, Block};
use super::{manifests, nothing_is_wrong};
use crate::{Options, program};

/// Folders whose files a command may name.
const FOLDERS: [&str; 6] = [".ci/", "cluster-up/", "examples/", "images/", "manifests/", "virtctl/"];

/// Programs by which a block of commands is recognised.
const PROGRAMS: [&str; 16] = [
    "buildah",
    "cargo",
    "cat",
    "curl",
    "export",
    "git",
    "helm",
    "kubectl",
    "kubectl.sh",
    "make",
    "openssl",
    "skopeo",
    "ssh",
    "virt-launcher",
    "virtctl",
    "virtctl.sh",
];

/// The commands of a line, split into words as a shell does it, without comments.
fn commands(line: &str) -> Vec<Vec<String>> {
    let mut all = vec![Vec::new()];
    let (mut word, mut begun, mut quote, mut depth) = (String::new(), false, None, 0_u32);
    let end = |word: &mut String, begun: &mut bool, all: &mut Vec<Vec<String>>| {
        if std::mem::take(begun) {
            let word = std::mem::take(word);
            if let Some(last) = all.last_mut() {
                last.push(word);
            }
        }
    };
    for letter in line.chars() {
        match (quote, letter) {
            (Some(open), letter) if letter == open => quote = None,
            (Some(_), letter) => word.push(letter),
            (None, '\'' | '"') => (quote, begun) = (Some(letter), true),
            // Text in parentheses stays one word.
            (None, '(' | ')') => {
                depth = if letter == '(' { depth + 1 } else { depth.saturating_sub(1) };
                word.push(letter);
                begun = true;
            }
            (None, '#') if !begun => break,
            (None, letter) if letter.is_whitespace() && depth == 0 => end(&mut word, &mut begun, &mut all),
            (None, '|' | '&' | ';') if depth == 0 => {
                end(&mut word, &mut begun, &mut all);
                all.push(Vec::new());
            }
            (None, letter) => {
                word.push(letter);
                begun = true;
            }
        }
    }
    end(&mut word, &mut begun, &mut all);
    all.retain(|words| !words.is_empty());
    all
}

/// Lines of a block with their numbers; continued lines are joined.
fn lines(block: &Block) -> Vec<(usize, String)> {
    let mut all: Vec<(usize, String)> = Vec::new();
    let mut goes_on = false;
    for (index, line) in block.text.lines().enumerate() {
        let (text, more) = line.strip_suffix('\\').map_or((line, false), |text| (text, true));
        match all.last_mut() {
            Some((_, last)) if goes_on => *last += text,
            _ => all.push((block.line + index, text.to_owned())),
        }
        goes_on = more;
    }
    all
}

/// Whether a block may hold commands.
fn is_shell(block: &Block) -> bool {
    let language = block.info.split([',', ' ']).next().unwrap_or_default();
    matches!(language, "" | "sh" | "console")
}

fn targets_of_make() -> Vec<String> {
    let makefile = fs::read_to_string(pages::repository().join("Makefile")).unwrap();
    let rule = |line: &str| Some(line.split_once(':')?.0.to_owned());
    makefile.lines().filter(|line| !line.starts_with(['\t', '#', '.', ' '])).filter_map(rule).collect()
}

/// What is wrong with a command.
fn wrong(words: &[String], make: &[String]) -> Option<String> {
    let is_setting = |word: &String| {
        word.split_once('=').is_some_and(|(name, _)| {
            !name.is_empty() && name.chars().all(|letter| letter.is_ascii_uppercase() || letter == '_')
        })
    };
    let mut words: Vec<&str> = words.iter().skip_while(|word| is_setting(word)).map(String::as_str).collect();
    if words.starts_with(&["kubectl", "virt"]) {
        words.remove(0);
        words[0] = "virtctl";
    }
    let missing = words.iter().find(|word| {
        FOLDERS.iter().any(|folder| word.starts_with(folder)) && !pages::repository().join(word).exists()
    });
    if let Some(missing) = missing {
        return Some(format!("there is no {missing}"));
    }
    match words.first()?.rsplit('/').next()? {
        "virtctl" | "virtctl.sh" => virtctl(&words),
        "make" => {
            let mut asked = words[1..].iter().filter(|word| !word.contains('=') && !word.starts_with('-'));
            let unknown = asked.find(|target| !make.iter().any(|known| known == *target))?;
            Some(format!("make has no target {unknown}"))
        }
        "kubectl" | "kubectl.sh" => patch(&words),
        _ => None,
    }
}

fn virtctl(words: &[&str]) -> Option<String> {
    let parser = program::with_switches(Options::command());
    let error = parser.try_get_matches_from(words).err()?;
    let help =
        matches!(error.kind(), ErrorKind::DisplayHelp | ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand);
    (!help).then(|| error.to_string())
}

/// A patch of the `KubeVirt` object or of a machine has to result in an object that admission accepts.
fn patch(words: &[&str]) -> Option<String> {
    words.iter().find(|word| **word == "patch")?;
    let given = words.iter().skip_while(|word| **word != "-p").nth(1)?;
    let patch: Value = match serde_json::from_str(given) {
        Ok(patch) => patch,
        Err(error) => return Some(format!("{given} is not JSON: {error}")),
    };
    let place = ["kubevirt", "vm", "vmi"].into_iter().find(|kind| words.contains(kind))?;
    if words.iter().any(|word| word.starts_with("--subresource")) {
        return None;
    }
    manifests::refused(place, patch)
}

#[test]
fn commands_are_taken_by_their_parsers() {
    let make = targets_of_make();
    let mut all = Vec::new();
    for page in pages::all() {
        let (_, blocks) = pages::split(&page.text);
        for block in blocks.iter().filter(|block| is_shell(block)) {
            for (number, line) in lines(block) {
                let found = commands(&line).into_iter().filter_map(|words| wrong(&words, &make));
                all.extend(found.map(|wrong| format!("{}:{number}: {line}\n{wrong}", page.path)));
            }
        }
    }
    nothing_is_wrong(&all);
}

/// Whether an end-to-end test runs the block; none where it does not say so.
fn is_run(block: &Block) -> Option<bool> {
    match block.info.split(' ').next()? {
        "sh,run" => Some(true),
        "sh,norun" => Some(false),
        _ => None,
    }
}

#[test]
fn each_block_of_commands_says_whether_it_is_run() {
    let is_command = |line: &str| {
        let found = commands(line);
        let mut words = found.iter().flatten().filter(|word| !word.contains('='));
        words.next().is_some_and(|word| PROGRAMS.contains(&word.as_str()))
    };
    let mut all = Vec::new();
    let mut runs = 0;
    for page in pages::all() {
        for block in pages::split(&page.text).1.iter().filter(|block| is_shell(block)) {
            match is_run(block) {
                Some(true) => runs += 1,
                Some(false) => {}
                None if block.info.is_empty() && !block.text.lines().any(is_command) => {}
                None => all.push(format!(
                    "{}:{}: the fence has to say `sh,run` or `sh,norun`, see docs/tests.md",
                    page.path, block.line
                )),
            }
        }
    }
    nothing_is_wrong(&all);
    assert!(runs > 50, "only {runs} blocks are run");
}

/// In prose a command may be shortened, so only its name and its flags are checked.
#[test]
fn commands_in_prose_have_names_and_flags_that_there_are() {
    let make = targets_of_make();
    let program = program::with_switches(Options::command());
    let mut all = Vec::new();
    for page in pages::all() {
        for (number, line) in pages::split(&page.text).0 {
            for code in pages::inline_code(line) {
                let words: Vec<&str> = code.split_whitespace().collect();
                let wrong = match words.as_slice() {
                    ["make", target, ..]
                        if target.chars().all(|letter| letter.is_ascii_lowercase() || letter == '-') =>
                    {
                        (!make.iter().any(|known| known == target))
                            .then(|| format!("make has no target {target}"))
                    }
                    ["virtctl", rest @ ..] => named(&program, rest),
                    _ => None,
                };
                all.extend(wrong.map(|wrong| format!("{}:{number}: `{code}`: {wrong}", page.path)));
            }
        }
    }
    nothing_is_wrong(&all);
}

/// What is wrong with a command that is named in prose.
fn named(program: &clap::Command, words: &[&str]) -> Option<String> {
    let mut command = program;
    for word in words {
        if let Some(flag) = word.strip_prefix("--") {
            let name = flag.split('=').next().unwrap_or_default();
            let known = |command: &clap::Command| {
                command.get_arguments().any(|argument| argument.get_long() == Some(name))
            };
            if !name.is_empty() && name != "help" && !known(command) && !known(program) {
                return Some(format!("{} has no --{name}", command.get_name()));
            }
        } else if let Some(inner) = command.find_subcommand(word) {
            command = inner;
        } else if std::ptr::eq(command, program)
            && word.chars().all(|letter| letter.is_ascii_lowercase() || letter == '-')
        {
            return Some(format!("virtctl has no {word}"));
        }
    }
    None
}

#[test]
fn a_line_is_split_as_a_shell_splits_it() {
    let line = "A=1 virtctl ssh -c 'uname -a' web # a comment | x && make \"a b\"";
    assert_eq!(commands(line), [vec!["A=1", "virtctl", "ssh", "-c", "uname -a", "web"]]);
    assert_eq!(commands("a $(b | c)/d && e"), [vec!["a", "$(b | c)/d"], vec!["e"]]);
}

#[test]
fn a_wrong_command_is_reported() {
    let make = targets_of_make();
    let of = |line: &str| wrong(&commands(line)[0], &make);
    assert_eq!(of("virtctl start web"), None);
    assert_eq!(of("kubectl virt start web"), None);
    assert_eq!(of("make test"), None);
    assert!(of("virtctl begin web").is_some() && of("virtctl start --soft web").is_some());
    assert!(of("make everything").unwrap().contains("everything"));
    assert!(of("kubectl apply -f examples/none.yaml").is_some());
    assert_eq!(of("kubectl patch vm web --type=merge -p '{\"spec\": {\"runStrategy\": \"Always\"}}'"), None);
    assert!(of("kubectl patch vm web --type=merge -p '{\"spec\": {\"runStrategy\": \"Never\"}}'").is_some());
    let program = program::with_switches(Options::command());
    assert_eq!(named(&program, &["create", "vm", "--volume-import=type:…"]), None);
    assert!(named(&program, &["begin"]).is_some() && named(&program, &["start", "--soft"]).is_some());
}
