#!/bin/bash
# Run a command in a root filesystem as the same process: scripts/in-root.sh [--at DIR]... ROOT COMMAND [ARG...]
#
# /proc and /dev/shm are mounted, and every DIR bound at its own path, in a mount namespace of the
# command's own, so nothing stays behind and a root can be removed at any time.
set -euo pipefail

binds=()
while [ "$1" = --at ]; do
    binds+=("$(readlink -f "$2")")
    shift 2
done
root=$1
shift
if [ -z "${IN_ROOT:-}" ]; then
    at=()
    for dir in "${binds[@]}"; do at+=(--at "$dir"); done
    IN_ROOT=1 exec unshare --mount "$0" "${at[@]}" "$root" "$@"
fi
unset IN_ROOT
mount -t proc proc "$root/proc"
mount -t tmpfs shm "$root/dev/shm"
for dir in "${binds[@]}"; do
    mkdir -p "$root$dir"
    mount --bind "$dir" "$root$dir"
done
exec chroot "$root" "$@"
