//! A sound card. The guest's output is discarded, and its microphone is silent.

use crate::layout::Seat;
use crate::props::Props;
use crate::quote::Options;

/// The card's model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SoundModel {
    /// Intel HD Audio of the ICH9, the default.
    Ich9,
    /// Intel 82801AA.
    Ac97,
}

/// One sound card.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sound {
    /// Its model.
    pub model: SoundModel,
    /// Its place on the PCI bus.
    pub seat: Seat,
}

impl Sound {
    pub(crate) const ID: &'static str = "sound0";
    const SILENCE: &'static str = "silence";

    /// The argument of `-audiodev`.
    pub(crate) fn backend() -> String {
        Options::kind("none").with("id", Self::SILENCE).into_string()
    }

    /// The card, and its codec if the card is only a controller.
    pub(crate) fn props(self) -> Vec<Props> {
        match self.model {
            SoundModel::Ac97 => {
                vec![Props::device("AC97", Self::ID).seated(self.seat, None).with("audiodev", Self::SILENCE)]
            }
            SoundModel::Ich9 => vec![
                Props::device("ich9-intel-hda", Self::ID).seated(self.seat, None),
                Props::device("hda-duplex", "sound0-codec")
                    .with("bus", format!("{}.0", Self::ID))
                    .with("audiodev", Self::SILENCE),
            ],
        }
    }
}
