//! Runs qemu-img, which parses untrusted tables, with limits for memory, processor time and files.
//!
//! ```text
//!   virt-importer --(itself, "limited")--> limits, Landlock, seccomp --exec--> qemu-img convert
//! ```
//!
//! Limits apply to a process and to the program that it executes, so a second process of this program sets them. qemu-img is
//! given both formats, reads one image, writes one disk, and makes no connection.

use crate::failure::Failure;
use crate::format::Image;
use crate::progress::Progress;
use crate::target::Target;
use std::os::unix::process::ExitStatusExt;
use std::path::PathBuf;
use std::process::{ExitStatus, Stdio};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncReadExt};
use tokio::process::Command;
use tokio::time::timeout;

/// Address space of qemu-img, in bytes. It needs a third of it.
const MEMORY: u64 = 1 << 30;
/// Minimum limit of processor time, in seconds.
const LEAST_SECONDS: u64 = 60;
/// Bytes of the disk for each further second of processor time: a tenth of the speed of an old processor.
const BYTES_PER_SECOND: u64 = 8 << 20;
/// Signal after the limit of processor time.
const SIGXCPU: i32 = 24;
/// Longest error output of qemu-img that is passed on, in bytes.
const MOST_WORDS: usize = 1024;

/// The programs that convert.
#[derive(Clone, Debug)]
pub struct Tools {
    /// This program, for its command `limited`.
    pub importer: PathBuf,
    /// qemu-img.
    pub qemu_img: PathBuf,
    /// Processor time of qemu-img in seconds, if it does not depend on the size of the disk.
    pub seconds: Option<u64>,
}

/// Converts the staged image into the claim.
///
/// # Errors
/// qemu-img fails.
pub async fn convert(
    tools: &Tools,
    image: &Image,
    what: &str,
    target: &Target,
    progress: &Progress,
) -> Result<(), Failure> {
    let seconds = tools.seconds.unwrap_or(LEAST_SECONDS + image.virtual_size / BYTES_PER_SECOND);
    let (from, to) = (target.staged(), target.path());
    let mut command = Command::new(&tools.importer);
    command.arg("limited").args(["--memory", &MEMORY.to_string(), "--seconds", &seconds.to_string()]);
    command.arg("--read").arg(from).arg("--write").arg(to).arg("--").arg(&tools.qemu_img);
    command.args(["convert", "-p", "-n", "-f", &image.format.to_string(), "-O", "raw"]);
    if target.is_fresh() {
        command.arg("--target-is-zero");
    }
    // qemu-img takes paths with a scheme or options for something else; these begin with a slash.
    command.arg(from).arg(to);
    // Each thread would reserve an arena of its own, and many of them would exceed the limit of address space.
    command.env_clear().env("MALLOC_ARENA_MAX", "1");
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).kill_on_drop(true);
    let failed = |why: String| Failure::Passing(format!("convert {what}: {why}"));
    let mut child = command.spawn().map_err(|error| failed(error.to_string()))?;
    let (output, errors) = (child.stdout.take(), child.stderr.take());
    // Waiting for a slow disk takes no processor time, so the time limit is a multiple of it.
    let time_limit = Duration::from_secs(seconds.saturating_mul(10).saturating_add(600));
    let ended = timeout(time_limit, async {
        let (_, words, status) = tokio::join!(follow(output, progress), words(errors), child.wait());
        (words, status)
    });
    let (words, status) =
        ended.await.map_err(|_| failed(format!("not done after {} s", time_limit.as_secs())))?;
    let status = status.map_err(|error| failed(error.to_string()))?;
    if status.success() {
        return target.zero_from(image.virtual_size);
    }
    Err(refusal(what, status, &words, seconds))
}

/// The failure of a conversion.
fn refusal(what: &str, status: ExitStatus, words: &str, seconds: u64) -> Failure {
    let failed = |why: &dyn std::fmt::Display| format!("convert {what}: {why}");
    match status.signal() {
        Some(SIGXCPU) => Failure::Final(failed(&format!("it takes more than {seconds} s of processor time"))),
        Some(_) => Failure::Passing(failed(&status)),
        None if ["No space left", "Disk quota exceeded"].iter().any(|full| words.contains(full)) => {
            Failure::Final(failed(&format!("no room is left on the claim; ask for a larger one ({words})")))
        }
        None if words.is_empty() => Failure::Final(failed(&status)),
        // Its message about the image is the same at each try.
        None => Failure::Final(failed(&words)),
    }
}

/// Reads lines such as `    (12.50/100%)`.
async fn follow(output: Option<impl AsyncRead + Unpin>, progress: &Progress) {
    let Some(mut output) = output else { return };
    let mut buffer = [0; 256];
    while let Ok(count @ 1..) = output.read(&mut buffer).await {
        if let Some(hundredths) = hundredths(&String::from_utf8_lossy(&buffer[..count])) {
            progress.converted(hundredths);
        }
    }
}

fn hundredths(text: &str) -> Option<u64> {
    let (before, _) = text.rsplit_once("/100%")?;
    let (_, number) = before.rsplit_once('(')?;
    let (whole, part) = number.split_once('.')?;
    Some(whole.trim().parse::<u64>().ok()? * 100 + part.parse::<u64>().ok()?)
}

async fn words(errors: Option<impl AsyncRead + Unpin>) -> String {
    let Some(errors) = errors else { return String::new() };
    let (mut errors, mut text) = (errors, vec![]);
    let mut buffer = [0; 512];
    while let Ok(count @ 1..) = errors.read(&mut buffer).await {
        let room = MOST_WORDS.saturating_sub(text.len()).min(count);
        text.extend_from_slice(&buffer[..room]);
    }
    String::from_utf8_lossy(&text).trim().replace('\n', "; ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn progress_is_read_from_what_is_said_last() {
        assert_eq!(hundredths("    (1.00/100%)\r    (12.50/100%)\r"), Some(1250));
        assert_eq!(hundredths("    (12.5"), None);
        assert_eq!(hundredths(""), None);
    }

    #[test]
    fn only_what_may_be_otherwise_another_time_is_tried_again() {
        let refusal = |raw, words: &str| refusal("image", ExitStatus::from_raw(raw), words, 7);
        let slow = refusal(SIGXCPU, "");
        assert!(slow.is_final() && slow.to_string().contains("more than 7 s of processor time"), "{slow}");
        assert!(!refusal(9, "").is_final(), "killed for others' memory");
        assert!(refusal(1 << 8, "qemu-img: No space left on device").to_string().contains("larger"));
        assert!(refusal(1 << 8, "L2 table is corrupt").is_final());
    }
}
