#!/usr/bin/env bash
# Every test, on a machine with Rust and a C compiler. Installs what else the tests use.
set -euo pipefail
cd "$(dirname "$0")/.."

# Debian packages by the program they bring.
need() {
    command -v "$1" >/dev/null && return
    echo "installing $2 for $1"
    as_root=$([ "$(id -u)" = 0 ] || echo sudo)
    $as_root apt-get update -qq
    $as_root apt-get install -y -qq "$2"
}
need curl curl

log=$(mktemp)
trap 'rm -f "$log"' EXIT
cargo test --workspace --all-features "$@" | tee "$log"
for example in crates/slidegate/examples/*.rs; do
    name=$(basename "$example" .rs)
    echo "example $name"
    cargo run -q -p slidegate --example "$name"
done
awk '/^test result:/ { passed += $4; failed += $6 } END { print passed " passed, " failed " failed" }' "$log"
