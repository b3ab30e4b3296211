//! The saved form of a layout. Users can change the annotation that has it, so it is checked before it is used.

use super::{Layout, LayoutError, MAX_PORTS};
use barevirt_api::pci::SLOTS;
use std::collections::BTreeMap;

impl Layout {
    /// Loads a saved layout.
    ///
    /// # Errors
    ///
    /// If the text is not a layout, or contradicts itself.
    pub fn saved(text: &str) -> Result<Self, LayoutError> {
        let layout: Self =
            serde_json::from_str(text).map_err(|error| LayoutError::Saved(error.to_string()))?;
        layout.check()?;
        Ok(layout)
    }

    /// The text to save.
    #[must_use]
    pub fn to_saved(&self) -> String {
        // Numbers and strings with string keys always have a JSON form.
        serde_json::to_string(self).unwrap_or_default()
    }

    pub(super) fn check(&self) -> Result<(), LayoutError> {
        let unusable = |text: String| Err(LayoutError::Saved(text));
        if self.version != Self::VERSION {
            return unusable(format!("version {:?} is not known", self.version));
        }
        if self.ports > MAX_PORTS {
            return unusable(format!("{} root ports are more than {MAX_PORTS}", self.ports));
        }
        let mut seen = BTreeMap::new();
        for (name, port) in &self.devices {
            if port.0 >= self.ports {
                return unusable(format!("{name} is behind port {}, and there are {}", port.0, self.ports));
            }
            if let Some(other) = seen.insert(*port, name) {
                return unusable(format!("{other} and {name} are both behind port {}", port.0));
            }
        }
        if let Some((name, blocks)) = self.blocks.iter().find(|(_, blocks)| !blocks.are_possible()) {
            return unusable(format!("{name} cannot have blocks of {blocks:?}"));
        }
        self.check_slots()
    }

    fn check_slots(&self) -> Result<(), LayoutError> {
        let unusable = |text: String| Err(LayoutError::Saved(text));
        let mut seen = BTreeMap::new();
        for (name, slot) in &self.slots {
            if !SLOTS.contains(slot) {
                return unusable(format!("{name} is at slot {slot:#x}, which is not free for devices"));
            }
            if let Some(other) = seen.insert(*slot, name) {
                return unusable(format!("{other} and {name} are both at slot {slot:#x}"));
            }
        }
        Ok(())
    }
}
