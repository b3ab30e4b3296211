#!/usr/bin/env bash
# The most recently built virtctl, against the cluster: cluster-up/virtctl.sh console vm
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
# shellcheck source=cluster-up/common.sh
source "$here/common.sh"

[[ -f $run/kubeconfig ]] || die "the cluster is not up: make cluster-up"
target=${CARGO_TARGET_DIR:-$repository/target}
newest=
for candidate in "$target"/{release,debug}/virtctl "$target"/x86_64-unknown-linux-musl/{release,debug}/virtctl; do
    if [[ -x $candidate && (-z $newest || $candidate -nt $newest) ]]; then
        newest=$candidate
    fi
done
[[ -n $newest ]] || die "virtctl is not built: make build"
KUBECONFIG=$run/kubeconfig exec "$newest" "$@"
