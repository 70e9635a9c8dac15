# Read by the others of this folder: which machine KERNEL is of, and where it lies. Of another processor its name ends in that: 6.1-arm64.
case $KERNEL in
    *-arm64 | *-arm64-*)
        MACHINE=aarch64 ARCH=arm64 EMULATOR=qemu-system-aarch64 EMULATOR_IN=qemu-system-arm
        # Its packages are set up under emulation, which takes half an hour: it is kept for all checkouts.
        VM=${PYTRACE_VM:-/var/lib/pytrace-ebpf/vm}
        ;;
    *) MACHINE=x86_64 ARCH=amd64 EMULATOR=qemu-system-x86_64 EMULATOR_IN=qemu-system-x86 VM=${PYTRACE_VM:-.build/vm} ;;
esac
# Whether this host's processor is another one.
is_foreign() { [ "$(uname -m)" != "$MACHINE" ]; }
VM=$(readlink -m "$VM")
PLACE=$VM/$KERNEL
