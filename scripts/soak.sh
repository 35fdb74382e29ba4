#!/usr/bin/env bash
# Simulated schedules with fresh seeds on all cores: as many as are wished, or as fit into a third of the time. The
# rest of the time goes to workloads of processes on real servers (tests/workloads). Then so many timeouts and cancels
# on real servers, with every vote read back (tests/miscredit.rs). Ends with what was done in them, or with what went
# wrong; a simulated schedule says how to see it again.
#
# soak.sh [SCHEDULES=1000000 | SECONDS=600] [TIMEOUTS=100000]
set -euo pipefail
cd "$(dirname "$0")/.."
export QUORLOCK_SERVER=${QUORLOCK_SERVER:-$(cat .tools/server 2>/dev/null || true)}

soak() { # which test, and how much of it
    env "$2" cargo test --quiet --release --test "$1" -- soak --ignored --exact --nocapture
}

case ${1:-SCHEDULES=1000000} in
SECONDS=*)
    seconds=${1#SECONDS=}
    soak sim "SECONDS=$((seconds / 3))"
    soak workloads "SECONDS=$((seconds - seconds / 3))"
    ;;
*)
    soak sim "${1:-SCHEDULES=1000000}"
    ;;
esac
soak miscredit "${2:-TIMEOUTS=100000}"
