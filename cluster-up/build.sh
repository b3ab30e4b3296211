#!/usr/bin/env bash
# Builds the cluster's own programs from Go modules into the cache, or finds
# them there.
#
#   cluster-up/build.sh [group...]   groups: kubernetes containerd etcd cni
#                                    coredns pause volumes; all
#                                    of them by default
#
# A group lives in $cache/bin/<group>-<key>, where the key is a hash of
# everything that decides its content: go.mod, go.sum, sources, flags and the
# Go version. The last line printed for a group is its directory.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
# shellcheck source=cluster-up/common.sh
source "$here/common.sh"

# The linker's flags of a group. Kubernetes asks its own version at run time,
# and clients misbehave when the server answers v0.0.0.
link_flags() {
    local flags="-s -w"
    if [[ $1 == kubernetes ]]; then
        local package version minor
        version=$(kubernetes_version)
        minor=${version#v1.}
        for package in k8s.io/component-base/version k8s.io/client-go/pkg/version; do
            flags+=" -X $package.gitVersion=$version"
            flags+=" -X $package.gitMajor=1 -X $package.gitMinor=${minor%%.*}"
            flags+=" -X $package.gitTreeState=clean"
        done
    fi
    echo "$flags"
}

# Builds one group into its cache directory through a temporary one, so that
# an interrupted build is never taken for a finished one. One call of go builds
# all programs of the group, the tools of its module or the module itself, so
# that the linking of one runs beside the compilation of the others.
build_group() {
    local group=$1 directory=$2 partial=$2.partial.$$ packages=. started=$SECONDS flags
    mkdir -p "$partial"
    flags=$(link_flags "$group")
    ! grep -q '^tool' "$here/go/$group/go.mod" || packages=tool
    say "building $group (a cold build takes minutes)"
    # The programs have no debugging information, so the compiler need not make it. A compiler that collects garbage more rarely takes
    # a third more memory, some hundred MB. Both together save a third of the processor time of the largest packages.
    (cd "$here/go/$group" &&
        CGO_ENABLED=0 GOGC=${GOGC:-400} GOFLAGS="-mod=readonly -p=${BAREVIRT_GO_JOBS:-$(nproc)}" \
            go build -buildvcs=false -trimpath -gcflags all=-dwarf=false -ldflags "$flags" -o "$partial/" "$packages")
    [[ $group != etcd ]] || mv "$partial/server" "$partial/etcd"
    say "built $group in $((SECONDS - started)) s"
    rm -rf "$directory"
    mv "$partial" "$directory"
}

main() {
    local group directory
    for group in "${@:-${binary_groups[@]}}"; do
        directory=$(binary_directory "$group")
        if [[ ! -d $directory ]]; then
            command -v go >/dev/null || die "no Go toolchain: run make deps first"
            build_group "$group" "$directory"
        fi
        echo "$directory"
    done
}

main "$@"
