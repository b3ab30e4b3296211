#!/usr/bin/env bash
# Tests a release: its files match SHA256SUMS, whose signature is valid; manifest and chart name every image by the
# digest of its archive, and make the same objects; programs report their version; krew takes its manifest; bills of
# materials are complete.
#
#   HELM=.../helm images/release-check.sh [FOLDER]       the release (default: dist)
#
# virtctl for arm64 runs under qemu-aarch64-static: `cluster-up/deps.sh arm64` installs it. Without it, only the file is looked at.
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
    if [[ -f $release/SHA256SUMS.sig ]]; then signature "$release/SHA256SUMS"; fi
}

# signature FILE: FILE.sig is what cosign expects of a file: one line of base64 with two numbers in ASN.1, by a key on P-256.
signature() {
    local shape
    openssl pkey -pubin -in "$release/cosign.pub" -noout -text | grep -q 'NIST CURVE: P-256' || fail "cosign.pub is no key on P-256"
    [[ $(wc -l <"$1.sig") -le 1 ]] || fail "$1.sig has several lines"
    base64 -d "$1.sig" >"$work/signature" || fail "$1.sig is not base64"
    shape=$(openssl asn1parse -inform DER -in "$work/signature" | sed -E 's/.*(prim|cons): *([A-Z]+).*/\2/' | tr '\n' ' ')
    [[ $shape == "SEQUENCE INTEGER INTEGER " ]] || fail "$1.sig is no signature of ECDSA but $shape"
    openssl dgst -sha256 -verify "$release/cosign.pub" -signature "$work/signature" "$1" >/dev/null || fail "the signature is not of $1"
    # The check has to notice another file.
    ! openssl dgst -sha256 -verify "$release/cosign.pub" -signature "$work/signature" "$release/cosign.pub" >/dev/null 2>&1 ||
        fail "openssl takes the signature for any file"
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
    if [[ -f $release/virtctl-v$version-linux-arm64 ]]; then arm64 "$release/virtctl-v$version-linux-arm64" "$version"; fi
    "$helm" lint --strict "$release/barevirt-$version.tgz" >/dev/null || fail "helm does not like the chart"
    "$helm" show chart "$release/barevirt-$version.tgz" | grep -qx "version: $version" || fail "the chart has another version"
}

# arm64 PROGRAM VERSION: virtctl for that processor, as far as it works without a cluster.
arm64() {
    local said
    readelf -hW "$1" | grep -q 'Machine: *AArch64' || fail "$1 is for another processor"
    ! readelf -lW "$1" | grep -q INTERP || fail "$1 is not static"
    if ! command -v qemu-aarch64-static >/dev/null; then
        printf 'release-check: %s is not run: there is no qemu-aarch64-static\n' "$(basename "$1")"
        return
    fi
    said=$(qemu-aarch64-static "$1" version --client)
    [[ $said == "Client Version: v$2 "* ]] || fail "virtctl for arm64 says: $said"
    said=$(qemu-aarch64-static "$1" options)
    [[ $said == *--kubeconfig* ]] || fail "virtctl for arm64 lists no options: $said"
    diff <(qemu-aarch64-static "$1" explain -f "$release/vm-tiny.yaml") <("${1%arm64}amd64" explain -f "$release/vm-tiny.yaml") >/dev/null ||
        fail "virtctl for arm64 explains vm-tiny.yaml otherwise than that for amd64"
}

# The rules of krew for the manifest of a plugin, and the archives that it names.
krew() {
    local archive digest system architecture bin from files
    # helm reads YAML as krew does, and writes JSON.
    mkdir -p "$work/krew/templates"
    printf 'apiVersion: v2\nname: krew\nversion: 0.0.1\n' >"$work/krew/Chart.yaml"
    cp "$release/krew-virt.yaml" "$work/krew/plugin.yaml"
    echo '{{ .Files.Get "plugin.yaml" | fromYaml | toJson }}' >"$work/krew/templates/plugin.yaml"
    "$helm" template krew "$work/krew" | grep -v '^---$\|^#' >"$work/plugin.json"
    jq -e '
        .apiVersion == "krew.googlecontainertools.github.com/v1alpha2" and .kind == "Plugin"
        and (.metadata.name | test("^[A-Za-z0-9_-]+$"))
        and (.spec | (.version | test("^v[0-9]+\\.[0-9]+\\.[0-9]+(-[0-9A-Za-z.-]+)?$"))
            and (.homepage | startswith("https://"))
            and (.shortDescription | length > 0 and length <= 70 and (contains("\n") | not))
            and (.description | split("\n") | all(length <= 80))
            and (.platforms | length > 0 and ([.[].selector] | length == (unique | length))))
        and all(.spec.platforms[];
            (.selector | keys == ["matchLabels"] and (.matchLabels | keys == ["arch", "os"]))
            and (.uri | startswith("https://")) and (.sha256 | test("^[a-f0-9]{64}$")) and (.bin | length > 0)
            and (.files | length > 0 and all((.from | length > 0) and (.to | length > 0))))
        ' "$work/plugin.json" >/dev/null || fail "krew would refuse krew-virt.yaml"
    while read -r archive digest system architecture bin from; do
        archive=$release/$(basename "$archive")
        [[ $archive == *-$system-$architecture.tar.gz && -f $archive ]] || fail "krew-virt.yaml names $archive for $system on $architecture"
        [[ $(sha256sum "$archive" | cut -c 1-64) == "$digest" ]] || fail "krew-virt.yaml has another digest of $archive"
        files=$(tar -tzf "$archive" | sort | tr '\n' ' ')
        [[ $files == "$from " ]] || fail "$archive has $files, krew-virt.yaml takes $from"
        [[ " $from " == *" $bin "* ]] || fail "krew-virt.yaml runs $bin, which is not in $archive"
        cmp -s <(tar -xOzf "$archive" "$bin") "${archive%.tar.gz}" || fail "$archive has another program than ${archive%.tar.gz}"
    done < <(jq -r '.spec.platforms[] | [.uri, .sha256, .selector.matchLabels.os, .selector.matchLabels.arch, .bin, ([.files[].from] | sort | join(" "))] | join(" ")' "$work/plugin.json")
    [[ $(jq '.spec.platforms | length' "$work/plugin.json") == "$(find "$release" -name 'virtctl-*.tar.gz' | wc -l)" ]] ||
        fail "krew-virt.yaml does not name every archive of virtctl"
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
for step in sums images programs krew materials; do
    printf 'release-check: %s\n' "$step"
    "$step"
done
