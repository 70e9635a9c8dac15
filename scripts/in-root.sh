#!/bin/bash
# Run a command in a root filesystem, "/" for this host's own: scripts/in-root.sh [OPTION]... ROOT COMMAND [ARG...]
#
#   --at DIR             show DIR in it, at its own path
#   --tmpfs DIR:OPTIONS  an empty directory in memory, for example /tmp:noexec or /dev/shm:size=1m
#   --read-only          nothing else in it can be written
#   --user UID           as that user
#   --pid-namespace      as in a container: the command is process 1 in there, and a child of this process
#
# Without --pid-namespace the command is this same process. All is mounted in a mount namespace of the
# command's own, so nothing stays mounted and a root can be removed at any time. What stays in it are the
# empty directories that --at and --tmpfs were mounted on, where there were none.
set -euo pipefail

all=("$@")
dirs=() memory=() as=() namespaces=(--mount) read_only=
while [[ $1 = --* ]]; do
    case $1 in
        --at) dirs+=("$(readlink -f "$2")"); shift ;;
        --tmpfs) memory+=("$2"); shift ;;
        --user) as=(--userspec="$2:$2" --groups=); shift ;;
        --read-only) read_only=1 ;;
        --pid-namespace) namespaces+=(--pid --fork --kill-child) ;;
        *) echo "in-root.sh: $1 is not an option" >&2; exit 2 ;;
    esac
    shift
done
root=$1
shift
if [ -z "${IN_ROOT:-}" ]; then
    IN_ROOT=1 exec unshare "${namespaces[@]}" "$0" "${all[@]}"
fi
unset IN_ROOT

at=$root
[ "$root" != / ] || at=/mnt
mount --rbind "$root" "$at"
for dir in "${dirs[@]}" "${memory[@]%%:*}"; do mkdir -p "$at$dir"; done
[ -z "$read_only" ] || mount -o remount,bind,ro "$at"
mount -t proc proc "$at/proc"
mount -t tmpfs shm "$at/dev/shm"
for each in "${memory[@]}"; do
    mkdir -p "$at${each%%:*}"
    mount -t tmpfs -o "${each#*:}" tmpfs "$at${each%%:*}"
done
for dir in "${dirs[@]}"; do
    mkdir -p "$at$dir"
    mount --bind "$dir" "$at$dir"
done
cd "$at"
# Paths in its /proc/PID/maps begin at its own root then, as a container's do, and not at the host's.
[ "${#namespaces[@]}" = 1 ] || mount --move . /
exec chroot "${as[@]}" . "$@"
