#!/usr/bin/env bash
# Tries the files of dist/ that scripts/release.sh has built for this machine, as on a machine that has nothing else: the archive in an empty
# root, and the image as user 65532 on a read-only root. Checks the package with lintian. Needs root, for chroot.
#
#   scripts/try-release.sh
set -euo pipefail
cd "$(dirname "$0")/.."
source scripts/need.sh
source scripts/beside.sh
need curl curl
need lintian lintian
case $(uname -m) in
x86_64) architecture=amd64 ;;
aarch64) architecture=arm64 ;;
esac

work=$(mktemp -d)
# Without PATH, env finds no program.
chroot=$(command -v chroot)
server=
end() {
    [ -z "$server" ] || kill -KILL "$server" 2>/dev/null || true
    umount "$work/image" 2>/dev/null || true
    rm -rf "$work"
}
trap end EXIT
fail() {
    echo "$1" >&2
    cat "$work/log" >&2
    exit 1
}

# start ROOT PROGRAM [NAME=VALUE...]: starts the server in a root of its own, with no variable but these, and waits until it is ready.
start() {
    local root=$1 program=$2
    http=$(free_port) grpc=$(free_port) resp=$(free_port)
    variables=("${@:3}" "SLIDEGATE_LISTEN_HTTP=0.0.0.0:$http" "SLIDEGATE_LISTEN_GRPC=0.0.0.0:$grpc" "SLIDEGATE_LISTEN_RESP=0.0.0.0:$resp")
    env -i "${variables[@]}" "$chroot" --userspec 65532:65532 "$root" "$program" serve >"$work/log" 2>&1 &
    server=$!
    for _ in $(seq 1 300); do
        if env -i "${variables[@]}" "$chroot" --userspec 65532:65532 "$root" "$program" health >"$work/health" 2>&1; then return; fi
        sleep 0.1
    done
    fail "the server is not ready after 30 s: $(cat "$work/health")"
}

# answers: every port answers.
answers() {
    local reply
    curl -sf "http://127.0.0.1:$http/v1/acquire" -H 'content-type: application/json' -d '{"resource":"a","limit":2,"window":"1m"}' >/dev/null ||
        fail "HTTP does not answer"
    exec 3<>"/dev/tcp/127.0.0.1/$resp"
    printf '*1\r\n$4\r\nPING\r\n' >&3
    read -r -t 10 reply <&3
    exec 3>&-
    [[ $reply == +PONG* ]] || fail "the Redis protocol answers $reply"
    # The connection preface of HTTP/2 is answered by a frame of settings.
    exec 3<>"/dev/tcp/127.0.0.1/$grpc"
    printf 'PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\4\0\0\0\0\0' >&3
    [ "$(head -c 4 <&3 | od -An -tx1 | awk '{ print $4 }')" = 04 ] || fail "gRPC does not answer"
    exec 3>&-
}

# stop: SIGTERM ends the server within its time, with code 0.
stop() {
    local began=$SECONDS code=0
    kill -TERM "$server"
    wait "$server" || code=$?
    server=
    [ $code = 0 ] || fail "the server ended with code $code"
    [ $((SECONDS - began)) -le 12 ] || fail "the server took $((SECONDS - began)) s to stop"
}

(cd dist && sha256sum --quiet -c SHA256SUMS)

mkdir -p "$work/archive"
tar xzf dist/slidegate-*-"$(uname -m)"-linux.tar.gz -C "$work/archive" --strip-components=1
start "$work/archive" /slidegate
answers
# Names are resolved by the binary itself.
mkdir "$work/archive/etc"
echo '127.0.0.1 node.test' >"$work/archive/etc/hosts"
chroot --userspec 65532:65532 "$work/archive" /slidegate health --url "http://node.test:$http" >/dev/null || fail "the binary resolves no names"
stop
echo "archive: starts in an empty root, answers on every port, resolves names, stops"

mkdir -p "$work/layout" "$work/files" "$work/image"
tar xf dist/slidegate-*-$architecture.oci.tar -C "$work/layout"
python3 - "$work" <<'P'
import json, subprocess, sys
work = sys.argv[1]
blob = lambda digest: f"{work}/layout/blobs/sha256/{digest.removeprefix('sha256:')}"
manifest = json.load(open(blob(json.load(open(f"{work}/layout/index.json"))["manifests"][0]["digest"])))
for layer in manifest["layers"]:
    subprocess.run(["tar", "xzf", blob(layer["digest"]), "-C", f"{work}/files"], check=True)
config = json.load(open(blob(manifest["config"]["digest"])))["config"]
assert config["User"] == "65532:65532" and config["Entrypoint"] == ["/usr/bin/slidegate"] and config["Cmd"] == ["serve"], config
open(f"{work}/variables", "w").write("\n".join(config["Env"]) + "\n")
P
mapfile -t from_image <"$work/variables"
mount --bind "$work/files" "$work/image"
mount -o remount,ro,bind "$work/image"
start "$work/image" /usr/bin/slidegate "${from_image[@]}"
answers
stop
if env -i "${variables[@]}" SLIDEGATE_LISTEN_ADMIN="0.0.0.0:$(free_port)" "$chroot" --userspec 65532:65532 "$work/image" /usr/bin/slidegate serve >"$work/log" 2>&1; then
    fail "the image opens the admin listener without a token"
fi
grep -q 'without a token' "$work/log" || fail "the message about the admin listener is missing"
echo "image: starts as user 65532 on a read-only root, is healthy, answers on every port, stops; opens no admin listener without a token"

lintian --fail-on error dist/slidegate_*_$architecture.deb
echo "package: lintian reports no errors"
