# Sourced by benchmarks that measure two servers in turns, with a `work` folder and an array of `servers` to be ended.
free_port() {
    local port
    while port=$(shuf -n 1 -i 20000-30000); (: <>"/dev/tcp/127.0.0.1/$port") 2>/dev/null; do :; done
    echo "$port"
}

# throttlecrab-server, built where it is not there yet.
crab=target/throttlecrab
need_throttlecrab() {
    [ -x $crab/bin/throttlecrab-server ] && return
    need protoc protobuf-compiler
    cargo install --locked --root $crab --target-dir $crab/build throttlecrab-server
}

# Waits for others on this machine to pause, a minute at most: their work would be counted as latency.
quiet() {
    local before after
    for _ in $(seq 1 200); do
        read -r before < <(awk '/^cpu / { print $2 + $3 + $4 }' /proc/stat)
        sleep 0.3
        read -r after < <(awk '/^cpu / { print $2 + $3 + $4 }' /proc/stat)
        # Hundredths of a second of work, in those 0.3 s.
        [ $((after - before)) -gt 5 ] || return 0
    done
}

# A name, and how to start it: PORT stands for a free port, which is then in `ports`.
declare -A ports
start() {
    local name=$1 port
    port=$(free_port)
    shift
    "${@//PORT/$port}" >"$work/$name.log" 2>&1 &
    servers+=($!)
    ports[$name]=$port
    for _ in $(seq 1 100); do
        (: <>"/dev/tcp/127.0.0.1/$port") 2>/dev/null && return
        sleep 0.1
    done
    cat "$work/$name.log"
    exit 1
}

# Ours with these arguments, and beside it the build that BESIDE names, or else throttlecrab with the same protocol, which is
# the first argument. Who it is, is then in `other`.
start_both() {
    local protocol=$1
    shift
    start slidegate target/dist/slidegate "$@"
    if [ -n "${BESIDE:-}" ]; then
        other=beside
        start beside "$BESIDE" "$@"
    else
        # Its quickest: it logs nothing, and keeps no list of the keys it denied.
        other=throttlecrab
        start throttlecrab $crab/bin/throttlecrab-server "--$protocol" "--$protocol-host" 127.0.0.1 "--$protocol-port" PORT \
            --store periodic --log-level error --max-denied-keys 0
    fi
}

# A folder and servers that end with the script.
prepare() {
    cargo build --profile dist -q -p slidegate-server
    work=$(mktemp -d)
    servers=()
    trap 'kill "${servers[@]}" 2>/dev/null || true; rm -rf "$work"' EXIT
}

median() {
    sort -n | awk '{ n[NR] = $1 } END { print (n[int((NR + 1) / 2)] + n[int(NR / 2) + 1]) / 2 }'
}
