#!/usr/bin/env bash
# The init of a node: makes the node's view of the machine and runs containerd,
# kubelet and kube-proxy in it. It is the first process of its own mount, network, process id, host
# name, IPC and cgroup namespaces; started by node-start.sh, not by hand. The node ends with it.
#
#   node.sh NAME
#
# Further kubelet flags come from KUBELET_ARGS, as words.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
# shellcheck source=cluster-up/common.sh
source "$here/common.sh"
# shellcheck source=cluster-up/nodes.sh
source "$here/nodes.sh"

name=$1
state=$run/nodes/$name

# The cgroup hierarchies again, with the node's own cgroup as their root.
mount_cgroups() {
    local version=$1 mounts hierarchy controllers directory link
    if [[ $version == 2 ]]; then
        mount -t cgroup2 cgroup2 /sys/fs/cgroup
        # A cgroup with processes cannot hand controllers down.
        mkdir /sys/fs/cgroup/init
        wait_for 10 "an empty root cgroup of $name" empty_root_cgroup
        cgroup_hand_down /sys/fs/cgroup
        return
    fi
    mapfile -t mounts < <(grep -v '^0:' /proc/self/cgroup)
    mount -t tmpfs -o mode=755,size=1m cgroup /sys/fs/cgroup
    for hierarchy in "${mounts[@]}"; do
        controllers=$(cut -d: -f2 <<<"$hierarchy")
        directory=/sys/fs/cgroup/${controllers#name=}
        mkdir "$directory"
        mount -t cgroup -o "$controllers" cgroup "$directory"
        [[ $controllers == *,* ]] || continue
        for link in ${controllers//,/ }; do
            ln -s "$controllers" "/sys/fs/cgroup/$link"
        done
    done
}

# Moves the processes of the node's root cgroup into a child cgroup. Returns whether none is left:
# start_tree moves the one process that is out of reach from here.
empty_root_cgroup() {
    local pids pid
    mapfile -t pids </sys/fs/cgroup/cgroup.procs
    for pid in "${pids[@]}"; do
        echo "$pid" >/sys/fs/cgroup/init/cgroup.procs || true
    done
    [[ ${#pids[@]} -eq 0 ]]
}

# Everything that belongs to one node and would otherwise be shared.
mount_state() {
    local pair
    while read -r pair; do
        mkdir -p "$state/${pair%%:*}"
        mount --bind "$state/${pair%%:*}" "${pair#*:}"
    done < <(node_directories)
    mount -t tmpfs -o mode=755 run /run
    mkdir -p /run/lock /run/containerd /run/netns
    if [[ -f /etc/machine-id ]]; then
        printf 'barevirt%024d\n' "$(node_number "$name")" | tr -c '0-9a-f\n' 0 >"$state/machine-id"
        mount --bind "$state/machine-id" /etc/machine-id
    fi
    # The kubelet changes kernel settings of its machine. It gets separate files here, so that the
    # real machine does not change.
    local sysctl
    mkdir -p "$state/sysctl"
    for sysctl in vm/overcommit_memory vm/panic_on_oom kernel/panic kernel/panic_on_oops \
        kernel/keys/root_maxkeys kernel/keys/root_maxbytes; do
        cat "/proc/sys/$sysctl" >"$state/sysctl/${sysctl//\//.}"
        mount --bind "$state/sysctl/${sysctl//\//.}" "/proc/sys/$sysctl"
    done
}

have_link() { ip link show eth0; }

set_up_network() {
    local other
    wait_for 10 "network of $name" have_link
    ip link set lo up
    sysctl -qw net.ipv4.ip_forward=1 net.ipv6.conf.all.forwarding=1 \
        net.ipv6.conf.all.accept_dad=0 net.ipv6.conf.default.accept_dad=0 net.ipv6.conf.eth0.accept_dad=0
    ip address add "$(node_ipv4 "$name")/24" dev eth0
    ip address add "$(node_ipv6 "$name")/64" dev eth0 nodad
    ip link set eth0 up
    ip route add default via "$control_plane_ipv4"
    ip -6 route add default via "$control_plane_ipv6"
    # Made here rather than by the plugin, so that its address stays when pods are deleted.
    ip link add cni0 address "02:ba:5e:00:01:0$(node_number "$name")" type bridge
    # The bridge for definitions of networks, connected to one network over all nodes.
    ip link add lan0 address "02:ba:5e:00:02:1$(node_number "$name")" type bridge
    sysctl -qw net.ipv6.conf.lan0.disable_ipv6=1 net.ipv6.conf.eth1.disable_ipv6=1
    ip link set eth1 master lan0 up
    ip link set lan0 up
    for other in $(cluster_nodes); do
        [[ $other == "$name" ]] && continue
        ip route add "$(node_pods_ipv4 "$other")" via "$(node_ipv4 "$other")"
        ip -6 route add "$(node_pods_ipv6 "$other")" via "$(node_ipv6 "$other")"
    done
}

# Overlays cannot be stacked on an overlay.
snapshotter() {
    if [[ $(stat -f -c %T "$state") == overlayfs ]]; then echo native; else echo overlayfs; fi
}

write_containerd_config() {
    cat <<CONFIG
version = 3
root = '/var/lib/containerd'
state = '/run/containerd'
oom_score = 0

[plugins.'io.containerd.cri.v1.images']
  snapshotter = '$(snapshotter)'
  [plugins.'io.containerd.cri.v1.images'.pinned_images]
    sandbox = '$pause_image'
  [plugins.'io.containerd.cri.v1.images'.registry]
    config_path = '$run/registries'

[plugins.'io.containerd.cri.v1.runtime']
  # Restrictions, because the node shares the machine.
  restrict_oom_score_adj = true
  disable_apparmor = true
  # Block claims of pods with another user than root, as KubeVirt asks for it.
  device_ownership_from_security_context = true
  [plugins.'io.containerd.cri.v1.runtime'.cni]
    bin_dirs = ['$(binary_directory networks)', '$(binary_directory cni)']
    conf_dir = '/etc/cni/net.d'
CONFIG
}

# The program networks attaches pods to "primary", then to what their
# annotations ask for.
write_cni_config() {
    cat <<CONFIG
{
  "cniVersion": "1.0.0",
  "name": "barevirt-cluster",
  "plugins": [{
    "type": "networks",
    "capabilities": { "portMappings": true, "io.kubernetes.cri.pod-annotations": true },
    "kubeconfig": "$state/kubelet.conf",
    "primary": {
      "cniVersion": "1.0.0",
      "name": "barevirt-cluster",
      "plugins": [
        {
          "type": "bridge",
          "bridge": "cni0",
          "isGateway": true,
          "isDefaultGateway": true,
          "ipMasq": false,
          "hairpinMode": true,
          "ipam": {
            "type": "host-local",
            "ranges": [
              [{ "subnet": "$(node_pods_ipv4 "$name")" }],
              [{ "subnet": "$(node_pods_ipv6 "$name")" }]
            ]
          }
        },
        { "type": "portmap", "backend": "nftables", "snat": true, "capabilities": { "portMappings": true } }
      ]
    }
  }]
}
CONFIG
}

write_kubelet_config() {
    cat <<CONFIG
apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
authentication:
  anonymous: { enabled: false }
  webhook: { enabled: true }
  x509: { clientCAFile: $run/pki/ca.crt }
authorization: { mode: Webhook }
cgroupDriver: cgroupfs
cgroupRoot: /
clusterDNS: [$dns_ipv4]
clusterDomain: cluster.local
containerRuntimeEndpoint: unix:///run/containerd/containerd.sock
# Tolerates settings that the machine may forbid, such as oom_score_adj and rlimits. Images as
# volumes are on by default from 1.35.
featureGates: { KubeletInUserNamespace: true, ImageVolume: true }
failSwapOn: false
# The disk is the whole machine's: other programs may fill it, which must not cause evictions.
evictionHard:
  memory.available: 1%
  nodefs.available: 1%
  nodefs.inodesFree: 1%
  imagefs.available: 1%
# Images were loaded by hand and could not be pulled again.
imageGCHighThresholdPercent: 100
imageGCLowThresholdPercent: 99
maxPods: 200
nodeLeaseDurationSeconds: 20
nodeStatusUpdateFrequency: 5s
registryPullQPS: 0
resolvConf: $state/resolv.conf
serializeImagePulls: false
CONFIG
}

write_proxy_config() {
    cat <<CONFIG
apiVersion: kubeproxy.config.k8s.io/v1alpha1
kind: KubeProxyConfiguration
mode: nftables
clientConnection: { kubeconfig: $run/kube-proxy.conf }
clusterCIDR: $pod_ranges
detectLocalMode: ClusterCIDR
hostnameOverride: $name
# These limits are the whole machine's.
conntrack: { maxPerCore: 0, min: 0, tcpEstablishedTimeout: 0s, tcpCloseWaitTimeout: 0s }
CONFIG
}

write_configs() {
    write_containerd_config >"$state/containerd.toml"
    write_cni_config >/etc/cni/net.d/10-barevirt.conflist
    write_kubelet_config >"$state/kubelet.yaml"
    write_proxy_config >"$state/kube-proxy.yaml"
    : >"$state/resolv.conf"
}

containerd_answers() { ctr version; }
has_pause_image() { ctr -n k8s.io images ls -q | grep -qx "$pause_image"; }
api_server_answers() { curl -sf --cacert "$run/pki/ca.crt" "$api_server/readyz"; }

import_images() {
    local archive
    has_pause_image && return
    while read -r archive; do
        ctr -n k8s.io images import "$archive" >/dev/null
    done <"$run/images.list"
}

main() {
    local logs=$run/logs/$name cgroups=1
    local kubelet_args=()
    # shellcheck disable=SC2206 # further flags are words
    kubelet_args=(${KUBELET_ARGS:-})
    cgroup_is_v2 && cgroups=2
    mount --make-rslave /
    hostname "$name"
    mount -t proc proc /proc
    mount -t sysfs sysfs /sys
    mount_cgroups "$cgroups"
    mount_state
    # Bidirectional volumes of pods need propagation within the node.
    mount --make-rshared /
    set_up_network
    write_configs
    PATH=$(binary_path):/usr/local/sbin:/usr/sbin:/sbin:$PATH
    supervise "$logs-containerd.log" containerd --config "$state/containerd.toml" --log-level warn &
    wait_for 30 "containerd of $name" containerd_answers
    import_images
    wait_for 120 "API server, seen from $name" api_server_answers
    supervise "$logs-kube-proxy.log" kube-proxy --config "$state/kube-proxy.yaml" &
    supervise "$logs-kubelet.log" kubelet --config "$state/kubelet.yaml" --kubeconfig "$state/kubelet.conf" \
        --hostname-override "$name" --node-ip "$(node_ipv4 "$name"),$(node_ipv6 "$name")" "${kubelet_args[@]}" &
    supervise "$logs-networks.log" networks watch --kubeconfig "$state/kubelet.conf" --node "$name" \
        --path "$(binary_directory cni)" &
    # Waits for ever, and reaps processes that containers leave behind.
    wait
}

main
