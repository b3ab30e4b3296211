#!/usr/bin/env bash
# Tests the chart against an API server: one command installs it, an upgrade changes what it should, objects that machines
# depend on stay when the release is uninstalled, and another installation uses them again. No pod runs.
#
#   HELM=.../helm images/chart-check.sh [CHART]       a folder or an archive (default: manifests/chart)
#
# Needs what cluster-up/build.sh kubernetes etcd builds. PORT and the two after it are used on loopback (default: 26443).
set -euo pipefail
shopt -s inherit_errexit
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
# shellcheck source=cluster-up/common.sh
source "$here/../cluster-up/common.sh"
chart=${1:-$here/../manifests/chart}
helm=${HELM:-helm}
port=${PORT:-26443}

fail() { printf 'chart-check: %s\n' "$*" >&2; exit 1; }
# A separate function, since kubectl in common.sh is for the cluster of this machine.
kube() { command "$(binary_directory kubernetes)/kubectl" "$@"; }
there() { [[ -n $(kube get "$@" --ignore-not-found -o name) ]]; }
field() { kube -n kubevirt get "$1" "$2" -o "jsonpath=$3"; }

operator_image() { field deployment virt-operator '{.spec.template.spec.containers[0].image}'; }

works() {
    "$helm" install barevirt "$chart" --set kubevirt.spec.infra.replicas=1 >/dev/null
    there crd kubevirts.kubevirt.io || fail "there is no definition of KubeVirt objects"
    [[ $(field kubevirt kubevirt '{.spec.infra.replicas}') == 1 ]] || fail "the KubeVirt object has not its values"
    [[ $(kube get namespace kubevirt -o 'jsonpath={.metadata.labels.pod-security\.kubernetes\.io/enforce}') == privileged ]] ||
        fail "the namespace admits no privileged pods"
}

# As a machine would be lost with its definition.
upgrades() {
    local before
    before=$(kube get crd kubevirts.kubevirt.io -o 'jsonpath={.metadata.uid}')$(field kubevirt kubevirt '{.metadata.uid}')
    kube -n kubevirt patch kubevirt kubevirt --type=merge -p '{"spec": {"uninstallStrategy": "BlockUninstallIfWorkloadsExist"}}' >/dev/null
    "$helm" upgrade barevirt "$chart" --reset-then-reuse-values --set image.registry=mirror.example/b \
        --set kubevirt.spec.infra.replicas=3 >/dev/null
    [[ $(operator_image) == mirror.example/b/virt-operator[:@]* ]] || fail "the operator's image is $(operator_image)"
    [[ $(field kubevirt kubevirt '{.spec.infra.replicas}') == 3 ]] || fail "the KubeVirt object was not changed"
    [[ $(field kubevirt kubevirt '{.spec.uninstallStrategy}') == Block* ]] || fail "what a person has set is gone"
    [[ $(kube get crd kubevirts.kubevirt.io -o 'jsonpath={.metadata.uid}')$(field kubevirt kubevirt '{.metadata.uid}') == "$before" ]] ||
        fail "definition or object was made anew"
    # An upgrade without a KubeVirt object does not delete the existing one.
    "$helm" upgrade barevirt "$chart" --set kubevirt.create=false --set namespace.create=false >/dev/null
    there kubevirt kubevirt -n kubevirt || fail "the KubeVirt object is gone"
    there namespace kubevirt || fail "the namespace is gone"
}

leaves() {
    "$helm" uninstall barevirt >/dev/null 2>&1
    there deployment virt-operator -n kubevirt && fail "the operator is still there"
    there crd kubevirts.kubevirt.io || fail "the definition is gone, and with it the installation"
    there kubevirt kubevirt -n kubevirt || fail "the KubeVirt object is gone, and with it all machines"
    there namespace kubevirt || fail "the namespace is gone"
    there priorityclass kubevirt-cluster-critical || fail "the priority class is gone: no pod of a component would start again"
    "$helm" install barevirt "$chart" >/dev/null || fail "what was left is not taken up"
    there deployment virt-operator -n kubevirt || fail "the operator does not come back"
}

main() {
    local folder server step
    folder=$(mktemp -d)
    "$here/../cluster-up/api-server.sh" "$folder" "$port" &
    server=$!
    # shellcheck disable=SC2064 # as they are now
    trap "kill $server 2>/dev/null; wait $server 2>/dev/null || true; rm -rf '$folder'" EXIT
    export KUBECONFIG=$folder/kubeconfig HELM_CACHE_HOME=$folder HELM_CONFIG_HOME=$folder HELM_DATA_HOME=$folder
    run=$folder wait_for 60 "the API server" kube get --raw /readyz
    wait_for 30 "the namespace default" there namespace default
    for step in works upgrades leaves; do
        printf 'chart-check: %s\n' "$step"
        "$step"
    done
}

main
