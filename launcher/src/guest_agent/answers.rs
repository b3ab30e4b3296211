//! What the guest agent's answers mean. Pure.
//!
//! All of it is the guest's word. Lists and texts are cut where a person would stop reading, control characters are
//! written out, addresses are addresses or are left out; what does not have the expected shape is as if it were not said.

use std::net::IpAddr;

use barevirt_api::v1::{
    GuestAgentCommandInfo, GuestOsInfo, VirtualMachineInstanceFileSystem,
    VirtualMachineInstanceFileSystemDisk, VirtualMachineInstanceGuestOsUser,
};
use serde_json::Value;

/// Longest text, in characters of the guest.
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
pub fn os(answer: &Value) -> GuestOsInfo {
    GuestOsInfo {
        name: said(&answer["name"]),
        id: said(&answer["id"]),
        pretty_name: said(&answer["pretty-name"]),
        version: said(&answer["version"]),
        version_id: said(&answer["version-id"]),
        kernel_release: said(&answer["kernel-release"]),
        kernel_version: said(&answer["kernel-version"]),
        machine: said(&answer["machine"]),
    }
}

/// `guest-network-get-interfaces`, without the loopback.
#[must_use]
pub fn interfaces(answer: &Value) -> Vec<Interface> {
    let interface = |one: &Value| {
        let name = text(&one["name"])?;
        let address = |address: &Value| address["ip-address"].as_str()?.parse().ok();
        (name != "lo").then(|| Interface {
            name,
            mac: one["hardware-address"].as_str().and_then(mac).unwrap_or_default(),
            addresses: list(&one["ip-addresses"]).take(MOST_INTERFACES).filter_map(address).collect(),
        })
    };
    list(answer).filter_map(interface).take(MOST_INTERFACES).collect()
}

/// `guest-get-host-name`.
#[must_use]
pub fn host_name(answer: &Value) -> Option<String> {
    said(&answer["host-name"])
}

/// `guest-get-timezone`, as KubeVirt writes it: name and seconds east of UTC.
#[must_use]
pub fn time_zone(answer: &Value) -> Option<String> {
    let offset = answer["offset"].as_i64()?;
    Some(format!("{}, {offset}", text(&answer["zone"]).unwrap_or_default()))
}

/// `guest-info`: version and commands.
#[must_use]
pub fn agent(answer: &Value) -> (Option<String>, Vec<GuestAgentCommandInfo>) {
    let command = |one: &Value| {
        Some(GuestAgentCommandInfo { name: text(&one["name"])?, enabled: Some(one["enabled"].as_bool()?) })
    };
    (said(&answer["version"]), list(&answer["supported_commands"]).filter_map(command).collect())
}

/// `guest-get-users`.
#[must_use]
pub fn users(answer: &Value) -> Vec<VirtualMachineInstanceGuestOsUser> {
    let user = |one: &Value| {
        Some(VirtualMachineInstanceGuestOsUser {
            user_name: text(&one["user"])?,
            domain: said(&one["domain"]),
            login_time: one["login-time"].as_f64().filter(|time| time.is_finite()),
        })
    };
    list(answer).filter_map(user).collect()
}

/// `guest-get-fsinfo`.
#[must_use]
pub fn file_systems(answer: &Value) -> Vec<VirtualMachineInstanceFileSystem> {
    let disk = |one: &Value| {
        Some(VirtualMachineInstanceFileSystemDisk {
            bus_type: text(&one["bus-type"])?,
            serial: said(&one["serial"]),
        })
    };
    let file_system = |one: &Value| {
        Some(VirtualMachineInstanceFileSystem {
            disk_name: text(&one["name"])?,
            mount_point: text(&one["mountpoint"])?,
            file_system_type: text(&one["type"])?,
            total_bytes: bytes(&one["total-bytes"]),
            used_bytes: bytes(&one["used-bytes"]),
            disk: list(&one["disk"]).filter_map(disk).collect(),
        })
    };
    list(answer).filter_map(file_system).collect()
}

/// `guest-get-load`: of one, five and fifteen minutes.
#[must_use]
pub fn load(answer: &Value) -> Option<[f64; 3]> {
    let mean = |name: &str| answer[name].as_f64().filter(|load| load.is_finite() && *load >= 0.0);
    Some([mean("load1m")?, mean("load5m")?, mean("load15m")?])
}

/// `guest-fsfreeze-status`: whether they are frozen.
#[must_use]
pub fn frozen(answer: &Value) -> Option<bool> {
    match answer.as_str() {
        Some("frozen") => Some(true),
        Some("thawed") => Some(false),
        _ => None,
    }
}

fn list(value: &Value) -> impl Iterator<Item = &Value> {
    value.as_array().map(Vec::as_slice).unwrap_or_default().iter().take(MOST)
}

fn bytes(value: &Value) -> i64 {
    value.as_i64().filter(|bytes| *bytes >= 0).unwrap_or_default()
}

/// A text that says something.
fn said(value: &Value) -> Option<String> {
    text(value).filter(|text| !text.is_empty())
}

/// A text of the guest that can be shown on a terminal.
fn text(value: &Value) -> Option<String> {
    value.as_str().map(printable)
}

/// Cut to its beginning, with whatever could act on a terminal, or reorder a line, written out.
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

/// Six hex pairs, in the form that everything else here writes.
fn mac(text: &str) -> Option<String> {
    let pairs: Vec<&str> = text.split([':', '-']).collect();
    let good = pairs.len() == 6
        && pairs.iter().all(|pair| pair.len() == 2 && pair.bytes().all(|byte| byte.is_ascii_hexdigit()));
    good.then(|| pairs.join(":").to_ascii_lowercase())
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn debian_s_answers() {
        let answer = json!({"name": "Debian GNU/Linux", "id": "debian", "version-id": "13", "machine": "x86_64",
            "pretty-name": "Debian GNU/Linux 13 (trixie)", "kernel-release": "6.12.0-amd64", "version": "13 (trixie)",
            "kernel-version": "#1 SMP"});
        let os = os(&answer);
        assert_eq!(os.pretty_name.as_deref(), Some("Debian GNU/Linux 13 (trixie)"));
        assert_eq!((os.id.as_deref(), os.kernel_version.as_deref()), (Some("debian"), Some("#1 SMP")));

        let answer = json!([
            {"name": "lo", "ip-addresses": [{"ip-address": "127.0.0.1"}], "hardware-address": "00:00:00:00:00:00"},
            {"name": "enp1s0", "hardware-address": "02:00:00:AA:00:01", "ip-addresses": [
                {"ip-address-type": "ipv4", "ip-address": "10.0.2.2", "prefix": 24},
                {"ip-address-type": "ipv6", "ip-address": "fe80::1", "prefix": 64}]},
            {"name": "tun0"},
        ]);
        let found = interfaces(&answer);
        assert_eq!(found.len(), 2);
        assert_eq!((found[0].name.as_str(), found[0].mac.as_str()), ("enp1s0", "02:00:00:aa:00:01"));
        assert_eq!(found[0].addresses.len(), 2);
        assert_eq!(found[1], Interface { name: "tun0".into(), ..Interface::default() });

        let answer = json!([{"user": "debian", "login-time": 1_700_000_000.5}]);
        assert_eq!(users(&answer)[0].login_time, Some(1_700_000_000.5));
        let answer = json!([{"name": "vda1", "mountpoint": "/", "type": "ext4", "used-bytes": 5, "total-bytes": 8_000_000_000_i64,
            "disk": [{"bus-type": "virtio", "serial": "S"}, {}]}]);
        let root = &file_systems(&answer)[0];
        assert_eq!((root.mount_point.as_str(), root.total_bytes, root.disk.len()), ("/", 8_000_000_000, 1));
        assert_eq!(time_zone(&json!({"zone": "UTC", "offset": 0})).as_deref(), Some("UTC, 0"));
        assert_eq!(host_name(&json!({"host-name": "web"})).as_deref(), Some("web"));
        let (version, commands) = agent(
            &json!({"version": "10.0.2", "supported_commands": [{"name": "guest-ping", "enabled": true}]}),
        );
        assert_eq!((version.as_deref(), commands[0].name.as_str()), (Some("10.0.2"), "guest-ping"));
        assert_eq!(
            (frozen(&json!("frozen")), frozen(&json!("thawed")), frozen(&json!(1))),
            (Some(true), Some(false), None)
        );
    }

    #[test]
    fn a_hostile_guest_is_cut_short_and_shown_as_it_is() {
        assert_eq!(printable("a\u{1b}[2Jb\r\n\u{202e}"), "a\\u{1b}[2Jb\\r\\n\\u{202e}");
        assert_eq!(printable("Grüße"), "Grüße");
        assert_eq!(printable(&"x".repeat(1 << 20)).len(), LONGEST_TEXT);
        let many = Value::Array(vec![json!({"user": "u"}); 5000]);
        assert_eq!(users(&many).len(), MOST);
        let many = Value::Array(vec![
            json!({"name": "e", "ip-addresses": vec![json!({"ip-address": "::1"}); 50]});
            50
        ]);
        let found = interfaces(&many);
        assert_eq!((found.len(), found[0].addresses.len()), (MOST_INTERFACES, MOST_INTERFACES));
        let lies = json!([{"name": "e", "hardware-address": "02:00:00:00:00:0g", "ip-addresses": [{"ip-address": "$(reboot)"}]}]);
        assert_eq!(interfaces(&lies), [Interface { name: "e".into(), ..Interface::default() }]);
        for nonsense in [json!(null), json!(3), json!({"name": 3}), json!([3, [], {}]), json!("x")] {
            assert_eq!(os(&nonsense), GuestOsInfo::default());
            assert!(interfaces(&nonsense).is_empty() && users(&nonsense).is_empty());
            assert!(file_systems(&nonsense).is_empty() && time_zone(&nonsense).is_none());
        }
        let negative = json!([{"name": "a", "mountpoint": "/", "type": "t", "total-bytes": -1}]);
        assert_eq!(file_systems(&negative)[0].total_bytes, 0);
    }
}
