# One static program and nothing else. Sourced by ../build.sh.
# shellcheck shell=bash
# programs: virt-operator

# stage FOLDER
stage() {
    programs virt-operator "$1"
    accounts "$1" nonroot 1001
    install -d -m 1777 "$1/tmp"
}
