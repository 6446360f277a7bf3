#!/usr/bin/env bash
# Looks for tests that fail only sometimes: runs scripts/test.sh again and again, half of the runs on an otherwise idle machine, then half
# beside `stress-ng --cpu 4`. Prints a row per run, then every test that failed and how often.
#
#   scripts/flakes.sh [N]             N runs, 10 if not given
#   scripts/flakes.sh N idle|loaded   only one of the halves, N runs of it
#
# The output of each run stays in target/flakes.
set -euo pipefail
cd "$(dirname "$0")/.."
source scripts/need.sh
need stress-ng stress-ng

runs=${1:-10}
case ${2:-} in
'') loaded_after=$((runs / 2)) ;;
idle) loaded_after=$runs ;;
loaded) loaded_after=0 ;;
*)
    sed -n '5,6s/^# *//p' "$0"
    exit 2
    ;;
esac
logs=target/flakes
rm -rf $logs
mkdir -p $logs
load=
trap '[ -z "$load" ] || kill "$load" 2>/dev/null || true' EXIT

echo "| run | load | seconds | passed | failed |"
echo "|--:|---|--:|--:|--:|"
failures=0
for run in $(seq 1 "$runs"); do
    beside=idle
    if [ "$run" -gt $loaded_after ]; then
        beside="stress-ng --cpu 4"
        stress-ng --quiet --cpu 4 &
        load=$!
    fi
    began=$SECONDS
    code=0
    bash scripts/test.sh >"$logs/$run.log" 2>&1 || code=$?
    took=$((SECONDS - began))
    if [ -n "$load" ]; then
        kill "$load" 2>/dev/null || true
        wait "$load" 2>/dev/null || true
        load=
    fi
    read -r passed failed < <(awk '/^[0-9]+ passed, [0-9]+ failed$/ { print $1, $3 }' "$logs/$run.log" | tail -1) || true
    if [ "$code" != 0 ]; then
        failures=$((failures + 1))
        awk '$2 == "failed" { sub(/^[^ ]+ [^ ]+ /, ""); print }' target/test-results.txt >>$logs/failures.txt
    fi
    echo "| $run | $beside | $took | ${passed:-none} | ${failed:-none, exit code $code} |"
done

echo
if [ -s $logs/failures.txt ]; then
    echo "number of failed runs by test:"
    sort $logs/failures.txt | uniq -c | sort -rn
fi
echo "$((runs - failures)) runs passed, $failures runs failed"
[ "$failures" = 0 ]
