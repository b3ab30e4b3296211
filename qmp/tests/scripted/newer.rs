//! The commands with this crate's own types: what is sent, and what is decoded from answers that have more,
//! fewer or newer fields than these types.

use barevirt_qmp::newer::{
    GuestFileSystem, GuestFileSystemDisk, GuestGetFsinfo, GuestGetLoad, GuestLoadAverage, NamedBlockImage,
    NamedBlockNode, QueryCpuModelExpansion, QueryNamedBlockNodes,
};
use barevirt_qmp::qapi::qga::QgaCommand;
use barevirt_qmp::qapi::qmp::{CpuModelExpansionType, CpuModelInfo};
use barevirt_qmp::{Agent, Error, Options};
use serde_json::{Value, json};

use super::peer::{Peer, agent_answer, session, soon};

/// The decoded answer of an agent, and the command as the agent received it.
async fn asked<C: QgaCommand>(command: C, answer: Value) -> (Result<C::Ok, Error>, Value) {
    let (ours, mut peer) = Peer::pair();
    let agent = Agent::new(ours, Options::default());
    let (read, line) = tokio::join!(agent.execute(command, soon()), async {
        agent_answer(&mut peer, true, |heard| heard["arguments"]["id"].clone()).await;
        agent_answer(&mut peer, true, |_| answer.clone()).await
    });
    let mut heard: Value = serde_json::from_slice(&line).unwrap();
    heard.as_object_mut().unwrap().remove("id");
    (read, heard)
}

#[tokio::test]
async fn the_load_of_a_guest() {
    let answer = json!({"load1m": 0.5, "load5m": 1.25, "load15m": 2.0, "load60m": 9.0});
    let (load, heard) = asked(GuestGetLoad {}, answer).await;
    assert_eq!(load.unwrap(), GuestLoadAverage { load1m: 0.5, load5m: 1.25, load15m: 2.0 });
    assert_eq!(heard["execute"], "guest-get-load");

    let (half, _) = asked(GuestGetLoad {}, json!({"load1m": 0.5})).await;
    assert!(half.is_err());
}

#[tokio::test]
async fn a_file_system_on_a_bus_of_tomorrow_hides_no_other() {
    let disk = |bus: &str| json!({"pci-controller": {"domain": 0, "bus": 0, "slot": 0, "function": 0}, "bus-type": bus, "bus": 0, "target": 0, "unit": 0});
    let answer = json!([
        {"name": "vda1", "mountpoint": "/", "type": "ext4", "used-bytes": 7, "total-bytes": 9, "disk": [disk("virtio")]},
        {"name": "x", "mountpoint": "/x", "type": "newfs", "disk": [disk("a-bus-of-tomorrow")], "more": {}},
    ]);
    let (systems, heard) = asked(GuestGetFsinfo {}, answer).await;
    let on = |bus: &str| vec![GuestFileSystemDisk { bus_type: bus.into(), serial: None }];
    let system = |name: &str, mountpoint: &str, kind: &str, used_bytes, total_bytes, disk| GuestFileSystem {
        name: name.into(),
        mountpoint: mountpoint.into(),
        kind: kind.into(),
        used_bytes,
        total_bytes,
        disk,
    };
    assert_eq!(
        systems.unwrap(),
        [
            system("vda1", "/", "ext4", Some(7), Some(9), on("virtio")),
            system("x", "/x", "newfs", None, None, on("a-bus-of-tomorrow")),
        ]
    );
    assert_eq!(heard["execute"], "guest-get-fsinfo");
}

#[tokio::test]
async fn an_expanded_processor_as_x86_has_it() {
    let (qmp, _events, mut peer) = session().await;
    let command = QueryCpuModelExpansion {
        kind: CpuModelExpansionType::static_,
        model: CpuModelInfo { name: "max".into(), props: None },
    };
    let (answer, heard) = tokio::join!(qmp.execute(command, soon()), async {
        let heard = peer.hear().await;
        peer.answer(&heard, json!({"model": {"name": "base", "props": {"aes": true}}})).await;
        heard
    });
    let model = answer.unwrap().model;
    assert_eq!((model.name.as_str(), Value::from(model.props)), ("base", json!({"aes": true})));
    assert_eq!(heard["execute"], "query-cpu-model-expansion");
    assert_eq!(heard["arguments"], json!({"type": "static", "model": {"name": "max"}}));
}

#[tokio::test]
async fn block_nodes_are_listed_for_unknown_drivers_too() {
    let (qmp, _events, mut peer) = session().await;
    let (nodes, heard) = tokio::join!(qmp.execute(QueryNamedBlockNodes { flat: true }, soon()), async {
        let heard = peer.hear().await;
        let image = json!({"virtual-size": 512, "format-specific": {"type": "tomorrow"}});
        let mut file = image.clone();
        file["actual-size"] = json!(7);
        let nodes = json!([{"node-name": "disk-root", "drv": "a-driver-of-tomorrow", "image": image},
            {"drv": "file", "image": file}]);
        peer.answer(&heard, nodes).await;
        heard
    });
    let image = |actual_size| NamedBlockImage { virtual_size: 512, actual_size };
    let named = NamedBlockNode { node_name: Some("disk-root".to_owned()), image: image(None) };
    assert_eq!(nodes.unwrap(), [named, NamedBlockNode { node_name: None, image: image(Some(7)) }]);
    assert_eq!(heard["execute"], "query-named-block-nodes");
    assert_eq!(heard["arguments"], json!({"flat": true}));
}
