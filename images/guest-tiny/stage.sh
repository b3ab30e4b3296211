# The smallest useful Linux guest: busybox, dropbear, a small kernel, and for UEFI and some kernel boots Debian's. Sourced by
# ../build.sh.
# also: guests.sh
# shellcheck shell=bash disable=SC2154 source=images/guests.sh
source "$here/guests.sh"

# stage FOLDER
stage() {
    local parts tree=$work/tree initrd=$work/initrd version program
    parts=$(guest_parts)
    version=$(kernel_version "$parts")
    small_system "$parts" "$initrd"

    # The disk has the same system, the SSH server with its libraries, and programs for datagrams and for forged frames.
    cp -a "$initrd" "$tree"
    mkdir -p "$tree/boot" "$tree/etc/dropbear"
    install "$parts/usr/sbin/dropbear" "$parts/usr/bin/dropbearkey" "$tree/bin/"
    for program in udp frames; do
        musl-gcc -static -Os -s -Wall -Werror -o "$tree/bin/$program" "$here/guest-tiny/$program.c"
    done
    # shellcheck disable=SC2046
    copy "$parts" "$tree" $(libraries "$parts" /usr/sbin/dropbear /usr/bin/dropbearkey)
    cp "$parts/boot/vmlinuz-$version" "$tree/boot/vmlinuz"
    pack_initrd "$initrd" "$tree/boot/initrd"
    small_kernel "$tree"
    say "kernel $version, initrd $(megabytes "$tree/boot/initrd")"

    dated "$tree"
    disk "$work/disk.qcow2" "$tree" guest-tiny 128 "$(command_line guest-tiny)"
    container_disk "$1" "$work/disk.qcow2"
    # For kernel boots, where the initrd is the system: Debian's kernel, and the small one, which has no use for Debian's drivers.
    rm -r "$initrd/lib/modules"
    cp -a "$tree/lib/modules" "$initrd/lib/"
    rm -r "$initrd/lib/modules/$version"
    pack_initrd "$initrd" "$work/small-initrd"
    for file in "$tree"/boot/{vmlinuz,initrd,small} "$work/small-initrd"; do
        install -D -m 440 -o 107 -g 107 "$file" "$1/boot/$(basename "$file")"
    done
}
