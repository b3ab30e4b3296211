//! Compression of the memory of a guest that is sent. Pure.

use barevirt_api::v1::VmimConfigurationOptions;
use barevirt_protocol::v1::LauncherStatus;

/// Whether the memory is compressed if both ends can do it.
#[must_use]
pub fn wants_compression(settings: &VmimConfigurationOptions) -> bool {
    settings.experimental.as_ref().and_then(|trials| trials.compression.as_deref()) == Some("zstd")
}

/// Whether the target takes compressed memory, if the source asks for it. A launcher of an older version would not be told.
#[must_use]
pub fn takes_compression(launcher: &LauncherStatus, asked: bool) -> bool {
    asked && launcher.compresses_memory
}

/// Why memory is not compressed although the settings ask for it: the launcher of the source and its further connections for memory,
/// and whether post-copy is possible.
#[must_use]
pub fn why_not(launcher: &LauncherStatus, channels: u8, post_copy: bool) -> &'static str {
    if launcher.memory_channels > 0 && !launcher.compresses_memory {
        "virt-launcher of the source is of an older version"
    } else if channels == 0 {
        "memory has one connection: the machine has a CPU limit, virt-launcher is of an older version, or the container runtime \
         answers system calls itself"
    } else if post_copy {
        "memory has one connection: post-copy is possible"
    } else {
        "virt-handler or virt-launcher of the target is of an older version, or takes one connection for memory"
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use barevirt_api::v1::ExperimentalMigrationOptions;

    #[test]
    fn memory_is_compressed_if_the_policy_says_zstd() {
        let wants = |compression: Option<&str>| {
            let trials = ExperimentalMigrationOptions {
                compression: compression.map(str::to_owned),
                ..ExperimentalMigrationOptions::default()
            };
            let settings = VmimConfigurationOptions {
                experimental: Some(trials),
                ..VmimConfigurationOptions::default()
            };
            wants_compression(&settings)
        };
        assert_eq!([Some("zstd"), Some("none"), None].map(wants), [true, false, false]);
        assert!(!wants_compression(&VmimConfigurationOptions::default()));
    }

    #[test]
    fn a_target_takes_compressed_memory_if_it_is_asked_and_its_launcher_can() {
        let takes = |compresses_memory, asked| {
            takes_compression(&LauncherStatus { compresses_memory, ..LauncherStatus::default() }, asked)
        };
        assert_eq!([takes(true, true), takes(true, false), takes(false, true)], [true, false, false]);
    }

    #[test]
    fn the_reason_against_compression_is_that_of_the_end_that_has_it() {
        let launcher = |memory_channels, compresses_memory| LauncherStatus {
            memory_channels,
            compresses_memory,
            ..LauncherStatus::default()
        };
        assert!(why_not(&launcher(4, false), 4, false).contains("launcher of the source"));
        assert!(why_not(&launcher(0, false), 0, true).contains("older version"));
        assert!(why_not(&launcher(4, true), 0, true).contains("CPU limit"));
        assert!(why_not(&launcher(4, true), 4, true).contains("post-copy"));
        assert!(why_not(&launcher(4, true), 4, false).contains("of the target"));
    }
}
