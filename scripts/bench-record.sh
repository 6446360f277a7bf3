#!/usr/bin/env bash
# Measures the cost of statistics: the same server with metrics, top keys and one open dashboard, and without them, in
# turns. Both count in memory. Prints a row for each turn, and the median of the ratios. Asserts nothing.
#
#   ROUNDS=5 CONNECTIONS=50
#   ALONE=200000 PIPELINED=1000000    requests of a turn over RESP: with one in flight per client, and with sixteen
set -euo pipefail
cd "$(dirname "$0")/.."
source scripts/need.sh
source scripts/beside.sh

rounds=${ROUNDS:-5} connections=${CONNECTIONS:-50} alone=${ALONE:-200000} pipelined=${PIPELINED:-1000000}

need redis-benchmark redis-tools
prepare

for decisions in true false; do
    echo "monitor: { decisions: $decisions }
ad-hoc: { limit: { default: 1, min: 1, max: 1000000000 } }
rules: []" >"$work/$decisions.yaml"
done
http=127.0.0.1:$(free_port)
start recorded target/dist/slidegate serve --config "$work/true.yaml" --store memory --http "$http" --grpc off --resp 127.0.0.1:PORT
start bare target/dist/slidegate serve --config "$work/false.yaml" --store memory --http off --grpc off --resp 127.0.0.1:PORT
curl -sN "http://$http/v1/live" >"$work/live" &
servers+=($!)

# Runs one turn. Prints requests per second.
turn() {
    local n=$alone
    [ "$2" = 1 ] || n=$pipelined
    redis-benchmark -p "${ports[$1]}" -c "$connections" -n "$n" -P "$2" -r "$3" --csv \
        SG.ACQUIRE user-__rand_int__ 1000000000 60000 2>/dev/null | tail -1 | tr -d '"' | cut -d, -f2
}

echo "redis-benchmark -c $connections -n $alone, or -n $pipelined -P 16, $(nproc) cores, $rounds rounds"
echo
echo "| keys | pipeline | round | recorded/s | bare/s | ratio |"
echo "|--:|--:|--:|--:|--:|--:|"
for keys in 1 10000; do
    for pipeline in 1 16; do
        for round in $(seq 1 "$rounds"); do
            # The servers take turns to go first.
            if [ $((round % 2)) = 1 ]; then order=(recorded bare); else order=(bare recorded); fi
            declare -A rate
            for who in "${order[@]}"; do
                quiet
                rate[$who]=$(turn "$who" "$pipeline" "$keys")
            done
            ratio=$(awk "BEGIN { printf \"%.3f\", ${rate[recorded]} / ${rate[bare]} }")
            echo "| $keys | $pipeline | $round | ${rate[recorded]} | ${rate[bare]} | $ratio |"
            echo "$ratio" >>"$work/$keys.$pipeline"
        done
        echo "| $keys | $pipeline | median | | | $(median <"$work/$keys.$pipeline") |"
    done
done
echo
echo "the dashboard received the statistics of $(grep -c '^event: tick' "$work/live") seconds"
