#!/usr/bin/env bash
# Builds a release into dist/: for each architecture a tar.gz, a Debian package and a container image; a bill of materials, the licences
# of all dependencies, and checksums. Two runs on the same commit give the same checksums.
#
#   scripts/release.sh VERSION
#
#   TARGETS="x86_64-unknown-linux-musl"    builds fewer architectures
#   CHECKS=no                              skips `cargo deny`, the documentation and the dry run of publishing
#
# Needs Rust, and installs the rest: targets of rustup, zig (from PyPI) as the C compiler for them, cargo-deb, cargo-deny, buildah, qemu.
set -euo pipefail
cd "$(dirname "$0")/.."
source scripts/need.sh
[ $# = 1 ] || { sed -n '5s/^# *//p' "$0"; exit 2; }
version=$1
targets=${TARGETS:-x86_64-unknown-linux-musl aarch64-unknown-linux-musl}
features=otel
refuse() {
    echo "$1" >&2
    exit 1
}

declared=$(sed -n 's/^version = "\(.*\)"/\1/p' Cargo.toml | head -1)
[ "$declared" = "$version" ] || refuse "Cargo.toml has version $declared, not $version: change [workspace.package] first"
awk -v heading="## $version" 'index($0, heading) == 1 { found = 1; next } /^## / { found = 0 } found && NF { lines++ } END { exit !lines }' CHANGELOG.md ||
    refuse "CHANGELOG.md has no entry for $version: write one under the heading \"## $version\""
[ -z "$(git status --porcelain)" ] || refuse "the tree has changes that are not committed: git status"

# Everything that has a date gets the date of the commit.
SOURCE_DATE_EPOCH=$(git log -1 --format=%ct)
export SOURCE_DATE_EPOCH LC_ALL=C TZ=UTC
umask 022

tools=$PWD/target/tools
PATH=$tools/cargo/bin:$PATH
need python3 python3
need_crate cargo-deb 3.8.0 --no-default-features
if [ ! -x "$tools/release/bin/zig-cc" ]; then
    python3 -m venv "$tools/release" >/dev/null 2>&1 || { install python3-venv; python3 -m venv "$tools/release"; }
    "$tools/release/bin/python" -m pip install -q ziglang==0.17.0
    # zig has its own names of targets: it does not take the one that the crate `cc` adds.
    printf '#!/bin/sh\nt=$1\nshift\nfor a; do\n shift\n case $a in --target=*) ;; *) set -- "$@" "$a" ;; esac\ndone\nexec "%s" -m ziglang cc -target "$t" "$@"\n' \
        "$tools/release/bin/python" >"$tools/release/bin/zig-cc"
    printf '#!/bin/sh\nexec "%s" -m ziglang ar "$@"\n' "$tools/release/bin/python" >"$tools/release/bin/zig-ar"
    for machine in x86_64 aarch64; do
        printf '#!/bin/sh\nexec "%s" %s-linux-musl "$@"\n' "$tools/release/bin/zig-cc" $machine >"$tools/release/bin/$machine-cc"
    done
    chmod +x "$tools"/release/bin/{zig-cc,zig-ar,x86_64-cc,aarch64-cc}
fi

if [ "${CHECKS:-yes}" = yes ]; then
    need_crate cargo-deny 0.20.2
    cargo deny --all-features check bans licenses sources
    RUSTDOCFLAGS="-D warnings" cargo doc --locked --workspace --all-features --no-deps
    cargo publish --dry-run --locked -p slidegate -p slidegate-simulator -p slidegate-server
fi

rm -rf dist
mkdir -p dist
build=$PWD/target/release-build
registry=${CARGO_HOME:-$HOME/.cargo}

# build TARGET: compiles the binary. No path of this machine is in it.
build() {
    local target=$1 machine=${1%%-*} name
    rustup target add "$target" >/dev/null 2>&1 || refuse "rustup cannot add the target $target"
    name=$(tr a-z- A-Z_ <<<"$target")
    local flags=(-Clinker=rust-lld -Clinker-flavor=ld.lld -Clink-self-contained=yes
        "--remap-path-prefix=$PWD=/slidegate" "--remap-path-prefix=$registry=/cargo")
    env "CC_${target//-/_}=$tools/release/bin/$machine-cc" "AR_${target//-/_}=$tools/release/bin/zig-ar" \
        "CFLAGS_${target//-/_}=-ffile-prefix-map=$registry=/cargo -ffile-prefix-map=$build=/build" \
        "CARGO_TARGET_${name}_RUSTFLAGS=${flags[*]}" CARGO_TARGET_DIR="$build" CARGO_INCREMENTAL=0 \
        cargo build --locked --profile dist -p slidegate-server --features $features --target "$target"
}

# start TARGET ARGUMENT...: runs the binary of a target, under qemu if it is for another machine.
start() {
    local binary=$build/$1/dist/slidegate
    if [ "${1%%-*}" = "$(uname -m)" ]; then
        "$binary" "${@:2}"
    else
        need "qemu-${1%%-*}-static" qemu-user-static
        "qemu-${1%%-*}-static" "$binary" "${@:2}"
    fi
}

archive() {
    tar --sort=name --mtime="@$SOURCE_DATE_EPOCH" --owner=0 --group=0 --numeric-owner --format=ustar -C "$1" -cf - "$2" | gzip -n9
}

for target in $targets; do
    build "$target"
    binary=$build/$target/dist/slidegate
    [ "$(start "$target" --version)" = "slidegate $version" ] || refuse "the binary for $target does not print version $version"
    start "$target" validate deploy/slidegate.yaml
    if command -v readelf >/dev/null && readelf -d "$binary" | grep -q NEEDED; then
        refuse "the binary for $target needs shared libraries"
    fi

    # Files that the tar.gz and the Debian package share.
    files=$build/files
    rm -rf "$files"
    mkdir -p "$files/completions" "$files/man"
    for shell in bash zsh fish; do
        start "$target" completions $shell >"$files/completions/slidegate.$shell"
    done
    start "$target" man "$files/man"
    python3 scripts/sbom.py "$target" $features "$files/slidegate.cdx.json" "$files/THIRD-PARTY-LICENSES.txt"

    machine=${target%%-*}
    folder=slidegate-$version-$machine-linux
    rm -rf "${build:?}/$folder"
    mkdir -p "$build/$folder"
    cp -R "$files"/. LICENSE README.md CHANGELOG.md deploy/slidegate.yaml deploy/systemd/slidegate.service "$build/$folder"
    cp "$binary" "$build/$folder/slidegate"
    archive "$build" "$folder" >"dist/$folder.tar.gz"
    cp "$files/slidegate.cdx.json" "dist/$folder.cdx.json"
    cp "$files/THIRD-PARTY-LICENSES.txt" "dist/$folder.licenses.txt"

    # Debian's own format of a changelog and of the copyright.
    printf 'slidegate (%s-1) stable; urgency=medium\n\n  * Release %s: see CHANGELOG.md.\n\n -- %s  %s\n' "$version" "$version" \
        "Slidegate maintainers <maintainers@slidegate.invalid>" "$(date -R -u -d "@$SOURCE_DATE_EPOCH")" >"$files/changelog.Debian"
    (CARGO_TARGET_DIR=$build cargo deb --quiet --no-build --no-strip --profile dist --target "$target" -p slidegate-server --output "$PWD/dist/")

    case $machine in
    x86_64) image=amd64 ;;
    aarch64) image=arm64 ;;
    esac
    bash scripts/image.sh "$binary" "dist/slidegate-$version-$image.oci.tar" $image
done

(cd dist && sha256sum -- * >SHA256SUMS && cat SHA256SUMS)
