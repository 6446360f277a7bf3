#!/usr/bin/env bash
# Every test, on a machine with Rust and a C compiler. Installs what else the tests use.
set -euo pipefail
cd "$(dirname "$0")/.."

bash scripts/tools.sh

log=$(mktemp)
trap 'rm -f "$log"' EXIT
cargo test --workspace --all-features "$@" | tee "$log"
for example in crates/slidegate/examples/*.rs; do
    name=$(basename "$example" .rs)
    echo "example $name"
    # Made with the tests.
    "${CARGO_TARGET_DIR:-target}/debug/examples/$name"
done
awk '/^test result:/ { passed += $4; failed += $6 } END { print passed " passed, " failed " failed" }' "$log"
