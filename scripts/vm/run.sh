#!/bin/bash
# Run a command on the working tree in an emulated machine with a kernel of its own, which it may stop: scripts/vm/run.sh [OPTION]... COMMAND [ARG...]
#
#   --kernel KERNEL    as scripts/vm/build.sh has them; 6.1 without
#   --seconds SECONDS  the machine is turned off then (1800)
#   --no-bpf           no BPF program is compiled for it beforehand
#   --quick            both cores at once, and this host's time: several times as fast, and less exact
#
# The command runs as root in a copy of the tree, with .venv/bin first on its PATH; its output and exit code are passed on. What it puts into
# /results lies in $PYTRACE_VM/KERNEL/results afterwards, what the kernel said in $PYTRACE_VM/KERNEL/console.log. Nothing else stays.
set -euo pipefail
cd "$(dirname "$0")/../.."

# Cores take turns: QEMU 7.2 with a thread for each has been seen to run code that a kernel had just replaced. Its clock counts instructions, a nanosecond
# each, and leaps over what it would only wait for: what a test takes there says nothing of this host.
kernel=6.1 seconds=1800 compiles=yes pace=(-accel "tcg,thread=single" -icount "shift=0,sleep=off" -rtc "clock=vm")
while [[ ${1:-} = --* ]]; do
    if [ "$1" = --quick ]; then
        pace=(-accel "tcg,thread=multi")
        shift
        continue
    elif [ "$1" = --no-bpf ]; then
        compiles=
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
[ $# != 0 ] || { echo "usage: scripts/vm/run.sh [--kernel KERNEL] [--seconds SECONDS] [--quick] [--no-bpf] COMMAND [ARG...]" >&2; exit 2; }

KERNEL=$kernel
. scripts/vm/kernels.sh
scripts/vm/build.sh "$kernel"
place=$PLACE
exec 9>"$place/lock"
flock 9 # one machine of a kernel at a time
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# What is compiled of the tree is found below `libraries`, for another processor than this host's in a place of its own.
libraries=.
if is_foreign; then
    libraries=$place/libraries
    command -v "$MACHINE-linux-gnu-gcc" >/dev/null || { echo "run.sh: a compiler is missing: apt-get install gcc-$MACHINE-linux-gnu" >&2; exit 2; }
    mkdir -p "$libraries"
    git ls-files -z -co --exclude-standard probes pytrace_ebpf/rebuild scripts/build-libraries.sh | xargs -0 cp -a --parents -t "$libraries"
    CC=$MACHINE-linux-gnu-gcc OBJDUMP=$MACHINE-linux-gnu-objdump "$libraries/scripts/build-libraries.sh"
else
    scripts/build-libraries.sh
fi
[ -z "$compiles" ] || scripts/vm/compile.sh "$kernel"
mkdir -p "$place/kept/var"
printf '%q ' "$@" >"$work/job"
# The tree, what is compiled of it, the job.
git ls-files -z -co --exclude-standard >"$work/names"
tar -cf "$work/in.tar" --owner=0 --group=0 --null --ignore-failed-read --transform 's,^,pytrace/,S' -T "$work/names" 2>/dev/null
(cd "$libraries" && find probes pytrace_ebpf -name '*.so' -print0) >"$work/names"
tar -rf "$work/in.tar" --owner=0 --group=0 --null --transform 's,^,pytrace/,S' -C "$libraries" -T "$work/names"
tar -rf "$work/in.tar" --owner=0 --group=0 -C "$work" job
tar -rf "$work/in.tar" --owner=0 --group=0 -C "$place/kept" var
truncate -s %1M "$work/in.tar"
truncate -s 512M "$work/out.tar"

code=0
if [ "$MACHINE" = x86_64 ]; then
    # The kernel must not use cmpxchg16b (141), after which it has wrong flags; and NumPy must not sort by AVX2, which comes out wrong.
    processor=(-cpu max,avx2=off) words="console=ttyS0 clearcpuid=141" output=(-serial stdio)
else
    processor=(-M virt -cpu max,pauth-impdef=on) words="console=ttyAMA0" output=(-chardev stdio,id=output -device pci-serial,chardev=output)
fi
timeout "$seconds" "$EMULATOR" "${pace[@]}" "${processor[@]}" -smp 2 -m 4096 -display none -monitor none -no-reboot -nic none \
    -kernel "$place/vmlinuz" -initrd "$place/initrd" -append "root=/dev/vda rw init=/init-vm panic=-1 quiet $words" \
    -drive "file=$place/disk.img,if=virtio,format=raw,snapshot=on" \
    -drive "file=$work/in.tar,if=virtio,format=raw,readonly=on" -drive "file=$work/out.tar,if=virtio,format=raw" \
    -serial "file:$place/console.log" "${output[@]}" </dev/null || code=$?
[ "$code" != 124 ] || { echo "run.sh: not done in $seconds s; the kernel's last words are in $place/console.log" >&2; exit 124; }

rm -rf "$place/results"
if ! tar -xf "$work/out.tar" -C "$work" 2>/dev/null || [ ! -e "$work/results/code" ]; then
    echo "run.sh: the machine ended without a result; the kernel's last words are in $place/console.log" >&2
    exit 1
fi
mv "$work/results" "$place/results"
if [ -d "$work/var" ]; then rm -rf "$place/kept" && mkdir "$place/kept" && mv "$work/var" "$place/kept/var"; fi
exit "$(cat "$place/results/code")"
