#!/usr/bin/env bash
# Runs the steps of deploy/container/Containerfile in a debootstrap of Debian 12, a stand-in for a container engine: each RUN line
# as it stands in /src, then the image's file system, whose health check must pass. Needs root, debootstrap and a mirror; takes
# about 10 CPU-minutes and 4 GB below DIRECTORY, which is kept.
#   tests/deploy/build_in_chroot.sh DIRECTORY [FIRST_STEP]
# FIRST_STEP: the RUN line to begin with, from 1, in a DIRECTORY that earlier steps have filled.
set -euo pipefail

[ $# -ge 1 ] || { sed -n '2,7s/^# \{0,1\}//p' "$0" >&2; exit 2; }
directory=$(realpath -m "$1") first=${2:-1}
root=$(cd "$(dirname "$0")/../.." && pwd)
chroot=$directory/debian
mkdir -p "$directory"

if [ "$first" -eq 1 ]; then
  # Essential packages alone, like the image debian:12-slim.
  debootstrap --variant=minbase bookworm "$chroot" "${MIRROR:-http://deb.debian.org/debian}"
  mkdir -p "$chroot/src"
  # COPY . /src, without what .dockerignore names.
  tar -C "$root" --exclude=./.git --exclude=./build --exclude='__pycache__' -cf - . | tar -C "$chroot/src" -xf -
fi
mountpoint -q "$chroot/proc" || mount -t proc proc "$chroot/proc"
trap 'umount "$chroot/proc"' EXIT

step=0
while IFS= read -r run; do
  step=$((step + 1))
  [ "$step" -ge "$first" ] || continue
  echo "step $step: $run"
  chroot "$chroot" /bin/sh -ec "cd /src && $run"
done < <(sed -n 's/^RUN //p' "$root/deploy/container/Containerfile")

image=$chroot/rootfs
du -sh "$image"
env -i STATE_DIRECTORY=/var/lib/eplb RUNTIME_DIRECTORY=/run/eplb \
  chroot --userspec 10001:10001 "$image" /usr/bin/eplbd --listen 127.0.0.1:0 --http 127.0.0.1:0 >"$directory/eplbd.out" &
daemon=$!
for _ in $(seq 100); do
  [ ! -s "$directory/eplbd.out" ] || break
  sleep 0.1
done
env -i EPLB_ENDPOINT=unix:/run/eplb/eplbd.sock chroot --userspec 10001:10001 "$image" /usr/bin/eplbctl status --timeout 3s
kill -TERM "$daemon"
wait "$daemon"
echo "every step passed"
