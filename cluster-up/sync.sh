#!/usr/bin/env bash
# Installs the built images on the cluster: loads them, applies the operator and a KubeVirt object,
# and waits until the operator reports that everything runs. Unchanged components stay; a component
# whose image changed is rolled out again. The images' tag is what they were built with (TAG of
# images/build.sh).
#
#   cluster-up/sync.sh
#
# KUBE_PROVIDER=external installs on the cluster of KUBECONFIG instead, and
# pushes the images to REGISTRY (host[:port][/path]), from where its nodes must
# be able to pull. REGISTRY_INSECURE=1 allows a registry without TLS.
# SYNC_TIMEOUT       seconds to wait for each of operator and components (180)
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
# shellcheck source=cluster-up/common.sh
source "$here/common.sh"
# shellcheck source=cluster-up/archives.sh
source "$here/archives.sh"

provider=${KUBE_PROVIDER:-local}
images=${CARGO_TARGET_DIR:-$repository/target}/images
timeout=${SYNC_TIMEOUT:-180}
# Images whose digests the operator gets, so that it rolls out a changed one.
told=(virt-operator virt-api virt-controller virt-handler virt-launcher virt-passt virt-importer)
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

# The tag that all archives of ours have.
built_tag() {
    local archive tags
    tags=$(for archive in "${told[@]}"; do
        [[ -f $images/$archive.oci.tar ]] || die "$images/$archive.oci.tar is missing: make images"
        archive_images "$images/$archive.oci.tar" | sed 's/ .*//; s/.*://'
    done | sort -u)
    [[ $tags && $tags != *$'\n'* ]] || die "the images of $images have several tags: ${tags//$'\n'/, }; make images with one TAG"
    echo "$tags"
}

# The operator's manifest as JSON, with the images' registry and tag replaced, and the
# digests of all images in the operator's environment: the operator rolls out
# what changed under the same tag, and is itself a new revision.
prepared_manifest() {
    kube create --dry-run=client --validate=false -o json -f "$repository/manifests/barevirt-operator.yaml" |
        jq -s --arg from "$built_prefix/barevirt/" --arg to "$prefix/barevirt/" --arg tag "$tag" --argjson digests "$builds" '
            ($ARGS.positional | map({
                name: (ascii_upcase | gsub("-"; "_") | . + "_DIGEST"),
                value: (. as $image | $digests | to_entries
                        | map(select(.key | test("/" + $image + ":"))) | .[0].value // "unknown"),
            })) as $builds
            | map(if .kind == "List" then .items[] else . end)
            | map(walk(if type == "string" then gsub("(?<before>^|=)" + $from + "(?<name>[a-z-]+):devel$"; .before + $to + .name + ":" + $tag) else . end))
            | map(if .kind == "Deployment" then .spec.template.spec.containers[0].env += $builds else . end)
            | {apiVersion: "v1", kind: "List", items: .}' --args "${told[@]}"
}

apply() { kube apply --server-side --force-conflicts --field-manager=cluster-up -f - >/dev/null; }

crd_is_established() {
    [[ $(kube get crd kubevirts.kubevirt.io -o 'jsonpath={.status.conditions[?(@.type=="Established")].status}') == True ]]
}

# A webhook validates changes of the object. During a rollout it may not answer, so the request is
# repeated; a refusal is final.
apply_kubevirt() {
    local deadline=$((SECONDS + timeout)) said
    until said=$(apply <"$here/kubevirt-cr.yaml" 2>&1); do
        if [[ $said != *"failed calling webhook"* ]] || ((SECONDS >= deadline)); then
            die "the KubeVirt object is not taken: $said"
        fi
        sleep 1
    done
}

show_trouble() {
    kube -n kubevirt get kubevirt kubevirt -o 'jsonpath={range .status.conditions[*]}{.type}={.status} {.reason}: {.message}{"\n"}{end}' >&2 || true
    kube -n kubevirt get pods -o wide >&2
    kube -n kubevirt get events --sort-by .lastTimestamp 2>/dev/null | tail -n 15 >&2
    kube -n kubevirt logs -l kubevirt.io=virt-operator --tail 15 >&2 || true
}

wait_for_operator() {
    say "waiting for deployment/virt-operator"
    kube -n kubevirt rollout status deployment/virt-operator --timeout "${timeout}s" >/dev/null || {
        show_trouble
        die "virt-operator is not rolled out after $timeout s"
    }
}

# Whether the operator has seen the current object and these builds, and everything runs.
kubevirt_is_available() {
    kube -n kubevirt get kubevirt kubevirt -o json | jq -e --argjson digests "$builds" '
        ($ARGS.positional | map(. as $image | $digests | to_entries
            | map(select(.key | test("/" + $image + ":"))) | .[0].value // empty)) as $builds
        | .status.observedGeneration == .metadata.generation
          and (.status.conditions // [] | any(.type == "Available" and .status == "True"))
          and (.status.conditions // [] | any(.type == "Progressing" and .status == "False"))
          and .status.observedDeploymentID == .status.targetDeploymentID
          and (.status.observedDeploymentConfig // "" | . as $config | $builds | all(. as $build | $config | contains($build)))
        ' --args "${told[@]}" >/dev/null
}

wait_for_components() {
    local deadline=$((SECONDS + timeout))
    say "waiting for the KubeVirt to be available"
    until kubevirt_is_available; do
        ((SECONDS < deadline)) || {
            show_trouble
            die "the KubeVirt is not available after $timeout s"
        }
        sleep 0.5
    done
}

main() {
    local archives=() prefix=$built_prefix builds tag started=$SECONDS
    find_archives
    tag=$(built_tag)
    [[ -f $repository/manifests/barevirt-operator.yaml ]] || die "manifests/barevirt-operator.yaml is missing: make manifests"
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
    builds=$(digests)
    say "applying the operator"
    prepared_manifest | apply
    wait_for 30 "definition of the KubeVirt kind" crd_is_established
    wait_for_operator
    apply_kubevirt
    wait_for_components
    say "Barevirt runs after $((SECONDS - started)) s; try cluster-up/kubectl.sh -n kubevirt get pods"
}

main
