#!/usr/bin/env bash
# Compares gRPC with throttlecrab-server: the same client (h2load) and the same load, in turns. Both count in memory.
# Prints a row for each turn, then the medians, and the median of the ratios. Asserts nothing.
#
#   ROUNDS=5 TURN=3 CONNECTIONS=8 STREAMS=32   number of rounds, seconds per turn, and the load
#   BESIDE=path/to/slidegate                   another build of Slidegate instead of throttlecrab, to measure a change
set -euo pipefail
cd "$(dirname "$0")/.."
source scripts/need.sh
source scripts/beside.sh

rounds=${ROUNDS:-5} turn=${TURN:-3} connections=${CONNECTIONS:-8} streams=${STREAMS:-32}

need h2load nghttp2-client
need curl curl
need python3 python3
[ -n "${BESIDE:-}" ] || need_throttlecrab
prepare

# Each limit is for one key. It is not 1, because throttlecrab 0.4 does not enforce a limit of 1.
echo 'rules:
  - { name: admit, match: { domain: admit }, key: [key], limit: 1000000000, window: 1m }
  - { name: deny, match: { domain: deny }, key: [key], limit: 2, window: 1m }' >"$work/rules.yaml"
start_both grpc serve --config "$work/rules.yaml" --store memory --http off --resp off --grpc 127.0.0.1:PORT

# The messages: for each load, a file for Envoy's service and one for throttlecrab's.
python3 - "$work" <<'P'
import sys

def varint(n):
    low, n = n & 127, n >> 7
    return bytes([low | 128]) + varint(n) if n else bytes([low])

def number(field, n):
    return varint(field << 3) + varint(n)

def text(field, value):
    value = value if isinstance(value, bytes) else value.encode()
    return varint(field << 3 | 2) + varint(len(value)) + value

def write(name, message):
    with open(f"{sys.argv[1]}/{name}", "wb") as file:
        file.write(b"\0" + len(message).to_bytes(4, "big") + message)

for load, limit in (("admit", 10**9), ("deny", 2)):
    entry = text(1, "key") + text(2, "user1")
    write(f"{load}.slidegate", text(1, load) + text(2, text(1, entry)))
    write(f"{load}.throttlecrab",
          text(1, f"{load}-user1") + number(2, limit) + number(3, limit) + number(4, 60) + number(5, 1))
P
cp "$work/admit.slidegate" "$work/admit.beside"
cp "$work/deny.slidegate" "$work/deny.beside"

url() {
    local path=envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit
    [ "$1" != throttlecrab ] || path=throttlecrab.RateLimiter/Throttle
    echo "http://127.0.0.1:${ports[$1]}/$path"
}

# Runs one turn. Prints requests per second, and the mean latency in microseconds. Every request must be answered.
turn() {
    h2load -t 1 -c "$connections" -m "$streams" -D "$turn" --warm-up-time=1 -d "$work/$2.$1" \
        -H 'content-type: application/grpc' -H 'te: trailers' "$(url "$1")" >"$work/h2load.txt"
    awk '/^finished in/ { rate = $4 }
         /^requests:/ && ($10 != "0" || $12 != "0" || $14 != "0") { bad = $0 }
         /^time for request:/ { mean = $6 }
         END {
             if (bad != "") print bad > "/dev/stderr"
             unit = mean; gsub(/[0-9.]/, "", unit); sub(/[a-z]+$/, "", mean)
             print rate, mean * (unit == "ms" ? 1000 : unit == "s" ? 1000000 : 1)
         }' "$work/h2load.txt"
}

# Prints whether a request is allowed, to check the load. Both services report it in the first field of the message.
decided() {
    curl -s --http2-prior-knowledge -H 'content-type: application/grpc' -H 'te: trailers' \
        --data-binary "@$work/$2.$1" "$(url "$1")" -o "$work/answer"
    case $(od -An -tx1 -j5 -N2 "$work/answer" | tr -d ' \n') in
    0801) echo true ;;
    *) echo false ;;
    esac
}

echo "h2load -t 1 -c $connections -m $streams -D $turn, $(nproc) cores, $rounds rounds"
echo
echo "| load | round | | requests/s | mean µs |"
echo "|---|--:|---|--:|--:|"
for load in admit deny; do
    for round in $(seq 1 "$rounds"); do
        # The servers take turns to go first.
        order=(slidegate "$other")
        [ $((round % 2)) = 1 ] || order=("$other" slidegate)
        for who in "${order[@]}"; do
            quiet
            read -r per_second mean < <(turn "$who" "$load")
            echo "| $load | $round | $who | $per_second | $mean |"
            echo "$per_second $mean" >>"$work/$load.$who.figures"
        done
    done
    for who in slidegate "$other"; do
        echo "$load: allowed $(decided "$who" "$load")" >>"$work/decided.$who"
    done
done

echo
echo "| load | slidegate requests/s | mean µs | $other requests/s | mean µs | x requests/s |"
echo "|---|--:|--:|--:|--:|--:|"
for load in admit deny; do
    a=$work/$load.slidegate.figures b=$work/$load.$other.figures
    row="| $load |"
    for file in "$a" "$b"; do
        for column in 1 2; do
            row+=" $(cut -d' ' -f$column "$file" | median) |"
        done
    done
    row+=" $(paste -d' ' <(cut -d' ' -f1 "$a") <(cut -d' ' -f1 "$b") | awk '{ print $1 / $2 }' | median |
        awk '{ printf "%.2f", $1 }') |"
    echo "$row"
done
echo
for who in slidegate "$other"; do
    echo "$who: $(sort -u "$work/decided.$who" | paste -sd, | sed 's/,/, /g')"
done
