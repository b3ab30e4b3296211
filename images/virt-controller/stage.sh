# One static program and nothing else. Sourced by ../build.sh.
# shellcheck shell=bash
# programs: virt-controller

# stage FOLDER
stage() {
    programs virt-controller "$1"
    accounts "$1" nonroot 1001
    install -d -m 1777 "$1/tmp"
}
