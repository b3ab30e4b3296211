//! The test programs of the workspace, as cargo builds them.

use crate::command::repository;
use anyhow::{Context, Result, ensure};
use serde_json::Value;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// One program of tests.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Program {
    /// Package and target: `virt-launcher/vm`; for the unit tests of a library or a binary the name of that.
    pub name: String,
    /// Whether it needs the cluster.
    pub end_to_end: bool,
    /// The executable.
    pub path: PathBuf,
    /// Folder of its package, in which it runs.
    pub folder: PathBuf,
}

/// Compiles all tests of the workspace with one set of features, and returns the programs.
///
/// # Errors
/// When something does not compile; cargo has printed the errors.
pub fn build() -> Result<Vec<Program>> {
    let output = Command::new(repository().join(".ci/compile"))
        .args(["--all-targets", "--message-format=json-render-diagnostics"])
        .current_dir(repository())
        .stdin(Stdio::null())
        .stderr(Stdio::inherit())
        .output()
        .context("start .ci/compile")?;
    ensure!(output.status.success(), "the tests do not compile");
    let mut programs = of_messages(&String::from_utf8(output.stdout)?);
    programs.sort_by(|one, other| one.name.cmp(&other.name));
    Ok(programs)
}

/// The test programs in cargo's messages, of which each is a line.
pub fn of_messages(lines: &str) -> Vec<Program> {
    let messages = lines.lines().filter_map(|line| serde_json::from_str(line).ok());
    messages.filter_map(|message| program(&message)).collect()
}

/// The compiler's errors in readable form.
pub fn errors_of(lines: &str) -> String {
    let messages = lines.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    let errors = messages.filter(|message| message["message"]["level"] == "error");
    errors.filter_map(|error| error["message"]["rendered"].as_str().map(str::to_owned)).collect()
}

/// The program in a message of cargo; none if the message is about something else.
fn program(message: &Value) -> Option<Program> {
    if message["reason"] != "compiler-artifact" || message["profile"]["test"] != true {
        return None;
    }
    let path = PathBuf::from(message["executable"].as_str()?);
    let folder = Path::new(message["manifest_path"].as_str()?).parent()?.to_owned();
    let target = message["target"]["name"].as_str()?;
    let is_integration = message["target"]["kind"].as_array()?.iter().any(|kind| kind == "test");
    let package = package_name(message["package_id"].as_str()?)?;
    let of_e2e = package == env!("CARGO_PKG_NAME");
    let name = match (of_e2e, is_integration) {
        (true, true) => target.to_owned(),
        (_, false) if target.replace('_', "-") == package => package.to_owned(),
        _ => format!("{package}/{target}"),
    };
    Some(Program { name, end_to_end: of_e2e && is_integration, path, folder })
}

/// `path+file:///folder#name@version`, or `path+file:///folder/name#version` where the folder has the package's name.
fn package_name(id: &str) -> Option<&str> {
    let (folder, version) = id.rsplit_once('#')?;
    Some(
        version.split_once('@').map_or_else(|| folder.rsplit('/').next().unwrap_or(folder), |(name, _)| name),
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn message(package: &str, kind: &str, target: &str) -> Value {
        json!({
            "reason": "compiler-artifact", "package_id": package, "manifest_path": "/w/folder/Cargo.toml",
            "target": { "name": target, "kind": [kind] }, "profile": { "test": true }, "executable": "/w/target/x",
        })
    }

    #[test]
    fn programs_are_named_after_package_and_target() {
        let name = |package, kind, target| program(&message(package, kind, target)).unwrap().name;
        assert_eq!(name("path+file:///w/api#barevirt-api@0.1.0", "lib", "barevirt_api"), "barevirt-api");
        assert_eq!(name("path+file:///w/virtctl#0.1.0", "bin", "virtctl"), "virtctl");
        assert_eq!(name("path+file:///w/launcher#virt-launcher@0.1.0", "test", "vm"), "virt-launcher/vm");
        assert_eq!(name("path+file:///w/e2e#barevirt-e2e@0.1.0", "test", "chaos"), "chaos");
        assert_eq!(name("path+file:///w/e2e#barevirt-e2e@0.1.0", "bin", "bench"), "barevirt-e2e/bench");
    }

    #[test]
    fn errors_of_the_compiler_are_shown_and_warnings_are_not() {
        let said = |level, text| json!({ "message": { "level": level, "rendered": text } }).to_string();
        let lines = [said("warning", "unused"), said("error", "no such field"), "no JSON".to_owned()];
        assert_eq!(errors_of(&lines.join("\n")), "no such field");
    }

    #[test]
    fn other_programs_are_no_test_programs() {
        let mut plain = message("path+file:///w/virtctl#0.1.0", "bin", "virtctl");
        plain["profile"]["test"] = json!(false);
        assert_eq!(program(&plain), None);
        assert_eq!(program(&json!({ "reason": "build-finished", "success": true })), None);
    }
}
