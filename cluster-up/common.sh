# Shared by the scripts of cluster-up: places, names, addresses, messages,
# cgroups and processes. Sourced, never run.
# shellcheck shell=bash
# shellcheck disable=SC2034 # what is set here is used by the scripts

# The programs of Kubernetes collect garbage more rarely: they take some hundred MB more, and less processor time.
export GOGC=${GOGC:-400}

cluster_up=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
repository=$(dirname "$cluster_up")
cache=${BAREVIRT_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/barevirt}
# All state of the cluster: certificates, etcd, nodes, logs. Removed by down.
run=${BAREVIRT_RUN:-/var/lib/barevirt}/cluster

# Go modules under go/, in the order of building: the slowest first.
binary_groups=(kubernetes containerd etcd cni networks pause coredns volumes)

bridge=barevirt0
# Connects the nodes' second links, for networks beside that of the pods.
lan_bridge=barevirt1
control_plane_ipv4=172.29.0.1
control_plane_ipv6=fd00:172:29::1
api_server=https://$control_plane_ipv4:6443
pod_ranges=10.244.0.0/16,fd00:10:244::/48
service_ranges=10.96.0.0/16,fd00:10:96::/112
dns_ipv4=10.96.0.10
dns_ipv6=fd00:10:96::a
pause_image=localhost/barevirt-cluster/pause:devel
coredns_image=localhost/barevirt-cluster/coredns:devel
busybox_image=localhost/barevirt-cluster/busybox:devel
volumes_image=localhost/barevirt-cluster/volumes:devel

say() { printf 'cluster-up: %s\n' "$*" >&2; }
die() { printf 'cluster-up: error: %s\n' "$*" >&2; exit 1; }

need_root() { [[ $EUID -eq 0 ]] || die "the cluster's nodes are namespaces of this machine: run this as root"; }

# One up, down, kill or start at a time. Daemons must not inherit the lock:
# they are started with descriptor 9 closed.
take_lock() {
    mkdir -p "$(dirname "$run")"
    exec 9>"$(dirname "$run")/cluster.lock"
    flock -w 300 9 || die "another cluster-up command has been running for five minutes"
}

# Repeats a command until it succeeds, for at most that many seconds.
wait_for() {
    local seconds=$1 what=$2 deadline
    shift 2
    deadline=$((SECONDS + seconds))
    until "$@" >/dev/null 2>&1; do
        ((SECONDS < deadline)) || die "$what: not after $seconds s; logs are in $run/logs"
        sleep 0.2
    done
}

# The directory of a group of binaries, also before they are built. The key covers everything that
# decides their content, the build script with its flags too.
binary_directory() {
    local key
    key=$(cd "$cluster_up" && sha256sum build.sh go/"$1"/* | sha256sum | cut -c1-16)
    echo "$cache/bin/$1-$key"
}

kubernetes_version() {
    awk '{ sub(/^require /, "") } $1 == "k8s.io/kubernetes" && $2 ~ /^v/ { print $2; exit }' "$cluster_up/go/kubernetes/go.mod"
}

# A search path of all groups.
binary_path() {
    local group path=
    for group in "${binary_groups[@]}"; do
        path+=$(binary_directory "$group"):
    done
    echo "${path%:}"
}

kubectl() { KUBECONFIG=$run/kubeconfig "$run/kubectl" "$@"; }

# Nodes are node01 and so on; the number decides the addresses.
node_number() {
    [[ $1 =~ ^node0([1-9])$ ]] || die "no such node name: $1 (node01, node02, ...)"
    echo "${BASH_REMATCH[1]}"
}
node_ipv4() { echo "172.29.0.1$(node_number "$1")"; }
node_ipv6() { echo "fd00:172:29::1$(node_number "$1")"; }
node_pods_ipv4() { echo "10.244.$(node_number "$1").0/24"; }
node_pods_ipv6() { echo "fd00:10:244:$(node_number "$1")::/64"; }

# The nodes of the cluster as it was brought up.
cluster_nodes() { cat "$run/nodes.list" 2>/dev/null || true; }

# --- cgroups: one per node and one for the control plane, in each hierarchy,
# at its root. They identify our processes even if all other records are lost.

cgroup_is_v2() { [[ $(stat -f -c %T /sys/fs/cgroup) == cgroup2fs ]]; }

# The mount points of all hierarchies (several with v1).
cgroup_hierarchies() {
    awk '$3 == "cgroup" || $3 == "cgroup2" { print $2 }' /proc/mounts | grep '^/sys/fs/cgroup' | sort -u
}

# Lets the children of a v2 cgroup have every controller that it has. Some may be refused; a node
# that lacks a controller it needs will report that.
cgroup_hand_down() {
    local controller
    for controller in $(<"$1/cgroup.controllers"); do
        echo "+$controller" >"$1/cgroup.subtree_control" 2>/dev/null || true
    done
}

# Makes the cgroup of that name everywhere.
cgroup_make() {
    local hierarchy file
    while read -r hierarchy; do
        [[ $hierarchy != /sys/fs/cgroup ]] || cgroup_hand_down "$hierarchy"
        mkdir -p "$hierarchy/$1"
        # A new v1 cpuset is empty, and a process cannot join an empty one.
        for file in cpuset.cpus cpuset.mems; do
            if ! cgroup_is_v2 && [[ -f $hierarchy/$1/$file ]]; then
                cat "$hierarchy/$file" >"$hierarchy/$1/$file"
            fi
        done
    done < <(cgroup_hierarchies)
}

# Moves the calling process into the cgroup of that name.
cgroup_join() {
    local hierarchy
    while read -r hierarchy; do
        echo "$BASHPID" >"$hierarchy/$1/cgroup.procs"
    done < <(cgroup_hierarchies)
}

# All processes in the cgroup of that name and below.
cgroup_processes() {
    local hierarchy
    while read -r hierarchy; do
        [[ -d $hierarchy/$1 ]] || continue
        find "$hierarchy/$1" -name cgroup.procs -exec cat {} + 2>/dev/null || true
    done < <(cgroup_hierarchies) | sort -un
}

cgroup_is_empty() { [[ -z $(cgroup_processes "$1") ]]; }

# Kills everything in the cgroup of that name and removes it.
cgroup_remove() {
    local hierarchy pid tries
    for ((tries = 0; tries < 200; tries++)); do
        cgroup_is_empty "$1" && break
        for pid in $(cgroup_processes "$1"); do
            # 0 is a process that this namespace does not see.
            if [[ $pid -gt 1 && $pid -ne $$ && $pid -ne $BASHPID ]]; then
                kill -KILL "$pid" 2>/dev/null || true
            fi
        done
        sleep 0.1
    done
    cgroup_is_empty "$1" || die "processes of $1 survive SIGKILL: $(cgroup_processes "$1" | tr '\n' ' ')"
    while read -r hierarchy; do
        [[ -d $hierarchy/$1 ]] || continue
        for ((tries = 0; tries < 100; tries++)); do
            find "$hierarchy/$1" -depth -type d -exec rmdir {} + 2>/dev/null && break
            sleep 0.05
        done
    done < <(cgroup_hierarchies)
}

# --- process trees: each is one `unshare --fork --kill-child`, whose end takes
# everything in its process id namespace with it.

# Records the process id, on this machine, of the init of a tree: the child of unshare that has process ids of its own.
record_init() {
    local child ids
    for child in $(pgrep -P "$(<"$run/pids/$1")"); do
        ids=$(readlink "/proc/$child/ns/pid") || continue
        [[ $ids != "$(readlink /proc/self/ns/pid)" ]] || continue
        echo "$child" >"$run/pids/$1.init"
        return
    done
    return 1
}

# The process id, on this machine, of the init of a tree. Tests ask for it all the time, so this runs no other program. The
# control group tells whether the recorded process still is that of the tree.
tree_init() {
    local init groups
    { read -r init <"$run/pids/$1.init" && mapfile -t groups <"/proc/$init/cgroup"; } 2>/dev/null || return 1
    [[ "${groups[*]} " =~ /barevirt-$1[\ /] ]] || return 1
    echo "$init"
}

tree_runs() { tree_init "$1" >/dev/null; }

# Starts a tree: its name, unshare's options, then the command.
start_tree() {
    local name=$1 options=$2
    shift 2
    mkdir -p "$run/pids" "$run/logs"
    rm -f "$run/pids/$name" "$run/pids/$name.init"
    cgroup_make "barevirt-$name"
    (
        cgroup_join "barevirt-$name"
        echo "$BASHPID" >"$run/pids/$name"
        # shellcheck disable=SC2086 # options are several words
        exec setsid unshare --pid --mount --fork --kill-child $options "$@"
    ) >>"$run/logs/$name.log" 2>&1 </dev/null 9>&- &
    wait_for 10 "start of $name" record_init "$name"
    # unshare itself stays outside the namespaces, whose processes cannot move it, and a v2 cgroup
    # with processes cannot hand controllers down.
    if cgroup_is_v2; then
        mkdir "/sys/fs/cgroup/barevirt-$name/outside"
        cat "$run/pids/$name" >"/sys/fs/cgroup/barevirt-$name/outside/cgroup.procs"
    fi
}

kill_tree() {
    local outer
    outer=$(cat "$run/pids/$1" 2>/dev/null || true)
    if [[ -n $outer ]] && grep -qs "^$outer$" <(cgroup_processes "barevirt-$1"); then
        kill -KILL "$outer" 2>/dev/null || true
    fi
    cgroup_remove "barevirt-$1"
    rm -f "$run/pids/$1" "$run/pids/$1.init"
}

# Runs a command again whenever it ends, as an init system would: tests kill
# single processes and expect them back.
supervise() {
    local log=$1 pause=1
    shift
    while :; do
        "$@" >>"$log" 2>&1 && true
        printf 'cluster-up: %s ended with status %s, starting it again\n' "${1##*/}" "$?" >>"$log"
        sleep "$pause"
    done
}
