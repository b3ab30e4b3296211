#!/usr/bin/env bash
# Takes the cluster down and removes everything of it: processes, mounts, links, routes, cgroups,
# state. Also works on a cluster that is only partly up.
#
#   cluster-up/down.sh
#
# Built binaries stay in the cache.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
# shellcheck source=cluster-up/common.sh
source "$here/common.sh"

# The names of all trees, from running processes rather than from records.
trees() {
    cgroup_hierarchies | while read -r hierarchy; do
        find "$hierarchy" -maxdepth 1 -type d \( -name 'barevirt-node0[1-9]' -o -name barevirt-control-plane \)
    done | sed 's|.*/barevirt-||' | sort -u
}

no_links() { ! ip -o link show | grep -qE " (bv-node0[1-9](-lan)?|$bridge|$lan_bridge)[@:]"; }

remove_links() {
    local link
    for link in $(ip -o link show | sed -nE 's/^[0-9]*: (bv-node0[1-9](-lan)?)[@:].*/\1/p'); do
        # It may be deleted at this moment with the namespace of its other end.
        ip link delete "$link" 2>/dev/null || true
    done
    # The routes to the nodes are deleted with the bridge.
    ip link delete "$bridge" 2>/dev/null || true
    ip link delete "$lan_bridge" 2>/dev/null || true
    wait_for 10 "end of the cluster's links" no_links
}

restore_machine() {
    local place
    if [[ -f $run/inotify-before ]]; then
        cat "$run/inotify-before" >/proc/sys/fs/inotify/max_user_instances
    fi
    if [[ -f $run/made-directories ]]; then
        while read -r place; do
            rmdir --ignore-fail-on-non-empty "$place" 2>/dev/null || true
        done <"$run/made-directories"
    fi
}

# The loop devices over a device: the kubelet puts one over each Block volume
# as a lock, whose file the kernel can no longer name when the node is gone.
loops_over() {
    python3 - "$1" <<'PYTHON'
import fcntl, glob, os, struct, sys
LOOP_GET_STATUS64 = 0x4C05
wanted = os.stat(sys.argv[1]).st_rdev
for link in glob.glob("/sys/block/loop*/loop"):
    device = "/dev/" + link.split("/")[3]
    try:
        with open(device, "rb") as file:
            status = fcntl.ioctl(file, LOOP_GET_STATUS64, bytes(232))
    except OSError:
        continue  # Detached a moment ago.
    if struct.unpack_from("Q", status, 16)[0] == wanted:
        print(device)
PYTHON
}

# The loop devices of Block volumes outlive nodes. Their files are below the
# state, or named from there when the pod that made them is gone.
detach_loops() {
    local device file lock
    while read -r device file; do
        [[ $file == "$run"/volumes/block/* || $file == /block/pvc-*.img ]] || continue
        for lock in $(loops_over "$device"); do
            losetup --detach "$lock" || true
        done
        losetup --detach "$device" || true
    done < <(losetup --list --noheadings --raw --output NAME,BACK-FILE)
}

# A mount below the state would make rm reach into something else.
check_mounts() {
    if grep -qs " $run/" /proc/self/mounts; then
        die "something is mounted below $run, unmount it first: $(awk -v run="$run/" 'index($2, run) == 1 { print $2 }' /proc/self/mounts)"
    fi
}

main() {
    need_root
    [[ -n ${BAREVIRT_LOCKED:-} ]] || take_lock
    local tree
    # Nodes first: without the control plane they would only log errors.
    for tree in $(trees | sort -r); do
        kill_tree "$tree"
    done
    detach_loops
    remove_links
    restore_machine
    check_mounts
    rm -rf "$run"
    rmdir --ignore-fail-on-non-empty "$(dirname "$run")" 2>/dev/null || true
    say "the cluster is down"
}

main
