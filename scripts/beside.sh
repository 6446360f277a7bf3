# Functions for benchmarks that measure two servers in turns. A script that sources this file has a folder `work`, and
# an array `servers` with the processes to stop at the end.
free_port() {
    local port
    while port=$(shuf -n 1 -i 20000-30000); (: <>"/dev/tcp/127.0.0.1/$port") 2>/dev/null; do :; done
    echo "$port"
}

# Builds throttlecrab-server, unless it was built before.
crab=target/throttlecrab
need_throttlecrab() {
    [ -x $crab/bin/throttlecrab-server ] && return
    need protoc protobuf-compiler
    cargo install --locked --root $crab --target-dir $crab/build throttlecrab-server
}

# Waits until other processes are idle, at most a minute: their work would increase the latency.
quiet() {
    local before after
    for _ in $(seq 1 200); do
        read -r before < <(awk '/^cpu / { print $2 + $3 + $4 }' /proc/stat)
        sleep 0.3
        read -r after < <(awk '/^cpu / { print $2 + $3 + $4 }' /proc/stat)
        # CPU time in the last 0.3 s, in hundredths of a second.
        [ $((after - before)) -gt 5 ] || return 0
    done
}

# start NAME COMMAND...: starts a server. PORT in the command stands for a free port, which is stored in `ports`.
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

# start_both PROTOCOL ARGUMENT...: starts Slidegate with the arguments, and the server to compare with: the build that
# BESIDE names, or throttlecrab with the same protocol. `other` is then the name of that server.
start_both() {
    local protocol=$1
    shift
    start slidegate target/dist/slidegate "$@"
    if [ -n "${BESIDE:-}" ]; then
        other=beside
        start beside "$BESIDE" "$@"
    else
        # The fastest settings of throttlecrab: it logs nothing, and stores no list of denied keys.
        other=throttlecrab
        start throttlecrab $crab/bin/throttlecrab-server "--$protocol" "--$protocol-host" 127.0.0.1 "--$protocol-port" PORT \
            --store periodic --log-level error --max-denied-keys 0
    fi
}

# Builds the server and creates the folder. When the script ends, the servers end and the folder is removed.
prepare() {
    cargo build --profile dist -q -p slidegate-server
    work=$(mktemp -d)
    servers=()
    trap 'kill "${servers[@]}" 2>/dev/null || true; rm -rf "$work"' EXIT
}

median() {
    sort -n | awk '{ n[NR] = $1 } END { print (n[int((NR + 1) / 2)] + n[int(NR / 2) + 1]) / 2 }'
}
