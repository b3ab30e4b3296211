# Reading OCI archives. Sourced by load.sh and sync.sh, never run.
# shellcheck shell=bash

# The images in an archive: a line each with name and digest.
archive_images() {
    tar -xOf "$1" index.json 2>/dev/null | jq -r '
        .manifests[]
        | (.annotations["io.containerd.image.name"] // .annotations["org.opencontainers.image.ref.name"]) as $name
        | select($name != null) | "\($name) \(.digest)"'
}
