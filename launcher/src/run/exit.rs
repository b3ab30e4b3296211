//! Exit codes of `virt-launcher run`.
//!
//! | code | |
//! |---|---|
//! | 0 | the guest ended well, or nothing was to be started (`--dry-run`) |
//! | 1 | the guest failed: it crashed, was killed, or did not shut down in its time |
//! | 2 | the command line or the manifest is wrong; nothing was started |
//! | 3 | it cannot be done here: no image, no QEMU, no KVM with `--kvm`, a port in use, no room for `--save` |

use std::process::ExitCode;

use super::manifest::ManifestError;
use crate::guest_end::GuestEnd;

/// The exit code; if no guest was started, the reason is printed on standard error.
#[must_use]
pub fn code(outcome: anyhow::Result<Option<GuestEnd>>) -> ExitCode {
    if let Err(error) = &outcome {
        eprintln!("virt-launcher: {error:#}");
    }
    ExitCode::from(number(&outcome))
}

fn number(outcome: &anyhow::Result<Option<GuestEnd>>) -> u8 {
    match outcome {
        Ok(Some(end)) if !end.succeeded => 1,
        Ok(_) => 0,
        Err(error) if error.is::<ManifestError>() => 2,
        Err(_) => 3,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exit_codes_distinguish_a_failed_guest_from_a_wrong_manifest() {
        assert_eq!(number(&Ok(None)), 0);
        assert_eq!(number(&Ok(Some(GuestEnd::failed("QemuCrashed", "gone".to_owned())))), 1);
        let wrong =
            super::super::manifest::load(std::path::Path::new("/nowhere.yaml"), None, &[]).map(|_| None);
        assert_eq!(number(&wrong.map_err(anyhow::Error::from)), 2);
        assert_eq!(number(&Err(anyhow::anyhow!("no QEMU"))), 3);
    }
}
