//! The flash of a machine that boots by UEFI: the firmware's code, which is read-only, and the variables,
//! which firmware and guest write.

use crate::device::blockdev::FileSource;
use crate::props::Props;

/// Two flash chips, each on its own raw block node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Flash {
    /// The code.
    pub code: FileSource,
    /// The variables; writable.
    pub variables: FileSource,
}

impl Flash {
    /// Node of the code, for `-machine pflash0=`.
    pub(crate) const CODE: &'static str = "firmware-code";
    /// Node of the variables, for `-machine pflash1=`.
    pub(crate) const VARIABLES: &'static str = "firmware-variables";

    /// The nodes, in the order in which they can be made.
    pub(crate) fn nodes(&self) -> Vec<Props> {
        let chip = |name: &'static str, source: &FileSource, read_only: bool| {
            let (driver, filename) = source.driver_and_name();
            let file = format!("{name}-file");
            [
                Props::new("driver", driver)
                    .with("node-name", file.as_str())
                    .with("filename", filename)
                    .with("read-only", read_only),
                Props::new("driver", "raw")
                    .with("node-name", name)
                    .with("read-only", read_only)
                    .with("file", file),
            ]
        };
        let code = chip(Self::CODE, &self.code, true);
        code.into_iter().chain(chip(Self::VARIABLES, &self.variables, false)).collect()
    }
}
