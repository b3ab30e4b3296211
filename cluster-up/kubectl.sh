#!/bin/sh
# kubectl against the cluster: cluster-up/kubectl.sh get pods -A
#
# Tests call it thousands of times, so it runs no other program; up.sh made a link to kubectl.
run=${BAREVIRT_RUN:-/var/lib/barevirt}/cluster
[ -e "$run/kubeconfig" ] || { echo "cluster-up: error: the cluster is not up: make cluster-up" >&2; exit 1; }
KUBECONFIG=$run/kubeconfig exec "$run/kubectl" "$@"
