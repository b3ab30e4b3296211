//! Instance types and preferences.

use super::*;

#[test]
fn instance_types() {
    let right = json!({"cpu": {"guest": 1}, "memory": {"guest": "1Gi", "overcommitPercent": 100}});
    check(
        instancetype::validate,
        &right,
        &[],
        vec![
            (
                "/memory/overcommitPercent",
                json!(101),
                "spec.memory.overcommitPercent",
                "spec.memory.overcommitPercent '101': must be in range between 0 and 100.",
            ),
            ("/memory/overcommitPercent", json!(-1), "spec.memory.overcommitPercent", "between 0 and 100."),
            (
                "/memory/hugepages",
                json!({"pageSize": "2Mi"}),
                "spec.memory.overcommitPercent",
                "spec.memory.overcommitPercent and spec.memory.hugepages should not be requested together.",
            ),
        ],
    );
    assert_eq!(instancetype::warnings(&read(&right)), Vec::<String>::new());
    let secured = with(&right, "/launchSecurity", &json!({"sev": {}}));
    assert!(instancetype::warnings(&read(&secured))[0].contains("Use preference instead."));
}

#[test]
fn preferences() {
    let spread =
        |options: Value| json!({"cpu": {"preferredCPUTopology": "spread", "spreadOptions": options}});
    check(
        preference::validate,
        &spread(json!({"across": "SocketsCores", "ratio": 4})),
        &[],
        vec![
            (
                "/cpu/preferredCPUTopology",
                json!("round"),
                "spec.cpu.preferredCPUTopology",
                "unknown preferredCPUTopology round",
            ),
            (
                "/cpu/spreadOptions/across",
                json!("Town"),
                "spec.cpu.spreadOptions.across",
                "across Town is not supported",
            ),
            (
                "/cpu/spreadOptions/across",
                json!("CoresThreads"),
                "spec.cpu.spreadOptions.ratio",
                "only a ratio of 2 (1 core 2 threads) is allowed",
            ),
        ],
    );
    for right in [
        json!({}),
        spread(json!({"across": "CoresThreads"})),
        spread(json!({"across": "CoresThreads", "ratio": 2})),
        json!({"cpu": {"preferredCPUTopology": "cores", "spreadOptions": {"across": "Town"}}}),
    ] {
        assert_eq!(preference::validate(&read(&right)), [], "{right}");
        assert_eq!(preference::warnings(&read(&right)), Vec::<String>::new());
    }
    let older = json!({
        "preferSpreadSocketToCoreRatio": 3,
        "cpu": {"preferredCPUTopology": "preferSpread", "spreadOptions": {"across": "CoresThreads"}},
    });
    assert_eq!(preference::validate(&read(&older)).len(), 1);
    assert!(preference::warnings(&read(&older))[0].contains("preferSpread is deprecated"));
}
