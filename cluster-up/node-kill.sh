#!/usr/bin/env bash
# Ends a node at once, as by a power failure: every process on it, its network and its mounts. The
# Node object stays, and node-start.sh brings the node back.
#
#   cluster-up/node-kill.sh node02
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
# shellcheck source=cluster-up/common.sh
source "$here/common.sh"

need_root
take_lock
[[ $# -eq 1 ]] || die "usage: node-kill.sh NODE"
grep -qx -- "$1" <(cluster_nodes) || die "the cluster has no node $1"
kill_tree "$1"
say "$1 is gone"
