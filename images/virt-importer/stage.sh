# The importer: our static program, qemu-img with the libraries it loads, and the certificates of public authorities. Sourced by
# ../build.sh. No shell, no package manager, no other program.
# shellcheck shell=bash disable=SC2154,SC2086,SC2046
# programs: virt-importer

# stage FOLDER
stage() {
    local parts
    parts=$(debian extract qemu-utils,ca-certificates "$qemu_suite")
    copy "$parts" "$1" /usr/bin/qemu-img
    copy "$parts" "$1" $(libraries "$parts" /usr/bin/qemu-img)
    # The package puts them into one file when it is installed.
    install -d -m 755 "$1/etc/ssl/certs"
    cat "$parts"/usr/share/ca-certificates/mozilla/*.crt >"$1/etc/ssl/certs/ca-certificates.crt"
    programs virt-importer "$1"
    accounts "$1" qemu 107
    say "$(chroot "$1" /usr/bin/qemu-img --version | head -n 1)"
}
