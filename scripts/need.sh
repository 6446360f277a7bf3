# Functions for scripts that use more than Rust.

# need PROGRAM PACKAGE: installs the Debian package of a program, unless the program is installed.
install() {
    echo "installing $1"
    as_root=$([ "$(id -u)" = 0 ] || echo sudo)
    $as_root apt-get update -qq
    # Some packages fail to install where the folders of manuals were removed.
    $as_root mkdir -p /usr/share/man/man1
    $as_root env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq "$1" >/dev/null
}
need() {
    command -v "$1" >/dev/null || install "$2"
}

# Sets `nextest` to the command that runs tests: the machine's cargo-nextest if it is new enough, or else one in target/tools.
need_nextest() {
    local wanted=0.9.143 found
    nextest=(cargo nextest)
    found=$(cargo nextest --version 2>/dev/null | awk 'NR == 1 { print $2 }' || true)
    [ "$(printf '%s\n' "$wanted" "${found:-0}" | sort -V | head -1)" != "$wanted" ] || return 0
    if [ ! -x target/tools/cargo/bin/cargo-nextest ]; then
        echo "compiling cargo-nextest $wanted into target/tools (once, some minutes)"
        cargo install --quiet --locked --root target/tools/cargo --version "$wanted" cargo-nextest
    fi
    nextest=(target/tools/cargo/bin/cargo-nextest nextest)
}

# Puts mdBook and its preprocessor for diagrams on the path, and compiles them into target/tools if they are missing.
need_mdbook() {
    local tools=$PWD/target/tools/cargo
    PATH=$tools/bin:$PATH
    need_crate mdbook 0.5.4 --no-default-features --features search
    need_crate mdbook-mermaid 0.17.1
}

# need_crate PROGRAM VERSION [ARGUMENT...]: installs a crate with the program of its name into target/tools.
need_crate() {
    [[ "$("$1" --version 2>/dev/null || true)" != *"$2" ]] || return 0
    echo "compiling $1 $2 into target/tools (once, some minutes)"
    cargo install --quiet --locked --root target/tools/cargo --version "$2" "${@:3}" "$1"
}
