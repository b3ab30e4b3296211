#!/usr/bin/env bash
# Proves the launcher image: unpacks it, looks at what is in it, and boots guest-tiny from it to its login prompt, with
# nothing but the image's own files, as user 107 without capabilities. Takes about 15 s.
#
#   images/check.sh        after images/build.sh virt-launcher guest-tiny
#
# Needs root (for chroot), zstd, binutils, jq.
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
images=${CARGO_TARGET_DIR:-$(dirname "$here")/target}/images
limit_mb=30
boot_seconds=90

fail() { printf 'images/check.sh: %s\n' "$*" >&2; exit 1; }
[ "$(id -u)" = 0 ] || fail "run me as root: I need chroot"
for file in virt-launcher.oci.tar guest-tiny.qcow2; do
    [ -f "$images/$file" ] || fail "$images/$file is missing: images/build.sh virt-launcher guest-tiny"
done
work=$(mktemp -d)
qemu=
finish() {
    [ -z "$qemu" ] || kill "$qemu" 2>/dev/null || true
    rm -rf --one-file-system "$work"
}
trap finish EXIT

# Unpack.
tree=$work/tree
mkdir -p "$work/archive" "$tree"
tar -C "$work/archive" -xf "$images/virt-launcher.oci.tar"
blob() { echo "$work/archive/blobs/${1/://}"; }
manifest=$(blob "$(jq -r '.manifests[0].digest' "$work/archive/index.json")")
size=0
while read -r bytes digest; do
    size=$((size + bytes))
    case $(head -c 4 "$(blob "$digest")" | od -An -tx1 | tr -d ' ') in
        28b52ffd) zstd -qdc "$(blob "$digest")" ;;
        1f8b*) gzip -dc "$(blob "$digest")" ;;
        *) fail "the layers are not compressed" ;;
    esac | tar -C "$tree" -xf -
done < <(jq -r '.layers[] | "\(.size) \(.digest)"' "$manifest")
[ "$size" -le $((limit_mb * 1000000)) ] || fail "the image has $size bytes, more than $limit_mb MB"
[ "$(jq -r .config.User "$(blob "$(jq -r .config.digest "$manifest")")")" = 107:107 ] || fail "the image does not run as user 107"

# Nothing in it but our programs, QEMU, libraries, firmware, and the account.
others=$(find "$tree" ! -type d -printf './%P\n' | grep -v -x -e './usr/bin/\(virt-launcher\|container-disk\|qemu-system-x86_64\)' \
    -e './usr/share/\(qemu\|seabios\)/.*' -e '.*/[^/]*\.so\(\.[0-9a-z.]*\)\?' -e './etc/\(passwd\|group\)' || true)
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
setpriv --no-new-privs chroot --userspec=107:107 --groups= "$tree" /usr/bin/qemu-system-x86_64 \
    -nodefaults -no-user-config -display none -vnc unix:/work/vnc \
    -sandbox on,obsolete=deny,elevateprivileges=deny,spawn=deny,resourcecontrol=deny \
    -machine q35 -accel tcg,tb-size=64 -cpu max -m 128 -device VGA \
    -device pcie-root-port,id=port1,chassis=1 -device pcie-root-port,id=port2,chassis=2 -device pcie-root-port,id=port3,chassis=3 \
    -drive if=none,id=disk,file=/work/disk.qcow2,format=qcow2 -device virtio-blk-pci,drive=disk,bus=port1,bootindex=1 \
    -netdev user,id=net -device virtio-net-pci,netdev=net,bus=port2 \
    -object rng-random,id=rng,filename=/dev/urandom -device virtio-rng-pci,rng=rng,bus=port3 \
    -serial stdio </dev/null >"$work/console" 2>"$work/errors" &
qemu=$!

deadline=$((SECONDS + boot_seconds))
console=
exec 3<"$work/console"
while [[ $console != *' login: '* ]]; do
    read -r -N 1 -t $((deadline > SECONDS ? deadline - SECONDS : 1)) byte <&3 ||
        fail "no login prompt from the guest in $boot_seconds s; QEMU says: $(cat "$work/errors"); console: $console"
    console+=$byte
done
[ "$(stat -c %u "/proc/$qemu")" = 107 ] || fail "QEMU does not run as user 107"
[ -S "$tree/work/vnc" ] || fail "QEMU has no VNC socket"
awk -v n="$size" -v s="$SECONDS" 'BEGIN { printf "launcher image: %.1f MB compressed, boots guest-tiny to its prompt (%d s)\n", n / 1e6, s }'
