//! Rules for ranges of ports that reach the guest.

use super::{Cause, Path};
use crate::v1::{Interface, PortRange};

/// The gate of the field.
pub(super) const GATE: &str = "PortRangesSpec";
/// Most ranges of one interface.
const MOST: usize = 10;

/// The ranges of an interface. KubeVirt accepts them on networks of Multus, and ignores them there.
pub(super) fn validate(field: &Path, interface: &Interface, causes: &mut Vec<Cause>) {
    let ranges = &interface.port_ranges;
    if ranges.is_empty() {
        return;
    }
    let name = field.child("name");
    if !interface.ports.is_empty() {
        causes.push(Cause::invalid(&name, "Cannot define both ports and portRanges on interface"));
    }
    if interface.masquerade.is_none() {
        causes.push(Cause::invalid(&name, "portRanges are only supported on masquerade interfaces"));
    }
    let field = field.child("portRanges");
    if ranges.len() > MOST {
        causes.push(Cause::invalid(&field, format!("No more than {MOST} portRanges are allowed")));
        return;
    }
    let mut right: Vec<&PortRange> = Vec::new();
    for (index, range) in ranges.iter().enumerate() {
        match wrong(range) {
            Some((member, message)) => {
                causes.push(Cause::invalid(&field.index(index).child(member), message));
            }
            None => right.push(range),
        }
    }
    right.sort_by_key(|range| (range.protocol.clone(), range.start, range.end));
    for pair in right.windows(2) {
        let [first, second] = pair else { continue };
        if first.protocol == second.protocol && second.start <= first.end {
            causes.push(Cause::invalid(
                &field,
                format!(
                    "{} portRanges [{}-{}] and [{}-{}] overlap",
                    first.protocol, first.start, first.end, second.start, second.end
                ),
            ));
        }
    }
}

/// The first fault in a range: a member of it, and the reason.
fn wrong(range: &PortRange) -> Option<(&'static str, &'static str)> {
    let is_port = |port: i32| (1..=65535).contains(&port);
    if !matches!(range.protocol.as_str(), "TCP" | "UDP") {
        Some(("protocol", "Unknown protocol, only TCP or UDP allowed"))
    } else if !is_port(range.start) {
        Some(("start", "Start must be a valid port number, 0 < x < 65536"))
    } else if !is_port(range.end) {
        Some(("end", "End must be a valid port number, 0 < x < 65536"))
    } else if range.start > range.end {
        Some(("start", "Start must be less than or equal to end"))
    } else {
        None
    }
}
