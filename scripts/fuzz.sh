#!/usr/bin/env bash
# Runs each fuzz target for a while, from the corpus that is kept, and says how often.
#
#   SECONDS_EACH=600 [TARGET=decode] [RECORD=1] scripts/fuzz.sh
#   scripts/fuzz.sh build        only sees whether they build
#
# What is found goes to fuzz/scratch and fuzz/artifacts, which git does not see. RECORD=1 adds the executions to
# fuzz/executions.tsv. Nothing here is unsafe, so that the address sanitizer would only cost time; and without
# traced comparisons the decoder is run twice as often and the engine four times.
set -euo pipefail
cd "$(dirname "$0")/.."
options=(--sanitizer none --no-trace-compares)
targets=${TARGET:-decode round_trip session engine url}
seconds=${SECONDS_EACH:-60}

missing() {
    if ! cargo +nightly --version >/dev/null 2>&1; then
        echo "no nightly toolchain: rustup toolchain install nightly --profile minimal"
    elif ! cargo fuzz --version >/dev/null 2>&1; then
        echo "no cargo-fuzz: cargo install cargo-fuzz --locked"
    elif ! command -v c++ >/dev/null; then
        echo "no C++ compiler, which libFuzzer is built with: apt-get install g++"
    fi
}

# As large as inputs are worth: the decoder is to be run often, the engine needs room for a story.
longest() {
    case $1 in
    decode) echo 64 ;;
    url) echo 200 ;;
    round_trip) echo 300 ;;
    *) echo 400 ;;
    esac
}

run() { # target
    local scratch=fuzz/scratch/$1 log=fuzz/scratch/$1.log executions
    mkdir -p "$scratch"
    printf '\n== %s for %s s\n' "$1" "$seconds"
    if ! cargo +nightly fuzz run "${options[@]}" "$1" "$scratch" "fuzz/corpus/$1" -- \
        -max_len="$(longest "$1")" -max_total_time="$seconds" -print_final_stats=1 >"$log" 2>&1; then
        tail -n 60 "$log"
        return 1
    fi
    executions=$(sed -n 's/^stat::number_of_executed_units: *//p' "$log")
    printf '%s\t%s\t%s\t%s\n' "$(date -u +%F)" "$1" "$seconds" "$executions" >>"$summary"
}

reason=$(missing)
if [ "${1:-}" = build ]; then
    [ -z "$reason" ] || { echo "fuzz targets are not built: $reason" && exit 0; }
    exec cargo +nightly fuzz build --dev "${options[@]}"
fi
[ -z "$reason" ] || { echo "$reason" >&2 && exit 69; }

summary=$(mktemp)
trap 'rm -f "$summary"' EXIT
failed=0
for target in $targets; do
    run "$target" || failed=1
done
printf '\ndate\ttarget\tseconds\texecutions\n'
cat "$summary"
if [ "${RECORD:-}" = 1 ]; then
    cat "$summary" >>fuzz/executions.tsv
fi
exit "$failed"
