#!/usr/bin/env bash
# Long forms of the fault tests: kills, failovers, bad networks, slots that move, holders that die, outages, hostile clients, floods of keys,
# and failover in simulation. One test at a time, in release mode; the bad networks alone take five minutes. Prints the figures of every step.
# `scripts/soak.sh kills` runs only the steps whose name contains `kills`.
set -euo pipefail
cd "$(dirname "$0")/.."

bash scripts/tools.sh
echo "building in release mode"
cargo test --release -q -p slidegate --test suite --no-run

figures=$(mktemp)
trap 'rm -f "$figures"' EXIT
failed=()

# Each step: a name, the prefix of its tests, and the environment variables that make the tests long.
step() {
    local name=$1 tests=$2
    shift 2
    [[ $name == *"${only:-}"* ]] || return 0
    echo "== $name: $* $tests"
    local begun=$SECONDS
    if env "$@" cargo test --release -q -p slidegate --test suite "$tests" -- --test-threads=1 --nocapture 2>&1 |
        tee -a "$figures"; then
        echo "== $name: passed after $((SECONDS - begun)) s" | tee -a "$figures"
    else
        echo "== $name: FAILED after $((SECONDS - begun)) s" | tee -a "$figures"
        failed+=("$name")
    fi
}

only=${1:-}
step conformance conformance::redis CONFORMANCE_OPERATIONS=204000
step kills failover_kills:: FAILOVER_KILLS=20
step failovers failover_promotion:: FAILOVER_PROMOTIONS=5
step network failover_faults::network FAILOVER_FAULT_MS=60000
step scripts failover_faults::script FAILOVER_FLUSHES=20000
step clock failover_faults::clock
step decisions failover_decisions::
step write-back failover_write_back::
step slots topologies::slots TOPOLOGY_DECISIONS=1000000 TOPOLOGY_SLOTS=500
step checks topologies::checks_over TOPOLOGY_ASKS=200000
step holders holder_crashes:: HOLDERS_SECONDS=30
# A virtual machine can stop for some milliseconds. Its longest stop is the error of the longest script call that the next step measures.
if [[ hostile == *"${only:-}"* ]]; then
    redis-cli --intrinsic-latency 10 | awk '/^Max latency/ { most = $5 } END { printf "hostile: this machine alone stalls for up to %.2f ms\n", most / 1000 }' |
        tee -a "$figures"
fi
step hostile hostile_clients:: HOSTILE_ENTRIES=100000 HOSTILE_ROUNDS=3 HOSTILE_DEADLINE_MS=50 HOSTILE_MOST_US=5000
step outages outages:: SLIDEGATE_OUTAGES=20
step failover-simulation failover_simulation:: SLIDEGATE_SIMULATION_SEEDS=10000
step flood key_floods:: SLIDEGATE_FLOOD_KEYS=1000000

echo
echo "== figures"
grep -vE '^(running|test |\.*$|cargo|[[:space:]]*$)' "$figures" || true
if [ ${#failed[@]} -gt 0 ]; then
    echo "failed: ${failed[*]}"
    exit 1
fi
