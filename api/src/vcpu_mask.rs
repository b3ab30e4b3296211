//! Virtual CPUs of `realtime.mask`: numbers, ranges, and `^` for a CPU that is always excluded, such as
//! `0-3,^1`.

use std::collections::BTreeSet;

/// Largest number that a mask may name: more CPUs than any machine has.
const MOST: u32 = 1023;

/// Some of a guest's virtual CPUs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct VcpuMask {
    /// The included CPUs; `None` means all.
    named: Option<BTreeSet<u32>>,
    out: BTreeSet<u32>,
}

impl VcpuMask {
    /// Parses a mask; an empty one means all CPUs. `None` if the text is not a mask.
    ///
    /// As in KubeVirt, a mask that only excludes CPUs selects none, because only included CPUs are selected.
    pub fn parse(text: &str) -> Option<Self> {
        if text.is_empty() {
            return Some(VcpuMask::default());
        }
        let number = |text: &str| {
            let digits = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
            text.parse::<u32>().ok().filter(|number| digits && *number <= MOST)
        };
        let (mut named, mut out) = (BTreeSet::new(), BTreeSet::new());
        for part in text.split(',').map(str::trim) {
            if let Some(part) = part.strip_prefix('^') {
                out.insert(number(part)?);
            } else {
                let (first, last) = part.split_once('-').unwrap_or((part, part));
                let (first, last) = (number(first)?, number(last)?);
                if first > last {
                    return None;
                }
                named.extend(first..=last);
            }
        }
        Some(VcpuMask { named: Some(named), out })
    }

    /// Whether the mask selects the virtual CPU.
    pub fn has(&self, vcpu: u32) -> bool {
        self.named.as_ref().is_none_or(|named| named.contains(&vcpu)) && !self.out.contains(&vcpu)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn masks_as_kubevirt_reads_them() {
        let of = |text: &str| {
            VcpuMask::parse(text).map(|mask| (0..6).filter(|vcpu| mask.has(*vcpu)).collect::<Vec<_>>())
        };
        assert_eq!(of(""), Some(vec![0, 1, 2, 3, 4, 5]));
        assert_eq!(of("0-3,^1"), Some(vec![0, 2, 3]));
        assert_eq!(of("^1, 0-2 ,5"), Some(vec![0, 2, 5]));
        assert_eq!(of("^0"), Some(vec![]));
        for wrong in ["a", "3-1", "1-", "-1", "+1", ",", "0,,1", "5000", "0-^1"] {
            assert_eq!(VcpuMask::parse(wrong), None, "{wrong}");
        }
    }
}
