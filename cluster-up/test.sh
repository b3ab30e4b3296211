#!/usr/bin/env bash
# Tests the cluster itself: takes it down, brings it up, tests what the project relies on, takes it
# down again, and compares the machine before and after. A minute and a half; needs a machine on
# which nothing else changes links, mounts or control groups meanwhile.
#
#   cluster-up/test.sh
set -Eeuo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
# shellcheck source=cluster-up/common.sh
source "$here/common.sh"

scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
trap 'say "failed at line $LINENO: $BASH_COMMAND"' ERR

# What a cluster could leave behind, one item per line.
snapshot() {
    local hierarchy
    awk '{ print "mount", $2, $3 }' /proc/mounts
    ip -o link show | awk -F': ' '{ print "link", $2 }'
    { ip route show table all; ip -6 route show table all; } | sed 's/ expires [0-9]*sec//; s/^/route /'
    ip neighbour show nud permanent | sed 's/^/neighbour /'
    nft list ruleset 2>/dev/null | sed 's/^/nft /'
    losetup --list --noheadings --output BACK-FILE | sed 's/^/loop /'
    while read -r hierarchy; do
        find "$hierarchy" -type d -name '*barevirt*' -o -type d -name 'kubepods*'
    done < <(cgroup_hierarchies) | sed 's/^/cgroup /'
    # shellcheck disable=SC2009 # names without process ids are wanted
    ps -e -o comm= | grep -E '^(kube|containerd|etcd|coredns|volumes|pause|node\.sh|control-plane)' | sed 's/^/process /' || true
    lsns -n -o TYPE,COMMAND | grep -E 'kube|containerd|etcd|coredns|volumes|node\.sh|control-plane' | sed 's/^/namespace /' || true
    find /sys/fs/cgroup /run/netns /var/run/netns /var/lib/kubelet /var/lib/containerd /var/lib/cni \
        /var/lib/kubevirt /etc/cni /var/log/pods /var/log/containers -maxdepth 1 2>/dev/null | sed 's/^/path /' || true
    [[ ! -e $run ]] || echo "path $run"
    sysctl fs.inotify.max_user_instances kernel.panic kernel.panic_on_oops vm.overcommit_memory vm.panic_on_oom \
        net.ipv4.ip_forward net.ipv6.conf.all.forwarding kernel.keys.root_maxkeys | sed 's/^/sysctl /'
}

passed() { say "ok: $*"; }

pods() { kubectl -n cluster-test get pods -l "app=$1" -o name; }
first_pod() { kubectl -n cluster-test get pods -l app=web -o 'jsonpath=pod/{.items[0].metadata.name}'; }
in_pod() { kubectl -n cluster-test exec "$1" -- "${@:2}"; }
address() { kubectl -n cluster-test get "$1" -o "jsonpath={.status.podIPs[$2].ip}"; }

# Whether a pod gets a matching line from a URL.
gets() { in_pod "$1" timeout 5 wget -qO- "$2" | grep -qx -- "$3"; }

# A pod of a node that was down is listed with its old address for a moment.
gets_from_pod() { gets "$1" "http://$(address "$2" 0):8080/" "${2#pod/}"; }
gets_from_pod_ipv6() { gets "$1" "http://[$(address "$2" 1)]:8080/" "${2#pod/}"; }

test_network() {
    local from to service
    service=$(kubectl -n cluster-test get service web -o 'jsonpath={.spec.clusterIPs[1]}')
    for from in $(pods web); do
        for to in $(pods web); do
            wait_for 30 "IPv4 from $from to $to" gets_from_pod "$from" "$to"
            wait_for 30 "IPv6 from $from to $to" gets_from_pod_ipv6 "$from" "$to"
        done
        wait_for 30 "Service by name from $from" gets "$from" http://web/ 'web-.*'
        wait_for 30 "Service by its whole name from $from" gets "$from" http://web.cluster-test.svc.cluster.local/ 'web-.*'
        wait_for 30 "Service by IPv6 from $from" gets "$from" "http://[$service]/" 'web-.*'
    done
    curl -sf -m 5 "http://$(address "$(first_pod)" 0):8080/" >/dev/null
    passed "restricted pods, across nodes, IPv4 and IPv6, Services by name and address, from the host"
}

test_logs() {
    local pod
    pod=$(first_pod)
    kubectl -n cluster-test logs "$pod" | grep -qx started
    passed "logs and exec"
}

test_privileged() {
    local pod node
    for pod in $(kubectl -n cluster-test-privileged get pods -o name); do
        node=$(kubectl -n cluster-test-privileged get "$pod" -o 'jsonpath={.spec.nodeName}')
        # shellcheck disable=SC2016 # the pod's shell expands it
        kubectl -n cluster-test-privileged exec "$pod" -- sh -euc '
            test -c /dev/net/tun
            tr "\0" " " </proc/1/cmdline | grep -q node.sh
            mkdir /var/lib/kubelet/cluster-test
            mount -t tmpfs cluster-test /var/lib/kubelet/cluster-test'
        "$here/cli.sh" ssh "$node" grep -q '^cluster-test /var/lib/kubelet/cluster-test' /proc/mounts
        kubectl -n cluster-test-privileged exec "$pod" -- umount /var/lib/kubelet/cluster-test
    done
    passed "privileged pods see devices and the node's processes, and their mounts propagate"
}

test_pod_security() {
    if kubectl -n cluster-test run refused --image="$busybox_image" --restart=Never 2>"$scratch/refused"; then
        die "Pod Security admitted a pod that is not restricted"
    fi
    grep -q 'violates PodSecurity' "$scratch/refused"
    passed "Pod Security refuses what is not restricted"
}

node_is_lost() {
    [[ $(kubectl get node "$1" -o 'jsonpath={.status.conditions[?(@.type=="Ready")].status}') == Unknown ]]
}

test_node_loss() {
    "$here/node-kill.sh" node02
    cgroup_is_empty barevirt-node02
    wait_for 60 "notice of node02's loss" node_is_lost node02
    ! node_is_lost node01 || die "node01 was lost with node02"
    "$here/node-start.sh" node02
    kubectl -n cluster-test-privileged rollout status daemonset/privileged --timeout 60s >/dev/null
    kubectl -n cluster-test rollout status deployment/web --timeout 60s >/dev/null
    passed "a node killed, noticed, and started again with its pods"
}

api_server_pid() { pgrep -x kube-apiserver; }

test_component_kill() {
    local before
    before=$(api_server_pid)
    kill -KILL "$before"
    sleep 1
    wait_for 30 "API server after a kill" kubectl get --raw /readyz
    [[ $(api_server_pid) != "$before" ]]
    passed "a killed API server comes back"
}

test_no_operation() {
    local started=$SECONDS before
    before=$(api_server_pid)
    NODES=2 "$here/up.sh"
    ((SECONDS - started <= 5)) && [[ $(api_server_pid) == "$before" ]]
    passed "up on a cluster that is up changes nothing"
}

main() {
    need_root
    local started
    "$here/down.sh"
    snapshot | sort >"$scratch/before"
    started=$SECONDS
    NODES=2 "$here/up.sh"
    ((SECONDS - started < 60)) || die "up took $((SECONDS - started)) s, more than 60"
    kubectl apply -f "$here/test.yaml" >/dev/null
    kubectl -n cluster-test rollout status deployment/web --timeout 60s >/dev/null
    kubectl -n cluster-test-privileged rollout status daemonset/privileged --timeout 60s >/dev/null
    test_logs
    test_privileged
    test_network
    test_pod_security
    test_node_loss
    test_component_kill
    test_network
    test_no_operation
    "$here/down.sh"
    # The kernel frees some resources a moment later.
    sleep 1
    snapshot | sort >"$scratch/after"
    diff "$scratch/before" "$scratch/after" || die "the machine is not as it was"
    passed "down leaves nothing behind ($(wc -l <"$scratch/before") things compared)"
}

main
