//! Converts the guest agent's answers. Pure.
//!
//! The guest decides all of this content. Lists and texts are cut to a readable length, control characters
//! are escaped, and invalid addresses are left out. An answer with other types than the agent's never gets
//! here: it counts as missing.

use std::net::IpAddr;

use barevirt_api::v1::{
    GuestAgentCommandInfo, GuestOsInfo, VirtualMachineInstanceFileSystem,
    VirtualMachineInstanceFileSystemDisk, VirtualMachineInstanceGuestOsUser,
};
use barevirt_qmp::newer::{GuestFileSystem, GuestFileSystemDisk, GuestLoadAverage};
use barevirt_qmp::qapi::qga;

/// Longest text, in characters.
const LONGEST_TEXT: usize = 256;
/// Most entries of a list.
const MOST: usize = 256;
/// Most network interfaces, and addresses of each.
const MOST_INTERFACES: usize = 32;

/// A network interface in the guest.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Interface {
    /// Its name there.
    pub name: String,
    /// Its hardware address: lower-case hex pairs with colons, or empty.
    pub mac: String,
    /// Its addresses.
    pub addresses: Vec<IpAddr>,
}

/// `guest-get-osinfo`.
#[must_use]
pub fn os(answer: &qga::GuestOSInfo) -> GuestOsInfo {
    GuestOsInfo {
        name: non_empty(&answer.name),
        id: non_empty(&answer.id),
        pretty_name: non_empty(&answer.pretty_name),
        version: non_empty(&answer.version),
        version_id: non_empty(&answer.version_id),
        kernel_release: non_empty(&answer.kernel_release),
        kernel_version: non_empty(&answer.kernel_version),
        machine: non_empty(&answer.machine),
    }
}

/// `guest-network-get-interfaces`, without the loopback.
#[must_use]
pub fn interfaces(answer: &[qga::GuestNetworkInterface]) -> Vec<Interface> {
    let interface = |one: &qga::GuestNetworkInterface| {
        let addresses = one.ip_addresses.iter().flatten().take(MOST_INTERFACES);
        (one.name != "lo").then(|| Interface {
            name: printable(&one.name),
            mac: one.hardware_address.as_deref().and_then(mac).unwrap_or_default(),
            addresses: addresses.filter_map(|address| address.ip_address.parse().ok()).collect(),
        })
    };
    answer.iter().filter_map(interface).take(MOST_INTERFACES).collect()
}

/// `guest-get-host-name`.
#[must_use]
pub fn host_name(answer: &qga::GuestHostName) -> Option<String> {
    Some(printable(&answer.host_name)).filter(|name| !name.is_empty())
}

/// `guest-get-timezone`, as KubeVirt writes it: name and seconds east of UTC.
#[must_use]
pub fn time_zone(answer: &qga::GuestTimezone) -> String {
    format!("{}, {}", printable(answer.zone.as_deref().unwrap_or_default()), answer.offset)
}

/// `guest-info`: version and commands.
#[must_use]
pub fn agent(answer: &qga::GuestAgentInfo) -> (String, Vec<GuestAgentCommandInfo>) {
    let command = |one: &qga::GuestAgentCommandInfo| GuestAgentCommandInfo {
        name: printable(&one.name),
        enabled: Some(one.enabled),
    };
    (printable(&answer.version), answer.supported_commands.iter().take(MOST).map(command).collect())
}

/// `guest-get-users`.
#[must_use]
pub fn users(answer: &[qga::GuestUser]) -> Vec<VirtualMachineInstanceGuestOsUser> {
    let user = |one: &qga::GuestUser| VirtualMachineInstanceGuestOsUser {
        user_name: printable(&one.user),
        domain: non_empty(&one.domain),
        login_time: Some(one.login_time).filter(|time| time.is_finite()),
    };
    answer.iter().take(MOST).map(user).collect()
}

/// `guest-get-fsinfo`.
#[must_use]
pub fn file_systems(answer: &[GuestFileSystem]) -> Vec<VirtualMachineInstanceFileSystem> {
    let bytes = |bytes: Option<u64>| bytes.and_then(|bytes| i64::try_from(bytes).ok()).unwrap_or_default();
    let disk = |one: &GuestFileSystemDisk| VirtualMachineInstanceFileSystemDisk {
        bus_type: printable(&one.bus_type),
        serial: non_empty(&one.serial),
    };
    let file_system = |one: &GuestFileSystem| VirtualMachineInstanceFileSystem {
        disk_name: printable(&one.name),
        mount_point: printable(&one.mountpoint),
        file_system_type: printable(&one.kind),
        total_bytes: bytes(one.total_bytes),
        used_bytes: bytes(one.used_bytes),
        disk: one.disk.iter().take(MOST).map(disk).collect(),
    };
    answer.iter().take(MOST).map(file_system).collect()
}

/// `guest-get-load`: of one, five and fifteen minutes.
#[must_use]
pub fn load(answer: &GuestLoadAverage) -> Option<[f64; 3]> {
    let means = [answer.load1m, answer.load5m, answer.load15m];
    means.iter().all(|mean| mean.is_finite() && *mean >= 0.0).then_some(means)
}

/// A text that is not empty, made printable.
fn non_empty(text: &Option<String>) -> Option<String> {
    text.as_deref().filter(|text| !text.is_empty()).map(printable)
}

/// The beginning of a text, in which characters that act on a terminal or reorder a line are escaped.
#[must_use]
pub fn printable(text: &str) -> String {
    let acts = |c: char| {
        c.is_control()
            || matches!(c, '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}' | '\u{feff}')
    };
    let mut shown = String::new();
    for c in text.chars().take(LONGEST_TEXT) {
        if acts(c) {
            shown.extend(c.escape_default());
        } else {
            shown.push(c);
        }
    }
    shown
}

/// Six hex pairs, in the form used everywhere else here.
fn mac(text: &str) -> Option<String> {
    let pairs: Vec<&str> = text.split([':', '-']).collect();
    let good = pairs.len() == 6
        && pairs.iter().all(|pair| pair.len() == 2 && pair.bytes().all(|byte| byte.is_ascii_hexdigit()));
    good.then(|| pairs.join(":").to_ascii_lowercase())
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde::de::DeserializeOwned;
    use serde_json::{Value, json};

    fn read<T: DeserializeOwned>(answer: &Value) -> Option<T> {
        T::deserialize(answer).ok()
    }

    /// Decodes a list like the client does.
    fn list<T: DeserializeOwned>(answer: &Value) -> Vec<T> {
        answer.as_array().into_iter().flatten().filter_map(read).collect()
    }

    #[test]
    fn debian_s_answers() {
        let answer = json!({"name": "Debian GNU/Linux", "id": "debian", "version-id": "13", "machine": "x86_64",
            "pretty-name": "Debian GNU/Linux 13 (trixie)", "kernel-release": "6.12.0-amd64", "version": "13 (trixie)",
            "kernel-version": "#1 SMP"});
        let os = os(&read(&answer).unwrap());
        assert_eq!(os.pretty_name.as_deref(), Some("Debian GNU/Linux 13 (trixie)"));
        assert_eq!((os.id.as_deref(), os.kernel_version.as_deref()), (Some("debian"), Some("#1 SMP")));

        let answer = json!([
            {"name": "lo", "ip-addresses": [{"ip-address": "127.0.0.1", "ip-address-type": "ipv4", "prefix": 8}], "hardware-address": "00:00:00:00:00:00"},
            {"name": "enp1s0", "hardware-address": "02:00:00:AA:00:01", "ip-addresses": [
                {"ip-address-type": "ipv4", "ip-address": "10.0.2.2", "prefix": 24},
                {"ip-address-type": "ipv6", "ip-address": "fe80::1", "prefix": 64}]},
            {"name": "tun0"},
        ]);
        let found = interfaces(&list(&answer));
        assert_eq!(found.len(), 2);
        assert_eq!((found[0].name.as_str(), found[0].mac.as_str()), ("enp1s0", "02:00:00:aa:00:01"));
        assert_eq!(found[0].addresses.len(), 2);
        assert_eq!(found[1], Interface { name: "tun0".into(), ..Interface::default() });

        let answer = json!([{"user": "debian", "login-time": 1_700_000_000.5}]);
        assert_eq!(users(&list(&answer))[0].login_time, Some(1_700_000_000.5));
        let disk = json!({"bus-type": "virtio", "serial": "S", "bus": 0, "target": 0, "unit": 0,
            "pci-controller": {"domain": 0, "bus": 1, "slot": 0, "function": 0}});
        let answer = json!([{"name": "vda1", "mountpoint": "/", "type": "ext4", "used-bytes": 5, "total-bytes": 8_000_000_000_i64,
            "disk": [disk]}]);
        let root = &file_systems(&list(&answer))[0];
        assert_eq!((root.mount_point.as_str(), root.total_bytes, root.disk.len()), ("/", 8_000_000_000, 1));
        assert_eq!(time_zone(&read(&json!({"zone": "UTC", "offset": 0})).unwrap()), "UTC, 0");
        assert_eq!(host_name(&read(&json!({"host-name": "web"})).unwrap()).as_deref(), Some("web"));
        let answer = json!({"version": "10.0.2", "supported_commands": [
            {"name": "guest-ping", "enabled": true, "success-response": true}]});
        let (version, commands) = agent(&read(&answer).unwrap());
        assert_eq!((version.as_str(), commands[0].name.as_str()), ("10.0.2", "guest-ping"));
    }

    #[test]
    fn a_hostile_guest_is_cut_short_and_shown_as_it_is() {
        assert_eq!(printable("a\u{1b}[2Jb\r\n\u{202e}"), "a\\u{1b}[2Jb\\r\\n\\u{202e}");
        assert_eq!(printable("Grüße"), "Grüße");
        assert_eq!(printable(&"x".repeat(1 << 20)).len(), LONGEST_TEXT);
        let many = Value::Array(vec![json!({"user": "u", "login-time": 0}); 5000]);
        assert_eq!(users(&list(&many)).len(), MOST);
        let many = Value::Array(vec![
            json!({"name": "e", "ip-addresses": vec![json!({"ip-address": "::1", "ip-address-type": "ipv6", "prefix": 128}); 50]});
            50
        ]);
        let found = interfaces(&list(&many));
        assert_eq!((found.len(), found[0].addresses.len()), (MOST_INTERFACES, MOST_INTERFACES));
        let lies = json!([{"name": "e", "hardware-address": "02:00:00:00:00:0g", "ip-addresses": [
            {"ip-address": "$(reboot)", "ip-address-type": "ipv4", "prefix": 0}]}]);
        assert_eq!(interfaces(&list(&lies)), [Interface { name: "e".into(), ..Interface::default() }]);
        for nonsense in [json!(null), json!(3), json!({"name": 3}), json!([3, [], {}]), json!("x")] {
            assert!(read(&nonsense).is_none_or(|answer| os(&answer) == GuestOsInfo::default()));
            assert!(interfaces(&list(&nonsense)).is_empty() && users(&list(&nonsense)).is_empty());
            assert!(
                file_systems(&list(&nonsense)).is_empty() && read::<qga::GuestTimezone>(&nonsense).is_none()
            );
        }
        let large = json!([{"name": "a", "mountpoint": "/", "type": "t", "total-bytes": u64::MAX, "disk": []},
            {"name": "b", "mountpoint": "/", "type": "t", "total-bytes": -1, "disk": []}]);
        let found = file_systems(&list(&large));
        assert_eq!((found.len(), found[0].total_bytes), (1, 0));
        // A bus that only a newer agent knows.
        let newer =
            json!([{"name": "a", "mountpoint": "/", "type": "t", "disk": [{"bus-type": "quantum\u{1b}"}]}]);
        let found = file_systems(&list(&newer));
        assert_eq!((found.len(), found[0].disk[0].bus_type.as_str()), (1, "quantum\\u{1b}"));
    }
}
