#!/usr/bin/env bash
# Measures `slidegate simulate`: it generates an access log of ten million requests (about a gigabyte), and replays it
# with one rule, an exact window per address. Prints requests per second and the largest memory use. Compares the time
# of a request with the benchmark `decision`, which reads no file. Asserts nothing.
#
#   REQUESTS=10000000 ADDRESSES=1000 ROUNDS=3
#   LOG=target/access.log      the log, which is kept and generated only if it is missing
#   NANOSECONDS=75             time of a decision, instead of running the benchmark `decision`
set -euo pipefail
cd "$(dirname "$0")/.."
source scripts/need.sh
need python3 python3

requests=${REQUESTS:-10000000} addresses=${ADDRESSES:-1000} rounds=${ROUNDS:-3} log=${LOG:-target/access.log}
cargo build --profile dist -q -p slidegate-server

if [ ! -f "$log" ]; then
    awk -v requests="$requests" -v addresses="$addresses" 'BEGIN {
        split("/ /login /search?q=shoes /cart /items/4711 /items/4712?ref=mail /orders /static/site.css", paths, " ")
        seed = 1
        for (n = 0; n < requests; n++) {
            seed = (seed * 1103515245 + 12345) % 2147483648
            who = int(seed / 65536) % addresses
            second = int(n * 86400 / requests)
            printf "10.%d.%d.%d - - [17/Nov/2026:%02d:%02d:%02d +0000] \"GET %s HTTP/1.1\" 200 %d \"-\" \"Mozilla/5.0 (X11)\"\n",
                who / 65536, who / 256 % 256, who % 256, second / 3600, second / 60 % 60, second % 60,
                paths[1 + n % 8], 500 + seed % 5000
        }
    }' >"$log"
fi
rules=$(mktemp --suffix .yaml)
trap 'rm -f "$rules"' EXIT
echo 'rules: [{ name: per-ip, key: [ip], limit: 5, window: 60s }]' >"$rules"

ns=${NANOSECONDS:-$(cargo run -q --release --manifest-path benchmarks/Cargo.toml -- decision | awk '$1 == 1000 && $2 == "admit" && $3 == 1 { print $5; exit }')}

echo "$(wc -l <"$log") requests, $(($(stat -Lc %s "$log") / 1000000)) MB, $(nproc) cores; a decision with a prepared key takes $ns ns"
echo
echo "| round | requests a second | ns of processor a request | MB of memory | x the benchmark |"
echo "|--:|--:|--:|--:|--:|"
for round in $(seq 1 "$rounds"); do
    python3 - "$rules" "$log" "$round" "$ns" <<'PY'
import json, resource, subprocess, sys
rules, log, round, ns = sys.argv[1:]
said = subprocess.run(["target/dist/slidegate", "simulate", "--rules", rules, "--trace", log, "--json"],
                      check=True, capture_output=True).stdout
said = json.loads(said)
used = resource.getrusage(resource.RUSAGE_CHILDREN)
each = (used.ru_utime + used.ru_stime) * 1e9 / said["requests"]
rate = said["requests_per_second"]
print(f"| {round} | {rate:,.0f} | {each:.0f} | {used.ru_maxrss / 1024:.0f} | {rate * float(ns) / 1e9:.2f} |")
PY
done
