#!/usr/bin/env bash
# Packs the images that every node of the cluster has from the start as OCI
# archives in the cache, and prints their paths: pause, CoreDNS, the provisioner
# of volumes, and busybox as a client and server for tests.
#
#   cluster-up/images.sh
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
# shellcheck source=cluster-up/common.sh
source "$here/common.sh"
# shellcheck source=cluster-up/packing.sh
source "$here/packing.sh"

# Debian's static busybox with a name for each of its programs, and the guests' program for datagrams.
busybox_image() {
    local archive root program version datagrams=$here/../images/guest-tiny/udp.c
    version=$(dpkg-query -W -f='${Version}' busybox-static | tr -c '[:alnum:].\n' -)
    archive=$cache/images/busybox-$version-$(sha256sum "$datagrams" | head -c 12).oci.tar
    if [[ ! -f $archive ]]; then
        mkdir -p "$cache/images"
        root=$(mktemp -d)
        mkdir -p "$root"/{bin,etc,root,tmp}
        chmod 755 "$root"
        chmod 1777 "$root/tmp"
        install -m 755 /bin/busybox "$root/bin/busybox"
        for program in $(/bin/busybox --list); do
            [[ $program == busybox ]] || ln -s busybox "$root/bin/$program"
        done
        musl-gcc -static -Os -s -Wall -Werror -o "$root/bin/udp" "$datagrams"
        echo 'root:x:0:0:root:/root:/bin/sh' >"$root/etc/passwd"
        echo 'root:x:0:' >"$root/etc/group"
        pack "$archive" "$busybox_image" "$root" --entrypoint '[]' --cmd '["/bin/sh"]' --env PATH=/bin
        rm -rf "$root"
    fi
    echo "$archive"
}

program_image pause "$pause_image"
program_image coredns "$coredns_image"
program_image volumes "$volumes_image"
busybox_image
