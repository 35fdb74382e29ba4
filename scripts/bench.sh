#!/usr/bin/env bash
# Measures everything, and writes BENCHMARKS.md and its plots from what was measured.
#
#   scripts/bench.sh [quick]
#
# Takes about half an hour on a machine that has nothing else to do; `quick` takes a few minutes, and shows only
# that everything runs.
set -euo pipefail
cd "$(dirname "$0")/.."
export QUORLOCK_SERVER=${QUORLOCK_SERVER:-$(cat .tools/server 2>/dev/null || true)}

# Each benchmark, in the order of the page: its name, then what a quick and what a full run are told.
quick() { [ "${1:-}" = quick ]; }
run() { # name, arguments of a quick run, of a full one
    local args=$3
    quick "$mode" && args=$2
    printf '\n== %s\n' "$1" >&2
    # shellcheck disable=SC2086
    cargo bench --quiet --bench "$1" -- $args
}

mode=${1:-full}
rm -rf target/bench
run latency 300 5000
run faults 300 5000
run throughput 1 10
run waiters 100 1000
run lost 50 400
run keep_alive '200 5' '10000 60'
run scale 'pairs=2000 locks=5000 hand_overs=50' ''
run engine '--warm-up-time 0.1 --measurement-time 0.2' ''

# Other libraries: a package of its own.
scripts/peers.sh
peers=(--quiet --release --manifest-path benches/peers/Cargo.toml)
scale=100
quick "$mode" && scale=8
printf '\n== peers\n' >&2
cargo run "${peers[@]}" -- "scale=$scale"
printf '\n== resp\n' >&2
cargo bench --quiet --manifest-path benches/peers/Cargo.toml --bench resp

page() {
    cat <<HEAD
# Benchmarks

Made by \`make bench\`, and by nothing else: every figure below was measured by the command it stands under, in one run.

| | |
| --- | --- |
| machine | $(grep -m 1 'model name' /proc/cpuinfo | cut -d: -f2- | xargs), $(nproc) cores, $(awk '/MemTotal/ {printf "%.0f GiB", $2 / 1048576}' /proc/meminfo) |
| system | $(uname -srm) |
| server | $("${QUORLOCK_SERVER:-redis-server}" --version | cut -d' ' -f1-3) |
| Rust | $(rustc --version) |
| commit | $(git rev-parse --short HEAD)$([ -z "$(git status --porcelain src)" ] || echo ', with changes') |
| date | $(date -u +%Y-%m-%d) |

Servers, clients and whatever else runs share these cores, so a time by itself says little. Everything that is compared
was measured in turns within one run, and what counts is the ratio.

HEAD
    for name in "$@"; do
        [ -e "target/bench/$name.md" ] && cat "target/bench/$name.md"
    done
    cat <<TAIL
## What was not measured

Servers on other machines, over a real network; more than one client machine; name lookup; a server's disk (all run without
persistence); other systems than Linux. With idle cores and a real network the ratios to the floor are smaller, as the
network's share of both is larger.
TAIL
}

page latency faults peers-latency throughput peers-callers peers-hand-over waiters lost keep_alive scale engine resp >BENCHMARKS.md
echo "wrote BENCHMARKS.md" >&2
