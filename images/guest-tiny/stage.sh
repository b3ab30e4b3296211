# The smallest useful Linux guest: Debian's cloud kernel, busybox, dropbear. Sourced by ../build.sh.

# Drivers of the devices a machine of ours may have. The rest (virtio over PCI, virtio-console, ext4) is in the kernel.
guest_tiny_modules='virtio_blk virtio_net virtio_scsi virtio-rng virtio_balloon ahci sd_mod sr_mod isofs vfat nls_ascii
    nls_cp437 button evdev'

# stage FOLDER
stage() {
    local parts tree=$work/tree initrd=$work/initrd version library
    parts=$(debian extract linux-image-cloud-amd64,busybox-static,dropbear-bin)
    version=$(kernel_version "$parts")

    # The system in its smallest form is also the first file system: a guest that is started with this kernel and
    # initrd and has no disk goes on from memory.
    mkdir -p "$initrd"/{bin,dev,etc,mnt,proc,root,run,sys,tmp,usr,var/lib,var/log,www}
    ln -s bin "$initrd/sbin"
    ln -s ../bin "$initrd/usr/bin"
    ln -s ../bin "$initrd/usr/sbin"
    ln -s ../run "$initrd/var/run"
    install "$parts/usr/bin/busybox" "$initrd/bin/busybox"
    "$initrd/bin/busybox" --list | while read -r applet; do
        [ "$applet" = busybox ] || ln -s busybox "$initrd/bin/$applet"
    done
    cp -r "$here/guest-tiny/root/." "$initrd/"
    chmod 1777 "$initrd/tmp"
    chmod 700 "$initrd/root"
    drivers "$parts" "$initrd" $guest_tiny_modules

    # The disk has the same, and the SSH server with its libraries.
    cp -a "$initrd" "$tree"
    mkdir -p "$tree/boot" "$tree/etc/dropbear" "$tree/lib64"
    install "$parts/usr/sbin/dropbear" "$parts/usr/bin/dropbearkey" "$tree/bin/"
    for library in $(libraries "$parts" /usr/sbin/dropbear /usr/bin/dropbearkey); do
        install -D "$parts/usr${library#/usr}" "$tree$library"
    done
    cp "$parts/boot/vmlinuz-$version" "$tree/boot/vmlinuz"
    # Little to unpack and fast: in an emulated guest each megabyte counts.
    (cd "$initrd" && find . -print0 | sort -z | cpio --quiet --null -o -H newc | zstd -q -19) >"$tree/boot/initrd"
    say "kernel $version, initrd $(megabytes "$tree/boot/initrd")"

    disk "$work/disk.qcow2" "$tree" guest-tiny 128 \
        'root=LABEL=guest-tiny console=tty0 console=ttyS0 quiet loglevel=4 net.ifnames=0 nokaslr mitigations=off tsc=reliable'
    container_disk "$1" "$work/disk.qcow2"
}
