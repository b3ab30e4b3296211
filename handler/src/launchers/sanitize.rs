//! Limits what a launcher reports. Pure.
//!
//! A launcher in good order keeps these limits by itself. One that its guest has taken over may report
//! anything: texts of any length would reach the API server and the log, lists of any length would take
//! memory, and control characters would act on the terminal of the reader. So every answer goes through
//! [`sanitized`] before other code sees it. Texts are truncated; a value that would be wrong when truncated
//! is left out.

use barevirt_protocol::descriptors::CallError;
use barevirt_protocol::names::{LARGEST_MADE, LONGEST_NAME, MOST_MEMORY_CHANNELS};
use barevirt_protocol::v1::{
    AgentStats, BlockStats, Card, ClaimDisk, ControlResponse, Credentials, DebugResponse, DiskTrouble,
    FileSystemStats, GuestFacts, GuestInterface, GuestOs, GuestResponse, HelloResponse, HotDisk,
    LauncherStatus, MachineSize, MachineStats, MadeDisk, MigrateResponse, MigrationSlow, MigrationStatus,
    QmpResponse, RealTimeResponse, ScreenshotResponse, ShutdownResponse, StatsResponse, SyncResponse,
};
use serde_json::Value;
use tonic::Status;

/// Longest message, in bytes. With a prefix it becomes the note of an event, which has at most 1024 bytes.
const SENTENCE: usize = 768;
/// Longest refusal, in bytes. It may list what each thread of QEMU waits for.
const REFUSAL: usize = 4096;
/// Longest name or version, in bytes: 256 characters from a guest, some of them as escapes.
const WORD: usize = 512;
/// Longest reason, which is one CamelCase word.
const REASON: usize = 64;
/// Longest string within JSON, bytes.
const STRING: usize = 8192;
/// Most entries of a list or an object within JSON.
const ENTRIES: usize = 1024;
/// Largest layout of PCI addresses, in bytes. It becomes an annotation.
const LAYOUT: usize = 32 << 10;
/// Most descriptors; the launcher has the same limit.
const DESCRIPTORS: usize = 2048;
/// Most disks, hot-plugged or not. Also the limit of virtual CPUs.
const DISKS: usize = 256;
const VCPUS: usize = 1024;
/// Most network interfaces, and most addresses of each.
const INTERFACES: usize = 64;
/// Most file systems.
const FILE_SYSTEMS: usize = 64;

/// An answer of a launcher whose content has limits.
pub(super) trait Sanitize {
    /// Applies the limits.
    fn sanitize(&mut self);
}

/// The value with the limits applied.
pub(super) fn sanitized<T: Sanitize>(mut answer: T) -> T {
    answer.sanitize();
    answer
}

/// Whether a character acts on a terminal, or changes the order of other characters.
fn acts(letter: char) -> bool {
    letter.is_control()
        || matches!(letter, '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}' | '\u{feff}')
}

/// Limits a text to one line of at most `most` bytes.
fn line(text: &mut String, most: usize) {
    keep(text, most, |letter| !acts(letter));
}

/// Limits a text of several lines to at most `most` bytes.
fn lines(text: &mut String, most: usize) {
    keep(text, most, |letter| letter == '\n' || !acts(letter));
}

fn keep(text: &mut String, most: usize, good: impl Fn(char) -> bool) {
    cut(text, most);
    if !text.chars().all(&good) {
        // The replacement is one byte, so a truncated text stays within its limit.
        *text = text.chars().map(|letter| if good(letter) { letter } else { '?' }).collect();
    }
}

fn cut(text: &mut String, most: usize) {
    if text.len() > most {
        text.truncate(text.floor_char_boundary(most));
        // Frees the memory that the large text used.
        text.shrink_to_fit();
    }
}

fn all<T: Sanitize>(list: &mut Vec<T>, most: usize) {
    if list.len() > most {
        list.truncate(most);
        list.shrink_to_fit();
    }
    list.iter_mut().for_each(Sanitize::sanitize);
}

fn texts(list: &mut Vec<String>, most: usize, longest: usize) {
    list.truncate(most);
    list.shrink_to_fit();
    list.iter_mut().for_each(|text| line(text, longest));
}

/// Limits the strings and lists in JSON. Bytes that are not JSON are left out.
fn json(bytes: &mut Vec<u8>) {
    let Ok(mut value) = serde_json::from_slice::<Value>(bytes) else { return bytes.clear() };
    within(&mut value);
    *bytes = value.to_string().into_bytes();
}

fn within(value: &mut Value) {
    match value {
        Value::Null | Value::Bool(_) | Value::Number(_) => {}
        Value::String(text) => lines(text, STRING),
        Value::Array(list) => {
            list.truncate(ENTRIES);
            list.iter_mut().for_each(within);
        }
        Value::Object(fields) => {
            let kept = std::mem::take(fields).into_iter().take(ENTRIES);
            fields.extend(kept.map(|(mut name, mut value)| {
                line(&mut name, WORD);
                within(&mut value);
                (name, value)
            }));
        }
    }
}

impl Sanitize for LauncherStatus {
    fn sanitize(&mut self) {
        let Self {
            observed_revision: _,
            phase: _,
            reason,
            message,
            ready: _,
            descriptors,
            qemu_pid: _,
            qemu_version,
            machine_type,
            accelerator,
            agent_connected: _,
            running_since_unix_ms: _,
            pci_layout,
            pause: _,
            guest,
            credentials,
            size,
            failed_pings: _,
            awaits_real_time: _,
            hot_disks,
            migration,
            local_disks,
            cards,
            claim_disks,
            not_grown,
            made_disks,
            smaller,
            memory_channels,
            compresses_memory: _,
        } = self;
        reason.retain(|letter| letter.is_ascii_alphanumeric());
        cut(reason, REASON);
        line(message, SENTENCE);
        // A name that is too long was never given to a launcher.
        descriptors.retain(|name| name.len() <= LONGEST_NAME);
        texts(descriptors, DESCRIPTORS, LONGEST_NAME);
        for word in [qemu_version, machine_type, accelerator] {
            line(word, WORD);
        }
        if pci_layout.len() > LAYOUT || pci_layout.chars().any(acts) {
            *pci_layout = String::new();
        }
        guest.iter_mut().for_each(Sanitize::sanitize);
        if let Some(Credentials { synchronized: _, message }) = credentials {
            line(message, SENTENCE);
        }
        if let Some(MachineSize { processor_trouble, memory_trouble, .. }) = size {
            line(processor_trouble, SENTENCE);
            line(memory_trouble, SENTENCE);
        }
        all(hot_disks, DISKS);
        texts(local_disks, DISKS, WORD);
        all(claim_disks, DISKS);
        all(not_grown, DISKS);
        all(made_disks, DISKS);
        all(smaller, DISKS);
        *memory_channels = (*memory_channels).min(u32::from(MOST_MEMORY_CHANNELS));
        all(cards, INTERFACES);
        if let Some(MigrationStatus { uid, reason, slow, .. }) = migration {
            // No migration has a UID that is too long.
            line(uid, WORD);
            line(reason, SENTENCE);
            if let Some(MigrationSlow { bottleneck: _, text }) = slow {
                line(text, SENTENCE);
            }
        }
    }
}

impl Sanitize for ClaimDisk {
    fn sanitize(&mut self) {
        let Self { volume, bytes: _ } = self;
        line(volume, WORD);
    }
}

impl Sanitize for MadeDisk {
    fn sanitize(&mut self) {
        let Self { volume, bytes, read_only: _ } = self;
        line(volume, WORD);
        *bytes = (*bytes).min(LARGEST_MADE);
    }
}

impl Sanitize for DiskTrouble {
    fn sanitize(&mut self) {
        let Self { volume, text } = self;
        line(volume, WORD);
        line(text, SENTENCE);
    }
}

impl Sanitize for HotDisk {
    fn sanitize(&mut self) {
        let Self { volume, claim, plugged: _, target, trouble } = self;
        for word in [volume, claim, target] {
            line(word, WORD);
        }
        line(trouble, SENTENCE);
    }
}

impl Sanitize for Card {
    fn sanitize(&mut self) {
        let Self { name, plugged: _, down: _, trouble, addresses } = self;
        line(name, WORD);
        line(trouble, SENTENCE);
        texts(addresses, INTERFACES, REASON);
    }
}

impl Sanitize for GuestFacts {
    fn sanitize(&mut self) {
        let Self { os, interfaces, frozen: _, unsupported } = self;
        if let Some(os) = os {
            let GuestOs {
                name,
                id,
                pretty_name,
                version,
                version_id,
                kernel_release,
                kernel_version,
                machine,
            } = os;
            for word in [name, id, pretty_name, version, version_id, kernel_release, kernel_version, machine]
            {
                line(word, WORD);
            }
        }
        all(interfaces, INTERFACES);
        line(unsupported, SENTENCE);
    }
}

impl Sanitize for GuestInterface {
    fn sanitize(&mut self) {
        let Self { name, mac, addresses } = self;
        line(name, WORD);
        line(mac, REASON);
        texts(addresses, INTERFACES, REASON);
    }
}

impl Sanitize for StatsResponse {
    fn sanitize(&mut self) {
        let Self { process: _, machine, agent, dirty_bytes_per_second: _, migration: _ } = self;
        if let Some(MachineStats { vcpus, blocks, balloon_bytes: _, memory: _ }) = machine {
            vcpus.truncate(VCPUS);
            vcpus.shrink_to_fit();
            all(blocks, DISKS);
        }
        if let Some(AgentStats { file_systems, load: _ }) = agent {
            all(file_systems, FILE_SYSTEMS);
        }
    }
}

impl Sanitize for BlockStats {
    fn sanitize(&mut self) {
        line(&mut self.disk, WORD);
    }
}

impl Sanitize for FileSystemStats {
    fn sanitize(&mut self) {
        let Self { disk, mount_point, r#type, total_bytes: _, used_bytes: _ } = self;
        for word in [disk, mount_point, r#type] {
            line(word, WORD);
        }
    }
}

impl Sanitize for DebugResponse {
    fn sanitize(&mut self) {
        json(&mut self.report);
    }
}

impl Sanitize for GuestResponse {
    fn sanitize(&mut self) {
        json(&mut self.info);
    }
}

impl Sanitize for QmpResponse {
    /// QEMU's answer to the user, verbatim. Only characters that act on a terminal are replaced. Within a
    /// string of JSON such characters are escaped anyway.
    fn sanitize(&mut self) {
        let text = String::from_utf8_lossy(&self.answer);
        if text.chars().any(|letter| acts(letter) && !letter.is_ascii_whitespace()) {
            let good = |letter: char| letter.is_ascii_whitespace() || !acts(letter);
            let text: String = text.chars().map(|letter| if good(letter) { letter } else { '?' }).collect();
            self.answer = text.into_bytes();
        }
    }
}

impl Sanitize for HelloResponse {
    fn sanitize(&mut self) {
        line(&mut self.pod_uid, REASON);
    }
}

/// The handler does not interpret pictures.
impl Sanitize for ScreenshotResponse {
    fn sanitize(&mut self) {}
}

impl Sanitize for SyncResponse {
    fn sanitize(&mut self) {}
}

impl Sanitize for ShutdownResponse {
    fn sanitize(&mut self) {}
}

impl Sanitize for ControlResponse {
    fn sanitize(&mut self) {}
}

impl Sanitize for RealTimeResponse {
    fn sanitize(&mut self) {}
}

impl Sanitize for MigrateResponse {
    fn sanitize(&mut self) {}
}

impl Sanitize for Status {
    /// Keeps the code and the message, without details and metadata.
    fn sanitize(&mut self) {
        let mut message = self.message().to_owned();
        lines(&mut message, REFUSAL);
        *self = Status::new(self.code(), message);
    }
}

impl Sanitize for CallError {
    fn sanitize(&mut self) {
        match self {
            Self::Refused { request: _, error } => line(error, SENTENCE),
            Self::Socket(_)
            | Self::Message(_)
            | Self::Deadline { .. }
            | Self::Closed
            | Self::WrongCount { .. } => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use barevirt_protocol::v1::{Phase, VcpuStats};
    use proptest::prelude::*;
    use tonic::Code;
    use tonic::metadata::MetadataMap;

    use super::*;

    const LONG: usize = 100_000;
    /// More than a list may have. Each entry has long texts.
    const MANY: usize = DISKS + 1;

    fn long() -> String {
        "\u{1b}[2Jä".repeat(LONG)
    }

    fn longs() -> Vec<String> {
        vec![long(); 3].into_iter().chain(vec!["x".to_owned(); LONG]).collect()
    }

    #[test]
    fn a_status_is_short_and_has_no_control_characters() {
        let os = GuestOs {
            name: long(),
            id: long(),
            pretty_name: long(),
            version: long(),
            version_id: long(),
            kernel_release: long(),
            kernel_version: long(),
            machine: long(),
        };
        let interface = GuestInterface { name: long(), mac: long(), addresses: longs() };
        let disk = HotDisk { volume: long(), claim: long(), plugged: true, target: long(), trouble: long() };
        let card = Card { name: long(), plugged: true, down: true, trouble: long(), addresses: Vec::new() };
        let mut cards = vec![card; MANY];
        cards[0].addresses = longs();
        let size =
            MachineSize { processor_trouble: long(), memory_trouble: long(), ..MachineSize::default() };
        let status = LauncherStatus {
            phase: Phase::Running.into(),
            reason: format!("A b\n{}", "C".repeat(LONG)),
            message: long(),
            descriptors: longs(),
            qemu_version: long(),
            machine_type: long(),
            accelerator: long(),
            pci_layout: long(),
            guest: Some(GuestFacts {
                os: Some(os),
                interfaces: vec![interface; 100],
                frozen: true,
                unsupported: long(),
            }),
            credentials: Some(Credentials { synchronized: true, message: long() }),
            size: Some(size),
            hot_disks: vec![disk; MANY],
            local_disks: longs(),
            claim_disks: vec![ClaimDisk { volume: long(), bytes: 1 }; MANY],
            not_grown: vec![DiskTrouble { volume: long(), text: long() }; MANY],
            made_disks: vec![MadeDisk { volume: long(), bytes: u64::MAX, read_only: true }; MANY],
            smaller: vec![DiskTrouble { volume: long(), text: long() }; MANY],
            memory_channels: u32::MAX,
            cards,
            migration: Some(MigrationStatus {
                uid: long(),
                reason: long(),
                slow: Some(MigrationSlow { text: long(), ..MigrationSlow::default() }),
                ..MigrationStatus::default()
            }),
            ..LauncherStatus::default()
        };
        let status = sanitized(status);
        assert_eq!(
            (status.phase(), status.reason.len(), &status.reason[..3]),
            (Phase::Running, REASON, "AbC")
        );
        assert_eq!(
            (status.descriptors.len(), status.hot_disks.len(), status.pci_layout.as_str()),
            (DESCRIPTORS, DISKS, "")
        );
        assert_eq!(status.cards[0].addresses.len(), INTERFACES);
        assert_eq!((status.made_disks.len(), status.made_disks[0].bytes), (DISKS, LARGEST_MADE));
        assert_eq!((status.smaller.len(), status.smaller[0].text.len()), (DISKS, SENTENCE));
        assert_eq!(status.memory_channels, u32::from(MOST_MEMORY_CHANNELS));
        let guest = status.guest.as_ref().unwrap();
        assert_eq!((guest.interfaces.len(), guest.interfaces[0].addresses.len()), (INTERFACES, INTERFACES));
        let text = format!("{status:?}");
        assert!(text.len() < 2 << 20, "{}", text.len());
        // An escape in the Debug output would be a control character.
        assert!(!text.contains("\\u{") && !text.contains("\\n"), "{}", &text[..2000]);
        assert!(
            status.message.len() <= SENTENCE && status.message.starts_with("?[2Jä"),
            "{}",
            status.message
        );
    }

    #[test]
    fn valid_answers_are_not_changed() {
        let status = LauncherStatus {
            reason: "QemuCrashed".to_owned(),
            message: "QEMU says: größer".to_owned(),
            pci_layout: r#"{"version":1,"devices":{"disk-root":3}}"#.to_owned(),
            descriptors: vec!["net/default/tap".to_owned()],
            ..LauncherStatus::default()
        };
        assert_eq!(sanitized(status.clone()), status);
        for answer in [r#"{"return":{"a":"\u001b"}}"#, "{\r\n}"] {
            let answer = QmpResponse { answer: answer.as_bytes().to_vec() };
            assert_eq!(sanitized(answer.clone()), answer);
        }
        let raw = QmpResponse { answer: "\u{1b}[2J\u{9b}".as_bytes().to_vec() };
        assert_eq!(sanitized(raw).answer, b"?[2J?");
    }

    #[test]
    fn json_is_cut_within_and_stays_json() {
        let report = serde_json::json!({"pid": 7, "commandLine": [long(), "a\nb\u{1b}"], "events": vec!["x"; LONG], long(): {}});
        let report = sanitized(DebugResponse { report: report.to_string().into_bytes() }).report;
        let read: Value = serde_json::from_slice(&report).unwrap();
        assert_eq!((read["pid"].as_u64(), read["commandLine"][1].as_str()), (Some(7), Some("a\nb?")));
        assert_eq!(read["events"].as_array().unwrap().len(), ENTRIES);
        assert!(read["commandLine"][0].as_str().unwrap().len() <= STRING);
        assert!(sanitized(GuestResponse { info: b"\x1b[2J".to_vec() }).info.is_empty());
    }

    #[test]
    fn lists_of_statistics_are_truncated_to_the_possible_number() {
        let block = BlockStats { disk: long(), ..BlockStats::default() };
        let machine = MachineStats {
            vcpus: vec![VcpuStats::default(); 5000],
            blocks: vec![block; MANY],
            ..MachineStats::default()
        };
        let file_system = FileSystemStats { mount_point: long(), ..FileSystemStats::default() };
        let agent = AgentStats { file_systems: vec![file_system; MANY], load: None };
        let told = sanitized(StatsResponse {
            machine: Some(machine),
            agent: Some(agent),
            ..StatsResponse::default()
        });
        let (machine, agent) = (told.machine.unwrap(), told.agent.unwrap());
        assert_eq!(
            (machine.vcpus.len(), machine.blocks.len(), agent.file_systems.len()),
            (VCPUS, DISKS, FILE_SYSTEMS)
        );
        assert!(machine.blocks[0].disk.len() <= WORD && !machine.blocks[0].disk.contains('\u{1b}'));
        assert!(agent.file_systems[0].mount_point.len() <= WORD);
    }

    #[test]
    fn a_refusal_has_only_its_code_and_some_lines() {
        let mut metadata = MetadataMap::new();
        metadata.insert("x", "y".parse().unwrap());
        let details = vec![0; LONG].into();
        let status =
            Status::with_details_and_metadata(Code::Internal, format!("a\nb{}", long()), details, metadata);
        let status = sanitized(status);
        assert_eq!((status.code(), status.details().len(), status.metadata().len()), (Code::Internal, 0, 0));
        assert!(status.message().starts_with("a\nb?[2J") && status.message().len() <= REFUSAL);
        assert!(!super::super::line(&status).contains('\n'));
    }

    proptest! {
        #[test]
        fn any_text_ends_within_its_bound(text in "\\PC{0,400}|(?s).{0,400}", most in 0_usize..300) {
            let mut short = text.clone();
            line(&mut short, most);
            prop_assert!(short.len() <= most && !short.chars().any(acts));
            if text.len() <= most && !text.chars().any(acts) {
                prop_assert_eq!(short, text);
            }
        }
    }
}
