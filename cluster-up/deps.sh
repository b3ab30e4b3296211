#!/usr/bin/env bash
# Installs everything the project needs on a Debian 12 machine, as root. Run it as often as you like: it keeps what is
# installed, and takes only a moment when everything is.
#
#   cluster-up/deps.sh
#
# Installed: Debian packages (QEMU from bookworm-backports), a Go toolchain
# that can fetch the one a go.mod asks for, the Rust toolchain of
# rust-toolchain.toml with its components and targets, node and npm. What only
# some targets of the Makefile need is installed on request:
#
#   cluster-up/deps.sh cargo_deny
#   cluster-up/deps.sh chromium
#   cluster-up/deps.sh mdbook
#   cluster-up/deps.sh arm64
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
# shellcheck source=cluster-up/common.sh
source "$here/common.sh"
# `virt-launcher run` and the tests use QMP that QEMU has from this version on.
qemu_minimum=8
# From this version on Go downloads newer toolchains by itself.
go_minimum=1.21
# The build of the page of `virtctl ui` needs node from this major version on.
node_minimum=18
cargo_deny_version=0.20.2
mdbook_version=0.5.4

packages=(
    # building: the Rust parts, static binaries, the Makefile, fetching
    build-essential musl-tools pkg-config make git ca-certificates curl
    # the cluster: nodes, their network, the scripts
    nftables iproute2 iputils-ping conntrack runc iptables ethtool kmod procps
    util-linux mount psmisc socat jq openssl python3 busybox-static openssh-client
    # container images and guest disks
    mmdebstrap debian-archive-keyring buildah zstd xz-utils cpio gzip
    e2fsprogs fdisk mtools dosfstools xorriso syslinux syslinux-common
    grub-pc-bin grub-common flex bison bc libelf-dev
    # checks
    shellcheck isc-dhcp-client binutils ovmf swtpm vncsnapshot strace
)
# From bookworm-backports.
qemu_packages=(qemu-system-x86 qemu-utils qemu-system-common qemu-system-data seabios ipxe-qemu)

# Prints those of the given packages that are not installed.
missing_packages() {
    local installed
    installed=$(dpkg-query -W -f='${Package} ${db:Status-Status}\n' "$@" 2>/dev/null |
        awk '$2 == "installed" { print $1 }' || true)
    comm -23 <(printf '%s\n' "$@" | sort -u) <(sort -u <<<"$installed")
}

apt_install() {
    [[ $EUID -eq 0 ]] || die "these Debian packages are missing, and only root can install them: $*"
    say "installing with apt: $*"
    apt_update
    DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends \
        -o DPkg::Lock::Timeout=600 "$@" >/dev/null ||
        die "apt-get install failed; see the lines above"
}

# Fetches package lists, once per run.
apt_updated=
apt_update() {
    [[ -n $apt_updated ]] && return
    apt-get update -qq -o DPkg::Lock::Timeout=600 || die "apt-get update failed: is there a network?"
    apt_updated=yes
}

# shellcheck disable=SC2016 # apt-get expands these, not the shell
# Adds bookworm-backports from the mirror that the machine already uses.
enable_backports() {
    apt-get indextargets --format '$(RELEASE)' | grep -q '^bookworm-backports$' && return
    local mirror
    mirror=$(apt-get indextargets --format '$(CREATED_BY) $(RELEASE) $(REPO_URI)' |
        awk '$1 == "Packages" && $2 == "bookworm" { print $3; exit }')
    [[ -n $mirror ]] || die "apt has no source for bookworm, so there is no mirror to take backports from"
    say "adding bookworm-backports to apt's sources"
    echo "deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] $mirror bookworm-backports main" \
        >/etc/apt/sources.list.d/barevirt-backports.list
    apt_updated=
}

# The major version of the installed QEMU, or 0.
qemu_version() {
    local version
    version=$(dpkg-query -W -f='${Version}' qemu-system-x86 2>/dev/null || true)
    version=${version#*:}
    version=${version%%.*}
    echo "${version:-0}"
}

install_packages() {
    local missing
    mapfile -t missing < <(missing_packages "${packages[@]}")
    [[ ${#missing[@]} -eq 0 ]] || apt_install "${missing[@]}"
    mapfile -t missing < <(missing_packages "${qemu_packages[@]}")
    if [[ ${#missing[@]} -gt 0 || $(qemu_version) -lt $qemu_minimum ]]; then
        [[ $EUID -eq 0 ]] || die "QEMU $qemu_minimum or newer is missing, and only root can install it"
        enable_backports
        apt_install -t bookworm-backports "${qemu_packages[@]}"
    fi
}

# Whether version $1 is at least version $2.
at_least() {
    [[ $(printf '%s\n%s\n' "$2" "$1" | sort -V | head -n 1) == "$2" ]]
}

# A Go that is old or set to local only cannot build modules that ask for a
# newer one; Debian's backports have one that downloads the requested toolchain.
install_go() {
    local have=0 newest=0 module
    if command -v go >/dev/null; then
        have=$(cd / && go env GOVERSION)
        have=${have#go}
    fi
    for module in "$here"/go/*/go.mod; do
        newest=$(printf '%s\n' "$newest" "$(awk '$1 == "go" { print $2; exit }' "$module")" | sort -V | tail -n 1)
    done
    at_least "$have" "$newest" && return
    if ! at_least "$have" "$go_minimum"; then
        [[ $EUID -eq 0 ]] || die "Go $go_minimum or newer is missing, and only root can install it"
        enable_backports
        apt_install -t bookworm-backports golang-go
    fi
    # Debian builds its Go with GOTOOLCHAIN=local.
    if [[ $(cd / && go env GOTOOLCHAIN) == local ]]; then
        say "letting Go fetch the toolchain that a module asks for (go env -w GOTOOLCHAIN=auto)"
        (cd / && go env -w GOTOOLCHAIN=auto)
    fi
    (cd "$here/go/containerd" && go version >/dev/null) ||
        die "Go could not fetch toolchain $newest: is there a network?"
}

# A node from another source has its own npm, and Debian's npm does not work with it.
install_node() {
    local have=0
    if command -v node >/dev/null && command -v npm >/dev/null; then
        have=$(node --version)
        have=${have#v}
    fi
    at_least "$have" "$node_minimum" || apt_install nodejs npm
    have=$(node --version)
    at_least "${have#v}" "$node_minimum" || die "node $node_minimum or newer is missing, apt has ${have#v}"
}

# For `make ui-test`.
install_chromium() {
    command -v chromium >/dev/null || apt_install chromium fonts-dejavu-core
}

# For a release: compiles virtctl for linux/arm64, and runs it here.
install_arm64() {
    local missing
    mapfile -t missing < <(missing_packages gcc-aarch64-linux-gnu libc6-dev-arm64-cross qemu-user-static)
    [[ ${#missing[@]} -eq 0 ]] || apt_install "${missing[@]}"
    install_rust
    (cd "$repository" && rustup target add aarch64-unknown-linux-musl) || die "rustup could not add aarch64-unknown-linux-musl"
}

# The value of a key in rust-toolchain.toml, its quotes and brackets removed.
toolchain_value() {
    sed -n "s/^$1 *= *//p" "$repository/rust-toolchain.toml" | tr -d '[]",'
}

install_rust() {
    export PATH=${CARGO_HOME:-$HOME/.cargo}/bin:$PATH
    if ! command -v rustup >/dev/null; then
        install_rustup
    fi
    local channel
    channel=$(toolchain_value channel)
    [[ -n $channel ]] || die "rust-toolchain.toml names no channel"
    rust_is_complete "$channel" && return
    local component target arguments=()
    for component in $(toolchain_value components); do arguments+=(--component "$component"); done
    for target in $(toolchain_value targets); do arguments+=(--target "$target"); done
    say "installing Rust $channel with its components and targets"
    rustup toolchain install "$channel" --profile minimal --no-self-update "${arguments[@]}" ||
        die "rustup could not install Rust $channel: is there a network?"
}

# Debian has rustup from release 13 on; before that its own installer is used.
install_rustup() {
    if apt-cache policy rustup | grep -q 'Candidate: [0-9]'; then
        apt_install rustup
        return
    fi
    local source=${RUSTUP_UPDATE_ROOT:-https://static.rust-lang.org/rustup}/dist/x86_64-unknown-linux-gnu/rustup-init
    local directory
    directory=$(mktemp -d)
    say "installing rustup for $(id -un)"
    if ! fetch_rustup "$source" "$directory/rustup-init" ||
        ! "$directory/rustup-init" -y -q --no-modify-path --default-toolchain none --profile minimal; then
        die "rustup could not be installed: is there a network? Or install it by hand, then run this again"
    fi
    rm -rf "$directory"
}

# Fetches a program and checks it against the hash published beside it.
fetch_rustup() {
    local hash
    curl --proto '=https' -sSf -o "$2" "$1" || return 1
    hash=$(curl --proto '=https' -sSf "$1.sha256" | cut -c1-64) || return 1
    [[ $(sha256sum "$2" | cut -c1-64) == "$hash" ]] || return 1
    chmod 755 "$2"
}

# Whether the toolchain is there with everything rust-toolchain.toml names,
# found by looking at files: asking rustup could start a download.
rust_is_complete() {
    local home=${RUSTUP_HOME:-$HOME/.rustup}/toolchains/$1-x86_64-unknown-linux-gnu name
    [[ -x $home/bin/rustc ]] || return 1
    for name in $(toolchain_value targets); do
        [[ -d $home/lib/rustlib/$name/lib ]] || return 1
    done
    for name in $(toolchain_value components); do
        case $name in
            rustfmt) [[ -x $home/bin/rustfmt ]] || return 1 ;;
            clippy) [[ -x $home/bin/cargo-clippy ]] || return 1 ;;
            *) grep -q "^$name-" "$home/lib/rustlib/components" || return 1 ;;
        esac
    done
}

# Unoptimised, since it runs for seconds, and this saves minutes of the build. It is kept in the project's cache;
# `cargo deny` finds it by a link if the user has none.
install_cargo_deny() {
    local root=$cache/tools/cargo-deny-$cargo_deny_version
    local link=${CARGO_HOME:-$HOME/.cargo}/bin/cargo-deny
    if [[ ! -x $root/bin/cargo-deny ]]; then
        say "building cargo-deny $cargo_deny_version (a few minutes, once)"
        (cd "$repository" && cargo install --quiet --locked --debug --root "$root" "cargo-deny@$cargo_deny_version") ||
            die "cargo-deny $cargo_deny_version did not build"
    fi
    if [[ -L $link || ! -e $link ]]; then
        mkdir -p "$(dirname "$link")"
        ln -sfn "$root/bin/cargo-deny" "$link"
    elif [[ $("$link" --version) != "cargo-deny $cargo_deny_version" ]]; then
        say "note: $link is $("$link" --version), the project is checked with $cargo_deny_version"
    fi
}

# For `make docs-site`, which finds it by a link in the cache. Built without the features that serve a book and watch
# its files.
install_mdbook() {
    local root=$cache/tools/mdbook-$mdbook_version built
    if [[ ! -x $root/bin/mdbook ]]; then
        say "building mdBook $mdbook_version (a few minutes, once)"
        built=$(mktemp -d)
        (cd "$repository" && CARGO_TARGET_DIR=$built cargo install --quiet --locked --debug --no-default-features --features search \
            --root "$root" "mdbook@$mdbook_version") || die "mdBook $mdbook_version did not build"
        rm -rf "$built"
    fi
    ln -sfn "$root/bin/mdbook" "$cache/tools/mdbook"
}

main() {
    [[ $(uname -m) == x86_64 ]] || die "only x86_64 machines are supported, this is $(uname -m)"
    command -v apt-get >/dev/null || die "no apt-get here: this is made for Debian 12"
    local phases=("$@") phase
    [[ ${#phases[@]} -gt 0 ]] || phases=(packages go rust node)
    for phase in "${phases[@]}"; do
        "install_$phase"
    done
}

main "$@"
