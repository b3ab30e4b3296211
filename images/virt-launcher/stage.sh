# The launcher: our two static programs, QEMU with the libraries it loads, and the firmware it uses. Sourced by
# ../build.sh. No shell, no package manager, no other program. It contains only what our machines may need.
# shellcheck shell=bash disable=SC2154,SC2086,SC2046
# programs: virt-launcher container-disk

# Firmware of the devices that barevirt-machine builds. Keymaps: VNC wants one even if no key is ever pressed.
# Option ROMs: a network card that is booted from has one.
launcher_firmware='seabios/bios-256k.bin seabios/vgabios-stdvga.bin seabios/vgabios-virtio.bin
    seabios/vgabios-bochs-display.bin seabios/vgabios-cirrus.bin seabios/vgabios-ramfb.bin
    qemu/kvmvapic.bin qemu/linuxboot_dma.bin qemu/keymaps/en-us
    qemu/efi-virtio.rom qemu/efi-e1000.rom qemu/efi-e1000e.rom qemu/efi-rtl8139.rom qemu/efi-pcnet.rom
    qemu/efi-ne2k_pci.rom'
# UEFI: with secure boot, which needs system management mode and has its keys among the variables, and without.
launcher_uefi='OVMF_CODE_4M.secboot.fd OVMF_VARS_4M.ms.fd OVMF_CODE_4M.fd OVMF_VARS_4M.fd'

# stage FOLDER
stage() {
    local parts modules path
    parts=$(debian extract qemu-system-x86,seabios,ovmf,swtpm,virtiofsd "$qemu_suite")
    # In some builds of QEMU accelerators are separate modules; in all builds virtio's display and USB devices
    # of host and clients are.
    modules=$(cd "$parts" && find usr/lib/x86_64-linux-gnu/qemu \( -name 'accel-*.so' -o -name 'hw-display-virtio-gpu.so' \
        -o -name 'hw-display-virtio-vga.so' -o -name 'hw-usb-host.so' -o -name 'hw-usb-redirect.so' \) -printf '/%p\n')
    copy "$parts" "$1" /usr/bin/qemu-system-x86_64 /usr/bin/swtpm /usr/libexec/virtiofsd $modules
    copy "$parts" "$1" $(libraries "$parts" /usr/bin/qemu-system-x86_64 /usr/bin/swtpm /usr/libexec/virtiofsd $modules)
    for path in $launcher_firmware; do copy "$parts" "$1" "/usr/share/$path"; done
    for path in $launcher_uefi; do copy "$parts" "$1" "/usr/share/OVMF/$path"; done
    programs virt-launcher "$1"
    accounts "$1" qemu 107
    install -d -m 1777 "$1/tmp"
    say "$(chroot "$1" /usr/bin/qemu-system-x86_64 --version | head -n 1)"
}
