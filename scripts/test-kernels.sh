#!/bin/bash
# Run the tests of scripts/kernels.py on each kernel, and write docs/kernels.md: scripts/test-kernels.sh [KERNEL]...
#
# SECONDS_EACH=3000: a kernel's tests are interrupted then, and what they had shown is written.
#
# A kernel is one that scripts/vm/build.sh knows, in an emulated machine, or "here": this host's own. Rows of others stay as they were.
set -euo pipefail
cd "$(dirname "$0")/.."

# Without a line's end, which the machine's shell would not take. The suite is named after the kernel that runs it.
RUN='python scripts/kernels.py --tests $3 >"$1/tests"; { timeout 300 python -m pytrace_ebpf doctor || echo "doctor: exit code $?"; } >"$1/doctor.txt" 2>&1; '
RUN+='exec timeout -s INT "$2" python -m pytest -v -p no:cacheprovider --tries 1 --matrix -o junit_suite_name="$(uname -r)" --junitxml "$1/kernels.xml" @"$1/tests"'

failed=0 results=() each=${SECONDS_EACH:-3000}
for kernel in "$@"; do
    of=$PWD/.build/kernels/$kernel
    rm -rf "$of"
    mkdir -p "$of"
    without=
    [ "$kernel" != 5.10 ] || without=without-ebpf # where what it lacks is needed for all else
    if [ "$kernel" = here ]; then
        as_root=(env)
        [ "$(id -u)" = 0 ] || as_root=(sudo env PYTHONDONTWRITEBYTECODE=1)
        "${as_root[@]}" PATH="$PWD/.venv/bin:$PATH" sh -c "$RUN" sh "$of" "$each" "$without" || failed=1
    else
        KERNEL=$kernel
        . scripts/vm/kernels.sh
        rm -rf "$PLACE/results"
        scripts/vm/run.sh --kernel "$kernel" --quick --seconds $((each + 600)) sh -c "$RUN" sh /results "$each" "$without" || failed=1
        cp "$PLACE/results/kernels.xml" "$of/"
    fi
    results+=("$of/kernels.xml")
done
earlier=()
[ ! -e docs/kernels.md ] || earlier=(docs/kernels.md)
.venv/bin/python scripts/kernels.py "${results[@]}" "${earlier[@]}" >.build/kernels.md
mv .build/kernels.md docs/kernels.md
exit $failed
