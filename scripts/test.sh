#!/usr/bin/env bash
# Every check there is, the quick ones first. Ends with cargo's own summary.
set -euo pipefail
cd "$(dirname "$0")/.."

# What setup has found or fetched, unless the caller knows better. (Not by make: it would ask before setup ran.)
export QUORLOCK_SERVER=${QUORLOCK_SERVER:-$(cat .tools/server 2>/dev/null || true)}

step() { printf '\n== %s\n' "$*"; "$@"; }

budget() {
    local crates
    crates=$(cargo tree --edges normal --prefix none | sort -u | grep -vc '^quorlock ')
    echo "$crates crates beside our own (at most 14)"
    [ "$crates" -le 14 ]
}

step cargo fmt --check
step cargo clippy --all-targets --all-features --quiet -- -D warnings
step cargo clippy --quiet -- -D warnings
RUSTDOCFLAGS='-D warnings' step cargo doc --all-features --no-deps --document-private-items --quiet
step budget
step cargo run --quiet --manifest-path tests/fork/Cargo.toml
step scripts/fuzz.sh build
step scripts/mutants.sh
step cargo test --quiet --release --test fencing_model -- --nocapture
step cargo test --all-features
