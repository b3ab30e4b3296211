#!/usr/bin/env bash
# Makes a release in dist/: images, manifests, a chart, virtctl, bills of materials, checksums, signatures.
#
#   images/release.sh VERSION          VERSION as 1.2.3 or 1.2.3-rc.1, without a v
#
# The result depends only on the commit and the Debian packages in the cache. docs/releasing.md says more.
#
# Environment:
#   REGISTRY      where the images will be pulled from, host[:port][/path] (default: localhost)
#   RELEASE_URL   where the files will be downloaded from, for krew (default: https://localhost/VERSION)
#   SIGNING_KEY   file with an ECDSA P-256 key, PEM; without it nothing is signed
#   OUT           folder of the release, which is made again (default: dist)
#   IMAGES        folder with images of this commit and version that are built already (images/build.sh with OUT)
#   TOOLS         folder with manifests, sbom and virtctl (for this machine) that are built already
#   REHEARSAL     1: allow uncommitted changes, and IMAGES and TOOLS of another commit. Never publish the result
# Needs what images/build.sh needs, and: git, jq, openssl, node, npm.
set -euo pipefail
shopt -s inherit_errexit
umask 022
export LC_ALL=C
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
top=$(dirname "$here")
# shellcheck source=cluster-up/archives.sh
source "$top/cluster-up/archives.sh"

out=$(realpath -m "${OUT:-$top/dist}")
registry=${REGISTRY:-localhost}
rehearsal=${REHEARSAL:-}
# The images of an installation, and a guest to try it with.
components=(virt-operator virt-api virt-controller virt-handler virt-launcher virt-passt virt-importer)
guest="guest-tiny"
# Platforms of virtctl: Rust's target, system and architecture.
platforms=("x86_64-unknown-linux-musl linux amd64" "aarch64-unknown-linux-musl linux arm64")

die() { printf 'release: %s\n' "$*" >&2; exit 1; }
say() { printf 'release: %s\n' "$*" >&2; }
# Reports a problem, which only a rehearsal may have.
doubt() { if [[ $rehearsal ]]; then say "rehearsal: $*"; else die "$*"; fi; }

# Sets the environment from which all parts of the release get version and commit.
settle() {
    local number='(0|[1-9][0-9]*)'
    [[ $1 =~ ^$number\.$number\.$number(-[0-9A-Za-z.-]+)?$ ]] || die "$1 is no semantic version without build metadata, such as 1.2.3"
    [[ $registry != */ ]] || die "REGISTRY has a slash at its end"
    [[ -z $(git -C "$top" status --porcelain) ]] || doubt "there are uncommitted changes: a release is of a commit"
    BAREVIRT_VERSION=$1
    BAREVIRT_COMMIT=$(git -C "$top" rev-parse HEAD)
    SOURCE_DATE_EPOCH=$(git -C "$top" log -1 --format=%ct)
    BAREVIRT_BUILD_DATE=$(date --utc --date "@$SOURCE_DATE_EPOCH" +%Y-%m-%dT%H:%M:%SZ)
    export BAREVIRT_VERSION BAREVIRT_COMMIT BAREVIRT_BUILD_DATE SOURCE_DATE_EPOCH
    # Programs must not contain paths of this machine. A change of these flags recompiles everything, so this has its
    # own target folder.
    export CARGO_TARGET_DIR=${CARGO_TARGET_DIR:-$top/target}/release-build
    export RUSTFLAGS="--remap-path-prefix=${CARGO_HOME:-$HOME/.cargo}=/cargo --remap-path-prefix=$CARGO_TARGET_DIR=/target --remap-path-prefix=$top=/barevirt"
}

# pack FOLDER NAME...: a tar of these, the same for the same files.
pack() {
    tar --directory "$1" --sort=name --mtime "@$SOURCE_DATE_EPOCH" --owner 0 --group 0 --numeric-owner --format gnu -cf - "${@:2}"
}

reference() { echo "$registry/barevirt/$1:v$BAREVIRT_VERSION"; }
digest() { archive_images "$out/$1.oci.tar" | sed 's/.* //'; }

# label ARCHIVE NAME: a label of the image in an archive.
label() {
    local manifest config
    manifest=$(archive_images "$1" | sed 's/.* sha256:/blobs\/sha256\//')
    config=$(tar -xOf "$1" "$manifest" | jq -r '.config.digest | sub(":"; "/") | "blobs/" + .')
    tar -xOf "$1" "$config" | jq -r --arg name "$2" '.config.Labels[$name] // ""'
}

# images: dist/NAME.oci.tar, each named by REGISTRY and version. An archive contains the time of packing, so it is
# packed again.
images() {
    local name built=${IMAGES:-$work/images} said
    [[ -n ${IMAGES:-} ]] || OUT=$built REGISTRY=$registry TAG=v$BAREVIRT_VERSION "$here/build.sh" "${components[@]}" "$guest" >&2
    for name in "${components[@]}" "$guest"; do
        [[ -f $built/$name.oci.tar ]] || die "$built has no $name.oci.tar"
        said="$(label "$built/$name.oci.tar" org.opencontainers.image.version) $(label "$built/$name.oci.tar" org.opencontainers.image.revision)"
        [[ $said == "v$BAREVIRT_VERSION $BAREVIRT_COMMIT" ]] || doubt "$built/$name.oci.tar is of another build: ${said/# /no version, no commit}"
        mkdir "$work/$name"
        tar --directory "$work/$name" -xf "$built/$name.oci.tar"
        jq --arg ref "$(reference "$name")" '.manifests[0].annotations = {"org.opencontainers.image.ref.name": $ref}' \
            "$work/$name/index.json" >"$work/index.json"
        mv "$work/index.json" "$work/$name/index.json"
        pack "$work/$name" index.json oci-layout blobs >"$out/$name.oci.tar"
        rm -rf "${work:?}/$name"
        [[ ! -f $built/$name.packages ]] || cp "$built/$name.packages" "$work/"
    done
}

# program NAME [TRIPLE]: its path.
program() {
    if [[ -n ${TOOLS:-} ]]; then
        [[ -x $TOOLS/$1 ]] || die "$TOOLS has no $1"
        echo "$TOOLS/$1"
    else
        TRIPLE=${2:-} "$here/build.sh" --program "$1"
    fi
}

# Manifests, the chart, and a machine to begin with, all with images by digest.
manifests() {
    local name arguments=()
    for name in "${components[@]}"; do arguments+=(--digest "$name=$(digest "$name")"); done
    "$(program manifests)" --out "$work/manifests" --registry "$registry/barevirt" --tag "v$BAREVIRT_VERSION" \
        --chart-version "$BAREVIRT_VERSION" "${arguments[@]}"
    cp "$work/manifests/"*.yaml "$out/"
    cp "$top/manifests/grafana/barevirt.json" "$out/grafana-dashboard.json"
    mv "$work/manifests/chart" "$work/barevirt"
    pack "$work" barevirt | gzip -9n >"$out/barevirt-$BAREVIRT_VERSION.tgz"
    sed "s|image: localhost/barevirt/$guest:devel|image: $registry/barevirt/$guest@$(digest "$guest")|" "$top/examples/vm-tiny.yaml" >"$out/vm-tiny.yaml"
    grep -q "@sha256:" "$out/vm-tiny.yaml" || die "examples/vm-tiny.yaml does not name $guest as it did"
}

# can_build TRIPLE: whether this machine can build for that target.
can_build() {
    case $1 in
        aarch64-*) [[ -z ${TOOLS:-} ]] || return 1 ;;&
        aarch64-*)
            rustup target list --installed | grep -qxF "$1" &&
                "${CC_aarch64_unknown_linux_musl:-aarch64-linux-gnu-gcc}" -E - <<<'#include <stdint.h>' >/dev/null 2>&1
            ;;
        *) true ;;
    esac
}

virtctl() {
    local platform triple system architecture name
    # The page of `virtctl ui` becomes part of the program.
    [[ -n ${TOOLS:-} ]] || node "$top/virtctl/ui/build.mjs"
    # So do the manifests, for `virtctl install`; hence the program depends on the registry.
    export BAREVIRT_MANIFESTS=$out
    for platform in "${platforms[@]}"; do
        read -r triple system architecture <<<"$platform"
        if ! can_build "$triple"; then
            say "no virtctl for $system/$architecture: it takes \`cluster-up/deps.sh arm64\`, and no TOOLS"
            continue
        fi
        name=virtctl-v$BAREVIRT_VERSION-$system-$architecture
        mkdir -p "$work/$name"
        install -m 755 "$(program virtctl "$triple")" "$work/$name/virtctl"
        install -m 644 "$top/LICENSE" "$work/$name/LICENSE"
        install -m 755 "$work/$name/virtctl" "$out/$name"
        pack "$work/$name" virtctl LICENSE | gzip -9n >"$out/$name.tar.gz"
    done
}

# The manifest of a plugin for krew: `kubectl virt`, KubeVirt's name for it.
krew() {
    local url=${RELEASE_URL:-https://localhost/v$BAREVIRT_VERSION} platform triple system architecture file
    {
        cat <<END
apiVersion: krew.googlecontainertools.github.com/v1alpha2
kind: Plugin
metadata:
  name: virt
spec:
  version: v$BAREVIRT_VERSION
  homepage: ${url%/releases/*}
  shortDescription: Control virtual machines of Barevirt and KubeVirt
  description: |
    Starts, stops and changes virtual machines of Barevirt and KubeVirt, opens
    their consoles and displays, and talks to QEMU.
  platforms:
END
        for platform in "${platforms[@]}"; do
            read -r triple system architecture <<<"$platform"
            file=virtctl-v$BAREVIRT_VERSION-$system-$architecture.tar.gz
            [[ -f $out/$file ]] || continue
            cat <<END
  - selector:
      matchLabels:
        os: $system
        arch: $architecture
    uri: $url/$file
    sha256: $(sha256sum "$out/$file" | cut -c 1-64)
    files:
    - from: virtctl
      to: .
    - from: LICENSE
      to: .
    bin: virtctl
END
        done
    } >"$out/krew-virt.yaml"
}

# A bill of materials for each image and for virtctl: crates of its programs, and packages of Debian.
materials() {
    local name package packages crates
    (cd "$top" && cargo metadata --locked --format-version 1 --filter-platform x86_64-unknown-linux-musl) >"$work/metadata.json"
    for name in "${components[@]}" virtctl; do
        case $name in
            virt-operator) crates=(barevirt-install) ;;
            virt-launcher) crates=(virt-launcher container-disk) ;;
            virt-passt) crates=(virt-launcher) ;;
            *) crates=("$name") ;;
        esac
        (cd "$top" && cargo tree --locked --edges normal,no-proc-macro --target x86_64-unknown-linux-musl --prefix none \
            --no-dedupe --format '{p}' "${crates[@]/#/--package=}") >"$work/tree"
        packages=()
        for package in "${crates[@]}"; do packages+=(--crate "$package"); done
        if [[ -f $work/$name.packages ]]; then packages+=(--packages "$work/$name.packages"); fi
        if [[ $name != virtctl ]]; then packages+=(--image "$(reference "$name")" --digest "$(digest "$name")"); fi
        "$(program sbom)" --metadata "$work/metadata.json" --tree "$work/tree" --lock "$top/Cargo.lock" \
            --name "$name" --release "$BAREVIRT_VERSION" --time "$BAREVIRT_BUILD_DATE" "${packages[@]}" >"$out/$name.cdx.json"
    done
}

# sign FILE: FILE.sig, what `cosign sign-blob --key` writes: the signature, ASN.1, as base64.
sign() {
    openssl pkey -in "$SIGNING_KEY" -noout -text 2>/dev/null | grep -q 'NIST CURVE: P-256' || die "$SIGNING_KEY is no ECDSA key on P-256"
    openssl dgst -sha256 -sign "$SIGNING_KEY" "$1" | base64 -w 0 >"$1.sig"
    openssl pkey -in "$SIGNING_KEY" -pubout -out "$out/cosign.pub"
}

finish() {
    (cd "$out" && find . -type f ! -name SHA256SUMS -printf '%P\n' | sort | xargs -d '\n' sha256sum) >"$work/SHA256SUMS"
    mv "$work/SHA256SUMS" "$out/SHA256SUMS"
    if [[ -n ${SIGNING_KEY:-} ]]; then
        sign "$out/SHA256SUMS"
    else
        say "nothing is signed: SIGNING_KEY names no key"
    fi
}

main() {
    [[ $# -eq 1 ]] || die "usage: images/release.sh VERSION"
    local work step
    settle "$1"
    work=$(mktemp -d)
    # shellcheck disable=SC2064 # the folder as it is now
    trap "rm -rf --one-file-system '$work'" EXIT
    [[ ! -d $out || -f $out/SHA256SUMS || -z $(ls -A "$out") || $out == "$top/dist" ]] || die "$out holds something that is no release"
    rm -rf --one-file-system "$out"
    mkdir -p "$out"
    # This file marks the folder as a release; an empty list means that it is incomplete.
    : >"$out/SHA256SUMS"
    [[ $registry != localhost ]] || say "REGISTRY is localhost: good for trying on this machine only"
    for step in images manifests virtctl krew materials finish; do
        say "$step"
        "$step"
    done
    [[ -z $rehearsal ]] || say "this was a rehearsal: do not publish $out"
    say "$out is release v$BAREVIRT_VERSION of commit $BAREVIRT_COMMIT"
}

main "$@"
