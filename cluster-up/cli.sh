#!/usr/bin/env bash
# A shell or a command on a node, with ctr and the machine's
# own programs, in the node's namespaces.
#
#   cluster-up/cli.sh ssh node01
#   cluster-up/cli.sh ssh node01 ctr -n k8s.io containers ls
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
# shellcheck source=cluster-up/common.sh
source "$here/common.sh"

need_root
[[ $# -ge 2 && $1 == ssh ]] || die "usage: cli.sh ssh NODE [COMMAND...]"
node=$2
shift 2
init=$(tree_init "$node") || die "$node is not running"
[[ $# -gt 0 ]] || set -- bash
PATH=$(<"$run/path"):/usr/local/sbin:/usr/sbin:/sbin:$PATH \
    exec nsenter --target "$init" --mount --net --pid --uts --ipc --cgroup --wd=/ -- "$@"
