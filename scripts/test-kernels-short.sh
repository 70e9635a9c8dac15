#!/bin/bash
# Load all programs of samples and scheduling, and count the calls of a program, on 6.1 and 6.12 in emulated machines, within five minutes: scripts/test-kernels-short.sh [KERNEL]...
#
# For CI: a kernel whose image is not there (scripts/vm/build.sh KERNEL builds it, in some minutes), and what a busy host does not get done in that time, is left out, and said.
set -euo pipefail
cd "$(dirname "$0")/.."
[ $# != 0 ] || set -- 6.1 6.12
within=${SECONDS_IN_ALL:-240} # and to compile for each
tests=(tests/bpf/test_verifier.py::test_of_{scheduling,samples} "tests/bpf/test_counts.py::test_calls_equal_what_the_interpreter_counts[python3.11-usdt-exceptions]")

failed=0
for kernel in "$@"; do
    KERNEL=$kernel
    . scripts/vm/kernels.sh
    if ! command -v "$EMULATOR" >/dev/null || [ "$(cat "$PLACE/made-from" 2>/dev/null)" != "$({ python3 scripts/vm/requirements.py && cat scripts/vm/build.sh; } | sha256sum)" ]; then
        echo "kernel $kernel: left out, as there is no image of it; scripts/vm/build.sh $kernel builds one"
        continue
    fi
    left=$((within - SECONDS)) code=0
    [ $left -lt 60 ] || scripts/vm/run.sh --kernel "$kernel" --quick --seconds "$left" python -m pytest -q -p no:cacheprovider --tries 1 "${tests[@]}" || code=$?
    if [ $left -lt 60 ] || [ $code = 124 ]; then
        echo "kernel $kernel: not done within $within s, on a busy host"
    elif [ $code != 0 ]; then
        echo "kernel $kernel: failed"
        failed=1
    fi
done
exit $failed
