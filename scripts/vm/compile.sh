#!/bin/bash
# Compile the BPF programs of this tree for the kernel of an image (scripts/vm/build.sh), here: clang takes seconds, and under emulation a minute for each.
#
#   scripts/vm/compile.sh KERNEL      into $PYTRACE_VM/KERNEL/kept, where scripts/vm/run.sh takes them from; what is there is kept
set -euo pipefail
cd "$(dirname "$0")/../.."
KERNEL=$1
. scripts/vm/kernels.sh
place=$PLACE
export PYTRACE_VM=$VM
tree=$PWD

# The image's root is not changed: what is put in lies in memory, and goes with this mount namespace.
inside() {
    mount -t tmpfs none "$1"
    mkdir "$1/upper" "$1/work" "$1/root"
    mount -t overlay none -o "lowerdir=$place/root,upperdir=$1/upper,workdir=$1/work" "$1/root"
    cd "$1/root"
    release=$(basename lib/modules/*)
    [ -e "lib/modules/$(uname -r)" ] || ln -s "$release" "lib/modules/$(uname -r)" # where bcc looks
    mkdir -p pytrace/pytrace_ebpf pytrace/probes var/cache "$place/kept/var/cache"
    for folder in pytrace_ebpf probes; do mount --bind "$tree/$folder" "pytrace/$folder"; done
    mount -t proc proc proc
    mount --rbind /sys sys
    mount --rbind /dev dev
    cp "$tree/scripts/vm/compile.py" .
    if [ -d "$place/kept/var/cache/pytrace-ebpf" ]; then cp -a "$place/kept/var/cache/pytrace-ebpf" var/cache/; fi
    PYTHONPATH=/pytrace chroot . /pytrace/.venv/bin/python -B /compile.py "$release"
    cp -a var/cache/pytrace-ebpf "$place/kept/var/cache/"
}

# For another processor this host's bcc compiles, whose emulation has no bpf(2). Debian splits a kernel's headers in two, which are laid over each other.
for_another() {
    local release common
    release=$(basename "$place"/root/lib/modules/*)
    common=$(echo "$place"/root/usr/src/linux-headers-*-common)
    mkdir -p "$place/kept/var/cache" # where nothing was kept yet, too
    mount -t overlay none -o "lowerdir=$place/root/usr/src/linux-headers-$release:$common" "$1"
    BCC_KERNEL_SOURCE=$1 ARCH=$ARCH PYTHONPATH=$tree .venv/bin/python -B scripts/vm/compile.py "$release" "$MACHINE" "$place/kept"
}

if [ $# = 2 ] && is_foreign; then
    for_another "$2"
elif [ $# = 2 ]; then
    inside "$2"
else
    work=$(mktemp -d)
    trap 'rmdir "$work"' EXIT
    unshare=(unshare -m --propagation private "$0" "$1" "$work")
    if [ "$(id -u)" = 0 ]; then "${unshare[@]}"; else sudo --preserve-env=PYTRACE_VM "${unshare[@]}"; fi
fi
