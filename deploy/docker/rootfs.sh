#!/bin/sh
# rootfs.sh BINARY CERTIFICATES FOLDER: writes the files of the image, with the time zones of this machine.
set -eu
here=$(dirname "$0")
binary=$1 certificates=$2 root=$3

mkdir -p "$root/usr/bin" "$root/usr/share/doc/slidegate" "$root/etc/slidegate" "$root/etc/ssl/certs" "$root/tmp"
cp "$binary" "$root/usr/bin/slidegate"
cp "$here/../slidegate.yaml" "$root/etc/slidegate/slidegate.yaml"
cp "$here/../../LICENSE" "$root/usr/share/doc/slidegate/LICENSE"
cp "$certificates" "$root/etc/ssl/certs/ca-certificates.crt"
cp -R /usr/share/zoneinfo "$root/usr/share/zoneinfo"
# The same zones again, also with leap seconds.
rm -rf "$root/usr/share/zoneinfo/posix" "$root/usr/share/zoneinfo/right"
echo 'slidegate:x:65532:65532::/:/sbin/nologin' >"$root/etc/passwd"
echo 'slidegate:x:65532:' >"$root/etc/group"
chmod 755 "$root/usr/bin/slidegate"
chmod 1777 "$root/tmp"
