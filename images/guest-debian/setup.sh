#!/bin/sh
# Runs in the tree of guest-debian while the image is built.
set -eu
echo guest-debian >/etc/hostname
printf '127.0.0.1 localhost\n::1 localhost\n' >/etc/hosts
echo 'LABEL=guest-debian / ext4 noatime 0 1' >/etc/fstab
printf 'Debian GNU/Linux 13 \\n \\l (Barevirt guest-debian)\n\n' >/etc/issue
rm -f /etc/motd /etc/update-motd.d/* /etc/ssh/ssh_host_*
# Made at the first boot, one for each guest.
: >/etc/machine-id
rm -f /var/lib/dbus/machine-id
passwd -q -l root
# The strong default takes seconds in an emulated guest.
sed -i 's/ yescrypt/ sha512 rounds=5000/' /etc/pam.d/common-password

# SSH is started by the first connection.
systemctl -q disable ssh.service
systemctl -q enable ssh.socket systemd-networkd.service systemd-networkd-wait-online.service systemd-resolved.service serial-getty@ttyS0.service
ln -sf /run/systemd/resolve/stub-resolv.conf /etc/resolv.conf

# Units that such a guest does not need, since every started unit costs time in an emulated guest.
for unit in apt-daily.timer apt-daily-upgrade.timer dpkg-db-backup.timer e2scrub_all.timer e2scrub_reap.service \
    fstrim.timer man-db.timer getty@tty1.service console-getty.service run-lock.mount kmod-static-nodes.service \
    systemd-pstore.service systemd-firstboot.service systemd-hwdb-update.service systemd-journal-catalog-update.service \
    ldconfig.service systemd-update-done.service systemd-update-utmp.service systemd-update-utmp-runlevel.service \
    systemd-binfmt.service systemd-rfkill.service systemd-rfkill.socket systemd-tpm2-setup.service \
    systemd-tpm2-setup-early.service systemd-pcrmachine.service systemd-pcrphase.service systemd-pcrphase-sysinit.service \
    systemd-machine-id-commit.service systemd-timesyncd.service systemd-journal-flush.service systemd-sysusers.service \
    systemd-modules-load.service systemd-network-generator.service systemd-networkd-persistent-storage.service \
    systemd-random-seed.service systemd-remount-fs.service systemd-tmpfiles-setup-dev.service \
    systemd-tmpfiles-setup-dev-early.service systemd-tmpfiles-clean.timer systemd-udev-load-credentials.service \
    modprobe@drm.service modprobe@fuse.service modprobe@efi_pstore.service modprobe@dm_mod.service modprobe@loop.service \
    modprobe@configfs.service dev-hugepages.mount dev-mqueue.mount sys-kernel-debug.mount sys-kernel-tracing.mount \
    sys-kernel-config.mount sys-fs-fuse-connections.mount proc-sys-fs-binfmt_misc.automount cloud-init-hotplugd.socket; do
    ln -sf /dev/null /etc/systemd/system/$unit
done
mkdir -p /etc/systemd/system-generators
for generator in debug gpt-auto hibernate-resume rc-local run ssh system-update sysv tpm2; do
    ln -sf /dev/null /etc/systemd/system-generators/systemd-$generator-generator
done
# cloud-init checks its input by a schema if it finds this library, which is a quarter of its time to start.
rm -rf /usr/lib/python3/dist-packages/jsonschema*

rm -rf /var/cache/apt/* /var/lib/apt/lists/* /var/log/*.log /var/log/apt /usr/share/man /usr/share/info /usr/share/lintian \
    /usr/share/bug /usr/share/pixmaps /usr/share/bash-completion /usr/share/zoneinfo/right /usr/share/i18n \
    /usr/lib/udev/hwdb.bin /usr/lib/udev/hwdb.d /usr/share/perl/*/unicore /usr/share/doc
