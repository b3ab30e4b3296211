#!/usr/bin/env bash
# Tests the launcher image: unpacks it, checks its contents, and boots guest-tiny with it to its login prompt, with
# only the image's own files, as user 107 without capabilities. Takes about 15 s.
#
#   images/check.sh        after images/build.sh virt-launcher guest-tiny
#
# Needs root (for chroot), zstd, binutils, jq.
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
images=${CARGO_TARGET_DIR:-$(dirname "$here")/target}/images
limit_mb=30
# In CI our two programs are not optimised.
[ -z "${WITH_TESTS:-}" ] || limit_mb=34
boot_seconds=90

fail() { printf 'images/check.sh: %s\n' "$*" >&2; exit 1; }
[ "$(id -u)" = 0 ] || fail "run me as root: I need chroot"
for file in virt-launcher.oci.tar guest-tiny.oci.tar guest-tiny.qcow2; do
    [ -f "$images/$file" ] || fail "$images/$file is missing: images/build.sh virt-launcher guest-tiny"
done
work=$(mktemp -d)
qemu='' shares=''
finish() {
    [ -z "$qemu" ] || kill "$qemu" 2>/dev/null || true
    [ -z "$shares" ] || kill "$shares" 2>/dev/null || true
    ! mountpoint -q "$work/tree/proc" || umount -l "$work/tree/proc"
    rm -rf --one-file-system "$work"
}
trap finish EXIT

# open_archive FILE FOLDER: sets $layers (lines "size digest") and $config; blob DIGEST and layer DIGEST read from it.
open_archive() {
    archive=$2
    mkdir -p "$archive"
    tar -C "$archive" -xf "$1"
    local manifest
    manifest=$(blob "$(jq -r '.manifests[0].digest' "$archive/index.json")")
    layers=$(jq -r '.layers[] | "\(.size) \(.digest)"' "$manifest")
    config=$(blob "$(jq -r .config.digest "$manifest")")
}
blob() { echo "$archive/blobs/${1/://}"; }
layer() {
    case $(head -c 4 "$(blob "$1")" | od -An -tx1 | tr -d ' ') in
        28b52ffd) zstd -qdc "$(blob "$1")" ;;
        1f8b*) gzip -dc "$(blob "$1")" ;;
        *) fail "the layers are not compressed" ;;
    esac
}

# The container disk: only user 107 may read it.
open_archive "$images/guest-tiny.oci.tar" "$work/guest"
listing=$(while read -r _ digest; do layer "$digest" | tar --numeric-owner -tvf -; done <<<"$layers")
grep -q '^-r--r----- 107/107 .*disk/disk.qcow2$' <<<"$listing" || fail "the container disk is not 107's alone: $listing"

tree=$work/tree
mkdir -p "$tree"
open_archive "$images/virt-launcher.oci.tar" "$work/launcher"
while read -r _ digest; do layer "$digest" | tar -C "$tree" -xf -; done <<<"$layers"
size=$(awk '{ n += $1 } END { print n }' <<<"$layers")
[ "$size" -le $((limit_mb * 1000000)) ] || fail "the image has $size bytes, more than $limit_mb MB"
[ "$(jq -r .config.User "$config")" = 107:107 ] || fail "the image does not run as user 107"

# It contains only our programs, QEMU, swtpm and virtiofsd, libraries, firmware, and the account.
others=$(find "$tree" ! -type d -printf './%P\n' | grep -v -x -e './usr/bin/\(virt-launcher\|container-disk\|qemu-system-x86_64\|swtpm\)' \
    -e './usr/libexec/virtiofsd' -e './usr/share/\(qemu\|seabios\|OVMF\)/.*' -e '.*/[^/]*\.so\(\.[0-9a-z.]*\)\?' -e './etc/\(passwd\|group\)' || true)
[ -z "$others" ] || fail "unexpected files in the image: $others"
for program in virt-launcher container-disk; do
    if readelf -lW "$tree/usr/bin/$program" | grep -q INTERP; then fail "$program is not static"; fi
done

# The devices of a pod, and the disk. Then QEMU as the launcher would run it.
mkdir -p "$tree/dev" "$tree/work"
mknod -m 666 "$tree/dev/null" c 1 3
mknod -m 666 "$tree/dev/urandom" c 1 9
install -m 600 -o 107 -g 107 "$images/guest-tiny.qcow2" "$tree/work/disk.qcow2"
chown 107:107 "$tree/work"
mkfifo "$work/console"

# virtiofsd, as its container runs it.
mkdir -p "$tree/proc"
mount -t proc proc "$tree/proc"
install -d -o 107 -g 107 "$tree/work/shared"
setpriv --no-new-privs chroot --userspec=107:107 --groups= "$tree" /usr/bin/virt-launcher filesystem \
    --volume shared --directory /work/shared --sockets /work >"$work/shares" 2>&1 &
shares=$!
for _ in $(seq 100); do [ ! -S "$tree/work/shared.sock" ] || break; sleep 0.1; done

setpriv --no-new-privs chroot --userspec=107:107 --groups= "$tree" /usr/bin/qemu-system-x86_64 \
    -nodefaults -no-user-config -display none -vnc unix:/work/vnc \
    -sandbox on,obsolete=deny,elevateprivileges=deny,spawn=deny,resourcecontrol=deny \
    -machine q35,memory-backend=ram -object memory-backend-memfd,id=ram,size=128M,share=on \
    -accel tcg,tb-size=64 -cpu max -m 128 -device VGA \
    -chardev socket,id=shared,path=/work/shared.sock -device vhost-user-fs-pci,chardev=shared,tag=shared \
    -device pcie-root-port,id=port1,chassis=1 -device pcie-root-port,id=port2,chassis=2 -device pcie-root-port,id=port3,chassis=3 \
    -drive if=none,id=disk,file=/work/disk.qcow2,format=qcow2 -device virtio-blk-pci,drive=disk,bus=port1,bootindex=1 \
    -netdev user,id=net -device virtio-net-pci,netdev=net,bus=port2 \
    -object rng-random,id=rng,filename=/dev/urandom -device virtio-rng-pci,rng=rng,bus=port3 \
    -device qemu-xhci,id=usb -chardev socket,id=slot,path=/work/usb,server=on,wait=off -device usb-redir,chardev=slot,bus=usb.0 \
    -serial stdio </dev/null >"$work/console" 2>"$work/errors" &
qemu=$!

deadline=$((SECONDS + boot_seconds))
console=
exec 3<"$work/console"
while [[ $console != *' login: '* ]]; do
    read -r -N 1 -t $((deadline > SECONDS ? deadline - SECONDS : 1)) byte <&3 ||
        fail "no login prompt from the guest in $boot_seconds s; QEMU says: $(cat "$work/errors"); virtiofsd says: $(cat "$work/shares"); console: $console"
    console+=$byte
done
[ "$(stat -c %u "/proc/$qemu")" = 107 ] || fail "QEMU does not run as user 107"
[ "$(stat -c %u "/proc/$shares")" = 107 ] || fail "virtiofsd does not run as user 107: $(cat "$work/shares")"
for socket in vnc usb; do [ -S "$tree/work/$socket" ] || fail "QEMU has no socket $socket"; done
awk -v n="$size" -v s="$SECONDS" 'BEGIN { printf "launcher image: %.1f MB compressed, boots guest-tiny to its prompt (%d s)\n", n / 1e6, s }'
