//! A soft reboot: through the guest agent, else by the power button.
//!
//! ```text
//!   agent ── done ─────────────────────────────────────────────> the guest reboots
//!     ├── none, or it does not answer ──> power button ────────> it shuts down, and the machine is reset
//!     ├── cannot ──> power button, which the machine has ──────> the same
//!     │                   └── has none ────────────────────────> the agent's error
//!     └── the guest is paused, or its file systems are frozen ─> the agent's error
//! ```
//!
//! A guest whose file systems are frozen would shut down only after they are thawed, perhaps so late that this counts as
//! its own decision and ends it.

use tokio::sync::{mpsc, oneshot};

use crate::guest_agent::answers::printable;
use crate::guest_agent::{self, Ask};
use crate::lifecycle::{Control, Refused};
use crate::supervisor;

/// Why the guest is not rebooted.
#[derive(Debug, thiserror::Error)]
pub enum NotRebooted {
    /// The agent cannot, and there is no other way.
    #[error(transparent)]
    ByAgent(guest_agent::NotDone),
    /// The power button is not pressed.
    #[error(transparent)]
    ByButton(supervisor::NotDone),
}

/// Reboots the guest.
///
/// # Errors
/// The agent's error where there is no power button, else the supervisor's.
pub async fn soft_reboot(
    agent: &mpsc::Sender<Ask>,
    supervisor: &mpsc::Sender<supervisor::Request>,
) -> Result<(), NotRebooted> {
    let refusal = match by_agent(agent).await? {
        Ok(()) => return Ok(()),
        Err(guest_agent::NotDone::NotConnected | guest_agent::NotDone::Silent) => None,
        Err(refusal @ guest_agent::NotDone::Agent(_)) => Some(refusal),
        Err(not_done @ (guest_agent::NotDone::Paused | guest_agent::NotDone::Frozen(_))) => {
            return Err(NotRebooted::ByAgent(not_done));
        }
    };
    match (by_button(supervisor).await?, refusal) {
        (Ok(()), None) => Ok(()),
        (Ok(()), Some(refusal)) => {
            // The guest decides the text.
            let error = printable(&refusal.to_string());
            tracing::warn!(error, "the guest agent cannot reboot the guest, so its power button is pressed");
            Ok(())
        }
        (Err(supervisor::NotDone::Refused(Refused::NoPowerButton)), Some(refusal)) => {
            Err(NotRebooted::ByAgent(refusal))
        }
        (Err(not_done), _) => Err(NotRebooted::ByButton(not_done)),
    }
}

async fn by_agent(agent: &mpsc::Sender<Ask>) -> Result<Result<(), guest_agent::NotDone>, NotRebooted> {
    let (reply, replied) = oneshot::channel();
    agent.send(Ask::Reboot { reply }).await.map_err(|_| ended())?;
    replied.await.map_err(|_| ended())
}

async fn by_button(
    supervisor: &mpsc::Sender<supervisor::Request>,
) -> Result<Result<(), supervisor::NotDone>, NotRebooted> {
    let (reply, replied) = oneshot::channel();
    let request = supervisor::Request::Control { control: Control::SoftReboot, reply };
    supervisor.send(request).await.map_err(|_| ended())?;
    replied.await.map_err(|_| ended())
}

/// The task is gone, and so is the VM.
fn ended() -> NotRebooted {
    NotRebooted::ByButton(Refused::NotRunning.into())
}
