//! What the labels tell, found out once: a node's processor and kernel stay what they are.

use std::fs;
use std::path::Path;

use barevirt_protocol::capabilities::Capabilities;
use tracing::{info, warn};

use crate::kernel::Kvm;

/// What guests can have here.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Facts {
    /// What QEMU says.
    pub(super) capabilities: Capabilities,
    /// Hyper-V enlightenments of the kernel.
    pub(super) hyperv: Vec<&'static str>,
    /// The time stamp counter.
    pub(super) tsc: Option<Tsc>,
    /// Realtime threads may run without end.
    pub(super) realtime: bool,
}

/// The time stamp counter that guests see.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Tsc {
    /// Ticks a second.
    pub(super) hertz: u64,
    /// Guests can have another frequency.
    pub(super) scalable: bool,
}

impl Facts {
    /// Looks for them; none where the launcher left nothing that can be read.
    pub(super) fn find(capabilities: &Path) -> Option<Self> {
        let capabilities = match Capabilities::read(capabilities) {
            Ok(capabilities) => capabilities,
            Err(error) => {
                let error = format!("{:#}", anyhow::Error::from(error));
                warn!(error, "what guests can have here is not known, and so not in the node's labels");
                return None;
            }
        };
        // Without KVM there are no enlightenments, and no counter but QEMU's.
        let kvm = (capabilities.accelerator == "kvm").then(|| Kvm::open(Path::new("/dev/kvm")));
        let kvm = match kvm.transpose() {
            Ok(kvm) => kvm,
            Err(error) => {
                warn!(%error, "/dev/kvm cannot be opened");
                None
            }
        };
        Some(Facts {
            hyperv: kvm.as_ref().map(enlightenments).unwrap_or_default(),
            tsc: kvm.as_ref().and_then(tsc),
            realtime: fs::read_to_string("/proc/sys/kernel/sched_rt_runtime_us")
                .is_ok_and(|limit| limit.trim() == "-1"),
            capabilities,
        })
    }
}

/// What tells that an enlightenment is there.
enum Sign {
    /// `KVM_CHECK_EXTENSION`, by number.
    Extension(i32),
    /// A register that the kernel keeps.
    Register(u32),
}

/// KubeVirt's table. What needs no help of the kernel (relaxed, vapic, spinlocks, vendorid) is everywhere, and not in it.
const ENLIGHTENMENTS: [(&str, Sign); 12] = [
    ("base", Sign::Extension(44)),
    ("time", Sign::Extension(96)),
    ("vpindex", Sign::Extension(149)),
    ("tlbflush", Sign::Extension(155)),
    ("ipi", Sign::Extension(161)),
    ("synic", Sign::Extension(123)),
    ("synic2", Sign::Extension(148)),
    ("frequencies", Sign::Register(0x4000_0022)),
    ("reset", Sign::Register(0x4000_0003)),
    ("runtime", Sign::Register(0x4000_0010)),
    ("synictimer", Sign::Register(0x4000_00b0)),
    ("reenlightenment", Sign::Register(0x4000_0106)),
];
/// `KVM_CAP_TSC_CONTROL`.
const TSC_CONTROL: i32 = 60;

fn enlightenments(kvm: &Kvm) -> Vec<&'static str> {
    let registers = kvm.registers().unwrap_or_else(|error| {
        info!(%error, "KVM does not list its registers");
        Vec::new()
    });
    let there = |sign: &Sign| match sign {
        Sign::Extension(number) => kvm.has_extension(*number),
        Sign::Register(number) => registers.contains(number),
    };
    ENLIGHTENMENTS.iter().filter(|(_, sign)| there(sign)).map(|(name, _)| *name).collect()
}

fn tsc(kvm: &Kvm) -> Option<Tsc> {
    match kvm.tsc_kilohertz() {
        Ok(kilohertz) => {
            Some(Tsc { hertz: u64::from(kilohertz) * 1000, scalable: kvm.has_extension(TSC_CONTROL) })
        }
        Err(error) => {
            info!(%error, "KVM does not tell the counter's frequency");
            None
        }
    }
}
