#!/usr/bin/env bash
# The tests that start real servers, on every version of them that can be had, one after another. Ends with a table.
#
#   scripts/matrix.sh [ONLY=7.0]
#
# Fails if a test does, or if no version could be had.
set -euo pipefail
cd "$(dirname "$0")/.."

only=${1:-}
only=${only#ONLY=}
logs=$PWD/target/matrix
mkdir -p "$logs"
rm -f "$logs"/*

# Those that start a server say so by what they use, in a file or in any file of their directory.
targets() {
    local target
    for target in tests/*.rs tests/*/main.rs; do
        target=${target%/main.rs}
        if grep -rqE '\btesting::' "$target"; then basename "$target" .rs; fi
    done
}

# Every test of theirs, and the examples in the documentation. What each prints is kept, also where it passes.
tests() { # program
    local args=(--all-features --no-fail-fast) target failed=0
    local chosen=()
    for target in $(targets); do chosen+=(--test "$target"); done
    export QUORLOCK_SERVER=$1
    cargo test "${args[@]}" "${chosen[@]}" -- --show-output </dev/null || failed=1
    cargo test "${args[@]}" --doc </dev/null || failed=1
    return $failed
}

# Tests that were skipped, each with the first reason it gave.
skips() { # log
    awk '/^---- .* stdout ----$/ { test = $2 }
        /^skipped: / && test != "" { print test ": " substr($0, 10); test = "" }' "$1"
}

failures() { # log
    awk '/^test .* \.\.\. FAILED$/ { print $2 }' "$1"
}

# `N passed, N failed, N skipped`. One that was skipped has passed as far as cargo knows.
figures() { # log
    awk -v skipped="$(skips "$1" | wc -l)" '/^test result: / { passed += $4; failed += $6 }
        END { printf "%d passed, %d failed, %d skipped", passed - skipped, failed, skipped }' "$1"
}

table=()
ran=0
failed=0
while read -r name kind version; do
    [ -z "$only" ] || [ "$only" = "$version" ] || continue
    IFS=$'\t' read -r _ program origin < <(scripts/setup.sh "$name" | tail -n 1)
    if [ "$program" = - ]; then
        table+=("$kind $version" "could not be fetched: $origin" "")
        continue
    fi
    label="$kind $("$program" --version | sed -E 's/.* v=([^ ]+).*/\1/')"
    log=$logs/$version.log
    printf '\n== %s (%s)\n' "$label" "$program"
    ran=$((ran + 1))
    result=
    if ! (tests "$program") >"$log" 2>&1; then
        failed=$((failed + 1))
        grep -q '^test result: ' "$log" || result="no test ran"
        failures "$log" | sed 's/^/failed: /'
        printf 'all of it is in %s\n' "$log"
    fi
    skips "$log" | sed 's/^/skipped: /'
    table+=("$label" "$origin" "${result:-$(figures "$log")}")
done <<'VERSIONS'
redis5 Redis 5.0
redis6 Redis 6.2
redis7 Redis 7.0
redis8 Redis 8.2
valkey8 Valkey 8.1
valkey Valkey 9.1
VERSIONS

printf '\n'
[ ${#table[@]} -gt 0 ] || { printf 'matrix: there is no %s (5.0, 6.2, 7.0, 8.2, 8.1, 9.1)\n' "$only" >&2 && exit 64; }
printf '%-14s  %-28s  %s\n' server from tests "${table[@]}"
[ $ran -gt 0 ] && [ $failed -eq 0 ]
