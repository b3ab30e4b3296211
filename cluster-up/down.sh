#!/usr/bin/env bash
# Takes the cluster down, and everything of it away: processes, mounts, links,
# routes, cgroups, state. Works on a cluster that is half up or dead, too.
#
#   cluster-up/down.sh
#
# What stays: built binaries, in the cache.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
# shellcheck source=cluster-up/common.sh
source "$here/common.sh"

# The names of all trees, from what runs rather than from what was written down.
trees() {
    cgroup_hierarchies | while read -r hierarchy; do
        find "$hierarchy" -maxdepth 1 -type d \( -name 'barevirt-node0[1-9]' -o -name barevirt-control-plane \)
    done | sed 's|.*/barevirt-||' | sort -u
}

no_links() { ! ip -o link show | grep -qE " (bv-node0[1-9]|$bridge)[@:]"; }

remove_links() {
    local link
    for link in $(ip -o link show | sed -n 's/^[0-9]*: \(bv-node0[1-9]\)[@:].*/\1/p'); do
        # May go by itself in this moment, with the namespace of its other end.
        ip link delete "$link" 2>/dev/null || true
    done
    # The routes to the nodes go with the bridge.
    ip link delete "$bridge" 2>/dev/null || true
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

# Loop devices over files below the state, and those that kubelets put over
# them as locks: the kernel keeps both when the nodes are gone.
detach_loops() {
    local device backing round
    for round in locks volumes; do
        while read -r device backing; do
            case $round:$backing in
                locks:/dev/loop* | locks:/loop* | locks:/var/lib/kubelet/plugins/* | volumes:"$run"/* | volumes:*/pvc-*.img*)
                    losetup --detach "$device" || true ;;
            esac
        done < <(losetup --list --noheadings --raw --output NAME,BACK-FILE)
    done
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
    # Nodes first: with the control plane gone they would only complain.
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
