#!/usr/bin/env bash
# kubectl against the cluster: cluster-up/kubectl.sh get pods -A
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
# shellcheck source=cluster-up/common.sh
source "$here/common.sh"

[[ -f $run/kubeconfig ]] || die "the cluster is not up: make cluster-up"
KUBECONFIG=$run/kubeconfig exec "$(binary_directory kubernetes)/kubectl" "$@"
