# Common functions of the guest images. Sourced by their stage.sh.
# shellcheck shell=bash disable=SC2154 # build.sh sets them

# Drivers of the devices that our machines may have. The rest (virtio over PCI, virtio-console, ext4) is in the kernel.
guest_modules='virtio_blk virtio_net virtio_scsi virtio-rng virtio_balloon virtio_mem ahci sd_mod sr_mod isofs efivarfs vfat nls_ascii nls_cp437
    button evdev i6300esb pvpanic-pci'

# guest_parts: prints the folder with Debian's kernel and the programs of the small system.
guest_parts() { debian extract linux-image-cloud-amd64,busybox-static,dropbear-bin; }

kernel_version() { ls "$1/usr/lib/modules"; }

# small_kernel FOLDER: into FOLDER/boot/small a kernel from Debian's sources with only what guest-tiny needs, all of it built in: it finds its
# root file system without an initrd, and an emulated guest boots in a third of the time. Its index of built-in drivers lets modprobe succeed.
small_kernel() {
    local config=$here/guest-tiny/kernel.config source tree kept release
    source=$(echo "$(debian extract linux-source)"/usr/src/linux-source-*.tar.xz)
    kept=$cache/kernels/$({ basename "$source"; stat -c %s "$source"; cat "$config"; } | sha256sum | cut -c 1-16)
    mkdir -p "$cache/kernels"
    lock "$kept.lock"
    if [ ! -e "$kept/done" ]; then
        say "compiling the kernel"
        rm -rf "$kept" "$work/linux"
        mkdir -p "$kept" "$work/linux"
        # The sources of these drivers are half of all, and guest-tiny has none of them. Their Kconfig files are read.
        tree=$(basename "$source" .tar.xz)
        tar -C "$work/linux" --strip-components 1 --exclude="$tree"/{drivers/gpu,drivers/media,drivers/net/ethernet,drivers/net/wireless,sound}'/*.[ch]' -xf "$source"
        "$top/.ci/timed" "images/compile the guest's kernel" "$here/guest-tiny/kernel.sh" "$work/linux" "$config" "$kept" >"$kept/log" 2>&1 ||
            { tail -n 20 "$kept/log" >&2; die "the guest's kernel does not compile, see $kept/log"; }
        rm -rf "$work/linux"
        touch "$kept/done"
    fi
    unlock
    release=$(cat "$kept/release")
    install -D -m 644 "$kept/bzImage" "$1/boot/small"
    mkdir -p "$1/lib/modules/$release"
    cp "$kept/modules.builtin" "$1/lib/modules/$release/"
    touch "$1/lib/modules/$release"/modules.{dep,alias,symbols}
}

# command_line LABEL: the kernel's command line. Everything after net.ifnames saves time in an emulated guest.
command_line() {
    echo "root=LABEL=$1 console=tty0 console=ttyS0 quiet loglevel=4 net.ifnames=0" \
        "nokaslr mitigations=off tsc=reliable lsm=capability cryptomgr.notests no_timer_check" \
        "memhp_default_state=online_movable"
}

# small_system PARTS FOLDER: the system in guest-tiny/root with busybox and drivers. As the first file system (initrd) it
# mounts the root disk and goes on there, or stays when there is none.
small_system() {
    mkdir -p "$2"/{bin,dev,etc,mnt,proc,root,run,sys,tmp,usr,var/lib,var/log,www}
    ln -s bin "$2/sbin"
    ln -s ../bin "$2/usr/bin"
    ln -s ../bin "$2/usr/sbin"
    ln -s ../run "$2/var/run"
    install "$1/usr/bin/busybox" "$2/bin/busybox"
    "$2/bin/busybox" --list | while read -r applet; do
        [ "$applet" = busybox ] || ln -s busybox "$2/bin/$applet"
    done
    cp -r "$here/guest-tiny/root/." "$2/"
    chmod 1777 "$2/tmp"
    chmod 700 "$2/root"
    chmod 600 "$2/etc/shadow"
    # shellcheck disable=SC2086
    drivers "$1" "$2" $guest_modules
}

# dated FOLDER: gives everything in it the time of the build.
dated() { find "$1" -exec touch --no-dereference --date "@$epoch" {} +; }

# pack_initrd FOLDER FILE: the same files make the same initrd.
pack_initrd() {
    dated "$1"
    (cd "$1" && find . -print0 | sort -z | cpio --quiet --null --reproducible -o -H newc | zstd -q -19) >"$2"
}

# A kernel without an initrd finds its disk by this id.
disk_id=0xba5e0001

# The time of what a disk has besides its files. FAT knows no time before 1980.
moment=$((epoch > 315532800 ? epoch : 315532800))

# disk FILE TREE LABEL MIB CMDLINE: a qcow2 disk that BIOS and UEFI boot: MBR, one ext4 partition with TREE, and one with FAT of 14 MiB for
# the loaders. UEFI boots /boot/vmlinuz and /boot/initrd, and so does a BIOS unless there is /boot/small. Nothing is mounted. The same tree makes
# the same disk.
disk() {
    local raw=$work/disk.raw compress=-c
    rm -f "$raw"
    truncate -s "$4M" "$raw"
    sfdisk --quiet "$raw" <<END
label: dos
label-id: $disk_id
start=1MiB, size=$(($4 - 15))MiB, type=83
size=14MiB, type=ef, bootable
END
    ext4 "$raw" "$2" "$3" $(($4 - 15))
    loaders "$work/loaders.img" "$5"
    if [ -e "$2/boot/small" ]; then
        # Disks and cards are plugged by ACPI, so the ports need no driver.
        by_syslinux "$raw" "$work/loaders.img" "$2/boot/small" "${5/LABEL=$3/PARTUUID=${disk_id#0x}-01 rw rootwait} pcie_ports=compat"
        # Decompressing takes a tenth of the time of its boot, and saves nothing, since the image's layers are compressed.
        compress=
    else
        by_grub "$raw" "$5"
    fi
    dd if="$work/loaders.img" of="$raw" bs=1M seek=$(($4 - 14)) conv=notrunc status=none
    # shellcheck disable=SC2086
    qemu-img convert -O qcow2 $compress "$raw" "$1"
    rm -f "$raw"
}

# ext4 DISK TREE LABEL MIB: the ext4 partition of a disk. SOURCE_DATE_EPOCH would also change the times of files, by which Python tells whether it
# has compiled them, so these tools get the time by another name.
ext4() {
    local tools=(env -u SOURCE_DATE_EPOCH E2FSPROGS_FAKE_TIME="$moment") said
    # GRUB 2.06 cannot read file systems with these two features.
    "${tools[@]}" mke2fs -q -t ext4 -b 4096 -O ^orphan_file,^metadata_csum_seed -m 0 -L "$3" -U 6ba7b811-9dad-11d1-80b4-00c04fd430c8 \
        -E offset=1048576,hash_seed=6ba7b810-9dad-11d1-80b4-00c04fd430c8 -d "$2" "$1" "$4M"
    # Files have the two times that say when their copy in TREE was last read or changed.
    find "$2" -printf "set_inode_field \"/%P\" atime @$moment\nset_inode_field \"/%P\" ctime @$moment\n" >"$work/times"
    # The first line is the version of debugfs.
    said=$("${tools[@]}" debugfs -w -f "$work/times" "$1?offset=1048576" 2>&1 >/dev/null | tail -n +2)
    [ -z "$said" ] || die "debugfs could not set times: $said"
}

# in_fat COMMAND...: runs one of the tools that write files to a FAT partition, at the time of the build.
in_fat() { SOURCE_DATE_EPOCH=$moment TZ=UTC "$@"; }

# by_syslinux DISK PARTITION KERNEL CMDLINE: a BIOS boots this kernel, without an initrd, from the FAT partition. GRUB needs half a second
# more for it in an emulated guest.
by_syslinux() {
    dd if=/usr/lib/syslinux/mbr/mbr.bin of="$1" bs=440 count=1 conv=notrunc status=none
    printf 'DEFAULT small\nPROMPT 0\nLABEL small\nLINUX /small\nAPPEND %s\n' "$4" >"$work/syslinux.cfg"
    in_fat mcopy -i "$2" "$3" ::small
    in_fat mcopy -i "$2" "$work/syslinux.cfg" ::syslinux.cfg
    in_fat syslinux --install "$2"
}

# by_grub DISK CMDLINE: a BIOS boots the kernel of the ext4 partition.
by_grub() {
    # linux16 copies only the size of the kernel's file; linux copies all the memory that the kernel asks for, byte by byte, which costs an
    # emulated guest more than two seconds.
    printf 'linux16 /boot/vmlinuz %s\ninitrd16 /boot/initrd\nboot\n' "$2" >"$work/grub.cfg"
    grub-mkimage -O i386-pc -p '(,msdos1)/boot' -c "$work/grub.cfg" -o "$work/core.img" biosdisk part_msdos ext2 linux16
    [ "$(stat -c %s "$work/core.img")" -lt $((2047 * 512)) ] || die "GRUB does not fit in front of the partition"
    # The first 440 bytes are code, the partition table follows them.
    dd if=/usr/lib/grub/i386-pc/boot.img of="$1" bs=440 count=1 conv=notrunc status=none
    dd if="$work/core.img" of="$1" bs=512 seek=1 conv=notrunc status=none
}

# loaders FILE CMDLINE: the FAT partition. Shim, signed by Microsoft, starts Debian's GRUB, signed by Debian, which starts Debian's
# kernel, signed too: with secure boot each asks for the signature of the next.
loaders() {
    local parts
    parts=$(debian extract shim-signed,grub-efi-amd64-signed)
    # The signed GRUB looks for its configuration in this folder of the partition it came from.
    printf 'set root=(hd0,msdos1)\nlinux /boot/vmlinuz %s\ninitrd /boot/initrd\nboot\n' "$2" >"$work/grub-efi.cfg"
    rm -f "$1"
    truncate -s 14M "$1"
    mkfs.vfat -i 6ba7b810 --invariant "$1" >/dev/null
    in_fat mmd -i "$1" ::EFI ::EFI/BOOT ::EFI/debian
    in_fat mcopy -i "$1" "$parts/usr/lib/shim/shimx64.efi.signed" ::EFI/BOOT/BOOTX64.EFI
    in_fat mcopy -i "$1" "$parts/usr/lib/grub/x86_64-efi-signed/grubx64.efi.signed" ::EFI/BOOT/grubx64.efi
    in_fat mcopy -i "$1" "$work/grub-efi.cfg" ::EFI/debian/grub.cfg
}

# container_disk FOLDER DISK: a disk as the image of a containerDisk volume: one file below /disk, for user 107 only.
container_disk() {
    install -d -m 755 -o 107 -g 107 "$1/disk"
    install -m 440 -o 107 -g 107 "$2" "$1/disk/disk.qcow2"
}

# drivers TREE FOLDER MODULE...: the named modules of the kernel unpacked in TREE and what they need, uncompressed and
# flat, with an index that busybox modprobe reads, into FOLDER/lib/modules/VERSION.
drivers() {
    local tree=$1 folder=$2 version path
    shift 2
    version=$(kernel_version "$tree")
    mkdir -p "$folder/lib/modules/$version"
    [ -e "$tree/usr/lib/modules/$version/modules.dep" ] || depmod -b "$tree/usr" "$version"
    for module; do modprobe -d "$tree/usr" -S "$version" --show-depends "$module"; done |
        sed -n 's/^insmod \([^ ]*\).*/\1/p' | sort -u | while read -r path; do
            case $path in
                *.xz) xz -dc "$path" >"$folder/lib/modules/$version/$(basename "$path" .xz)" ;;
                *) cp "$path" "$folder/lib/modules/$version/" ;;
            esac
        done
    cp "$tree/usr/lib/modules/$version"/modules.{order,builtin,builtin.modinfo} "$folder/lib/modules/$version/"
    depmod -b "$folder" "$version"
    (cd "$folder/lib/modules/$version" && find . -name 'modules.*' ! -name modules.dep ! -name modules.alias -delete)
}
