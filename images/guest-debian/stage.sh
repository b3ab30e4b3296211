# A Debian with systemd, cloud-init, the QEMU guest agent and an SSH server. Sourced by ../build.sh.
# also: guests.sh guest-tiny/root
# shellcheck shell=bash disable=SC2154 source=images/guests.sh
source "$here/guests.sh"

# Families of drivers that no virtual machine here needs.
guest_debian_without=(arch/x86/{crypto,kvm} sound drivers/{gpu,media,infiniband,iio,staging,mmc,mtd,platform,hwmon,i2c,mfd,isdn,bluetooth,leds,power,regulator,comedi,video,hv,xen,edac,crypto,dma,firewire,parport,usb/serial}
    drivers/net/{wireless,wan,can,hamradio,arcnet,fddi,wwan,hyperv,xen-netback} net/{bluetooth,mac80211,wireless,nfc,can,rds,sctp,tipc,batman-adv,openvswitch,ceph,hsr,smc,rxrpc,9p}
    fs/{btrfs,xfs,f2fs,jfs,ocfs2,gfs2,ceph,smb,nfs,nfsd,ntfs3,reiserfs,bcachefs,afs,coda,dlm,orangefs,ubifs,udf,zonefs,erofs})

# stage FOLDER
stage() {
    local parts base tree=$work/tree initrd=$work/initrd version folder
    parts=$(guest_parts)
    base=$(debian minbase "$(sed 's/#.*//' "$here/guest-debian/packages" | tr -s ' \n' , | sed 's/^,//; s/,$//')")
    version=$(kernel_version "$parts")
    cp -a --reflink=auto "$base" "$tree"
    cp -r "$here/guest-debian/files/." "$tree/"

    mkdir -p "$tree/boot" "$tree/usr/lib/modules"
    cp "$parts/boot/vmlinuz-$version" "$tree/boot/vmlinuz"
    cp -a "$parts/usr/lib/modules/$version" "$tree/usr/lib/modules/"
    for folder in "${guest_debian_without[@]}"; do rm -rf "$tree/usr/lib/modules/$version/kernel/$folder"; done
    # The disk image is compressed as a whole, and the guest has less to do.
    find "$tree/usr/lib/modules/$version" -name '*.ko.xz' -exec xz -d {} +
    depmod -b "$tree/usr" "$version"

    small_system "$parts" "$initrd"
    pack_initrd "$initrd" "$tree/boot/initrd"

    install -m 755 "$here/guest-debian/setup.sh" "$tree/setup.sh"
    chroot "$tree" /setup.sh >"$work/setup.log" 2>&1 || { cat "$work/setup.log" >&2; die "setting up guest-debian failed"; }
    rm "$tree/setup.sh"

    disk "$work/disk.qcow2" "$tree" guest-debian 2048 "$(command_line guest-debian) drivers=all"
    container_disk "$1" "$work/disk.qcow2"
}
