#!/bin/bash
# Install what is missing to trace, build and test here; a second run finds all of it done.
#
#   scripts/setup.sh              host and .venv
#   scripts/setup.sh host         Debian packages, kernel headers
#   scripts/setup.sh venv EXTRA   .venv at the root of the repository, with EXTRA of pyproject.toml besides "test"
set -euo pipefail
cd "$(dirname "$0")/.."

HEADERS=/var/lib/pytrace-ebpf/headers
LOG=.build/setup.log

say() { echo "setup: $*" >&2; }

fail() {
    say "$*"
    exit 1
}

as_root() {
    if [ "$(id -u)" = 0 ]; then "$@"; else sudo "$@"; fi
}

can_be_root() { [ "$(id -u)" = 0 ] || command -v sudo >/dev/null; }

# Run a step with its output in the log, and show the log's end if it fails.
logged() {
    local what=$1
    shift
    "$@" >>"$LOG" 2>&1 && return
    tail -n 15 "$LOG" >&2
    say "$what failed; the whole output is in $LOG"
    return 1
}

serves() { "$1" -Ic 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; }

# Debian's own: the one that sees Debian's bcc, whatever else stands first on the PATH. Where it is missing or too old,
# another one still does all that needs no eBPF.
choose_python() {
    PYTHON=/usr/bin/python3
    serves $PYTHON || ! serves python3 || PYTHON=$(command -v python3)
}

have_module() { "$PYTHON" -Ic "import importlib.util, sys; sys.exit(importlib.util.find_spec('$1') is None)" 2>/dev/null; }

merged_headers() { [ -e $HEADERS/include/linux/kconfig.h ] && [ -e $HEADERS/include/generated/autoconf.h ]; }

have_headers() { [ -d "${BCC_KERNEL_SOURCE:-/lib/modules/$(uname -r)/build}" ] || merged_headers; }

apt_install() {
    if ! command -v apt-get >/dev/null; then
        say "this host is not Debian: install $* or their like with your package manager, then run make again"
        return 1
    elif ! can_be_root; then
        say "installing $* needs root: run this as root or install sudo"
        return 1
    fi
    say "installing $* by apt"
    if [ -z "${updated:-}" ]; then
        # A third-party source that cannot be reached must not stop us; whether it matters shows in the install.
        logged "apt-get update" as_root apt-get -q update || true
        updated=1
    fi
    logged "apt-get install" as_root env DEBIAN_FRONTEND=noninteractive \
        apt-get -q -y -o DPkg::Lock::Timeout=300 --no-install-recommends install "$@"
}

# The newest headers in /usr/src that have their -common part beside them.
newest_headers() {
    local common flavour newest=
    for common in $(find /usr/src -maxdepth 1 -name "linux-headers-*-common" | sort -V); do
        flavour=${common%-common}-$(dpkg --print-architecture)
        if [ -d "$flavour" ]; then newest=$flavour; fi
    done
    echo "$newest"
}

# BCC wants ONE tree where Debian packs two, -common and -ARCH. Our programs use only what is the same in
# every kernel (UAPI, tracepoint formats), so headers of another version than the running one serve.
merge_headers() {
    local flavour
    flavour=$(newest_headers)
    if [ -z "$flavour" ]; then
        apt_install "linux-headers-$(dpkg --print-architecture)" || return
        flavour=$(newest_headers)
    fi
    [ -n "$flavour" ] || return
    local common=${flavour%-*}-common
    can_be_root || { say "merging kernel headers into $HEADERS needs root"; return 1; }
    say "merging kernel headers into $HEADERS"
    as_root rm -rf "$HEADERS.new" && as_root mkdir -p "$HEADERS.new" &&
        as_root cp -rs "$common/." "$HEADERS.new" &&
        as_root cp -rsf "$flavour/." "$HEADERS.new" &&
        as_root rm -rf "$HEADERS" && as_root mv -T "$HEADERS.new" "$HEADERS"
}

# Those that the kernel carries itself: BCC would unpack them to /tmp, where others may have been before.
unpack_headers() {
    say "unpacking the kernel's own headers into $HEADERS"
    as_root rm -rf "$HEADERS.new" && as_root mkdir -p "$HEADERS.new" &&
        as_root tar -C "$HEADERS.new" -xf /sys/kernel/kheaders.tar.xz &&
        as_root rm -rf "$HEADERS" && as_root mv -T "$HEADERS.new" "$HEADERS"
}

install_headers() {
    local exact
    exact=linux-headers-$(uname -r)
    if command -v apt-cache >/dev/null && [ -n "$(apt-cache -q=2 show "$exact" 2>/dev/null)" ]; then
        apt_install "$exact" && have_headers && return
    fi
    if [ -e /sys/kernel/kheaders.tar.xz ] && unpack_headers; then return; fi
    command -v dpkg >/dev/null ||
        { say "no kernel headers: install those of $(uname -r), or set BCC_KERNEL_SOURCE to a tree of any version"; return 1; }
    merge_headers
}

set_up_host() {
    local missing=()
    [ "$(uname -s)" = Linux ] || fail "tracing needs Linux; to read traces elsewhere, 'pip install .' is enough."
    serves "$PYTHON" || missing+=(python3)
    have_module ensurepip || missing+=(python3-venv)
    have_module bcc || missing+=(python3-bpfcc)
    command -v gcc >/dev/null || missing+=(gcc libc6-dev)
    if [ ${#missing[@]} != 0 ] && apt_install "${missing[@]}"; then choose_python; fi
    serves "$PYTHON" && have_module ensurepip || fail "Python 3.11 or newer with its venv module is needed"
    # From here on a failure stops tracing with eBPF only: run --rootless, what reads traces, and their tests still work.
    if ! have_module bcc; then
        cannot_record "$PYTHON has no bcc (Debian's python3-bpfcc)"
        return
    fi
    if [ ! -e /sys/kernel/btf/vmlinux ]; then
        cannot_record "this kernel has no BTF (/sys/kernel/btf/vmlinux)"
        return
    fi
    have_headers || install_headers || cannot_record "kernel headers are missing"
}

cannot_record() { say "eBPF cannot work here, so only run --rootless can record: $*"; }

# The stamp holds what the venv was made from, so a changed file or another Python makes it anew.
set_up_venv() {
    local extras=test${1:+,$1} stamp
    stamp=.venv/.made-from-${extras//,/-}
    if [ "$(cat "$stamp" 2>/dev/null)" = "$(made_from)" ]; then return; fi
    say "installing Python packages into .venv"
    [ -x .venv/bin/python ] && [ "$(readlink -f .venv/bin/python)" = "$(readlink -f "$PYTHON")" ] ||
        logged "making the venv" "$PYTHON" -m venv --clear --system-site-packages .venv
    logged "pip install" .venv/bin/python -m pip install -qq --disable-pip-version-check --editable ".[$extras]"
    made_from >"$stamp"
}

build_agent() {
    if command -v "${CC:-gcc}" >/dev/null; then
        logged "building the libraries" scripts/build-libraries.sh
    elif [ ! -e probes/agent/agent.so ]; then
        say "there is no C compiler for the agent, so only Pythons with function probes can be traced, and only with eBPF: install gcc and libc6-dev"
    fi
}

# Every start of the tracer would compile its own modules where PYTHONDONTWRITEBYTECODE is set, as for what runs as root here.
compile_modules() { logged "compiling the modules" .venv/bin/python -m compileall -q pytrace_ebpf; }

made_from() { cat pyproject.toml scripts/setup.sh | sha256sum; pwd; readlink -f "$PYTHON"; }

choose_python
mkdir -p .build
exec 9>.build/setup.lock
flock 9 # two makes at once: the second waits and then finds it done
case ${1:-all} in
    all)
        set_up_host
        set_up_venv
        build_agent
        compile_modules
        ;;
    host) set_up_host ;;
    venv)
        set_up_venv "${2:-}"
        build_agent
        ;;
    *) fail "usage: scripts/setup.sh [host | venv [EXTRA]]" ;;
esac
