#!/usr/bin/env bash
# Installs the libraries of other languages that benches/peers compares with, under target/peers. What cannot be had
# is left out, and the benchmark says so.
set -euo pipefail
cd "$(dirname "$0")/.."
into=$PWD/target/peers
mkdir -p "$into"

say() { printf 'peers: %s\n' "$*" >&2; }

if command -v node >/dev/null && command -v npm >/dev/null; then
    mkdir -p "$into/node"
    cp benches/peers/node/package.json benches/peers/node/peer.mjs "$into/node/"
    npm install --silent --no-audit --no-fund --prefix "$into/node" >&2 ||
        say "no node-redlock: npm could not install it"
else
    say "no node-redlock: it takes node and npm"
fi

if command -v python3 >/dev/null; then
    if ! { [ -x "$into/python/bin/python" ] || python3 -m venv "$into/python"; } ||
        ! "$into/python/bin/pip" install --quiet --disable-pip-version-check \
            -r benches/peers/python/requirements.txt >&2; then
        rm -rf "$into/python"
        say "no pottery and no redlock-py: pip could not install them"
    fi
else
    say "no pottery and no redlock-py: they take python3"
fi
