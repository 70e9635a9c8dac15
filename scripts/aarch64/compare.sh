#!/bin/bash
# Read traces by Python and the C library for aarch64, under emulation, and by this host's own; every report and every table must be the same.
#
#   scripts/aarch64/compare.sh TRACE...
#
# Made once, in PYTRACE_AARCH64 or /var/lib/pytrace-ebpf/aarch64, beside the root filesystems that tests trace in: Debian's Python for arm64, and for it the packages that reading needs, in the versions that .venv has.
set -euo pipefail
cd "$(dirname "$0")/../.."

ROOT=${PYTRACE_AARCH64:-/var/lib/pytrace-ebpf/aarch64}
AT=/opt/pytrace # in it
PACKAGES=(numpy pandas pyarrow rich system-calls)

say() { echo "aarch64: $*" >&2; }

as_root() {
    if [ "$(id -u)" = 0 ]; then "$@"; else sudo "$@"; fi
}

install_tools() {
    if command -v mmdebstrap && command -v qemu-aarch64-static && command -v aarch64-linux-gnu-gcc; then return; fi >/dev/null
    say "installing an emulator and a compiler by apt"
    as_root apt-get -q update >/dev/null || true
    as_root env DEBIAN_FRONTEND=noninteractive apt-get -qq -y --no-install-recommends install \
        mmdebstrap qemu-user-static gcc-aarch64-linux-gnu libc6-dev-arm64-cross >/dev/null
}

# Only unpacked: this host need not know how to start what is in it.
build_root() {
    [ ! -x "$ROOT/usr/bin/python3.11" ] || return 0
    say "building $ROOT (about 350 MB with the packages)"
    as_root rm -rf "$ROOT.new"
    as_root mkdir -p "$(dirname "$ROOT")"
    as_root mmdebstrap --quiet --mode=root --variant=extract --architectures=arm64 --include=python3.11,python3.11-minimal,libstdc++6 bookworm "$ROOT.new" \
        "$(apt-get indextargets --format '$(REPO_URI)' 'Created-By: Packages' 'Label: Debian' | sort -u | head -n 1)"
    as_root mkdir -p "$ROOT.new/proc" "$ROOT.new/dev/shm" "$ROOT.new/tmp"
    as_root mv -T "$ROOT.new" "$ROOT"
}

install_packages() {
    local wanted
    wanted=$(.venv/bin/python -c 'import sys; from importlib.metadata import version; print(*(f"{name}=={version(name)}" for name in sys.argv[1:]))' "${PACKAGES[@]}")
    [ "$(cat "$ROOT$AT/packages" 2>/dev/null)" != "$wanted" ] || return 0
    say "installing $wanted"
    as_root rm -rf "$ROOT$AT/site"
    # shellcheck disable=SC2086 # words
    as_root .venv/bin/python -m pip install -q --disable-pip-version-check --no-compile --target "$ROOT$AT/site" --only-binary :all: \
        --python-version 3.11 --platform manylinux_2_17_aarch64 --platform manylinux2014_aarch64 --platform manylinux_2_28_aarch64 $wanted
    echo "$wanted" | as_root tee "$ROOT$AT/packages" >/dev/null
}

# The package as it is here and now, with its C library compiled for aarch64 by the flags of scripts/build-libraries.sh.
install_ours() {
    scripts/build-libraries.sh
    as_root rm -rf "$ROOT$AT/app"
    as_root mkdir -p "$ROOT$AT/app"
    as_root cp -a pytrace_ebpf probes scripts "$ROOT$AT/app/"
    as_root find "$ROOT$AT/app" -name "*.so" -delete
    as_root env CC=aarch64-linux-gnu-gcc OBJDUMP=aarch64-linux-gnu-objdump "$ROOT$AT/app/scripts/build-libraries.sh"
    as_root cp "$(command -v qemu-aarch64-static)" "$ROOT/usr/bin/"
}

[ $# -gt 0 ] || { say "which traces? scripts/aarch64/compare.sh TRACE..."; exit 2; }
install_tools
build_root
install_packages
install_ours
export PYTHONUTF8=1 TZ=UTC
work=$(mktemp -d)
trap 'as_root rm -rf "$work"' EXIT
different=0
for trace in "$@"; do
    trace=$(readlink -f "$trace")
    mkdir "$work/x86-64" "$work/aarch64"
    .venv/bin/python scripts/aarch64/read.py "$trace" "$work/x86-64"
    as_root env PYTHONUTF8=1 TZ=UTC "PYTHONPATH=$AT/app:$AT/site" scripts/in-root.sh --at "$trace" --at "$work" "$ROOT" \
        /usr/bin/qemu-aarch64-static /usr/bin/python3.11 -B "$AT/app/scripts/aarch64/read.py" "$trace" "$work/aarch64"
    .venv/bin/python scripts/aarch64/same.py "$work/x86-64" "$work/aarch64" || different=1
    as_root rm -rf "$work/x86-64" "$work/aarch64"
done
exit $different
