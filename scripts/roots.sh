#!/bin/bash
# Build the root filesystems that `make test-matrix` runs targets in; what is there already is kept.
#
#   bullseye  Python 3.9, with function probes     trixie  3.13, without
#   sid       Python 3.15, with function probes, and 3.14, without
set -euo pipefail

ROOTS=${PYTRACE_ROOTS:-/var/lib/pytrace-ebpf/roots}

say() { echo "roots: $*" >&2; }

as_root() {
    if [ "$(id -u)" = 0 ]; then "$@"; else sudo "$@"; fi
}

# The mirror that this host's own apt gets Debian from; empty where apt has no package lists.
mirror() {
    apt-get indextargets --format '$(REPO_URI)' 'Created-By: Packages' 'Label: Debian' | sort -u | head -n 1
}

build() { # SUITE PYTHON [MMDEBSTRAP-OPTION...]
    local suite=$1 python=$2 from
    shift 2
    [ ! -x "$ROOTS/$suite/usr/bin/$python" ] || return 0
    if ! command -v mmdebstrap >/dev/null || [ -z "$(mirror)" ]; then
        say "installing mmdebstrap by apt"
        as_root apt-get -q update >/dev/null || true
        as_root env DEBIAN_FRONTEND=noninteractive apt-get -qq -y --no-install-recommends install mmdebstrap >/dev/null
    fi
    from=$(mirror)
    [ -n "$from" ] || { say "apt on this host knows no Debian mirror to build from"; exit 1; }
    say "building $ROOTS/$suite with $python (about 200 MB)"
    as_root rm -rf "$ROOTS/$suite.new"
    as_root mkdir -p "$ROOTS"
    as_root mmdebstrap --quiet --variant=minbase --mode=root "$@" "$suite" "$ROOTS/$suite.new" "$from"
    as_root mv -T "$ROOTS/$suite.new" "$ROOTS/$suite"
}

build bullseye python3.9 --include=python3
build trixie python3.13 --include=python3
# A mirror's copy of sid can have passed its date; its signatures are still checked.
build sid python3.15 --include=python3,python3.15 --aptopt='Acquire::Check-Valid-Until "false"'
