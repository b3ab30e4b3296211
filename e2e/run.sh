#!/usr/bin/env bash
# Runs the end-to-end tests on the cluster of this machine, and what failed once more.
#
#   e2e/run.sh [CARGO TEST ARGUMENT...]
#
# E2E_TRIES     how often a test may be run before it counts as failed (1)
# E2E_THREADS   how many tests run at once (2)
#
# Real guests, emulated, on processors that others may use too: a second try of the failed ones tells a defect from a
# busy machine. What failed in the first stays in the output.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

log=$(mktemp)
trap 'rm -f "$log"' EXIT
failed=()
for ((try = 1; try <= ${E2E_TRIES:-1}; try++)); do
    if cargo test --locked --no-fail-fast -p barevirt-e2e --tests "$@" -- --test-threads="${E2E_THREADS:-2}" --exact "${failed[@]}" 2>&1 |
        tee "$log"; then
        exit 0
    fi
    mapfile -t failed < <(sed -n 's/^test \([^ ]*\) \.\.\. FAILED$/\1/p' "$log")
    # Without a name it is no test that failed, but what runs them.
    [[ ${#failed[@]} -gt 0 ]] || exit 1
    echo "e2e: failed in try $try: ${failed[*]}"
done
exit 1
