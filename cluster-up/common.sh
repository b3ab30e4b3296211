# Shared by the scripts of cluster-up: places, names, addresses, messages.
# Sourced, never run.
# shellcheck shell=bash

cluster_up=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
cache=${BAREVIRT_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/barevirt}
# The order is the order of building: what takes longest first.
# shellcheck disable=SC2034
binary_groups=(kubernetes containerd etcd cni pause coredns)

say() { printf 'cluster-up: %s\n' "$*" >&2; }
die() { printf 'cluster-up: error: %s\n' "$*" >&2; exit 1; }

# Where a group of binaries is, or will be once built. The key covers
# everything that decides their content, the build script with its flags too.
binary_directory() {
    local key
    key=$(cd "$cluster_up" && sha256sum build.sh go/"$1"/* | sha256sum | cut -c1-16)
    echo "$cache/bin/$1-$key"
}
