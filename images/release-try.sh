#!/usr/bin/env bash
# What a new user does with a release, from its folder alone, on a cluster without Barevirt: checks the files, installs by Helm,
# boots a machine, upgrades under it, removes everything, installs by manifest and by virtctl, and removes that. Prints each
# command with its output and its time, as Markdown.
#
#   images/release-try.sh RELEASE              the folder of a release
#   images/release-try.sh OLDER NEWER          folders of two releases: Helm installs OLDER and upgrades to NEWER
#
# Environment: KUBECONFIG names the cluster, which pulls images from where the releases say, and has KVM or not: guests are
# emulated. VERBOSE=1 shows long output in full. UI_CHECK=1 drives the page of `virtctl ui` in Chromium as well.
# Needs kubectl, helm, openssl and script (util-linux) in PATH.
set -euo pipefail
shopt -s inherit_errexit
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
[[ $# -eq 1 || $# -eq 2 ]] || { echo "usage: images/release-try.sh [OLDER] NEWER" >&2; exit 2; }
older=$(realpath "$1")
newer=$(realpath "${2:-$1}")
[[ -n ${KUBECONFIG:-} ]] || { echo "release-try: KUBECONFIG names no cluster" >&2; exit 2; }
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir "$work/bin"
PATH=$work/bin:$PATH
emulate=kubevirt.spec.configuration.developerConfiguration.useEmulation=true

fail() { printf 'release-try: %s\n' "$*" >&2; exit 1; }
title() { printf '\n## %s\n' "$*"; }

# run COMMAND: shows it, runs it in a shell, shows what it said (its ends, where that is long) and the seconds.
run() {
    local begun=$EPOCHREALTIME code=0 lines
    bash -o pipefail -c "$1" >"$work/said" 2>&1 </dev/null || code=$?
    lines=$(wc -l <"$work/said")
    printf '\n```text\n$ %s\n' "$1"
    if [[ $lines -gt 12 && -z ${VERBOSE:-} ]]; then
        { head -n 5 "$work/said"; echo "... $((lines - 10)) lines"; tail -n 5 "$work/said"; } | tr -d '\r'
    else
        tr -d '\r' <"$work/said"
    fi
    awk -v a="$begun" -v b="$EPOCHREALTIME" 'BEGIN { printf "# %.1f s\n```\n", b - a }'
    [[ $code == 0 ]] || fail "$1 ended with $code"
}

# use FOLDER: that release's files are in the current folder, its virtctl in PATH.
use() {
    cd "$1"
    ln -sf "$1"/virtctl-v*-linux-amd64 "$work/bin/virtctl"
}

version() { basename "$1"/barevirt-*.tgz .tgz; }

# The guest's shell on its serial console answers.
console() {
    local begun=$SECONDS
    while :; do
        { sleep 2; printf '\n'; sleep 2; printf 'root\n'; sleep 2; printf "uptime; echo \$((6 * 7))-is-it\n"; sleep 3; printf '\035'; sleep 1; } |
            timeout 30 script -qec "virtctl console testvm" /dev/null >"$work/console" 2>&1 || true
        grep -q "^42-is-it" <(tr -d '\r' <"$work/console") && break
        ((SECONDS - begun < 240)) || fail "no shell on the console: $(tail -n 5 "$work/console")"
    done
    printf '\n```text\n$ virtctl console testvm\n'
    # Control sequences are the guest's to its terminal.
    tr -d '\r' <"$work/console" | sed 's/\x1b\[[0-9;?]*[A-Za-z]//g' | grep -v '^ *$' | tail -n 8
    printf '# a shell after %s s\n```\n' $((SECONDS - begun))
}

boots() {
    run "kubectl apply -f vm-tiny.yaml"
    run "virtctl start testvm"
    run "kubectl wait vm/testvm --for=condition=Ready --timeout=5m"
    console
}

instance() { kubectl get vmi testvm -o 'jsonpath={.metadata.uid} {.status.phase}'; }

verify() {
    run "sha256sum --quiet --check SHA256SUMS && echo the files are those of SHA256SUMS"
    [[ ! -f SHA256SUMS.sig ]] ||
        run "openssl dgst -sha256 -verify cosign.pub -signature <(base64 -d SHA256SUMS.sig) SHA256SUMS"
}

by_helm() {
    title "$(version "$older") by Helm"
    use "$older"
    verify
    run "virtctl doctor || true"
    run "helm install barevirt $(version "$older").tgz --set $emulate"
    run "kubectl -n kubevirt wait kubevirt/kubevirt --for=condition=Available --timeout=10m"
    run "virtctl status"
    run "virtctl version"
}

first_machine() {
    title "A first machine"
    boots
    if [[ -n ${UI_CHECK:-} ]]; then
        run "VIRTCTL=$work/bin/virtctl MACHINE=$PWD/vm-tiny.yaml node $here/../virtctl/ui/test/page.mjs"
    fi
}

upgrade() {
    local before
    title "From $(version "$older") to $(version "$newer"), with Helm, under a running guest"
    before=$(instance)
    use "$newer"
    run "helm upgrade barevirt $(version "$newer").tgz --reset-then-reuse-values"
    run "kubectl -n kubevirt wait kubevirt/kubevirt --for=jsonpath='{.status.observedKubeVirtVersion}'=v$(version "$newer" | sed 's/^barevirt-//') --timeout=10m"
    run "kubectl -n kubevirt wait kubevirt/kubevirt --for=condition=Progressing=False --timeout=10m"
    run "virtctl status"
    run "virtctl version"
    [[ $(instance) == "$before" ]] || fail "the guest did not run on: $before became $(instance)"
    console
}

removal() {
    title "Removal of $1"
    run "kubectl -n kubevirt delete kubevirt kubevirt --timeout=5m"
    if [[ $1 == Helm* ]]; then
        run "helm uninstall barevirt"
        run "kubectl delete namespace kubevirt && kubectl delete priorityclass kubevirt-cluster-critical && kubectl delete crd kubevirts.kubevirt.io"
    else
        run "kubectl delete -f barevirt-operator.yaml"
    fi
    run "kubectl get crd,clusterrole,clusterrolebinding,mutatingwebhookconfiguration,validatingwebhookconfiguration,apiservice,priorityclass,validatingadmissionpolicy -o name | grep -i -e kubevirt -e barevirt || echo nothing of it is left"
    grep -qx "nothing of it is left" "$work/said" || fail "something is left"
}

by_manifest() {
    title "$(version "$newer") by manifest"
    run "kubectl apply -f barevirt-operator.yaml"
    run "kubectl apply -f barevirt-cr.yaml"
    run "kubectl -n kubevirt patch kubevirt kubevirt --type=merge -p '{\"spec\": {\"configuration\": {\"developerConfiguration\": {\"useEmulation\": true}}}}'"
    run "kubectl -n kubevirt wait kubevirt/kubevirt --for=condition=Available --timeout=10m"
    boots
}

by_virtctl() {
    title "$(version "$newer") by virtctl"
    run "virtctl install --use-emulation"
    boots
}

by_helm
first_machine
[[ $older == "$newer" ]] || upgrade
removal "Helm's installation"
by_manifest
removal "the manifest's installation"
by_virtctl
removal "virtctl's installation"
