#!/usr/bin/env bash
# Tests the add-ons on the running cluster, with pods: installs each, uses it, and removes it again.
# Needs two nodes, and takes two minutes.
#
#   cluster-up/addons-test.sh [NAME...]     all of them by default
#
# An add-on that was installed before is removed afterwards, too.
set -Eeuo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
# shellcheck source=cluster-up/common.sh
source "$here/common.sh"

scratch=$(mktemp -d)
trap 'rm -rf "$scratch"; kubectl delete namespace addons-test --ignore-not-found --wait=false >/dev/null' EXIT
trap 'say "failed at line $LINENO: $BASH_COMMAND"' ERR

passed() { say "ok: $*"; }
in_pod() { kubectl -n addons-test exec "$1" -- sh -euc "$2"; }
capacity() { kubectl -n addons-test get pvc "$1" -o 'jsonpath={.status.capacity.storage}'; }
has_capacity() { [[ $(capacity "$1") == "$2" ]]; }
request() {
    kubectl -n addons-test patch pvc "$1" --type merge -p "{\"spec\":{\"resources\":{\"requests\":{\"storage\":\"$2\"}}}}" >/dev/null
}
manifest_of() { awk -v name="name: $1," 'BEGIN { RS = "---\n" } index($0, name) { print "---"; printf "%s", $0 }' "$here/addons-test.yaml"; }
start() {
    local name
    for name in "$@"; do manifest_of "$name"; done | kubectl apply -f - >/dev/null
}
ready() { kubectl -n addons-test wait --for condition=Ready "pod/$1" --timeout 90s >/dev/null; }
no_volume() { [[ -z $(kubectl get pv -o json | jq -r --arg class "$1" '.items[] | select(.spec.storageClassName == $class) | .metadata.name') ]]; }
no_loop() { ! losetup --list --noheadings --output BACK-FILE | grep -q -- "$1"; }
device_bytes() { in_pod writer 'blockdev --getsize64 /dev/disk'; }
has_device_bytes() { [[ $(device_bytes) == "$1" ]]; }

test_volumes() {
    local volume
    start block rwx writer reader
    ready writer
    ready reader
    in_pod writer 'echo written >/rwx/file; echo written | dd of=/dev/disk conv=sync bs=512 count=1 2>/dev/null; sync'
    [[ $(in_pod writer 'head -c 7 /dev/disk') == written ]]
    [[ $(in_pod reader 'cat /rwx/file') == written ]]
    passed "a Block claim is written and read, and an RWX claim is written on node01 and read on node02"
    request block 32Mi
    request rwx 32Mi
    wait_for 30 "capacity of the Block claim" has_capacity block 32Mi
    wait_for 30 "size of the device in its pod" has_device_bytes $((32 << 20))
    wait_for 30 "capacity of the RWX claim" has_capacity rwx 32Mi
    [[ $(in_pod writer 'head -c 7 /dev/disk') == written ]]
    passed "both claims grow under their pods"
    volume=$(kubectl -n addons-test get pvc block -o 'jsonpath={.spec.volumeName}')
    kubectl -n addons-test delete pod writer reader --timeout 60s >/dev/null
    kubectl -n addons-test delete pvc block rwx --timeout 60s >/dev/null
    wait_for 60 "end of the Block volume" no_volume block
    wait_for 60 "end of the RWX volume" no_volume rwx
    wait_for 30 "end of the loop devices" no_loop "$volume"
    [[ ! -e $run/volumes/block/$volume.img ]]
    passed "volumes go with their claims"
}

test_registry() {
    local archive image
    archive=$(grep busybox "$run/images.list")
    image=$("$here/addons.sh" push "$archive" addons-test/busybox:pushed)
    kubectl -n addons-test run pulled --image "$image" --image-pull-policy Always --restart Never \
        --command -- timeout 5 wget -qO- "http://${image%%/*}/v2/_catalog" >/dev/null
    kubectl -n addons-test wait --for 'jsonpath={.status.phase}=Succeeded' pod/pulled --timeout 90s >/dev/null
    kubectl -n addons-test logs pulled | grep -q '"addons-test/busybox"'
    passed "an image is pushed, pulled by a node and run, and a pod asks the registry by its name"
}

test_http() {
    local sum
    head -c 1000000 /dev/urandom >"$scratch/file.qcow2"
    chmod -R a+rX "$scratch"
    BAREVIRT_HTTP_DIRECTORY=$scratch "$here/addons.sh" http
    sum=$(sha256sum <"$scratch/file.qcow2")
    kubectl -n addons-test run fetch --image "$busybox_image" --image-pull-policy Never --restart Never \
        --command -- sh -c 'timeout 20 wget -qO- http://http.test-bed.svc/file.qcow2 | sha256sum' >/dev/null
    kubectl -n addons-test wait --for 'jsonpath={.status.phase}=Succeeded' pod/fetch --timeout 90s >/dev/null
    [[ $(kubectl -n addons-test logs fetch) == "$sum" ]]
    passed "a file is fetched whole"
}

address_of() { kubectl -n test-bed get pods -l "app=$1" -o 'jsonpath={.items[0].status.podIP}'; }

test_s3() {
    local address
    address=$(address_of s3)
    [[ $(curl -s -m 5 "http://$address:8080/images/file.qcow2") == *'<Code>AccessDenied</Code>'* ]]
    [[ $(curl -s -m 5 -H 'Authorization: AWS4-HMAC-SHA256 Credential=a/b,SignedHeaders=host,Signature=c' \
        -H "X-Amz-Date: $(date -u +%Y%m%dT%H%M%SZ)" "http://$address:8080/images/file.qcow2") == *'<Code>InvalidAccessKeyId</Code>'* ]]
    passed "objects are refused to whom has not the keys; the program's own test (go test) and Barevirt's importer have them"
}

test_proxy() {
    local address
    address=$(address_of proxy)
    curl -sf -m 5 -o /dev/null --cacert "$run/pki/ca.crt" -x "http://reader:open-sesame@$address:3128" "$api_server/readyz"
    ! curl -sf -m 5 -o /dev/null --cacert "$run/pki/ca.crt" -x "http://$address:3128" "$api_server/readyz" ||
        die "the proxy connects whom it does not know"
    passed "the proxy connects whom it knows to the API server"
}

# Whether Prometheus reaches the components.
scraped() {
    local address
    address=$(kubectl -n test-bed get pods -l app=prometheus -o 'jsonpath={.items[0].status.podIP}')
    curl -sfG -m 5 "http://$address:9090/api/v1/query" --data-urlencode 'query=count(up{job="kubevirt"} == 1)' |
        jq -e '.data.result[0].value[1] | tonumber > 0'
}

test_prometheus() {
    wait_for 60 "answer of Prometheus (Barevirt must be installed)" scraped
    passed "Prometheus answers a query about the components"
}

# Whether a pod reaches a server by each of its addresses, as words: yes and no for IPv4 and IPv6.
reaches() {
    in_pod "$1" "for host in $(kubectl -n addons-test get pod "$2" -o 'jsonpath={range .status.podIPs[*]}{.ip} {end}'); do
        case \$host in *:*) host=[\$host] ;; esac
        timeout 2 wget -qO /dev/null http://\$host:$3/ && echo yes || echo no
    done" | tr '\n' ' '
}
reach_is() { [[ $(reaches "$1" "$2" "$3") == "$4" ]]; }

test_policy() {
    start server near far
    ready server && ready near && ready far
    wait_for 20 "answer of the server" reach_is near server 8080 "yes yes "
    start guarded
    wait_for 20 "rules for the server" reach_is near server 8080 "no no "
    [[ $(reaches near server 8081) == "no no " && $(reaches far server 8080) == "yes yes " && $(reaches far server 8081) == "no no " ]]
    passed "of two pods, one on the server's node and one on the other, the one that the policy names reaches the one port that it names"
    kubectl -n addons-test label pod near access=yes >/dev/null
    wait_for 20 "rules for the other pod" reach_is near server 8080 "yes yes "
    start silent
    wait_for 20 "rules for what pods send" reach_is near server 8080 "no no "
    [[ $(reaches far server 8080) == "yes yes " ]]
    kubectl -n addons-test delete networkpolicy silent guarded >/dev/null
    wait_for 20 "end of the rules" reach_is near server 8081 "yes yes "
    passed "labels and policies that come and go take effect, in both directions"
    kubectl -n addons-test delete pod server near far --timeout 60s >/dev/null
}

main() {
    need_root
    local names=("$@") name volumes=
    [[ $# -gt 0 ]] || names=(block rwx registry http s3 proxy prometheus policy)
    kubectl create namespace addons-test --dry-run=client -o yaml | kubectl apply -f - >/dev/null
    for name in "${names[@]}"; do
        case $name in
            # One test for both.
            block | rwx) volumes=yes ;;
            http) test_http ;;
            *)
                "$here/addons.sh" "$name"
                "test_$name"
                ;;
        esac
    done
    if [[ -n $volumes ]]; then
        "$here/addons.sh" block rwx
        test_volumes
    fi
    "$here/addons.sh" remove "${names[@]}"
    passed "all is taken away again"
}

main "$@"
