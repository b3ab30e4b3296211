#!/usr/bin/env bash
# Compiles a kernel.
#
#   kernel.sh SOURCE CONFIG FOLDER
#
# SOURCE is a tree of the kernel's sources, CONFIG what is asked for over `make tinyconfig`. Leaves in FOLDER: bzImage, the
# release's name, and modules.builtin, the list of the drivers in it.
set -euo pipefail
source=$1 config=$2 folder=$3
# The same sources give the same kernel.
export KBUILD_BUILD_TIMESTAMP='Thu Jan 1 00:00:00 UTC 1970' KBUILD_BUILD_USER=barevirt KBUILD_BUILD_HOST=barevirt
# The job server of an outer make is not for this one.
unset MAKEFLAGS
cd "$source"
make -s tinyconfig
scripts/kconfig/merge_config.sh -m .config "$config"
make -s olddefconfig
# What another version of the sources does not know is left out of .config without a word.
missing=$(grep '=' "$config" | grep -vxFf .config || true)
[ -z "$missing" ] || { printf 'not in the configuration:\n%s\n' "$missing" >&2; exit 1; }
make -s -j"$(nproc)" bzImage
make -s modules.builtin
cp arch/x86/boot/bzImage modules.builtin "$folder/"
make -s kernelrelease >"$folder/release"
