#!/usr/bin/env bash
# Installs what is built on the cluster: loads the images, applies the
# manifests, and waits until the components run. What did not change stays;
# a component whose image changed is rolled out anew.
#
#   cluster-up/sync.sh
#
# KUBE_PROVIDER=external installs on the cluster of KUBECONFIG instead, and
# pushes the images to REGISTRY (host[:port][/path]), from where its nodes must
# be able to pull. REGISTRY_INSECURE=1 allows a registry without TLS.
# SYNC_TIMEOUT       seconds to wait for the components (180)
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
# shellcheck source=cluster-up/common.sh
source "$here/common.sh"
# shellcheck source=cluster-up/archives.sh
source "$here/archives.sh"

provider=${KUBE_PROVIDER:-local}
images=${CARGO_TARGET_DIR:-$repository/target}/images
timeout=${SYNC_TIMEOUT:-180}
components=(deployment/virt-controller deployment/virt-api daemonset/virt-handler)
# The prefix that images are built with.
built_prefix=localhost

find_archives() {
    shopt -s nullglob
    archives=("$images"/*.oci.tar)
    shopt -u nullglob
    [[ ${#archives[@]} -gt 0 ]] || die "no images in $images: make images"
}

# The caller's own kubectl, or the one built for the local cluster.
external_kubectl() {
    command -v kubectl || {
        local built
        built=$(binary_directory kubernetes)/kubectl
        [[ -x $built ]] || die "no kubectl in PATH"
        echo "$built"
    }
}

kube() {
    if [[ $provider == external ]]; then command "$(external_kubectl)" "$@"; else kubectl "$@"; fi
}

# Pushes every archive through a store of this run.
push_archives() {
    local store archive name identity
    store=$(mktemp -d)
    # shellcheck disable=SC2064 # the directory as it is now
    trap "rm -rf '$store'" EXIT
    local buildah=(buildah --root "$store/root" --runroot "$store/run" --storage-driver vfs)
    local verify=true
    [[ -z ${REGISTRY_INSECURE:-} ]] || verify=false
    for archive in "${archives[@]}"; do
        while read -r name _; do
            say "pushing $REGISTRY/${name#"$built_prefix"/}"
            identity=$("${buildah[@]}" pull --quiet "oci-archive:$archive")
            "${buildah[@]}" push --quiet --tls-verify="$verify" "$identity" "docker://$REGISTRY/${name#"$built_prefix"/}" ||
                die "could not push $name to $REGISTRY: does it run, and are you logged in (buildah login)?"
        done < <(archive_images "$archive")
    done
}

# {"image name": "digest"} of all archives, with names as the cluster sees them.
digests() {
    local archive
    for archive in "${archives[@]}"; do
        archive_images "$archive"
    done | jq -Rn --arg from "$built_prefix/" --arg to "$prefix/" '
        [inputs | split(" ") | {key: (.[0] | sub("^" + $from; $to)), value: .[1]}] | from_entries'
}

# The manifests as JSON, with the images' registry replaced and each pod
# template naming the digests of its images, so that a new build under the same
# tag is a new revision.
prepared_manifests() {
    kube create --dry-run=client --validate=false -o json -f "$repository/manifests/barevirt.yaml" |
        jq -s --arg from "$built_prefix/barevirt/" --arg to "$prefix/barevirt/" --argjson digests "$(digests)" '
            map(if .kind == "List" then .items[] else . end)
            | map(walk(if type == "string" then gsub("(?<before>^|=)" + $from; .before + $to) else . end))
            | map(if .spec.template.spec.containers? then
                  .spec.template.metadata.annotations["cluster-up.barevirt.dev/images"] =
                      ([.spec.template.spec | (.initContainers // [])[], .containers[] | .image]
                       | unique | map("\(.)@\($digests[.] // "unknown")") | join(" "))
              else . end)
            | {apiVersion: "v1", kind: "List", items: .}'
}

apply() { kube apply --server-side --force-conflicts --field-manager=cluster-up -f - >/dev/null; }

crd_is_established() {
    [[ $(kube get crd kubevirts.kubevirt.io -o 'jsonpath={.status.conditions[?(@.type=="Established")].status}') == True ]]
}

wait_for_components() {
    local component deadline=$((SECONDS + timeout)) left
    for component in "${components[@]}"; do
        say "waiting for $component"
        left=$((deadline - SECONDS))
        ((left > 0)) || left=1
        kube -n kubevirt rollout status "$component" --timeout "${left}s" >/dev/null || {
            kube -n kubevirt get pods -o wide >&2
            kube -n kubevirt get events --sort-by .lastTimestamp 2>/dev/null | tail -n 15 >&2
            die "$component is not rolled out after $timeout s"
        }
    done
}

main() {
    local archives=() prefix=$built_prefix started=$SECONDS
    find_archives
    [[ -f $repository/manifests/barevirt.yaml ]] || die "manifests/barevirt.yaml is missing: make manifests"
    case $provider in
        local)
            [[ -f $run/complete ]] || die "the cluster is not up: make cluster-up"
            "$here/load.sh" "${archives[@]}"
            ;;
        external)
            [[ -n ${KUBECONFIG:-} ]] || die "KUBE_PROVIDER=external needs KUBECONFIG, the cluster to install on"
            [[ -n ${REGISTRY:-} ]] || die "KUBE_PROVIDER=external needs REGISTRY, where the cluster pulls from"
            prefix=$REGISTRY
            push_archives
            ;;
        *) die "KUBE_PROVIDER is local or external, not $provider" ;;
    esac
    say "applying manifests"
    prepared_manifests | apply
    wait_for 30 "definition of the KubeVirt kind" crd_is_established
    apply <"$here/kubevirt-cr.yaml"
    wait_for_components
    say "Barevirt runs after $((SECONDS - started)) s; try cluster-up/kubectl.sh -n kubevirt get pods"
}

main
