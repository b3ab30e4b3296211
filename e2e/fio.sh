#!/usr/bin/env bash
# Prints the path of a disk with fio, for the bench's guests: a static program, from the disk's first byte on, without a file system. It is
# compiled from Debian's sources into the cache if it is not there, in half a minute of processor time.
#
#   e2e/fio.sh
#
# Debian's own package needs Python and the client libraries of Ceph, Gluster, RDMA, NBD and persistent memory.
set -euo pipefail

version=3.33
sum=d2410e13e0f379d061d077cc5ae325835bb7c6186aa7bafc1df954cbc9b014fc
# A guest's disk needs none of these.
without=(native numa rdma rados rbd http gfapi libnfs lex pmem xnvme libzbc tcmalloc dfs)

die() { printf 'e2e/fio.sh: %s\n' "$*" >&2; exit 1; }

# This file decides what is built.
cache=${BAREVIRT_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/barevirt}/fio
disk=$cache/$(sha256sum <"${BASH_SOURCE[0]}" | cut -c 1-16).img
mkdir -p "$cache"
exec 9>"$cache/lock"
flock -w 600 9 || die "another build has held $cache/lock for ten minutes"

if [[ ! -e $disk ]]; then
    # shellcheck disable=SC2016 # apt expands it
    mirror=${MIRROR:-$(apt-get indextargets --format '$(SITE)' 'Created-By: Packages' | grep -v security | head -n 1)}
    [[ -n $mirror ]] || die "no Debian mirror found in apt's sources, set MIRROR"
    work=$(mktemp -d)
    trap 'rm -rf "$work"' EXIT
    # With apt's proxy, if it has one. It compares the checksum.
    /usr/lib/apt/apt-helper -o APT::Sandbox::User=root -o Acquire::Retries=3 download-file \
        "$mirror/pool/main/f/fio/fio_$version.orig.tar.gz" "$work/fio.tar.gz" "SHA256:$sum" >&2
    tar -C "$work" -xf "$work/fio.tar.gz"
    # The job server of an outer make is not for this one. OPTFLAGS would add debugging information.
    unset MAKEFLAGS
    (cd "$work/fio-$version" && ./configure --build-static "${without[@]/#/--disable-}" &&
        make -j"$(nproc)" OPTFLAGS=-ffast-math fio && strip fio) >"$work/log" 2>&1 9>&- ||
        { tail -n 20 "$work/log" >&2; die "fio does not compile"; }
    # A disk has whole sectors. Nothing reads what follows the program.
    truncate -s %1M "$work/fio-$version/fio"
    # Another file system may hold the cache: only the second step is atomic.
    mv "$work/fio-$version/fio" "$cache/new"
    mv "$cache/new" "$disk"
fi
echo "$disk"
