# One static program and nothing else. Sourced by ../build.sh.
# shellcheck shell=bash
# programs: virt-api

# stage FOLDER
stage() {
    programs virt-api "$1"
    accounts "$1" nonroot 1001
    install -d -m 1777 "$1/tmp"
}
