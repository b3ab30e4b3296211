//! Commands of the docs: blocks whose fence says `sh,run` are run as a reader would run them.
//!
//! ```text
//!   page -> blocks (pure) -> script (pure): the block's own lines, which bash runs
//!   Reader: a folder with what the pages assume (a kubeconfig, vm.yaml, examples/), and the programs of this build
//! ```
//!
//! Words after `sh,run` say what a block assumes:
//!
//! - `web`: a machine with that name runs; `web=stopped`: there is one.
//! - `claim=data`: a claim with that name.
//! - `POD=web`, `POD=virt-api`: the word POD stands for the pod of that machine, or of that component.
//!
//! In every block NAMESPACE stands for the namespace, NAME for the block's first machine, and NODE for that machine's node.

use crate::command::{cluster_script, object, objects, repository, run_within, succeed};
use crate::namespace::Namespace;
use crate::wait::{self, RUNNING, SOON};
use crate::{condition, guest};
use anyhow::{Context, Result};
use serde_json::Value;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;
use std::{env, fs};
use tempfile::TempDir;

/// Longest time of a block.
const BLOCK: Duration = Duration::from_secs(240);
/// What a reader types to leave a console: ctrl-].
const LEAVE: &str = "\u{1d}";
/// The line before a block in its script: a shell of virtctl ends at once, and the failing line goes to standard error.
const HEAD: &str = "exec </dev/null; set -eo pipefail; trap 'echo \"@line $LINENO\" >&2' ERR";
/// Runs a command that only a reader's ctrl-c ends. It has to run for five seconds, or to succeed sooner. Job control, because
/// other shells let programs in the background ignore that signal.
const ENDLESS: &str = "#!/bin/bash\nset -m\n\"$@\" &\nsleep 5\nif kill -INT $! 2>/dev/null; then wait $! || true; else wait $!; fi\n";

/// A block that is run.
#[derive(Debug, PartialEq, Eq)]
pub struct Block {
    /// Number of its first line, from 1.
    pub line: usize,
    /// What it assumes: a name, and what follows its equals sign.
    assumes: Vec<(String, String)>,
    text: String,
}

impl Block {
    /// Names of its machines, and whether each runs.
    fn machines(&self) -> Vec<(&str, bool)> {
        let mut found: Vec<(&str, bool)> = Vec::new();
        for (word, value) in &self.assumes {
            let (name, runs) = match (word.as_str(), value.as_str()) {
                ("claim", _) => continue,
                (name, "") => (name, true),
                (name, "stopped") => (name, false),
                (_, component) if component.starts_with("virt-") => continue,
                (_, name) => (name, true),
            };
            if !found.iter().any(|(known, _)| *known == name) {
                found.push((name, runs));
            }
        }
        found
    }
}

/// The blocks of a page that are run.
pub fn blocks(page: &str) -> Vec<Block> {
    let mut found = Vec::new();
    let mut lines = page.lines().enumerate();
    while let Some((index, line)) = lines.next() {
        let Some(info) = line.trim_start().strip_prefix("```") else { continue };
        let text: Vec<&str> = lines
            .by_ref()
            .map(|(_, line)| line)
            .take_while(|line| !line.trim_start().starts_with("```"))
            .collect();
        let mut words = info.split_whitespace();
        if words.next() == Some("sh,run") {
            let assumes = words.map(|word| word.split_once('=').unwrap_or((word, "")));
            let assumes = assumes.map(|(word, value)| (word.to_owned(), value.to_owned())).collect();
            found.push(Block { line: index + 2, assumes, text: text.join("\n") });
        }
    }
    found
}

/// The script of a block, with these words replaced. Its first line is not the block's.
fn script(text: &str, words: &[(String, String)]) -> String {
    let mut script = format!("{HEAD}\n");
    for line in text.lines() {
        let mut called = line.split_whitespace();
        let program = called.next().unwrap_or_default();
        let ours = ["virtctl", "virtctl.sh"].contains(&program);
        let before = match called.next() {
            Some("console") if ours => "<\"$KEYS\" ",
            Some("port-forward" | "ui") if ours => "endless ",
            Some("qmp") if ours && called.any(|word| word == "--watch" || word == "--proxy") => "endless ",
            _ => "",
        };
        script += before;
        script += &replaced(line, words);
        script.push('\n');
    }
    script
}

/// The line with other words: a word is letters, digits and hyphens.
fn replaced(line: &str, words: &[(String, String)]) -> String {
    let is_of_word = |letter: char| letter.is_ascii_alphanumeric() || letter == '-';
    let mut all = String::new();
    let mut rest = line;
    while !rest.is_empty() {
        let end = rest.find(|letter| !is_of_word(letter)).unwrap_or(rest.len());
        let (word, after) = rest.split_at(end);
        let other = words.iter().find(|(from, _)| from == word);
        all += other.map_or(word, |(_, to)| to.as_str());
        let begin = after.find(is_of_word).unwrap_or(after.len());
        all += &after[..begin];
        rest = &after[begin..];
    }
    all
}

/// The paths of all pages with blocks that are run, in order.
///
/// # Errors
/// When a page cannot be read.
pub fn with_blocks() -> Result<Vec<(String, Vec<Block>)>> {
    let mut folders = vec![repository().join("docs")];
    let mut paths = vec![repository().join("README.md")];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder)? {
            let path = entry?.path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|ending| ending == "md") {
                paths.push(path);
            }
        }
    }
    paths.sort();
    let mut pages = Vec::new();
    for path in paths {
        let blocks = blocks(&fs::read_to_string(&path)?);
        if !blocks.is_empty() {
            pages.push((path.strip_prefix(repository())?.display().to_string(), blocks));
        }
    }
    Ok(pages)
}

/// A reader of a page, with a folder and a namespace of their own.
pub struct Reader<'a> {
    namespace: &'a Namespace,
    folder: TempDir,
    path: String,
}

impl<'a> Reader<'a> {
    /// Prepares the folder.
    ///
    /// # Errors
    /// When the cluster is not up, or a file cannot be written.
    pub fn new(namespace: &'a Namespace) -> Result<Self> {
        let folder = tempfile::tempdir()?;
        let at = |name: &str| folder.path().join(name);
        for name in ["examples", "manifests", "cluster-up", "target"] {
            symlink(repository().join(name), at(name))?;
        }
        for name in ["bin", "cluster", ".ssh"] {
            fs::create_dir(at(name))?;
        }
        // Of the test cluster: its kubeconfig, with this namespace, and the kubectl beside it.
        let kubeconfig = PathBuf::from(succeed(&mut cluster_script("kubeconfig.sh"), None)?.trim());
        fs::copy(&kubeconfig, at("cluster/kubeconfig"))?;
        let kubectl = kubeconfig.with_file_name("kubectl");
        symlink(&kubectl, at("cluster/kubectl"))?;
        symlink(&kubectl, at("bin/kubectl"))?;
        let mut choose = Command::new(&kubectl);
        choose.arg("--kubeconfig").arg(at("cluster/kubeconfig"));
        choose.args(["config", "set-context", "--current", "--namespace", namespace.name()]);
        succeed(&mut choose, None)?;
        program(&at("bin/endless"), ENDLESS)?;
        fs::write(at("keys"), LEAVE)?;
        fs::write(at(".ssh/id_ed25519.pub"), "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5 reader\n")?;
        fs::write(at("vm.yaml"), machine("web", true).to_string())?;
        fs::copy(repository().join("examples/vmi-tiny.yaml"), at("vmi.yaml"))?;
        // Programs of this build: this test is in a folder beside them.
        let this = env::current_exe()?;
        let built = this.ancestors().nth(2).context("this program is in no folder")?;
        let path =
            format!("{}:{}:{}", at("bin").display(), built.display(), env::var("PATH").unwrap_or_default());
        Ok(Self { namespace, folder, path })
    }

    /// Runs a block; returns the line that failed, from 1 in the page, and what it said. A failure without a line counts as the
    /// block's first.
    ///
    /// # Errors
    /// When what the block assumes does not come about, or it does not end in time.
    pub fn run(&self, block: &Block) -> Result<Option<(usize, String)>> {
        let words = self.prepare(block)?;
        let script = script(&block.text, &words);
        let file = self.folder.path().join("block.sh");
        fs::write(&file, script)?;
        let at = |name: &str| self.folder.path().join(name);
        let mut bash = Command::new("bash");
        bash.arg(&file).current_dir(self.folder.path()).env("PATH", &self.path).env("HOME", at(""));
        bash.env("KUBECONFIG", at("cluster/kubeconfig")).env("BAREVIRT_RUN", at("")).env("KEYS", at("keys"));
        let output = run_within(&mut bash, None, BLOCK)?;
        if output.code == 0 {
            return Ok(None);
        }
        let line = output.stderr.lines().find_map(|line| line.strip_prefix("@line ")?.parse::<usize>().ok());
        let line = line.map_or(block.line, |line| (block.line + line).saturating_sub(2));
        Ok(Some((line, output.text())))
    }

    /// Makes what a block assumes; returns the words that stand for something in it.
    fn prepare(&self, block: &Block) -> Result<Vec<(String, String)>> {
        let namespace = self.namespace;
        let mut words = vec![("NAMESPACE".to_owned(), namespace.name().to_owned())];
        for (name, runs) in block.machines() {
            if namespace.get("vm", name)?.is_none() {
                namespace.apply(&machine(name, runs))?;
            }
            if runs {
                namespace.wait_phase(name, "Running", RUNNING)?;
                let vmi = namespace.wait("vmi", name, "to be migratable", SOON, |vmi| {
                    condition(vmi, "LiveMigratable")["status"] == "True"
                })?;
                words.push(("NODE".to_owned(), text(&vmi["status"]["nodeName"])));
            }
            words.push(("NAME".to_owned(), name.to_owned()));
        }
        if !words.iter().any(|(word, _)| word == "NODE") {
            let nodes = objects(&["nodes"])?;
            words.push(("NODE".to_owned(), text(&nodes.first().context("no node")?["metadata"]["name"])));
        }
        for (word, value) in &block.assumes {
            match (word.as_str(), value.as_str()) {
                ("claim", name) if namespace.get("pvc", name)?.is_none() => namespace.claim(name)?,
                ("claim", _) | (_, "" | "stopped") => {}
                (word, component) if component.starts_with("virt-") => {
                    words.push((word.to_owned(), pod_of(component)?));
                }
                (word, name) => {
                    words.push((word.to_owned(), text(&namespace.launcher(name)?["metadata"]["name"])));
                }
            }
        }
        Ok(words)
    }
}

/// A machine that moves, with a system.
fn machine(name: &str, runs: bool) -> Value {
    guest::movable(guest::machine(name, if runs { "Always" } else { "Halted" }))
}

fn text(value: &Value) -> String {
    value.as_str().unwrap_or_default().to_owned()
}

/// A pod of a component that is ready.
fn pod_of(component: &str) -> Result<String> {
    wait::until(&format!("a pod of {component} that is ready"), SOON, || {
        let label = format!("kubevirt.io={component}");
        let pods = object(&["pods", "-n", crate::installation::NAMESPACE, "-l", &label])?.unwrap_or_default();
        let ready = |pod: &&Value| pod["status"]["containerStatuses"][0]["ready"] == true;
        let found = pods["items"].as_array().into_iter().flatten().find(ready);
        Ok(found.map(|pod| text(&pod["metadata"]["name"])))
    })
}

/// Writes a program.
fn program(path: &Path, text: &str) -> Result<()> {
    use std::os::unix::fs::PermissionsExt;
    fs::write(path, text)?;
    fs::set_permissions(path, fs::Permissions::from_mode(0o755)).context("make it a program")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_marked_blocks_are_run() {
        let page = "# A\n\n```sh,norun\nmake\n```\n\n```sh,run web POD=virt-api\nvirtctl stop web\n```\n\n    virtctl start web\n";
        let [block] = blocks(page).try_into().unwrap();
        assert_eq!((block.line, block.text.as_str()), (8, "virtctl stop web"));
        assert_eq!(block.machines(), [("web", true)]);
        let [block] = blocks("```sh,run db=stopped POD=web claim=data\n```\n").try_into().unwrap();
        assert_eq!(block.machines(), [("db", false), ("web", true)]);
    }

    #[test]
    fn a_script_has_the_lines_of_its_block_after_the_first() {
        let words = [("POD".to_owned(), "a-1".to_owned()), ("NAME".to_owned(), "web".to_owned())];
        let text = "kubectl logs POD -n NAMESPACE\nvirtctl console NAME\nvirtctl qmp NAME --watch STOP\nvirtctl qmp NAME\n\
                    kubectl get https:POD:1/VIRT-HANDLER-POD";
        let script = script(text, &words);
        assert_eq!(
            script.lines().skip(1).collect::<Vec<_>>(),
            [
                "kubectl logs a-1 -n NAMESPACE",
                "<\"$KEYS\" virtctl console web",
                "endless virtctl qmp web --watch STOP",
                "virtctl qmp web",
                "kubectl get https:a-1:1/VIRT-HANDLER-POD",
            ]
        );
    }

    #[test]
    fn the_docs_have_blocks_that_are_run() {
        let pages = with_blocks().unwrap();
        assert!(pages.iter().any(|(page, _)| page == "README.md"));
        assert!(pages.iter().map(|(_, blocks)| blocks.len()).sum::<usize>() > 50, "{pages:?}");
    }
}
