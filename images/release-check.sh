#!/usr/bin/env bash
# Tests a release: its files match SHA256SUMS, whose signature is valid; manifest and chart name every image by the
# digest of its archive, and make the same objects; programs report their version; bills of materials are complete.
#
#   HELM=.../helm images/release-check.sh [FOLDER]       the release (default: dist)
set -euo pipefail
shopt -s inherit_errexit nullglob
export LC_ALL=C
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
# shellcheck source=cluster-up/archives.sh
source "$here/../cluster-up/archives.sh"
release=$(realpath "${1:-$here/../dist}")
helm=${HELM:-helm}

fail() { printf 'release-check: %s\n' "$*" >&2; exit 1; }

# references FILE: all references of our images in a stream of YAML.
references() { grep -oE '[^ "]+/(virt-(operator|api|controller|handler|importer|launcher|passt)|guest-tiny)[:@][^ "]+' "$1" | sort -u; }

sums() {
    local listed there
    (cd "$release" && sha256sum --quiet --check SHA256SUMS) || fail "files are not those of SHA256SUMS"
    listed=$(sed 's/^[0-9a-f]*  //' "$release/SHA256SUMS" | sort)
    there=$(cd "$release" && find . -type f ! -name 'SHA256SUMS*' ! -name cosign.pub -printf '%P\n' | sort)
    [[ $listed == "$there" ]] || fail "SHA256SUMS has not all files"
    if [[ -f $release/SHA256SUMS.sig ]]; then
        openssl dgst -sha256 -verify "$release/cosign.pub" -signature <(base64 -d "$release/SHA256SUMS.sig") "$release/SHA256SUMS" >/dev/null ||
            fail "the signature is not of SHA256SUMS"
    fi
}

images() {
    local archive name digest known=() reference
    for archive in "$release"/*.oci.tar; do
        read -r name digest < <(archive_images "$archive")
        known+=("${name%:*}@$digest")
    done
    [[ ${#known[@]} -ge 7 ]] || fail "there are ${#known[@]} images"
    "$helm" template barevirt "$release"/barevirt-*.tgz --include-crds --kube-version v1.34.0 >"$work/chart.yaml"
    for file in "$release/barevirt-operator.yaml" "$release/vm-tiny.yaml" "$work/chart.yaml"; do
        while read -r reference; do
            [[ " ${known[*]} " == *" $reference "* ]] || fail "$file names $reference, which is no image of this release"
        done < <(references "$file")
    done
    [[ $(references "$release/barevirt-operator.yaml" | wc -l) == 7 ]] || fail "the manifest does not name seven images"
    diff <(references "$release/barevirt-operator.yaml") <(references "$work/chart.yaml") >/dev/null ||
        fail "manifest and chart name different images"
    diff <(kinds "$release/barevirt-operator.yaml" "$release/barevirt-cr.yaml") <(kinds "$work/chart.yaml") ||
        fail "manifest and chart have different objects"
}

# kinds FILE...: kinds of all objects.
kinds() { cat "$@" | sed -n 's/^kind: //p' | sort; }

programs() {
    local version said
    version=$(basename "$release"/barevirt-*.tgz .tgz)
    version=${version#barevirt-}
    said=$("$release/virtctl-v$version-linux-amd64" version --client)
    [[ $said == "Client Version: v$version "* ]] || fail "virtctl says: $said"
    # It looks for its page before it asks the cluster, here one that is not there.
    printf '{"clusters": [{"name": "none", "cluster": {"server": "https://127.0.0.1:1"}}], "users": [{"name": "nobody"}],
        "contexts": [{"name": "none", "context": {"cluster": "none", "user": "nobody"}}], "current-context": "none"}' >"$work/kubeconfig"
    said=$(KUBECONFIG=$work/kubeconfig timeout 10 "$release/virtctl-v$version-linux-amd64" ui 2>&1 || true)
    [[ $said != *"without its page"* ]] || fail "virtctl ui has no page: $said"
    "$helm" lint --strict "$release/barevirt-$version.tgz" >/dev/null || fail "helm does not like the chart"
    "$helm" show chart "$release/barevirt-$version.tgz" | grep -qx "version: $version" || fail "the chart has another version"
}

materials() {
    local name file
    for name in virt-operator virt-api virt-controller virt-handler virt-launcher virt-passt virt-importer virtctl; do
        file=$release/$name.cdx.json
        jq -e '
            .bomFormat == "CycloneDX" and .specVersion == "1.5" and (.components | length) > 50
            and ([.components[]."bom-ref"] | length == (unique | length))
            and (([.dependencies[].dependsOn[]] | unique) - [.components[]."bom-ref"] == [])
            ' "$file" >/dev/null || fail "$file is no whole bill of materials"
    done
    jq -e 'any(.components[]; .name == "qemu-system-x86")' "$release/virt-launcher.cdx.json" >/dev/null ||
        fail "the launcher's bill of materials has no QEMU"
    jq -e 'any(.components[]; .name == "passt")' "$release/virt-passt.cdx.json" >/dev/null ||
        fail "the bill of materials of virt-passt has no passt"
}

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
for step in sums images programs materials; do
    printf 'release-check: %s\n' "$step"
    "$step"
done
