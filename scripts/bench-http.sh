#!/usr/bin/env bash
# Compares HTTP with throttlecrab-server: the same client (wrk) and the same load, in turns. Both count in memory.
# Prints a row for each turn, then the medians, and the median of the ratios. Asserts nothing.
#
#   ROUNDS=5 TURN=3 CONNECTIONS=64 THREADS=1   number of rounds, seconds per turn, and the load
#   BESIDE=path/to/slidegate                   another build of Slidegate instead of throttlecrab, to measure a change
set -euo pipefail
cd "$(dirname "$0")/.."
source scripts/need.sh
source scripts/beside.sh

rounds=${ROUNDS:-5} turn=${TURN:-3} connections=${CONNECTIONS:-64} threads=${THREADS:-1}

need wrk wrk
need curl curl
[ -n "${BESIDE:-}" ] || need_throttlecrab
prepare

# A limit that no turn reaches is above the default bounds of `ad-hoc`, so this file raises them.
echo 'ad-hoc: { limit: { default: 1, min: 1, max: 1000000000 } }
rules: []' >"$work/rules.yaml"
start_both http serve --config "$work/rules.yaml" --store memory --http 127.0.0.1:PORT --grpc off --resp off

# Prints the path and the body of a server's requests under a load. Each load has its own keys.
question() {
    # With a burst of 1, throttlecrab 0.4 denies nothing.
    local who=$1 load=$2 limit=2
    [ "$load" = deny ] || limit=1000000000
    if [ "$who" = throttlecrab ]; then
        echo "/throttle {\"key\":\"$load-KEY\",\"max_burst\":$limit,\"count_per_period\":$limit,\"period\":60}"
    else
        echo "/v1/acquire {\"resource\":\"$load-KEY\",\"limit\":$limit,\"window\":\"60s\"}"
    fi
}

# Runs one turn. Prints requests per second, and the median and 99th percentile of latency in microseconds.
turn() {
    local path body
    read -r path body < <(question "$1" "$2")
    wrk -t "$threads" -c "$connections" -d "${turn}s" -s scripts/bench-http.lua "http://127.0.0.1:${ports[$1]}" -- \
        "$path" "$body" "$3" | tail -1
}

# Prints whether a request is allowed, to check the load.
decided() {
    local path body
    read -r path body < <(question "$1" "$2")
    curl -s -H 'content-type: application/json' -d "${body/KEY/user1}" "http://127.0.0.1:${ports[$1]}$path" |
        grep -o '"allowed":[a-z]*' | sed 's/.*://'
}


echo "wrk -t $threads -c $connections -d ${turn}s, $(nproc) cores, $rounds rounds"
echo
echo "| load | keys | round | | requests/s | p50 µs | p99 µs |"
echo "|---|--:|--:|---|--:|--:|--:|"
for load in admit deny; do
    for keys in 1 10000; do
        for round in $(seq 1 "$rounds"); do
            # The servers take turns to go first.
            order=(slidegate "$other")
            [ $((round % 2)) = 1 ] || order=("$other" slidegate)
            for who in "${order[@]}"; do
                quiet
                read -r per_second p50 p99 < <(turn "$who" "$load" "$keys")
                echo "| $load | $keys | $round | $who | $per_second | $p50 | $p99 |"
                echo "$per_second $p50 $p99" >>"$work/$load.$keys.$who"
            done
        done
        for who in slidegate "$other"; do
            echo "$load: allowed $(decided "$who" "$load")" >>"$work/decided.$who"
        done
    done
done

echo
echo "| load | keys | slidegate requests/s | p50 µs | p99 µs | $other requests/s | p50 µs | p99 µs | x requests/s | x p99 |"
echo "|---|--:|--:|--:|--:|--:|--:|--:|--:|--:|"
for load in admit deny; do
    for keys in 1 10000; do
        a=$work/$load.$keys.slidegate b=$work/$load.$keys.$other
        row="| $load | $keys |"
        for file in "$a" "$b"; do
            for column in 1 2 3; do
                row+=" $(cut -d' ' -f$column "$file" | median) |"
            done
        done
        for column in 1 3; do
            row+=" $(paste -d' ' <(cut -d' ' -f$column "$a") <(cut -d' ' -f$column "$b") | awk '{ print $1 / $2 }' |
                median | awk '{ printf "%.2f", $1 }') |"
        done
        echo "$row"
    done
done
echo
for who in slidegate "$other"; do
    echo "$who: $(sort -u "$work/decided.$who" | paste -sd, | sed 's/,/, /g')"
done
