#!/usr/bin/env bash
# Builds the container image without Docker: the last stage of deploy/docker/Dockerfile, around a static binary.
#
#   scripts/image.sh BINARY ARCHIVE [ARCHITECTURE]     writes an OCI archive; the architecture is amd64 or arm64
#
# `skopeo copy oci-archive:ARCHIVE docker://…` or `podman load -i ARCHIVE` uses the result. The same binary on the same Debian
# gives the same archive.
set -euo pipefail
cd "$(dirname "$0")/.."
source scripts/need.sh
[ $# -ge 2 ] || { sed -n '4s/^# *//p' "$0"; exit 2; }
binary=$1 archive=$2 architecture=${3:-amd64}
version=$(sed -n 's/^version = "\(.*\)"/\1/p' Cargo.toml | head -1)
time=${SOURCE_DATE_EPOCH:-$(git log -1 --format=%ct)}

need buildah buildah
[ -d /usr/share/ca-certificates/mozilla ] || install ca-certificates
[ -d /usr/share/zoneinfo ] || install tzdata

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
# The bundle in /etc/ssl may contain authorities of this machine.
cat /usr/share/ca-certificates/mozilla/*.crt >"$work/certificates"
sh deploy/docker/rootfs.sh "$binary" "$work/certificates" "$work/context/rootfs"
chmod -R u=rwX,go=rX "$work/context/rootfs"
chmod 1777 "$work/context/rootfs/tmp"
sed -n '/^FROM scratch/,$p' deploy/docker/Dockerfile | sed 's/--from=build //' >"$work/Dockerfile"

buildah=(buildah --storage-driver vfs --root "$work/storage" --runroot "$work/run")
"${buildah[@]}" bud --quiet --isolation chroot --format oci --os linux --arch "$architecture" --timestamp "$time" \
    --label "org.opencontainers.image.version=$version" -f "$work/Dockerfile" -t "slidegate:$version" "$work/context" >/dev/null
"${buildah[@]}" push --quiet "slidegate:$version" "oci:$work/image:slidegate:$version"
# An archive that buildah writes has the present time in it.
tar --sort=name --mtime="@$time" --owner=0 --group=0 --numeric-owner --format=ustar -C "$work/image" -cf "$archive" .
size=$(du -sb "$work/context/rootfs" | cut -f1)
echo "$archive: $((size / 1000000)) MB of files, $(($(stat -c %s "$archive") / 1000000)) MB compressed"
[ "$size" -le 25000000 ] || { echo "the image has more than 25 MB"; exit 1; }
