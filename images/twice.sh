#!/usr/bin/env bash
# Builds images twice and compares them: the same commit and the same packages of Debian have to give the same digest.
#
#   images/twice.sh NAME...
#
# Debian's packages and the guest's kernel come from the cache, the images do not.
set -euo pipefail
shopt -s inherit_errexit
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
# shellcheck source=cluster-up/archives.sh
source "$here/../cluster-up/archives.sh"
cache=${BAREVIRT_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/barevirt}

fail() { printf 'twice: %s\n' "$*" >&2; exit 1; }
[[ $# -gt 0 ]] || fail "usage: images/twice.sh NAME..."

work=$(mktemp -d)
trap 'rm -rf --one-file-system "$work"' EXIT
mkdir -p "$cache/debian" "$cache/kernels"
for turn in 1 2; do
    mkdir "$work/$turn"
    ln -s "$cache/debian" "$cache/kernels" "$work/$turn/"
    BAREVIRT_CACHE=$work/$turn OUT=$work/$turn/out REGISTRY=localhost TAG=build-$turn "$here/build.sh" "$@"
done
for name; do
    first=$(archive_images "$work/1/out/$name.oci.tar" | sed 's/.* //')
    second=$(archive_images "$work/2/out/$name.oci.tar" | sed 's/.* //')
    [[ $first == "$second" ]] || fail "$name has two digests: $first, $second"
    printf 'twice: %s is %s both times\n' "$name" "$first"
done
