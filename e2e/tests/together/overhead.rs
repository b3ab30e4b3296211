//! A guest that uses all its resources at once stays within the limits of its pod.

use std::time::Duration;

use anyhow::ensure;
use barevirt_e2e::wait::{BOOT, RUNNING, SOON};
use barevirt_e2e::{Console, guest, in_namespace};
use serde_json::json;

/// An emulated guest on a busy machine.
const LOAD: Duration = Duration::from_secs(120);

#[test]
fn where_a_quota_counts_limits_a_guest_gets_them() {
    in_namespace("quota", |namespace| {
        namespace.apply(&json!({
            "apiVersion": "v1", "kind": "ResourceQuota", "metadata": { "name": "limits" },
            "spec": { "hard": { "limits.cpu": "4", "limits.memory": "4Gi" } },
        }))?;
        namespace.apply(&guest::without_system(guest::instance("vm")))?;
        namespace.wait_phase("vm", "Running", RUNNING)?;
        let launcher = namespace.launcher("vm")?;
        let compute = &launcher["spec"]["containers"][0]["resources"];
        ensure!(compute["limits"]["cpu"] == "1", "{compute}");
        ensure!(compute["limits"]["memory"].is_string(), "{compute}");
        let events =
            namespace.kubectl(&["get", "events", "--field-selector", "type=Warning", "-o", "name"])?;
        ensure!(events.trim().is_empty(), "{events}");
        Ok(())
    });
}

#[test]
fn a_guest_under_full_load_is_not_killed_by_its_cgroup() {
    in_namespace("overhead", |namespace| {
        let mut manifest = guest::instance("vm");
        let spec = &mut manifest["spec"];
        spec["domain"]["cpu"] = json!({ "sockets": 1, "cores": 2, "threads": 1 });
        // The kernel kills at the limit; the pod's limit is this plus the overhead.
        spec["domain"]["memory"]["guest"] = json!("256Mi");
        spec["domain"]["resources"] =
            json!({ "requests": { "memory": "256Mi" }, "limits": { "memory": "256Mi" } });
        guest::push(
            &mut spec["domain"]["devices"]["disks"],
            json!({ "name": "scratch", "disk": { "bus": "virtio" } }),
        );
        guest::push(&mut spec["volumes"], json!({ "name": "scratch", "emptyDisk": { "capacity": "256Mi" } }));
        namespace.apply(&manifest)?;
        namespace.wait_phase("vm", "Running", RUNNING)?;
        let mut console = Console::open(namespace, "vm")?;
        console.login(BOOT)?;
        let boot = console.ok("cat /proc/sys/kernel/random/boot_id", SOON)?;
        // Both CPUs run many programs while the disk is written, and then every free page is touched.
        console.ok("mkdir -p /m && mount -t tmpfs -o size=200M none /m", SOON)?;
        console.ok(
            "for i in 1 2; do (until [ -e /m/all.done ]; do for f in /bin/busybox /lib/modules/*/*; do \
               sha256sum $f; md5sum $f; gzip -c <$f | wc -c; [ ! -e /m/all.done ] || break; \
             done; done >/dev/null 2>&1) & done; \
             dd if=/dev/urandom of=/dev/vdb bs=1M count=64 2>/dev/null; \
             dd if=/dev/zero of=/m/all bs=1M count=150 2>/dev/null; : >/m/all.done; \
             wait; sync; cat /m/all >/dev/null && echo loaded",
            LOAD,
        )?;
        let launcher = namespace.launcher("vm")?;
        let statuses = launcher["status"]["containerStatuses"].as_array().cloned().unwrap_or_default();
        for status in &statuses {
            ensure!(status["restartCount"] == 0 && status["lastState"]["terminated"].is_null(), "{status}");
        }
        ensure!(console.ok("cat /proc/sys/kernel/random/boot_id", SOON)? == boot, "the guest was restarted");
        let vmi = namespace.wait_phase("vm", "Running", SOON)?;
        ensure!(vmi["status"]["phase"] == "Running", "{}", vmi["status"]);
        Ok(())
    });
}
