#!/usr/bin/env bash
# Starts a node that node-kill.sh has ended, as if its machine were switched on
# again: its images, pods and volumes are still there.
#
#   cluster-up/node-start.sh node02
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
# shellcheck source=cluster-up/common.sh
source "$here/common.sh"
# shellcheck source=cluster-up/nodes.sh
source "$here/nodes.sh"

need_root
take_lock
[[ $# -eq 1 ]] || die "usage: node-start.sh NODE"
grep -qx -- "$1" <(cluster_nodes) || die "the cluster has no node $1"
if tree_runs "$1"; then
    say "$1 runs already"
else
    start_node "$1"
    wait_for 60 "$1 Ready" node_is_ready "$1"
    say "$1 is Ready"
fi
