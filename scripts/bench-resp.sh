#!/usr/bin/env bash
# Compares RESP with throttlecrab-server: the same client (redis-benchmark) and the same load, in turns. Both count in
# memory. Both get throttlecrab's command; Slidegate also gets its own command. Prints a row for each turn, then the
# medians, and the median of the ratios. Asserts nothing.
#
#   ROUNDS=5 CONNECTIONS=50                    number of rounds, and of clients
#   ALONE=200000 PIPELINED=1000000             requests of a turn: with one in flight per client, and with sixteen;
#                                              throttlecrab gets a tenth of the latter
#   BESIDE=path/to/slidegate                   another build of Slidegate instead of throttlecrab, to measure a change
#   RESERVE=1                                  requests signed reservations, from this build and from BESIDE; the first
#                                              column is this build without reservations. Only admitted requests
#                                              have a reservation
#   LOADS="admit deny" KEYS="1 10000"          loads, and numbers of keys
set -euo pipefail
cd "$(dirname "$0")/.."
source scripts/need.sh
source scripts/beside.sh

rounds=${ROUNDS:-5} connections=${CONNECTIONS:-50} alone=${ALONE:-200000} pipelined=${PIPELINED:-1000000}

need redis-benchmark redis-tools
[ -n "${BESIDE:-}" ] || need_throttlecrab
prepare

# A limit that no turn reaches is above the default bounds of `ad-hoc`, so this file raises them.
echo 'ad-hoc: { limit: { default: 1, min: 1, max: 1000000000 } }
rules: []' >"$work/rules.yaml"
start_both redis serve --config "$work/rules.yaml" --store memory --http off --grpc off --resp 127.0.0.1:PORT

# Prints the arguments of a command under a load. Each load has its own keys.
question() {
    # With a burst of 1, throttlecrab 0.4 denies nothing.
    local limit=2
    [ "$2" = deny ] || limit=1000000000
    case $1 in
    THROTTLE) echo "THROTTLE $2-__rand_int__ $limit $limit 60" ;;
    SG.ACQUIRE) echo "SG.ACQUIRE $2-__rand_int__ $limit 60000" ;;
    RESERVE) echo "SG.ACQUIRE $2-__rand_int__ $limit 60000 1 RESERVE" ;;
    esac
}

# Runs one turn. Prints requests per second, and the median and 99th percentile of latency in milliseconds.
turn() {
    local who=$1 command=$2 load=$3 keys=$4 pipeline=$5 n=$alone
    [ "$pipeline" = 1 ] || n=$pipelined
    # throttlecrab would need a minute for all requests: see docs/explanation/benchmarks.md.
    [ "$who $pipeline" != "throttlecrab 16" ] || n=$((n / 10))
    # shellcheck disable=SC2046
    redis-benchmark -p "${ports[$who]}" -c "$connections" -n "$n" -P "$pipeline" -r "$keys" --csv \
        $(question "$command" "$load") 2>/dev/null | tail -1 | tr -d '"' | awk -F, '{ print $2, $5, $7 }'
}

# Prints whether a request is allowed, to check the load.
decided() {
    # shellcheck disable=SC2046
    redis-cli -p "${ports[$1]}" $(question "$2" "$3" | sed 's/__rand_int__/000000000000/') | head -1
}

# Pairs of a server and a command.
contenders=("slidegate THROTTLE" "slidegate SG.ACQUIRE" "$other THROTTLE")
[ -z "${RESERVE:-}" ] || contenders=("slidegate SG.ACQUIRE" "slidegate RESERVE" "$other RESERVE")
read -ra loads <<<"${LOADS:-admit deny}"
read -ra numbers_of_keys <<<"${KEYS:-1 10000}"

echo "redis-benchmark -c $connections -n $alone, or -n $pipelined -P 16, $(nproc) cores, $rounds rounds"
echo
echo "| load | keys | pipeline | round | | requests/s | p50 ms | p99 ms |"
echo "|---|--:|--:|--:|---|--:|--:|--:|"
for load in "${loads[@]}"; do
    for keys in "${numbers_of_keys[@]}"; do
        for pipeline in 1 16; do
            for round in $(seq 1 "$rounds"); do
                # The servers take turns to go first.
                order=(0 1 2)
                [ $((round % 2)) = 1 ] || order=(2 1 0)
                for i in "${order[@]}"; do
                    read -r who command <<<"${contenders[$i]}"
                    quiet
                    read -r per_second p50 p99 < <(turn "$who" "$command" "$load" "$keys" "$pipeline")
                    echo "| $load | $keys | $pipeline | $round | $who $command | $per_second | $p50 | $p99 |"
                    echo "$per_second $p50 $p99" >>"$work/$load.$keys.$pipeline.$i"
                done
            done
        done
    done
    for i in 0 1 2; do
        read -r who command <<<"${contenders[$i]}"
        echo "$load: $(decided "$who" "$command" "$load")" >>"$work/decided.$i"
    done
done

echo
echo "| load | keys | pipeline | ${contenders[0]}/s | ${contenders[1]}/s | ${contenders[2]}/s | x | x by ${contenders[1]#* } |"
echo "|---|--:|--:|--:|--:|--:|--:|--:|"
for load in "${loads[@]}"; do
    for keys in "${numbers_of_keys[@]}"; do
        for pipeline in 1 16; do
            file=$work/$load.$keys.$pipeline
            row="| $load | $keys | $pipeline |"
            for i in 0 1 2; do
                row+=" $(cut -d' ' -f1 "$file.$i" | median) |"
            done
            for i in 0 1; do
                row+=" $(paste -d' ' <(cut -d' ' -f1 "$file.$i") <(cut -d' ' -f1 "$file.2") | awk '{ print $1 / $2 }' |
                    median | awk '{ printf "%.2f", $1 }') |"
            done
            echo "$row"
        done
    done
done
echo
for i in 0 1 2; do
    echo "${contenders[$i]} allowed $(paste -sd, "$work/decided.$i" | sed 's/,/, /g')"
done
