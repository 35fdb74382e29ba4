#!/usr/bin/env bash
# Every way to get the protocol wrong is caught by the simulation. With WRITE=1 the table goes to docs/mutants.md.
set -euo pipefail
cd "$(dirname "$0")/.."

# A build of its own: in others the mutants are not there.
export RUSTFLAGS="${RUSTFLAGS:-} --cfg quorlock_mutants"
exec cargo test --quiet --release --target-dir target/mutants --test sim -- mutants:: --nocapture
