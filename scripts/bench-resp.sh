#!/usr/bin/env bash
# RESP beside throttlecrab-server: the same client (redis-benchmark) and the same load, in turns, both counting in
# memory. Both are asked by throttlecrab's command, and we by our own too.
# Prints a row a turn, then the medians, and of the turns' ratios the median. Asserts nothing.
#
#   ROUNDS=5 CONNECTIONS=50                    how often, and how many clients
#   ALONE=200000 PIPELINED=1000000             requests of a turn: one in flight a client, and sixteen; of those,
#                                              throttlecrab gets a tenth
#   BESIDE=path/to/slidegate                   another build of ours instead of throttlecrab, to see what a change brings
#   RESERVE=1                                  asks for reservations, which are signed: of this build and of BESIDE; the first
#                                              column is this build without reservations. Only what is admitted has one
#   LOADS="admit deny" KEYS="1 10000"        what is asked
set -euo pipefail
cd "$(dirname "$0")/.."
source scripts/need.sh
source scripts/beside.sh

rounds=${ROUNDS:-5} connections=${CONNECTIONS:-50} alone=${ALONE:-200000} pipelined=${PIPELINED:-1000000}

need redis-benchmark redis-tools
[ -n "${BESIDE:-}" ] || need_throttlecrab
prepare

# A limit that no turn reaches is more than a request may usually name.
echo 'ad-hoc: { limit: { default: 1, min: 1, max: 1000000000 } }
rules: []' >"$work/rules.yaml"
start_both redis serve --config "$work/rules.yaml" --store memory --http off --grpc off --resp 127.0.0.1:PORT

# What is asked by a command under a load, whose keys are its own.
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

# One turn: requests a second, median and 99th percentile of latency in milliseconds.
turn() {
    local who=$1 command=$2 load=$3 keys=$4 pipeline=$5 n=$alone
    [ "$pipeline" = 1 ] || n=$pipelined
    # It would take a minute for them: see docs/explanation/benchmarks.md.
    [ "$who $pipeline" != "throttlecrab 16" ] || n=$((n / 10))
    # shellcheck disable=SC2046
    redis-benchmark -p "${ports[$who]}" -c "$connections" -n "$n" -P "$pipeline" -r "$keys" --csv \
        $(question "$command" "$load") 2>/dev/null | tail -1 | tr -d '"' | awk -F, '{ print $2, $5, $7 }'
}

# That it did what the load says.
decided() {
    # shellcheck disable=SC2046
    redis-cli -p "${ports[$1]}" $(question "$2" "$3" | sed 's/__rand_int__/000000000000/') | head -1
}

# The contenders: who, and by which command.
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
                # Who goes first alternates.
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
