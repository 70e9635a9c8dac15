#!/bin/bash
# Install PyTorch for the workloads and their tests, in a venv of its own; what is there already is kept.
#
# The venv is of Debian's Python 3.11, whose function probes let both sources trace it. Which build of PyTorch comes,
# for the CPU or for CUDA, is what pip on this host finds under that version.
set -euo pipefail

TORCH=${PYTRACE_TORCH:-/var/lib/pytrace-ebpf/torch}
PYTHON=/usr/bin/python3.11
WANTED=(torch==2.13.0 numpy)

say() { echo "torch: $*" >&2; }

fail() {
    say "$*"
    exit 1
}

as_root() {
    if [ "$(id -u)" = 0 ]; then "$@"; else sudo "$@"; fi
}

have() { [ "$(cat "$TORCH/.made-from" 2>/dev/null)" = "${WANTED[*]}" ]; }

# Made beside and moved into place when whole. The venv survives the move but for the paths in bin/*, so its Python is
# what to call: bin/python -m pip.
build() {
    say "installing ${WANTED[*]} into $TORCH (about 1 GB)"
    as_root rm -rf "$TORCH.new"
    as_root install -d -o "$(id -u)" "$TORCH.new"
    "$PYTHON" -m venv "$TORCH.new" || fail "making the venv failed: install python3.11-venv and run this again"
    # pip unpacks in TMPDIR, and /tmp may be too small for this wheel.
    mkdir "$TORCH.new/tmp"
    TMPDIR=$TORCH.new/tmp "$TORCH.new/bin/python" -m pip install -qq --disable-pip-version-check "${WANTED[@]}"
    "$TORCH.new/bin/python" -c "import numpy, torch; torch.ones(2, 2) @ torch.ones(2, 2)"
    rm -rf "$TORCH.new/tmp"
    echo "${WANTED[*]}" >"$TORCH.new/.made-from"
    as_root rm -rf "$TORCH"
    as_root mv -T "$TORCH.new" "$TORCH"
}

[ -x $PYTHON ] || fail "$PYTHON is missing: install Debian's python3.11 and python3.11-venv"
as_root mkdir -p "$(dirname "$TORCH")"
exec 9<"$(dirname "$TORCH")"
flock 9 # two at once: the second waits and then finds it done
have || build
