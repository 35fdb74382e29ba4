#!/usr/bin/env bash
# Simulated schedules with fresh seeds on all cores: as many as are wished, or as fit into the time. Ends with what was
# done in them and the rate, or with the seed that went wrong and how to see it again. Then so many timeouts and cancels
# on real servers, with every lock read back.
#
# soak.sh [SCHEDULES=1000000 | SECONDS=600] [TIMEOUTS=100000]
set -euo pipefail
cd "$(dirname "$0")/.."
export QUORLOCK_SERVER=${QUORLOCK_SERVER:-$(cat .tools/server 2>/dev/null || true)}

soak() { # how much, the test's target
    env "$1" cargo test --quiet --release --test "$2" -- soak --ignored --exact --nocapture
}

soak "${1:-SCHEDULES=1000000}" sim
soak "${2:-TIMEOUTS=100000}" miscredit
