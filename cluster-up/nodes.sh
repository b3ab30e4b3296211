# Starting nodes. Sourced by up.sh and node-start.sh, never run.
# shellcheck shell=bash
# shellcheck disable=SC2154 # common.sh sets these

# The directories of a node: directory in its state, and the path where it is mounted.
node_directories() {
    cat <<'LIST'
kubelet:/var/lib/kubelet
containerd:/var/lib/containerd
kubevirt:/var/lib/kubevirt
cni-config:/etc/cni/net.d
cni-state:/var/lib/cni
pod-logs:/var/log/pods
container-logs:/var/log/containers
LIST
}

# Makes the mount points of the nodes' directories, and records which of them did not exist, so that
# down.sh can remove them again.
make_mount_points() {
    local pair place
    while read -r pair; do
        place=${pair#*:}
        while [[ ! -d $place ]]; do
            echo "$place" >>"$run/made-directories"
            place=$(dirname "$place")
        done
        mkdir -p "${pair#*:}"
    done < <(node_directories)
}

# Starts the node's process tree and gives it its ends of links to the bridges.
# It waits for eth0, which therefore comes last.
start_node() {
    local node=$1 init
    mkdir -p "$run/nodes/$node"
    start_tree "$node" "--net --uts --ipc --cgroup" "$cluster_up/node.sh" "$node"
    init=$(tree_init "$node")
    # The kernel deletes the link of a killed node with some delay.
    ip link delete "bv-$node" 2>/dev/null || true
    ip link delete "bv-$node-lan" 2>/dev/null || true
    # Jumbo frames pass between the nodes; a definition says what its own links let pass.
    ip link add "bv-$node-lan" mtu 9000 type veth peer name eth1 mtu 9000 netns "$init"
    ip link set "bv-$node-lan" master "$lan_bridge" up
    ip link add "bv-$node" type veth peer name eth0 netns "$init"
    ip link set "bv-$node" master "$bridge" up
}

node_is_ready() {
    [[ $(kubectl get node "$1" -o 'jsonpath={.status.conditions[?(@.type=="Ready")].status}') == True ]]
}
