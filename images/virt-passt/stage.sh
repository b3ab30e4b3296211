# passt, which joins guests to the pod network that ask for it: the static launcher, which becomes it, and passt with the library
# that it loads. Sourced by ../build.sh. No shell, no package manager, no other program.
# shellcheck shell=bash disable=SC2154,SC2046
# programs: virt-launcher

# stage FOLDER
stage() {
    local parts programs=(/usr/bin/passt /usr/bin/passt.avx2)
    parts=$(debian extract passt)
    # The first looks what the processor has, and becomes the second.
    copy "$parts" "$1" "${programs[@]}"
    copy "$parts" "$1" $(libraries "$parts" "${programs[@]}")
    programs virt-passt "$1"
    accounts "$1" qemu 107
    # passt goes there once it has begun.
    install -d -m 1777 "$1/tmp"
    say "$(chroot "$1" /usr/bin/passt --version | head -n 1)"
}
