#!/bin/bash
# Build what is compiled: pytrace_ebpf/rebuild/rebuild.so, which rebuilds calls, and on Linux on x86-64 and aarch64 probes/agent/agent.so, which traces
# a Python from inside, and probes/remote_sampler/remote_sampler.so, which samples one from outside. Nothing to do where they were built from these sources.
set -euo pipefail
cd "$(dirname "$0")/.."
export LC_ALL=C # one order of files

SCRIPT=$PWD/scripts/build-libraries.sh

# sources LIBRARY SHARED: digests of all C of its folder and of what it includes from elsewhere; first, that of these.
sources() {
    local folder digests
    folder=$(dirname "$1")
    # shellcheck disable=SC2086 # words
    digests=$(sha256 "$folder"/*.c "$folder"/*.h $2)
    sha256 <<<"$digests" | cut -d " " -f 1
    echo "$digests"
}

# Whether a library is missing or was built from other sources, or by another version of this script.
stale() { [ ! -e "$1" ] || [ "$SCRIPT" -nt "$1" ] || ! grep -aqF "$(sources "$1" "$2" | head -n 1)" "$1"; }

# build LIBRARY SHARED FLAGS...: compile all C of its folder, linked in one part: the old names that probes/agent/build.h gives hold for all of it.
# The library tells what it was built from, and pytrace_ebpf/native_library.py loads no other.
build() {
    local library=$1 folder from
    from=$(sources "$1" "$2")
    shift 2
    folder=$(dirname "$library")
    trap 'rm -f "$library.new"' RETURN
    ${CC:-gcc} -std=gnu11 -O2 -flto -flto-partition=one -g0 -Wall -Wextra -fPIC -fvisibility=hidden -shared "$@" -o "$library.new" "$folder"/*.c -x c - \
        <<<"__attribute__((visibility(\"default\"), used)) const char pytrace_sources[] = \"${from//$'\n'/\\n}\";" || return
    if [ "$(uname -s)" = Linux ] && ! loads_everywhere "$library.new"; then return 1; fi
    mv "$library.new" "$library"
}

sha256() { if command -v sha256sum >/dev/null; then sha256sum "$@"; else shasum -a 256 "$@"; fi; }

loads_everywhere() {
    local newest
    newest=$(${OBJDUMP:-objdump} -T "$1" | grep -o 'GLIBC_2[0-9.]*' | sort -uV | tail -1)
    [ "$(printf '%s\nGLIBC_2.17\n' "$newest" | sort -V | tail -1)" = GLIBC_2.17 ] && return
    echo "$1 needs $newest, and the oldest C library that it shall load on has GLIBC_2.17:" >&2
    ${OBJDUMP:-objdump} -T "$1" | grep "$newest" >&2
    return 1
}

# Whether what the compiler makes is for a machine that can record, which need not be this one.
traces() {
    local machine
    machine=$(${CC:-gcc} -dumpmachine 2>/dev/null) || machine=$(uname -m)-$(uname -s)
    [[ $machine = @(x86_64|aarch64)-*[Ll]inux* ]]
}

PROCESSORS="probes/processor.h probes/processors/x86_64.h probes/processors/aarch64.h"
REBUILD_SHARES="probes/agent/agent.h probes/events.h probes/text.h probes/unwind.h $PROCESSORS"
AGENT_SHARES="probes/events.h probes/text.h probes/cpython_offsets.h $PROCESSORS"

# -fwrapv: sums of whatever a trace holds may overflow. -ffp-contract=off: the same estimates on every machine.
if stale pytrace_ebpf/rebuild/rebuild.so "$REBUILD_SHARES"; then
    build pytrace_ebpf/rebuild/rebuild.so "$REBUILD_SHARES" -O3 -fwrapv -ffp-contract=off
fi
# -z lazy: a function that an old C library keeps elsewhere is looked for when it is called, not when a program that
# is no Python is started with the library preloaded.
if traces && stale probes/agent/agent.so "$AGENT_SHARES"; then
    build probes/agent/agent.so "$AGENT_SHARES" -Wl,-z,lazy -Wl,-soname,agent.so
fi
if traces && stale probes/remote_sampler/remote_sampler.so "$PROCESSORS"; then
    build probes/remote_sampler/remote_sampler.so "$PROCESSORS"
fi
