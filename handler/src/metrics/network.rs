//! Counters of the interfaces in a pod, from `/proc/<pid>/net/dev`. Reading it does not require entering a
//! namespace.

use std::collections::BTreeMap;

/// Counters of one direction of an interface.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Direction {
    pub(super) bytes: u64,
    pub(super) packets: u64,
    pub(super) errors: u64,
    pub(super) dropped: u64,
}

/// One interface, as the pod sees it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Device {
    pub(super) received: Direction,
    pub(super) sent: Direction,
}

/// Parses the interfaces from the text, by name.
pub(super) fn devices(text: &str) -> BTreeMap<&str, Device> {
    // The first two lines are headings.
    text.lines().skip(2).filter_map(device).collect()
}

fn device(line: &str) -> Option<(&str, Device)> {
    let (name, numbers) = line.rsplit_once(':')?;
    let numbers: Vec<u64> = numbers.split_whitespace().map_while(|number| number.parse().ok()).collect();
    let direction = |from: usize| {
        let [bytes, packets, errors, dropped] = numbers.get(from..from + 4)?.try_into().ok()?;
        Some(Direction { bytes, packets, errors, dropped })
    };
    Some((name.trim(), Device { received: direction(0)?, sent: direction(8)? }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_what_linux_writes() {
        let text = "Inter-|   Receive                                                |  Transmit\n \
                    face |bytes    packets errs drop fifo frame compressed multicast|bytes    packets errs drop fifo colls carrier compressed\n    \
                    lo:       0       0    0    0    0     0          0         0        0       0    0    0    0     0       0          0\n  \
                    tap0: 1 2 3 4 0 0 0 0 5 6 7 8 0 0 0 0\n bad: 1 2\n";
        let devices = devices(text);
        let wanted = Device {
            received: Direction { bytes: 1, packets: 2, errors: 3, dropped: 4 },
            sent: Direction { bytes: 5, packets: 6, errors: 7, dropped: 8 },
        };
        assert_eq!((devices.len(), devices.get("tap0")), (2, Some(&wanted)));
    }
}
