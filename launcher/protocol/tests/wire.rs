//! The bytes of version 1, as a peer of the previous release writes them. They must never change: launchers
//! outlive the handler that started them, so a moved field would break running machines.
#![allow(clippy::unwrap_used, clippy::expect_used)]

use barevirt_protocol::v1::{
    Card, ClaimDisk, Control, ControlRequest, Credentials, DiskTrouble, Facts, GuestFacts, GuestInterface,
    GuestOs, GuestResponse, HelloRequest, HelloResponse, Interface, LauncherStatus, MadeDisk, Pause, Phase,
    QmpRequest, QmpResponse, RealTimeRequest, Route, ScreenshotRequest, ScreenshotResponse, ShutdownRequest,
    SyncRequest, SyncResponse,
};
use barevirt_protocol::v1::{
    MachineStats, MigrationBottleneck, MigrationReceive, MigrationSend, MigrationSlow, MigrationStats,
    MigrationStatus, ProcessStats, StatsResponse, VcpuStats,
};
use prost::Message;

/// Asserts that the bytes decode to the value, and that the value encodes to the bytes.
#[track_caller]
fn golden<M: Message + Default + PartialEq + std::fmt::Debug>(message: &M, hex: &str) {
    let hex: String = hex.split_whitespace().collect();
    let encoded: String = message.encode_to_vec().iter().map(|byte| format!("{byte:02x}")).collect();
    assert_eq!(encoded, hex, "encoding of {message:?}");
    assert_eq!(&decode::<M>(&hex), message, "decoding");
}

#[track_caller]
fn decode<M: Message + Default>(hex: &str) -> M {
    let bytes: Vec<u8> =
        (0..hex.len()).step_by(2).map(|at| u8::from_str_radix(&hex[at..at + 2], 16).unwrap()).collect();
    M::decode(bytes.as_slice()).unwrap()
}

#[test]
fn hello() {
    golden(&HelloRequest { version: 1 }, "0801");
    let response = HelloResponse { lowest_version: 1, highest_version: 2, pod_uid: "u-1".into() };
    golden(&response, "0801 1002 1a03 752d31");
}

#[test]
fn sync() {
    let interface = Interface {
        name: "default".into(),
        network: "pod".into(),
        mac: "02:aa".into(),
        mtu: 1500,
        ipv4: "10.0.2.2".into(),
        ipv4_prefix: 24,
        ipv4_gateway: "10.0.2.1".into(),
        ipv6: "f::2".into(),
        ipv6_prefix: 120,
        ipv6_gateway: "f::1".into(),
        ipv6_link_local: "fe80::1".into(),
        dns_servers: vec!["10.96.0.10".into()],
        dns_search: vec!["a.svc".into(), "b".into()],
        bridge_index: 5,
        ..Interface::default()
    };
    let message = SyncRequest {
        revision: 3,
        spec_hash: "ab".into(),
        vmi: b"{}".to_vec(),
        facts: Some(Facts { interfaces: vec![interface], allow_emulation: true, tells_images: true }),
        incoming_migration: String::new(),
    };
    golden(
        &message,
        "0803 1202 6162 1a02 7b7d 2263
         0a5d
           0a07 64656661756c74 1203 706f64 1a05 30323a6161 20dc0b
           2a08 31302e302e322e32 3018 3a08 31302e302e322e31
           4204 663a3a32 4878 5204 663a3a31 5a07 666538303a3a31
           620a 31302e39362e302e3130 6a05 612e737663 6a01 62 7005
         1001 1801",
    );
    golden(&SyncResponse { accepted_revision: 3 }, "0803");
}

#[test]
fn status() {
    let message = LauncherStatus {
        observed_revision: 3,
        phase: Phase::Running.into(),
        reason: "R".into(),
        message: "m".into(),
        ready: true,
        descriptors: vec!["kvm".into()],
        qemu_pid: 300,
        qemu_version: "10.0.2".into(),
        machine_type: "pc".into(),
        accelerator: "tcg".into(),
        agent_connected: true,
        running_since_unix_ms: 1000,
        pci_layout: "{}".into(),
        ..LauncherStatus::default()
    };
    golden(
        &message,
        "0803 1003 1a01 52 2201 6d 2801 3203 6b766d 38ac02 4206 31302e302e32 4a02 7063 5203 746367 5801 60e807 6a02 7b7d",
    );
    for (phase, number) in [
        (Phase::Unspecified, 0),
        (Phase::Waiting, 1),
        (Phase::Starting, 2),
        (Phase::Running, 3),
        (Phase::Paused, 4),
        (Phase::Stopping, 5),
        (Phase::Succeeded, 6),
        (Phase::Failed, 7),
    ] {
        assert_eq!(i32::from(phase), number);
    }
}

#[test]
fn shutdown_and_qmp() {
    golden(&ShutdownRequest { grace_period_seconds: 30, reason: "del".into() }, "081e 1203 64656c");
    golden(&QmpRequest { command: b"{}".to_vec(), deadline_ms: 500 }, "0a02 7b7d 10f403");
    golden(&QmpResponse { answer: b"{}".to_vec() }, "0a02 7b7d");
}

#[test]
fn fields_and_phases_of_a_later_version_do_no_harm() {
    // version = 1, and field 15 as a string.
    assert_eq!(decode::<HelloRequest>("08017a0178"), HelloRequest { version: 1 });
    // phase = 99 is kept as a number and is not a known phase.
    let status = decode::<LauncherStatus>("1063");
    assert_eq!(status.phase, 99);
    assert!(Phase::try_from(status.phase).is_err());
}

#[test]
fn controls() {
    let pause = ControlRequest { control: Control::Pause.into(), unfreeze_after_ms: 0 };
    golden(&pause, "0801");
    let freeze = ControlRequest { control: Control::Freeze.into(), unfreeze_after_ms: 300_000 };
    golden(&freeze, "0805 10e0a712");
    for (control, number) in
        [(Control::Unpause, 2), (Control::Reset, 3), (Control::SoftReboot, 4), (Control::Unfreeze, 6)]
    {
        assert_eq!(i32::from(control), number);
    }
    // A control of a later version is none of these.
    assert_eq!(decode::<ControlRequest>("087f").control(), Control::Unspecified);
}

#[test]
fn credentials_and_what_the_agent_lacks() {
    let credentials = Credentials { synchronized: true, message: "m".into() };
    golden(
        &LauncherStatus { credentials: Some(credentials), ..LauncherStatus::default() },
        "8201 05 0801 1201 6d",
    );
    golden(&GuestFacts { unsupported: "u".into(), ..GuestFacts::default() }, "2201 75");
}

#[test]
fn guest_messages_have_stable_bytes() {
    golden(&GuestResponse { info: b"{}".to_vec() }, "0a02 7b7d");
    golden(&ScreenshotRequest { move_cursor: true }, "0801");
    golden(&ScreenshotResponse { png: vec![1, 2] }, "0a02 0102");
    let os = GuestOs { name: "D".into(), machine: "m".into(), ..GuestOs::default() };
    let interface = GuestInterface { name: "e".into(), mac: "02".into(), addresses: vec!["a".into()] };
    let guest =
        GuestFacts { os: Some(os), interfaces: vec![interface], frozen: true, ..GuestFacts::default() };
    let status =
        LauncherStatus { pause: Pause::IoError.into(), guest: Some(guest), ..LauncherStatus::default() };
    golden(&status, "7002 7a16 0a06 0a0144 42016d 120a 0a0165 12023032 1a0161 1801");
}

#[test]
fn routes_and_cards() {
    let route = Route { destination: "10.1.0.0".into(), prefix: 16, gateway: "10.0.0.1".into() };
    let interface = Interface { ipv4_server: "s".into(), ipv4_routes: vec![route], ..Interface::default() };
    golden(&interface, "7a0173 820116 0a08 31302e312e302e30 1010 1a08 31302e302e302e31");
    let route = Route { destination: "fd00::".into(), prefix: 64, gateway: String::new() };
    golden(&Interface { ipv6_routes: vec![route], ..Interface::default() }, "9a010a 0a06 666430303a3a 1040");
    golden(&Interface { refreshes_link: true, ..Interface::default() }, "880101");
    golden(&Interface { queues: 4, ..Interface::default() }, "a00104");
    let card = Card {
        name: "n".into(),
        plugged: true,
        down: true,
        trouble: "t".into(),
        addresses: vec!["a".into(), "b".into()],
    };
    golden(
        &LauncherStatus { cards: vec![card], ..LauncherStatus::default() },
        "a20210 0a016e 1001 1801 220174 2a0161 2a0162",
    );
    let disk = ClaimDisk { volume: "d".into(), bytes: 300 };
    golden(&LauncherStatus { claim_disks: vec![disk], ..LauncherStatus::default() }, "aa0206 0a0164 10ac02");
    let made = MadeDisk { volume: "d".into(), bytes: 300, read_only: true };
    golden(
        &LauncherStatus { made_disks: vec![made], ..LauncherStatus::default() },
        "ba0208 0a0164 10ac02 1801",
    );
    let trouble = DiskTrouble { volume: "d".into(), text: "t".into() };
    let not_grown = vec![trouble.clone()];
    golden(&LauncherStatus { not_grown, ..LauncherStatus::default() }, "b20206 0a0164 120174");
    golden(&LauncherStatus { smaller: vec![trouble], ..LauncherStatus::default() }, "c20206 0a0164 120174");
    golden(&LauncherStatus { memory_channels: 4, ..LauncherStatus::default() }, "c80204");
    golden(&LauncherStatus { compresses_memory: true, ..LauncherStatus::default() }, "d00201");
}

#[test]
fn compressed_migrations() {
    golden(&MigrationReceive { key: vec![7], compression: true }, "0a0107 1001");
    golden(&MigrationSend { compression: true, ..MigrationSend::default() }, "5801");
}

#[test]
fn realtime() {
    golden(&RealTimeRequest { qemu_pid: 12, refusal: "no".into() }, "080c 1202 6e6f");
    golden(&LauncherStatus { awaits_real_time: true, ..LauncherStatus::default() }, "8002 01");
}

#[test]
fn slow_migrations() {
    let slow = MigrationSlow { bottleneck: MigrationBottleneck::DirtyRate.into(), text: "t".into() };
    golden(&MigrationStatus { slow: Some(slow), ..MigrationStatus::default() }, "7205 0802 120174");
    for (bottleneck, number) in [(MigrationBottleneck::Bandwidth, 1), (MigrationBottleneck::Downtime, 3)] {
        assert_eq!(i32::from(bottleneck), number);
    }
    // One of a later version is none of these.
    assert_eq!(decode::<MigrationSlow>("087f").bottleneck(), MigrationBottleneck::Unspecified);
}

#[test]
fn numbers_for_monitoring() {
    let process = ProcessStats { user_ns: 1, system_ns: 2, resident_bytes: 3 };
    let vcpu = VcpuStats { index: 1, run_ns: 2, ..VcpuStats::default() };
    let machine = MachineStats { vcpus: vec![vcpu], blocks: vec![], balloon_bytes: Some(0), memory: None };
    let stats = StatsResponse {
        process: Some(process),
        machine: Some(machine),
        agent: None,
        dirty_bytes_per_second: Some(0),
        migration: Some(MigrationStats { total_bytes: 4, ..MigrationStats::default() }),
    };
    golden(&stats, "0a06 0801 1002 1803 1208 0a04 0801 1002 1800 2000 2a02 0804");
}
