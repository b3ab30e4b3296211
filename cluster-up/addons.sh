#!/usr/bin/env bash
# Adds to the cluster what only some tests need, or removes it again. An installed add-on is
# updated.
#
#   cluster-up/addons.sh NAME...            block rwx registry http s3 proxy prometheus policy
#   cluster-up/addons.sh remove NAME...
#   cluster-up/addons.sh push ARCHIVE NAME  an OCI archive into the add-on
#                                           registry, as $registry_host/NAME
#
# BAREVIRT_HTTP_DIRECTORY   what the add-ons http and s3 serve (target/images)
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
# shellcheck source=cluster-up/common.sh
source "$here/common.sh"
# shellcheck source=cluster-up/packing.sh
source "$here/packing.sh"

addons=(block rwx registry http s3 proxy prometheus policy)
# The name of the registry for pods and nodes, and the address of its Service, from the range that
# is not assigned automatically.
registry_host=registry.test-bed.svc:5000
registry_address=10.96.0.50
http_directory=${BAREVIRT_HTTP_DIRECTORY:-$repository/target/images}
image_prefix=localhost/barevirt-cluster

# An image of one program of a Debian package and of the libraries it loads.
# Prints the archive's path. The package is not installed: an installed one
# starts as a service.
debian_image() {
    local package=$1 program=$2 image=$3 version archive work library
    version=$(apt-cache policy "$package" | awk '$1 == "Candidate:" { print $2 }')
    if [[ -z $version || $version == '(none)' ]]; then
        apt-get update -qq -o DPkg::Lock::Timeout=600 >&2
        version=$(apt-cache policy "$package" | awk '$1 == "Candidate:" { print $2 }')
    fi
    [[ -n $version ]] || die "apt knows no package $package"
    archive=$cache/images/$package-$(tr -c '[:alnum:].\n' - <<<"$version").oci.tar
    if [[ ! -f $archive ]]; then
        mkdir -p "$cache/images"
        work=$(mktemp -d)
        (cd "$work" && apt-get download -qq -o APT::Sandbox::User=root "$package" >&2)
        dpkg-deb -x "$work"/*.deb "$work/tree"
        install -D -m 755 "$(find "$work/tree/usr/bin" "$work/tree/usr/sbin" -name "$program" 2>/dev/null)" "$work/root/$program"
        while read -r library; do
            install -D -m 755 "$library" "$work/root$library"
        done < <(ldd "$work/root/$program" | grep -o '/[^ ]*')
        install -d -m 1777 "$work/root/tmp"
        chmod 755 "$work/root"
        pack "$archive" "$image" "$work/root" --entrypoint "[\"/$program\"]"
        rm -rf "$work"
    fi
    echo "$archive"
}

apply() { kubectl apply --server-side --force-conflicts --field-manager=cluster-up-addons -f - >/dev/null; }

# A manifest of an add-on with its @NAMES@ filled in.
manifest() {
    local name=$1 image=${2:-} directory=${3:-}
    sed -e "s|@IMAGE@|$image|" -e "s|@DIRECTORY@|$directory|" -e "s|@ADDRESS@|$registry_address|" "$here/addons/$name.yaml"
}

rolled_out() {
    kubectl -n test-bed rollout status "deployment/$1" --timeout 120s >/dev/null ||
        die "$1 does not come up: see cluster-up/kubectl.sh -n test-bed describe pods"
}

# The program that both classes of volumes need, beside the one that makes volumes of the class local.
add_volumes() {
    "$here/build.sh" volumes >/dev/null
    "$here/load.sh" "$(program_image volumes "$volumes_image")"
    manifest volumes "$volumes_image" "$run/volumes" | apply
    rolled_out volumes
}

add_block() { add_volumes; manifest block | apply; }
add_rwx() { add_volumes; manifest rwx | apply; }

add_registry() {
    local image=$image_prefix/registry:devel
    "$here/load.sh" "$(debian_image docker-registry docker-registry "$image")"
    mkdir -p "$run/registries/$registry_host"
    cat >"$run/registries/$registry_host/hosts.toml" <<CONFIG
server = "http://$registry_address:5000"

[host."http://$registry_address:5000"]
  capabilities = ["pull", "resolve"]
CONFIG
    manifest registry "$image" "$run/registry" | apply
    rolled_out registry
}

need_http_directory() {
    [[ -d $http_directory ]] || die "there is no $http_directory to serve: make images, or set BAREVIRT_HTTP_DIRECTORY"
}

add_http() {
    need_http_directory
    local image=$image_prefix/nginx:devel
    "$here/load.sh" "$(debian_image nginx nginx "$image")"
    manifest http "$image" "$(realpath "$http_directory")" | apply
    rolled_out http
}

add_s3() {
    need_http_directory
    local image=$image_prefix/s3:devel
    "$here/build.sh" s3 >/dev/null
    "$here/load.sh" "$(program_image s3 "$image")"
    manifest s3 "$image" "$(realpath "$http_directory")" | apply
    rolled_out s3
}

add_proxy() {
    local image=$image_prefix/tinyproxy:devel
    "$here/load.sh" "$(debian_image tinyproxy-bin tinyproxy "$image")"
    manifest proxy "$image" | apply
    rolled_out proxy
}

add_prometheus() {
    local image=$image_prefix/prometheus:devel
    "$here/load.sh" "$(debian_image prometheus prometheus "$image")"
    manifest prometheus "$image" | apply
    rolled_out prometheus
}

add_policy() {
    local image=$image_prefix/policy:devel
    "$here/build.sh" policy >/dev/null
    "$here/load.sh" "$(program_image policy "$image")"
    manifest policy "$image" | apply
    kubectl -n test-bed rollout status daemonset/policy --timeout 120s >/dev/null ||
        die "the policy engine does not come up: see cluster-up/kubectl.sh -n test-bed describe pods"
}

delete() { manifest "$1" | kubectl delete --ignore-not-found --timeout 60s -f - >/dev/null; }

remove_class() {
    local class=$1 left
    left=$(kubectl get persistentvolumes -o json |
        jq -r --arg class "$class" '.items[] | select(.spec.storageClassName == $class) | .spec.claimRef | "\(.namespace)/\(.name)"')
    [[ -z $left ]] || die "there are claims of the class $class, delete them first: $(tr '\n' ' ' <<<"$left")"
    delete "$class"
    [[ -n $(kubectl get storageclass block rwx --ignore-not-found -o name) ]] || delete volumes
}

remove() {
    case $1 in
        block | rwx) remove_class "$1" ;;
        registry)
            delete registry
            rm -rf "$run/registries/$registry_host" "$run/registry"
            ;;
        *) delete "$1" ;;
    esac
}

# This machine reaches the addresses of pods, but not those of Services.
push() {
    local archive=$1 name=$2 store address image
    address=$(kubectl -n test-bed get pods -l app=registry -o 'jsonpath={.items[0].status.podIP}')
    [[ -n $address ]] || die "the registry does not run: cluster-up/addons.sh registry"
    store=$(mktemp -d)
    local buildah=(timeout 300 buildah --root "$store/root" --runroot "$store/run" --storage-driver vfs)
    {
        image=$("${buildah[@]}" pull --quiet "oci-archive:$archive") &&
            "${buildah[@]}" push --tls-verify=false "$image" "docker://$address:5000/$name"
    } >"$store/log" 2>&1 || { cat "$store/log" >&2; rm -rf "$store"; die "the registry did not take $archive"; }
    rm -rf "$store"
    echo "$registry_host/$name"
}

known() { printf '%s\n' "${addons[@]}" | grep -qx -- "$1" || die "no such add-on: $1 (${addons[*]})"; }

main() {
    need_root
    [[ $# -gt 0 ]] || die "usage: addons.sh [remove] NAME..., with NAME of ${addons[*]}"
    [[ -f $run/complete ]] || die "the cluster is not up: make cluster-up"
    local action=add name
    if [[ $1 == push ]]; then
        [[ $# -eq 3 ]] || die "usage: addons.sh push ARCHIVE NAME"
        push "$2" "$3"
        return
    fi
    if [[ $1 == remove ]]; then
        action=remove
        shift
    fi
    for name in "$@"; do known "$name"; done
    [[ $action == remove ]] || apply <"$here/addons/namespace.yaml"
    for name in "$@"; do
        if [[ $action == remove ]]; then remove "$name"; else "add_$name"; fi
        say "$action $name: done"
    done
}

main "$@"
