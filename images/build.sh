#!/usr/bin/env bash
# Builds the images of Barevirt as OCI archives.
#
#   images/build.sh [NAME...]          all images when none is named; "components" is all with programs of ours, "guests" the others
#   images/build.sh --program NAME     only a static program, and prints its path: one of an image, virtctl, manifests, sbom
#
# Leaves target/images/NAME.oci.tar, named $REGISTRY/barevirt/NAME:$TAG inside, for guests also target/images/NAME.qcow2, the
# bare disk, and for images with files of Debian target/images/NAME.packages, the packages that they come from. Unchanged
# parts come from the cache.
#
# An image is a folder here: stage.sh fills a folder with its files, Containerfile says how the image is run.
#
# Environment:
#   REGISTRY        prefix of the names (default: localhost)
#   TAG             tag of the names (default: devel)
#   SUITE           Debian suite that packages come from (default: trixie)
#   QEMU_SUITE      suite of QEMU alone, such as trixie-backports (default: $SUITE)
#   MIRROR          Debian mirror (default: the one apt uses)
#   OUT             folder of the archives (default: target/images)
#   SOURCE_DATE_EPOCH  time of all files, in seconds (default: 0)
#   BAREVIRT_VERSION, BAREVIRT_COMMIT, BAREVIRT_BUILD_DATE  version, commit and date in programs and labels; make release sets them
#   TRIPLE          the target that programs are built for (default: x86_64-unknown-linux-musl)
#   WITH_TESTS      1: take the programs that .ci/compile builds together with the tests for $CARGO_BUILD_TARGET
#   BAREVIRT_CACHE  folder of the cache (default: ~/.cache/barevirt); remove it to get newer packages
# Needs root, and: mmdebstrap buildah qemu-utils e2fsprogs fdisk cpio zstd xz-utils kmod grub-common grub-pc-bin syslinux mtools
# flex bison bc libelf-dev binutils musl-tools, and cargo for the images with a program of ours.
set -euo pipefail
shopt -s inherit_errexit
umask 022
export LC_ALL=C

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
top=$(dirname "$here")
out=${OUT:-${CARGO_TARGET_DIR:-$top/target}/images}
epoch=${SOURCE_DATE_EPOCH:-0}
cache=${BAREVIRT_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/barevirt}
registry=${REGISTRY:-localhost}
tag=${TAG:-devel}
suite=${SUITE:-trixie}
qemu_suite=${QEMU_SUITE:-$suite}
triple=${TRIPLE:-x86_64-unknown-linux-musl}
compiled=${CARGO_TARGET_DIR:-$top/target}/$triple/image
[ -z "${WITH_TESTS:-}" ] || compiled=${CARGO_TARGET_DIR:-$top/target}/$CARGO_BUILD_TARGET/debug
components='virt-launcher virt-passt virt-importer virt-operator virt-api virt-controller virt-handler'
guests='guest-tiny guest-debian'

die() { printf 'images/build.sh: %s\n' "$*" >&2; exit 1; }
say() { printf '%-16s %s\n' "$name" "$*"; }
megabytes() { awk -v n="$(stat -c %s "$1")" 'BEGIN { printf "%.1f MB", n / 1e6 }'; }

# lock FILE, unlock: one build at a time, of an image or of a tree.
lock() {
    exec {held}>"$1"
    flock -w 1800 "$held" || die "another build has held $1 for half an hour"
}
unlock() { exec {held}>&-; }

# apt_site PATTERN: the first site in apt's sources whose address matches (or with a leading ! does not match).
apt_site() {
    local sites
    # shellcheck disable=SC2016 # apt expands it
    sites=$(apt-get indextargets --format '$(SITE)' 'Created-By: Packages')
    case $1 in !*) grep -v -- "${1#!}" <<<"$sites" ;; *) grep -- "$1" <<<"$sites" ;; esac | head -n 1
}

# debian VARIANT PACKAGES [SUITE]: prints the folder of a cached tree with these packages (comma separated) and
# what they need. With variant "extract" they are only unpacked. From another SUITE only these packages are taken.
debian() {
    local variant=$1 packages=$2 extra=${3:-$suite} held tree folder mirror security log sources=() hooks=() form=3
    # shellcheck disable=SC2016 # the hook's shell expands it
    if [ "$variant" = extract ]; then
        form=4
        # Records the package of each file, since dpkg does not know unpacked packages.
        hooks=(--extract-hook='for deb in "$1"/var/cache/apt/archives/*.deb; do
            dpkg-deb --fsys-tarfile "$deb" | tar -t | sed "s|^|$(dpkg-deb -W --showformat="\${Package} \${Version}" "$deb") |"
        done >"$1/var/lib/dpkg/contents"')
    fi
    tree=$cache/debian/$(printf '%s\n' "$form" "$suite" "$extra" "$variant" "$packages" | sha256sum | cut -c 1-16)
    mkdir -p "$cache/debian"
    lock "$tree.lock"
    if [ ! -e "$tree.done" ]; then
        mirror=${MIRROR:-$(apt_site '!security' || true)}
        [ -n "$mirror" ] || die "no Debian mirror found in apt's sources, set MIRROR"
        security=$(apt_site security || true)
        sources=("deb $mirror $suite main")
        [ -z "$security" ] || sources+=("deb $security $suite-security main")
        if [ "$extra" != "$suite" ]; then
            sources+=("deb $mirror $extra main")
            hooks+=(--setup-hook="mkdir -p \"\$1/etc/apt/preferences.d\" && printf 'Package: *\nPin: release n=$extra\nPin-Priority: 600\n' >\"\$1/etc/apt/preferences.d/extra\"")
        fi
        rm -rf --one-file-system "$tree"
        log=$tree.log
        mmdebstrap --mode=root --variant="$variant" --include="$packages" "${hooks[@]}" \
            --aptopt='APT::Install-Recommends "false"' \
            --dpkgopt='path-exclude=/usr/share/doc/*' --dpkgopt='path-exclude=/usr/share/man/*' \
            --dpkgopt='path-exclude=/usr/share/info/*' --dpkgopt='path-exclude=/usr/share/locale/*' \
            "$suite" "$tree" "${sources[@]}" >"$log" 2>&1 ||
            { tail -n 20 "$log" >&2; die "mmdebstrap failed for $packages, see $log"; }
        # Unpacked trees lack these links, which a package makes when it is installed.
        for folder in bin sbin lib lib64; do [ -e "$tree/$folder" ] || ln -s "usr/$folder" "$tree/$folder"; done
        touch "$tree.done"
    fi
    unlock
    [ -z "${work:-}" ] || echo "$tree" >>"$work/trees"
    echo "$tree"
}

# origins FOLDER: the packages, with versions, whose files are in FOLDER at the places that they have in Debian.
origins() {
    local tree
    [ -e "$work/trees" ] || return 0
    sort -u "$work/trees" | while read -r tree; do cat "$tree/var/lib/dpkg/contents" 2>/dev/null || true; done |
        awk 'function place(path) { sub(/^\.?\//, "", path); if (path ~ /^(bin|sbin|lib|lib64)\//) path = "usr/" path; return path }
            NR == FNR { staged[place($0)] = 1; next }
            place($3) in staged { print $1, $2 }' <(find "$1" ! -type d -printf '/%P\n') - | LC_ALL=C sort -u
}

# packages PROGRAM: what cargo is asked for with this program. The launcher's two programs and virtctl are each built separately, so that
# no other package turns on features in their dependencies; the components share their dependencies.
packages() {
    case $1 in
        container-disk) echo "-p $1 -p barevirt-features" ;;
        virt-launcher | virtctl) echo "-p $1 -p barevirt-features --features barevirt-features/api" ;;
        *) echo "-p barevirt-install -p virt-api -p virt-controller -p virt-handler -p virt-importer -p barevirt-features --features barevirt-features/api" ;;
    esac
}

# binary PROGRAM: the path of the built program.
binary() { echo "$compiled/$1"; }

# compile PROGRAM...: builds static programs of this workspace.
compile() {
    local program
    if [ -n "${WITH_TESTS:-}" ]; then
        "$top/.ci/compile" >&2 || die "the programs do not compile"
    else
        compile_apart "$@"
    fi
    for program; do
        if readelf -lW "$(binary "$program")" | grep -q INTERP; then die "$(binary "$program") is not static"; fi
    done
}

# compile_apart PROGRAM...: the same, with the profile of images. Programs that ask for the same packages are built in one call of cargo.
# The launcher comes before the components: its last crate takes one processor for minutes, when other builds still need the other one.
compile_apart() {
    local program call names arguments
    for program; do printf '%s\t%s\n' "$(packages "$program")" "$program"; done |
        awk -F '\t' '!($1 in names) { calls[++count] = $1 } { names[$1] = names[$1] " " $2 }
            END { for (i = count; i >= 1; i--) print calls[i] "\t" names[calls[i]] }' >"$made/calls"
    while IFS=$'\t' read -r call names; do
        read -ra arguments <<<"$call ${names// / --bin }"
        # ring contains C code.
        CC_x86_64_unknown_linux_musl=${CC_x86_64_unknown_linux_musl:-musl-gcc} \
            CC_aarch64_unknown_linux_musl=${CC_aarch64_unknown_linux_musl:-aarch64-linux-gnu-gcc} \
            CARGO_TARGET_AARCH64_UNKNOWN_LINUX_MUSL_LINKER=${CARGO_TARGET_AARCH64_UNKNOWN_LINUX_MUSL_LINKER:-rust-lld} \
            "$top/.ci/timed" "images/compile$names" cargo build --quiet --locked --manifest-path "$top/Cargo.toml" --profile image --target "$triple" "${arguments[@]}" >&2 </dev/null ||
            die "cargo could not build$names"
    done <"$made/calls"
}

# programs NAME FOLDER: the programs that the stage.sh of image NAME lists, into FOLDER/usr/bin.
programs() {
    local package
    for package in $(listed programs "$1"); do install -D -m 755 "$work/programs/$package" "$2/usr/bin/$package"; done
}

# listed WHAT NAME: the words after "# WHAT:" in the image's stage.sh.
listed() { sed -n "s/^# $1: //p" "$here/$2/stage.sh"; }

# accounts FOLDER NAME ID: /etc/passwd and /etc/group with root and one more account.
accounts() {
    mkdir -p "$1/etc"
    printf 'root:x:0:0:root:/:/sbin/nologin\n%s:x:%d:%d:%s:/:/sbin/nologin\n' "$2" "$3" "$3" "$2" >"$1/etc/passwd"
    printf 'root:x:0:\n%s:x:%d:\n' "$2" "$3" >"$1/etc/group"
}

# copy TREE FOLDER PATH...: files of TREE to the same places in FOLDER; symbolic links are followed, below TREE.
copy() {
    local tree=$1 folder=$2 path source link
    shift 2
    for path; do
        source=$tree$path
        while [ -L "$source" ]; do
            link=$(readlink "$source")
            case $link in /*) source=$tree$link ;; *) source=$(dirname "$source")/$link ;; esac
        done
        install -D -m "$([ -x "$source" ] && echo 755 || echo 644)" "$source" "$folder$path"
    done
}

# libraries TREE FILE...: every library that programs and modules below TREE load at their start, as paths below TREE.
libraries() {
    local tree=$1 file
    shift
    echo /lib64/ld-linux-x86-64.so.2
    for file; do chroot "$tree" /lib64/ld-linux-x86-64.so.2 --list "$file"; done |
        sed -n 's/.* => \(\/[^ ]*\) (.*/\1/p' | grep -v '/ld-linux' | sort -u
}

# key NAME: a hash of everything that the image depends on.
key() {
    {
        printf '%s\n' "$registry/barevirt/$1:$tag" "$suite" "$qemu_suite" "$epoch" "${labels[@]}"
        cat "$here/build.sh"
        for part in "$1" $(listed also "$1"); do
            (cd "$here" && find "$part" -type f -print0 | sort -z | xargs -0 sha256sum && find "$part" -type f -perm -100 | sort)
        done
        find "$work/programs" -type f -print0 | sort -z | xargs -0r cat
    } | sha256sum | cut -c 1-32
}

# The labels of the image. An ordinary build has none, since they would change the image with each commit.
labels=()
[ -z "${BAREVIRT_VERSION:-}" ] || labels=(
    --label "org.opencontainers.image.version=v$BAREVIRT_VERSION"
    --label "org.opencontainers.image.revision=${BAREVIRT_COMMIT:-unknown}"
    --label "org.opencontainers.image.created=${BAREVIRT_BUILD_DATE:-unknown}"
    --label "org.opencontainers.image.licenses=Apache-2.0"
)

# archive FOLDER FILE: packs FOLDER by the image's Containerfile. The same files always make the same digest.
archive() {
    local ref=$registry/barevirt/$name:$tag buildah=(buildah --storage-driver vfs --root "$work/storage" --runroot "$work/run")
    find "$1" -exec touch --no-dereference --date "@$epoch" {} +
    "${buildah[@]}" bud --quiet --isolation chroot --timestamp "$epoch" --identity-label=false "${labels[@]}" -t "$ref" -f "$here/$name/Containerfile" "$1" >/dev/null
    "${buildah[@]}" push --quiet --compression-format zstd --compression-level 12 "$ref" "oci-archive:$2:$ref"
}

build() {
    local name=$1 key slot held package started=$SECONDS
    work=$made/$name
    mkdir -p "$work/programs"
    for package in $(listed programs "$name"); do cp "$made/programs/$package" "$work/programs/$package"; done
    key=$(key "$name")
    slot=$cache/images/$key
    lock "$cache/images/$name.lock"
    if [ ! -e "$slot/done" ]; then
        say "building"
        rm -rf "$slot"
        mkdir -p "$slot" "$work/image"
        # shellcheck source=/dev/null
        (source "$here/$name/stage.sh" && stage "$work/image")
        origins "$work/image" >"$work/origins"
        [ ! -s "$work/origins" ] || install -m 644 "$work/origins" "$slot/$name.packages"
        archive "$work/image" "$slot/$name.oci.tar"
        [ ! -e "$work/image/disk/disk.qcow2" ] || install -m 644 "$work/image/disk/disk.qcow2" "$slot/$name.qcow2"
        du -sb "$work/image" | awk '{ printf "%.1f MB unpacked\n", $1 / 1e6 }' >"$slot/done"
        say "built in $((SECONDS - started)) s"
        printf '%s\timages/%s\n' "$((SECONDS - started))" "$name" >>"$top/target/steps.tsv"
    fi
    for file in "$slot/$name".*; do
        # A new file each time, so that a file in use does not change.
        cp --reflink=auto "$file" "$out/.$name" && mv "$out/.$name" "$out/$(basename "$file")"
    done
    unlock
    rm -rf --one-file-system "$work"
    touch "$slot"
    say "$(megabytes "$out/$name.oci.tar") compressed, $(cat "$slot/done")"
}

made=$(mktemp -d)
trap 'rm -rf --one-file-system "$made"' EXIT
if [ "${1:-}" = --program ]; then
    [ $# = 2 ] || die "usage: images/build.sh --program NAME"
    compile "$2"
    binary "$2"
    exit
fi
[ "$(id -u)" = 0 ] || die "run me as root: trees of Debian packages hold files of several users"
mkdir -p "$out" "$cache/images"
[ $# -gt 0 ] || set -- components guests
images=()
for image; do
    case $image in
        components) read -ra more <<<"$components" ;;
        guests) read -ra more <<<"$guests" ;;
        *) more=("$image") ;;
    esac
    images+=("${more[@]}")
done
for image in "${images[@]}"; do
    [ -f "$here/$image/stage.sh" ] || die "no image is named $image (there are: $components $guests)"
done
mapfile -t programs < <(for image in "${images[@]}"; do listed programs "$image" | tr ' ' '\n'; done | sort -u)
# Copies, because another build of the same workspace may replace them meanwhile.
mkdir "$made/programs"
[ ${#programs[@]} = 0 ] || compile "${programs[@]}"
for program in "${programs[@]}"; do cp "$(binary "$program")" "$made/programs/$program"; done
# Two at once, because most steps of a build use one processor.
running=()
for image in "${images[@]}"; do
    [ ${#running[@]} -lt 2 ] || { wait "${running[0]}"; running=("${running[@]:1}"); }
    build "$image" &
    running+=($!)
done
for each in "${running[@]}"; do wait "$each"; done
# Removes images that were not used for two weeks.
find "$cache/images" -ignore_readdir_race -mindepth 1 -maxdepth 1 -type d -mtime +14 -exec rm -rf --one-file-system {} +
