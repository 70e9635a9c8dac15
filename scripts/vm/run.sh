#!/bin/bash
# Run a command on the working tree in an emulated machine with a kernel of its own, which it may stop: scripts/vm/run.sh [OPTION]... COMMAND [ARG...]
#
#   --kernel KERNEL    as scripts/vm/build.sh has them; 6.1 without
#   --seconds SECONDS  the machine is turned off then (1800)
#   --quick            both cores at once, and this host's time: several times as fast, and less exact
#
# The command runs as root in a copy of the tree, with .venv/bin first on its PATH; its output and exit code are passed on. What it puts into
# /results lies in $PYTRACE_VM/KERNEL/results afterwards, what the kernel said in $PYTRACE_VM/KERNEL/console.log. Nothing else stays.
set -euo pipefail
cd "$(dirname "$0")/../.."

# Cores take turns: QEMU 7.2 with a thread for each has been seen to run code that a kernel had just replaced. Its clock counts instructions, a nanosecond
# each, and leaps over what it would only wait for: what a test takes there says nothing of this host.
kernel=6.1 seconds=1800 pace=(-accel "tcg,thread=single" -icount "shift=0,sleep=off" -rtc "clock=vm")
while [[ ${1:-} = --* ]]; do
    if [ "$1" = --quick ]; then
        pace=(-accel "tcg,thread=multi")
        shift
        continue
    fi
    case $1 in
        --kernel) kernel=$2 ;;
        --seconds) seconds=$2 ;;
        *) echo "run.sh: $1 is not an option" >&2; exit 2 ;;
    esac
    shift 2
done
[ $# != 0 ] || { echo "usage: scripts/vm/run.sh [--kernel KERNEL] [--seconds SECONDS] [--quick] COMMAND [ARG...]" >&2; exit 2; }

scripts/vm/build.sh "$kernel"
place=$(readlink -m "${PYTRACE_VM:-.build/vm}")/$kernel
exec 9>"$place/lock"
flock 9 # one machine of a kernel at a time
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

scripts/build-libraries.sh
scripts/vm/compile.sh "$kernel"
printf '%q ' "$@" >"$work/job"
# The tree, what is compiled of it, the job.
{ git ls-files -z -co --exclude-standard; find probes pytrace_ebpf -name '*.so' -print0; } >"$work/names"
tar -cf "$work/in.tar" --owner=0 --group=0 --null --ignore-failed-read --transform 's,^,pytrace/,S' -T "$work/names" 2>/dev/null
tar -rf "$work/in.tar" --owner=0 --group=0 -C "$work" job
tar -rf "$work/in.tar" --owner=0 --group=0 -C "$place/kept" var
truncate -s %1M "$work/in.tar"
truncate -s 512M "$work/out.tar"

code=0
# The kernel must not use cmpxchg16b (141), after which it has wrong flags; and NumPy must not sort by AVX2, which comes out wrong.
# /dev/kvm can be there and not work, so it is not asked for.
timeout "$seconds" qemu-system-x86_64 "${pace[@]}" -cpu max,avx2=off -smp 2 -m 4096 -display none -monitor none -no-reboot -nic none \
    -kernel "$place/vmlinuz" -initrd "$place/initrd" -append "root=/dev/vda rw console=ttyS0 init=/init-vm panic=-1 quiet clearcpuid=141" \
    -drive "file=$place/disk.img,if=virtio,format=raw,snapshot=on" \
    -drive "file=$work/in.tar,if=virtio,format=raw,readonly=on" -drive "file=$work/out.tar,if=virtio,format=raw" \
    -serial "file:$place/console.log" -serial stdio </dev/null || code=$?
[ "$code" != 124 ] || { echo "run.sh: not done in $seconds s; the kernel's last words are in $place/console.log" >&2; exit 124; }

rm -rf "$place/results"
if ! tar -xf "$work/out.tar" -C "$work" 2>/dev/null || [ ! -e "$work/results/code" ]; then
    echo "run.sh: the machine ended without a result; the kernel's last words are in $place/console.log" >&2
    exit 1
fi
mv "$work/results" "$place/results"
if [ -d "$work/var" ]; then rm -rf "$place/kept" && mkdir "$place/kept" && mv "$work/var" "$place/kept/var"; fi
exit "$(cat "$place/results/code")"
