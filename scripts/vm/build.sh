#!/bin/bash
# Build what scripts/vm/run.sh boots: a Debian root with a kernel, this project's packages and its Python, as a disk. What is there is kept.
#
#   scripts/vm/build.sh [KERNEL]   6.1 (the default; Debian 12's own), 6.12 (from its backports)
#
# It lies in $PYTRACE_VM/KERNEL, by default .build/vm (about 6 GB for each kernel, half of that while it is built).
set -euo pipefail
cd "$(dirname "$0")/../.."

KERNEL=${1:-6.1}
SUITE=bookworm PYTHON=3.11
VM=$(readlink -m "${PYTRACE_VM:-.build/vm}")
PLACE=$VM/$KERNEL
TREE=/pytrace # where the working tree lies in it
PACKAGES=python3,python3-venv,python3-bpfcc,python3-dev,gcc,libc6-dev,make,udev,kmod,procps,iproute2,util-linux,acl

say() { echo "vm: $*" >&2; }

as_root() { if [ "$(id -u)" = 0 ]; then "$@"; else sudo "$@"; fi; }

need() { # COMMAND PACKAGE
    command -v "$1" >/dev/null && return
    say "installing $2 by apt"
    as_root env DEBIAN_FRONTEND=noninteractive apt-get -qq -y --no-install-recommends install "$2" >/dev/null
}

case $KERNEL in
    6.1) from=() ;;
    6.12) from=("$SUITE-backports") ;;
    *) say "no kernel $KERNEL is known here: 6.1, 6.12"; exit 2 ;;
esac

made_from() { cat pyproject.toml scripts/vm/build.sh; }

stamp=$(made_from | sha256sum)
[ "$(cat "$PLACE/made-from" 2>/dev/null)" != "$stamp" ] || exit 0

need mmdebstrap mmdebstrap
need qemu-system-x86_64 qemu-system-x86
need mke2fs e2fsprogs
scripts/setup.sh
mirror=$(apt-get indextargets --format '$(REPO_URI)' 'Created-By: Packages' 'Label: Debian' | sort -u | head -n 1)
[ -n "$mirror" ] || { say "apt on this host knows no Debian mirror to build from"; exit 1; }

say "building $PLACE (some minutes, once)"
mkdir -p "$PLACE" "$VM/wheels"
root=$PLACE/root
if [ ! -e "$root" ]; then
    as_root rm -rf "$root.new"
    sources=("deb $mirror $SUITE main")
    for suite in "${from[@]}"; do sources+=("deb $mirror $suite main"); done
    as_root mmdebstrap --quiet --variant=minbase --mode=root --include="$PACKAGES" "$SUITE" "$root.new" "${sources[@]}"
    as_root chroot "$root.new" env DEBIAN_FRONTEND=noninteractive sh -euc "
        apt-get -qq update
        apt-get -qq -y --no-install-recommends -t ${from[0]:-$SUITE} install initramfs-tools linux-image-cloud-amd64 linux-headers-cloud-amd64
        apt-get clean" >"$PLACE/kernel.log" 2>&1 || { tail -n 15 "$PLACE/kernel.log" >&2; exit 1; }
    as_root mv "$root.new" "$root"
fi

# Its packages are fetched and built here, where pip is configured, and installed there, without a network.
[ "$(.venv/bin/python -c 'import sys; print("%d.%d" % sys.version_info[:2])')" = $PYTHON ] || { say "the packages have to be built by Python $PYTHON"; exit 1; }
.venv/bin/python -m pip wheel -qq --disable-pip-version-check -w "$VM/wheels" -r <(.venv/bin/python scripts/vm/requirements.py)
as_root mkdir -p "$root$TREE" "$root/wheels"
as_root mount --bind "$VM/wheels" "$root/wheels"
trap 'as_root umount "$root/wheels"' EXIT
as_root chroot "$root" sh -euc "
    rm -rf $TREE/.venv
    python3 -m venv --system-site-packages $TREE/.venv
    $TREE/.venv/bin/python -m pip install -qq --no-index --find-links /wheels /wheels/*.whl"
as_root umount "$root/wheels"
trap - EXIT
as_root install -m 755 scripts/vm/init "$root/init-vm"

say "making its disk"
as_root mke2fs -q -t ext4 -d "$root" "$PLACE/disk.img" 8G
as_root sh -euc "cp $root/boot/vmlinuz-* $PLACE/vmlinuz; cp $root/boot/initrd.img-* $PLACE/initrd"
echo "$stamp" >"$PLACE/made-from"
