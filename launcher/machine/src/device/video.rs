//! The display and the VNC server that shows it.

use crate::props::Props;
use crate::quote;

/// The model of the display.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum VideoModel {
    /// Standard VGA.
    Vga,
    /// Cirrus Logic GD5446.
    Cirrus,
    /// virtio-gpu that starts as VGA.
    Virtio,
    /// A frame buffer in the guest's memory that its firmware sets up.
    Ramfb,
    /// A frame buffer without VGA.
    Bochs,
}

impl VideoModel {
    /// The model by its name in the API.
    #[must_use]
    pub fn from_api(name: &str) -> Option<Self> {
        Some(match name {
            "vga" => VideoModel::Vga,
            "cirrus" => VideoModel::Cirrus,
            "virtio" => VideoModel::Virtio,
            "ramfb" => VideoModel::Ramfb,
            "bochs" => VideoModel::Bochs,
            _ => return None,
        })
    }
}

/// A display; with 16 MiB of video memory if it has its own, as the API promises.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Video {
    /// Path of the unix socket that QEMU's VNC server listens on.
    pub vnc_socket: String,
    /// The model.
    pub model: VideoModel,
}

impl Video {
    const ID: &'static str = "video0";

    /// The argument of `-vnc`.
    pub(crate) fn vnc(&self) -> String {
        format!("unix:{}", quote::quote(&self.vnc_socket))
    }

    pub(crate) fn props(&self) -> Props {
        let on_pci = |driver| Props::device(driver, Self::ID).with("bus", "pcie.0").with("addr", "0x1");
        match self.model {
            VideoModel::Vga => on_pci("VGA").with("vgamem_mb", 16),
            VideoModel::Cirrus => on_pci("cirrus-vga").with("vgamem_mb", 16),
            VideoModel::Virtio => on_pci("virtio-vga"),
            VideoModel::Bochs => on_pci("bochs-display").with("vgamem", 16 << 20),
            VideoModel::Ramfb => Props::device("ramfb", Self::ID),
        }
    }
}
