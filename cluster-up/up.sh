#!/usr/bin/env bash
# Brings up a Kubernetes cluster on this machine. Does nothing when it is up,
# brings back a node that is not running, and cleans up after a run that died.
#
#   NODES=2 cluster-up/up.sh
#
# NODES              how many nodes, 1 to 9 (2)
# BAREVIRT_RUN       where the state goes (/var/lib/barevirt)
# BAREVIRT_CACHE     where built binaries are kept (~/.cache/barevirt)
# KUBE_APISERVER_ARGS, KUBE_CONTROLLER_MANAGER_ARGS, KUBE_SCHEDULER_ARGS,
# KUBELET_ARGS       further flags
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
# shellcheck source=cluster-up/common.sh
source "$here/common.sh"
# shellcheck source=cluster-up/nodes.sh
source "$here/nodes.sh"

nodes=${NODES:-2}
pki=$run/pki

check_machine() {
    local tool
    for tool in ip nft iptables conntrack runc nsenter unshare curl jq buildah; do
        PATH=$PATH:/usr/sbin:/sbin command -v "$tool" >/dev/null || die "$tool is missing: run cluster-up/deps.sh first"
    done
    [[ $nodes =~ ^[1-9]$ ]] || die "NODES must be a number from 1 to 9, not $nodes"
    [[ $run != /run/* && $run != /var/run/* ]] || die "BAREVIRT_RUN must not be below /run, of which each node has its own"
    [[ -c /dev/net/tun ]] || die "/dev/net/tun is missing (modprobe tun), and guests have no network without it"
    [[ -c /dev/kvm ]] || say "/dev/kvm is missing: guests will be emulated, which is what the tests do anyway"
    local space
    space=$(df --output=avail -m "$(dirname "$run")" | tail -n 1)
    ((space > 4096)) || say "only $space MiB free for $run: images of guests may not fit"
}

control_plane_ready() { kubectl --request-timeout=5s get --raw /readyz; }

# The number of inotify instances is limited for the whole machine, and two nodes need more than the
# usual 128.
raise_inotify_limit() {
    local file=/proc/sys/fs/inotify/max_user_instances
    if (($(<$file) < 1024)); then
        cp $file "$run/inotify-before"
        echo 1024 >$file
    fi
}

make_bridges() {
    local number node
    # A fixed address: otherwise a bridge takes the address of one of its ports, and changes it when
    # that node goes, so that the other nodes lose their connections.
    ip link add "$bridge" address 02:ba:5e:00:00:01 type bridge
    echo 0 >"/proc/sys/net/ipv6/conf/$bridge/accept_dad"
    ip address add "$control_plane_ipv4/24" dev "$bridge"
    ip address add "$control_plane_ipv6/64" dev "$bridge" nodad
    ip link set "$bridge" up
    ip link add "$lan_bridge" address 02:ba:5e:00:02:01 type bridge
    echo 1 >"/proc/sys/net/ipv6/conf/$lan_bridge/disable_ipv6"
    ip link set "$lan_bridge" up
    # The API server calls webhooks and aggregated APIs at their pods.
    for node in $(cluster_nodes); do
        ip route add "$(node_pods_ipv4 "$node")" via "$(node_ipv4 "$node")"
        ip -6 route add "$(node_pods_ipv6 "$node")" via "$(node_ipv6 "$node")"
    done
}

kubeadm_config() {
    cat <<CONFIG
apiVersion: kubeadm.k8s.io/v1beta4
kind: InitConfiguration
localAPIEndpoint: { advertiseAddress: $control_plane_ipv4, bindPort: 6443 }
nodeRegistration: { name: $1, criSocket: "unix:///run/containerd/containerd.sock" }
---
apiVersion: kubeadm.k8s.io/v1beta4
kind: ClusterConfiguration
clusterName: barevirt
kubernetesVersion: $(kubernetes_version)
certificatesDir: $pki
controlPlaneEndpoint: $control_plane_ipv4:6443
encryptionAlgorithm: ECDSA-P256
networking: { serviceSubnet: "$service_ranges", podSubnet: "$pod_ranges", dnsDomain: cluster.local }
CONFIG
}

make_credentials() {
    local node directory kubeadm
    kubeadm=$(binary_directory kubernetes)/kubeadm
    ln -s "$(binary_directory kubernetes)/kubectl" "$run/kubectl"
    kubeadm_config node01 >"$run/kubeadm.yaml"
    "$kubeadm" init phase certs all --config "$run/kubeadm.yaml"
    for phase in super-admin controller-manager scheduler; do
        "$kubeadm" init phase kubeconfig "$phase" --config "$run/kubeadm.yaml" --kubeconfig-dir "$run"
    done
    mv "$run/super-admin.conf" "$run/kubeconfig"
    "$kubeadm" kubeconfig user --config "$run/kubeadm.yaml" --client-name system:kube-proxy >"$run/kube-proxy.conf"
    for node in $(cluster_nodes); do
        directory=$run/nodes/$node
        mkdir -p "$directory"
        kubeadm_config "$node" >"$directory/kubeadm.yaml"
        "$kubeadm" init phase kubeconfig kubelet --config "$directory/kubeadm.yaml" --kubeconfig-dir "$directory"
    done
}

# kubectl's output is shown only if it fails.
apply() { kubectl apply --server-side --force-conflicts --field-manager=cluster-up -f - >/dev/null; }

install_basics() {
    # Lets the API server's own client read logs and run exec.
    kubectl create clusterrolebinding kubeadm:cluster-admins --clusterrole=cluster-admin \
        --group=kubeadm:cluster-admins --dry-run=client -o yaml | apply
    kubectl create clusterrolebinding kube-proxy --clusterrole=system:node-proxier \
        --user=system:kube-proxy --dry-run=client -o yaml | apply
    sed -e "s|@DNS_IPV4@|$dns_ipv4|" -e "s|@DNS_IPV6@|$dns_ipv6|" -e "s|@IMAGE@|$coredns_image|" \
        "$here/coredns.yaml" | apply
    sed -e "s|@IMAGE@|$volumes_image|" -e "s|@NODES@|$run/nodes|" "$here/local.yaml" | apply
    apply <"$here/networks.yaml"
}

node_exists() { kubectl get node "$1"; }

finish_node() {
    local node=$1
    wait_for 90 "registration of $node" node_exists "$node"
    kubectl patch node "$node" --type merge -p "{\"spec\":{\"podCIDR\":\"$(node_pods_ipv4 "$node")\",
        \"podCIDRs\":[\"$(node_pods_ipv4 "$node")\",\"$(node_pods_ipv6 "$node")\"]}}" >/dev/null
    wait_for 90 "$node Ready" node_is_ready "$node"
    say "$node is Ready"
}

# Brings up a new cluster.
bring_up() {
    local number node
    "$here/build.sh" >/dev/null
    mkdir -p "$run"
    "$here/images.sh" >"$run/images.list"
    say "making certificates and starting the control plane"
    install -d -m 700 "$pki" "$run/etcd"
    for ((number = 1; number <= nodes; number++)); do echo "node0$number"; done >"$run/nodes.list"
    install -d "$run/logs" "$run/registries"
    binary_path >"$run/path"
    make_credentials >"$run/logs/kubeadm.log" 2>&1 || die "kubeadm failed: see $run/logs/kubeadm.log"
    raise_inotify_limit
    make_mount_points
    make_bridges
    start_tree control-plane "" "$here/control-plane.sh"
    for node in $(cluster_nodes); do
        say "starting $node"
        start_node "$node"
    done
    wait_for 120 "API server" control_plane_ready
    say "the API server is ready"
    install_basics
    for node in $(cluster_nodes); do finish_node "$node"; done
    kubectl -n kube-system rollout status deployment/coredns --timeout 90s >/dev/null ||
        die "CoreDNS does not come up: see cluster-up/kubectl.sh -n kube-system describe pods"
    touch "$run/complete"
}

start_missing_nodes() {
    local node
    for node in $(cluster_nodes); do
        tree_runs "$node" && continue
        say "starting $node again"
        start_node "$node"
        wait_for 60 "$node Ready" node_is_ready "$node"
    done
}

main() {
    need_root
    take_lock
    check_machine
    if [[ -f $run/complete ]] && tree_runs control-plane && control_plane_ready >/dev/null 2>&1; then
        start_missing_nodes
        say "the cluster is up: $(cluster_nodes | tr '\n' ' ')"
        if [[ $(cluster_nodes | wc -l) -ne $nodes ]]; then
            say "NODES=$nodes changes nothing on a cluster that is up: make cluster-down first"
        fi
        return
    fi
    if [[ -d $run ]]; then
        say "cleaning up what an earlier run left"
        BAREVIRT_LOCKED=yes "$here/down.sh"
    fi
    local started=$SECONDS
    bring_up
    say "the cluster is up after $((SECONDS - started)) s; try cluster-up/kubectl.sh get nodes"
}

main
