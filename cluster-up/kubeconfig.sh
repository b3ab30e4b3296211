#!/usr/bin/env bash
# Prints the path of the cluster's kubeconfig:
#   export KUBECONFIG=$(cluster-up/kubeconfig.sh)
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
# shellcheck source=cluster-up/common.sh
source "$here/common.sh"

[[ -f $run/kubeconfig ]] || die "the cluster is not up: make cluster-up"
echo "$run/kubeconfig"
