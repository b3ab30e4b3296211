#!/usr/bin/env bash
# Prints the path of Prometheus from Debian. The package is unpacked into the cache and not installed: an installed one
# starts as a service.
#
#   e2e/prometheus.sh
set -euo pipefail

cache=${BAREVIRT_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/barevirt}/prometheus
mkdir -p "$cache"
exec 9>"$cache/lock"
flock 9

available() { apt-cache show --no-all-versions prometheus 2>/dev/null | awk '$1 == "SHA256:" { print $2; exit }'; }

sum=$(available)
if [[ -z $sum ]]; then
    apt-get update -qq -o DPkg::Lock::Timeout=600 >&2
    sum=$(available)
fi
[[ -n $sum ]] || { echo "apt knows no package prometheus" >&2; exit 1; }
tree=$cache/${sum:0:16}
if [[ ! -x $tree/usr/bin/prometheus ]]; then
    work=$(mktemp -d)
    trap 'rm -rf "$work"' EXIT
    (cd "$work" && apt-get download -qq -o APT::Sandbox::User=root prometheus >&2)
    sha256sum --quiet --check >&2 <<<"$sum  $(echo "$work"/prometheus_*.deb)"
    # Former versions are not needed.
    find "$cache" -mindepth 1 -maxdepth 1 -type d -exec rm -rf {} +
    dpkg-deb -x "$work"/prometheus_*.deb "$work/tree"
    mv "$work/tree" "$tree"
fi
echo "$tree/usr/bin/prometheus"
