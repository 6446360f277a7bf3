#!/usr/bin/env bash
# Draws the pictures of docs/explanation/algorithms.md and docs/reference/simulate.md, each by `slidegate simulate` itself: docs/pictures/*.svg.
# docs/pictures/dashboard.png is a picture of a server after a minute of traffic. With the argument `dashboard`, makes
# only that picture. SLIDEGATE names a program to use instead of building one.
set -euo pipefail
cd "$(dirname "$0")/.."
slidegate=${SLIDEGATE:-}
if [ -z "$slidegate" ]; then
    cargo build --release -q -p slidegate-server
    slidegate=target/release/slidegate
fi
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir -p docs/pictures

source scripts/need.sh
need chromium chromium
need chromedriver chromium-driver
python3 scripts/dashboard-picture.py "$slidegate" docs/pictures/dashboard.png
[ "${1:-}" != dashboard ] || exit 0

all=sliding-window,fixed-window,time-slice,token-bucket

# draw NAME PICTURE RULES ARGUMENT...: writes one picture of a run to docs/pictures/NAME.svg.
draw() {
    local name=$1 picture=$2
    echo "$3" >"$work/rules.yaml"
    "$slidegate" simulate --rules "$work/rules.yaml" --svg "$work/$name" "${@:4}" >/dev/null
    cp "$work/$name/$picture.svg" "docs/pictures/$name.svg"
}

second='rules: [{ name: api, limit: 100, window: 1s }]'
draw boundary-burst api-levels "$second" --pattern timeline --at 0.99s=100,1.01s=100 --algorithms $all
draw alignment api-levels "$second" --pattern timeline --at 0.5s=100,1.0s=100,1.5s=100,2.0s=100 --algorithms $all
draw burst api-counts "$second" --pattern timeline \
    --at 0s=80,0.1s=20,0.2s=10,0.3s=10,0.4s=10,0.5s=10,0.6s=10,0.7s=10,0.8s=10,0.9s=10,1s=10,1.1s=10,1.2s=10 --algorithms $all
draw steady api-levels "$second" --pattern poisson --rate 130 --duration 10s --algorithms $all
draw precision minute-counts 'rules: [{ name: minute, limit: 1000, window: 60s }]' \
    --pattern steady --rate 100 --duration 2m
draw precision-two minute-counts 'rules: [{ name: second, limit: 20, window: 1s }, { name: minute, limit: 1000, window: 60s }]' \
    --pattern steady --rate 100 --duration 2m
draw warm-up orders-levels 'rules:
  - { name: orders, limit: 100, window: 1s, warm-up: { from: 20%, over: 4s, shape: steps } }' \
    --pattern steady --rate 500 --duration 8s
draw ip-timeline ip-counts 'rules: [{ name: ip, key: [ip], limit: 3, window: 5s, count: attempts }]' \
    --pattern timeline --at 0s,2s,3s,4s,5.1s,6s,6.5s
draw user-timeline user-counts 'rules: [{ name: user, key: [user], limit: 5, window: 60s }]' \
    --pattern timeline --at 0s,2s,4s,6s,8s,9s,60s
draw flash-sale per-user-counts 'rules: [{ name: per-user, key: [user], limit: 10, window: 10s }]' \
    --pattern flash-sale --rate 2000 --duration 2m --clients 300
draw flash-sale-keys per-user-denials 'rules: [{ name: per-user, key: [user], limit: 10, window: 10s }]' \
    --pattern flash-sale --rate 2000 --duration 2m --clients 300
