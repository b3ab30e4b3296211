# The smallest useful Linux guest: busybox, dropbear, a small kernel, and for UEFI and kernel boots Debian's. Sourced by
# ../build.sh.
# also: guests.sh
# shellcheck shell=bash disable=SC2154 source=images/guests.sh
source "$here/guests.sh"

# stage FOLDER
stage() {
    local parts tree=$work/tree initrd=$work/initrd version
    parts=$(guest_parts)
    version=$(kernel_version "$parts")
    small_system "$parts" "$initrd"

    # The disk has the same system, and the SSH server with its libraries.
    cp -a "$initrd" "$tree"
    mkdir -p "$tree/boot" "$tree/etc/dropbear"
    install "$parts/usr/sbin/dropbear" "$parts/usr/bin/dropbearkey" "$tree/bin/"
    # shellcheck disable=SC2046
    copy "$parts" "$tree" $(libraries "$parts" /usr/sbin/dropbear /usr/bin/dropbearkey)
    cp "$parts/boot/vmlinuz-$version" "$tree/boot/vmlinuz"
    pack_initrd "$initrd" "$tree/boot/initrd"
    small_kernel "$tree"
    say "kernel $version, initrd $(megabytes "$tree/boot/initrd")"

    disk "$work/disk.qcow2" "$tree" guest-tiny 128 "$(command_line guest-tiny)"
    container_disk "$1" "$work/disk.qcow2"
    # For a kernel boot: without a root disk the initrd is the system.
    for file in vmlinuz initrd; do install -D -m 440 -o 107 -g 107 "$tree/boot/$file" "$1/boot/$file"; done
}
