#!/usr/bin/env bash
# Fuzzes the parsers of untrusted input with libFuzzer: runs each target of `fuzz/targets` for 300 seconds. The first
# argument is another number of seconds, the second a single target: `scripts/fuzz.sh 20 http` is a quick check. The
# corpus stays in target/fuzz-corpus. An input that fails is kept, and its path is printed.
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/need.sh
need c++ g++

seconds=${1:-300}
only=${2:-}
host=$(rustc -vV | sed -n 's/^host: //p')
counters=(-sanitizer-coverage-level=4 -sanitizer-coverage-inline-8bit-counters -sanitizer-coverage-pc-table
    -sanitizer-coverage-trace-compares)
flags="--cfg fuzzing -Cpasses=sancov-module"
for counter in "${counters[@]}"; do flags+=" -Cllvm-args=$counter"; done

# With an explicit --target, cargo compiles build scripts and macros without the flags.
RUSTFLAGS=$flags cargo build --release --manifest-path fuzz/Cargo.toml --target-dir target/fuzz --target "$host" \
    ${only:+--bin "$only"}

# The same stack size as a thread of the server.
ulimit -s 2048
failed=()
for path in fuzz/targets/*.rs; do
    name=$(basename "$path" .rs)
    [ -z "$only" ] || [ "$only" = "$name" ] || continue
    corpus=target/fuzz-corpus/$name log=target/fuzz-corpus/$name.log
    mkdir -p "$corpus"
    words=fuzz/words/$name
    [ -f "$words" ] || words=
    if "target/fuzz/$host/release/$name" "$corpus" "fuzz/seeds/$name" ${words:+-dict="$words"} \
        -max_total_time="$seconds" -max_len=65536 -timeout=10 -rss_limit_mb=2048 -len_control=10 -print_final_stats=1 \
        -artifact_prefix="$corpus.failed-" >"$log" 2>&1; then
        covered=$(grep -o 'cov: [0-9]* ft: [0-9]*' "$log" | tail -1)
        runs=$(sed -n 's/^stat::number_of_executed_units: //p' "$log")
        echo "$name: $runs executions in $seconds s, $covered"
    else
        echo "$name: FAILED"
        grep -E -m1 'panicked|ERROR: libFuzzer|overflowed' -A2 "$log" || tail -5 "$log"
        grep -o 'Test unit written to .*' "$log" || true
        failed+=("$name")
    fi
done
if [ ${#failed[@]} -gt 0 ]; then
    echo "failed: ${failed[*]}"
    exit 1
fi
