# Packing images as OCI archives. Sourced by images.sh and addons.sh, never run.
# shellcheck shell=bash
# shellcheck disable=SC2154 # common.sh sets these

# Packs a directory as the root of an image. The arguments after the directory are flags of
# `buildah config`. buildah's store is a directory of this run.
pack() {
    local archive=$1 image=$2 root=$3 store container
    shift 3
    say "packing $image"
    store=$(mktemp -d)
    local buildah=(buildah --root "$store/root" --runroot "$store/run" --storage-driver vfs)
    {
        container=$("${buildah[@]}" from scratch) &&
            "${buildah[@]}" copy "$container" "$root" / &&
            "${buildah[@]}" config "$@" --created-by cluster-up "$container" &&
            "${buildah[@]}" commit --timestamp 0 "$container" "oci-archive:$archive.partial:$image"
    } >"$store/log" 2>&1 || { cat "$store/log" >&2; die "buildah could not pack $image"; }
    mv "$archive.partial" "$archive"
    rm -rf "$store"
}

# An image of one of our binaries.
program_image() {
    local program=$1 image=$2 archive root
    archive=$(binary_directory "$program")/$program.oci.tar
    if [[ ! -f $archive ]]; then
        root=$(mktemp -d)
        install -m 755 "$(binary_directory "$program")/$program" "$root/$program"
        pack "$archive" "$image" "$root" --entrypoint "[\"/$program\"]"
        rm -rf "$root"
    fi
    echo "$archive"
}
