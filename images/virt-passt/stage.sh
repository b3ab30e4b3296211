# The image of passt, which joins guests with passtBinding to the pod network: the static launcher, which becomes passt, and
# passt with its library. Sourced by ../build.sh. No shell, no package manager, no other program.
# shellcheck shell=bash disable=SC2154,SC2046
# programs: virt-launcher

# stage FOLDER
stage() {
    local parts programs=(/usr/bin/passt /usr/bin/passt.avx2)
    parts=$(debian extract passt)
    # passt executes passt.avx2 if the processor supports it.
    copy "$parts" "$1" "${programs[@]}"
    copy "$parts" "$1" $(libraries "$parts" "${programs[@]}")
    programs virt-passt "$1"
    accounts "$1" qemu 107
    # passt changes to this directory when it starts.
    install -d -m 1777 "$1/tmp"
    say "$(chroot "$1" /usr/bin/passt --version | head -n 1)"
}
