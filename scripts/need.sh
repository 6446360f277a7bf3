# Sourced by scripts that use more than Rust: `need PROGRAM PACKAGE` installs the Debian package that brings a program.
install() {
    echo "installing $1"
    as_root=$([ "$(id -u)" = 0 ] || echo sudo)
    $as_root apt-get update -qq
    # Some packages stumble where manuals were left out.
    $as_root mkdir -p /usr/share/man/man1
    $as_root env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq "$1" >/dev/null
}
need() {
    command -v "$1" >/dev/null || install "$2"
}
