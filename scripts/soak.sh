#!/usr/bin/env bash
# Simulated schedules with fresh seeds on all cores: as many as are wished, or as fit into the time. Ends with what was
# done in them and the rate, or with the seed that went wrong and how to see it again.
#
# soak.sh [SCHEDULES=1000000 | SECONDS=600]
set -euo pipefail
cd "$(dirname "$0")/.."

exec env "${1:-SCHEDULES=1000000}" cargo test --quiet --release --test sim -- soak --ignored --exact --nocapture
