#!/bin/bash
# Build the root filesystems that `make test-matrix` runs targets in; what is there already is kept.
#
#   bullseye  Python 3.9, with function probes     trixie  3.13, without
#   sid       Python 3.15, with function probes, and 3.14, without
#   3.13t, 3.14t   no root filesystems but interpreters without a GIL, which Debian has none of: built from its sources (some
#                  minutes each)
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

apt_has_mirror() {
    [ -z "$(mirror)" ] || return 0
    say "asking apt for its lists"
    as_root apt-get -q update >/dev/null || true
    [ -n "$(mirror)" ] || { say "apt on this host knows no Debian mirror to build from"; exit 1; }
}

build() { # SUITE PYTHON [MMDEBSTRAP-OPTION...]
    local suite=$1 python=$2 from
    shift 2
    [ ! -x "$ROOTS/$suite/usr/bin/$python" ] || return 0
    apt_has_mirror
    if ! command -v mmdebstrap >/dev/null; then
        say "installing mmdebstrap by apt"
        as_root env DEBIAN_FRONTEND=noninteractive apt-get -qq -y --no-install-recommends install mmdebstrap >/dev/null
    fi
    from=$(mirror)
    say "building $ROOTS/$suite with $python (about 200 MB)"
    as_root rm -rf "$ROOTS/$suite.new"
    as_root mkdir -p "$ROOTS"
    as_root mmdebstrap --quiet --variant=minbase --mode=root "$@" "$suite" "$ROOTS/$suite.new" "$from"
    as_root mv -T "$ROOTS/$suite.new" "$ROOTS/$suite"
}

# Of versions whose signed files a mirror can have lost, sources that it can still have in its pool, and their SHA-256: no signature
# vouches for them there, so nothing else is taken than what CPython released under this name.
declare -A POOL=([3.14]="3.14.4 d923c51303e38e249136fc1bdf3568d56ecb03214efdef48516176d3d7faaef8")

sources() { # SUITE VERSION: the tarball of Debian's source package, in this folder
    local suite=$1 version=$2 known file from
    local there=(-q -o "Dir::Etc::SourceList=$PWD/sources.list" -o Dir::Etc::SourceParts=/dev/null -o "Dir::State::Lists=$PWD/lists"
        -o "Dir::Cache=$PWD" -o APT::Sandbox::User=root -o 'Acquire::Check-Valid-Until=false')
    from=$(mirror)
    mkdir -p lists/partial # lists of its own: what apt on this host knows stays as it is
    echo "deb-src $from $suite main" >sources.list
    as_root apt-get "${there[@]}" update >/dev/null
    as_root apt-get "${there[@]}" source --download-only "python$version" >/dev/null 2>source.log && return
    read -r -a known <<<"${POOL[$version]:-}"
    [ "${#known[@]}" = 2 ] || { tail -n 5 source.log >&2; return 1; }
    file=python${version}_${known[0]}.orig.tar.xz
    say "the mirror has lost the signed sources of python$version: taking $file out of its pool, by its SHA-256"
    rm -f ./*.orig.tar.xz
    as_root /usr/lib/apt/apt-helper "${there[@]}" download-file "${from%/}/pool/main/p/python$version/$file" "$file" "SHA256:${known[1]}" >/dev/null
}

free_threaded() { # SUITE VERSION
    local suite=$1 version=$2 prefix=$ROOTS/$2t work
    [ ! -x "$prefix/bin/python${version}t" ] || return 0
    apt_has_mirror
    say "building $prefix (some minutes)"
    work=$(mktemp -d)
    (
        trap 'as_root rm -rf "$work"' EXIT
        cd "$work"
        sources "$suite" "$version"
        mkdir build source
        tar -xf "python${version}"_*.orig.tar.xz -C source --strip-components 1
        cd build
        ../source/configure -q --prefix="$prefix" --disable-gil --disable-test-modules --without-ensurepip OPT=-O2 >/dev/null
        nice make -s -j "$(nproc)" >make.log 2>&1 || { tail -n 20 make.log >&2; exit 1; }
        as_root make -s altinstall >install.log 2>&1 || { tail -n 20 install.log >&2; exit 1; }
    )
}

build bullseye python3.9 --include=python3
build trixie python3.13 --include=python3
# A mirror's copy of sid can have passed its date; its signatures are still checked.
build sid python3.15 --include=python3,python3.15 --aptopt='Acquire::Check-Valid-Until "false"'
free_threaded trixie 3.13
free_threaded sid 3.14
