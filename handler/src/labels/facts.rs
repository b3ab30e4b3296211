//! The facts that the labels report. They are collected once, because a node's processor and kernel do not
//! change while the process runs.

use std::fs;
use std::path::Path;

use barevirt_protocol::capabilities::Capabilities;
use tracing::{info, warn};

use crate::kernel::Kvm;

/// What guests can use on this node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Facts {
    /// Capabilities that QEMU reports.
    pub(super) capabilities: Capabilities,
    /// Hyper-V enlightenments that the kernel supports.
    pub(super) hyperv: Vec<&'static str>,
    /// The time stamp counter.
    pub(super) tsc: Option<Tsc>,
    /// Realtime threads may run without a time limit.
    pub(super) realtime: bool,
}

/// The time stamp counter that guests see.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Tsc {
    /// Ticks per second.
    pub(super) hertz: u64,
    /// Guests can have another frequency.
    pub(super) scalable: bool,
}

impl Facts {
    /// Collects the facts; `None` if the launcher's file is missing or cannot be read.
    pub(super) fn find(capabilities: &Path) -> Option<Self> {
        let capabilities = match Capabilities::read(capabilities) {
            Ok(capabilities) => capabilities,
            Err(error) => {
                let error = format!("{:#}", anyhow::Error::from(error));
                warn!(error, "the node's capabilities are not known, so its labels do not show them");
                return None;
            }
        };
        // Without KVM there are no enlightenments, and no time stamp counter but QEMU's.
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

/// What shows that an enlightenment is supported.
enum Sign {
    /// The number of an extension, for `KVM_CHECK_EXTENSION`.
    Extension(i32),
    /// A register that the kernel provides.
    Register(u32),
}

/// KubeVirt's table. Enlightenments that need no support from the kernel (relaxed, vapic, spinlocks,
/// vendorid) work everywhere and are not in it.
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
            info!(%error, "KVM does not report the counter's frequency");
            None
        }
    }
}
