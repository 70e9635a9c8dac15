#!/bin/bash
# Build what scripts/vm/run.sh boots: a Debian root with a kernel, this project's packages and its Python, as a disk. What is there is kept.
#
#   scripts/vm/build.sh [KERNEL]   6.1 (the default; Debian 12's own), 6.12 (from its backports), 5.10 (Debian 11's), sid (the newest that Debian has),
#                                  6.1-arm64, 6.12-arm64, 6.12-arm64-16k (pages of 16 KB)
#
# It lies in $PYTRACE_VM/KERNEL, by default .build/vm, of arm64 /var/lib/pytrace-ebpf/vm (about 6 GB for each kernel, half of that while it is built).
set -euo pipefail
cd "$(dirname "$0")/../.."

KERNEL=${1:-6.1}
SUITE=bookworm PYTHON=3.11
. scripts/vm/kernels.sh
TREE=/pytrace # where the working tree lies in it
PACKAGES=python3,python3-venv,python3-bpfcc,python3-dev,gcc,libc6-dev,make,udev,kmod,procps,iproute2,util-linux,acl

say() { echo "vm: $*" >&2; }

as_root() { if [ "$(id -u)" = 0 ]; then "$@"; else sudo "$@"; fi; }

need() { # COMMAND PACKAGE
    command -v "$1" >/dev/null && return
    say "installing $2 by apt"
    as_root env DEBIAN_FRONTEND=noninteractive apt-get -qq -y --no-install-recommends install "$2" >/dev/null
}

flavour=cloud-$ARCH
case $KERNEL in
    6.1 | 6.1-arm64) from=$SUITE ;;
    6.12 | 6.12-arm64) from=$SUITE-backports ;;
    6.12-arm64-16k) from=$SUITE-backports flavour=arm64-16k ;;
    5.10) from=bullseye ;;
    sid) from=sid ;;
    *) say "no kernel $KERNEL is known here: 5.10, 6.1, 6.12, sid, 6.1-arm64, 6.12-arm64, 6.12-arm64-16k"; exit 2 ;;
esac

made_from() { python3 scripts/vm/requirements.py && cat scripts/vm/build.sh; }

# So that a chroot can start what is for another processor: the kernel has QEMU do it.
emulate() {
    need qemu-$MACHINE-static qemu-user-static
    need update-binfmts binfmt-support
    need arch-test arch-test
    mountpoint -q /proc/sys/fs/binfmt_misc || as_root mount -t binfmt_misc none /proc/sys/fs/binfmt_misc
    as_root update-binfmts --enable "qemu-$MACHINE"
}

# Packages for the Python of another processor: as they are published, and those that are of Python alone are built here.
fetch_foreign() {
    local wanted each platforms=() pure=()
    for each in manylinux_2_17 manylinux2014 manylinux_2_26 manylinux_2_28; do platforms+=(--platform "${each}_$MACHINE"); done
    mapfile -t wanted < <(.venv/bin/python scripts/vm/requirements.py)
    for each in "${wanted[@]}"; do
        .venv/bin/python -m pip download -qq --disable-pip-version-check -d "$VM/wheels-$ARCH" --find-links "$VM/wheels-$ARCH" --only-binary :all: \
            --python-version $PYTHON "${platforms[@]}" "$each" 2>/dev/null || pure+=("$each")
    done
    [ ${#pure[@]} = 0 ] || .venv/bin/python -m pip wheel -qq --disable-pip-version-check --no-deps -w "$VM/wheels-$ARCH" "${pure[@]}"
    as_root mkdir -p "$root$TREE/.venv/lib/python$PYTHON/site-packages"
    as_root .venv/bin/python -m pip install -qq --disable-pip-version-check --no-compile --no-index --find-links "$VM/wheels-$ARCH" --only-binary :all: \
        --python-version $PYTHON "${platforms[@]}" --target "$root$TREE/.venv/lib/python$PYTHON/site-packages" "${wanted[@]}"
}

if is_foreign; then emulate; fi # again after each start of this host
stamp=$(made_from | sha256sum)
[ "$(cat "$PLACE/made-from" 2>/dev/null)" != "$stamp" ] || exit 0

need mmdebstrap mmdebstrap
need $EMULATOR $EMULATOR_IN
need mke2fs e2fsprogs
scripts/setup.sh
mirror=$(apt-get indextargets --format '$(REPO_URI)' 'Created-By: Packages' 'Label: Debian' | sort -u | head -n 1)
[ -n "$mirror" ] || { say "apt on this host knows no Debian mirror to build from"; exit 1; }

say "building $PLACE (some minutes, once)"
[ -w "$VM" ] || { as_root mkdir -p "$VM" && as_root chown "$(id -u)" "$VM"; }
mkdir -p "$PLACE" "$VM/wheels" "$VM/wheels-$ARCH"
root=$PLACE/root
if [ ! -e "$root" ]; then
    as_root rm -rf "$root.new"
    as_root mmdebstrap --quiet --variant=minbase --mode=root --architectures=$ARCH --include="$PACKAGES" "$SUITE" "$root.new" "deb $mirror $SUITE main"
    if [ "$from" != $SUITE ]; then
        echo "deb $mirror $from main" | as_root tee "$root.new/etc/apt/sources.list.d/kernel.list" >/dev/null
        printf 'Package: *\nPin: release n=%s\nPin-Priority: 100\n' "$from" | as_root tee "$root.new/etc/apt/preferences.d/kernel" >/dev/null
    fi
    as_root chroot "$root.new" env DEBIAN_FRONTEND=noninteractive sh -euc "
        apt-get -qq -o Acquire::Check-Valid-Until=false update
        apt-get -qq -y --no-install-recommends install initramfs-tools
        wanted='linux-image-$flavour linux-headers-$flavour'
        case $from in
            $SUITE*) apt-get -qq -y --no-install-recommends -t $from install \$wanted ;;
            *) # another release: its kernel's packages alone, whatever else they ask for
                cd /tmp
                apt-cache depends -o APT::Default-Release=$from --recurse --no-recommends --no-suggests --no-conflicts --no-breaks --no-replaces --no-enhances \$wanted |
                    grep '^linux-' | sort -u | xargs apt-get -qq -t $from download
                dpkg --force-depends --unpack linux-*.deb
                rm linux-*.deb
                release=\$(ls /lib/modules)
                depmod \$release
                for each in vmlinuz config; do # where the newest have them, and their package would put them
                    [ -e /boot/\$each-\$release ] || cp /lib/modules/\$release/\$each /boot/\$each-\$release
                done
                update-initramfs -c -k \$release
                ;;
        esac
        apt-get clean" >"$PLACE/kernel.log" 2>&1 || { tail -n 15 "$PLACE/kernel.log" >&2; exit 1; }
    as_root mv "$root.new" "$root"
fi

# Other Pythons, for what is compiled for another processor: only unpacked, as tests start them in roots of their own.
others=()
if is_foreign; then others=(bullseye:python3.9 trixie:python3.13); fi
for each in "${others[@]}"; do
    at=$root/var/lib/pytrace-ebpf/roots/${each%:*}
    [ -e "$at" ] || as_root mmdebstrap --quiet --mode=root --variant=extract --architectures=$ARCH --include="base-files,dash,${each#*:}" "${each%:*}" "$at" "$mirror"
    as_root mkdir -p "$at/proc" "$at/dev/shm" "$at/tmp"
done

# Its packages are fetched and built here, where pip is configured, and installed there, without a network.
[ "$(.venv/bin/python -c 'import sys; print("%d.%d" % sys.version_info[:2])')" = $PYTHON ] || { say "the packages have to be built by Python $PYTHON"; exit 1; }
as_root rm -rf "$root$TREE/.venv"
if is_foreign; then
    as_root chroot "$root" python3 -m venv --system-site-packages --without-pip $TREE/.venv
    fetch_foreign
else
    .venv/bin/python -m pip wheel -qq --disable-pip-version-check -w "$VM/wheels" -r <(.venv/bin/python scripts/vm/requirements.py)
    as_root mkdir -p "$root$TREE" "$root/wheels"
    as_root mount --bind "$VM/wheels" "$root/wheels"
    trap 'as_root umount "$root/wheels"' EXIT
    as_root chroot "$root" sh -euc "
        python3 -m venv --system-site-packages $TREE/.venv
        $TREE/.venv/bin/python -m pip install -qq --no-index --find-links /wheels /wheels/*.whl"
    as_root umount "$root/wheels"
    trap - EXIT
fi
as_root install -m 755 scripts/vm/init "$root/init-vm"

say "making its disk"
as_root mke2fs -q -t ext4 -d "$root" "$PLACE/disk.img" 8G
as_root sh -euc "cp $root/boot/vmlinuz-* $PLACE/vmlinuz; cp $root/boot/initrd.img-* $PLACE/initrd"
echo "$stamp" >"$PLACE/made-from"
