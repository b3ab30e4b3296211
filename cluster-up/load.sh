#!/usr/bin/env bash
# Loads OCI archives into every running node, except those that a node already has by digest.
#
#   cluster-up/load.sh a.tar b.tar
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
# shellcheck source=cluster-up/common.sh
source "$here/common.sh"
# shellcheck source=cluster-up/archives.sh
source "$here/archives.sh"

# ctr on a node, without its warning about the machine's cgroups on each call.
node_ctr() {
    local node=$1
    shift
    "$here/cli.sh" ssh "$node" ctr -n k8s.io "$@" 2> >(grep -v 'DEPRECATION: The support for cgroup v1' >&2)
}

# Loads the archives that the node does not have, and prints their names.
load_into() {
    local node=$1 have archive name digest
    shift
    have=$(node_ctr "$node" images ls | awk 'NR > 1 { print $1, $3 }')
    for archive in "$@"; do
        while read -r name digest; do
            grep -qxF -- "$name $digest" <<<"$have" && continue
            node_ctr "$node" images import - <"$archive" >/dev/null ||
                die "$node does not take $archive"
            say "$node has $name now"
        done < <(archive_images "$archive")
    done
}

main() {
    need_root
    [[ $# -gt 0 ]] || die "usage: load.sh ARCHIVE..."
    local archive node job jobs=() failed=
    for archive in "$@"; do
        [[ -f $archive ]] || die "no such archive: $archive"
        [[ -n $(archive_images "$archive") ]] || die "$archive is no OCI archive with a named image"
    done
    for node in $(cluster_nodes); do
        tree_runs "$node" || continue
        load_into "$node" "$@" &
        jobs+=($!)
    done
    [[ ${#jobs[@]} -gt 0 ]] || die "no node is running: make cluster-up"
    for job in "${jobs[@]}"; do
        wait "$job" || failed=yes
    done
    [[ -z $failed ]] || die "not every node has every image"
}

main "$@"
