#!/usr/bin/env bash
# Pushes the images of a release to the registry in their names, and checks that they have the same digests there.
#
#   images/push.sh [FOLDER]            the release (default: dist)
#
# Log in first: skopeo login REGISTRY. REGISTRY_INSECURE=1 allows a registry without TLS. PUSH_TO=host[:port] is the address of the
# registry for this machine, if clusters use another name for it.
# Needs skopeo and jq.
set -euo pipefail
shopt -s inherit_errexit nullglob
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
# shellcheck source=cluster-up/archives.sh
source "$here/../cluster-up/archives.sh"

die() { printf 'push: %s\n' "$*" >&2; exit 1; }

main() {
    local release=${1:-$here/../dist} verify=true archive name digest there archives
    archives=("$release"/*.oci.tar)
    command -v skopeo >/dev/null || die "there is no skopeo: apt-get install skopeo"
    [[ ${#archives[@]} -gt 0 ]] || die "$release is no release: make release VERSION=..."
    [[ -z ${REGISTRY_INSECURE:-} ]] || verify=false
    for archive in "${archives[@]}"; do
        read -r name digest < <(archive_images "$archive")
        [[ $name != localhost/* ]] || die "$archive is named after localhost: make release with REGISTRY=..."
        name=${PUSH_TO:-${name%%/*}}/${name#*/}
        printf 'push: %s\n' "$name"
        # Unchanged: a layer that is compressed again has another digest.
        skopeo copy --quiet --preserve-digests --dest-tls-verify="$verify" "oci-archive:$archive" "docker://$name"
        there=sha256:$(skopeo inspect --raw --tls-verify="$verify" "docker://$name" | sha256sum | cut -c 1-64)
        [[ $there == "$digest" ]] || die "$name is $there there, and $digest here"
    done
}

main "$@"
